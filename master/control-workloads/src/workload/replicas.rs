//! The core of ReplicaSet and ReplicationController: keeps exactly `spec.replicas` active pods of a
//! template.

use super::action;
use super::claim::OwnerChange;
use super::condition::{self, Condition};
use super::kept::{Kept, Labels, Selects, by_controller, controller, controls, is_leaving};
use super::make::{self, BURST, Failure, Failures};
use super::pod::{OwnedPod, PodId, Pods};
use super::rank::{Crowd, order};
use super::ready::ReadyTimes;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use jiff::{SignedDuration, Timestamp};
use master_client::{ApiError, Entries, Key, Lookup, Object, Patch, Store};
use master_control::controller::{Controller, Now, Plan, Right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

const FAILURE: &str = "ReplicaFailure";

/// A kind that keeps a number of equal pods.
pub trait Replicated: Object + Selects + PartialEq + Debug + Clone + Sync {
    /// Name of its controller.
    const CONTROLLER: &'static str;
    /// Name of its controller in events.
    const COMPONENT: &'static str = Self::CONTROLLER;
    /// The rights that its controller needs.
    const RIGHTS: &'static [Right];
    /// Whether its status counts pods that are being deleted.
    const COUNTS_TERMINATING: bool;

    /// How many pods are wanted.
    fn wanted(&self) -> i32;
    /// For how long a pod must be ready to be available, in seconds.
    fn least_ready(&self) -> i32;
    /// The template of its pods.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Its status as stored.
    fn counts(&self) -> Counts;
    /// Its `status.terminatingReplicas`.
    fn terminating(&self) -> Option<i32> {
        None
    }
}

/// The methods of [`Replicated`] that are the same for ReplicaSet and ReplicationController: the
/// types of k8s-openapi share no trait for their spec and status.
macro_rules! same_fields {
    () => {
        fn wanted(&self) -> i32 {
            self.spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1)
        }

        fn least_ready(&self) -> i32 {
            let spec = self.spec.as_ref();
            spec.and_then(|spec| spec.min_ready_seconds)
                .unwrap_or_default()
        }

        fn template(&self) -> Option<&config_kube::k8s_openapi::api::core::v1::PodTemplateSpec> {
            self.spec.as_ref()?.template.as_ref()
        }

        fn counts(&self) -> $crate::workload::replicas::Counts {
            let status = self.status.clone().unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default().into_iter();
            let conditions = conditions.map(|one| {
                $crate::workload::condition::Condition::read(
                    one.type_,
                    one.status,
                    one.reason,
                    one.message,
                    one.last_transition_time,
                )
            });
            $crate::workload::replicas::Counts {
                replicas: status.replicas,
                labelled: status.fully_labeled_replicas.unwrap_or_default(),
                ready: status.ready_replicas.unwrap_or_default(),
                available: status.available_replicas.unwrap_or_default(),
                terminating: self.terminating(),
                observed: status.observed_generation.unwrap_or_default(),
                conditions: conditions.collect(),
            }
        }
    };
}
pub(crate) use same_fields;

/// A status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Active pods.
    pub replicas: i32,
    /// Of these, those that have all labels of the template.
    pub labelled: i32,
    /// Of these, those that are ready.
    pub ready: i32,
    /// Of these, those that have been ready for long enough.
    pub available: i32,
    /// Pods that are being deleted.
    pub terminating: Option<i32>,
    /// `observedGeneration`.
    pub observed: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

impl Counts {
    fn json(&self) -> Value {
        let conditions: Vec<Value> = self.conditions.iter().map(|one| one.json(None)).collect();
        // Optional numbers are omitted if they are 0, as upstream does: `null` removes them in a
        // merge.
        let number = |number: i32| (number != 0).then_some(number);
        json!({
            "replicas": self.replicas,
            "fullyLabeledReplicas": number(self.labelled),
            "readyReplicas": number(self.ready),
            "availableReplicas": number(self.available),
            "terminatingReplicas": self.terminating,
            "observedGeneration": self.observed,
            "conditions": (!conditions.is_empty()).then_some(conditions),
        })
    }
}

