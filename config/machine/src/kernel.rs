//! The kernel as machines run it: one table of settings, each with its reason and whose recommendation it is.
//!
//! [`WORDS`] are on the measured command line of every image. [`SYSCTLS`] are written by init before the first service
//! starts, and read back. [`PROOFS`] are what the kernel says of words that it could have ignored, [`MODULES`] the security
//! modules that must be in force. A setting that guards
//! the machine and does not hold keeps the machine from starting ([`Weight::Guard`]); one that only serves is told
//! ([`Weight::Service`]).
//!
//! What recommended settings are *not* here, and why:
//! - `pti=on`: on processors that leak by Meltdown the kernel does it by itself, and nobody needs to pay for it on others.
//! - `init_on_free=1`, `slab_debug`: what is allocated is cleared anyway; they double the cost for memory that a bug reads
//!   after it was freed.
//! - `mitigations=auto,nosmt`: it halves many machines. Pods of different owners on one core is a question for the
//!   scheduler and for who shares machines.
//! - `ia32_emulation=0`, `vm.memfd_noexec`: images with 32-bit programs exist, and runc starts itself from memory.
//! - `iommu=force`, `efi=disable_early_pci_dma`: they keep some hardware from starting; nothing is promised against devices
//!   on the board.
//! - `rp_filter`: it drops the answer of a DHCP server to a card that has no address yet, whatever its strictness.
//! - `kernel.warn_limit`: a pod that finds a harmless warning could reboot its machine; an oops does ([`SYSCTLS`]).

/// What becomes of the machine where a setting does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It guards the machine against its pods: the machine is held, no service starts.
    Guard,
    /// It serves Kubernetes or the search for faults: a line on the console.
    Service,
}

/// Whose recommendation a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The Kernel Self-Protection Project's recommended settings.
    Kspp,
    /// What upstream's kubelet sets or expects (`pkg/kubelet/cm`, `--protect-kernel-defaults`).
    Kubelet,
    /// The kernel's own documentation (admin-guide, networking/ip-sysctl).
    KernelDocs,
    /// This project.
    Ours,
}

/// A word of the kernel's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// The word as it stands there.
    pub word: &'static str,
    /// Why.
    pub why: &'static str,
    /// Whose recommendation it is.
    pub source: Source,
}

impl Word {
    /// The part before `=`.
    pub fn name(&self) -> &'static str {
        self.word
            .split_once('=')
            .map_or(self.word, |(name, _)| name)
    }
}

/// A file below `/proc/sys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sysctl {
    /// Its path below `/proc/sys`.
    pub path: &'static str,
    /// What is written, and what reading it then gives.
    pub value: &'static str,
    /// What becomes of the machine where it does not hold.
    pub weight: Weight,
    /// Why.
    pub why: &'static str,
    /// Whose recommendation it is.
    pub source: Source,
}

/// What the kernel shows of a word that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The word that it proves, by its name.
    pub word: &'static str,
    /// The file.
    pub path: &'static str,
    /// What must be among its words.
    pub shows: &'static str,
}

/// How far the kernel is closed against root (`kernel_lockdown(7)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lockdown {
    /// Root can neither change the running kernel nor read its memory: where the key of the state's encryption is.
    #[default]
    Confidentiality,
    /// Root can't change the running kernel and may read its memory by tracing, which some observing tools need.
    Integrity,
}

impl Lockdown {
    /// As documents and the command line write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Confidentiality => "confidentiality",
            Self::Integrity => "integrity",
        }
    }
}

/// Where the kernel shows its lockdown; the one in force stands in brackets.
pub const LOCKDOWN_STATE: &str = "/sys/kernel/security/lockdown";
/// The name of lockdown's word, whose value the image's description may choose.
pub const LOCKDOWN: &str = "lockdown";
/// Longest command line that the kernel takes (`COMMAND_LINE_SIZE` on x86, less its end).
pub const COMMAND_LINE_MAX: usize = 2047;
/// Where io_uring is switched; a machine whose configuration asks for it has [`IO_URING_ON`].
pub const IO_URING: &str = "kernel/io_uring_disabled";
/// io_uring for every process.
pub const IO_URING_ON: &str = "0";

const fn word(word: &'static str, source: Source, why: &'static str) -> Word {
    Word { word, why, source }
}

const fn guard(
    path: &'static str,
    value: &'static str,
    source: Source,
    why: &'static str,
) -> Sysctl {
    Sysctl {
        path,
        value,
        weight: Weight::Guard,
        why,
        source,
    }
}

const fn service(
    path: &'static str,
    value: &'static str,
    source: Source,
    why: &'static str,
) -> Sysctl {
    Sysctl {
        weight: Weight::Service,
        ..guard(path, value, source, why)
    }
}

