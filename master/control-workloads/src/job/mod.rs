//! The Job controllers: run pods to completion and count each exactly once.
//!
//! - `plan`: which pods are created, deleted and counted; pure
//! - `pod`: builds its pods
//! - `policy`: failure and success policies
//! - `indexes`: completion indexes
//! - `status`: the status
//!
//! Guarantee: a pod that ended is counted once, whenever this process stops. Its pods have a
//! finalizer; the UID of one that ended is written into the status first, then the finalizer is
//! removed, then the UID becomes a count (KEP-2307). As upstream, a pod that still runs when its
//! Job is being deleted loses the finalizer and is never counted.

mod indexes;
mod plan;
mod pod;
mod policy;
mod status;

pub use plan::{New, Step};
pub use policy::{Verdict, judge};
pub use status::{Status, Uncounted, finished};

use crate::workload::action;
use crate::workload::amount::later;
use crate::workload::claim::OwnerChange;
use crate::workload::kept::{Kept, Labels, Selects, controls, is_leaving, selects};
use crate::workload::make::{self, record_event};
use crate::workload::pod::{BY_CONTROLLER, JOB_TRACKING, OwnedPod, PodId, Pods};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::Pod;
use futures_util::future::join_all;
use master_client::{ApiError, DeleteParams, Entries, Key, Patch, Progress, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

/// The value of `spec.managedBy` for this controller.
const MANAGER: &str = "kubernetes.io/job-controller";
/// Finalizers that are removed concurrently.
const AT_ONCE: usize = 32;

/// The controller. Its keys are Jobs.
#[derive(Debug)]
pub struct Jobs {
    all: Store<Kept<Job>>,
    pods: Pods,
    failures: make::Failures,
}

/// A Job with its pods.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub job: Arc<Kept<Job>>,
    /// The resource version of the object, or an older one.
    pub version: Option<u64>,
    /// Pods that it controls.
    pub pods: Entries<OwnedPod>,
    /// Pods that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
    /// Whether creating its last pods failed.
    pub failing: bool,
}

/// An action on the Job with a UID.
pub type Action = action::Action<Step>;

impl Selects for Job {
    fn wants(&self, labels: &Labels) -> bool {
        let selector = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| selects(selector, labels))
    }
}

