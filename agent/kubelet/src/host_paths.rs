//! Which pods are plug-ins of the machine, such as CSI drivers, and what of the machine pods may mount.

use crate::config::Config;
use agent_claims::{HostPaths, Right};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};

/// Whether a pod is one of those by which a machine gets plug-ins, such as CSI drivers: one of its containers is privileged, and the
/// machine's configuration allows that. Its author is root of the machine already.
pub(crate) fn is_plug_in(config: &Config, pod: &Pod) -> bool {
    let privileged = |one: &Container| {
        let security = one.security_context.as_ref();
        security.and_then(|security| security.privileged) == Some(true)
    };
    config.privileged && agent_pods::all(pod).any(|(_, one)| privileged(one))
}

/// By what right a pod mounts paths of the machine.
pub(crate) fn right_of(config: &Config, pod: &Pod) -> Right {
    if is_plug_in(config, pod) {
        Right::PlugIn
    } else {
        Right::Listed
    }
}

/// Why the node doesn't give the pod a path of the machine, if it asks for one that it doesn't get.
pub(crate) fn host_path_fault(config: &Config, pod: &Pod) -> Option<String> {
    config.paths().fault(pod, right_of(config, pod))
}

impl Config {
    /// What of the machine pods may mount.
    pub(crate) fn paths(&self) -> HostPaths<'_> {
        HostPaths {
            listed: &self.host_paths,
            data: &self.data,
            run: &self.run,
            logs: &self.logs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use crate::volumes::{Source, place};
    use config_model::host_path;
    use serde_json::{Value, json};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    #[test]
    fn a_host_path_through_a_link_is_refused_and_says_so() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), dir.path().join("link")).unwrap();
        let own = tempfile::tempdir().unwrap();
        let mut config = config(own.path());
        let path = dir.path().display().to_string().parse().unwrap();
        config.host_paths = vec![host_path::HostPath {
            path,
            writable: false,
        }];
        let host = |path: PathBuf| {
            Source::Host(
                serde_json::from_value(json!({"path": path})).unwrap(),
                Right::Listed,
            )
        };
        let error = place(&config, &host(dir.path().join("link")), None, true).unwrap_err();
        assert!(error.contains("a link is on the way"), "{error}");
        assert!(place(&config, &host(dir.path().to_owned()), None, true).is_ok());
        assert!(
            place(&config, &host(dir.path().to_owned()), None, false).is_err(),
            "read-only"
        );
        assert!(
            place(&config, &host(outside.path().to_owned()), None, true).is_err(),
            "not listed"
        );
    }

    #[test]
    fn the_agents_own_folders_are_given_to_nobody_even_if_they_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        let path = dir.path().display().to_string().parse().unwrap();
        config.host_paths = vec![host_path::HostPath {
            path,
            writable: true,
        }];
        for path in [dir.path(), &config.data, &config.run.join("held")] {
            let source = Source::Host(
                serde_json::from_value(json!({"path": path})).unwrap(),
                Right::Listed,
            );
            assert!(
                place(&config, &source, None, true).is_err(),
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn only_pods_that_are_privileged_where_that_is_allowed_get_the_folder_of_the_machines_volumes()
    {
        let dir = tempfile::tempdir().unwrap();
        let fault = |allowed: bool, privileged: bool, path: &str| {
            let path = dir.path().join(path);
            let security = json!({"privileged": privileged});
            let mounts = json!([{"name": "v", "mountPath": "/v"}]);
            let plain: Value = json!({"name": "registrar", "volumeMounts": mounts});
            let driver =
                json!({"name": "driver", "securityContext": security, "volumeMounts": mounts});
            let volumes = json!([{"name": "v", "hostPath": {"path": path}}]);
            let spec = json!({"containers": [plain, driver], "volumes": volumes});
            let config = Config {
                privileged: allowed,
                ..config(dir.path())
            };
            host_path_fault(
                &config,
                &serde_json::from_value(json!({"spec": spec})).unwrap(),
            )
        };
        for path in [
            "data",
            "data/plugins_registry",
            "data/pods",
            "data/plugins/a/b",
        ] {
            assert_eq!(fault(true, true, path), None, "{path}");
            assert!(fault(true, false, path).is_some(), "{path}");
            assert!(fault(false, true, path).is_some(), "{path}");
        }
        for path in ["run", "data/../run", "data-of-others", ""] {
            assert!(fault(true, true, path).is_some(), "{path}");
        }
    }
}
