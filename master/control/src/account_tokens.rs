//! Tokens of the old kind: secrets of type `kubernetes.io/service-account-token` that somebody makes are filled with a token
//! of the account that they name, the root's certificate and the namespace; without the account they go.
//!
//! The token is bound to the secret: it is worth something for as long as the secret is there.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Key, Kind, Observed, fingerprint};
use crate::write::Write;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use master_client::{ApiError, Client, DeleteParams, Reason};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Which secrets they are.
pub(crate) const TYPE: &str = "kubernetes.io/service-account-token";
/// The account's name.
pub(crate) const ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The account's UID.
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const ROOT: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
/// Seconds of a token that is meant to live as long as its secret: the most that may be asked for.
const LIFE: i64 = 1 << 32;

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[
    Right {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "update", "delete"],
    },
    Right {
        group: "",
        resource: "serviceaccounts",
        verbs: &["get", "list", "watch"],
    },
    Right {
        group: "",
        resource: "serviceaccounts/token",
        verbs: &["create"],
    },
];

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct AccountTokens {
    root: Option<watch::Receiver<String>>,
}

impl AccountTokens {
    pub(crate) fn new(root: Option<watch::Receiver<String>>) -> Self {
        Self { root }
    }
}

impl Controller for AccountTokens {
    fn name(&self) -> &'static str {
        "tokens-controller"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::AccountToken, Kind::ServiceAccount]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let pem = self
            .root
            .as_ref()
            .map(|root| root.borrow().clone())
            .unwrap_or_default();
        let root = fingerprint(&pem);
        let wrong = observed.account_tokens.iter().filter(|(key, facts)| {
            let account = Key::new(&key.namespace, &facts.account);
            !facts.filled || facts.root != root || !observed.service_accounts.contains(&account)
        });
        let write = |(key, facts): (&Key, &crate::observe::AccountTokenFacts)| Write::FillToken {
            key: key.clone(),
            uid: facts.uid.clone(),
            root: pem.clone(),
        };
        Plan {
            writes: wrong.map(write).collect(),
            again: None,
        }
    }
}

/// Whether a secret has a token, and the certificate that it has.
pub(crate) fn content(secret: &Secret) -> (bool, String) {
    let text = |key: &str| {
        let found = secret.data.as_ref().and_then(|data| data.get(key));
        found
            .map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    };
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    (
        !text(TOKEN).is_empty() && text(NAMESPACE) == namespace,
        text(ROOT),
    )
}

/// Fills a secret, or deletes it where its account is gone.
pub(crate) async fn fill(
    client: &Client,
    key: &Key,
    uid: &str,
    root: &str,
) -> Result<(), ApiError> {
    let namespace = Some(key.namespace.as_str());
    let mut secret: Secret = client.get(namespace, &key.name).await?;
    if secret.metadata.uid.as_deref() != Some(uid) || secret.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let annotation = |name: &str| {
        secret
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(name))
            .cloned()
    };
    let name = annotation(ACCOUNT).unwrap_or_default();
    let account = client.get_opt::<ServiceAccount>(namespace, &name).await?;
    let own = account.and_then(|account| account.metadata.uid);
    let Some(own) = own
        .filter(|own| annotation(ACCOUNT_UID).is_none_or(|said| said.is_empty() || said == *own))
    else {
        let params = DeleteParams {
            uid: Some(uid.to_owned()),
            ..DeleteParams::default()
        };
        return client.delete::<Secret>(namespace, &key.name, &params).await;
    };
    let (filled, _) = content(&secret);
    let token = if filled {
        None
    } else {
        Some(token(client, key, &name, uid).await?)
    };
    secret
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(ACCOUNT_UID.to_owned(), own);
    let data = secret.data.get_or_insert_default();
    if let Some(token) = token {
        data.insert(TOKEN.to_owned(), ByteString(token.into_bytes()));
    }
    data.insert(ROOT.to_owned(), ByteString(root.as_bytes().to_vec()));
    data.insert(
        NAMESPACE.to_owned(),
        ByteString(key.namespace.clone().into_bytes()),
    );
    client.update(&secret).await.map(drop)
}

async fn token(client: &Client, key: &Key, account: &str, uid: &str) -> Result<String, ApiError> {
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {
        "audiences": [], "expirationSeconds": LIFE,
        "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": key.name, "uid": uid},
    }});
    let namespace = Some(key.namespace.as_str());
    let answer = client
        .create_subresource::<ServiceAccount>(namespace, account, "token", &request)
        .await;
    // That tokens are not served is no reason to take the secret for done.
    let answer = answer.map_err(|error| {
        ApiError::new(
            Reason::ServiceUnavailable,
            format!("no token is given: {error}"),
        )
    })?;
    let token = answer
        .pointer("/status/token")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if token.is_empty() {
        return Err(ApiError::new(
            Reason::InternalError,
            "the answer to a token request holds no token",
        ));
    }
    Ok(token.to_owned())
}