/// Words of every image's command line, besides `lockdown=`.
pub const WORDS: [Word; 13] = [
    word(
        "console=tty0",
        Source::Ours,
        "a screen, where there is one; a machine without a serial line is not blind",
    ),
    word(
        "console=ttyS0",
        Source::Ours,
        "the serial line, which is /dev/console where there is one",
    ),
    word(
        "no_timer_check",
        Source::KernelDocs,
        "emulated timers are late, and the check would give up on them",
    ),
    word(
        "panic=10",
        Source::Ours,
        "a panic reboots; a machine that halts is nobody's node",
    ),
    word(
        "ro",
        Source::Ours,
        "no file system is writable before init says so",
    ),
    word(
        "module.sig_enforce=1",
        Source::Kspp,
        "only modules that Debian's kernel build signed, whatever Secure Boot is",
    ),
    word(
        "init_on_alloc=1",
        Source::Kspp,
        "no memory shows what was in it before",
    ),
    word(
        "slab_nomerge",
        Source::Kspp,
        "an overflow in one kind of object does not reach another kind",
    ),
    word(
        "page_alloc.shuffle=1",
        Source::Kspp,
        "where a page comes from can't be foretold",
    ),
    word(
        "randomize_kstack_offset=1",
        Source::Kspp,
        "the kernel's stack begins elsewhere for every call",
    ),
    word(
        "vsyscall=none",
        Source::Kspp,
        "no code at an address that is the same everywhere; programs built before 2011 end",
    ),
    word(
        "debugfs=off",
        Source::Kspp,
        "nothing here reads it, and much in it was never meant for hostile eyes",
    ),
    word(
        "proc_mem.force_override=never",
        Source::KernelDocs,
        "/proc/PID/mem does not write where the process itself can't",
    ),
];

/// What the kernel shows of words that it could have ignored without a sound.
pub const PROOFS: [Proof; 2] = [
    Proof {
        word: "module.sig_enforce",
        path: "/sys/module/module/parameters/sig_enforce",
        shows: "Y",
    },
    Proof {
        word: "page_alloc.shuffle",
        path: "/sys/module/page_alloc/parameters/shuffle",
        shows: "Y",
    },
];

/// Where the kernel lists the security modules that are in force, with commas between them.
pub const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";

/// A security module of the kernel that the machine does not start without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// Its name in [`SECURITY_MODULES`].
    pub name: &'static str,
    /// Why.
    pub why: &'static str,
}

/// The security modules that must be in force. Debian's kernel has them without a word of the command line.
pub const MODULES: [Module; 3] = [
    Module {
        name: "landlock",
        why: "containers are in a domain of their own: none of their signals reaches init, agent or master",
    },
    Module {
        name: "lockdown",
        why: "root can't change the running kernel",
    },
    Module {
        name: "yama",
        why: "who may trace a process is restricted",
    },
];

/// The first of [`MODULES`] that a list as in [`SECURITY_MODULES`] leaves out.
pub fn missing_module(list: &str) -> Option<Module> {
    MODULES
        .into_iter()
        .find(|module| !list.trim().split(',').any(|name| name == module.name))
}

