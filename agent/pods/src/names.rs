//! A pod's identity as parts that are safe in a path, and the paths of its logs.

use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::path::{Path, PathBuf};

/// Most log files of one container that are listed. Normally there are two attempts, each with a
/// few rotated files.
pub const MAX_LOGS: usize = 4096;

/// Longest name of a file in bytes, which Linux's file systems have.
const LONGEST_NAME: usize = 255;

/// The pod's identity; `None` for an object that lacks part of it, or has a part that could lead
/// out of a folder (`..`, a slash).
pub fn pod_ref(pod: &Pod) -> Option<PodRef> {
    let meta = &pod.metadata;
    let plain = |text: &Option<String>| text.clone().filter(|text| is_plain(text));
    Some(PodRef {
        namespace: plain(&meta.namespace)?,
        name: plain(&meta.name)?,
        uid: plain(&meta.uid)?,
    })
}

/// True for names that can stand in a path: what the API server allows in names, and nothing else.
pub fn is_plain(text: &str) -> bool {
    let fits = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    !text.is_empty() && text.len() <= 253 && fits && !text.starts_with('.')
}

/// The folder of the pod's logs, below the folder of all pods' logs (upstream's layout).
pub fn pod_logs(pod: &PodRef) -> PathBuf {
    format!("{}_{}_{}", pod.namespace, pod.name, pod.uid).into()
}

/// The folder of a container's logs, below the folder of all pods' logs (upstream's layout).
pub fn log_folder(pod: &PodRef, container: &str) -> PathBuf {
    pod_logs(pod).join(container)
}

/// The name of an attempt's log.
pub fn log_name(attempt: u32) -> String {
    format!("{attempt}.log")
}

/// The log of one attempt; `logs` is the folder of all pods' logs.
pub fn log_file(logs: &Path, pod: &PodRef, container: &str, attempt: u32) -> PathBuf {
    logs.join(log_folder(pod, container))
        .join(log_name(attempt))
}

/// The name of the link to the log of an attempt with this id: it says of which pod the log is
/// (upstream's form, cut as upstream cuts it).
pub fn log_link(pod: &PodRef, container: &str, id: &str) -> String {
    let name = format!("{}_{}_{container}-{id}", pod.name, pod.namespace);
    let end = ".log";
    let name: String = name.chars().take(LONGEST_NAME - end.len()).collect();
    name + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_s_link_is_named_as_upstream_names_it() {
        let pod = |name: &str| PodRef {
            namespace: "shop".into(),
            name: name.into(),
            uid: "u".into(),
        };
        assert_eq!(
            log_link(&pod("web-0"), "main", "0a"),
            "web-0_shop_main-0a.log"
        );
        let cut = log_link(&pod(&"w".repeat(248)), "main", "0a");
        assert_eq!(cut, format!("{}_sh.log", "w".repeat(248)));
    }

    #[test]
    fn names_that_could_leave_a_folder_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0", ".hidden"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
        assert!(is_plain("web-0.default_x"));
    }
}
