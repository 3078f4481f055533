//! Names of a pod: its identity, its folders, its path at the API.

use agent_runtime::PodRef;

pub(crate) use agent_pods::{is_plain, log_folder, log_name, pod_logs, pod_ref};

/// The pod's path at the API.
pub(crate) fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}
