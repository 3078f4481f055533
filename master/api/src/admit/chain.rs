//! The list of admission plugins, in upstream's order, and which of them are enabled.

use super::Plugin;
use super::certificates::{self, CertificateSubjectRestriction};
use super::claim_resize::PersistentVolumeClaimResize;
use super::default_ingress_class::DefaultIngressClass;
use super::default_storage_class::DefaultStorageClass;
use super::default_tolerations::DefaultTolerationSeconds;
use super::limit_ranger::LimitRanger;
use super::namespace_lifecycle::NamespaceLifecycle;
use super::node_restriction::NodeRestriction;
use super::owner_references::OwnerReferencesPermissionEnforcement;
use super::pod_security::PodSecurity;
use super::priority::Priority;
use super::resource_quota::ResourceQuota;
use super::runtime_class::RuntimeClass;
use super::service_account::ServiceAccount;
use super::storage_in_use::StorageObjectInUseProtection;
use super::taint_nodes::TaintNodesByCondition;
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// A plugin and whether it is enabled by default.
struct Known {
    plugin: &'static dyn Plugin,
    on: bool,
}

const fn on(plugin: &'static dyn Plugin) -> Known {
    Known { plugin, on: true }
}

/// All plugins, in the order in which they run (upstream's).
static KNOWN: &[Known] = &[
    on(&NamespaceLifecycle),
    on(&LimitRanger),
    on(&ServiceAccount),
    on(&NodeRestriction),
    on(&TaintNodesByCondition),
    on(&PodSecurity),
    on(&Priority),
    on(&DefaultTolerationSeconds),
    on(&DefaultStorageClass),
    on(&StorageObjectInUseProtection),
    Known {
        plugin: &OwnerReferencesPermissionEnforcement,
        on: false,
    },
    on(&PersistentVolumeClaimResize),
    on(&RuntimeClass),
    on(&certificates::APPROVAL),
    on(&certificates::SIGNING),
    on(&CertificateSubjectRestriction),
    on(&DefaultIngressClass),
    on(&ResourceQuota),
];

/// The enabled plugins: the default ones and the admin's changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    enabled: Vec<&'static str>,
    disabled: Vec<&'static str>,
}

impl Admission {
    /// Enables and disables plugins by name.
    ///
    /// # Errors
    /// A name is no plugin's, or is in both lists.
    pub fn new<S: AsRef<str>>(enable: &[S], disable: &[S]) -> Result<Self, String> {
        let mut admission = Self::default();
        for (names, list) in [
            (enable, &mut admission.enabled),
            (disable, &mut admission.disabled),
        ] {
            for name in names {
                let name = name.as_ref();
                let Some(known) = Self::names().into_iter().find(|known| *known == name) else {
                    let all = Self::names().join(", ");
                    return Err(format!(
                        "there is no admission plugin {name:?}; there are: {all}"
                    ));
                };
                list.push(known);
            }
        }
        match admission
            .enabled
            .iter()
            .find(|name| admission.disabled.contains(name))
        {
            Some(both) => Err(format!(
                "the admission plugin {both:?} is both enabled and disabled"
            )),
            None => Ok(admission),
        }
    }

    /// The names of all plugins, in their order.
    pub fn names() -> Vec<&'static str> {
        KNOWN.iter().map(|known| known.plugin.name()).collect()
    }

    fn is_on(&self, known: &Known) -> bool {
        let name = known.plugin.name();
        self.enabled.contains(&name) || known.on && !self.disabled.contains(&name)
    }
}

/// Locks for quotas, shared by namespaces: two namespaces on one lock only wait for each other.
const LOCKS: usize = 64;

/// The enabled plugins.
#[derive(Debug)]
pub(crate) struct Chain {
    plugins: Vec<&'static dyn Plugin>,
    locks: Vec<Arc<Mutex<()>>>,
}

impl Chain {
    pub(crate) fn new(admission: &Admission) -> Self {
        let plugins = KNOWN
            .iter()
            .filter(|known| admission.is_on(known))
            .map(|known| known.plugin)
            .collect();
        Self {
            plugins,
            locks: (0..LOCKS).map(|_| Arc::default()).collect(),
        }
    }

    /// Locks a namespace's quotas for one writer.
    pub(crate) async fn quota_lock(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let sum = namespace.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let quota_lock = self
            .locks
            .get(sum % LOCKS)
            .map(Arc::clone)
            .unwrap_or_default();
        quota_lock.lock_owned().await
    }

    pub(crate) fn plugins(&self) -> &[&'static dyn Plugin] {
        &self.plugins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_that_is_switched_off_is_not_in_the_chain() {
        let admission = Admission::new(&[], &["NodeRestriction"]).unwrap();
        let names: Vec<_> = Chain::new(&admission)
            .plugins()
            .iter()
            .map(|plugin| plugin.name())
            .collect();
        assert!(names.contains(&"NamespaceLifecycle") && !names.contains(&"NodeRestriction"));
    }

    #[test]
    fn unknown_names_and_contradictions_are_refused() {
        assert!(
            Admission::new(&["Nonsense"], &[])
                .unwrap_err()
                .contains("Nonsense")
        );
        assert!(Admission::new(&["NodeRestriction"], &["NodeRestriction"]).is_err());
    }
}
