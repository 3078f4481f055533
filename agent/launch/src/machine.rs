//! What of the machine containers depend on: the agent's folders, and what its configuration lets
//! pods use.

use agent_claims::HostPaths;
use config_model::host_path::HostPath;
use config_model::sysctl::Sysctls;
use std::path::PathBuf;

/// The agent's folders, and what the machine's configuration lets pods use.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Pods' volumes and files: `/var/lib/kubelet`.
    pub data: PathBuf,
    /// What lives as long as the boot, and no pod can reach: the content of volumes, and mounts on
    /// their way to containers: `/run/pratique/kubelet`.
    pub run: PathBuf,
    /// Pods' logs: `/var/log/pods`.
    pub logs: PathBuf,
    /// What of the machine's own files pods may mount, as its configuration lists it.
    pub host_paths: Vec<HostPath>,
    /// Whether containers may be privileged.
    pub privileged: bool,
    /// Most processes and threads of a container.
    pub pids: u32,
    /// Kernel settings that pods may choose beside the safe ones.
    pub unsafe_sysctls: Vec<Sysctls>,
    /// Name servers for pods with `dnsPolicy: Default`: the machine's own file.
    pub resolv_conf: PathBuf,
    /// The machine's hosts file, which pods in the host's network see.
    pub hosts: PathBuf,
}

impl Machine {
    /// Where a pod's volumes on the disk are in its own folder, each by its name.
    pub const EMPTY_DIRS: &'static str = "volumes/empty-dir";
    /// Where the records of this boot's evictions are below [`Self::run`], each in a folder by its
    /// pod's UID.
    pub const EVICTIONS: &'static str = "evictions";

    /// Links to pods' logs: `/var/log/containers`.
    pub fn log_links(&self) -> PathBuf {
        self.logs.with_file_name("containers")
    }

    /// The pod's own folder: volumes, files, termination messages.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.data.join("pods").join(uid)
    }

    /// Where the mounts of a container wait for the engine.
    pub fn stage_dir(&self, id: &str) -> PathBuf {
        self.run.join("mounts").join(id)
    }

    /// The content of a pod's config maps, secrets and tokens, in memory.
    pub fn held_dir(&self, uid: &str) -> PathBuf {
        self.run.join("held").join(uid)
    }

    /// The images that the pod's volumes show.
    pub fn images_dir(&self, uid: &str) -> PathBuf {
        self.run.join("images").join(uid)
    }

    /// The pod's volumes in memory.
    pub fn memory_dir(&self, uid: &str) -> PathBuf {
        self.run.join("memory").join(uid)
    }

    /// The record of the pod's eviction in memory, where neither a full nor a busy disk keeps it
    /// from being written.
    pub fn eviction_dir(&self, uid: &str) -> PathBuf {
        self.run.join(Self::EVICTIONS).join(uid)
    }

    /// The folders in which each pod with volumes or files has one by its UID.
    pub fn folders_of_pods(&self) -> [PathBuf; 4] {
        let of_boot = ["held", "memory", "images"].map(|name| self.run.join(name));
        let [held, memory, images] = of_boot;
        [self.data.join("pods"), held, memory, images]
    }

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
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    /// What is mounted at a path as long as a test runs, also where it fails.
    #[derive(Debug)]
    pub(crate) struct MountGuard(pub(crate) PathBuf);

    impl Drop for MountGuard {
        fn drop(&mut self) {
            agent_sys::mount::detach(&self.0.to_string_lossy()).ok();
        }
    }

    /// A machine whose folders all lie in `dir`.
    pub(crate) fn machine(dir: &Path) -> Machine {
        let path = |path: &str, writable| HostPath {
            path: path.parse().unwrap(),
            writable,
        };
        Machine {
            data: dir.join("data"),
            run: dir.join("run"),
            logs: dir.join("logs"),
            host_paths: vec![path("/listed/read", false), path("/listed/write", true)],
            privileged: false,
            pids: 100,
            unsafe_sysctls: Vec::new(),
            resolv_conf: dir.join("resolv"),
            hosts: dir.join("hosts"),
        }
    }
}
