//! Legacy tokens: a new secret of type `kubernetes.io/service-account-token` is filled with a token
//! of the account that it names, the root's certificate and the namespace; without the account it
//! is deleted.
//!
//! The token is bound to the secret, and valid as long as the secret exists.

use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use master_client::{
    ApiError, Client, DeleteParams, Delta, Index, Key, Reason, Scope, Store, View,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::account::AccountView;
use master_control::views::{fingerprint, uid};
use master_control::writer::Writer;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;

/// Which secrets they are.
const TYPE: &str = "kubernetes.io/service-account-token";
/// The account's name.
const ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The account's UID.
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const ROOT: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
/// Lifetime in seconds of a token that should live as long as its secret: the longest that may be
/// requested.
const LIFE: i64 = 1 << 32;

/// A secret with the token of a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountTokenView {
    /// UID of the secret.
    pub uid: String,
    /// Name of the account.
    pub account: String,
    /// UID of the account that the token is for; empty if it is not known yet.
    pub account_uid: String,
    /// Whether the token is there.
    pub filled: bool,
    /// Fingerprint of the certificate that is there.
    pub root: u64,
}

impl View for AccountTokenView {
    type Object = Secret;

    fn scope() -> Scope {
        Scope {
            namespace: None,
            fields: Some(format!("type={TYPE}")),
        }
    }

    fn read(secret: Secret) -> Self {
        let (filled, root) = content(&secret);
        let annotations = secret.metadata.annotations.as_ref();
        let annotation = |name: &str| annotations.and_then(|all| all.get(name)).cloned();
        Self {
            uid: uid(&secret.metadata),
            account: annotation(ACCOUNT).unwrap_or_default(),
            account_uid: annotation(ACCOUNT_UID).unwrap_or_default(),
            filled,
            root: fingerprint(&root),
        }
    }
}

/// Secrets by their account (`namespace/name`).
static BY_ACCOUNT: Index<AccountTokenView> = Index::new("account", |key, secret| {
    vec![Key::new(&key.namespace, &secret.account).to_string()]
});

/// The controller. Its keys are secrets.
#[derive(Debug)]
pub struct AccountTokens {
    secrets: Store<AccountTokenView>,
    accounts: Store<AccountView>,
    root: Option<watch::Receiver<String>>,
}

/// A secret, whether it names the account of today by its UID, and the root's certificate.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    secret: Arc<AccountTokenView>,
    names_account: bool,
    root: String,
}

/// The secret gets its content, or is deleted with its account.
#[derive(Debug, PartialEq, Eq)]
pub struct Fill {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The root's certificate.
    pub root: String,
}

impl Controller for AccountTokens {
    const NAME: &'static str = "tokens-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "secrets", &["get", "list", "watch", "update", "delete"]),
        right("", "serviceaccounts", &["get", "list", "watch"]),
        right("", "serviceaccounts/token", &["create"]),
    ];
    type Facts = Facts;
    type Action = Fill;

    fn new(setup: &mut Setup<'_>) -> Self {
        let secrets: Store<AccountTokenView> = setup.follow_keys();
        let by_account = secrets.index(&BY_ACCOUNT);
        let accounts = setup.follow(move |delta: &Delta<AccountView>, keys| {
            let secrets = by_account.keys(&delta.key.to_string());
            keys.extend(secrets.iter().map(|key| (**key).clone()));
        });
        let root = setup.options().root_ca.clone();
        if let Some(root) = root.clone() {
            let all = secrets.clone();
            setup.watch(root, move || {
                all.keys().iter().map(|key| (**key).clone()).collect()
            });
        }
        Self {
            secrets,
            accounts,
            root,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let secret = self.secrets.get(key)?;
        let account = Key::new(&key.namespace, &secret.account);
        let account = self.accounts.get(&account);
        let root = self.root.as_ref().map(|root| root.borrow().clone());
        Some(Facts {
            key: key.clone(),
            // An account with another UID is another one: tokens of the deleted one are not valid.
            names_account: account.is_some_and(|account| account.uid == secret.account_uid),
            secret,
            root: root.unwrap_or_default(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Fill> {
        let Facts { key, secret, .. } = facts;
        let right = secret.filled && secret.root == fingerprint(&facts.root) && facts.names_account;
        let action = (!right).then(|| Fill {
            key: key.clone(),
            uid: secret.uid.clone(),
            root: facts.root.clone(),
        });
        action.into()
    }

    async fn carry_out(&self, action: Fill, writer: &Writer) -> Result<(), ApiError> {
        fill(writer, &action.key, &action.uid, &action.root).await
    }
}

/// Whether a secret has a token, and the certificate that it has.
fn content(secret: &Secret) -> (bool, String) {
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
async fn fill(writer: &Writer, key: &Key, uid: &str, root: &str) -> Result<(), ApiError> {
    let client = writer.client();
    let namespace = key.namespace();
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
    let Some(own) = own.filter(|own| {
        annotation(ACCOUNT_UID).is_none_or(|named| named.is_empty() || named == *own)
    }) else {
        let params = DeleteParams::of(uid.to_owned());
        return writer.delete::<Secret>(key, &params).await;
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
    writer.update(&secret).await.map(drop)
}

async fn token(client: &Client, key: &Key, account: &str, uid: &str) -> Result<String, ApiError> {
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {
        "audiences": [], "expirationSeconds": LIFE,
        "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": key.name, "uid": uid},
    }});
    let namespace = key.namespace();
    let answer = client
        .create_subresource::<ServiceAccount>(namespace, account, "token", &request)
        .await;
    // If tokens are not served, the secret is not done.
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
