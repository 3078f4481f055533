//! Capabilities: which a container has by default, which it may add, and which no pod spec can get.
//!
//! The table decides each capability of Linux 6.12 with its reason. Two questions decide: can its
//! holder reach the machine, its TPM, its kernel or another pod, from inside its own file system,
//! devices and control group? And can it leave something behind that outlives the pod? If the
//! answer to either is yes, it is [`Grant::Never`].
//!
//! The rest of this confinement depends on this table. A process of the machine (init, agent,
//! containerd) holds all capabilities, and the kernel denies access to a process that permits
//! capabilities which the tracer lacks (`cap_ptrace_access_check`): since no container holds all,
//! none reads or controls the machine's processes, not even with `hostPID`. And the BPF programs
//! that filter devices can be detached only with capabilities that are never granted.

use serde_json::{Value, json};

/// Capabilities beyond or below the default set, without the `CAP_` prefix; `ALL` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Added to the default set.
    pub add: Vec<String>,
    /// Removed from it, before the additions.
    pub drop: Vec<String>,
}

/// Whether a container has a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Unless it is dropped: the set that Kubernetes documents.
    Default,
    /// If the pod adds it, or `ALL`.
    OnRequest,
    /// Never, whatever the pod specifies; only a privileged container has it, on a machine whose
    /// configuration allows those.
    Never,
}

use Grant::{Default, Never, OnRequest};

/// All capabilities of Linux 6.12 in the order of their numbers (capability.h), each with the
/// reason for the decision.
pub(crate) const TABLE: [(&str, Grant, &str); 41] = [
    (
        "CHOWN",
        Default,
        "changes owners in its own file system and volumes",
    ),
    (
        "DAC_OVERRIDE",
        Default,
        "passes over permissions in its own file system and volumes",
    ),
    (
        "DAC_READ_SEARCH",
        Never,
        "opens files of the machine by their handles, outside of all mounts of the container",
    ),
    (
        "FOWNER",
        Default,
        "acts as the owner in its own file system and volumes",
    ),
    (
        "FSETID",
        Default,
        "keeps set-id bits in its own file system and volumes",
    ),
    ("KILL", Default, "signals processes whose ids it sees"),
    ("SETGID", Default, "programs drop to another group"),
    ("SETUID", Default, "programs drop to another user"),
    ("SETPCAP", Default, "programs drop capabilities"),
    (
        "LINUX_IMMUTABLE",
        Never,
        "makes files that the agent can't remove when the pod is gone",
    ),
    ("NET_BIND_SERVICE", Default, "listens on ports below 1024"),
    ("NET_BROADCAST", OnRequest, "the kernel asks for it nowhere"),
    (
        "NET_ADMIN",
        Never,
        "on the machine's network it rewrites addresses, routes and the packet filter; in a pod's own it opens the kernel's packet filter and traffic control, where most ways from a container to the kernel were found",
    ),
    (
        "NET_RAW",
        Default,
        "ping and the like; out of a pod's own network leave only packets with the pod's address",
    ),
    (
        "IPC_LOCK",
        OnRequest,
        "locks memory, which counts against the container's limit",
    ),
    (
        "IPC_OWNER",
        OnRequest,
        "passes over permissions of shared memory that it sees",
    ),
    ("SYS_MODULE", Never, "loads code into the kernel"),
    (
        "SYS_RAWIO",
        Never,
        "reads and writes ports, physical memory and device registers, the TPM's among them",
    ),
    ("SYS_CHROOT", Default, "programs confine themselves"),
    (
        "SYS_PTRACE",
        Never,
        "reads and controls processes with more rights, the agent's TPM connection among them; a debugger needs none for its own container's",
    ),
    (
        "SYS_PACCT",
        Never,
        "has the kernel write a record of every process of the machine",
    ),
    (
        "SYS_ADMIN",
        Never,
        "mounts file systems, enters other containers and the machine, and detaches the filter that keeps devices away",
    ),
    (
        "SYS_BOOT",
        Never,
        "reboots the machine or loads another kernel",
    ),
    (
        "SYS_NICE",
        OnRequest,
        "raises priorities within the container's share of processor and disks: the filter refuses the real-time classes, which pass over it",
    ),
    (
        "SYS_RESOURCE",
        Never,
        "passes over limits and what file systems keep for root, and keeps the kernel from ending it where memory is short, so that neighbours and the agent end",
    ),
    (
        "SYS_TIME",
        Never,
        "sets the machine's clock, by which agent and master judge certificates and tokens; the machine keeps its own time",
    ),
    (
        "SYS_TTY_CONFIG",
        Never,
        "acts on the machine's consoles; a container has none",
    ),
    (
        "MKNOD",
        Default,
        "makes device nodes, which open only where the device filter allows the device",
    ),
    (
        "LEASE",
        OnRequest,
        "takes leases on files that it can open, for seconds",
    ),
    ("AUDIT_WRITE", Default, "login programs write audit records"),
    ("AUDIT_CONTROL", Never, "turns the machine's audit off"),
    (
        "SETFCAP",
        Default,
        "installs programs with capabilities, none beyond its own",
    ),
    (
        "MAC_OVERRIDE",
        Never,
        "passes over the machine's mandatory access control",
    ),
    (
        "MAC_ADMIN",
        Never,
        "changes the machine's mandatory access control",
    ),
    (
        "SYSLOG",
        Never,
        "reads and clears the kernel's log and shows its addresses",
    ),
    (
        "WAKE_ALARM",
        OnRequest,
        "sets timers that wake a sleeping machine",
    ),
    ("BLOCK_SUSPEND", OnRequest, "keeps a machine from sleeping"),
    (
        "AUDIT_READ",
        Never,
        "reads the audit records of the whole machine",
    ),
    (
        "PERFMON",
        Never,
        "observes other processes and the kernel by performance counters",
    ),
    (
        "BPF",
        Never,
        "runs programs in the kernel, by which devices are kept away from containers and could be given to them",
    ),
    (
        "CHECKPOINT_RESTORE",
        Never,
        "opens the mapped files of processes and chooses process ids",
    ),
];

