//! The writes that follow decisions: a Binding, or the condition and event that say why there is
//! none, and the end of those that make room.

use super::Scheduler;
use crate::key::PodKey;
use crate::preempt::{NoPreemption, Preemption, Victim};
use crate::queue::Waiting;
use crate::request::{PREEMPTED, PodRequest};
use crate::snapshot::KeptPlace;
use crate::storage::Bindings;
use crate::unschedulable::Unschedulable;
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use master_client::{ApiError, Client, DeleteParams, NewEvent, Patch, Recorder, Severity};
use serde_json::{Value, json};

/// A write that follows from a decision. It needs nothing of the scheduler, which takes its result
/// by [`Scheduler::written`].
pub type Write = BoxFuture<'static, Written>;

/// The result of a write.
#[derive(Debug)]
pub struct Written(pub(super) Outcome);

/// The result.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A bind was answered.
    Bind {
        key: PodKey,
        uid: String,
        result: Result<(), Unbound>,
    },
    /// A pod's condition was written. These are to be tried again: those that have lost their
    /// places to it, and itself where one did not end that is to make room for it.
    ConditionWritten { again: Vec<PodKey> },
    /// What a claim needs to get its volume was written, or not.
    Claimed {
        result: Result<(), ApiError>,
        bindings: Bindings,
    },
}

/// Why a pod was not bound, as far as is known.
#[derive(Debug)]
pub(super) enum Unbound {
    /// It has no node.
    Refused(ApiError),
    /// It may be on its node: the answer was lost, and reading the pod failed too.
    Unclear(ApiError),
}

impl Scheduler {
    pub(super) fn bind(&mut self, waiting: Waiting, node: String) -> Write {
        let (client, recorder) = (self.client.clone(), self.recorder(&waiting.request));
        Box::pin(async move {
            let PodRequest { key, uid, .. } = waiting.request;
            let about = subject(&key, &uid);
            let binding = Binding {
                metadata: about.metadata.clone(),
                target: ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(node.clone()),
                    ..ObjectReference::default()
                },
            };
            let answer = client
                .create_subresource::<Pod>(Some(&key.namespace), &key.name, "binding", &binding)
                .await;
            let result = match answer {
                Ok(_) => Ok(()),
                Err(error) => check(&client, &key, &uid, &node, error).await,
            };
            if result.is_ok() {
                let message = format!("Successfully assigned {key} to {node}");
                record(
                    &recorder,
                    &about,
                    Severity::Normal,
                    "Scheduled",
                    "Binding",
                    message,
                )
                .await;
            }
            Written(Outcome::Bind { key, uid, result })
        })
    }

    /// Writes the condition and the event that say why a pod is pending, and ends the pods that
    /// make room for it. No node is nominated any more for one that has lost its place, or for the
    /// less important ones that lose theirs to it.
    pub(super) fn report(
        &mut self,
        waiting: Waiting,
        why: &Unschedulable,
        preemption: Option<Result<Preemption, NoPreemption>>,
        lost_place: bool,
        displaced: Vec<KeptPlace>,
    ) -> Write {
        let request = waiting.request;
        let recorder = self.recorder(&request);
        let message = pending_message(why, preemption.as_ref());
        let preemption = preemption.and_then(Result::ok);
        let nominated = match &preemption {
            Some(preemption) => Nominated::Node(&preemption.node),
            None if lost_place => Nominated::Nowhere,
            None => Nominated::AsBefore,
        };
        let change =
            self.queue.report(&request.key, &message) || preemption.is_some() || lost_place;
        let client = self.client.clone();
        let since = self.queue.unscheduled_since(&request.key, client.now());
        let condition = change.then(|| unscheduled(&request, &message, since, nominated));
        let PodRequest { key, uid, .. } = request;
        Box::pin(async move {
            let about = subject(&key, &uid);
            if let Some(patch) = condition {
                let written = client
                    .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
                    .await;
                if let Err(error) = written {
                    tracing::debug!(pod = %key, error = chain(&error), "cannot write the condition");
                }
            }
            record(
                &recorder,
                &about,
                Severity::Warning,
                "FailedScheduling",
                "Scheduling",
                message,
            )
            .await;
            for KeptPlace { key, uid, .. } in &displaced {
                denominate(&client, key, uid).await;
            }
            let mut again: Vec<PodKey> = displaced.into_iter().map(|place| place.key).collect();
            if let Some(preemption) = preemption
                && !make_room(&client, &recorder, &about, preemption).await
            {
                again.push(key);
            }
            Written(Outcome::ConditionWritten { again })
        })
    }
}

