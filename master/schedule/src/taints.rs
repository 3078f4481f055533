//! Taints, as the scheduler reads them.

use config_kube::k8s_openapi::api::core::v1::{Taint, Toleration};
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, tolerates};

/// A taint without `timeAdded`, which does not matter here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeTaint(Taint);

impl NodeTaint {
    /// Reads a taint.
    pub(crate) fn of(taint: &Taint) -> Self {
        Self(Taint {
            time_added: None,
            ..taint.clone()
        })
    }

    /// A taint that the scheduler derives from the node's status.
    pub(crate) fn found(key: &str) -> Self {
        Self(Taint {
            key: key.to_owned(),
            effect: NO_SCHEDULE.to_owned(),
            ..Taint::default()
        })
    }

    /// Its key.
    pub(crate) fn key(&self) -> &str {
        &self.0.key
    }

    /// Whether pods that do not tolerate it must not be placed.
    pub(crate) fn forbids(&self) -> bool {
        self.0.effect == NO_SCHEDULE || self.0.effect == NO_EXECUTE
    }

    /// Whether one of the tolerations tolerates it.
    pub(crate) fn tolerated(&self, tolerations: &[Toleration]) -> bool {
        tolerations
            .iter()
            .any(|toleration| tolerates(toleration, &self.0))
    }
}
