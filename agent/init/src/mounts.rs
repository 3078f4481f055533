//! The mount table, as data.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use agent_sys::Result;
use agent_sys::mount::{Limits, is_mount_point, mount};

/// A filesystem without a device.
#[derive(Debug)]
pub struct Virtual {
    /// The mount point; the directory is made if its parent is writable.
    pub target: &'static str,
    /// The kernel's name of it.
    pub kind: &'static str,
    /// Restrictions.
    pub limits: Limits,
    /// Its own options.
    pub options: &'static str,
    /// Whether the machine can run without it.
    pub optional: bool,
}

const SAFE: Limits = Limits {
    read_only: false,
    no_suid: true,
    no_dev: true,
    no_exec: true,
};
const DEVICES: Limits = Limits {
    read_only: false,
    no_suid: true,
    no_dev: false,
    no_exec: true,
};
const FROZEN: Limits = Limits {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: true,
};

const fn needed(
    target: &'static str,
    kind: &'static str,
    limits: Limits,
    options: &'static str,
) -> Virtual {
    Virtual {
        target,
        kind,
        limits,
        options,
        optional: false,
    }
}

/// The machine can run without it.
const fn optional(mut entry: Virtual) -> Virtual {
    entry.optional = true;
    entry
}

/// Mounts that both stages need; the first stage makes them and moves them to the root.
pub const EARLY: [Virtual; 4] = [
    needed("/proc", "proc", SAFE, ""),
    needed("/sys", "sysfs", SAFE, ""),
    needed("/dev", "devtmpfs", DEVICES, "mode=755"),
    needed("/run", "tmpfs", SAFE, "mode=755,size=20%"),
];

/// Mounts that the second stage adds. No writable file system can execute: containers' root
/// filesystems, which lie below `/run`, are mounts of their own, with limits of their own.
pub const LATE: [Virtual; 7] = [
    needed("/tmp", "tmpfs", SAFE, "mode=1777,size=10%"),
    needed("/dev/pts", "devpts", DEVICES, "mode=620,gid=5,ptmxmode=666"),
    needed("/dev/shm", "tmpfs", SAFE, "mode=1777,size=10%"),
    needed(
        "/sys/fs/cgroup",
        "cgroup2",
        SAFE,
        // `favordynmods`: without it each start of a container and each command waits for a grace
        // period of the kernel, 6 to 11 ms, before its process can be moved. With it a fork costs
        // two memory barriers more.
        "nsdelegate,memory_recursiveprot,favordynmods",
    ),
    needed("/sys/kernel/security", "securityfs", SAFE, ""),
    optional(needed("/sys/firmware/efi/efivars", "efivarfs", FROZEN, "")),
    optional(needed("/sys/fs/bpf", "bpf", SAFE, "mode=700")),
];

/// Mounts a table in its order, leaving alone what is mounted already.
///
/// # Errors
/// A mount that is not optional is refused.
pub fn apply(table: &[Virtual]) -> Result<()> {
    for entry in table.iter().filter(|entry| !is_mount_point(entry.target)) {
        // If the directory can't be made, the mount fails with the reason.
        drop(fs::create_dir_all(entry.target));
        match mount(
            entry.kind,
            entry.target,
            entry.kind,
            entry.limits,
            entry.options,
        ) {
            Err(cause) if !entry.optional => return Err(cause),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Makes a directory with `mode`, whether or not it was there.
///
/// # Errors
/// It cannot be made, or its mode cannot be set.
pub fn directory(path: &str, mode: u32) -> Result<()> {
    let result = fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    result.map_err(|cause| agent_sys::Error::new("make directory", path, cause))
}

#[cfg(test)]
mod tests {
    use super::{EARLY, LATE};

    #[test]
    fn nothing_but_dev_and_pts_honours_device_nodes_and_nothing_set_user_ids() {
        for entry in EARLY.iter().chain(&LATE) {
            assert!(entry.limits.no_suid, "{}", entry.target);
            assert!(
                entry.limits.no_dev || entry.target.starts_with("/dev"),
                "{}",
                entry.target
            );
        }
    }

    #[test]
    fn no_writable_mount_can_execute() {
        assert!(EARLY.iter().chain(&LATE).all(|entry| entry.limits.no_exec));
    }

    #[test]
    fn a_parent_is_mounted_before_its_children() {
        let all: Vec<&str> = EARLY
            .iter()
            .chain(&LATE)
            .map(|entry| entry.target)
            .collect();
        for (at, target) in all.iter().enumerate() {
            let later_parent = all[at..]
                .iter()
                .any(|other| target.starts_with(&format!("{other}/")));
            assert!(!later_parent, "{target}");
        }
    }

    #[test]
    fn memory_filesystems_are_bounded() {
        assert!(
            EARLY
                .iter()
                .chain(&LATE)
                .filter(|e| e.kind == "tmpfs")
                .all(|e| e.options.contains("size="))
        );
    }
}