impl Controller for Jobs {
    const NAME: &'static str = "job-controller";
    const RIGHTS: &'static [Right] = &[
        right("batch", "jobs", &["get", "list", "watch"]),
        right("batch", "jobs/status", &["patch"]),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let jobs: Store<Kept<Job>> = setup.follow_keys();
        Self {
            pods: Pods::follow(setup, &jobs),
            all: jobs,
            failures: make::Failures::default(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        // Read before the object: if that changes in between, the write must fail with the older
        // version.
        let version = self.all.revision(key);
        let Some(job) = self.all.get(key) else {
            self.failures.forget(key);
            return None;
        };
        let manager = job.spec.as_ref()?.managed_by.as_deref();
        if manager.is_some_and(|manager| manager != MANAGER) {
            return None;
        }
        let pods = self
            .pods
            .of(job.metadata.uid.as_deref().unwrap_or_default());
        let wants = |_: &Key, pod: &OwnedPod| job.wants(&pod.labels);
        // A finished Job adopts no pods, so that a pod whose owner was removed outlives it
        // (upstream).
        let owner_changes = if Status::of(&job).is_finished() {
            Vec::new()
        } else {
            self.pods.owner_changes(&job.metadata, &pods, wants)
        };
        Some(Facts {
            key: key.clone(),
            owner_changes,
            failing: self.failures.of(key).is_some(),
            job,
            version,
            pods,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let (key, meta) = (&facts.key, &facts.job.metadata);
        Action::after_owners(key, meta, &facts.owner_changes, Step::Own, || {
            plan::plan(facts, now.wall)
        })
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Action { key, uid, step } = action;
        let Some(job) = action::current(&self.all, &key, &uid) else {
            return Ok(());
        };
        let owner = controls(&job.0);
        let about = make::reference(&owner, &key.namespace);
        match step {
            Step::Own(change) => {
                if let OwnerChange::Release(pod, id) = &change {
                    untrack(writer, pod, id).await?;
                }
                // The finalizer is added with the owner: `OrphanPods` removes it from pods without
                // an owner, and a pod without it would never be counted.
                change
                    .carry_out_with::<Job, Pod>(writer, &owner, &[JOB_TRACKING])
                    .await
            }
            Step::Create(pods) => {
                let pods = pods
                    .into_iter()
                    .map(|new| pod::pod(&job, &owner, &key, &new));
                let made = make::create(writer, &about, pods.collect()).await;
                self.failures.note(&key, "FailedCreate", made)
            }
            Step::Delete(pods) => {
                // Without the finalizer these pods do not count.
                untrack_all(writer, &pods).await?;
                make::delete(writer, &about, &pods).await
            }
            Step::End(pods) => make::delete(writer, &about, &pods).await,
            Step::Untrack(pods) => untrack_all(writer, &pods).await,
            Step::Event(severity, reason, message) => {
                record_event(writer, &about, severity, reason, message).await;
                Ok(())
            }
            Step::Status { status, version } => {
                // The list of conditions is written as a whole: the version protects a condition
                // that somebody has added meanwhile.
                let version = version.map(|version| version.to_string());
                let patch = json!({"metadata": {"uid": uid, "resourceVersion": version},
                    "status": status.json()});
                let patch = Patch::Merge(patch);
                writer.patch_status::<Job>(&key, &patch).await.map(drop)
            }
        }
    }
}

async fn untrack_all(writer: &Writer, pods: &[PodId]) -> Result<(), ApiError> {
    for batch in pods.chunks(AT_ONCE) {
        let each = batch.iter().map(|pod| untrack(writer, &pod.key, &pod.uid));
        join_all(each)
            .await
            .into_iter()
            .collect::<Result<Vec<()>, _>>()?;
    }
    Ok(())
}

/// Removes the finalizer from a pod that is counted, or never will be. A missing pod is no error.
async fn untrack(writer: &Writer, pod: &Key, uid: &str) -> Result<(), ApiError> {
    let patch =
        json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [JOB_TRACKING]}});
    match writer.patch::<Pod>(pod, &Patch::Strategic(patch)).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

/// The controller that removes the finalizer from orphan pods: their Job is deleted, or they have
/// no controller, so that no Job will ever count them. Its keys are pods.
#[derive(Debug)]
pub struct OrphanPods {
    pods: Store<OwnedPod>,
    jobs: Store<Kept<Job>>,
}

impl Controller for OrphanPods {
    const NAME: &'static str = "job-orphan-pods";
    const RIGHTS: &'static [Right] = &[
        right("batch", "jobs", &["get", "list", "watch"]),
        right("", "pods", &["get", "list", "watch", "patch"]),
    ];
    type Facts = PodId;
    type Action = PodId;

