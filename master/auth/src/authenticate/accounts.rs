//! Service account tokens: the service account and the objects to which the token is bound must
//! still exist.

use super::claims::{Claims, LegacyClaims, Private, Reference, TokenClaims};
use super::credential::{CREDENTIAL, Identified, bad};
use super::issuer::TokenIssuer;
use crate::nodes::Nodes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use master_client::UserInfo;
use master_objects::store_error;
use master_schema::error::ApiError;
use master_store::Reader;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};

/// Seconds for which a token stays valid after the end of its object's grace period: the time a pod
/// may take to end.
const GRACE: i64 = 60;
/// Label of secrets whose token was not used for a long time and has been invalidated.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const LEGACY_TYPE: &str = "kubernetes.io/service-account-token";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    deletion_timestamp: Option<Timestamp>,
    labels: Option<HashMap<String, String>>,
}

/// The part of a pod's spec that names its node.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Spec,
    r#type: String,
    data: Option<HashMap<String, String>>,
}

fn invalidated() -> ApiError {
    bad("service account token has been invalidated")
}

async fn object(reader: &dyn Reader, key: &str) -> Result<Object, ApiError> {
    let entry = reader.get(key).await.map_err(store_error)?.entry;
    let entry = entry.ok_or_else(invalidated)?;
    serde_json::from_slice(&entry.value.bytes()).map_err(|_unreadable| invalidated())
}

/// The object that a token names, if it is still the same one.
async fn live(reader: &dyn Reader, key: &str, uid: &str, now: i64) -> Result<Object, ApiError> {
    let object = object(reader, key).await?;
    let gone = object
        .metadata
        .deletion_timestamp
        .is_some_and(|gone| gone.as_second() < now - GRACE);
    if gone || object.metadata.uid != uid {
        return Err(invalidated());
    }
    Ok(object)
}

/// Service account tokens of one issuer.
pub(super) struct Accounts<'a> {
    pub(super) reader: &'a dyn Reader,
    pub(super) nodes: &'a dyn Nodes,
    pub(super) issuer: &'a TokenIssuer,
}

