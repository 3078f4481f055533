//! System call filters in the form of the OCI runtime specification.
//!
//! Guarantee: every filter refuses what is not allowed by name, for 64-bit, 32-bit and x32 programs
//! alike; a pod with `Unconfined` gets a longer list, but never the calls of [`Who::Nobody`].
//! Assumption: the runtime's libseccomp leaves out names that an architecture, or it itself,
//! doesn't know, which refuses them.

use super::calls::{CALLS, Who};
use serde_json::{Value, json};

/// EPERM and ENOSYS (errno-base.h).
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// Flags of `clone` that make namespaces (sched.h, `CLONE_NEW…`).
const CLONE_NEW: u64 = 0x7e02_0000;
/// The family of sockets between a virtual machine and its host, and the number of families
/// (socket.h).
const AF_VSOCK: u64 = 40;
const AF_MAX: u64 = 46;
/// Classes of the processor's scheduler that keep to the share of their control group (sched.h:
/// `SCHED_OTHER`, `SCHED_BATCH`, `SCHED_IDLE`), and the mark that a class may have
/// (`SCHED_RESET_ON_FORK`).
const SHARED_CLASSES: [u64; 3] = [0, 3, 5];
const RESET_ON_FORK: u64 = 0x4000_0000;
/// The same for disks (ioprio.h: none, best effort, idle), and the first bit of the class in a
/// priority.
const DISK_CLASSES: [u64; 3] = [0, 2, 3];
const DISK_CLASS: u32 = 13;
/// The bits that the kernel reads of an `int`; it ignores the upper half of the register.
const INT: u64 = 0xffff_ffff;
/// The number of the machine's console as mknod(2) takes it (major 5, minor 1). The runtime's
/// device filter allows it to every container, whatever its specification says.
const CONSOLE: u64 = 5 << 8 | 1;
/// Execution domains (personality.h): Linux, 32 bits (`PER_LINUX32`), each also with 2.6 as its
/// version (`UNAME26`), and the value that queries the present one. Others turn off memory
/// protections.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Which system calls a container may make. Neither list has those by which a container could act
/// on the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// What programs need, and what the container's capabilities allow.
    #[default]
    RuntimeDefault,
    /// All calls except those that no container may make (`Who::Nobody`).
    Unconfined,
}

/// The properties of a container that its filter depends on.
#[derive(Debug, Clone, Copy)]
pub struct FilterOptions<'a> {
    /// The pod's profile.
    pub profile: Seccomp,
    /// Capabilities that the container has, with their prefix.
    pub capabilities: &'a [String],
    /// It shares the machine's PID namespace (`hostPID`).
    pub host_pid: bool,
}

impl FilterOptions<'_> {
    fn unconfined(self) -> bool {
        self.profile == Seccomp::Unconfined
    }

    fn has(self, capability: &str) -> bool {
        let mut all = self.capabilities.iter();
        all.any(|name| name.strip_prefix("CAP_") == Some(capability))
    }

    /// Whether a container may make calls of this class, whatever their arguments.
    fn allows(self, who: Who) -> bool {
        match who {
            Who::All => true,
            Who::With(capability) => self.unconfined() || self.has(capability),
            Who::Without(capability) => !self.has(capability),
            Who::Unconfined => self.unconfined(),
            Who::OwnProcesses => !self.host_pid,
            Who::UnconfinedOwnProcesses => self.unconfined() && !self.host_pid,
            Who::Examined | Who::Nobody => false,
        }
    }
}

