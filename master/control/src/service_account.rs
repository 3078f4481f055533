//! What every cluster and every namespace has: the system namespaces, and a service account called `default`.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Key, Kind, Observed};
use crate::write::Write;
use config_kube::identity::NODE_LEASE_NAMESPACE;

/// Namespaces that are there without anybody asking (upstream).
const SYSTEM: [&str; 4] = [
    "default",
    "kube-system",
    "kube-public",
    NODE_LEASE_NAMESPACE,
];
/// The account of pods that name none.
const DEFAULT: &str = "default";

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct ServiceAccounts;

impl Controller for ServiceAccounts {
    fn name(&self) -> &'static str {
        "service-account"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Namespace, Kind::ServiceAccount]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let missing = SYSTEM
            .iter()
            .filter(|name| !observed.namespaces.contains_key(**name));
        let mut writes: Vec<Write> = missing
            .map(|name| Write::CreateNamespace {
                name: (*name).to_owned(),
            })
            .collect();
        let active = observed
            .namespaces
            .iter()
            .filter(|(_, namespace)| !namespace.terminating);
        let accounts = active.map(|(name, _)| Key::new(name, DEFAULT));
        let missing = accounts.filter(|key| !observed.service_accounts.contains(key));
        writes.extend(missing.map(|key| Write::CreateServiceAccount { key }));
        Plan {
            writes,
            again: None,
        }
    }
}
