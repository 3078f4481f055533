//! Names of drivers, and where drivers and their volumes are below the folder of the machine's
//! volumes (upstream's places). Pure.

use sha2::{Digest, Sha256};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The folder in which drivers register, by a socket each.
pub(crate) const REGISTRATION: &str = "plugins_registry";
/// Where drivers have their own sockets.
const PLUGINS: &str = "plugins";
/// Longest name of a driver (CSI specification).
const LONGEST_NAME: usize = 63;
/// Longest path of a Unix socket, in bytes.
const MAX_SOCKET: usize = 107;

/// Where a machine's drivers and volumes are, and whether it has any.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// The folder of the machine's volumes, in which drivers look for their own:
    /// `/var/lib/kubelet`.
    pub data: PathBuf,
    /// The name of the Node.
    pub node: String,
    /// Whether its configuration allows privileged pods, as a driver is one.
    pub allowed: bool,
    /// How long a driver may take over a call; [`DriverOptions::CALL_LIMIT`] on a machine.
    pub call_limit: Duration,
}

impl DriverOptions {
    /// Upstream's limit of a driver's calls.
    pub const CALL_LIMIT: Duration = Duration::from_secs(120);
}

/// Whether a text is a driver's name (CSI specification, `GetPluginInfoResponse`). Such a name can
/// also be a file's.
pub(crate) fn is_name(name: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let (first, last) = (name.bytes().next(), name.bytes().next_back());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    name.len() <= LONGEST_NAME && edge(first) && edge(last) && name.bytes().all(plain)
}

/// Whether a name of a pod, a volume or a secret can be a file's name and a part of a path of the
/// API.
pub(crate) fn is_plain(name: &str) -> bool {
    config_kube::local_volume::is_name(name)
}

/// A target of a volume: the pod's uid, and the volume's name there.
pub(crate) fn target(uid: &str, name: &str) -> String {
    format!("{uid}/{name}")
}

/// The pod of a target, if it is one.
pub(crate) fn pod_of(target: &str) -> Option<&str> {
    let (uid, name) = target.split_once('/')?;
    (is_plain(uid) && is_plain(name)).then_some(uid)
}

/// The folder of a target: in it the driver mounts the volume as [`MOUNT`].
pub(crate) fn target_folder(target: &str) -> Option<PathBuf> {
    pod_of(target)?;
    let (uid, name) = target.split_once('/')?;
    let pod = Path::new("pods").join(uid);
    Some(pod.join("volumes/kubernetes.io~csi").join(name))
}

/// The target whose volume is published at a path below the folder of the machine's volumes.
pub(crate) fn target_at(path: &Path) -> Option<String> {
    let folder = path.parent()?;
    let name = folder.file_name()?.to_str()?;
    let uid = path.components().nth(1)?.as_os_str().to_str()?;
    let target = target(uid, name);
    (target_folder(&target)?.join(MOUNT) == path).then_some(target)
}

/// What a published volume is called in the folder of its target.
pub(crate) const MOUNT: &str = "mount";

/// The folder in which a volume is staged as [`STAGED`].
pub(crate) fn stage_folder(driver: &str, handle: &str) -> PathBuf {
    let drivers = Path::new(PLUGINS).join("kubernetes.io/csi");
    let handle = hex::encode(Sha256::digest(handle.as_bytes()));
    drivers.join(driver).join(handle)
}

/// What a staged volume is called in its folder.
pub(crate) const STAGED: &str = "globalmount";

/// The driver's own socket, below the folder of the machine's volumes, as its registration tells
/// it.
///
/// # Errors
/// It is not where a driver's socket may be.
pub(crate) fn endpoint(data: &Path, claimed: &str, registration: &Path) -> Result<PathBuf, String> {
    if claimed.is_empty() {
        return Ok(registration.to_owned());
    }
    let path = Path::new(claimed);
    let below = path.strip_prefix(data).ok().filter(|below| {
        let plain = below
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        plain && (below.starts_with(PLUGINS) || below.starts_with(REGISTRATION))
    });
    let below = below.filter(|_| claimed.len() <= MAX_SOCKET);
    below.map(Path::to_owned).ok_or_else(|| {
        let folder = data.join(PLUGINS);
        format!("its socket must be below {}", folder.display())
    })
}

/// Whether a version of the interface is one that the node speaks.
pub(crate) fn is_spoken(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    let mut parts = version.split('.');
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.next() == Some("1") && parts.all(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_has_the_name_that_the_specification_allows() {
        for name in ["csi.example.com", "a", "A_b-c.d", &"x".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "-a",
            "a-",
            "a b",
            "é",
            &"x".repeat(64),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_socket_is_below_the_folder_of_plugins() {
        let data = Path::new("/var/lib/kubelet");
        let own = Path::new("plugins_registry/d-reg.sock");
        let found = |claimed: &str| endpoint(data, claimed, own);
        assert_eq!(
            found("/var/lib/kubelet/plugins/d/csi.sock"),
            Ok("plugins/d/csi.sock".into())
        );
        assert_eq!(found(""), Ok(own.into()));
        for claimed in [
            "/run/containerd/containerd.sock",
            "/var/lib/kubelet/plugins/../../../../run/x",
            "/var/lib/kubelet/pods/u/csi.sock",
            "plugins/d/csi.sock",
            &format!("/var/lib/kubelet/plugins/{}", "x".repeat(100)),
        ] {
            assert!(
                found(claimed)
                    .unwrap_err()
                    .contains("/var/lib/kubelet/plugins")
            );
        }
    }

    #[test]
    fn versions_of_the_first_interface_are_spoken() {
        for version in ["1", "1.0.0", "v1.9.0", "1.12"] {
            assert!(is_spoken(version), "{version}");
        }
        for version in ["0.3.0", "2.0.0", "10.0", "", "1.x", "1."] {
            assert!(!is_spoken(version), "{version}");
        }
    }

    #[test]
    fn targets_lead_into_the_folder_of_their_pod_and_nowhere_else() {
        let folder = target_folder(&target("u", "pv")).unwrap();
        assert_eq!(folder, Path::new("pods/u/volumes/kubernetes.io~csi/pv"));
        assert_eq!(target_at(&folder.join(MOUNT)).as_deref(), Some("u/pv"));
        for path in ["mount", "pods/u/mount", "pods/u/volumes/x/pv/mount", "/etc"] {
            assert_eq!(target_at(Path::new(path)), None, "{path}");
        }
        assert_eq!(target_at(&folder), None);
        for target in ["../x", "u/..", "u", "u/a/b", "/etc"] {
            assert_eq!(target_folder(target), None, "{target}");
        }
        let stage = stage_folder("d.example", "../../h");
        assert!(stage.starts_with("plugins/kubernetes.io/csi/d.example"));
        assert_eq!(stage.components().count(), 5);
    }
}
