//! Stored roles and bindings, for decisions.

use super::feed::{Change, Follow};
use config_errors::chain;
use master_rbac::{Binding, Role, Snapshot};
use serde::de::DeserializeOwned;

/// The tables, in the order in which [`Snapshot`] receives them.
pub(super) const TABLES: &[&str] = &[
    "clusterroles.rbac.authorization.k8s.io/",
    "roles.rbac.authorization.k8s.io/",
    "clusterrolebindings.rbac.authorization.k8s.io/",
    "rolebindings.rbac.authorization.k8s.io/",
];
/// The first tables hold roles, the others bindings.
const ROLE_TABLES: usize = 2;

impl Follow for Snapshot {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Reset => *self = Self::default(),
            Change::Set(table, entry) if table < ROLE_TABLES => {
                match read::<Role>(&entry.key, &entry.value.bytes()) {
                    Some(role) => self.set_role(role),
                    None => self.forget(table, &entry.key),
                }
            }
            Change::Set(table, entry) => match read::<Binding>(&entry.key, &entry.value.bytes()) {
                Some(binding) => self.set_binding(binding),
                None => self.forget(table, &entry.key),
            },
            Change::Deleted(table, key) => self.forget(table, &key),
        }
    }
}

trait Forget {
    fn forget(&mut self, table: usize, key: &str);
}

impl Forget for Snapshot {
    fn forget(&mut self, table: usize, key: &str) {
        let path = key.strip_prefix(TABLES[table]).unwrap_or_default();
        let (namespace, name) = path.split_once('/').unwrap_or(("", path));
        if table < ROLE_TABLES {
            self.remove_role(namespace, name);
        } else {
            self.remove_binding(namespace, name);
        }
    }
}

/// Decodes a stored object; an unreadable one grants nothing.
fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    match serde_json::from_slice(value) {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::error!(
                key,
                error = chain(&error),
                "a stored role or binding cannot be read and gives no right"
            );
            None
        }
    }
}
