//! What a container may not do: capabilities, system calls and paths of the kernel.

use crate::model::Capabilities;
use serde_json::{Value, json};

/// Capabilities that a container has by default, the set that Kubernetes documents.
const DEFAULT: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// All capabilities of Linux 6.12, in the order of their numbers (capability.h).
const ALL: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Capabilities by which a container could reach the machine's own memory, modules or devices, and so its
/// TPM identity; they are never given.
const NEVER: [&str; 4] = ["SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "MAC_ADMIN"];

/// Hidden: facts of the machine that a container has no use for, and the TPM's entries in sysfs.
pub(crate) const MASKED: [&str; 14] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/class/tpm",
    "/sys/class/tpmrm",
    "/sys/kernel/security",
];

/// Readable, and not to be written.
pub(crate) const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// System calls that act on the machine as a whole, on other containers, or on kernel interfaces with a long
/// record of escapes. They answer EPERM, whatever capabilities the container has.
const REFUSED: &[&str] = &[
    "_sysctl",
    "acct",
    "add_key",
    "adjtimex",
    "bpf",
    "clock_adjtime",
    "clock_adjtime64",
    "clock_settime",
    "clock_settime64",
    "create_module",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "vhangup",
];

/// Flags of `clone` that make namespaces (sched.h, `CLONE_NEW…`).
const CLONE_NEW: u64 = 0x7e02_0000;

/// The default system call filter: everything is allowed but [`REFUSED`], and `clone` with new namespaces.
///
/// Assumption: runc's libseccomp ignores names that its kernel doesn't know. `clone3` answers ENOSYS, since its
/// flags can't be seen; the C library then uses `clone`.
pub(crate) fn seccomp() -> Value {
    let mut rules = vec![
        json!({"names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}),
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}),
    ];
    rules.extend(clone_refusals());
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    })
}

/// One rule for each flag: a masked comparison can ask for "this bit is set", not for "any of these".
fn clone_refusals() -> impl Iterator<Item = Value> {
    (0..64).map(|bit| 1_u64 << bit).filter(|flag| CLONE_NEW & flag != 0).map(|flag| {
        let set = json!({"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"});
        json!({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [set]})
    })
}

/// The capabilities of a container, sorted, with their prefix; none beyond `available`, a set of bits.
pub(crate) fn capabilities(wanted: &Capabilities, available: u64) -> Vec<String> {
    let named = |list: &[String], name: &str| {
        list.iter().any(|entry| {
            let entry = entry.to_ascii_uppercase();
            entry == "ALL" || entry.strip_prefix("CAP_").unwrap_or(&entry) == name
        })
    };
    let mut all: Vec<String> = ALL
        .into_iter()
        .enumerate()
        .filter(|(number, _)| available & (1 << number) != 0)
        .map(|(_, name)| name)
        .filter(|name| named(&wanted.add, name) || (DEFAULT.contains(name) && !named(&wanted.drop, name)))
        .filter(|name| !NEVER.contains(name))
        .map(|name| format!("CAP_{name}"))
        .collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(add: &[&str], drop: &[&str]) -> Vec<String> {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        capabilities(&Capabilities { add: list(add), drop: list(drop) }, u64::MAX)
    }

    #[test]
    fn the_default_is_the_documented_set() {
        assert_eq!(with(&[], &[]).len(), DEFAULT.len());
    }

    #[test]
    fn drop_all_and_add_one_leaves_one() {
        assert_eq!(with(&["NET_BIND_SERVICE"], &["ALL"]), ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(with(&["cap_net_admin"], &["all"]), ["CAP_NET_ADMIN"]);
    }

    #[test]
    fn what_reaches_the_machine_is_never_given() {
        let all = with(&["ALL"], &[]);
        assert_eq!(all.len(), ALL.len() - NEVER.len());
        assert!(!all.contains(&"CAP_SYS_RAWIO".to_owned()));
    }

    #[test]
    fn only_what_is_there_is_given() {
        assert_eq!(capabilities(&Capabilities::default(), 0b11), ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]);
    }

    #[test]
    fn each_flag_of_a_new_namespace_has_its_own_rule() {
        assert_eq!(clone_refusals().count(), 7, "mount, cgroup, uts, ipc, user, pid, net");
    }
}
