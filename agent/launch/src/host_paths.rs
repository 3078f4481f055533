//! Which pods are plug-ins of the machine, such as CSI drivers, and what of the machine pods may
//! mount.

use crate::machine::Machine;
use agent_claims::Right;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};

/// Whether a pod is one of those by which a machine gets plug-ins, such as CSI drivers: one of its
/// containers is privileged, and the machine's configuration allows that. Its author is root of the
/// machine already.
pub(crate) fn is_plug_in(machine: &Machine, pod: &Pod) -> bool {
    let privileged = |one: &Container| {
        let security = one.security_context.as_ref();
        security.and_then(|security| security.privileged) == Some(true)
    };
    machine.privileged && agent_pods::all(pod).any(|(_, one)| privileged(one))
}

/// Whether a pod mounts paths of the machine as a plug-in, or as the configuration lists them.
pub(crate) fn right_of(machine: &Machine, pod: &Pod) -> Right {
    if is_plug_in(machine, pod) {
        Right::PlugIn
    } else {
        Right::Listed
    }
}

/// Why the node doesn't give the pod a path of the machine, if it asks for one that it doesn't get.
pub(crate) fn host_path_fault(machine: &Machine, pod: &Pod) -> Option<String> {
    machine.paths().fault(pod, right_of(machine, pod))
}

/// What a pod's events say of paths that it gets read-only although a mount does not ask for that.
pub fn narrowed(machine: &Machine, pod: &Pod) -> impl Iterator<Item = String> {
    let narrowed = machine.paths().narrowed(pod, right_of(machine, pod));
    narrowed.into_iter().map(|volume| {
        format!(
            "volume {volume} is mounted read-only: `host_paths` under `[node]` in the machine's \
             configuration does not say `writable = true` for its path"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use crate::volumes::{VolumeLocation, place};
    use config_model::host_path;
    use serde_json::{Value, json};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    #[test]
    fn a_host_path_through_a_link_is_refused_and_says_so() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), dir.path().join("link")).unwrap();
        let own = tempfile::tempdir().unwrap();
        let mut machine = machine(own.path());
        let path = dir.path().display().to_string().parse().unwrap();
        machine.host_paths = vec![host_path::HostPath {
            path,
            writable: false,
        }];
        let host = |path: PathBuf| {
            VolumeLocation::Host(
                serde_json::from_value(json!({"path": path})).unwrap(),
                Right::Listed,
            )
        };
        let error = place(&machine, &host(dir.path().join("link")), None, true).unwrap_err();
        assert!(error.contains("a link is on the way"), "{error}");
        assert!(place(&machine, &host(dir.path().to_owned()), None, true).is_ok());
        assert!(
            place(&machine, &host(dir.path().to_owned()), None, false).is_err(),
            "read-only"
        );
        assert!(
            place(&machine, &host(outside.path().to_owned()), None, true).is_err(),
            "not listed"
        );
    }

    #[test]
    fn a_host_path_is_of_the_type_that_the_pod_names() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let (dir, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let mode = Mode::from_bits_truncate(0o600);
        mknod(&at("char"), SFlag::S_IFCHR, mode, makedev(1, 3)).unwrap();
        // The number is no device's.
        mknod(&at("block"), SFlag::S_IFBLK, mode, makedev(253, 4095)).unwrap();
        let mut machine = machine(own.path());
        let path = dir.path().display().to_string().parse().unwrap();
        machine.host_paths = vec![host_path::HostPath {
            path,
            writable: false,
        }];
        let kinds = [
            ("folder", "Directory", "directory"),
            ("file", "File", "file"),
            ("socket", "Socket", "socket file"),
            ("char", "CharDevice", "character device"),
            ("block", "BlockDevice", "block device"),
        ];
        for (name, own, _) in kinds {
            for (_, kind, words) in kinds {
                let source = json!({"path": at(name), "type": kind});
                let source =
                    VolumeLocation::Host(serde_json::from_value(source).unwrap(), Right::Listed);
                let placed = place(&machine, &source, None, true);
                if kind == own {
                    assert!(placed.is_ok(), "{name} as {kind}");
                } else {
                    let text = format!(
                        "hostPath type check failed: {} is not a {words}",
                        at(name).display()
                    );
                    assert_eq!(placed.unwrap_err(), text);
                }
            }
        }
    }

    #[test]
    fn the_agents_own_folders_are_given_to_nobody_even_if_they_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = machine(dir.path());
        let path = dir.path().display().to_string().parse().unwrap();
        machine.host_paths = vec![host_path::HostPath {
            path,
            writable: true,
        }];
        for path in [dir.path(), &machine.data, &machine.run.join("held")] {
            let source = VolumeLocation::Host(
                serde_json::from_value(json!({"path": path})).unwrap(),
                Right::Listed,
            );
            assert!(
                place(&machine, &source, None, true).is_err(),
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
            let machine = Machine {
                privileged: allowed,
                ..machine(dir.path())
            };
            host_path_fault(
                &machine,
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
