//! The writes that follow decisions: a Binding, or the condition and event that say why there is
//! none, and the deletion of preempted pods.

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

/// A write that follows from a decision. It does not borrow the scheduler; pass its result to
/// [`Scheduler::written`].
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
    /// A pod's condition was written. `again` are the pods to try again: those that have lost their
    /// places to it, and the pod itself if a victim could not be deleted.
    ConditionWritten { again: Vec<PodKey> },
    /// The writes that a claim needs to get its volume were made, or failed.
    Claimed {
        result: Result<(), ApiError>,
        bindings: Bindings,
    },
}

/// Why a bind has not succeeded.
#[derive(Debug)]
pub(super) enum Unbound {
    /// The pod has no node.
    Refused(ApiError),
    /// The pod may be bound: the answer was lost, and reading the pod failed too.
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
                .add_subresource::<Pod>(Some(&key.namespace), &key.name, "binding", &binding)
                .await;
            let result = match answer {
                Ok(()) => Ok(()),
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

    /// Writes the condition and the event that say why a pod is pending, and deletes the pods that
    /// it preempts. Removes the nomination of a pod that has lost its place, and of the pods of
    /// lower priority that lose theirs to it.
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

/// Why a pod is pending, and why it preempts no others, if that is known.
fn pending_message(
    why: &Unschedulable,
    preemption: Option<&Result<Preemption, NoPreemption>>,
) -> String {
    let Some(Err(none)) = preemption else {
        return why.to_string();
    };
    // If nodes were filtered, upstream's plugin for resource claims adds its phrase first.
    let claims = match why {
        Unschedulable::NoneFits { .. } => "no new claims to deallocate, ",
        Unschedulable::NotYet(_) | Unschedulable::NoNodes | Unschedulable::Nowhere { .. } => "",
    };
    format!("{why} {claims}preemption: {none}")
}

/// After a failed bind: `Ok` if the pod is on the node all the same, as an answer may be lost after
/// its request was carried out.
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

/// Removes the nomination of a waiting pod.
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

/// Deletes the victims of a preemption; returns whether all are being deleted or gone. A failed
/// deletion is repeated when the preemptor is tried again.
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
                // If the victim is gone already, its deletion wakes the preemptor.
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

/// The change of a pod's `nominatedNodeName`.
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