/// A capability's name without its prefix, in upper case.
fn plain(entry: &str) -> String {
    let entry = entry.to_ascii_uppercase();
    entry
        .strip_prefix("CAP_")
        .map_or_else(|| entry.clone(), str::to_owned)
}

fn names(list: &[String], name: &str) -> bool {
    list.iter()
        .map(|entry| plain(entry))
        .any(|entry| entry == "ALL" || entry == name)
}

/// Why a container that adds these capabilities can't be run: one of them is never granted, or does
/// not exist.
pub fn capability_fault(add: &[String]) -> Option<String> {
    add.iter()
        .map(|entry| plain(entry))
        .filter(|entry| entry != "ALL")
        .find_map(
            |entry| match TABLE.iter().find(|(name, ..)| *name == entry) {
                Some((_, Never, why)) => Some(format!(
                    "capability {entry} is never given to a container: it {why}"
                )),
                Some(_) => None,
                None => Some(format!("{entry:?} is no capability of Linux")),
            },
        )
}

/// The capabilities that `add: [ALL]` does not grant; empty if `add` has no `ALL`.
pub fn withheld(add: &[String]) -> Vec<&'static str> {
    let all = add.iter().any(|entry| plain(entry) == "ALL");
    TABLE
        .iter()
        .filter(|(_, grant, _)| all && *grant == Never)
        .map(|(name, ..)| *name)
        .collect()
}

/// The capabilities of a container, sorted, with their prefix; only those in `available`, a set of
/// bits. A privileged container has all available ones.
pub fn capabilities(wanted: &Capabilities, privileged: bool, available: u64) -> Vec<String> {
    let mut all: Vec<String> = TABLE
        .iter()
        .enumerate()
        .filter(|(number, _)| available & (1 << number) != 0)
        .map(|(_, row)| row)
        .filter(|(name, grant, _)| match grant {
            _ if privileged => true,
            Default => names(&wanted.add, name) || !names(&wanted.drop, name),
            OnRequest => names(&wanted.add, name),
            Never => false,
        })
        .map(|(name, ..)| format!("CAP_{name}"))
        .collect();
    all.sort_unstable();
    all
}

