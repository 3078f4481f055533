//! The StatefulSet controller: keeps pods with stable names and ordinals, each with its own volume
//! claims. A *place* is an ordinal.
//!
//! - `plan`: the actions, in order; pure
//! - `pod`: a pod and its claims
//! - `claims`: who owns the claims; pure
//! - `events`: the events about it
//!
//! Guarantee: a pod is created only when no pod of its name is left in the API.

mod claims;
mod events;
mod plan;
mod pod;

pub use claims::{OwnedClaim, Owners};
pub use plan::Step;
pub use pod::ordinal;

use crate::workload::action;
use crate::workload::claim::OwnerChange;
use crate::workload::kept::{Kept, Selects, controls, is_leaving};
use crate::workload::make;
use crate::workload::pod::{OwnedPod, Pods};
use crate::workload::ready::ReadyTimes;
use crate::workload::revision::{self, Revisions};
use config_kube::k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use config_kube::k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use events::Verb;
use master_client::{ApiError, DeleteParams, Delta, Entries, Key, Patch, Reason, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The controller. Its keys are StatefulSets.
#[derive(Debug)]
pub struct StatefulSets {
    sets: Store<Kept<StatefulSet>>,
    revisions: Revisions,
    pods: Pods,
    ready: ReadyTimes,
    claims: Store<OwnedClaim>,
}

/// A StatefulSet with its pods.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub set: Arc<Kept<StatefulSet>>,
    /// Its revisions.
    pub revisions: Entries<Kept<ControllerRevision>>,
    /// Revisions that it adopts or releases.
    pub revision_changes: Vec<OwnerChange>,
    /// Its pods.
    pub pods: Entries<OwnedPod>,
    /// Pods that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
    /// The existing claims of its pods, by name.
    pub claims: BTreeMap<String, Arc<OwnedClaim>>,
}

/// An action on the StatefulSet with a UID.
pub type Action = action::Action<Step>;

