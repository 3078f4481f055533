//! A pod's identity, where its parts can stand in a path.

use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::Pod;

/// The pod's identity; `None` for an object that lacks part of it, or whose parts could leave a folder.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_folder_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0", ".hidden"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
        assert!(is_plain("web-0.default_x"));
    }
}
