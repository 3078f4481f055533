//! Files and folders of the machine that pods may mount: those that its configuration lists, and
//! for plug-ins the folder of the machine's volumes.

use agent_sys::beneath::{Beneath, Links, PathHandle};
use config_kube::k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod};
use config_model::host_path::{self, HostPath, PlainPath, Refused};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Why a pod may mount a path of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// The machine's configuration lists it.
    Listed,
    /// The pod runs a plug-in, such as a CSI driver: the configuration allows its author to be root
    /// on the machine.
    PlugIn,
}

/// The paths that pods may mount, and the agent's own folders, which they may not.
#[derive(Debug, Clone, Copy)]
pub struct HostPaths<'a> {
    /// What the configuration lists.
    pub listed: &'a [HostPath],
    /// The folder of the machine's volumes, which plug-ins may mount.
    pub data: &'a Path,
    /// What the agent keeps for the boot.
    pub run: &'a Path,
    /// Pods' logs, which pods may read where they are listed.
    pub logs: &'a Path,
}

impl HostPaths<'_> {
    /// Opens and checks a file or folder of the machine. If it is missing, it is made if the
    /// volume's type asks for that; without a type, a folder is made if pods may write there, as
    /// upstream's container runtimes do.
    ///
    /// # Errors
    /// Why the pod does not get it.
    pub fn place(
        &self,
        source: &HostPathVolumeSource,
        right: Right,
        read_only: bool,
        sub_path: Option<&Path>,
    ) -> Result<PathHandle, String> {
        let kind = source.type_.as_deref().unwrap_or_default();
        let fault = |error: io::Error| {
            let linked = error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32);
            let why = if linked {
                "a link is on the way, and none is followed".to_owned()
            } else {
                error.to_string()
            };
            format!("hostPath {}: {why}", source.path)
        };
        let wanted = words_of(kind)?;
        let is_other = || {
            let path = &source.path;
            format!("hostPath type check failed: {path} is not a {wanted}")
        };
        let path = trimmed(&source.path);
        let allowed = |writable| {
            self.allowed(path, right, writable)
                .map_err(|refused| refused_text(path, refused))
        };
        allowed(!read_only)?;
        let root = Beneath::root(Path::new("/")).map_err(fault)?;
        let below = Path::new(path.trim_start_matches('/'));
        let place = match root.handle(below, Links::Refused) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match kind {
                    "FileOrCreate" => {
                        allowed(true)?;
                        root.append(below, 0o644).map_err(fault)?;
                    }
                    "DirectoryOrCreate" => {
                        allowed(true)?;
                        root.make_dirs(below, 0o755).map_err(fault)?;
                    }
                    "" if allowed(true).is_ok() => {
                        root.make_dirs(below, 0o755).map_err(fault)?;
                    }
                    "" => return Err(fault(error)),
                    _ => return Err(is_other()),
                }
                root.handle(below, Links::Refused)
            }
            found => found,
        };
        let place = place.map_err(fault)?;
        if !is_of(kind, &place) {
            return Err(is_other());
        }
        match sub_path {
            Some(sub_path) => {
                let dir = root.dir(below).map_err(fault)?;
                sub_path_handle(&dir, sub_path, !read_only).map_err(fault)
            }
            None => Ok(place),
        }
    }

    /// Whether pods may write at a path that they may read. Where they may not, a mount is
    /// read-only whatever it asks for: most pods that leave `readOnly` out never write.
    pub fn is_writable(&self, source: &HostPathVolumeSource, right: Right) -> bool {
        self.allowed(trimmed(&source.path), right, true).is_ok()
    }

    /// The volumes that a pod gets read-only although one of its mounts does not ask for that.
    pub fn narrowed(&self, pod: &Pod, right: Right) -> Vec<String> {
        let spec = || pod.spec.iter();
        let lasting = spec().flat_map(|spec| {
            let inits = spec.init_containers.iter().flatten();
            spec.containers.iter().chain(inits)
        });
        let mounts = lasting.flat_map(|container| container.volume_mounts.iter().flatten());
        let writing = mounts.filter(|mount| mount.read_only != Some(true));
        let writing: BTreeSet<&str> = writing.map(|mount| mount.name.as_str()).collect();
        let volumes = spec().flat_map(|spec| spec.volumes.iter().flatten());
        let all = volumes.filter(|volume| {
            let source = volume.host_path.as_ref();
            source.is_some_and(|source| !self.is_writable(source, right))
                && writing.contains(volume.name.as_str())
        });
        all.map(|volume| volume.name.clone()).collect()
    }

    /// Why the node doesn't give the pod a path of the machine, if it asks for one that it doesn't
    /// get.
    pub fn fault(&self, pod: &Pod, right: Right) -> Option<String> {
        let spec = pod.spec.as_ref()?;
        spec.volumes.iter().flatten().find_map(|volume| {
            let path = trimmed(&volume.host_path.as_ref()?.path);
            let refused = self.allowed(path, right, false).err()?;
            Some(format!(
                "volume {}: {}",
                volume.name,
                refused_text(path, refused)
            ))
        })
    }

    /// Whether the machine's configuration lets pods mount a path. The agent's own folders are
    /// never allowed, wherever they are, except the folder of the machine's volumes, which plug-ins
    /// get.
    fn allowed(&self, path: &str, right: Right, writable: bool) -> Result<(), Refused> {
        if right == Right::PlugIn
            && path.parse::<PlainPath>().is_ok()
            && Path::new(path).starts_with(self.data)
        {
            return Ok(());
        }
        let own = [self.data, self.run, self.logs];
        if writable
            && own
                .iter()
                .any(|own| own.starts_with(path) || Path::new(path).starts_with(own))
        {
            return Err(Refused::ReadOnly);
        }
        if own[..2]
            .iter()
            .any(|own| own.starts_with(path) || Path::new(path).starts_with(own))
        {
            return Err(Refused::Unlisted);
        }
        host_path::allows(self.listed, path, writable)
    }
}

