//! The table of kernel settings that init writes.
//!
//! Some of the kernel's counters are of the whole machine, or of one user id, which is root for the
//! machine's own programs and for containers of most images alike; a user namespace counts at the
//! user who made it too, who is root. The kernel's defaults suit one user at one machine: a single
//! pod could use them up for all. Where what is counted is charged to the memory of the pod that
//! has it, and processes to its group, these counters are raised to where a pod's own limits come
//! first.
//!
//! Where it is charged to nobody, only the counter keeps one pod from the machine's memory: it is a
//! share of that ([`of_memory`]), and one pod can use it up.

use super::{IO_URING, Source, Sysctl, Weight, guard, service};

/// More than fits into any machine's memory, and far from where a sum would overflow: 2^40.
const BEYOND_MEMORY: &str = "1099511627776";
/// The most that the kernel takes for counters of 32 bits.
const MOST: &str = "2147483647";

/// Memory for one request that `fs/aio-max-nr` counts, in bytes. A context for one request
/// (`io_setup(1)`) counts as one and takes as many as its page of a ring has room for: 120, each of
/// 200 bytes of the kernel's memory (measured on 6.18). The ring is charged, these are not.
const AIO_REQUEST: u64 = 32 << 10;
/// So many are left to any machine: one MySQL 8.4 asks for 2,305 at its start, and ends without
/// them.
const LEAST_AIO: u64 = 4096;

/// Bytes of a page, in which the kernel counts buffers.
const PAGE: u64 = 4096;
/// The most that the kernel takes for a number of orphans.
const MOST_ORPHANS: u64 = i32::MAX as u64;

/// Kernel settings whose values are shares of the machine's memory, in bytes.
pub fn of_memory(memory: u64) -> [Sysctl<String>; 4] {
    // Thirty-seconds of memory, in pages: where use is free, where TCP saves, and the end.
    let pages = |shares: [u64; 3]| {
        let numbers = shares.map(|share| (memory / 32 * share / PAGE).to_string());
        numbers.join(" ")
    };
    let share = |path, value, why| Sysctl {
        path,
        value,
        weight: Weight::Service,
        why,
        source: Source::Ours,
    };
    [
        share(
            "fs/aio-max-nr",
            (memory / 16 / AIO_REQUEST).max(LEAST_AIO).to_string(),
            "requests of asynchronous I/O count for the machine, and are charged to nobody: a sixteenth of memory at most, and 128 MiB on a small machine, as one database asks for thousands",
        ),
        share(
            "net/ipv4/tcp_mem",
            pages([2, 3, 4]),
            "buffers of TCP count for the machine: an eighth (the kernel's is 3/32), no more, since nobody is charged for what comes before a connection is accepted",
        ),
        share(
            "net/ipv4/udp_mem",
            pages([4, 6, 8]),
            "those of UDP: a quarter (the kernel's is 3/16), as each is charged to its pod; beyond an eighth only sockets get something that have almost nothing waiting, as clients of DNS",
        ),
        share(
            "net/ipv4/tcp_max_orphans",
            (memory / PAGE).min(MOST_ORPHANS).to_string(),
            "connections that were closed before their data was taken count for the machine (4,096 with 1 GiB), and beyond that every close is a reset; the data of each, a page at least, stays charged to its pod",
        ),
    ]
}