/// Kernel settings, in the order in which init writes them: before any module is loaded, so that network cards that
/// come later inherit what stands under `default`.
pub const SYSCTLS: [Sysctl; 46] = [
    service(
        "vm/overcommit_memory",
        "1",
        Source::Kubelet,
        "limits of pods decide, not a guess at what is committed",
    ),
    service(
        "vm/panic_on_oom",
        "0",
        Source::Kubelet,
        "a pod without memory ends, not the machine",
    ),
    service(
        "kernel/pid_max",
        "4194304",
        Source::Kubelet,
        "a limit of processes for each container is of no use where few use up all ids",
    ),
    service("kernel/panic", "10", Source::Kubelet, "a panic reboots"),
    service(
        "kernel/panic_on_oops",
        "1",
        Source::Kubelet,
        "a kernel that erred once is not trusted to go on",
    ),
    service(
        "fs/inotify/max_user_instances",
        "8192",
        Source::Kubelet,
        "containers share one user, and each watches files",
    ),
    guard(
        "kernel/kptr_restrict",
        "2",
        Source::Kspp,
        "nobody sees where things are in the kernel",
    ),
    guard(
        "kernel/dmesg_restrict",
        "1",
        Source::Kspp,
        "the kernel's messages, with addresses in them, are root's",
    ),
    guard(
        "kernel/perf_event_paranoid",
        "3",
        Source::Kspp,
        "performance events, a rich source of faults, are root's",
    ),
    guard(
        "kernel/kexec_load_disabled",
        "1",
        Source::Kspp,
        "no other kernel is started from this one, past all registers",
    ),
    guard(
        "kernel/randomize_va_space",
        "2",
        Source::Kspp,
        "programs lie elsewhere at every start",
    ),
    guard(
        "kernel/yama/ptrace_scope",
        "3",
        Source::Kspp,
        "no process takes over another or its files; debuggers don't work",
    ),
    guard(
        "kernel/unprivileged_bpf_disabled",
        "1",
        Source::Kspp,
        "programs in the kernel are root's, until the next boot",
    ),
    guard(
        "net/core/bpf_jit_harden",
        "2",
        Source::Kspp,
        "constants of such programs can't be used as code",
    ),
    guard(
        IO_URING,
        "2",
        Source::Kspp,
        "a younger and often faulty way into the kernel, off unless user-data asks for it",
    ),
    guard(
        "kernel/sysrq",
        "0",
        Source::Kspp,
        "no magic keys, also not by a break on the serial line",
    ),
    guard(
        "kernel/core_pattern",
        "/dev/null",
        Source::Ours,
        "no core file: pods' secrets would go to the disk with it",
    ),
    guard(
        "kernel/core_uses_pid",
        "0",
        Source::Ours,
        "else the number would make a file beside /dev/null",
    ),
    guard(
        "fs/suid_dumpable",
        "0",
        Source::Kspp,
        "what changed its rights leaves no core file",
    ),
    guard(
        "fs/protected_symlinks",
        "1",
        Source::Kspp,
        "links that others put into shared folders are not followed",
    ),
    guard(
        "fs/protected_hardlinks",
        "1",
        Source::Kspp,
        "nobody links what he can't write",
    ),
    guard(
        "fs/protected_fifos",
        "2",
        Source::Kspp,
        "FIFOs that others put into shared folders are not opened for writing",
    ),
    guard("fs/protected_regular", "2", Source::Kspp, "nor files"),
    guard(
        "vm/mmap_min_addr",
        "65536",
        Source::Kspp,
        "a null pointer of the kernel leads to nothing of a program's",
    ),
    guard(
        "vm/mmap_rnd_bits",
        "32",
        Source::Kspp,
        "as many places for a mapping as there can be",
    ),
    guard(
        "vm/mmap_rnd_compat_bits",
        "16",
        Source::Kspp,
        "the same for 32-bit programs",
    ),
    guard(
        "vm/unprivileged_userfaultfd",
        "0",
        Source::Kspp,
        "nobody but root holds the kernel up in the middle of a copy",
    ),
    guard(
        "dev/tty/ldisc_autoload",
        "0",
        Source::Kspp,
        "no old line discipline is loaded for who asks",
    ),
    guard(
        "dev/tty/legacy_tiocsti",
        "0",
        Source::Kspp,
        "nobody types on another's terminal",
    ),
    guard(
        "user/max_user_namespaces",
        "0",
        Source::Kspp,
        "no pod becomes root of a namespace of its own; none may ask for it yet",
    ),
    guard(
        "net/ipv4/conf/all/accept_redirects",
        "0",
        Source::KernelDocs,
        "a neighbour does not move routes",
    ),
    guard(
        "net/ipv4/conf/default/accept_redirects",
        "0",
        Source::KernelDocs,
        "the same for cards to come",
    ),
    guard(
        "net/ipv4/conf/all/secure_redirects",
        "0",
        Source::KernelDocs,
        "nor does one that says it is the gateway",
    ),
    guard(
        "net/ipv4/conf/default/secure_redirects",
        "0",
        Source::KernelDocs,
        "the same for cards to come",
    ),
    guard(
        "net/ipv4/conf/all/send_redirects",
        "0",
        Source::KernelDocs,
        "and this machine moves nobody's",
    ),
    guard(
        "net/ipv4/conf/default/send_redirects",
        "0",
        Source::KernelDocs,
        "the same for cards to come",
    ),
    guard(
        "net/ipv4/conf/all/accept_source_route",
        "0",
        Source::KernelDocs,
        "a packet does not choose its way past filters",
    ),
    guard(
        "net/ipv4/conf/default/accept_source_route",
        "0",
        Source::KernelDocs,
        "the same for cards to come",
    ),
    guard(
        "net/ipv6/conf/all/accept_redirects",
        "0",
        Source::KernelDocs,
        "as for IPv4",
    ),
    guard(
        "net/ipv6/conf/default/accept_redirects",
        "0",
        Source::KernelDocs,
        "as for IPv4",
    ),
    guard(
        "net/ipv6/conf/all/accept_source_route",
        "0",
        Source::KernelDocs,
        "as for IPv4",
    ),
    guard(
        "net/ipv6/conf/default/accept_source_route",
        "0",
        Source::KernelDocs,
        "as for IPv4",
    ),
    service(
        "net/ipv4/tcp_syncookies",
        "1",
        Source::KernelDocs,
        "a flood of openings does not fill the table of connections",
    ),
    service(
        "net/ipv4/icmp_echo_ignore_broadcasts",
        "1",
        Source::KernelDocs,
        "the machine is nobody's amplifier",
    ),
    service(
        "net/ipv4/icmp_ignore_bogus_error_responses",
        "1",
        Source::KernelDocs,
        "broken routers don't fill the log",
    ),
    service(
        "net/ipv4/tcp_rfc1337",
        "1",
        Source::KernelDocs,
        "a late reset does not end a connection that waits for its end (RFC 1337)",
    ),
];

