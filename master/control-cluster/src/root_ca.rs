//! Root CA publisher: keeps the config map kube-root-ca.crt in every namespace, by which pods
//! verify the API server. While the root is rotated it holds both roots.

use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Key, Patch, Scope, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::namespace::NamespaceView;
use master_control::views::{fingerprint, version};
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::watch;

/// Name of the config map (upstream's; the volumes of service account tokens refer to it).
pub const NAME: &str = "kube-root-ca.crt";
/// The key inside.
const DATA: &str = "ca.crt";

/// A published certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedView {
    /// The config map's resource version: not written if it changed.
    pub version: String,
    /// Fingerprint of the certificate.
    pub root: u64,
}

impl View for PublishedView {
    type Object = ConfigMap;

    fn scope() -> Scope {
        Scope {
            namespace: None,
            fields: Some(format!("metadata.name={NAME}")),
        }
    }

    fn read(map: ConfigMap) -> Self {
        let content = map.data.as_ref().and_then(|data| data.get(DATA));
        Self {
            root: fingerprint(content.map_or("", String::as_str)),
            version: version(&map.metadata),
        }
    }
}

/// The controller. Its keys are namespaces. Without a certificate it publishes nothing.
#[derive(Debug)]
pub struct RootCa {
    namespaces: Store<NamespaceView>,
    published: Store<PublishedView>,
    root: Option<watch::Receiver<String>>,
}

/// A namespace, what is published there, and what should be.
#[derive(Debug)]
pub struct Facts {
    name: String,
    namespace: Arc<NamespaceView>,
    published: Option<Arc<PublishedView>>,
    root: String,
}

/// Writes the certificate into a namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct Publish {
    /// The namespace.
    pub namespace: String,
    /// The resource version of the config map, if it exists, with other content.
    pub replaces: Option<String>,
    /// The certificate.
    pub root: String,
}

impl Controller for RootCa {
    const NAME: &'static str = "root-ca-cert-publisher";
    const RIGHTS: &'static [Right] = &[
        right("", "configmaps", &["list", "watch", "create", "patch"]),
        right("", "namespaces", &["list", "watch"]),
    ];
    type Facts = Facts;
    type Action = Publish;

    fn new(setup: &mut Setup<'_>) -> Self {
        let namespaces: Store<NamespaceView> = setup.follow_keys();
        let published = setup.follow(|delta, keys| keys.push(Key::cluster(&delta.key.namespace)));
        let root = setup.options().root_ca.clone();
        if let Some(root) = root.clone() {
            let all = namespaces.clone();
            setup.watch(root, move || {
                all.keys().iter().map(|key| (**key).clone()).collect()
            });
        }
        Self {
            namespaces,
            published,
            root,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        Some(Facts {
            name: key.name.clone(),
            namespace: self.namespaces.get(key)?,
            published: self.published.get(&Key::new(&key.name, NAME)),
            root: self.root.as_ref()?.borrow().clone(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Publish> {
        let published = facts.published.as_ref();
        let right = published.is_some_and(|found| found.root == fingerprint(&facts.root));
        let wrong = !facts.namespace.terminating && !right;
        let action = wrong.then(|| Publish {
            namespace: facts.name.clone(),
            replaces: published.map(|found| found.version.clone()),
            root: facts.root.clone(),
        });
        action.into()
    }

    async fn carry_out(&self, action: Publish, writer: &Writer) -> Result<(), ApiError> {
        let Publish {
            namespace,
            replaces,
            root,
        } = action;
        if let Some(version) = replaces {
            let patch = json!([
                {"op": "add", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/data", "value": {DATA: root}},
            ]);
            let key = Key::new(&namespace, NAME);
            let patch = Patch::Json(patch);
            return writer.patch::<ConfigMap>(&key, &patch).await.map(drop);
        }
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata,
            data: Some([(DATA.to_owned(), root)].into()),
            ..ConfigMap::default()
        };
        writer.create(&map).await.map(drop)
    }
}