/// What a type asks for, in upstream's words; empty for no type.
fn words_of(kind: &str) -> Result<&'static str, String> {
    Ok(match kind {
        "" => "",
        "Directory" | "DirectoryOrCreate" => "directory",
        "File" | "FileOrCreate" => "file",
        "Socket" => "socket file",
        "CharDevice" => "character device",
        "BlockDevice" => "block device",
        _ => return Err(format!("hostPath type {kind} is unknown")),
    })
}

/// Whether what is at a place has the volume's type. Devices can be mounted, but not opened: all
/// mounts of volumes are nodev.
fn is_of(kind: &str, place: &PathHandle) -> bool {
    match kind {
        "Directory" | "DirectoryOrCreate" => place.is_dir(),
        "File" | "FileOrCreate" => place.is_file(),
        "Socket" => place.is_socket(),
        "CharDevice" => place.is_char_device(),
        "BlockDevice" => place.is_block_device(),
        _ => true,
    }
}

/// Opens a path below a folder. With `make`, missing folders are made, with the mode of the first.
///
/// # Errors
/// It isn't there and can't be made, or a link is on the way.
pub fn sub_path_handle(dir: &Beneath, path: &Path, make: bool) -> io::Result<PathHandle> {
    match dir.handle(path, Links::Refused) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && make => {}
        found => return found,
    }
    let own = dir.handle(Path::new(""), Links::Refused)?;
    dir.make_dirs(path, own.mode())?;
    dir.handle(path, Links::Refused)
}

/// The path as configurations write it.
fn trimmed(path: &str) -> &str {
    if path == "/" {
        path
    } else {
        path.trim_end_matches('/')
    }
}

fn refused_text(path: &str, refused: Refused) -> String {
    if path.parse::<PlainPath>().is_err() {
        return format!(
            "hostPath {path} is not allowed on any node: it is no absolute path without `.`, `..` and `//`"
        );
    }
    let (own, which) = match refused {
        Refused::Unlisted => (met(path, &host_path::NEVER), "at all"),
        Refused::ReadOnly => (met(path, &host_path::NEVER_WRITABLE), "for writing"),
    };
    if let Some(own) = own {
        let why = if Path::new(own).starts_with(path) {
            "holds"
        } else {
            "lies in"
        };
        return format!(
            "hostPath {path} is not allowed {which} on any node, and no configuration can list it so: it is or {why} the machine's \
             {own}, by which a pod could act as the machine. Mount a folder that the machine has for its pods, such as \
             /var/lib/NAME, which `host_paths` under `[node]` lists, or an `emptyDir`"
        );
    }
    match refused {
        Refused::Unlisted => format!(
            "hostPath {path} is not allowed on this node: add it to `host_paths` under `[node]` in the machine's configuration"
        ),
        Refused::ReadOnly => format!(
            "hostPath {path} may only be mounted with readOnly: true on this node: `host_paths` under `[node]` in the \
             machine's configuration does not say `writable = true` for it"
        ),
    }
}