/// What init writes last, once the image's modules are loaded: nobody loads another until the next boot.
pub const LAST: Sysctl = guard(
    "kernel/modules_disabled",
    "1",
    Source::Kspp,
    "all modules that the image needs are loaded; no other can be",
);

/// The whole table of words: those of [`WORDS`] and lockdown's.
pub fn words(lockdown: Lockdown) -> Vec<String> {
    let lockdown = format!("{LOCKDOWN}={}", lockdown.name());
    WORDS
        .iter()
        .map(|word| word.word.to_owned())
        .chain([lockdown])
        .collect()
}

/// Whether the kernel's command line has a word of this name from this table.
pub fn is_ours(name: &str) -> bool {
    name == LOCKDOWN || WORDS.iter().any(|word| word.name() == name)
}

/// Which lockdown a command line asks for; `None` where it names none, or more than one.
pub fn lockdown_of(command_line: &str) -> Option<Lockdown> {
    let mut found = command_line
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("lockdown="));
    let one = [Lockdown::Confidentiality, Lockdown::Integrity];
    match (found.next(), found.next()) {
        (Some(name), None) => one.into_iter().find(|lockdown| lockdown.name() == name),
        (None | Some(_), _) => None,
    }
}

/// Whether `/sys/kernel/security/lockdown` says that this much is in force.
pub fn is_locked_down(state: &str, wanted: Lockdown) -> bool {
    state
        .split_ascii_whitespace()
        .any(|word| word == format!("[{}]", wanted.name()))
}

/// Whether what was read of a setting is what was written: blanks between several numbers don't count.
pub fn same(read: &str, wanted: &str) -> bool {
    read.split_ascii_whitespace()
        .eq(wanted.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_stands_once_and_says_why() {
        let paths: BTreeSet<&str> = SYSCTLS
            .iter()
            .chain([&LAST])
            .map(|setting| setting.path)
            .collect();
        assert_eq!(paths.len(), SYSCTLS.len() + 1);
        let words: BTreeSet<&str> = WORDS.iter().map(|word| word.word).collect();
        assert_eq!(words.len(), WORDS.len());
        assert!(
            SYSCTLS
                .iter()
                .chain([&LAST])
                .all(|setting| setting.why.len() > 3 && !setting.path.starts_with('/'))
        );
        assert!(
            WORDS
                .iter()
                .all(|word| !word.why.is_empty() && !word.word.contains(' '))
        );
    }

    #[test]
    fn every_proof_is_of_a_word_of_the_table() {
        assert!(PROOFS.iter().all(|proof| is_ours(proof.word)));
    }

    #[test]
    fn lockdown_is_read_back_from_command_line_and_kernel() {
        for wanted in [Lockdown::Confidentiality, Lockdown::Integrity] {
            assert_eq!(lockdown_of(&words(wanted).join(" ")), Some(wanted));
        }
        assert_eq!(lockdown_of("quiet"), None);
        assert_eq!(
            lockdown_of("lockdown=integrity lockdown=none"),
            None,
            "a second one could undo the first"
        );
        assert!(is_locked_down(
            "none [integrity] confidentiality\n",
            Lockdown::Integrity
        ));
        assert!(!is_locked_down(
            "none [integrity] confidentiality\n",
            Lockdown::Confidentiality
        ));
    }

    #[test]
    fn a_security_module_that_is_not_in_force_is_missing() {
        assert_eq!(
            missing_module("capability,landlock,lockdown,yama,bpf\n"),
            None
        );
        for list in ["", "landlocked,lockdown,yama", "capability,lockdown,yama\n"] {
            assert_eq!(
                missing_module(list).map(|module| module.name),
                Some("landlock"),
                "{list:?}"
            );
        }
    }

    #[test]
    fn blanks_between_numbers_do_not_count() {
        assert!(same("1\t2\n", "1 2") && !same("1", "1 2") && !same("", "1"));
    }
}
