//! The desired state of a pod, as its worker receives it.

use agent_pods::{DEFAULT_GRACE, grace, pod_ref};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;

/// The pod as the master wants it.
#[derive(Debug, Clone)]
pub(crate) enum DesiredPod {
    /// This version of it.
    Pod(Arc<Pod>),
    /// The master doesn't have it: end it with this grace period.
    Gone(Duration),
}

/// The grace period of an orphaned pod, from the last version of it that was known.
pub(crate) fn orphan_grace(wanted: &DesiredPod) -> Duration {
    match wanted {
        DesiredPod::Pod(pod) if pod_ref(pod).is_some() => grace(pod),
        DesiredPod::Pod(_) => DEFAULT_GRACE,
        DesiredPod::Gone(grace) => *grace,
    }
}
