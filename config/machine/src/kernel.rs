//! The hardening of the machines' kernel: tables of settings, each with its reason and the source
//! that recommends it.
//!
//! [`WORDS`] are on the measured command line of every image. [`SYSCTLS`], and [`of_memory`] for
//! the memory that the machine has, are written by init before the first service starts, and read
//! back. [`PROOFS`] are files that show whether the kernel ignored a word, [`MODULES`] the security
//! modules that must be in force. If a setting that protects the machine is not in force, the
//! machine does not start ([`Weight::Guard`]); for any other setting init prints a line
//! ([`Weight::Service`]).
//!
//! Recommended settings that are *not* here, and why:
//! - `pti=on`: on processors with Meltdown the kernel does it by itself, and others need not pay
//!   for it.
//! - `init_on_free=1`, `slab_debug`: memory is cleared when it is allocated; these double the cost,
//!   only against bugs that read freed memory.
//! - `mitigations=auto,nosmt`: it halves many machines. Whether pods of different owners share a
//!   core is for the admin and the scheduler to decide.
//! - `ia32_emulation=0`, `vm.memfd_noexec`: images with 32-bit programs exist, and programs that
//!   start others from memory.
//! - `iommu=force`, `iommu.strict=1`, `iommu.passthrough=0`, `efi=disable_early_pci_dma`: they slow
//!   or stop some hardware, and nothing is promised against devices on the board.
//! - `hardened_usercopy=1`, `hash_pointers=always`: Debian's kernel checks copies and hashes
//!   pointers without them.
//! - `rp_filter`: it drops the answer of a DHCP server to a card that has no address yet, whatever
//!   its strictness.
//! - `kernel.warn_limit`: a pod that finds a harmless warning could reboot its machine; an oops
//!   does ([`SYSCTLS`]).

mod sysctls;

pub use sysctls::{SYSCTLS, of_memory};

/// What init does if a setting is not in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It protects the machine from its pods: the boot stops, and no service starts.
    Guard,
    /// It helps Kubernetes or debugging: init prints a line on the console.
    Service,
}

/// Who recommends a setting.
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
    /// The word as it is written on the command line.
    pub word: &'static str,
    /// The reason, for a person.
    pub why: &'static str,
    /// Who recommends it.
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
pub struct Sysctl<V = &'static str> {
    /// Its path below `/proc/sys`.
    pub path: &'static str,
    /// The value to write, and to read back.
    pub value: V,
    /// What init does if it is not in force.
    pub weight: Weight,
    /// The reason, for a person.
    pub why: &'static str,
    /// Who recommends it.
    pub source: Source,
}

/// Where the kernel shows that it accepted a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The name of the word that it proves.
    pub word: &'static str,
    /// The file.
    pub path: &'static str,
    /// Text that the file must contain.
    pub shows: &'static str,
}

/// The kernel's lockdown mode (`kernel_lockdown(7)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lockdown {
    /// Root can neither change the running kernel nor read its memory, which holds the key of the
    /// encrypted state.
    #[default]
    Confidentiality,
    /// Root can't change the running kernel, but can read its memory by tracing, which some
    /// observability tools need.
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

/// The file in which the kernel shows its lockdown mode; the one in force is in brackets.
pub const LOCKDOWN_STATE: &str = "/sys/kernel/security/lockdown";
/// The name of the word that sets the lockdown mode, whose value the image's description may
/// choose.
pub const LOCKDOWN: &str = "lockdown";
/// Longest command line that the kernel takes (`COMMAND_LINE_SIZE` on x86, less its end).
pub const COMMAND_LINE_MAX: usize = 2047;
/// The setting that disables io_uring; a machine whose configuration asks for io_uring has
/// [`IO_URING_ON`].
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
pub const WORDS: [Word; 14] = [
    word(
        "console=tty0",
        Source::Ours,
        "logs to a screen, if there is one, for machines without a serial line",
    ),
    word(
        "console=ttyS0",
        Source::Ours,
        "logs to the serial line, which is /dev/console if there is one",
    ),
    word(
        "no_timer_check",
        Source::KernelDocs,
        "the check for a working timer fails with emulated timers, which are late",
    ),
    word(
        "panic=10",
        Source::Ours,
        "a panic reboots; a halted machine serves no one",
    ),
    word(
        "ro",
        Source::Ours,
        "no file system is writable before init mounts it so",
    ),
    word(
        "module.sig_enforce=1",
        Source::Kspp,
        "only modules that Debian's kernel build signed, with Secure Boot on or off",
    ),
    word(
        "init_on_alloc=1",
        Source::Kspp,
        "allocated memory shows no old content",
    ),
    word(
        "slab_nomerge",
        Source::Kspp,
        "an overflow in one kind of object does not reach another kind",
    ),
    word(
        "page_alloc.shuffle=1",
        Source::Kspp,
        "page allocation can't be predicted",
    ),
    word(
        "randomize_kstack_offset=1",
        Source::Kspp,
        "the kernel's stack has a random offset in every system call",
    ),
    word(
        "vsyscall=none",
        Source::Kspp,
        "no code at a fixed address; programs built before 2011 crash",
    ),
    word(
        "debugfs=off",
        Source::Kspp,
        "nothing here reads debugfs, and much of it was never hardened",
    ),
    word(
        "audit=0",
        Source::Ours,
        "no audit records: nobody here reads them, and any pod could fill the kernel's log with them",
    ),
    word(
        "proc_mem.force_override=never",
        Source::KernelDocs,
        "/proc/PID/mem can't write memory that the process itself can't write",
    ),
];