/// Which of these paths is this one, lies in it or holds it.
fn met<'a>(path: &str, list: &[&'a str]) -> Option<&'a str> {
    let path = Path::new(path);
    let mut list = list.iter().copied();
    list.find(|own| path.starts_with(own) || Path::new(own).starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_model::host_path::allows;

    #[test]
    fn a_mount_that_may_not_write_is_narrowed_and_what_may_not_be_read_is_refused() {
        let entry = |path: &str, writable| HostPath {
            path: path.parse().unwrap(),
            writable,
        };
        let listed = [entry("/srv/read", false), entry("/srv/write", true)];
        let paths = HostPaths {
            listed: &listed,
            data: Path::new("/var/lib/kubelet"),
            run: Path::new("/run/agent"),
            logs: Path::new("/srv/read/logs"),
        };
        let judged = |path: &str, mount: serde_json::Value| {
            let volumes = serde_json::json!([{"name": "v", "hostPath": {"path": path}}]);
            let container = serde_json::json!({"name": "c", "volumeMounts": [mount]});
            let spec = serde_json::json!({"containers": [container], "volumes": volumes});
            let pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
            let refused = paths.fault(&pod, Right::Listed).is_some();
            (paths.narrowed(&pod, Right::Listed), refused)
        };
        let write = serde_json::json!({"name": "v", "mountPath": "/v"});
        let read = serde_json::json!({"name": "v", "mountPath": "/v", "readOnly": true});
        let narrowed = vec!["v".to_owned()];
        assert_eq!(
            judged("/srv/read", write.clone()),
            (narrowed.clone(), false)
        );
        assert_eq!(judged("/srv/read/", read), (vec![], false));
        assert_eq!(judged("/srv/write/below", write.clone()), (vec![], false));
        let logs = judged("/srv/read/logs", write.clone());
        assert_eq!(logs, (narrowed, false), "the agent writes there");
        assert!(judged("/srv", write.clone()).1);
        assert!(judged("/run/agent", write).1);
    }

    #[test]
    fn what_is_missing_is_made_where_no_type_is_named_and_pods_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let entry = |name: &str, writable| HostPath {
            path: at(name).display().to_string().parse().unwrap(),
            writable,
        };
        let listed = [entry("read", false), entry("write", true)];
        let paths = HostPaths {
            listed: &listed,
            data: Path::new("/var/lib/kubelet"),
            run: Path::new("/run/agent"),
            logs: Path::new("/var/log/pods"),
        };
        let is_folder = |name: &str, kind: &str| {
            let source = HostPathVolumeSource {
                path: at(name).display().to_string(),
                type_: Some(kind.to_owned()),
            };
            let placed = paths.place(&source, Right::Listed, true, None);
            placed.map(|place| place.is_dir())
        };
        assert_eq!(is_folder("write/a/b", ""), Ok(true));
        assert!(at("write/a/b").is_dir());
        let error = is_folder("read/a", "").unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        for (kind, words) in [
            ("Directory", "directory"),
            ("File", "file"),
            ("Socket", "socket file"),
            ("CharDevice", "character device"),
            ("BlockDevice", "block device"),
        ] {
            let path = at("write/none");
            let path = path.display();
            let text = format!("hostPath type check failed: {path} is not a {words}");
            assert_eq!(is_folder("write/none", kind), Err(text));
        }
        assert!(!at("write/none").exists() && !at("read").exists());
    }

    /// What a configuration refuses is not recommended: each text names a cure that there is.
    #[test]
    fn a_path_that_no_configuration_can_list_is_refused_without_that_advice() {
        let listed = [HostPath {
            path: "/etc/ssl".parse().unwrap(),
            writable: false,
        }];
        let text = |path: &str, writable| {
            let refused = allows(&listed, path, writable).unwrap_err();
            refused_text(path, refused)
        };
        for (path, why) in [
            ("/", "holds the machine's /proc"),
            ("/var", "holds the machine's /var/run"),
            ("/proc", "is or holds the machine's /proc"),
            ("/run/secrets", "lies in the machine's /run"),
            (
                "/var/lib/kubelet/pods",
                "lies in the machine's /var/lib/kubelet",
            ),
        ] {
            let text = text(path, false);
            assert!(text.contains(why), "{text}");
            assert!(text.contains("not allowed at all on any node"), "{text}");
            assert!(!text.contains("add it"), "{text}");
        }
        let write = text("/etc/ssl", true);
        assert!(
            write.contains("not allowed for writing on any node"),
            "{write}"
        );
        assert!(!write.contains("`writable = true`"), "{write}");
        assert!(text("/srv", false).contains("add it to `host_paths`"));
        assert!(text("/srv/../proc", false).contains("no absolute path"));
    }
}
