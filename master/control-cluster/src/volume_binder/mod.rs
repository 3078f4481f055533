//! Claims and volumes are bound to one another, one to one, and volumes whose claim is gone are
//! released (upstream: `persistentvolume-binder-controller`).
//!
//! A binding is four writes, each planned from the current state: the volume's `claimRef` with the
//! claim's UID, the claim's `volumeName`, and the two phases. Every write is refused if its object
//! has changed since the plan, so two claims never get one volume, and a process that ends between
//! two writes leaves a state from which the next one continues.

mod plan;

use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use master_claims::{BIND_COMPLETED, BOUND_BY_CONTROLLER, Claim, Class, PROVISIONER, Volume};
use master_client::{
    ApiError, Delta, Index, Key, Lookup, NewEvent, Object, Patch, Reason, Severity, Store,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::pod::{BY_CLAIM, PodView, claims_of_changed};
use master_control::writer::Writer;
pub use plan::{Action, BinderEvent, ClaimStep, Facts, VolumeStep};
use serde_json::{Value, json};

/// The deprecated name of [`PROVISIONER`], which provisioners still read (upstream).
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// Volumes by the claim that they are for (`namespace/name`).
static BY_CLAIM_REF: Index<Volume> = Index::new("claim", |_, volume| {
    let claim = volume.claim.as_ref();
    claim.map(|of| of.key.to_string()).into_iter().collect()
});
/// Volumes that are free, by their class.
static FREE: Index<Volume> = Index::new("free", |_, volume| {
    let free = volume.claim.is_none() && volume.phase == "Available";
    free.then(|| volume.class.clone()).into_iter().collect()
});
/// Claims that are not bound, by their class.
static OPEN: Index<Claim> = Index::new("open", |_, claim| {
    let open = !claim.is_bound();
    open.then(|| claim.class_name().to_owned())
        .into_iter()
        .collect()
});
/// Claims by the volume that they name.
static BY_VOLUME: Index<Claim> = Index::new("volume", |_, claim| {
    let volume = Some(claim.volume.clone());
    volume.filter(|name| !name.is_empty()).into_iter().collect()
});

/// The controller. Its keys are claims, which have a namespace, and volumes, which have none.
#[derive(Debug)]
pub struct VolumeBinder {
    claims: Store<Claim>,
    volumes: Store<Volume>,
    classes: Store<Class>,
    of_claim: Lookup<Volume>,
    free: Lookup<Volume>,
    users: Lookup<PodView>,
}

impl Controller for VolumeBinder {
    const NAME: &'static str = "persistentvolume-binder-controller";
    const COMPONENT: &'static str = "persistentvolume-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["list", "watch"]),
        right(
            "",
            "persistentvolumeclaims",
            &["get", "list", "watch", "patch"],
        ),
        right("", "persistentvolumeclaims/status", &["patch"]),
        right("", "persistentvolumes", &["get", "list", "watch", "patch"]),
        right("", "persistentvolumes/status", &["patch"]),
        right("storage.k8s.io", "storageclasses", &["list", "watch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let of_claim = setup.read::<Volume>().index(&BY_CLAIM_REF);
        let by_volume = setup.read::<Claim>().index(&BY_VOLUME);
        let open = setup.read::<Claim>().index(&OPEN);
        let (kept, all_open) = (of_claim.clone(), open.clone());
        let claims = setup.follow(move |delta: &Delta<Claim>, keys| {
            keys.push((*delta.key).clone());
            let named = [&delta.before, &delta.after].into_iter().flatten();
            let named = named.filter(|claim| !claim.volume.is_empty());
            keys.extend(named.map(|claim| Key::cluster(&claim.volume)));
            let kept = kept.keys(&delta.key.to_string());
            keys.extend(kept.iter().map(|key| (**key).clone()));
        });
        let volumes = setup.follow(move |delta: &Delta<Volume>, keys| {
            keys.push((*delta.key).clone());
            let seen = || [&delta.before, &delta.after].into_iter().flatten();
            let of = seen().filter_map(|volume| volume.claim.as_ref());
            keys.extend(of.map(|of| of.key.clone()));
            let naming = by_volume.keys(&delta.key.name);
            keys.extend(naming.iter().map(|key| (**key).clone()));
            if let Some(volume) = delta.after.as_ref().filter(|volume| volume.claim.is_none()) {
                let open = open.keys(&volume.class);
                keys.extend(open.iter().map(|key| (**key).clone()));
            }
        });
        let classes = setup.follow(move |delta: &Delta<Class>, keys| {
            // A claim without a class may get the default one.
            for class in [delta.key.name.as_str(), ""] {
                let open = all_open.keys(class);
                keys.extend(open.iter().map(|key| (**key).clone()));
            }
        });
        let pods = setup.follow(claims_of_changed);
        Self {
            free: volumes.index(&FREE),
            users: pods.index(&BY_CLAIM),
            claims,
            volumes,
            classes,
            of_claim,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        if key.namespace.is_empty() {
            let volume = self.volumes.get(key)?;
            let claim = volume.claim.as_ref();
            return Some(Facts::Volume {
                name: key.name.clone(),
                claim: claim.and_then(|of| self.claims.get(&of.key)),
                volume,
            });
        }
        let claim = self.claims.get(key)?;
        let named = Key::cluster(&claim.volume);
        let mut candidates = self.of_claim.get(&key.to_string());
        if claim.volume.is_empty() {
            candidates.extend(self.free.get(claim.class_name()));
        }
        let default = self.default_class().filter(|_| claim.class.is_none());
        let class = Key::cluster(claim.class_name());
        let users = self.users.keys(&key.to_string());
        Some(Facts::Claim {
            key: key.clone(),
            volume: self.volumes.get(&named),
            others: candidates
                .into_iter()
                .map(|(key, volume)| (key.name.clone(), volume))
                .collect(),
            class: self.classes.get(&class),
            default,
            user: users.iter().map(|key| key.name.clone()).min(),
            claim,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        plan::plan(facts).into()
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Claim { key, version, step } => claim(writer, &key, &version, step).await,
            Action::Volume {
                name,
                version,
                step,
            } => volume(writer, &name, &version, step).await,
        }
    }
}

impl VolumeBinder {
    /// The class that claims get which name none: the youngest of those marked, then the first by
    /// name (upstream).
    fn default_class(&self) -> Option<String> {
        let all = self.classes.all();
        let marked = all.iter().filter(|(_, class)| class.is_default);
        let youngest =
            marked.min_by_key(|(key, class)| (std::cmp::Reverse(class.created), key.name.clone()));
        youngest.map(|(key, _)| key.name.clone())
    }
}

/// The status of a claim that has no volume: it shows nothing of one any more (upstream).
fn without_volume(phase: &str) -> Value {
    json!({"status": {"phase": phase, "capacity": null, "accessModes": null,
        "currentVolumeAttributesClassName": null}})
}

/// The status of a claim that is bound to a volume of this size and these access modes.
/// `attributes` is the volume's `VolumeAttributesClass` (empty: none); without it the status keeps
/// the class that it shows.
fn with_volume(size: Amount, modes: &[String], attributes: Option<String>) -> Value {
    let capacity = json!({"storage": size.to_quantity()});
    let mut status = json!({"phase": "Bound", "capacity": capacity, "accessModes": modes});
    if let Some(class) = attributes {
        let class = Some(class).filter(|class| !class.is_empty());
        status["currentVolumeAttributesClassName"] = class.into();
    }
    json!({"status": status})
}

/// Checks that there is no volume of this name, past all caches: one that this process has not seen
/// yet is not lost.
async fn check_missing(writer: &Writer, volume: &str) -> Result<(), ApiError> {
    let client = writer.client();
    let found = client.get_opt::<PersistentVolume>(None, volume).await?;
    if found.is_some() {
        return Err(ApiError::new(Reason::Conflict, "the volume is there"));
    }
    Ok(())
}

/// A step of a claim.
async fn claim(writer: &Writer, key: &Key, version: &str, step: ClaimStep) -> Result<(), ApiError> {
    let patch = |mut change: Value| {
        change["metadata"]["resourceVersion"] = version.into();
        Patch::Merge(change)
    };
    match step {
        ClaimStep::SetVolumeName { volume, chosen } => {
            let mut notes = json!({BIND_COMPLETED: "yes"});
            if chosen {
                notes[BOUND_BY_CONTROLLER] = "yes".into();
            }
            let change =
                json!({"metadata": {"annotations": notes}, "spec": {"volumeName": volume}});
            let patch = patch(change);
            writer.patch::<PersistentVolumeClaim>(key, &patch).await?;
        }
        ClaimStep::RequestProvisioning(provisioner) => {
            let notes = json!({PROVISIONER: provisioner, OLD_PROVISIONER: provisioner});
            let patch = patch(json!({"metadata": {"annotations": notes}}));
            writer.patch::<PersistentVolumeClaim>(key, &patch).await?;
        }
        ClaimStep::SetDefaultClass(class) => {
            let patch = patch(json!({"spec": {"storageClassName": class}}));
            writer.patch::<PersistentVolumeClaim>(key, &patch).await?;
        }
        ClaimStep::SetBound {
            size,
            modes,
            attributes,
        } => {
            let patch = patch(with_volume(size, &modes, attributes));
            let written = writer.patch_status::<PersistentVolumeClaim>(key, &patch);
            written.await?;
        }
        ClaimStep::MarkLost { missing, event } => {
            if let Some(volume) = missing {
                check_missing(writer, &volume).await?;
            }
            let patch = patch(without_volume("Lost"));
            let written = writer.patch_status::<PersistentVolumeClaim>(key, &patch);
            let claim = written.await?;
            record(writer, &claim, &event).await;
        }
        ClaimStep::SetPhase { phase, event } => {
            let patch = patch(without_volume(phase));
            let written = writer.patch_status::<PersistentVolumeClaim>(key, &patch);
            let claim = written.await?;
            if let Some(event) = event {
                record(writer, &claim, &event).await;
            }
        }
        ClaimStep::RecordEvent(event) => {
            let client = writer.client();
            let claim: PersistentVolumeClaim = client.get(key.namespace(), &key.name).await?;
            record(writer, &claim, &event).await;
        }
    }
    Ok(())
}

/// A step of a volume.
async fn volume(
    writer: &Writer,
    name: &str,
    version: &str,
    step: VolumeStep,
) -> Result<(), ApiError> {
    let key = Key::cluster(name);
    let patch = |mut change: Value| {
        change["metadata"]["resourceVersion"] = version.into();
        Patch::Merge(change)
    };
    match step {
        VolumeStep::SetClaimRef { claim, uid, chosen } => {
            let of = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace, "name": claim.name, "uid": uid});
            let mut change = json!({"spec": {"claimRef": of}});
            if chosen {
                change["metadata"] = json!({"annotations": {BOUND_BY_CONTROLLER: "yes"}});
            }
            let patch = patch(change);
            writer.patch::<PersistentVolume>(&key, &patch).await?;
        }
        VolumeStep::ClearClaimRef { whole } => {
            let mut change = json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}});
            if whole {
                change = json!({"spec": {"claimRef": null},
                    "metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}});
            }
            let patch = patch(change);
            writer.patch::<PersistentVolume>(&key, &patch).await?;
        }
        VolumeStep::Release { claim, uid } => {
            // A claim that this process has not seen yet must not cost its volume: the last look is
            // past all caches.
            let client = writer.client();
            let found: Option<PersistentVolumeClaim> =
                client.get_opt(claim.namespace(), &claim.name).await?;
            if found.is_some_and(|found| found.metadata.uid == Some(uid)) {
                return Err(ApiError::new(Reason::Conflict, "the claim is there"));
            }
            let patch = patch(json!({"status": {"phase": "Released"}}));
            let written = writer.patch_status::<PersistentVolume>(&key, &patch);
            written.await?;
        }
        VolumeStep::SetPhase { phase, event } => {
            let message = event.as_ref().map(|event| event.message.clone());
            let status = json!({"phase": phase, "message": message,
                "reason": event.as_ref().map(|event| event.reason)});
            let patch = patch(json!({"status": status}));
            let written = writer.patch_status::<PersistentVolume>(&key, &patch);
            let volume = written.await?;
            if let Some(event) = event {
                record(writer, &volume, &event).await;
            }
        }
    }
    Ok(())
}

async fn record<T: Object>(writer: &Writer, object: &T, event: &BinderEvent) {
    let severity = if event.warning {
        Severity::Warning
    } else {
        Severity::Normal
    };
    let recorded = NewEvent {
        severity,
        reason: event.reason,
        action: event.reason,
        message: event.message.clone(),
    };
    writer.recorder().record(object, &recorded).await;
}
