//! StatefulSets: pods with a name and a place in the order, each with its own volume claims.
//!
//! - `plan`: the actions, in order; pure
//! - `pod`: a pod and its claims
//!
//! Guarantee: a name is given again only when the pod that had it is gone from the API.

mod plan;
mod pod;

pub use plan::Step;
pub use pod::ordinal;

use crate::workload::action;
use crate::workload::claim::OwnerChange;
use crate::workload::kept::{
    Kept, Labels, Selects, by_controller, controller, controls, is_leaving, owner_key, selects,
};
use crate::workload::make::{self, tell};
use crate::workload::pod::{OwnedPod, Pods};
use crate::workload::revision;
use config_kube::k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use config_kube::k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use master_client::{ApiError, Delta, Entries, Key, Lookup, Patch, Reason, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

/// The controller. Its keys are StatefulSets.
#[derive(Debug)]
pub struct StatefulSets {
    sets: Store<Kept<StatefulSet>>,
    revisions: Lookup<Kept<ControllerRevision>>,
    pods: Pods,
}

/// A StatefulSet with its pods.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub set: Arc<Kept<StatefulSet>>,
    /// Templates that it has had.
    pub revisions: Entries<Kept<ControllerRevision>>,
    /// Its pods.
    pub pods: Entries<OwnedPod>,
    /// Pods that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
}

/// An action on the StatefulSet with a UID.
pub type Action = action::Action<Step>;

impl Selects for StatefulSet {
    fn wants(&self, labels: &Labels) -> bool {
        let spec = self.spec.as_ref();
        spec.is_some_and(|spec| selects(&spec.selector, labels))
    }
}

impl Controller for StatefulSets {
    const NAME: &'static str = "statefulset-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "statefulsets", &["get", "list", "watch"]),
        right("apps", "statefulsets/status", &["patch"]),
        right(
            "apps",
            "controllerrevisions",
            &["list", "watch", "create", "patch", "delete"],
        ),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "persistentvolumeclaims", &["get", "create", "patch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let sets: Store<Kept<StatefulSet>> = setup.follow_keys();
        let pods = Pods::follow(setup, &sets);
        let revisions: Store<Kept<ControllerRevision>> = setup.follow(of_revision);
        Self {
            sets,
            revisions: revisions.index(&by_controller()),
            pods,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let set = self.sets.get(key)?;
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let pods = self.pods.of(&uid);
        // Only a pod whose name is one of its own is taken.
        let wants = |pod: &Key, view: &OwnedPod| {
            set.wants(&view.labels) && ordinal(&key.name, &pod.name).is_some()
        };
        Some(Facts {
            owner_changes: self.pods.owner_changes(&set.metadata, &pods, wants),
            key: key.clone(),
            revisions: self.revisions.get(&uid),
            set,
            pods,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let of = (&facts.key, &facts.set.metadata);
        Action::after_owners(of, &facts.owner_changes, Step::Own, || {
            plan::plan(facts, now.wall)
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
            Step::Own(change) => change.carry_out::<StatefulSet, Pod>(writer, &owner).await,
            Step::Revision(step) => {
                let status = set.status.as_ref();
                let collisions = status.and_then(|status| status.collision_count);
                revision::carry_out::<StatefulSet>(writer, &key, &uid, collisions, step).await
            }
            Step::Create(number, revision) => {
                let known = self.revisions.get(&uid);
                let template = known.iter().find(|(key, _)| key.name == revision);
                let Some(template) = template.and_then(|(_, one)| revision::template(one)) else {
                    return Ok(());
                };
                let claims = pod::claims(&set, number);
                for claim in &claims {
                    demand(writer, &about, claim).await?;
                }
                let pod = pod::pod(&set, &template, number, &revision);
                create(writer, &about, &pod).await
            }
            Step::Hand(name, id) => hand_over(writer, &set, &key, &name, &id).await,
            Step::Delete(name, id) => {
                let pod = Key::new(&key.namespace, &name);
                make::delete(writer, &about, &[(pod, id)]).await
            }
            Step::Status(status) => {
                let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": status}));
                writer
                    .patch_status::<StatefulSet>(&key, &patch)
                    .await
                    .map(drop)
            }
        }
    }
}

async fn create(writer: &Writer, about: &ObjectReference, pod: &Pod) -> Result<(), ApiError> {
    let owner = about.name.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let what = format!("create Pod {name} in StatefulSet {owner}");
    match writer.create(pod).await {
        Ok(_) => {
            let message = format!("{what} successful");
            tell(writer, about, Severity::Normal, "SuccessfulCreate", message).await;
            Ok(())
        }
        Err(error) => {
            if !make::is_ending(&error) {
                let message = format!("{what} failed error: {error}");
                tell(writer, about, Severity::Warning, "FailedCreate", message).await;
            }
            Err(error)
        }
    }
}

/// Makes a claim that is not there. One that is going must be gone first: a pod would lose its volume.
async fn demand(
    writer: &Writer,
    about: &ObjectReference,
    claim: &PersistentVolumeClaim,
) -> Result<(), ApiError> {
    let meta = &claim.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let known: Option<PersistentVolumeClaim> = writer
        .client()
        .get_opt(meta.namespace.as_deref(), &name)
        .await?;
    match known {
        Some(known) if is_leaving(&known.metadata) => {
            let text = format!("the claim {name} is being deleted");
            Err(ApiError::new(Reason::Conflict, text))
        }
        Some(_) => Ok(()),
        None => {
            writer.create(claim).await?;
            let owner = about.name.clone().unwrap_or_default();
            let message = format!("create Claim {name} in StatefulSet {owner} success");
            tell(writer, about, Severity::Normal, "SuccessfulCreate", message).await;
            Ok(())
        }
    }
}

/// Makes a pod the owner of its claims, so that they go with it.
async fn hand_over(
    writer: &Writer,
    set: &StatefulSet,
    key: &Key,
    name: &str,
    uid: &str,
) -> Result<(), ApiError> {
    let Some(number) = ordinal(&key.name, name) else {
        return Ok(());
    };
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    for claim in pod::claims(set, number) {
        let patch = json!({"metadata": {"ownerReferences": [reference]}});
        let at = Key::of(&claim.metadata);
        let patched = writer
            .patch::<PersistentVolumeClaim>(&at, &Patch::Strategic(patch))
            .await;
        match patched {
            Err(error) if error.is_not_found() => {}
            other => drop(other?),
        }
    }
    Ok(())
}

fn of_revision(delta: &Delta<Kept<ControllerRevision>>, keys: &mut Vec<Key>) {
    for revision in [&delta.before, &delta.after].into_iter().flatten() {
        let owner = controller(&revision.metadata).filter(|owner| owner.kind == "StatefulSet");
        keys.extend(owner.map(|owner| owner_key(&delta.key.namespace, &owner.name)));
    }
}
