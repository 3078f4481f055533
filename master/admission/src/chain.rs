//! The list of admission plugins, in the order in which they run, and which of them are enabled.

use crate::certificates::{self, CertificateSubjectRestriction};
use crate::claim_resize::PersistentVolumeClaimResize;
use crate::default_ingress_class::DefaultIngressClass;
use crate::default_storage_class::DefaultStorageClass;
use crate::default_tolerations::DefaultTolerationSeconds;
use crate::device_access::DeviceAdminAccess;
use crate::external_ips::DenyServiceExternalIps;
use crate::image_floor::ImageFloor;
use crate::limit_ranger::LimitRanger;
use crate::namespace_lifecycle::NamespaceLifecycle;
use crate::node_restriction::NodeRestriction;
use crate::owner_duplicates::OwnerDuplicates;
use crate::owner_references::OwnerReferencesPermissionEnforcement;
use crate::plugin::{Admitted, Plugin, Request};
use crate::plugin_services::PluginServices;
use crate::pod_resize::PodResizeValidator;
use crate::pod_security::PodSecurity;
use crate::priority::Priority;
use crate::requestor::Requestor;
use crate::resource_quota::ResourceQuota;
use crate::role_escalation::RoleEscalation;
use crate::runtime_class::RuntimeClass;
use crate::service_account::ServiceAccount;
use crate::services::ServiceAllocation;
use crate::storage_in_use::StorageObjectInUseProtection;
use crate::taint_nodes::TaintNodesByCondition;
use master_schema::error::ApiError;
use master_schema::validate::Fields;
use master_store::Op;

/// Whether a plugin is part of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enabled {
    /// Always: an admin can't disable it, and it has no name in the configuration.
    Always,
    /// Unless an admin disables it.
    On,
    /// If an admin enables it.
    Off,
}

/// A plugin: upstream's name, whether it is enabled, and how it is made.
struct Known {
    name: &'static str,
    enabled: Enabled,
    make: fn(&PluginServices) -> Box<dyn Plugin>,
}

use Enabled::{Always, Off, On};

const fn known(
    name: &'static str,
    enabled: Enabled,
    make: fn(&PluginServices) -> Box<dyn Plugin>,
) -> Known {
    Known {
        name,
        enabled,
        make,
    }
}

/// All plugins, in the order in which they run: upstream's, with this project's own before and
/// after.
#[rustfmt::skip]
static PLUGINS: &[Known] = &[
    known("OwnerDuplicates", Always, |_| Box::new(OwnerDuplicates)),
    known("Requestor", Always, |_| Box::new(Requestor)),
    known("NamespaceLifecycle", On, |_| Box::new(NamespaceLifecycle::default())),
    known("LimitRanger", On, |_| Box::new(LimitRanger)),
    known("ServiceAccount", On, |_| Box::new(ServiceAccount::default())),
    known("NodeRestriction", On, |parts| Box::new(NodeRestriction::new(parts))),
    known("TaintNodesByCondition", On, |_| Box::new(TaintNodesByCondition)),
    known("PodSecurity", On, |_| Box::new(PodSecurity::default())),
    known("Priority", On, |_| Box::new(Priority)),
    known("DefaultTolerationSeconds", On, |_| Box::new(DefaultTolerationSeconds)),
    known("DefaultStorageClass", On, |_| Box::new(DefaultStorageClass)),
    known("StorageObjectInUseProtection", On, |_| Box::new(StorageObjectInUseProtection)),
    known("OwnerReferencesPermissionEnforcement", Off, |parts| Box::new(OwnerReferencesPermissionEnforcement::new(parts))),
    known("PersistentVolumeClaimResize", On, |_| Box::new(PersistentVolumeClaimResize)),
    known("RuntimeClass", On, |_| Box::new(RuntimeClass)),
    known("CertificateApproval", On, |parts| Box::new(certificates::approval(parts))),
    known("CertificateSigning", On, |parts| Box::new(certificates::signing(parts))),
    known("CertificateSubjectRestriction", On, |_| Box::new(CertificateSubjectRestriction)),
    known("DefaultIngressClass", On, |_| Box::new(DefaultIngressClass)),
    known("PodResizeValidator", On, |_| Box::new(PodResizeValidator)),
    known("DenyServiceExternalIPs", On, |_| Box::new(DenyServiceExternalIps)),
    known("ResourceQuota", On, |parts| Box::new(ResourceQuota::new(parts))),
    known("ServiceAllocation", Always, |parts| Box::new(ServiceAllocation::new(parts))),
    known("RoleEscalation", Always, |parts| Box::new(RoleEscalation::new(parts))),
    known("ImageFloor", Always, |_| Box::new(ImageFloor)),
    known("DeviceAdminAccess", Always, |_| Box::new(DeviceAdminAccess)),
];

