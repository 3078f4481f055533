//! containerd's configuration, for machines and for the tests that run it on a host.

use crate::programs::NO_PLUGINS;

/// Where the configuration is in an image.
pub const PATH: &str = "/etc/containerd/config.toml";

/// containerd's folders and its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places<'a> {
    /// Images, snapshots and its database; on a machine they are on the state partition.
    pub root: &'a str,
    /// Data that is lost with a reboot.
    pub state: &'a str,
    /// Its socket.
    pub socket: &'a str,
}

/// The paths on a machine.
pub const MACHINE: Places<'static> = Places {
    root: "/var/lib/containerd",
    state: "/run/containerd",
    socket: "/run/containerd/containerd.sock",
};

/// Open files of containerd, soft and hard limit: it has some for each container, and one for each
/// level of a folder that it removes. No process may have more (`fs/nr_open`).
pub const OPEN_FILES: u64 = 1_048_576;

/// Plugins that a machine doesn't need: the CRI (the agent speaks the native API), snapshotters of
/// other file systems, restarts of its own, tracing; and `opt`, which puts a folder below the root
/// before `PATH` and `LD_LIBRARY_PATH`.
const DISABLED: [&str; 12] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.internal.v1.tracing",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.native",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
];

/// Files of a removed layer are deleted later, by containerd's garbage collector, while it holds no
/// lock (`Remove` and `Cleanup` of its overlay snapshotter). This is the default, and is written
/// out because pods depend on it: with `sync_remove = true` the deletion of a layer with millions
/// of files holds the lock of all snapshots, for which every start and end of a container waits.
const LAYERS: &str =
    "[plugins.\"io.containerd.snapshotter.v1.overlayfs\"]\n  sync_remove = false\n";

/// The configuration (containerd 1.7, version 2 of the format).
///
/// Guarantees: nothing that containerd executes or loads comes from below its root, which an
/// attacker with the machine's disk can write. By default it looks for plugins there; here it looks
/// in a folder that never exists. Only warnings and errors are logged: a serial console is slow.
pub fn configuration(places: Places<'_>) -> String {
    let Places {
        root,
        state,
        socket,
    } = places;
    let disabled = DISABLED.map(|plugin| format!("  \"{plugin}\"")).join(",\n");
    format!(
        "version = 2\nroot = \"{root}\"\nstate = \"{state}\"\nplugin_dir = \"{NO_PLUGINS}\"\n\
         disabled_plugins = [\n{disabled},\n]\n\n[debug]\n  level = \"warn\"\n\n[grpc]\n  address = \"{socket}\"\n\n{LAYERS}"
    )
}

#[cfg(test)]
mod tests {
    use super::{MACHINE, OPEN_FILES, configuration};
    use crate::kernel::SYSCTLS;
    use crate::programs::{CRUN, NO_PLUGINS, RUNTIME, SEARCH_PATH, SHIM};
    use crate::specification;

    #[test]
    fn specifications_of_containers_lie_in_memory() {
        // The shim and the runtime copy them to below `state`.
        for path in [specification::FOLDER, MACHINE.state] {
            assert!(path.starts_with("/run/"), "{path}");
        }
    }

    #[test]
    fn containerd_has_as_many_open_files_as_the_kernel_gives_a_process() {
        let most = SYSCTLS.iter().find(|setting| setting.path == "fs/nr_open");
        assert_eq!(most.unwrap().value, OPEN_FILES.to_string());
    }

    #[test]
    fn files_of_layers_are_removed_while_containerd_holds_no_lock() {
        let text = configuration(MACHINE);
        let own = "\n[plugins.\"io.containerd.snapshotter.v1.overlayfs\"]\n  sync_remove = false\n";
        assert!(text.ends_with(own), "{text}");
    }

    #[test]
    fn nothing_of_the_state_is_executed_or_loaded() {
        let text = configuration(MACHINE);
        assert!(
            text.contains("  \"io.containerd.internal.v1.opt\",\n"),
            "{text}"
        );
        assert!(
            text.contains(&format!("\nplugin_dir = \"{NO_PLUGINS}\"\n")),
            "{text}"
        );
        // Its only path on the state partition is its root; the others are on the read-only root or
        // in memory.
        assert_eq!(text.matches("/var/").count(), 1, "{text}");
        let read_only = |path: &str| path.starts_with("/usr/");
        assert!(
            [NO_PLUGINS, SHIM, RUNTIME, CRUN]
                .into_iter()
                .chain(SEARCH_PATH.split(':'))
                .all(read_only)
        );
        assert!(
            SEARCH_PATH
                .split(':')
                .any(|folder| SHIM.starts_with(folder))
        );
    }
}
