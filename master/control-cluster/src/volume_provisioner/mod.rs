//! Volumes that are folders of nodes: made for a claim on the node that the scheduler chose, and
//! removed after the claim is deleted.
//!
//! Only the node can make and remove the folder; requests go through the API's connections to
//! nodes. A PersistentVolume is created only after its folder, so a folder that is missing later
//! means lost data, which the node reports instead of making a new folder. A finalizer keeps the
//! PersistentVolume until its node has confirmed that the folder is removed.
//!
//! Where the claim goes before the PersistentVolume could be created, the node is asked to remove
//! the folder if it is empty. Which node that is the controller remembers: the folder stays if the
//! claim goes while no master runs.

mod attempts;

use config_kube::FromJson as _;
use config_kube::identity::HOSTNAME_LABEL;
use config_kube::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use config_kube::local_volume::{
    self, FINALIZER, NODE_ANNOTATION, PROVISIONED_BY, PROVISIONER, SERVED,
};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use master_claims::{Claim, Class, SELECTED_NODE, Volume};
use master_client::{
    ApiError, DeleteParams, Delta, Index, Key, NewEvent, Object, Patch, Reason, Severity, Store,
    body,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

pub use attempts::Attempt;
use attempts::Attempts;

/// Bytes of a node's answer that are read: it is a sentence for an event.
const ANSWER: usize = 1024;
/// Access modes that a folder of one node can have.
const MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];
/// Longest name of a node.
const LONGEST_NAME: usize = 253;

/// Claims that wait for a volume of a class.
static WAITING: Index<Claim> = Index::new("waiting", |_, claim| {
    waits(claim)
        .then(|| claim.class_name().to_owned())
        .into_iter()
        .collect()
});

/// The controller. Its keys are claims, which have a namespace, and volumes, which have none.
#[derive(Debug)]
pub struct VolumeProvisioner {
    claims: Store<Claim>,
    volumes: Store<Volume>,
    classes: Store<Class>,
    attempts: Attempts,
}

/// A claim that waits for a volume, or is gone; or a volume of ours.
#[derive(Debug)]
pub enum Facts {
    /// A claim.
    Claim {
        /// The object's key.
        key: Key,
        /// The claim with its class, if both are there.
        claim: Option<(Arc<Claim>, Arc<Class>)>,
        /// Whether its volume is there already.
        made: bool,
        /// Folders that no volume will need.
        left: Vec<Attempt>,
    },
    /// A volume.
    Volume {
        /// The object's name.
        name: String,
        /// Its facts.
        volume: Arc<Volume>,
    },
}