/// Why a pod is pending, and why no other pods end for it, where that is known.
fn pending_message(
    why: &Unschedulable,
    preemption: Option<&Result<Preemption, NoPreemption>>,
) -> String {
    let Some(Err(none)) = preemption else {
        return why.to_string();
    };
    // Where nodes were looked at, upstream's plugin for resource claims speaks first.
    let claims = match why {
        Unschedulable::NoneFits { .. } => "no new claims to deallocate, ",
        Unschedulable::NotYet(_) | Unschedulable::NoNodes | Unschedulable::Nowhere { .. } => "",
    };
    format!("{why} {claims}preemption: {none}")
}

/// Whether a pod is on its node although the answer says otherwise: an answer may be lost after its
/// request was done.
async fn check(
    client: &Client,
    key: &PodKey,
    uid: &str,
    node: &str,
    error: ApiError,
) -> Result<(), Unbound> {
    let found = client.get_opt::<Pod>(Some(&key.namespace), &key.name).await;
    let Ok(found) = found else {
        return Err(Unbound::Unclear(error));
    };
    let found = found.filter(|pod| pod.metadata.uid.as_deref() == Some(uid));
    let own = found.and_then(|pod| pod.spec?.node_name);
    if own.as_deref() == Some(node) {
        Ok(())
    } else {
        Err(Unbound::Refused(error))
    }
}

async fn record(
    recorder: &Recorder,
    pod: &Pod,
    severity: Severity,
    reason: &str,
    action: &str,
    message: String,
) {
    recorder
        .record(
            pod,
            &NewEvent {
                severity,
                reason,
                action,
                message,
            },
        )
        .await;
}

/// The part of a pod that an event's reference needs.
fn subject(key: &PodKey, uid: &str) -> Pod {
    let metadata = ObjectMeta {
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    Pod {
        metadata,
        ..Pod::default()
    }
}

/// Nominates no node any more for a pod that waits.
async fn denominate(client: &Client, key: &PodKey, uid: &str) {
    let patch =
        Patch::Strategic(json!({"metadata": {"uid": uid}, "status": {"nominatedNodeName": null}}));
    let written = client
        .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
        .await;
    if let Err(error) = written {
        tracing::debug!(pod = %key, error = chain(&error), "cannot remove a nomination");
    }
}

/// Ends the victims of a preemption; whether all of them end. What fails is tried again with the
/// pod that needs the room.
async fn make_room(
    client: &Client,
    recorder: &Recorder,
    preemptor: &Pod,
    preemption: Preemption,
) -> bool {
    let Preemption { node, victims, .. } = preemption;
    let preemptor_uid = preemptor.metadata.uid.as_deref().unwrap_or_default();
    let mut all_end = true;
    for Victim {
        key,
        uid,
        generation,
    } in victims
    {
        let about = subject(&key, &uid);
        let name = recorder.component();
        let message = format!("{name}: preempting to accommodate a higher priority pod");
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": PREEMPTED,
            "message": message, "observedGeneration": generation, "lastProbeTime": null, "lastTransitionTime": text(client.now())});
        let patch = Patch::Strategic(
            json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}),
        );
        let marked = client
            .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
            .await;
        let params = DeleteParams::of(uid);
        let ended = match marked {
            Ok(_) => {
                client
                    .delete::<Pod>(Some(&key.namespace), &key.name, &params)
                    .await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => {
                let event = NewEvent {
                    severity: Severity::Normal,
                    reason: "Preempted",
                    action: "Preempting",
                    message: format!("Preempted by pod {preemptor_uid} on node {node}"),
                };
                recorder.record_related(&about, preemptor, &event).await;
            }
            Err(error) => {
                // One that is gone already wakes the pod by its event.
                all_end &= error.is_not_found();
                tracing::debug!(pod = %key, error = chain(&error), "cannot preempt a pod");
            }
        }
    }
    all_end
}

/// A time as conditions have it.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What is written as `nominatedNodeName`: the node on which other pods are preempted for this one.
#[derive(Debug, Clone, Copy)]
enum Nominated<'a> {
    AsBefore,
    Node(&'a str),
    Nowhere,
}

/// The condition of a pod that has been unschedulable since a time, and the node that is being made
/// free for it; with the UID as precondition, as another pod may have the name by now.
fn unscheduled(
    pod: &PodRequest,
    message: &str,
    since: Timestamp,
    nominated: Nominated<'_>,
) -> Patch {
    let PodRequest {
        uid, generation, ..
    } = pod;
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "observedGeneration": generation, "lastProbeTime": null, "lastTransitionTime": text(since),
    });
    let mut status = json!({"conditions": [condition]});
    match nominated {
        Nominated::AsBefore => {}
        Nominated::Node(node) => status["nominatedNodeName"] = node.into(),
        Nominated::Nowhere => status["nominatedNodeName"] = Value::Null,
    }
    Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}))
}
