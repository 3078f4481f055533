//! Claims of ephemeral volumes: a volume that a pod has for itself alone gets its claim, which goes
//! with the pod.
//!
//! A claim of that name that another made is left alone: scheduler and kubelet say that it is not
//! the pod's own.

use crate::in_use::ClaimView;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use master_client::{ApiError, Delta, Key, Lookup, NewEvent, Reason, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::pod::{BY_CLAIM, PodView, own_claim};
use master_control::writer::Writer;
use std::sync::Arc;

/// The controller. Its keys are pods.
#[derive(Debug)]
pub struct EphemeralVolumes {
    pods: Store<PodView>,
    claims: Store<ClaimView>,
}

/// A pod, and which of its own claims are not there.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    pod: Arc<PodView>,
    missing: Vec<String>,
}

/// Claims are made for a pod.
#[derive(Debug, PartialEq, Eq)]
pub struct CreateClaims {
    /// The pod.
    pub pod: Key,
    /// Its UID.
    pub uid: String,
    /// Names of the claims.
    pub claims: Vec<String>,
}

impl Controller for EphemeralVolumes {
    const NAME: &'static str = "ephemeral-volume";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["get", "list", "watch"]),
        right("", "persistentvolumeclaims", &["list", "watch", "create"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = CreateClaims;

    fn new(setup: &mut Setup<'_>) -> Self {
        let pods: Store<PodView> = setup.follow(|delta: &Delta<PodView>, keys| {
            let after = delta.after.as_ref();
            if after.is_some_and(|pod| !pod.own_claims.is_empty()) {
                keys.push((*delta.key).clone());
            }
        });
        let users: Lookup<PodView> = pods.index(&BY_CLAIM);
        let claims = setup.follow(move |delta: &Delta<ClaimView>, keys| {
            let users = users.keys(&delta.key.to_string()).into_iter();
            keys.extend(users.map(|key| (*key).clone()));
        });
        Self { pods, claims }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let pod = self.pods.get(key)?;
        let missing = |name: &&String| self.claims.get(&Key::new(&key.namespace, name)).is_none();
        let missing = pod.own_claims.iter().filter(missing).cloned().collect();
        let key = key.clone();
        Some(Facts { key, pod, missing })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<CreateClaims> {
        let Facts { key, pod, missing } = facts;
        let needed = pod.deleted.is_none() && !pod.ended() && !missing.is_empty();
        let create = || CreateClaims {
            pod: key.clone(),
            uid: pod.uid.clone(),
            claims: missing.clone(),
        };
        needed.then(create).into()
    }

    async fn carry_out(&self, create: CreateClaims, writer: &Writer) -> Result<(), ApiError> {
        let (namespace, name) = (create.pod.namespace(), &create.pod.name);
        let found: Option<Pod> = writer.client().get_opt(namespace, name).await?;
        let Some(pod) = found.filter(|pod| pod.metadata.uid.as_ref() == Some(&create.uid)) else {
            return Ok(());
        };
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        for volume in volumes.into_iter().flatten() {
            let claim = claim(&pod, volume).filter(|claim| {
                let name = claim.metadata.name.as_ref();
                name.is_some_and(|name| create.claims.contains(name))
            });
            let Some(claim) = claim else { continue };
            match writer.create(&claim).await {
                Err(error) if error.reason != Reason::AlreadyExists => {
                    record_event(writer, &pod, &volume.name, &error).await;
                    return Err(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The claim of an ephemeral volume; none for other volumes.
fn claim(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
    let meta = &pod.metadata;
    let from = template.metadata.unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let metadata = ObjectMeta {
        namespace: meta.namespace.clone(),
        name: Some(own_claim(&owner.name, &volume.name)),
        labels: from.labels,
        annotations: from.annotations,
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Some(PersistentVolumeClaim {
        metadata,
        spec: Some(template.spec),
        ..PersistentVolumeClaim::default()
    })
}

async fn record_event(writer: &Writer, pod: &Pod, volume: &str, error: &ApiError) {
    let event = NewEvent {
        severity: Severity::Warning,
        reason: "FailedBinding",
        action: "MakingClaim",
        message: format!("ephemeral volume {volume}: {error}"),
    };
    writer.recorder().record(pod, &event).await;
}
