//! Creates what every cluster and every namespace has: the system namespaces, and a service account
//! called `default`.

use config_kube::identity::NODE_LEASE_NAMESPACE;
use config_kube::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Key, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::account::AccountView;
use master_control::views::namespace::NamespaceView;
use master_control::writer::Writer;
use std::sync::Arc;

/// Namespaces that exist in every cluster (upstream).
pub const SYSTEM: [&str; 4] = [
    "default",
    "kube-system",
    "kube-public",
    NODE_LEASE_NAMESPACE,
];
/// The account of pods that name none.
const DEFAULT: &str = "default";

/// The controller. Its keys are namespaces, those of the system whether they are there or not.
#[derive(Debug)]
pub struct ServiceAccounts {
    namespaces: Store<NamespaceView>,
    accounts: Store<AccountView>,
}

/// A namespace and whether it has its account.
#[derive(Debug)]
pub struct Facts {
    name: String,
    namespace: Option<Arc<NamespaceView>>,
    has_account: bool,
}

/// The object that is created.
#[derive(Debug, PartialEq, Eq)]
pub enum Create {
    /// A namespace.
    Namespace(String),
    /// A service account.
    Account(Key),
}

impl Controller for ServiceAccounts {
    const NAME: &'static str = "service-account";
    const RIGHTS: &'static [Right] = &[
        right("", "namespaces", &["list", "watch", "create"]),
        right("", "serviceaccounts", &["list", "watch", "create"]),
    ];
    type Facts = Facts;
    type Action = Create;

    fn new(setup: &mut Setup<'_>) -> Self {
        setup.always(SYSTEM.map(Key::cluster));
        Self {
            namespaces: setup.follow_keys(),
            accounts: setup.follow(|delta, keys| {
                if delta.key.name == DEFAULT {
                    keys.push(Key::cluster(&delta.key.namespace));
                }
            }),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        Some(Facts {
            name: key.name.clone(),
            namespace: self.namespaces.get(key),
            has_account: self.accounts.get(&Key::new(&key.name, DEFAULT)).is_some(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Create> {
        let action = match &facts.namespace {
            None if SYSTEM.contains(&facts.name.as_str()) => {
                Some(Create::Namespace(facts.name.clone()))
            }
            Some(namespace) if !namespace.terminating && !facts.has_account => {
                Some(Create::Account(Key::new(&facts.name, DEFAULT)))
            }
            None | Some(_) => None,
        };
        action.into()
    }

    async fn carry_out(&self, action: Create, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Create::Namespace(name) => {
                let metadata = ObjectMeta {
                    name: Some(name),
                    ..ObjectMeta::default()
                };
                let namespace = Namespace {
                    metadata,
                    ..Namespace::default()
                };
                writer.create(&namespace).await.map(drop)
            }
            Create::Account(key) => {
                let metadata = ObjectMeta {
                    namespace: Some(key.namespace),
                    name: Some(key.name),
                    ..ObjectMeta::default()
                };
                let account = ServiceAccount {
                    metadata,
                    ..ServiceAccount::default()
                };
                writer.create(&account).await.map(drop)
            }
        }
    }
}