/// Where the kernel shows that it did not silently ignore a word.
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
    /// The reason, for a person.
    pub why: &'static str,
}

/// The security modules that must be in force. Debian's kernel has them without a word of the
/// command line.
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
        why: "restricts which processes may trace others",
    },
];

/// The first of [`MODULES`] that a list as in [`SECURITY_MODULES`] leaves out.
pub fn missing_module(list: &str) -> Option<Module> {
    MODULES
        .into_iter()
        .find(|module| !list.trim().split(',').any(|name| name == module.name))
}

/// Most modules that init loads from one list.
pub const MAX_MODULES: usize = 512;

/// The setting that init writes last, after the image's modules are loaded: no further module can
/// be loaded until the next boot.
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

/// The lockdown mode that a command line asks for; `None` if it names none, or more than one.
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

/// Whether `/sys/kernel/security/lockdown` shows that this mode is in force.
pub fn is_locked_down(state: &str, wanted: Lockdown) -> bool {
    state
        .split_ascii_whitespace()
        .any(|word| word == format!("[{}]", wanted.name()))
}

/// Whether a setting reads back as it was written; white space between numbers does not matter.
pub fn same(read: &str, wanted: &str) -> bool {
    read.split_ascii_whitespace()
        .eq(wanted.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_is_listed_once_with_a_reason() {
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

    /// The kernel's own defaults are sized for one user: a pod could take them from all others.
    #[test]
    fn no_counter_of_the_whole_machine_or_of_root_is_within_reach_of_one_pod() {
        let value = |path: &str| {
            let setting = SYSCTLS.iter().find(|setting| setting.path == path);
            setting.map_or(0, |setting| setting.value.parse::<u64>().unwrap())
        };
        // Charged to a pod's memory: the least bytes of each, and more in all than a machine has.
        for (path, least) in [
            ("fs/file-max", 192),
            ("fs/epoll/max_user_watches", 128),
            ("fs/inotify/max_user_watches", 80),
            ("fs/inotify/max_user_instances", 512),
        ] {
            assert!(value(path).saturating_mul(least) >= 1 << 37, "{path}");
        }
        assert_eq!(value("kernel/threads-max"), value("kernel/pid_max"));
        assert!(
            SYSCTLS
                .iter()
                .any(|setting| setting.path == "fs/pipe-user-pages-soft" && setting.value == "0")
        );
        assert!(value("kernel/pty/max") >= 1 << 20);
    }

    /// A context for one request counts as one, and takes 120 of some 200 bytes that are charged to
    /// nobody.
    #[test]
    fn requests_of_asynchronous_io_that_are_charged_to_nobody_stay_a_small_part_of_memory() {
        // Of 1 GiB the kernel leaves some 950 MiB.
        for memory in [950 << 20, 3_900_000_000, 1 << 38] {
            let settings = of_memory(memory);
            let requests = settings.iter().find(|one| one.path == "fs/aio-max-nr");
            let requests = requests.unwrap().value.parse::<u64>().unwrap();
            let most = (memory / 16).max(128 << 20);
            assert!(requests * 120 * 226 <= most, "{requests}");
            // As MySQL 8.4 asks for by default: (1 + 4 + 4) * 256 + 1.
            assert!(requests >= 2305, "{requests}");
        }
    }

    #[test]
    fn buffers_of_sockets_are_a_share_of_memory_with_room_beside_a_pods_own_limit() {
        for memory in [1 << 30, 3_900_000_000, 1 << 38, 1 << 44] {
            let settings = of_memory(memory);
            let numbers = |path: &str| {
                let setting = settings.iter().find(|one| one.path == path).unwrap();
                let numbers = setting
                    .value
                    .split(' ')
                    .map(|one| one.parse::<u64>().unwrap());
                numbers.collect::<Vec<_>>()
            };
            let part = |pages: u64| pages * 4096 * 100 / memory;
            // What was not accepted is charged to nobody: no more than system programs leave.
            let tcp = numbers("net/ipv4/tcp_mem");
            assert!(tcp.is_sorted() && tcp.len() == 3, "{tcp:?}");
            assert!((10..=13).contains(&part(tcp[2])), "{tcp:?}");
            // Names are asked by sockets of which each has little waiting: theirs is the rest.
            let udp = numbers("net/ipv4/udp_mem");
            assert!(udp.is_sorted() && udp.len() == 3, "{udp:?}");
            assert!(udp[2] >= 2 * udp[0] && part(udp[2]) <= 25, "{udp:?}");
            let orphans = numbers("net/ipv4/tcp_max_orphans")[0];
            assert!((orphans + 1) * 4096 >= memory || orphans == i32::MAX as u64);
            assert!(i32::try_from(orphans).is_ok());
            let fixed = SYSCTLS.iter().map(|setting| setting.path);
            let all: BTreeSet<&str> = settings.iter().map(|one| one.path).chain(fixed).collect();
            assert_eq!(all.len(), settings.len() + SYSCTLS.len(), "listed once");
        }
    }

    /// Root of a container writes audit records of any text, and any program brings them about by a
    /// filter of its own calls, or a line by a fault.
    #[test]
    fn no_program_fills_the_kernels_log_by_audit_records_or_by_its_own_faults() {
        let words = words(Lockdown::default());
        assert!(words.iter().any(|word| word == "audit=0") && is_ours("audit"));
        let faults = SYSCTLS
            .iter()
            .find(|setting| setting.path == "debug/exception-trace");
        assert_eq!(
            faults.map(|setting| (setting.value, setting.weight)),
            Some(("0", Weight::Guard))
        );
    }

    #[test]
    fn every_proof_names_a_word_of_the_table() {
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
