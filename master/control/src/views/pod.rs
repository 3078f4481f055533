//! Pods: their node and their state.

use crate::views::{created, uid};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodCondition, Toleration, Volume};
use jiff::Timestamp;
use master_client::{Delta, Index, Interner, Key, View};
use std::sync::{Arc, LazyLock};

/// Pods by the node that they are bound to.
pub static BY_NODE: Index<PodView> = Index::new("node", |_, pod| {
    let node = Some(pod.node.to_string()).filter(|node| !node.is_empty());
    node.into_iter().collect()
});

/// Pods that have not ended by the volume claims that they use (`namespace/name`).
pub static BY_CLAIM: Index<PodView> = Index::new("claim", |key, pod| {
    let claims = pod.claims.iter().filter(|_| !pod.ended());
    claims
        .map(|claim| Key::new(&key.namespace, claim).to_string())
        .collect()
});

/// Pods on nodes that have not ended, by the volume claims that they hold (`namespace/name`). One
/// without a node holds none: it is not started while a claim of it is being deleted, so it could
/// only keep for ever what it waits to be made anew.
pub static BY_HELD_CLAIM: Index<PodView> = Index::new("held claim", |key, pod| {
    let claims = pod.claims.iter().filter(|_| pod.holds_claims());
    claims
        .map(|claim| Key::new(&key.namespace, claim).to_string())
        .collect()
});

/// The volume claims that a change of a pod concerns: those that it used before or uses now, if it
/// began, got a node, ended or was deleted.
pub fn claims_of_changed(delta: &Delta<PodView>, keys: &mut Vec<Key>) {
    if delta.differs(|pod| (pod.ended(), pod.holds_claims(), pod.claims.clone())) {
        let pods = [&delta.before, &delta.after].into_iter().flatten();
        let claims = pods.flat_map(|pod| &pod.claims);
        keys.extend(claims.map(|claim| Key::new(&delta.key.namespace, claim)));
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodView {
    /// UID.
    pub uid: String,
    /// Generation of its spec; zero where there is none.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When it must have ended, if it is being deleted.
    pub deleted: Option<Timestamp>,
    /// The node that it is bound to; empty where it is not.
    pub node: Arc<str>,
    /// When it was bound to it, where its status says that.
    pub bound: Option<Timestamp>,
    /// Phase; `Pending` where there is none yet.
    pub phase: Arc<str>,
    /// Whether it counts as ready.
    pub ready: bool,
    /// Whether its kubelet ended it as the node was short of something.
    pub evicted: bool,
    /// Whether the kubelet made it itself.
    pub mirror: bool,
    /// Its tolerations of taints that drive pods out.
    pub tolerations: Arc<[Toleration]>,
    /// Names of the volume claims that it uses.
    pub claims: Vec<String>,
    /// Names of those that are made for it alone.
    pub own_claims: Vec<String>,
}

impl PodView {
    /// Whether its containers will never run again.
    pub fn ended(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }

    /// Whether the claims that it uses must stay.
    pub fn holds_claims(&self) -> bool {
        !self.node.is_empty() && !self.ended()
    }
}

/// Data that many pods have in common, stored once.
#[derive(Debug, Default)]
struct Common {
    nodes: Interner<str>,
    phases: Interner<str>,
    tolerations: Interner<[Toleration]>,
}

static COMMON: LazyLock<Common> = LazyLock::new(Common::default);

impl View for PodView {
    type Object = Pod;

    fn read(pod: Pod) -> Self {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let annotations = pod.metadata.annotations.as_ref();
        let ready =
            |condition: &PodCondition| condition.type_ == "Ready" && condition.status == "True";
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let bound = |condition: &PodCondition| {
            let is_bound = condition.type_ == "PodScheduled" && condition.status == "True";
            let since = condition.last_transition_time.as_ref();
            since.filter(|_| is_bound).map(|time| time.0)
        };
        let drives_out = |toleration: &&Toleration| {
            !matches!(
                toleration.effect.as_deref(),
                Some("NoSchedule" | "PreferNoSchedule")
            )
        };
        let tolerations = spec.and_then(|spec| spec.tolerations.as_ref());
        let tolerations = tolerations.into_iter().flatten().filter(drives_out);
        let node = spec.and_then(|spec| spec.node_name.as_deref());
        let phase = status.and_then(|status| status.phase.as_deref());
        let reason = status.and_then(|status| status.reason.as_deref());
        Self {
            uid: uid(&pod.metadata),
            generation: pod.metadata.generation.unwrap_or_default(),
            created: created(&pod.metadata),
            deleted: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            bound: conditions.and_then(|list| list.iter().find_map(bound)),
            node: COMMON.nodes.intern(node.unwrap_or_default().into()),
            phase: COMMON.phases.intern(phase.unwrap_or("Pending").into()),
            ready: conditions.is_some_and(|list| list.iter().any(ready)),
            evicted: phase == Some("Failed") && reason == Some("Evicted"),
            mirror: annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror")),
            tolerations: COMMON.tolerations.intern(tolerations.cloned().collect()),
            claims: claims(&pod),
            own_claims: own_claims(&pod),
        }
    }
}

/// Names of the claims that a pod uses, those made for it alone among them.
pub fn claims(pod: &Pod) -> Vec<String> {
    let named = |volume: &Volume| {
        let source = volume.persistent_volume_claim.as_ref();
        source.map(|source| source.claim_name.clone())
    };
    let claim = |volume: &Volume| named(volume).or_else(|| own_claim_of(pod, volume));
    volumes(pod).filter_map(claim).collect()
}

/// The name of the claim that is made for a pod's ephemeral volume.
pub fn own_claim(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

fn own_claims(pod: &Pod) -> Vec<String> {
    let claim = |volume: &Volume| own_claim_of(pod, volume);
    volumes(pod).filter_map(claim).collect()
}

fn own_claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    volume.ephemeral.as_ref()?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(own_claim(name, &volume.name))
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten()
}
