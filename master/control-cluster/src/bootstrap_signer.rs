//! Bootstrap signer: the public kubeconfig of the cluster is signed with every bootstrap token that
//! may sign, so that a holder of such a token can verify that the kubeconfig is the cluster's.
//!
//! Others write the config map `kube-public/cluster-info`; if it holds a kubeconfig, this
//! controller keeps `jws-kubeconfig-<token id>` beside it: a detached JWS (RFC 7515, appendix F)
//! with HMAC-SHA-256.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use master_client::{ApiError, Delta, Key, Patch, Scope, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::token::{SigningToken, TokenView};
use master_control::views::version;
use master_control::writer::Writer;
use ring::hmac;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The namespace of the config map.
const NAMESPACE: &str = "kube-public";
/// Its name.
pub const NAME: &str = "cluster-info";
const CONTENT: &str = "kubeconfig";
const PREFIX: &str = "jws-kubeconfig-";

/// The config map with the cluster's kubeconfig.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterInfoView {
    /// Its resource version: not written if it changed.
    pub version: String,
    /// The signed content, if it exists.
    pub content: Option<String>,
    /// Signatures by the tokens' public parts.
    pub signatures: BTreeMap<String, String>,
}

impl View for ClusterInfoView {
    type Object = ConfigMap;

    fn scope() -> Scope {
        Scope {
            namespace: Some(NAMESPACE),
            fields: Some(format!("metadata.name={NAME}")),
        }
    }

    fn read(map: ConfigMap) -> Self {
        let version = version(&map.metadata);
        let mut data = map.data.unwrap_or_default();
        let content = data.remove(CONTENT);
        let signature =
            |(key, value): (String, String)| Some((key.strip_prefix(PREFIX)?.to_owned(), value));
        Self {
            version,
            content,
            signatures: data.into_iter().filter_map(signature).collect(),
        }
    }
}

/// The controller. Its one key is the config map.
#[derive(Debug)]
pub struct BootstrapSigner {
    info: Store<ClusterInfoView>,
    tokens: Store<TokenView>,
}

/// The config map and the tokens, all of which sign it.
#[derive(Debug)]
pub struct Facts {
    info: Arc<ClusterInfoView>,
    tokens: Vec<Arc<TokenView>>,
}

/// The config map gets its signatures.
#[derive(Debug, PartialEq, Eq)]
pub struct Sign {
    /// The config map's resource version: not written if it changed.
    pub version: String,
    /// The keys that change; null to remove one.
    pub data: Value,
}

impl Controller for BootstrapSigner {
    const NAME: &'static str = "bootstrap-signer";
    const RIGHTS: &'static [Right] = &[
        right("", "secrets", &["list", "watch"]),
        right("", "configmaps", &["list", "watch", "patch"]),
    ];
    type Facts = Facts;
    type Action = Sign;

    fn new(setup: &mut Setup<'_>) -> Self {
        Self {
            info: setup.follow_keys(),
            tokens: setup.follow(|_: &Delta<TokenView>, keys| keys.push(Key::new(NAMESPACE, NAME))),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let tokens = self.tokens.all().into_iter();
        Some(Facts {
            info: self.info.get(key)?,
            tokens: tokens.map(|(_, token)| token).collect(),
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Sign> {
        let mut plan = Plan::nothing();
        let info = &facts.info;
        let Some(content) = &info.content else {
            return plan;
        };
        let mut wanted = BTreeMap::new();
        for token in &facts.tokens {
            let Some(signing) = &token.signing else {
                continue;
            };
            if let Some(end) = token.expires {
                match now.until(end) {
                    Some(left) => plan.requeue_in(left),
                    None => continue,
                }
            }
            wanted.insert(signing.id.clone(), signature(content, signing));
        }
        if wanted != info.signatures {
            let known = info.signatures.keys();
            let gone = known
                .filter(|id| !wanted.contains_key(*id))
                .map(|id| (format!("{PREFIX}{id}"), Value::Null));
            let signed = wanted
                .iter()
                .map(|(id, signature)| (format!("{PREFIX}{id}"), Value::from(signature.as_str())));
            plan.actions.push(Sign {
                version: info.version.clone(),
                data: Value::Object(gone.chain(signed).collect()),
            });
        }
        plan
    }

    async fn carry_out(&self, action: Sign, writer: &Writer) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"resourceVersion": action.version}, "data": action.data});
        let key = Key::new(NAMESPACE, NAME);
        let patch = Patch::Merge(patch);
        writer.patch::<ConfigMap>(&key, &patch).await.map(drop)
    }
}

/// The detached JWS: header and signature without the content, which the verifier has beside it.
fn signature(content: &str, token: &SigningToken) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": token.id}).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    format!(
        "{header}..{}",
        URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
