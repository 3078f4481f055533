//! Compares our default filter with upstream's: each difference has its reason.
//!
//! [`NAMES`] are facts of containerd's profile (contrib/seccomp/seccomp_default.go at
//! 96929a5d3102bdc9d5d108c104ddb38c8991a789, of series 1.7): the calls that a container with
//! Kubernetes' default capabilities may make on amd64 under Linux 4.8 or later, whatever their
//! arguments, and those that it may make with some ([`BY_ARGUMENT`]).

use crate::seccomp::{FilterOptions, Seccomp, filter};
use std::collections::BTreeSet;

const NAMES: &str = "accept accept4 access adjtimex alarm arch_prctl bind brk capget capset chdir chmod chown chown32 chroot \
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 \
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit \
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchown \
    fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 \
    fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_time64 futex_waitv futimesat get_robust_list \
    get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups \
    getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32 \
    getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 \
    getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents \
    io_pgetevents io_pgetevents_time64 io_setup io_submit io_uring_enter io_uring_register io_uring_setup ioctl \
    ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 \
    lgetxattr link linkat listen listxattr llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64 madvise \
    membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 \
    modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend \
    mq_timedsend_time64 mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep \
    newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 poll ppoll ppoll_time64 \
    prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pselect6_time64 ptrace pwrite64 pwritev \
    pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg \
    remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending \
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 \
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam \
    sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr \
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 \
    send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid \
    setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid \
    setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid \
    setuid32 setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socket \
    socketcall socketpair splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs \
    sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime \
    timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill \
    truncate truncate64 ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork \
    vmsplice wait4 waitid waitpid write writev";
const BY_ARGUMENT: &str = "clone personality";

/// Calls that upstream allows and we don't, or not with all arguments.
const NARROWER: [(&str, &str); 6] = [
    (
        "mknod mknodat",
        "a container makes no node of the machine's console, which the runtime's filter of devices lets it open",
    ),
    (
        "io_uring_enter io_uring_register io_uring_setup",
        "its operations are system calls that no filter sees; later profiles of upstream leave it out, too",
    ),
    (
        "process_mrelease",
        "acts on other processes, as process_madvise does: with Unconfined alone",
    ),
    (
        "socket",
        "all families but AF_VSOCK, which later profiles of upstream leave out, too",
    ),
    (
        "ioprio_set sched_setscheduler",
        "all classes but the real-time ones, which pass over a control group's share; sched_setattr is left out with SYS_NICE, too",
    ),
    (
        "prlimit64",
        "of its own process alone, in a container that sees the machine's processes",
    ),
];

/// Calls that we allow and upstream doesn't.
const WIDER: [(&str, &str); 5] = [
    (
        "cachestat fchmodat2 futex_requeue futex_wait futex_wake lsm_get_self_attr lsm_list_modules lsm_set_self_attr \
         map_shadow_stack mseal uretprobe",
        "newer than that profile; they act on files, memory and attributes that the caller has",
    ),
    (
        "pkey_alloc pkey_free pkey_mprotect",
        "protection of the caller's own memory; there are programs that need it",
    ),
    (
        "nice oldfstat oldlstat oldolduname oldstat olduname readdir sgetmask sigaction signal sigpending sigsuspend ssetmask ustat",
        "old forms of calls that both allow, made by old programs, nearly all of 32 bits",
    ),
    (
        "process_vm_readv process_vm_writev",
        "under the same check of the kernel as ptrace, which both allow",
    ),
    (
        "name_to_handle_at",
        "names a file that the caller reaches; open_by_handle_at, which would open it elsewhere, nobody may call",
    ),
];

fn words(text: &str) -> BTreeSet<&str> {
    text.split_ascii_whitespace().collect()
}

/// The calls of our filter: allowed whatever their arguments, and allowed with some.
fn ours(host_pid: bool) -> (BTreeSet<String>, BTreeSet<String>) {
    let filter = filter(FilterOptions {
        profile: Seccomp::RuntimeDefault,
        capabilities: &["CAP_SYS_CHROOT".to_owned()],
        host_pid,
    });
    let (mut whole, mut some) = (BTreeSet::new(), BTreeSet::new());
    for rule in filter["syscalls"].as_array().unwrap() {
        if rule["action"] == "SCMP_ACT_ALLOW" {
            let names = rule["names"].as_array().unwrap().iter();
            let names = names.map(|name| name.as_str().unwrap().to_owned());
            if rule.get("args").is_some() {
                some.extend(names);
            } else {
                whole.extend(names);
            }
        }
    }
    (whole, some)
}

fn of<'a>(table: &[(&'a str, &'a str)]) -> BTreeSet<&'a str> {
    table.iter().flat_map(|(names, _)| words(names)).collect()
}

#[test]
fn each_difference_from_upstreams_default_filter_has_its_reason() {
    let (whole, some) = ours(false);
    let whole: BTreeSet<&str> = whole.iter().map(String::as_str).collect();
    let upstream = words(NAMES);
    assert_eq!(upstream.len(), 350);
    let narrower: BTreeSet<&str> = upstream.difference(&whole).copied().collect();
    let wider: BTreeSet<&str> = whole.difference(&upstream).copied().collect();
    let (_, of_host) = ours(true);
    let only_of_host = of_host.difference(&some).map(String::as_str);
    assert_eq!(
        narrower
            .into_iter()
            .chain(only_of_host)
            .collect::<BTreeSet<_>>(),
        of(&NARROWER)
    );
    assert_eq!(wider, of(&WIDER));
    let by_argument: BTreeSet<&str> = some.iter().map(String::as_str).collect();
    assert_eq!(
        by_argument,
        &words(BY_ARGUMENT) | &words("ioprio_set mknod mknodat sched_setscheduler socket")
    );
}
