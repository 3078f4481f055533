//! What is read of an object that is followed: as much as the controllers need.

#![allow(
    clippy::needless_pass_by_value,
    reason = "whoever reads an object is done with it: all of these are one type"
)]

use crate::observe::{
    AccountTokenFacts, ClusterInfo, Expiring, Key, NamespaceFacts, NodeFacts, PodFacts, QuotaFacts,
    RangeFacts, RequestFacts, TokenFacts, fingerprint,
};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, NodeCondition, Pod, PodCondition, ResourceQuota, Secret,
    ServiceAccount, Toleration,
};
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use config_kube::k8s_openapi::api::rbac::v1::ClusterRole;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use master_client::Recent;
use master_rbac::Role;

fn uid(meta: &ObjectMeta) -> String {
    meta.uid.clone().unwrap_or_default()
}

fn version(meta: &ObjectMeta) -> String {
    meta.resource_version.clone().unwrap_or_default()
}

fn name(meta: ObjectMeta) -> String {
    meta.name.unwrap_or_default()
}

fn created(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|time| time.0)
}

pub(crate) fn node(node: Node) -> (String, NodeFacts) {
    let spec = node.spec.unwrap_or_default();
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let facts = NodeFacts {
        uid: uid(&node.metadata),
        version: version(&node.metadata),
        created: created(&node.metadata),
        cordoned: spec.unschedulable.unwrap_or(false),
        taints: spec.taints.unwrap_or_default(),
        conditions: conditions.into_iter().map(wordless).collect(),
    };
    (name(node.metadata), facts)
}

/// A condition without its words, which people read and controllers don't.
fn wordless(condition: NodeCondition) -> NodeCondition {
    NodeCondition {
        reason: None,
        message: None,
        ..condition
    }
}

/// The time of a lease's last renewal.
pub(crate) fn lease(lease: Lease) -> (String, Option<Timestamp>) {
    let renewed = lease
        .spec
        .and_then(|spec| spec.renew_time)
        .map(|time| time.0);
    (name(lease.metadata), renewed)
}

/// What many pods have in common.
#[derive(Debug, Default)]
pub(crate) struct Common {
    phases: Recent<str>,
    tolerations: Recent<[Toleration]>,
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "whoever reads a pod is done with it"
)]
pub(crate) fn pod(pod: Pod, common: &Common) -> (Key, PodFacts) {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let annotations = pod.metadata.annotations.as_ref();
    let ready = |condition: &PodCondition| condition.type_ == "Ready" && condition.status == "True";
    let drives_out = |toleration: &&Toleration| {
        !matches!(
            toleration.effect.as_deref(),
            Some("NoSchedule" | "PreferNoSchedule")
        )
    };
    let tolerations = spec
        .and_then(|spec| spec.tolerations.as_ref())
        .into_iter()
        .flatten();
    let facts = PodFacts {
        uid: uid(&pod.metadata),
        created: created(&pod.metadata),
        deleted: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        node: spec
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default()
            .into(),
        phase: common.phases.one(
            status
                .and_then(|status| status.phase.as_deref())
                .unwrap_or("Pending")
                .into(),
        ),
        ready: status
            .and_then(|status| status.conditions.as_ref())
            .is_some_and(|list| list.iter().any(ready)),
        mirror: annotations.is_some_and(|list| list.contains_key("kubernetes.io/config.mirror")),
        tolerations: common
            .tolerations
            .one(tolerations.filter(drives_out).cloned().collect()),
        claims: crate::in_use::claims(&pod),
    };
    (Key::of(&pod.metadata), facts)
}

pub(crate) fn namespace(namespace: Namespace) -> (String, NamespaceFacts) {
    let finalizers = namespace
        .spec
        .and_then(|spec| spec.finalizers)
        .unwrap_or_default();
    let facts = NamespaceFacts {
        uid: uid(&namespace.metadata),
        terminating: namespace.metadata.deletion_timestamp.is_some(),
        unfinished: finalizers
            .iter()
            .any(|name| name == crate::namespace::FINALIZER),
    };
    (name(namespace.metadata), facts)
}