/// Kernel settings, in the order in which init writes them: before any module is loaded, so that
/// network cards that appear later inherit the values under `default`.
pub const SYSCTLS: [Sysctl; 57] = [
    service(
        "vm/overcommit_memory",
        "1",
        Source::Kubelet,
        "the limits of pods decide, not an estimate of committed memory",
    ),
    service(
        "vm/panic_on_oom",
        "0",
        Source::Kubelet,
        "out of memory kills a pod, not the machine",
    ),
    service(
        "kernel/pid_max",
        "4194304",
        Source::Kubelet,
        "process limits of containers don't help if a few containers use up all ids",
    ),
    service("kernel/panic", "10", Source::Kubelet, "a panic reboots"),
    service(
        "kernel/panic_on_oops",
        "1",
        Source::Kubelet,
        "after an oops the kernel is not trusted to continue",
    ),
    service(
        "kernel/threads-max",
        "4194304",
        Source::Ours,
        "as pid_max; the kernel's (one for 128 KiB of memory) is two containers' limit on a small machine, and binds root too",
    ),
    service(
        "fs/file-max",
        BEYOND_MEMORY,
        Source::Ours,
        "open files count for the machine, and beyond it every process without SYS_ADMIN gets ENFILE; they are charged to their pods",
    ),
    service(
        "fs/nr_open",
        "1048576",
        Source::KernelDocs,
        "the most open files of one process, whose table no limit lets grow further",
    ),
    service(
        "fs/epoll/max_user_watches",
        BEYOND_MEMORY,
        Source::Ours,
        "they count by user, and agent, containerd and root of a container are one; they are charged to their pods",
    ),
    service(
        "fs/pipe-user-pages-soft",
        "0",
        Source::Ours,
        "beyond it all pipes of a user are of two pages; their pages are charged to their pods",
    ),
    service(
        "fs/inotify/max_user_instances",
        MOST,
        Source::Ours,
        "they count by user, as epoll's watches do, and containerd has one for each pod",
    ),
    service(
        "fs/inotify/max_user_watches",
        MOST,
        Source::Ours,
        "the same for what an instance watches",
    ),
    service(
        "kernel/pty/max",
        "1048576",
        Source::Ours,
        "terminals count for the machine; each container has a bound of its own, in its mount",
    ),
    guard(
        "kernel/kptr_restrict",
        "2",
        Source::Kspp,
        "hides kernel addresses",
    ),
    guard(
        "kernel/dmesg_restrict",
        "1",
        Source::Kspp,
        "only root reads the kernel's messages, which contain addresses",
    ),
    guard(
        "debug/exception-trace",
        "0",
        Source::Ours,
        "no line in the kernel's log for each program that crashes: any pod could fill it with them",
    ),
    guard(
        "kernel/perf_event_paranoid",
        "3",
        Source::Kspp,
        "only root uses performance events, which had many vulnerabilities",
    ),
    guard(
        "kernel/kexec_load_disabled",
        "1",
        Source::Kspp,
        "no kexec into another kernel, which no register would show",
    ),
    guard(
        "kernel/randomize_va_space",
        "2",
        Source::Kspp,
        "programs get random addresses at every start",
    ),
    guard(
        "kernel/yama/ptrace_scope",
        "3",
        Source::Kspp,
        "no process can trace another or take its files; debuggers don't work",
    ),
    guard(
        "kernel/unprivileged_bpf_disabled",
        "1",
        Source::Kspp,
        "only root loads BPF programs; locked until the next boot",
    ),
    guard(
        "net/core/bpf_jit_harden",
        "2",
        Source::Kspp,
        "constants in BPF programs can't be used as code",
    ),
    guard(
        IO_URING,
        "2",
        Source::Kspp,
        "io_uring had many vulnerabilities; off unless user-data asks for it",
    ),
    guard(
        "kernel/sysrq",
        "0",
        Source::Kspp,
        "no magic SysRq, also not by a break on the serial line",
    ),
    guard(
        "kernel/core_pattern",
        "/dev/null",
        Source::Ours,
        "no core files, which would write pods' secrets to the disk",
    ),
    guard(
        "kernel/core_uses_pid",
        "0",
        Source::Ours,
        "otherwise the process id would make a file beside /dev/null",
    ),
    guard(
        "fs/suid_dumpable",
        "0",
        Source::Kspp,
        "setuid programs leave no core file",
    ),
    guard(
        "fs/protected_symlinks",
        "1",
        Source::Kspp,
        "symbolic links of others in shared folders are not followed",
    ),
    guard(
        "fs/protected_hardlinks",
        "1",
        Source::Kspp,
        "no hard links to files that the user can't write",
    ),
    guard(
        "fs/protected_fifos",
        "2",
        Source::Kspp,
        "FIFOs of others in shared folders are not opened for writing",
    ),
    guard("fs/protected_regular", "2", Source::Kspp, "nor files"),
    guard(
        "vm/mmap_min_addr",
        "65536",
        Source::Kspp,
        "a null pointer in the kernel can't point to a program's memory",
    ),
    guard(
        "vm/mmap_rnd_bits",
        "32",
        Source::Kspp,
        "maximum randomness of mappings",
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
        "only root can stall the kernel in the middle of a copy (userfaultfd)",
    ),
    guard(
        "dev/tty/ldisc_autoload",
        "0",
        Source::Kspp,
        "no user can load old line disciplines",
    ),
    guard(
        "dev/tty/legacy_tiocsti",
        "0",
        Source::Kspp,
        "no program can inject input into a terminal (TIOCSTI)",
    ),
    guard(
        "kernel/unprivileged_userns_clone",
        "0",
        Source::Ours,
        "only the machine's root makes user namespaces, the root of a pod's own none (a setting of Debian's kernels)",
    ),
    guard(
        "user/max_user_namespaces",
        "1024",
        Source::Ours,
        "the agent makes one for each pod with hostUsers: false, and has as many ranges of ids; KSPP's 0 would allow none",
    ),
    guard(
        "net/ipv4/conf/all/accept_redirects",
        "0",
        Source::KernelDocs,
        "ICMP redirects can't change routes",
    ),
    guard(
        "net/ipv4/conf/default/accept_redirects",
        "0",
        Source::KernelDocs,
        "the same for network cards that appear later",
    ),
    guard(
        "net/ipv4/conf/all/secure_redirects",
        "0",
        Source::KernelDocs,
        "nor can redirects that claim to come from the gateway",
    ),
    guard(
        "net/ipv4/conf/default/secure_redirects",
        "0",
        Source::KernelDocs,
        "the same for network cards that appear later",
    ),
    guard(
        "net/ipv4/conf/all/send_redirects",
        "0",
        Source::KernelDocs,
        "and this machine sends no redirects",
    ),
    guard(
        "net/ipv4/conf/default/send_redirects",
        "0",
        Source::KernelDocs,
        "the same for network cards that appear later",
    ),
    guard(
        "net/ipv4/conf/all/accept_source_route",
        "0",
        Source::KernelDocs,
        "no source routing, which could bypass filters",
    ),
    guard(
        "net/ipv4/conf/default/accept_source_route",
        "0",
        Source::KernelDocs,
        "the same for network cards that appear later",
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
        "a SYN flood does not fill the connection table",
    ),
    service(
        "net/ipv4/neigh/default/gc_thresh3",
        "65536",
        Source::Ours,
        "a pod that calls all addresses of the machine's segment keeps it from no neighbour (the kernel's 1024 are soon full)",
    ),
    service(
        "net/ipv6/neigh/default/gc_thresh3",
        "65536",
        Source::Ours,
        "as for IPv4",
    ),
    service(
        "net/ipv4/icmp_echo_ignore_broadcasts",
        "1",
        Source::KernelDocs,
        "the machine does not amplify broadcast pings",
    ),
    service(
        "net/ipv4/icmp_ignore_bogus_error_responses",
        "1",
        Source::KernelDocs,
        "bogus ICMP errors don't fill the log",
    ),
    service(
        "net/ipv4/tcp_rfc1337",
        "1",
        Source::KernelDocs,
        "a late reset does not end a connection in TIME-WAIT (RFC 1337)",
    ),
];