impl Controller for StatefulSets {
    const NAME: &'static str = "statefulset-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "statefulsets", &["get", "list", "watch"]),
        right("apps", "statefulsets/status", &["patch"]),
        right(
            "apps",
            "controllerrevisions",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right(
            "",
            "persistentvolumeclaims",
            &["get", "list", "watch", "create", "patch"],
        ),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let sets: Store<Kept<StatefulSet>> = setup.follow_keys();
        let pods = Pods::follow(setup, &sets);
        let revisions = Revisions::follow(setup, &sets);
        let claims = setup.follow(of_claim(sets.clone()));
        Self {
            sets,
            revisions,
            pods,
            ready: ReadyTimes::default(),
            claims,
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let Some(set) = self.sets.get(key) else {
            self.ready.forget(key);
            return None;
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let spec = set.spec.as_ref();
        let least = spec.and_then(|spec| spec.min_ready_seconds);
        let pods = self.pods.of(&uid);
        let pods = self
            .ready
            .on_clock(key, least.unwrap_or_default(), pods, now);
        let revisions = self.revisions.of(&uid);
        // Only a pod with a name of this StatefulSet is adopted.
        let wants = |pod: &Key, view: &OwnedPod| {
            set.wants(&view.labels) && ordinal(&key.name, &pod.name).is_some()
        };
        Some(Facts {
            owner_changes: self.pods.owner_changes(&set.metadata, &pods, wants),
            claims: self.claims_of(&set, &pods),
            key: key.clone(),
            revision_changes: self.revisions.owner_changes(&set.0, &revisions),
            revisions,
            set,
            pods,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let (key, meta) = (&facts.key, &facts.set.metadata);
        Action::after_owners(key, meta, &facts.owner_changes, Step::Own, || {
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
                let namespace = &key.namespace;
                revision::carry_out::<StatefulSet>(writer, &owner, namespace, collisions, step)
                    .await
            }
            Step::Create(number, revision) => {
                let known = self.revisions.of(&uid);
                let template = known.iter().find(|(key, _)| key.name == revision);
                let Some(template) = template.and_then(|(_, one)| revision::template(one)) else {
                    return Ok(());
                };
                demand_all(writer, &about, &set, number).await?;
                let pod = pod::pod(&set, &template, number, &revision);
                create(writer, &about, &pod).await
            }
            Step::Demand(number) => demand_all(writer, &about, &set, number).await,
            Step::Claim(number, owners) => {
                let claim = Key::new(&key.namespace, &owners.claim);
                let pod = format!("{}-{number}", key.name);
                give(writer, &about, &claim, &pod, &owners).await
            }
            Step::Label(name, id) => {
                let pod = Key::new(&key.namespace, &name);
                label(writer, &about, &pod, &id).await
            }
            Step::Delete(name, id) => {
                let pod = Key::new(&key.namespace, &name);
                let ended = writer.delete::<Pod>(&pod, &DeleteParams::of(id)).await;
                if ended.as_ref().is_err_and(ApiError::is_not_found) {
                    return Ok(());
                }
                events::of_pod(writer, &about, Verb::Delete, &name, ended).await
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

impl StatefulSets {
    /// The existing claims of these pods of a StatefulSet.
    fn claims_of(
        &self,
        set: &StatefulSet,
        pods: &Entries<OwnedPod>,
    ) -> BTreeMap<String, Arc<OwnedClaim>> {
        let own = set.metadata.name.as_deref().unwrap_or_default();
        let templates = set.spec.iter();
        let templates: Vec<_> = templates
            .flat_map(|spec| spec.volume_claim_templates.iter().flatten())
            .collect();
        let mut claims = BTreeMap::new();
        for (key, _) in pods {
            let Some(number) = ordinal(own, &key.name) else {
                continue;
            };
            for template in &templates {
                let name = pod::claim_name(own, number, template);
                let known = self.claims.get(&Key::new(&key.namespace, &name));
                claims.extend(known.map(|known| (name, known)));
            }
        }
        claims
    }
}

async fn create(writer: &Writer, about: &ObjectReference, pod: &Pod) -> Result<(), ApiError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let made = writer.create(pod).await.map(drop);
    events::of_pod(writer, about, Verb::Create, name, made).await
}

/// Creates the missing claims of a place.
async fn demand_all(
    writer: &Writer,
    about: &ObjectReference,
    set: &StatefulSet,
    number: i32,
) -> Result<(), ApiError> {
    let pod = format!("{}-{number}", about.name.as_deref().unwrap_or_default());
    for claim in &pod::claims(set, number) {
        demand(writer, about, &pod, claim).await?;
    }
    Ok(())
}

/// Creates a claim if it is missing. An error if the claim is being deleted: the pod would lose its
/// volume.
async fn demand(
    writer: &Writer,
    about: &ObjectReference,
    pod: &str,
    claim: &PersistentVolumeClaim,
) -> Result<(), ApiError> {
    let meta = &claim.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let known: Option<PersistentVolumeClaim> = writer
        .client()
        .get_opt(meta.namespace.as_deref(), &name)
        .await?;
    let Some(known) = known else {
        let made = writer.create(claim).await.map(drop);
        return events::of_claim(writer, about, Verb::Create, &name, pod, made).await;
    };
    // The claim is owned by an earlier pod of the place and will be deleted with it.
    let owners = known.metadata.owner_references.iter().flatten();
    let goes = owners
        .into_iter()
        .any(|owner| owner.kind == "Pod" && owner.name == pod);
    if goes || is_leaving(&known.metadata) {
        let text = format!("the claim {name} is being deleted");
        return Err(ApiError::new(Reason::Conflict, text));
    }
    Ok(())
}

/// Changes the owners of a pod's claim; a missing claim is no error.
async fn give(
    writer: &Writer,
    about: &ObjectReference,
    claim: &Key,
    pod: &str,
    owners: &Owners,
) -> Result<(), ApiError> {
    let patch = Patch::Strategic(owners.patch());
    match writer.patch::<PersistentVolumeClaim>(claim, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => {
            events::of_claim(writer, about, Verb::Update, &claim.name, pod, Err(error)).await
        }
    }
}

/// Gives a pod the labels of its place again.
async fn label(
    writer: &Writer,
    about: &ObjectReference,
    pod: &Key,
    uid: &str,
) -> Result<(), ApiError> {
    let Some(number) = ordinal(about.name.as_deref().unwrap_or_default(), &pod.name) else {
        return Ok(());
    };
    let labels = json!({pod::NAME: pod.name, pod::INDEX: number.to_string()});
    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "labels": labels}}));
    let done = writer.patch::<Pod>(pod, &patch).await.map(drop);
    events::of_pod(writer, about, Verb::Update, &pod.name, done).await
}

/// The StatefulSets that a claim may belong to by its name, which is joined by dashes from the
/// names of template and StatefulSet and the ordinal; the names may have dashes, too.
fn of_claim(
    sets: Store<Kept<StatefulSet>>,
) -> impl Fn(&Delta<OwnedClaim>, &mut Vec<Key>) + Send + 'static {
    move |delta, keys| {
        let Some((rest, _)) = delta.key.name.rsplit_once('-') else {
            return;
        };
        let names = rest.match_indices('-').map(|(at, _)| &rest[at + 1..]);
        let names = names.map(|name| Key::new(&delta.key.namespace, name));
        keys.extend(names.filter(|key| sets.get(key).is_some()));
    }
}