/// The filter of a container.
pub fn filter(options: FilterOptions<'_>) -> Value {
    let allowed: Vec<&str> = CALLS
        .iter()
        .filter(|(_, who, _)| options.allows(*who))
        .flat_map(|(.., names)| names.split_ascii_whitespace())
        .collect();
    let withheld = CALLS
        .iter()
        .filter(|(_, who, _)| matches!(who, Who::Without(_)) && !options.allows(*who))
        .flat_map(|(.., names)| names.split_ascii_whitespace());
    let missing: Vec<&str> = withheld.chain(["clone3"]).collect();
    let mut rules = vec![json!({"names": allowed, "action": "SCMP_ACT_ALLOW"})];
    rules.extend(examined(options));
    rules.push(json!({"names": missing, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    })
}

/// Calls that are allowed by one of their arguments. Each comparison names what is allowed: one
/// that names what is refused (`not AF_VSOCK`) could be evaded by a bit in the upper half of the
/// register.
fn examined(options: FilterOptions<'_>) -> Vec<Value> {
    let argument = |index: u32, value: u64, two: u64, op: &str| json!([{"index": index, "value": value, "valueTwo": two, "op": op}]);
    let first = |value: u64, two: u64, op: &str| argument(0, value, two, op);
    let allow = |name: &str, args: Value| json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args});
    let whole = |name: &str| json!({"names": [name], "action": "SCMP_ACT_ALLOW"});
    let mut rules = vec![allow("clone", first(CLONE_NEW, 0, "SCMP_CMP_MASKED_EQ"))];
    let families = (0..AF_MAX).filter(|family| *family != AF_VSOCK);
    rules.extend(families.map(|family| allow("socket", first(INT, family, "SCMP_CMP_MASKED_EQ"))));
    let masked = "SCMP_CMP_MASKED_EQ";
    rules.extend(SHARED_CLASSES.map(|class| {
        let class = argument(1, INT & !RESET_ON_FORK, class, masked);
        allow("sched_setscheduler", class)
    }));
    rules.extend(DISK_CLASSES.map(|class| {
        let mask = INT >> DISK_CLASS << DISK_CLASS;
        allow("ioprio_set", argument(2, mask, class << DISK_CLASS, masked))
    }));
    // Two numbers differ if one of their bits does.
    let bits = (0..u32::BITS).map(|bit| 1 << bit);
    rules.extend(bits.flat_map(|bit| {
        let differs = |index| argument(index, bit, !CONSOLE & bit, masked);
        [allow("mknod", differs(2)), allow("mknodat", differs(3))]
    }));
    if options.unconfined() {
        rules.push(whole("personality"));
    } else {
        rules.extend(
            PERSONALITIES.map(|value| allow("personality", first(value, 0, "SCMP_CMP_EQ"))),
        );
    }
    rules.push(if options.host_pid {
        allow("prlimit64", first(0, 0, "SCMP_CMP_EQ"))
    } else {
        whole("prlimit64")
    });
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(profile: Seccomp, capabilities: &[&str], host_pid: bool) -> Value {
        let capabilities: Vec<String> = capabilities
            .iter()
            .map(|name| format!("CAP_{name}"))
            .collect();
        filter(FilterOptions {
            profile,
            capabilities: &capabilities,
            host_pid,
        })
    }

    /// The calls that a filter allows with any arguments, and those that it allows by an argument.
    fn allowed(filter: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
        let rules = filter["syscalls"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
        let (by_argument, whole): (Vec<&Value>, Vec<&Value>) =
            rules.partition(|rule| rule.get("args").is_some());
        let names = |rules: Vec<&Value>| {
            let names = rules
                .iter()
                .flat_map(|rule| rule["names"].as_array().unwrap());
            names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        (names(whole), names(by_argument))
    }

    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split_ascii_whitespace()
    }

    #[test]
    fn what_is_not_named_is_refused_on_all_three_architectures() {
        for profile in [Seccomp::RuntimeDefault, Seccomp::Unconfined] {
            let filter = of(profile, &[], false);
            assert_eq!(filter["defaultAction"], "SCMP_ACT_ERRNO");
            assert_eq!(
                filter["architectures"],
                json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"])
            );
        }
    }

    #[test]
    fn the_floor_holds_under_unconfined_with_every_capability_named() {
        let every: Vec<&str> = crate::capabilities::TABLE
            .iter()
            .map(|(name, ..)| *name)
            .collect();
        let refused = "bpf perf_event_open kexec_load kexec_file_load init_module finit_module delete_module mount umount \
            umount2 pivot_root fsopen fsmount fsconfig fspick move_mount open_tree mount_setattr unshare setns clone3 \
            open_by_handle_at io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl userfaultfd ioperm \
            iopl reboot swapon swapoff quotactl acct syslog vm86 uselib";
        for host_pid in [false, true] {
            let (whole, by_argument) = allowed(&of(Seccomp::Unconfined, &every, host_pid));
            for name in words(refused) {
                assert!(
                    !whole.contains(name) && !by_argument.contains(name),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn with_the_machines_process_ids_nothing_reaches_into_a_process() {
        let reaching = "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise process_mrelease \
            migrate_pages move_pages get_robust_list";
        let (own, _) = allowed(&of(Seccomp::Unconfined, &["SYS_NICE"], false));
        let (shared, by_argument) = allowed(&of(Seccomp::Unconfined, &["SYS_NICE"], true));
        for name in words(reaching) {
            assert!(own.contains(name) && !shared.contains(name), "{name}");
        }
        assert!(own.contains("prlimit64") && by_argument.contains("prlimit64"));
        let lost: Vec<&String> = own.difference(&shared).collect();
        assert_eq!(lost.len(), words(reaching).count() + 1, "{lost:?}");
    }

    #[test]
    fn capabilities_bring_their_calls() {
        let (plain, _) = allowed(&of(Seccomp::RuntimeDefault, &[], false));
        for (capability, call) in [
            ("SYS_NICE", "mbind"),
            ("SYS_CHROOT", "chroot"),
            ("SYS_NICE", "set_mempolicy"),
        ] {
            assert!(!plain.contains(call), "{call}");
            assert!(
                allowed(&of(Seccomp::RuntimeDefault, &[capability], false))
                    .0
                    .contains(call),
                "{call}"
            );
            assert!(
                allowed(&of(Seccomp::Unconfined, &[], false))
                    .0
                    .contains(call),
                "{call}"
            );
        }
    }

    #[test]
    fn unconfined_is_never_narrower_than_the_default() {
        for host_pid in [false, true] {
            let (default, by_default) = allowed(&of(
                Seccomp::RuntimeDefault,
                &["SYS_CHROOT", "SYS_NICE"],
                host_pid,
            ));
            let (open, by_argument) = allowed(&of(Seccomp::Unconfined, &[], host_pid));
            assert!(default.is_subset(&open));
            assert!(
                by_default
                    .iter()
                    .all(|name| open.contains(name) || by_argument.contains(name))
            );
        }
    }

    #[test]
    fn what_programs_need_is_there() {
        let needed = "read write openat close mmap mprotect brk futex execve exit_group rt_sigaction rt_sigreturn wait4 \
            epoll_pwait recvmsg sendmsg getrandom rseq set_robust_list arch_prctl prctl statx newfstatat faccessat2 \
            close_range pidfd_open landlock_create_ruleset socketcall mmap2 fstat64 sigreturn clock_gettime64 futex_time64";
        let (whole, by_argument) = allowed(&of(Seccomp::RuntimeDefault, &[], true));
        for name in words(needed) {
            assert!(whole.contains(name), "{name}");
        }
        let examined: Vec<&str> = by_argument.iter().map(String::as_str).collect();
        assert_eq!(
            examined,
            [
                "clone",
                "ioprio_set",
                "mknod",
                "mknodat",
                "personality",
                "prlimit64",
                "sched_setscheduler",
                "socket"
            ]
        );
    }

    /// Whether the rules allow a call with this value of its argument.
    fn passes(filter: &Value, name: &str, index: u64, value: u64) -> bool {
        let rules = filter["syscalls"].as_array().unwrap().iter();
        let mut rules = rules.filter(|rule| rule["names"] == json!([name]));
        rules.any(|rule| {
            let argument = &rule["args"][0];
            assert_eq!(
                (&argument["op"], argument["index"].as_u64()),
                (&json!("SCMP_CMP_MASKED_EQ"), Some(index))
            );
            let part = |name: &str| argument[name].as_u64().unwrap();
            value & part("value") == part("valueTwo")
        })
    }

    #[test]
    fn no_scheduling_class_lets_a_container_exceed_its_share() {
        for profile in [Seccomp::RuntimeDefault, Seccomp::Unconfined] {
            for capabilities in [&[][..], &["SYS_NICE"]] {
                let filter = of(profile, capabilities, false);
                let (whole, _) = allowed(&filter);
                assert!(!whole.contains("sched_setscheduler") && !whole.contains("ioprio_set"));
                for class in 0..16 {
                    for marks in [0, RESET_ON_FORK, 1 << 32] {
                        let shares = matches!(class, 0 | 3 | 5);
                        let value = class | marks;
                        let passes = passes(&filter, "sched_setscheduler", 1, value);
                        assert_eq!(passes, shares, "{value:#x}");
                    }
                }
                assert!(!passes(&filter, "sched_setscheduler", 1, u64::MAX));
                for class in 0..8 {
                    for rest in [0, 7, 0x1fff, 1 << 32] {
                        let value = class << 13 | rest;
                        let passes = passes(&filter, "ioprio_set", 2, value);
                        assert_eq!(passes, matches!(class, 0 | 2 | 3), "{value:#x}");
                    }
                }
                let by_memory = capabilities.is_empty();
                assert_eq!(whole.contains("sched_setattr"), by_memory);
                let answers = filter["syscalls"].as_array().unwrap().last().unwrap();
                let missing = answers["names"].as_array().unwrap();
                assert_eq!(missing.contains(&json!("sched_setattr")), !by_memory);
            }
        }
    }

    #[test]
    fn no_container_makes_a_node_of_the_machines_console() {
        for profile in [Seccomp::RuntimeDefault, Seccomp::Unconfined] {
            let filter = of(profile, &["MKNOD"], false);
            for (name, index) in [("mknod", 2), ("mknodat", 3)] {
                for others in [
                    0,
                    0x103,
                    0x500,
                    0x502,
                    0x10_0501,
                    0xffff_ffff,
                    0x1_0000_0000,
                ] {
                    assert!(passes(&filter, name, index, others), "{name} {others:#x}");
                }
                // The kernel reads 32 bits of it.
                for console in [0x501, 0x1_0000_0501, 0xffff_ffff_0000_0501] {
                    assert!(!passes(&filter, name, index, console), "{name}");
                }
            }
        }
    }

    #[test]
    fn sockets_to_the_host_of_a_virtual_machine_are_the_only_family_left_out() {
        let filter = of(Seccomp::Unconfined, &[], false);
        let rules = filter["syscalls"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["names"] == json!(["socket"]));
        let families: Vec<u64> = rules
            .map(|rule| {
                let args = &rule["args"][0];
                assert_eq!(
                    (&args["op"], args["value"].as_u64()),
                    (&json!("SCMP_CMP_MASKED_EQ"), Some(INT))
                );
                args["valueTwo"].as_u64().unwrap()
            })
            .collect();
        assert!(families.contains(&1) && families.contains(&2) && !families.contains(&AF_VSOCK));
        assert_eq!(families.len(), 45);
    }

    #[test]
    fn every_flag_of_a_new_namespace_is_in_the_mask() {
        assert_eq!(
            CLONE_NEW.count_ones(),
            7,
            "mount, cgroup, uts, ipc, user, pid, net"
        );
    }
}
