//! What controllers want written, and how it is.

use crate::garbage::{self, Deed};
use crate::observe::{Key, LEASES};
use crate::{
    account_tokens, approver, bootstrap_signer, in_use, namespace, quota, root_ca, service_ranges,
};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    Event, Namespace, Node, NodeCondition, Pod, Secret, ServiceAccount, Taint,
};
use config_kube::k8s_openapi::api::rbac::v1::ClusterRole;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use jiff::Timestamp;
use master_client::{
    ApiError, Client, DeleteParams, Happening, OwnerRef, Patch, Recorder, Resource, Severity,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Kinds whose objects simply go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deletable {
    /// Events.
    Event,
    /// Certificate signing requests.
    Request,
    /// Secrets.
    Secret,
}

/// One write. All can be repeated without harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// A node was silent for too long: these conditions are not known any more.
    NodeSilent {
        /// The node.
        node: String,
        /// Its UID.
        uid: String,
        /// Its resource version: not written if it changed.
        version: String,
        /// The lease's renew time that was seen: not written if there is a newer one.
        lease: Option<Timestamp>,
        /// The conditions.
        conditions: Vec<NodeCondition>,
        /// Whether it is news that people should be told.
        tell: bool,
    },
    /// A node's taints.
    NodeTaints {
        /// The node.
        node: String,
        /// Its resource version: not written if it changed.
        version: String,
        /// All its taints.
        taints: Vec<Taint>,
    },
    /// A pod on a silent node is not known to be ready.
    PodNotReady {
        /// The pod.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// A pod leaves a node for its taints.
    EvictPod {
        /// The pod.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// A pod that no kubelet will end goes.
    CollectPod {
        /// The pod.
        key: Key,
        /// Its UID.
        uid: String,
        /// Its node, where this is gone.
        gone: Option<String>,
    },
    /// An object goes.
    Delete {
        /// Its kind.
        what: Deletable,
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// A deleted namespace is emptied, and goes once it is empty.
    EmptyNamespace {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// A namespace comes.
    CreateNamespace {
        /// Its name.
        name: String,
    },
    /// A service account comes.
    CreateServiceAccount {
        /// Which.
        key: Key,
    },
    /// What the garbage collector does.
    Garbage {
        /// What.
        deed: Box<Deed>,
        /// Owners that are in another namespace.
        foreign: Vec<OwnerRef>,
        /// The kinds by number.
        resources: Arc<Vec<Resource>>,
    },
    /// The root's certificate is published.
    PublishRootCa {
        /// Where.
        namespace: String,
        /// Whether there is one already, which is wrong.
        exists: bool,
        /// The certificate.
        pem: String,
    },
    /// What the quotas of a namespace count is counted anew.
    Recount {
        /// Which namespace.
        namespace: String,
        /// As of what was seen of it.
        seen: u64,
        /// The kinds by number.
        resources: Arc<Vec<Resource>>,
    },
    /// A kubelet's request is approved, if its sender may.
    Approve {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// A cluster role gets the rules that it gathers.
    Aggregate {
        /// Which.
        name: String,
        /// Its resource version: not written if it changed.
        version: String,
        /// The rules.
        rules: Value,
    },
    /// A secret gets the token of its account, or goes with it.
    FillToken {
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
        /// The root's certificate.
        root: String,
    },
    /// The public kubeconfig gets its signatures.
    SignClusterInfo {
        /// The config map's resource version: not written if it changed.
        version: String,
        /// The keys that change; null where one goes.
        data: Value,
    },
    /// A range of services' addresses is held, or let go, or says whether it serves.
    SettleRange {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// A volume claim that no pod uses is let go.
    ReleaseClaim {
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// A volume that no claim is bound to is let go.
    ReleaseVolume {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
    },
}

impl Write {
    /// What must not be written twice at once.
    pub(crate) fn subject(&self) -> (&'static str, Key) {
        let node = |name: &str| Key::new("", name);
        match self {
            Self::NodeSilent { node: name, .. } => ("node-status", node(name)),
            Self::NodeTaints { node: name, .. } => ("node-taints", node(name)),
            Self::PodNotReady { key, .. } => ("pod-status", key.clone()),
            Self::EvictPod { key, .. } | Self::CollectPod { key, .. } => ("pod", key.clone()),
            Self::Delete {
                what: Deletable::Event,
                key,
                ..
            } => ("event", key.clone()),
            Self::Delete {
                what: Deletable::Request,
                key,
                ..
            } => ("request", key.clone()),
            Self::EmptyNamespace { name, .. } | Self::CreateNamespace { name } => {
                ("namespace", node(name))
            }
            Self::CreateServiceAccount { key } => ("service-account", key.clone()),
            // By UID: names of several kinds may be the same.
            Self::Garbage { deed, .. } => (
                "garbage",
                Key::new(&deed.object().namespace, &deed.object().uid),
            ),
            Self::PublishRootCa { namespace, .. } => ("root-ca", node(namespace)),
            Self::Recount { namespace, .. } => ("quota", node(namespace)),
            Self::Approve { name, .. } => ("approval", node(name)),
            Self::Aggregate { name, .. } => ("cluster-role", node(name)),
            Self::Delete {
                what: Deletable::Secret,
                key,
                ..
            }
            | Self::FillToken { key, .. } => ("secret", key.clone()),
            Self::SignClusterInfo { .. } => ("cluster-info", node(bootstrap_signer::NAME)),
            Self::SettleRange { name, .. } => ("service-range", node(name)),
            Self::ReleaseClaim { key, .. } => ("claim", key.clone()),
            Self::ReleaseVolume { name, .. } => ("volume", node(name)),
        }
    }

    /// Writes. That the object is gone, there already or changed is no error: the next plan sees it.
    pub(crate) async fn apply(self, client: &Client, recorder: &Recorder) -> Result<(), ApiError> {
        match self.carry_out(client, recorder).await {
            Err(error)
                if error.is_not_found() || error.is_conflict() || error.is_already_exists() =>
            {
                Ok(())
            }
            other => other,
        }
    }

    async fn carry_out(self, client: &Client, recorder: &Recorder) -> Result<(), ApiError> {
        match self {
            Self::NodeSilent {
                node,
                uid,
                version,
                lease,
                conditions,
                tell,
            } => {
                silent(
                    client,
                    recorder,
                    &node,
                    (&uid, &version),
                    (lease, &conditions, tell),
                )
                .await
            }
            Self::NodeTaints {
                node,
                version,
                taints,
            } => {
                let patch =
                    json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
                client
                    .patch::<Node>(None, &node, &Patch::Merge(patch))
                    .await
                    .map(drop)
            }
            Self::PodNotReady { key, uid } => pod_not_ready(client, &key, &uid).await,
            Self::EvictPod { key, uid } => evict(client, recorder, &key, &uid).await,
            Self::CollectPod { key, uid, gone } => {
                collect(client, &key, &uid, gone.as_deref()).await
            }
            Self::Delete { what, key, uid } => delete(client, what, &key, uid).await,
            Self::EmptyNamespace { name, uid } => namespace::empty(client, &name, &uid).await,
            Self::CreateNamespace { name } => {
                let metadata = ObjectMeta {
                    name: Some(name),
                    ..ObjectMeta::default()
                };
                client
                    .create(&Namespace {
                        metadata,
                        ..Namespace::default()
                    })
                    .await
                    .map(drop)
            }
            Self::CreateServiceAccount { key } => {
                let metadata = ObjectMeta {
                    namespace: Some(key.namespace),
                    name: Some(key.name),
                    ..ObjectMeta::default()
                };
                client
                    .create(&ServiceAccount {
                        metadata,
                        ..ServiceAccount::default()
                    })
                    .await
                    .map(drop)
            }
            Self::Garbage {
                deed,
                foreign,
                resources,
            } => garbage::carry_out((client, recorder), *deed, &foreign, &resources).await,
            Self::PublishRootCa {
                namespace,
                exists,
                pem,
            } => root_ca::carry_out(client, &namespace, exists, &pem).await,
            Self::Recount {
                namespace,
                resources,
                ..
            } => quota::recount(client, &namespace, &resources).await,
            Self::Approve { name, uid } => approver::approve(client, &name, &uid).await,
            Self::Aggregate {
                name,
                version,
                rules,
            } => {
                let patch = json!({"metadata": {"resourceVersion": version}, "rules": rules});
                client
                    .patch::<ClusterRole>(None, &name, &Patch::Merge(patch))
                    .await
                    .map(drop)
            }
            Self::FillToken { key, uid, root } => {
                account_tokens::fill(client, &key, &uid, &root).await
            }
            Self::SignClusterInfo { version, data } => {
                bootstrap_signer::sign(client, &version, data).await
            }
            Self::SettleRange { name, uid } => service_ranges::settle(client, &name, &uid).await,
            Self::ReleaseClaim { key, uid } => in_use::release_claim(client, &key, &uid).await,
            Self::ReleaseVolume { name, uid } => in_use::release_volume(client, &name, &uid).await,
        }
    }
}

async fn delete(client: &Client, what: Deletable, key: &Key, uid: String) -> Result<(), ApiError> {
    let params = DeleteParams {
        uid: Some(uid),
        ..DeleteParams::default()
    };
    match what {
        Deletable::Event => {
            client
                .delete::<Event>(Some(&key.namespace), &key.name, &params)
                .await
        }
        Deletable::Request => {
            client
                .delete::<CertificateSigningRequest>(None, &key.name, &params)
                .await
        }
        Deletable::Secret => {
            client
                .delete::<Secret>(Some(&key.namespace), &key.name, &params)
                .await
        }
    }
}

/// Says that a node is silent, after a last look at its lease past all caches.
async fn silent(
    client: &Client,
    recorder: &Recorder,
    name: &str,
    (uid, version): (&str, &str),
    (seen, conditions, tell): (Option<Timestamp>, &[NodeCondition], bool),
) -> Result<(), ApiError> {
    let lease: Option<Lease> = client.get_opt(Some(LEASES), name).await?;
    let renewed = lease
        .and_then(|lease| lease.spec?.renew_time)
        .map(|time| time.0);
    if renewed != seen {
        return Ok(());
    }
    let patch =
        json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
    client
        .patch_status::<Node>(None, name, &Patch::Strategic(patch))
        .await?;
    tracing::warn!(node = name, "not heard of for too long: not ready");
    if tell {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let message = format!("Node {name} status is now: NodeNotReady");
        let (severity, reason, action) = (Severity::Warning, "NodeNotReady", "MarkingNotReady");
        let happening = Happening {
            severity,
            reason,
            action,
            message,
        };
        recorder
            .record(
                &Node {
                    metadata,
                    ..Node::default()
                },
                &happening,
            )
            .await;
    }
    Ok(())
}

async fn pod_not_ready(client: &Client, key: &Key, uid: &str) -> Result<(), ApiError> {
    let now = Time(Timestamp::now());
    let condition = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady",
        "message": "the node is silent or not trusted", "lastTransitionTime": now});
    patch_pod_status(client, key, uid, json!({"conditions": [condition]})).await
}

async fn evict(client: &Client, recorder: &Recorder, key: &Key, uid: &str) -> Result<(), ApiError> {
    let message = "Taint manager: deleting due to NoExecute taint";
    disrupt(client, key, uid, ("DeletionByTaintManager", message), None).await?;
    let metadata = ObjectMeta {
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    let message = format!("Marking for deletion Pod {}/{}", key.namespace, key.name);
    let happening = Happening {
        severity: Severity::Normal,
        reason: "TaintManagerEviction",
        action: "Evicting",
        message,
    };
    recorder
        .record(
            &Pod {
                metadata,
                ..Pod::default()
            },
            &happening,
        )
        .await;
    let params = DeleteParams {
        uid: Some(uid.to_owned()),
        ..DeleteParams::default()
    };
    client
        .delete::<Pod>(Some(&key.namespace), &key.name, &params)
        .await
}

async fn collect(
    client: &Client,
    key: &Key,
    uid: &str,
    gone: Option<&str>,
) -> Result<(), ApiError> {
    if let Some(node) = gone {
        if client.get_opt::<Node>(None, node).await?.is_some() {
            return Ok(());
        }
        let message = "PodGC: node no longer exists";
        disrupt(
            client,
            key,
            uid,
            ("DeletionByPodGC", message),
            Some("Failed"),
        )
        .await?;
    }
    let params = DeleteParams {
        uid: Some(uid.to_owned()),
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    client
        .delete::<Pod>(Some(&key.namespace), &key.name, &params)
        .await
}

/// Marks a pod as disturbed from outside, with its last phase if it has reached it.
async fn disrupt(
    client: &Client,
    key: &Key,
    uid: &str,
    (reason, message): (&str, &str),
    phase: Option<&str>,
) -> Result<(), ApiError> {
    let now = Time(Timestamp::now());
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now});
    let mut status = json!({"conditions": [condition]});
    if let Some(phase) = phase {
        status["phase"] = phase.into();
    }
    patch_pod_status(client, key, uid, status).await
}

async fn patch_pod_status(
    client: &Client,
    key: &Key,
    uid: &str,
    status: Value,
) -> Result<(), ApiError> {
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
    client
        .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
        .await
        .map(drop)
}