/// What is done.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// An event says why there is no volume.
    Refuse {
        /// For which claim.
        key: Key,
        /// The reason, for a person.
        fault: String,
    },
    /// A folder and its volume are made.
    Provision {
        /// For which claim.
        key: Key,
        /// As it was seen.
        claim: Arc<Claim>,
        /// Its class.
        class: Arc<Class>,
    },
    /// A folder that no volume will need is removed, if it is there and empty.
    Abandon {
        /// For which claim it was made.
        key: Key,
        /// Where it is.
        attempt: Attempt,
    },
    /// The folder is removed, then the volume.
    Remove {
        /// The object's name.
        name: String,
        /// Its UID.
        uid: String,
        /// The node that has the folder.
        node: String,
    },
    /// The volume is deleted; its folder stays, by its reclaim policy.
    LetGo {
        /// The object's name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

impl Controller for VolumeProvisioner {
    const NAME: &'static str = "local-volume-provisioner";
    const COMPONENT: &'static str = PROVISIONER;
    const RIGHTS: &'static [Right] = &[
        right(
            "",
            "persistentvolumeclaims",
            &["get", "list", "watch", "patch"],
        ),
        right(
            "",
            "persistentvolumes",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        right("storage.k8s.io", "storageclasses", &["list", "watch"]),
        right("", "nodes", &["get"]),
        right("", "nodes/proxy", &["create", "delete"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let claims = setup.follow_keys::<Claim>();
        let waiting = claims.index(&WAITING);
        let classes = setup.follow(move |delta: &Delta<Class>, keys| {
            let waiting = waiting.keys(&delta.key.name);
            keys.extend(waiting.iter().map(|key| (**key).clone()));
        });
        Self {
            claims,
            volumes: setup.follow_keys(),
            classes,
            attempts: Attempts::default(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        if key.namespace.is_empty() {
            return Some(Facts::Volume {
                name: key.name.clone(),
                volume: self.volumes.get(key)?,
            });
        }
        let claim = self.claims.get(key);
        let made = claim.as_ref().and_then(|claim| self.volume_of(&claim.uid));
        let class = |claim: &Claim| self.classes.get(&Key::cluster(claim.class_name()));
        let with_class = claim.clone().and_then(|claim| {
            let class = class(&claim)?;
            Some((claim, class))
        });
        if let Some((claim, class)) = with_class.as_ref().filter(|_| made.is_none()) {
            self.note(key, claim, class);
        }
        Some(Facts::Claim {
            key: key.clone(),
            left: self.left(key, claim.as_deref()),
            claim: with_class,
            made: made.is_some(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        match facts {
            Facts::Claim {
                key,
                claim,
                made,
                left,
            } => {
                let waits = claim.iter().filter(|_| !made);
                let first = waits.filter_map(|(claim, class)| for_claim(key, claim, class));
                let abandon = left.iter().map(|attempt| Action::Abandon {
                    key: key.clone(),
                    attempt: attempt.clone(),
                });
                // A node that doesn't answer about the past holds up no claim.
                let actions = first.chain(abandon).collect();
                let requeue = None;
                Plan { actions, requeue }
            }
            Facts::Volume { name, volume } => for_volume(name, volume).into(),
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Refuse { key, fault } => {
                let client = writer.client();
                let claim: PersistentVolumeClaim = client.get(key.namespace(), &key.name).await?;
                failed(writer, &claim, "ProvisioningFailed", fault).await;
                Ok(())
            }
            Action::Provision { key, claim, class } => {
                provision(writer, &self.attempts, &key, &claim, &class).await
            }
            Action::Abandon { key, attempt } => {
                abandon(writer, &attempt).await?;
                self.attempts.forget(&key, &attempt);
                Ok(())
            }
            Action::Remove { name, uid, node } => remove(writer, &name, &uid, &node).await,
            Action::LetGo { name, uid } => let_go(writer, &name, &uid).await,
        }
    }
}

impl VolumeProvisioner {
    fn volume_of(&self, claim: &str) -> Option<Arc<Volume>> {
        self.volumes.get(&Key::cluster(&volume_name(claim)))
    }

    /// Notes the node that is about to be asked for a claim's folder. An annotation of the claim
    /// names it, which its owner may change without end: [`provision`] forgets one that is not
    /// there.
    fn note(&self, key: &Key, claim: &Arc<Claim>, class: &Arc<Class>) {
        let due = for_claim(key, claim, class);
        if matches!(due, Some(Action::Provision { .. })) && claim.node.len() <= LONGEST_NAME {
            self.attempts.note(key, &claim.uid, &claim.node);
        }
    }

    /// Folders that nodes may have for claims of a name, and that no volume will need: the claim is
    /// gone, or has its volume on another node. As long as it waits, a write whose answer was lost
    /// may still create the volume of any of its folders.
    fn left(&self, key: &Key, claim: Option<&Claim>) -> Vec<Attempt> {
        let mut left = self.attempts.of(key);
        left.retain(|attempt| match self.volume_of(&attempt.uid) {
            Some(volume) if volume.node == attempt.node => {
                self.attempts.forget(key, attempt);
                false
            }
            Some(_) => true,
            None => claim.is_none_or(|claim| claim.uid != attempt.uid),
        });
        left
    }
}

/// The name of the volume of the claim with a UID (upstream's): a claim has one, however often it
/// is provisioned.
fn volume_name(claim: &str) -> String {
    format!("pvc-{claim}")
}

/// Whether a claim waits for a volume of ours.
fn waits(claim: &Claim) -> bool {
    claim.provisioner == PROVISIONER && claim.volume.is_empty()
}

fn for_claim(key: &Key, claim: &Arc<Claim>, class: &Arc<Class>) -> Option<Action> {
    if !waits(claim) || class.provisioner != PROVISIONER || claim.leaving {
        return None;
    }
    if let Some(fault) = fault(claim, class) {
        let class = claim.class_name();
        let fault = format!("failed to provision volume with StorageClass {class:?}: {fault}");
        return Some(Action::Refuse {
            key: key.clone(),
            fault,
        });
    }
    (!claim.node.is_empty()).then(|| Action::Provision {
        key: key.clone(),
        claim: Arc::clone(claim),
        class: Arc::clone(class),
    })
}

/// A feature that the claim requests and a folder does not have.
fn fault(claim: &Claim, class: &Class) -> Option<String> {
    let mode = claim
        .modes
        .iter()
        .find(|mode| !MODES.contains(&mode.as_str()));
    if let Some(mode) = mode {
        return Some(format!(
            "access mode {mode} is not supported: the volume is a folder of one node (ReadWriteOnce, ReadWriteOncePod)"
        ));
    }
    let faults = [
        (
            !class.waits,
            "the class needs volumeBindingMode WaitForFirstConsumer: the volume is a folder of the node that the pod gets",
        ),
        (
            claim.block,
            "volumeMode Block is not supported: the volume is a folder",
        ),
        (
            claim.selector.is_some(),
            "claim.Spec.Selector is not supported",
        ),
        (
            claim.filled,
            "dataSource is not supported: volumes begin empty",
        ),
        (
            !claim.attributes.is_empty(),
            "volumeAttributesClassName is not supported",
        ),
        (
            !class.options.is_empty(),
            "mountOptions of the class are not supported: the volume is a folder",
        ),
    ];
    let mut faults = faults.into_iter();
    faults.find_map(|(there, text)| there.then(|| text.to_owned()))
}

fn for_volume(name: &str, volume: &Volume) -> Option<Action> {
    if !volume.ours || !volume.held {
        return None;
    }
    let released = matches!(volume.phase.as_str(), "Released" | "Failed");
    let leaving = volume.leaving && volume.phase != "Bound";
    let (name, uid) = (name.to_owned(), volume.uid.clone());
    match volume.policy.as_str() {
        "Delete" if released || leaving => Some(Action::Remove {
            name,
            uid,
            node: volume.node.clone(),
        }),
        "Delete" => None,
        _ => leaving.then_some(Action::LetGo { name, uid }),
    }
}

/// A node's answer.
enum Answer {
    Done,
    /// The node has no room; its message.
    Full(String),
    /// Something else is in the way.
    Fault(String),
}

/// Asks a node for a folder, or to remove it.
async fn ask(writer: &Writer, method: Method, node: &str, rest: &str) -> Answer {
    let path = format!("/api/v1/nodes/{node}/proxy/{SERVED}/{rest}");
    let request = match Request::builder().method(method).uri(path).body(body("")) {
        Ok(request) => request,
        Err(error) => return Answer::Fault(format!("node {node:?} can't be asked: {error}")),
    };
    let answer = writer.client().call(request).await;
    let status = answer.status();
    if status.is_success() {
        return Answer::Done;
    }
    let (mut content, mut words) = (answer.into_body(), Vec::new());
    while let Some(Ok(frame)) = content.frame().await {
        words.extend_from_slice(&frame.into_data().unwrap_or_default());
        if words.len() > ANSWER {
            words.truncate(ANSWER);
            break;
        }
    }
    let words = String::from_utf8_lossy(&words);
    // The API's own refusals are objects; a node's are a line.
    let parsed: Option<serde_json::Value> = serde_json::from_str(&words).ok();
    let message = parsed
        .as_ref()
        .and_then(|status| status["message"].as_str());
    let words = message.unwrap_or(words.trim()).to_owned();
    if status == StatusCode::INSUFFICIENT_STORAGE {
        Answer::Full(format!("node {node:?}: {words}"))
    } else {
        Answer::Fault(format!("node {node:?} answers {status}: {words}"))
    }
}

async fn provision(
    writer: &Writer,
    attempts: &Attempts,
    key: &Key,
    claim: &Claim,
    class: &Class,
) -> Result<(), ApiError> {
    let client = writer.client();
    let object: PersistentVolumeClaim = client.get(key.namespace(), &key.name).await?;
    if object.metadata.uid.as_ref() != Some(&claim.uid) {
        return Err(ApiError::new(Reason::Conflict, "another claim of the name"));
    }
    let (node, name) = (&claim.node, volume_name(&claim.uid));
    let failure = |fault: String| {
        let class = claim.class_name();
        format!("failed to provision volume with StorageClass {class:?}: {fault}")
    };
    let Some(found) = client.get_opt::<Node>(None, node).await? else {
        attempts.forget(
            key,
            &Attempt {
                uid: claim.uid.clone(),
                node: node.clone(),
            },
        );
        let fault = failure(format!("node {node:?} not found"));
        return choose_anew(writer, key, claim, &object, fault).await;
    };
    let labels = found.metadata.labels.unwrap_or_default();
    let Some(host) = labels.get(HOSTNAME_LABEL) else {
        let fault = failure(format!("node {node:?} has no label {HOSTNAME_LABEL}"));
        return choose_anew(writer, key, claim, &object, fault).await;
    };
    let rest = format!("{name}?bytes={}", claim.bytes());
    match ask(writer, Method::POST, node, &rest).await {
        Answer::Done => {}
        Answer::Full(fault) => {
            return choose_anew(writer, key, claim, &object, failure(fault)).await;
        }
        Answer::Fault(fault) => {
            let fault = failure(fault);
            failed(writer, &object, "ProvisioningFailed", fault.clone()).await;
            return Err(ApiError::new(Reason::ServiceUnavailable, fault));
        }
    }
    let volume = volume(&name, key, claim, class, host);
    match writer.create(&volume).await {
        Err(error) if !error.is_already_exists() => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let event = NewEvent {
        severity: Severity::Normal,
        reason: "ProvisioningSucceeded",
        action: "Provisioning",
        message: format!("Successfully provisioned volume {name}"),
    };
    writer.recorder().record(&object, &event).await;
    Ok(())
}

/// Asks a node to remove a folder that no volume will need, if it is empty: no pod has seen it.
async fn abandon(writer: &Writer, attempt: &Attempt) -> Result<(), ApiError> {
    let Attempt { uid, node } = attempt;
    let (client, name) = (writer.client(), volume_name(uid));
    // Past all caches: a volume keeps its folder.
    let volume = client.get_opt::<PersistentVolume>(None, &name).await?;
    let of_volume = volume.as_ref().and_then(|volume| {
        let notes = volume.metadata.annotations.as_ref();
        local_volume::annotation(notes, NODE_ANNOTATION)
    });
    let is_there = client.get_opt::<Node>(None, node).await?.is_some();
    if of_volume == Some(node.as_str()) || !is_there {
        return Ok(());
    }
    match ask(writer, Method::DELETE, node, &format!("{name}?bytes=0")).await {
        Answer::Done => Ok(()),
        Answer::Full(fault) | Answer::Fault(fault) => {
            Err(ApiError::new(Reason::ServiceUnavailable, fault))
        }
    }
}

/// The volume of a folder, for its claim alone.
fn volume(name: &str, key: &Key, claim: &Claim, class: &Class, host: &str) -> PersistentVolume {
    let need = json!({"key": HOSTNAME_LABEL, "operator": "In", "values": [host]});
    let volume = json!({
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: PROVISIONER, NODE_ANNOTATION: claim.node},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": claim.size.to_quantity()},
            "accessModes": claim.modes,
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": class.policy,
            "storageClassName": claim.class_name(),
            "local": {"path": local_volume::path(name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": key.namespace, "name": key.name, "uid": claim.uid},
        },
    });
    PersistentVolume::from_tree(&volume).unwrap_or_default()
}

/// The node is unsuitable: an event says why, and the scheduler chooses again (upstream's
/// provisioners do the same).
async fn choose_anew(
    writer: &Writer,
    key: &Key,
    claim: &Claim,
    object: &PersistentVolumeClaim,
    fault: String,
) -> Result<(), ApiError> {
    failed(writer, object, "ProvisioningFailed", fault).await;
    let change = json!({"metadata": {"resourceVersion": claim.version,
        "annotations": {SELECTED_NODE: null}}});
    let patch = Patch::Merge(change);
    let written = writer.patch::<PersistentVolumeClaim>(key, &patch).await;
    written.map(drop)
}

async fn remove(writer: &Writer, name: &str, uid: &str, node: &str) -> Result<(), ApiError> {
    // The last check before data is deleted reads past all caches.
    let volume: PersistentVolume = writer.client().get(None, name).await?;
    let leaving = volume.metadata.deletion_timestamp.is_some();
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.clone());
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let released = matches!(phase.as_deref(), Some("Released" | "Failed"));
    let stays = phase.as_deref() == Some("Bound") || !(released || leaving);
    if volume.metadata.uid.as_deref() != Some(uid) || policy != Some("Delete") || stays {
        return Err(ApiError::new(Reason::Conflict, "the volume has changed"));
    }
    let there = writer.client().get_opt::<Node>(None, node).await?.is_some();
    if !there && !leaving {
        let text = format!(
            "node {node:?} is not in the cluster, so its folder of volume {name:?} can't be removed: let the node come back, or \
             delete the PersistentVolume to forget it"
        );
        failed(writer, &volume, "VolumeFailedDelete", text.clone()).await;
        return Err(ApiError::new(Reason::ServiceUnavailable, text));
    }
    if there {
        match ask(writer, Method::DELETE, node, name).await {
            Answer::Done => {}
            Answer::Full(fault) | Answer::Fault(fault) => {
                failed(writer, &volume, "VolumeFailedDelete", fault.clone()).await;
                return Err(ApiError::new(Reason::ServiceUnavailable, fault));
            }
        }
    }
    if !leaving {
        let params = DeleteParams::of(uid.to_owned());
        let key = Key::cluster(name);
        writer.delete::<PersistentVolume>(&key, &params).await?;
    }
    let_go(writer, name, uid).await
}

/// Takes our finalizer off.
async fn let_go(writer: &Writer, name: &str, uid: &str) -> Result<(), ApiError> {
    let volume = writer
        .client()
        .get_opt::<PersistentVolume>(None, name)
        .await?;
    let Some(meta) = volume.map(|volume| volume.metadata) else {
        return Ok(());
    };
    if meta.uid.as_deref() != Some(uid) {
        return Ok(());
    }
    let finalizers = meta.finalizers.iter().flatten();
    let kept: Vec<&String> = finalizers.filter(|own| *own != FINALIZER).collect();
    let change =
        json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": kept}});
    let (key, patch) = (Key::cluster(name), Patch::Merge(change));
    match writer.patch::<PersistentVolume>(&key, &patch).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn failed<T: Object>(writer: &Writer, object: &T, reason: &str, message: String) {
    let event = NewEvent {
        severity: Severity::Warning,
        reason,
        action: reason,
        message,
    };
    writer.recorder().record(object, &event).await;
}
