//! Names and places of a pod: its identity, its folders, its paths at the API.

use crate::config::Config;
use agent_runtime::PodRef;
use std::path::PathBuf;

pub(crate) use agent_pods::{is_plain, pod_ref};

/// The pod's path at the API.
pub(crate) fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

impl Config {
    /// The pod's own folder: volumes, files, termination messages.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.data.join("pods").join(uid)
    }

    /// The log of one attempt.
    pub(crate) fn log_file(&self, pod: &PodRef, container: &str, attempt: u32) -> PathBuf {
        self.logs
            .join(log_folder(pod, container))
            .join(log_name(attempt))
    }
}

/// The folder of the pod's logs, below [`Config::logs`].
pub(crate) fn pod_logs(pod: &PodRef) -> PathBuf {
    format!("{}_{}_{}", pod.namespace, pod.name, pod.uid).into()
}

/// The folder of a container's logs, below [`Config::logs`].
pub(crate) fn log_folder(pod: &PodRef, container: &str) -> PathBuf {
    pod_logs(pod).join(container)
}

/// The name of an attempt's log.
pub(crate) fn log_name(attempt: u32) -> String {
    format!("{attempt}.log")
}
