//! The Deployment controller: keeps a ReplicaSet for each template, and rolls from one to the next.
//!
//! - `set`: the parts of a ReplicaSet that the plan uses
//! - `rollout`: rolling update and recreation, revisions and their history, scaling in proportion;
//!   pure
//! - `status`: counts, conditions and the deadline of progress; pure
//!
//! Guarantees, at every write: during a rolling update the ReplicaSets together never want more
//! than `replicas` plus `maxSurge` pods, and this controller never brings the number of available
//! pods below `replicas` minus `maxUnavailable`.

mod rollout;
mod set;
mod status;

pub use rollout::Step;
pub use set::{Change, Set};
pub use status::Status;

use crate::workload::action;
use crate::workload::claim::OwnerChange;
use crate::workload::condition::{self, Condition};
use crate::workload::kept::{
    Kept, Selects, by_controller, by_namespace, concerned, controller, controls, orphans_of,
    owner_key,
};
use crate::workload::make::{self, record_event};
use crate::workload::pod::{BY_CONTROLLER, OwnedPod};
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use master_client::{ApiError, DeleteParams, Delta, Entries, Key, Lookup, Patch, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use rollout::Rollout;
use serde_json::json;
use std::sync::Arc;

/// The controller. Its keys are Deployments.
#[derive(Debug)]
pub struct Deployments {
    all: Store<Kept<Deployment>>,
    sets: Lookup<Kept<ReplicaSet>>,
    pods: Lookup<OwnedPod>,
}

/// A Deployment with its ReplicaSets.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub deployment: Arc<Kept<Deployment>>,
    /// ReplicaSets that it controls, with a mark on those that have running pods.
    pub sets: Vec<Set>,
    /// ReplicaSets that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
}

/// An action on the Deployment with a UID.
pub type Action = action::Action<Step>;

