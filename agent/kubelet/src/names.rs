//! Names and places of a pod: its identity, its folders, its paths at the API.

use crate::config::Config;
use agent_runtime::PodRef;
use std::path::PathBuf;

pub(crate) use agent_pods::{is_plain, log_folder, log_name, pod_logs, pod_ref};

/// The pod's path at the API.
pub(crate) fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

impl Config {
    /// The pod's own folder: volumes, files, termination messages.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.data.join("pods").join(uid)
    }
}
