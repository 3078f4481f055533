//! Computes the mounts of a container, in the order in which the runtime makes them.

use crate::model::{ContainerSpec, Mount};
use crate::root;
use serde_json::{Value, json};

/// All mounts: the kernel's views, volumes, the container's own `/dev`, then the volumes in it.
///
/// The runtime follows links on the path of a mount, within the container's root, and a pod
/// controls the links in its volumes. In `/dev` the runtime makes files while it still sees the
/// machine's: a link there would lead it to a file of the machine. So `/dev` is mounted over
/// anything that a link has placed there, and later mounts are below it by name and pass no link
/// ([`root::check_volumes`]).
pub(super) fn mounts(spec: &ContainerSpec) -> Vec<Value> {
    let (in_dev, others): (Vec<&Mount>, Vec<&Mount>) = spec
        .mounts
        .iter()
        .partition(|mount| root::is_in_dev(&mount.destination));
    let others = others.into_iter().map(volume);
    let in_dev = in_dev.into_iter().map(volume);
    views(spec)
        .into_iter()
        .chain(others)
        .chain(dev(spec))
        .chain(in_dev)
        .collect()
}

/// The kernel's file systems of processes, devices and control groups.
fn views(spec: &ContainerSpec) -> [Value; 3] {
    // With `hostPID`, a container sees only processes that it may trace: those without more rights
    // than its own, and none of the machine's (proc(5), hidepid).
    let hide: &[&str] = if spec.shared.pid && !spec.privileged {
        &["hidepid=ptraceable"]
    } else {
        &[]
    };
    let proc = [&["nosuid", "noexec", "nodev"], hide].concat();
    let access = if spec.privileged { "rw" } else { "ro" };
    let groups = ["nosuid", "noexec", "nodev", "relatime", access];
    [
        system("/proc", "proc", &proc),
        system("/sys", "sysfs", &["nosuid", "noexec", "nodev", access]),
        system("/sys/fs/cgroup", "cgroup", &groups),
    ]
}

/// The container's own `/dev`, and the mounts in it.
fn dev(spec: &ContainerSpec) -> [Value; 4] {
    let shm = match &spec.pod.shm {
        Some(path) => json!({
            "destination": "/dev/shm",
            "type": "bind",
            "source": path,
            "options": ["rbind", "rprivate", "nosuid", "noexec", "nodev"],
        }),
        None => system(
            "/dev/shm",
            "tmpfs",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        ),
    };
    [
        system(
            "/dev",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        system(
            "/dev/pts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
                agent_confine::TERMINALS,
            ],
        ),
        shm,
        system("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ]
}

fn system(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": kind, "options": options})
}

fn volume(mount: &Mount) -> Value {
    let access = if mount.read_only { "ro" } else { "rw" };
    let sides = mount.propagation.option();
    let mut options = vec!["rbind", sides, "nosuid", "nodev", access];
    options.extend(mount.no_exec.then_some("noexec"));
    json!({
        "destination": mount.destination,
        "type": "bind",
        "source": mount.source,
        "options": options,
    })
}