impl Accounts<'_> {
    /// The user of a service account token; `None` if another issuer made the token.
    pub(super) async fn find(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Identified>, ApiError> {
        let issuer = self.issuer;
        let wanted = if audiences.is_empty() {
            issuer.audiences()
        } else {
            audiences
        };
        match issuer.verify(token)? {
            None => Ok(None),
            Some(TokenClaims::Bound(claims)) => {
                let good: Vec<String> = wanted
                    .iter()
                    .filter(|wanted| claims.aud.contains(wanted))
                    .cloned()
                    .collect();
                if good.is_empty() {
                    let (own, wanted) = (quoted(&claims.aud), quoted(wanted));
                    return Err(bad(format!(
                        "token audiences {own} is invalid for the target audiences {wanted}"
                    )));
                }
                let user = self.bound(&claims).await?;
                Ok(Some(Identified {
                    user,
                    audiences: good,
                }))
            }
            Some(TokenClaims::Legacy(claims)) => {
                // Legacy tokens name no audience and are valid for the API's own.
                let own = issuer.audiences();
                let good: Vec<String> = wanted
                    .iter()
                    .filter(|wanted| own.contains(wanted))
                    .cloned()
                    .collect();
                if good.is_empty() {
                    return Ok(None);
                }
                let user = self.legacy(&claims, token).await?;
                Ok(Some(Identified {
                    user,
                    audiences: good,
                }))
            }
        }
    }

    /// The user of a bound token, if the token is valid now and all that it names still exists.
    async fn bound(&self, claims: &Claims) -> Result<UserInfo, ApiError> {
        let now = Timestamp::now().as_second();
        in_time(claims, now)?;
        let own = &claims.kubernetes;
        let (namespace, account) = (&own.namespace, &own.serviceaccount);
        if claims.sub != format!("system:serviceaccount:{namespace}:{}", account.name) {
            return Err(invalidated());
        }
        let key = format!("serviceaccounts/{namespace}/{}", account.name);
        live(self.reader, &key, &account.uid, now).await?;
        if let Some(secret) = &own.secret {
            let key = format!("secrets/{namespace}/{}", secret.name);
            live(self.reader, &key, &secret.uid, now).await?;
        }
        let node = self.live_node(own, now).await?;
        if let Some(why) = node.as_ref().and_then(|node| self.nodes.denied(&node.name)) {
            return Err(bad(format!(
                "service account token is bound to a denied node: {why}"
            )));
        }
        Ok(bound_user(claims, node.as_ref()))
    }

    /// The node of a bound token, where it has one. An answer proves that the token's pod still
    /// exists, and the node does, too; not that the node is allowed to do anything.
    async fn live_node(&self, own: &Private, now: i64) -> Result<Option<Reference>, ApiError> {
        // A token that was made before its pod was bound names no node, and is the pod's all the
        // same.
        let mut node = own.node.clone();
        match (&own.pod, &own.node) {
            (Some(pod), _) => {
                let key = format!("pods/{}/{}", own.namespace, pod.name);
                let pod = live(self.reader, &key, &pod.uid, now).await?;
                node = node.or_else(|| {
                    let name = pod.spec.node_name.filter(|name| !name.is_empty())?;
                    Some(Reference {
                        name,
                        uid: String::new(),
                    })
                });
                if let Some(node) = &node {
                    self.expect_node(&node.name).await?;
                }
            }
            (None, Some(node)) => {
                drop(live(self.reader, &format!("nodes/{}", node.name), &node.uid, now).await?);
            }
            (None, None) => {}
        }
        Ok(node)
    }

    /// Checks that the node of a pod exists. The pod stays for a while after its node was deleted,
    /// until it is garbage-collected, and what runs on the machine may be an attacker's. The uid is
    /// not compared: a Node that is made anew under its name keeps its pods (upstream's rule).
    async fn expect_node(&self, name: &str) -> Result<(), ApiError> {
        let key = format!("nodes/{name}");
        match self.reader.get(&key).await.map_err(store_error)?.entry {
            Some(_) => Ok(()),
            None => Err(bad(format!(
                "service account token is bound to a pod on node {name}, which does not exist"
            ))),
        }
    }

    async fn legacy(&self, claims: &LegacyClaims, token: &str) -> Result<UserInfo, ApiError> {
        let now = Timestamp::now().as_second();
        let LegacyClaims {
            namespace,
            secret,
            account,
            uid,
            sub,
            ..
        } = claims;
        if *sub != format!("system:serviceaccount:{namespace}:{account}") {
            return Err(invalidated());
        }
        live(
            self.reader,
            &format!("serviceaccounts/{namespace}/{account}"),
            uid,
            now,
        )
        .await?;
        let kept = object(self.reader, &format!("secrets/{namespace}/{secret}")).await?;
        let stored = kept
            .data
            .as_ref()
            .and_then(|data| data.get("token"))
            .and_then(|text| STANDARD.decode(text).ok());
        let marked = kept
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(INVALID_SINCE));
        let going = kept.metadata.deletion_timestamp.is_some();
        if kept.r#type != LEGACY_TYPE
            || marked
            || going
            || stored.as_deref() != Some(token.as_bytes())
        {
            return Err(invalidated());
        }
        Ok(user(
            namespace,
            &Reference {
                name: account.clone(),
                uid: uid.clone(),
            },
        ))
    }
}

/// Checks that a token is valid at `now` (Unix seconds), by its own claims alone.
fn in_time(claims: &Claims, now: i64) -> Result<(), ApiError> {
    if now >= claims.exp {
        return Err(bad("service account token has expired"));
    }
    if now < claims.nbf || now < claims.iat {
        return Err(bad("service account token is not valid yet"));
    }
    Ok(())
}

/// The user of a bound token, with the token's id, its pod and its node. Nothing is checked here:
/// the caller has done that.
fn bound_user(claims: &Claims, node: Option<&Reference>) -> UserInfo {
    let own = &claims.kubernetes;
    let mut user = user(&own.namespace, &own.serviceaccount);
    user.extra
        .insert(CREDENTIAL.to_owned(), vec![format!("JTI={}", claims.jti)]);
    for (kind, bound) in [("pod", own.pod.as_ref()), ("node", node)] {
        let Some(bound) = bound else { continue };
        for (fact, value) in [("name", &bound.name), ("uid", &bound.uid)] {
            if !value.is_empty() {
                user.extra.insert(
                    format!("authentication.kubernetes.io/{kind}-{fact}"),
                    vec![value.clone()],
                );
            }
        }
    }
    user
}

fn quoted(list: &[String]) -> String {
    master_rbac::cover::quoted(list)
}

fn user(namespace: &str, account: &Reference) -> UserInfo {
    let name = format!("system:serviceaccount:{namespace}:{}", account.name);
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
    ];
    UserInfo {
        uid: account.uid.clone(),
        extra: BTreeMap::new(),
        ..UserInfo::authenticated(&name, groups)
    }
}