impl Controller for Deployments {
    const NAME: &'static str = "deployment-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "deployments", &["get", "list", "watch", "patch"]),
        right("apps", "deployments/status", &["patch"]),
        right(
            "apps",
            "replicasets",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        right("", "pods", &["list", "watch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let deployments: Store<Kept<Deployment>> = setup.follow_keys();
        let around = deployments.index(&by_namespace());
        let sets: Store<Kept<ReplicaSet>> =
            setup.follow(move |delta, keys| concerned(&around, delta, keys));
        let owners = sets.clone();
        // With the strategy `Recreate` a Deployment waits until its old pods have ended; no other
        // change of pods concerns it.
        let pods: Store<OwnedPod> = setup.follow(move |delta: &Delta<OwnedPod>, keys| {
            let runs = |pod: &OwnedPod| !pod.ended();
            let came = delta.before.is_none();
            if !came && delta.differs(runs) {
                keys.extend(of_pod(&owners, delta));
            }
        });
        Self {
            sets: sets.index(&by_controller()),
            pods: pods.index(&BY_CONTROLLER),
            all: deployments,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let deployment = self.all.get(key)?;
        let uid = deployment.metadata.uid.clone().unwrap_or_default();
        let own = self.sets.get(&uid);
        let orphans = self.sets.get(&orphans_of(&key.namespace));
        let changes = own.iter().chain(&orphans);
        let changes = changes.filter_map(|(key, set)| {
            OwnerChange::of_kept::<Deployment, ReplicaSet>(&deployment, key, set)
        });
        Some(Facts {
            key: key.clone(),
            owner_changes: changes.collect(),
            sets: self.sets_of(&own, &deployment),
            deployment,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let (key, meta) = (&facts.key, &facts.deployment.metadata);
        Action::after_owners(key, meta, &facts.owner_changes, Step::Own, || {
            Rollout::of(facts, now.wall).plan()
        })
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Action { key, uid, step } = action;
        let Some(deployment) = action::current(&self.all, &key, &uid) else {
            return Ok(());
        };
        let owner = controls(&deployment.0);
        let about = make::reference(&owner, &key.namespace);
        match step {
            Step::Own(change) => {
                change
                    .carry_out::<Deployment, ReplicaSet>(writer, &owner)
                    .await
            }
            Step::Create(set) => self.create(writer, &key, &deployment, *set).await,
            Step::Change(set, id, change) => {
                let set = Key::new(&key.namespace, &set);
                writer
                    .patch::<ReplicaSet>(&set, &Patch::Merge(change.patch(&id)))
                    .await?;
                record_scaled(writer, &about, &set.name, &change).await;
                Ok(())
            }
            Step::Delete(set, id) => {
                let set = Key::new(&key.namespace, &set);
                let gone = writer
                    .delete::<ReplicaSet>(&set, &DeleteParams::of(id))
                    .await;
                gone.or_else(|error| {
                    if error.is_not_found() {
                        Ok(())
                    } else {
                        Err(error)
                    }
                })
            }
            Step::Revision(revision) => {
                let annotations = json!({set::REVISION: revision});
                let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
                let patch = Patch::Merge(patch);
                let patched = writer.patch::<Deployment>(&key, &patch);
                patched.await.map(drop)
            }
            Step::Status(status) => {
                let patch = json!({"metadata": {"uid": uid}, "status": status.json()});
                let patch = Patch::Merge(patch);
                let patched = writer.patch_status::<Deployment>(&key, &patch);
                patched.await.map(drop)
            }
        }
    }
}

impl Deployments {
    fn sets_of(&self, own: &Entries<Kept<ReplicaSet>>, deployment: &Deployment) -> Vec<Set> {
        let recreated = rollout::is_recreated(deployment);
        let set = |set: &Kept<ReplicaSet>| {
            let mut read = Set::of(set, deployment);
            if recreated {
                let pods = self.pods.get(&read.uid);
                read.runs = pods.iter().any(|(_, pod)| !pod.ended());
            }
            read
        };
        own.iter().map(|(_, one)| set(one)).collect()
    }

    /// Creates the ReplicaSet of the current template. If a ReplicaSet of that name has another
    /// template, the hashes collide: `status.collisionCount` is raised, which changes the hash.
    async fn create(
        &self,
        writer: &Writer,
        key: &Key,
        deployment: &Deployment,
        new: ReplicaSet,
    ) -> Result<(), ApiError> {
        let owner = controls(deployment);
        let about = make::reference(&owner, &key.namespace);
        let name = new.metadata.name.clone().unwrap_or_default();
        let replicas = new.spec.as_ref().and_then(|spec| spec.replicas);
        let Err(error) = writer.create(&new).await else {
            let to = replicas.unwrap_or_default();
            if to > 0 {
                let message = format!("Scaled up replica set {name} from 0 to {to}");
                record_event(writer, &about, Severity::Normal, SCALING, message).await;
            }
            return Ok(());
        };
        if error.is_already_exists() {
            let there: Option<ReplicaSet> = writer.client().get_opt(key.namespace(), &name).await?;
            if let Some(there) = there {
                let labels = there.metadata.labels.clone().unwrap_or_default();
                let ours = match controller(&there.metadata) {
                    Some(known) => known.uid == owner.uid,
                    // It is adopted once the store shows it without a controller.
                    None => deployment.wants(&labels),
                };
                if !(ours && Set::of(&there, deployment).is_current) {
                    increment_collision_count(writer, key, deployment).await?;
                }
            }
        } else if !make::is_ending(&error) {
            let message = format!("Failed to create new replica set {name:?}: {error}");
            record_event(
                writer,
                &about,
                Severity::Warning,
                CREATE_ERROR,
                message.clone(),
            )
            .await;
            if rollout::deadline(deployment).is_some() {
                set_not_progressing(writer, key, deployment, &message).await?;
            }
        }
        Err(error)
    }
}

/// Reason of the event about a changed number of replicas.
const SCALING: &str = "ScalingReplicaSet";
/// Reason of event and condition if a ReplicaSet can't be created.
const CREATE_ERROR: &str = "ReplicaSetCreateError";

/// Records the event of a changed number of replicas, if the change is one.
async fn record_scaled(writer: &Writer, about: &ObjectReference, set: &str, change: &Change) {
    let Some((from, to)) = change.scaled else {
        return;
    };
    let way = if to > from { "up" } else { "down" };
    let message = format!("Scaled {way} replica set {set} from {from} to {to}");
    record_event(writer, about, Severity::Normal, SCALING, message).await;
}

/// Raises `status.collisionCount`, so that the next hash of the template differs.
async fn increment_collision_count(
    writer: &Writer,
    key: &Key,
    deployment: &Deployment,
) -> Result<(), ApiError> {
    let known = deployment.status.as_ref();
    let known = known.and_then(|status| status.collision_count);
    let count = known.unwrap_or_default().saturating_add(1);
    let patch =
        json!({"metadata": {"uid": deployment.metadata.uid}, "status": {"collisionCount": count}});
    let patch = Patch::Merge(patch);
    let patched = writer.patch_status::<Deployment>(key, &patch);
    patched.await.map(drop)
}

/// Sets the condition `Progressing` to false: the new ReplicaSet cannot be created.
async fn set_not_progressing(
    writer: &Writer,
    key: &Key,
    deployment: &Deployment,
    message: &str,
) -> Result<(), ApiError> {
    let mut status = Status::of(deployment);
    let now = writer.client().now();
    let failed = Condition::new(status::PROGRESSING, "False", CREATE_ERROR, message, now);
    condition::set(&mut status.conditions, failed);
    let conditions = &status.json()["conditions"];
    let patch =
        json!({"metadata": {"uid": deployment.metadata.uid}, "status": {"conditions": conditions}});
    let patch = Patch::Merge(patch);
    let patched = writer.patch_status::<Deployment>(key, &patch);
    patched.await.map(drop)
}

/// The Deployment of a pod, found through the pod's ReplicaSet.
fn of_pod(sets: &Store<Kept<ReplicaSet>>, delta: &Delta<OwnedPod>) -> Option<Key> {
    let pod = delta.before.as_ref()?;
    let owner = pod
        .owner
        .as_ref()
        .filter(|owner| owner.kind == "ReplicaSet")?;
    let set = sets.get(&owner_key(&delta.key.namespace, &owner.name))?;
    let deployment = controller(&set.metadata)?;
    Some(owner_key(&delta.key.namespace, &deployment.name))
}