pub(crate) fn service_account(account: ServiceAccount) -> Key {
    Key::of(&account.metadata)
}

/// An event matters when it is seen, the last time it is.
pub(crate) fn event(event: Event) -> (Key, Expiring) {
    let times = [
        created(&event.metadata),
        event.last_timestamp.map(|time| time.0),
        event.event_time.map(|time| time.0),
        event
            .series
            .and_then(|series| series.last_observed_time)
            .map(|time| time.0),
    ];
    let last = times
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(Timestamp::UNIX_EPOCH);
    (
        Key::of(&event.metadata),
        Expiring {
            uid: uid(&event.metadata),
            last,
        },
    )
}

pub(crate) fn request(request: CertificateSigningRequest) -> (String, RequestFacts) {
    let conditions = || {
        request
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
    };
    let decided = conditions().filter_map(|c| {
        c.last_update_time
            .as_ref()
            .or(c.last_transition_time.as_ref())
    });
    let last = created(&request.metadata)
        .into_iter()
        .chain(decided.map(|time| time.0))
        .max();
    let facts = RequestFacts {
        uid: uid(&request.metadata),
        last: last.unwrap_or(Timestamp::UNIX_EPOCH),
        decided: conditions().next().is_some(),
        kubelet: request.spec.signer_name == crate::approver::SIGNER,
    };
    (name(request.metadata), facts)
}

/// The namespace in which a root's certificate is published, and the fingerprint of it.
pub(crate) fn root_ca(map: ConfigMap) -> (String, u64) {
    let root = fingerprint(crate::root_ca::content(&map));
    (map.metadata.namespace.unwrap_or_default(), root)
}

pub(crate) fn bootstrap_token(secret: Secret) -> (Key, TokenFacts) {
    let data = secret.data.as_ref().and_then(|data| data.get("expiration"));
    let expires = data.and_then(|text| std::str::from_utf8(&text.0).ok()?.trim().parse().ok());
    let signing = crate::bootstrap_signer::signing(&secret);
    (
        Key::of(&secret.metadata),
        TokenFacts {
            uid: uid(&secret.metadata),
            expires,
            signing,
        },
    )
}

pub(crate) fn cluster_info(map: ConfigMap) -> ClusterInfo {
    crate::bootstrap_signer::info(&map)
}

pub(crate) fn service_range(range: ServiceCIDR) -> (String, RangeFacts) {
    let facts = crate::service_ranges::facts(&range);
    (name(range.metadata), facts)
}

pub(crate) fn account_token(secret: Secret) -> (Key, AccountTokenFacts) {
    let (filled, root) = crate::account_tokens::content(&secret);
    let annotations = secret.metadata.annotations.as_ref();
    let account = annotations
        .and_then(|all| all.get(crate::account_tokens::ACCOUNT))
        .cloned()
        .unwrap_or_default();
    let (uid, root) = (uid(&secret.metadata), fingerprint(&root));
    (
        Key::of(&secret.metadata),
        AccountTokenFacts {
            uid,
            account,
            filled,
            root,
        },
    )
}

pub(crate) fn quota(quota: ResourceQuota) -> (Key, QuotaFacts) {
    let wanted = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
    let (hard, used) = quota
        .status
        .map(|status| (status.hard, status.used))
        .unwrap_or_default();
    let (hard, used) = (hard.unwrap_or_default(), used.unwrap_or_default());
    let counted = hard.keys().all(|name| used.contains_key(name));
    (
        Key::of(&quota.metadata),
        QuotaFacts {
            settled: wanted == hard && counted,
        },
    )
}

/// A cluster role as decisions take it, and its resource version.
pub(crate) fn cluster_role(role: ClusterRole) -> (String, (Role, String)) {
    let version = version(&role.metadata);
    let plain = serde_json::to_value(&role)
        .and_then(serde_json::from_value::<Role>)
        .unwrap_or_default();
    (name(role.metadata), (plain, version))
}