/// Most pseudo-terminals of a container, as an option of its devpts: the machine has one limit for
/// all together (`kernel.pty.max`), and one process can open thousands.
pub const TERMINALS: &str = "max=256";

/// The resource limits of a container, as the OCI specification has them. The limit of open files
/// is the kernel's for the first process: the runtime's is much higher, and containers would
/// inherit it. Without a capability there is no real-time priority, whatever the runtime's own
/// limit is; a privileged container keeps the runtime's.
pub fn resource_limits(privileged: bool) -> Vec<Value> {
    let files = json!({"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024});
    let priority = (!privileged).then(|| json!({"type": "RLIMIT_RTPRIO", "hard": 0, "soft": 0}));
    [files].into_iter().chain(priority).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn with(add: &[&str], drop: &[&str]) -> Vec<String> {
        capabilities(
            &Capabilities {
                add: list(add),
                drop: list(drop),
            },
            false,
            u64::MAX,
        )
    }

    fn count(grant: Grant) -> usize {
        TABLE.iter().filter(|(_, found, _)| *found == grant).count()
    }

    #[test]
    fn the_default_is_the_documented_set() {
        let documented = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE \
            SYS_CHROOT KILL AUDIT_WRITE";
        let mut documented: Vec<String> = documented
            .split_whitespace()
            .map(|name| format!("CAP_{name}"))
            .collect();
        documented.sort_unstable();
        assert_eq!(with(&[], &[]), documented);
    }

    #[test]
    fn drop_all_and_add_one_leaves_one() {
        assert_eq!(
            with(&["NET_BIND_SERVICE"], &["ALL"]),
            ["CAP_NET_BIND_SERVICE"]
        );
        assert_eq!(with(&["cap_sys_nice"], &["all"]), ["CAP_SYS_NICE"]);
    }

    #[test]
    fn all_means_all_that_may_be_given() {
        let all = with(&["ALL"], &[]);
        assert_eq!(all.len(), TABLE.len() - count(Never));
        for name in [
            "SYS_ADMIN",
            "SYS_PTRACE",
            "SYS_MODULE",
            "SYS_RAWIO",
            "SYS_BOOT",
            "SYS_TIME",
            "BPF",
            "PERFMON",
            "NET_ADMIN",
            "SYS_RESOURCE",
        ] {
            assert!(!all.contains(&format!("CAP_{name}")), "{name}");
            assert!(
                with(&[name], &[]).len() == count(Default),
                "{name} by its own name"
            );
            assert!(withheld(&list(&["all"])).contains(&name));
        }
        assert!(withheld(&list(&["SYS_NICE"])).is_empty());
    }

    #[test]
    fn capabilities_never_granted_and_unknown_ones_are_distinguished() {
        let fault = |name: &str| capability_fault(&list(&["SYS_NICE", "ALL", name]));
        assert_eq!(fault("NET_RAW"), None);
        assert!(
            fault("cap_sys_admin")
                .unwrap()
                .starts_with("capability SYS_ADMIN is never given to a container: it ")
        );
        assert_eq!(
            fault("SYS_ADMIM").unwrap(),
            "\"SYS_ADMIM\" is no capability of Linux"
        );
    }

    #[test]
    fn no_container_gets_real_time_priority_by_a_limit_and_the_privileged_have_the_runtimes() {
        let none = json!({"type": "RLIMIT_RTPRIO", "hard": 0, "soft": 0});
        let files = json!({"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024});
        assert_eq!(resource_limits(false), [files.clone(), none]);
        assert_eq!(resource_limits(true), [files]);
    }

    #[test]
    fn only_available_capabilities_are_granted() {
        assert_eq!(
            capabilities(&Capabilities::default(), false, 0b11),
            ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]
        );
        assert_eq!(capabilities(&Capabilities::default(), true, 0b111).len(), 3);
    }
}