/// The enabled plugins: the default ones and the admin's changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnabledPlugins {
    enabled: Vec<&'static str>,
    disabled: Vec<&'static str>,
}

impl EnabledPlugins {
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

    /// The names of all plugins that can be enabled and disabled, in their order.
    pub fn names() -> Vec<&'static str> {
        PLUGINS
            .iter()
            .filter(|known| known.enabled != Always)
            .map(|known| known.name)
            .collect()
    }

    fn is_on(&self, known: &Known) -> bool {
        match known.enabled {
            Always => true,
            On => !self.disabled.contains(&known.name),
            Off => self.enabled.contains(&known.name),
        }
    }

    fn plugins(&self) -> impl Iterator<Item = &'static Known> {
        PLUGINS.iter().filter(|known| self.is_on(known))
    }
}

/// The enabled plugins.
#[derive(Debug)]
pub struct Chain {
    plugins: Vec<Box<dyn Plugin>>,
}

impl Chain {
    /// The plugins that an admin's choice enables.
    pub fn new(admission: &EnabledPlugins, parts: &PluginServices) -> Self {
        Self {
            plugins: admission
                .plugins()
                .map(|known| (known.make)(parts))
                .collect(),
        }
    }

    fn concerned<'a>(&'a self, request: &'a Request<'a>) -> impl Iterator<Item = &'a dyn Plugin> {
        self.plugins
            .iter()
            .map(AsRef::as_ref)
            .filter(|plugin: &&dyn Plugin| plugin.concerns(request))
    }

    /// Runs before a change is compared with the stored object.
    ///
    /// # Errors
    /// The caller may not learn anything about the object.
    pub fn reach(&self, request: &Request<'_>, stored: &Fields) -> Result<(), ApiError> {
        self.concerned(request)
            .try_for_each(|plugin| plugin.reach(request, stored))
    }

    /// Runs the changing plugins on a new or changed object, then the kind's own warnings.
    ///
    /// # Errors
    /// A plugin refuses the write, or what it depends on cannot be read.
    pub async fn admit(
        &self,
        request: &Request<'_>,
        object: &mut Fields,
    ) -> Result<Admitted, ApiError> {
        let mut admitted = Admitted::default();
        for plugin in self.concerned(request) {
            plugin.admit(request, object, &mut admitted).await?;
        }
        if request.subresource.is_none() {
            (request.kind.strategy.warn)(object, request.old, &mut admitted.warnings);
        }
        Ok(admitted)
    }

    /// Runs the refusing plugins: on a new or changed object that has passed its kind's validation,
    /// or on a stored one that is to be deleted.
    ///
    /// # Errors
    /// A plugin refuses the write, or what it depends on cannot be read.
    pub async fn check(
        &self,
        request: &Request<'_>,
        object: &Fields,
        admitted: &mut Admitted,
    ) -> Result<(), ApiError> {
        for plugin in self.concerned(request) {
            plugin.check(request, object, admitted).await?;
        }
        Ok(())
    }

    /// The operations that free what a deleted object had, for the transaction that removes it.
    ///
    /// # Errors
    /// What the object had cannot be read.
    pub async fn release(
        &self,
        request: &Request<'_>,
        object: &Fields,
    ) -> Result<Vec<Op>, ApiError> {
        let mut ops = Vec::new();
        for plugin in self.concerned(request) {
            ops.append(&mut plugin.release(request, object).await?);
        }
        Ok(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_that_is_switched_off_is_not_in_the_chain() {
        let admission = EnabledPlugins::new(&[], &["NodeRestriction"]).unwrap();
        let names: Vec<_> = admission.plugins().map(|known| known.name).collect();
        assert!(names.contains(&"NamespaceLifecycle") && !names.contains(&"NodeRestriction"));
    }

    #[test]
    fn unknown_names_and_contradictions_are_refused() {
        assert!(
            EnabledPlugins::new(&["Nonsense"], &[])
                .unwrap_err()
                .contains("Nonsense")
        );
        assert!(EnabledPlugins::new(&["NodeRestriction"], &["NodeRestriction"]).is_err());
    }

    #[test]
    fn plugins_that_protect_the_cluster_cannot_be_disabled() {
        for name in ["RoleEscalation", "ImageFloor", "Requestor"] {
            assert!(EnabledPlugins::new(&[], &[name]).is_err(), "{name}");
        }
        let names = EnabledPlugins::default();
        assert!(names.plugins().any(|known| known.name == "RoleEscalation"));
    }
}