    fn new(setup: &mut Setup<'_>) -> Self {
        let pods: Store<OwnedPod> = setup.follow(|delta, keys| {
            let tracked = |pod: &OwnedPod| pod.job.as_ref().is_some_and(|part| part.tracked);
            if delta.after.as_deref().is_some_and(tracked) {
                keys.push((*delta.key).clone());
            }
        });
        let owned = pods.index(&BY_CONTROLLER);
        let jobs = setup.follow(move |delta: &master_client::Delta<Kept<Job>>, keys| {
            if delta.after.is_some() {
                return;
            }
            let uid = delta
                .before
                .as_ref()
                .and_then(|job| job.metadata.uid.clone());
            let pods = owned.keys(&uid.unwrap_or_default());
            keys.extend(pods.iter().map(|key| (**key).clone()));
        });
        Self { pods, jobs }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<PodId> {
        let pod = self.pods.get(key)?;
        if !pod.job.as_ref()?.tracked {
            return None;
        }
        let counted = pod.owner.as_ref().is_some_and(|owner| {
            let job = self.jobs.get(&Key::new(&key.namespace, &owner.name));
            job.is_some_and(|job| job.metadata.uid.as_deref() == Some(&owner.uid))
        });
        (!counted).then(|| PodId::of(key, &pod))
    }

    fn plan(facts: &PodId, _: Now) -> Plan<PodId> {
        Plan::act(facts.clone())
    }

    async fn carry_out(&self, orphan: PodId, writer: &Writer) -> Result<(), ApiError> {
        let PodId { key, uid } = orphan;
        // Read from the API: a Job that the stores do not show yet may own the pod.
        let pod: Option<Pod> = writer.client().get_opt(key.namespace(), &key.name).await?;
        let Some(pod) = pod else { return Ok(()) };
        if let Some(owner) = crate::workload::kept::controller(&pod.metadata)
            && owner.kind == "Job"
        {
            let job: Option<Job> = writer
                .client()
                .get_opt(key.namespace(), &owner.name)
                .await?;
            if job.is_some_and(|job| job.metadata.uid.as_deref() == Some(&owner.uid)) {
                return Ok(());
            }
        }
        untrack(writer, &key, &uid).await
    }
}

/// The controller that deletes finished Jobs after their `ttlSecondsAfterFinished`. Its keys are
/// Jobs.
#[derive(Debug)]
pub struct JobTtl {
    jobs: Store<Kept<Job>>,
}

/// A Job by its key, and by its UID: another Job may have its name by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobId {
    /// Its key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

/// A finished Job and when it expires.
#[derive(Debug)]
pub struct Expiry {
    job: JobId,
    at: jiff::Timestamp,
}

impl Controller for JobTtl {
    const NAME: &'static str = "ttl-after-finished-controller";
    const RIGHTS: &'static [Right] = &[right("batch", "jobs", &["get", "list", "watch", "delete"])];
    type Facts = Expiry;
    type Action = JobId;

    fn new(setup: &mut Setup<'_>) -> Self {
        Self {
            jobs: setup.follow_keys(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Expiry> {
        let job = self.jobs.get(key)?;
        let at = expiry(&job)?;
        let uid = job.metadata.uid.clone().unwrap_or_default();
        Some(Expiry {
            job: JobId {
                key: key.clone(),
                uid,
            },
            at,
        })
    }

    fn plan(facts: &Expiry, now: Now) -> Plan<JobId> {
        match now.until(facts.at) {
            Some(left) => Plan::wait(left),
            None => Plan::act(facts.job.clone()),
        }
    }

    async fn carry_out(&self, job: JobId, writer: &Writer) -> Result<(), ApiError> {
        let JobId { key, uid } = job;
        // Read from the API: the time may have been changed a moment ago.
        let known: Option<Job> = writer.client().get_opt(key.namespace(), &key.name).await?;
        let due = known.and_then(|job| expiry(&job));
        if due.is_none_or(|due| due > writer.client().now()) {
            return Ok(());
        }
        let params = DeleteParams {
            propagation: Some("Foreground"),
            ..DeleteParams::of(uid)
        };
        writer.delete::<Job>(&key, &params).await
    }
}

/// When a Job expires; `None` if it is not finished, has no TTL, or is being deleted already.
fn expiry(job: &Job) -> Option<jiff::Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let ended = finished(job).filter(|_| !is_leaving(&job.metadata))?;
    let wait = jiff::SignedDuration::from_secs(i64::from(seconds));
    Some(later(ended, wait))
}

/// The type of the event of a finished Job.
pub(crate) const fn severity(complete: bool) -> Severity {
    if complete {
        Severity::Normal
    } else {
        Severity::Warning
    }
}
