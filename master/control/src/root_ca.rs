//! Root CA publisher: every namespace has a config map by which pods know the API server; while the root is rotated, by both.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Kind, Observed, fingerprint};
use crate::write::Write;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Client, Patch};
use serde_json::json;
use tokio::sync::watch;

/// Name of the config map (upstream's; the volumes of service account tokens refer to it).
pub(crate) const NAME: &str = "kube-root-ca.crt";
/// The key inside.
const KEY: &str = "ca.crt";

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[Right {
    group: "",
    resource: "configmaps",
    verbs: &["list", "watch", "create", "patch"],
}];

/// The controller; without a certificate it publishes nothing.
#[derive(Debug, Default)]
pub(crate) struct RootCa {
    pem: Option<watch::Receiver<String>>,
}

impl RootCa {
    pub(crate) fn new(pem: Option<watch::Receiver<String>>) -> Self {
        Self { pem }
    }
}

impl Controller for RootCa {
    fn name(&self) -> &'static str {
        "root-ca-cert-publisher"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Namespace, Kind::RootCa]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let Some(pem) = self.pem.as_ref().map(|pem| pem.borrow().clone()) else {
            return Plan::default();
        };
        let right = fingerprint(&pem);
        let active = observed
            .namespaces
            .iter()
            .filter(|(_, namespace)| !namespace.terminating);
        let wrong = active.filter_map(|(name, _)| match observed.root_cas.get(name) {
            Some(own) if *own == right => None,
            found => Some((name, found.is_some())),
        });
        let write = |(name, exists): (&String, bool)| Write::PublishRootCa {
            namespace: name.clone(),
            exists,
            pem: pem.clone(),
        };
        Plan {
            writes: wrong.map(write).collect(),
            again: None,
        }
    }
}

/// What a config map says.
pub(crate) fn content(map: &ConfigMap) -> &str {
    map.data
        .as_ref()
        .and_then(|data| data.get(KEY))
        .map_or("", String::as_str)
}

/// Makes the config map, or sets it right.
pub(crate) async fn carry_out(
    client: &Client,
    namespace: &str,
    exists: bool,
    pem: &str,
) -> Result<(), ApiError> {
    let data = [(KEY.to_owned(), pem.to_owned())];
    if exists {
        let patch = Patch::Json(json!([{"op": "add", "path": "/data", "value": {KEY: pem}}]));
        return client
            .patch::<ConfigMap>(Some(namespace), NAME, &patch)
            .await
            .map(drop);
    }
    let metadata = ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    let map = ConfigMap {
        metadata,
        data: Some(data.into()),
        ..ConfigMap::default()
    };
    client.create(&map).await.map(drop)
}