/// The controller. Its keys are objects of its kind.
#[derive(Debug)]
pub struct Replicas<K> {
    sets: Store<Kept<K>>,
    siblings: Lookup<Kept<K>>,
    pods: Pods,
    ready: ReadyTimes,
    failures: Failures,
}

/// An object with its pods.
#[derive(Debug)]
pub struct Facts<K> {
    /// Its key.
    pub key: Key,
    /// The object.
    pub set: Arc<Kept<K>>,
    /// Pods that it controls.
    pub pods: Entries<OwnedPod>,
    /// Pods that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
    /// Active pods of all objects with the same owner, by node.
    pub crowd: Crowd,
    /// The last failure.
    pub failure: Option<Failure>,
}

/// A step for an object with a UID.
pub type Action = action::Action<Step>;

/// A write for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Adopts or releases a pod.
    Own(OwnerChange),
    /// Creates this number of pods.
    Create(usize),
    /// Deletes pods.
    Delete(Vec<PodId>),
    /// Writes the status.
    Status(Counts),
}

impl<K: Replicated> Controller for Replicas<K> {
    const NAME: &'static str = K::CONTROLLER;
    const COMPONENT: &'static str = K::COMPONENT;
    const RIGHTS: &'static [Right] = K::RIGHTS;
    type Facts = Facts<K>;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let sets: Store<Kept<K>> = setup.follow_keys();
        Self {
            siblings: sets.index(&by_controller()),
            pods: Pods::follow(setup, &sets),
            sets,
            ready: ReadyTimes::default(),
            failures: Failures::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts<K>> {
        let Some(set) = self.sets.get(key) else {
            self.failures.forget(key);
            self.ready.forget(key);
            return None;
        };
        let meta = set.metadata();
        let pods = self.pods.of(meta.uid.as_deref().unwrap_or_default());
        let pods = self.ready.on_clock(key, set.least_ready(), pods, now);
        // A pod that has ended is not adopted: it does not count as a replica.
        let running = pods.iter().filter(|(_, pod)| !pod.ended()).cloned();
        let wants = |_: &Key, pod: &OwnedPod| !pod.ended() && set.wants(&pod.labels);
        let owner_changes = self.pods.owner_changes(meta, &running.collect(), wants);
        let active = pods.iter().filter(|(_, pod)| pod.is_active()).count();
        let many = i32::try_from(active).is_ok_and(|active| active > set.wanted());
        if usize::try_from(set.wanted()) == Ok(active) || is_leaving(meta) {
            // No pods are to be created or deleted, so the last failure is over.
            self.failures.forget(key);
        }
        Some(Facts {
            crowd: if many { self.crowd(&set) } else { Crowd::new() },
            key: key.clone(),
            failure: self.failures.of(key),
            set,
            pods,
            owner_changes,
        })
    }

    fn plan(facts: &Facts<K>, now: Now) -> Plan<Action> {
        let (key, meta) = (&facts.key, facts.set.metadata());
        Action::after_owners(key, meta, &facts.owner_changes, Step::Own, || {
            manage(facts, now.wall)
        })
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Action { key, uid, step } = action;
        let Some(set) = action::current(&self.sets, &key, &uid) else {
            return Ok(());
        };
        let owner = controls(&set.0);
        let about = make::reference(&owner, &key.namespace);
        match step {
            Step::Own(change) => change.carry_out::<K, Pod>(writer, &owner).await,
            Step::Create(count) => {
                let Some(template) = set.template() else {
                    return Ok(());
                };
                let pod = make::pod_of(template, &owner, &key.namespace);
                let made = make::create(writer, &about, vec![pod; count]).await;
                self.failures.note(&key, "FailedCreate", made)
            }
            Step::Delete(pods) => {
                let ended = make::delete(writer, &about, &pods).await;
                self.failures.note(&key, "FailedDelete", ended)
            }
            Step::Status(counts) => {
                let patch = json!({"metadata": {"uid": uid}, "status": counts.json()});
                writer
                    .patch_status::<K>(&key, &Patch::Merge(patch))
                    .await
                    .map(drop)
            }
        }
    }
}

impl<K: Replicated> Replicas<K> {
    /// Active pods of the object and of all others with the same owner, by node.
    fn crowd(&self, set: &Kept<K>) -> Crowd {
        let meta = set.metadata();
        let siblings = match controller(meta) {
            Some(owner) => self.siblings.get(&owner.uid),
            None => Vec::new(),
        };
        let uids = siblings.iter().map(|(_, set)| set.metadata().uid.clone());
        let mut uids: Vec<_> = uids.chain([meta.uid.clone()]).flatten().collect();
        uids.sort_unstable();
        uids.dedup();
        let mut crowd = Crowd::new();
        for (_, pod) in uids.iter().flat_map(|uid| self.pods.of(uid)) {
            if pod.is_active() && !pod.node.is_empty() {
                *crowd.entry(Arc::clone(&pod.node)).or_default() += 1;
            }
        }
        crowd
    }
}

/// Creates or deletes pods, and writes the status if it differs.
fn manage<K: Replicated>(facts: &Facts<K>, now: Timestamp) -> Plan<Step> {
    let set = &facts.set;
    let mut active: Vec<_> = facts
        .pods
        .iter()
        .filter(|(_, pod)| pod.is_active())
        .collect();
    let wanted = usize::try_from(set.wanted()).unwrap_or_default();
    let mut steps = Vec::new();
    let counts = count(facts, &active, now);
    if counts != set.counts() {
        steps.push(Step::Status(counts));
    }
    if !is_leaving(set.metadata()) {
        if active.len() < wanted {
            steps.push(Step::Create((wanted - active.len()).min(BURST)));
        } else if active.len() > wanted {
            let spare = (active.len() - wanted).min(BURST);
            active.sort_by(|(_, one), (_, other)| order(one, other, &facts.crowd, now));
            let first = active[..spare].iter();
            steps.push(Step::Delete(
                first.map(|(key, pod)| PodId::of(key, pod)).collect(),
            ));
        }
    }
    Plan {
        actions: steps,
        requeue: soonest(facts, now),
    }
}

/// Time until the next pod becomes available.
fn soonest<K: Replicated>(facts: &Facts<K>, now: Timestamp) -> Option<Duration> {
    let least = facts.set.least_ready();
    let left = facts
        .pods
        .iter()
        .filter(|(_, pod)| pod.is_active())
        .filter_map(|(_, pod)| pod.available_in(least, now));
    let left = left.filter(|left| *left > SignedDuration::ZERO).min()?;
    Duration::try_from(left).ok()
}

fn count<K: Replicated>(
    facts: &Facts<K>,
    active: &[&(Arc<Key>, Arc<OwnedPod>)],
    now: Timestamp,
) -> Counts {
    let set = &facts.set;
    let labels: Labels = set.template().map(make::labels_of).unwrap_or_default();
    let count = |counts: &dyn Fn(&OwnedPod) -> bool| {
        let counted = active.iter().filter(|(_, pod)| counts(pod)).count();
        i32::try_from(counted).unwrap_or(i32::MAX)
    };
    let leaving = facts.pods.iter().filter(|(_, pod)| pod.is_terminating());
    let leaving = i32::try_from(leaving.count()).unwrap_or(i32::MAX);
    let mut conditions = set.counts().conditions;
    match &facts.failure {
        // The message of the first failure is kept, so that repeated failures cause no writes.
        Some(_) if condition::find(&conditions, FAILURE).is_some() => {}
        Some(Failure { reason, message }) => {
            conditions.push(Condition::new(FAILURE, "True", reason, message, now));
        }
        None => condition::unset(&mut conditions, FAILURE),
    }
    for condition in &mut conditions {
        condition.updated = None;
    }
    let all = |pod: &OwnedPod| {
        labels
            .iter()
            .all(|(key, value)| pod.labels.get(key) == Some(value))
    };
    Counts {
        replicas: count(&|_| true),
        labelled: count(&all),
        ready: count(&|pod| pod.ready.is_some()),
        available: count(&|pod| pod.is_available(set.least_ready(), now)),
        terminating: K::COUNTS_TERMINATING.then_some(leaving),
        observed: set.metadata().generation.unwrap_or_default(),
        conditions,
    }
}
