//! Bootstrap signer: the public kubeconfig of the cluster is signed with every bootstrap token that may sign, so that whoever
//! knows such a token can tell that the kubeconfig is the cluster's.
//!
//! The config map `kube-public/cluster-info` is somebody else's; where it holds a kubeconfig, this keeps
//! `jws-kubeconfig-<token id>` beside it: a detached JWS (RFC 7515, appendix F) with HMAC-SHA-256.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Kind, Observed};
use crate::write::Write;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use master_client::{ApiError, Client, Patch};
use ring::hmac;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Where the config map is, and its name.
pub(crate) const NAMESPACE: &str = "kube-public";
pub(crate) const NAME: &str = "cluster-info";
const CONTENT: &str = "kubeconfig";
const PREFIX: &str = "jws-kubeconfig-";
/// How names of bootstrap tokens' secrets begin.
const SECRET: &str = "bootstrap-token-";

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[
    Right {
        group: "",
        resource: "secrets",
        verbs: &["list", "watch"],
    },
    Right {
        group: "",
        resource: "configmaps",
        verbs: &["list", "watch", "patch"],
    },
];

/// A token that may sign. Its secret part is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningToken {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: String,
}

impl fmt::Debug for SigningToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The config map with the cluster's kubeconfig.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Its resource version: not written if it changed.
    pub version: String,
    /// What is signed, where it is there.
    pub content: Option<String>,
    /// Signatures by the tokens' public parts.
    pub signatures: BTreeMap<String, String>,
}

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct BootstrapSigner;

impl Controller for BootstrapSigner {
    fn name(&self) -> &'static str {
        "bootstrap-signer"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::BootstrapToken, Kind::ClusterInfo]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let mut plan = Plan::default();
        let Some(info) = &observed.cluster_info else {
            return plan;
        };
        let Some(content) = &info.content else {
            return plan;
        };
        let mut wanted = BTreeMap::new();
        for token in observed.bootstrap_tokens.values() {
            let Some(signing) = &token.signing else {
                continue;
            };
            if let Some(end) = token.expires {
                match Duration::try_from(end.duration_since(now.wall)) {
                    Ok(left) if !left.is_zero() => plan.again_in(left),
                    Ok(_) | Err(_) => continue,
                }
            }
            wanted.insert(signing.id.clone(), signature(content, signing));
        }
        if wanted != info.signatures {
            let gone = info
                .signatures
                .keys()
                .filter(|id| !wanted.contains_key(*id));
            let gone = gone.map(|id| (format!("{PREFIX}{id}"), Value::Null));
            let signed = wanted
                .iter()
                .map(|(id, signature)| (format!("{PREFIX}{id}"), Value::from(signature.as_str())));
            let data = gone.chain(signed).collect();
            plan.writes.push(Write::SignClusterInfo {
                version: info.version.clone(),
                data: Value::Object(data),
            });
        }
        plan
    }
}

/// Header and signature; whoever checks has the content already.
fn signature(content: &str, token: &SigningToken) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": token.id}).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    format!(
        "{header}..{}",
        URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()))
    )
}

/// The token of a secret, where it is one that may sign.
pub(crate) fn signing(secret: &Secret) -> Option<SigningToken> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| {
        data.get(key)
            .and_then(|value| std::str::from_utf8(&value.0).ok())
            .unwrap_or_default()
    };
    let (id, own) = (text("token-id"), text("token-secret"));
    let named = secret.metadata.name.as_deref()?.strip_prefix(SECRET) == Some(id);
    let formed = id.len() == 6
        && id
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let signs = text("usage-bootstrap-signing") == "true";
    (named && formed && signs && !own.is_empty()).then(|| SigningToken {
        id: id.to_owned(),
        secret: own.to_owned(),
    })
}

/// What the controller needs of the config map.
pub(crate) fn info(map: &ConfigMap) -> ClusterInfo {
    let data = map.data.as_ref();
    let signatures = data.into_iter().flatten();
    ClusterInfo {
        version: map.metadata.resource_version.clone().unwrap_or_default(),
        content: data.and_then(|data| data.get(CONTENT)).cloned(),
        signatures: signatures
            .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value.clone())))
            .collect(),
    }
}

/// Writes signatures into the config map.
pub(crate) async fn sign(client: &Client, version: &str, data: Value) -> Result<(), ApiError> {
    let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
    client
        .patch::<ConfigMap>(Some(NAMESPACE), NAME, &Patch::Merge(patch))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn signatures_are_detached_and_can_be_checked() {
        let token = SigningToken {
            id: "joshua".to_owned(),
            secret: "my key".to_owned(),
        };
        let signed = signature("The payload", &token);
        let (header, rest) = signed.split_once("..").unwrap();
        assert_eq!(
            URL_SAFE_NO_PAD.decode(header).unwrap(),
            br#"{"alg":"HS256","kid":"joshua"}"#
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"my key");
        let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode("The payload"));
        let mac = URL_SAFE_NO_PAD.decode(rest).unwrap();
        assert!(hmac::verify(&key, text.as_bytes(), &mac).is_ok());
        assert!(!format!("{token:?}").contains("my key"));
    }

    #[test]
    fn only_tokens_that_may_sign_do() {
        let secret = |name: &str, id: &str, usage: &str| {
            let data = [
                ("token-id", id),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-signing", usage),
            ];
            let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
            let data = data
                .into_iter()
                .map(|(key, value)| (key.to_owned(), bytes(value)))
                .collect();
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            };
            Secret {
                data: Some(data),
                metadata,
                ..Secret::default()
            }
        };
        assert!(signing(&secret("bootstrap-token-abcdef", "abcdef", "true")).is_some());
        assert!(signing(&secret("bootstrap-token-abcdef", "abcdef", "false")).is_none());
        assert!(signing(&secret("bootstrap-token-other1", "abcdef", "true")).is_none());
        assert!(signing(&secret("bootstrap-token-ABC", "ABC", "true")).is_none());
    }
}
