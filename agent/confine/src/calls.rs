//! The table of every system call of Linux 6.12 on x86: its purpose, and which containers may make
//! it.
//!
//! The filters allow calls by this table: a call that is not in it, such as a later kernel's, is
//! refused. Calls that only 32-bit programs make are listed beside their 64-bit forms, since such
//! programs run, too.

/// Which containers may make a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Every container.
    All,
    /// Containers with this capability, and those that ask for `Unconfined`: without the capability
    /// the kernel refuses.
    With(&'static str),
    /// Containers without this capability: with it, the call's effect depends on memory, which no
    /// filter can examine. The error is ENOSYS, so that programs use another call.
    Without(&'static str),
    /// Containers that ask for `Unconfined`.
    Unconfined,
    /// Every container that does not share the machine's process ids.
    OwnProcesses,
    /// Containers that ask for `Unconfined` and do not share the machine's process ids.
    UnconfinedOwnProcesses,
    /// Every container, but only with some arguments, which the filter examines.
    Examined,
    /// No container; only a privileged one, which has no filter.
    Nobody,
}

use Who::{All, Examined, Nobody, OwnProcesses, Unconfined, UnconfinedOwnProcesses, With, Without};

/// Calls by purpose: the purpose, with the reason where no container may make them; which
/// containers may make them; their names.
pub(crate) const CALLS: &[(&str, Who, &str)] = &[
    (
        "files: open, read, write, seek, map",
        All,
        "open openat openat2 creat close close_range read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 \
         lseek _llseek dup dup2 dup3 fcntl fcntl64 flock ioctl sendfile sendfile64 splice tee vmsplice copy_file_range \
         truncate truncate64 ftruncate ftruncate64 fallocate fadvise64 fadvise64_64 readahead fsync fdatasync sync syncfs \
         sync_file_range cachestat memfd_create name_to_handle_at",
    ),
    (
        "files: names, folders, owners, attributes",
        All,
        "access faccessat faccessat2 stat stat64 lstat lstat64 fstat fstat64 newfstatat fstatat64 statx statfs statfs64 \
         fstatfs fstatfs64 oldstat oldlstat oldfstat ustat getcwd chdir fchdir mkdir mkdirat rmdir getdents getdents64 readdir \
         link linkat unlink unlinkat symlink symlinkat readlink readlinkat rename renameat renameat2 \
         chmod fchmod fchmodat fchmodat2 chown chown32 fchown fchown32 fchownat lchown lchown32 umask utime utimes futimesat \
         utimensat utimensat_time64 getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr \
         removexattr lremovexattr fremovexattr",
    ),
    (
        "files: nodes of devices, but for the machine's console",
        Examined,
        "mknod mknodat",
    ),
    (
        "waiting for files and events",
        All,
        "select _newselect pselect6 pselect6_time64 poll ppoll ppoll_time64 epoll_create epoll_create1 epoll_ctl \
         epoll_ctl_old epoll_wait epoll_wait_old epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 inotify_init \
         inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark io_setup io_submit io_cancel io_getevents io_pgetevents \
         io_pgetevents_time64 io_destroy pipe pipe2",
    ),
    (
        "network",
        All,
        "socketpair bind listen accept accept4 connect shutdown getsockname getpeername getsockopt setsockopt send sendto \
         sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64 socketcall",
    ),
    // 32-bit programs make sockets by socketcall, too, whose arguments no filter sees; C libraries
    // of that kind need it. No image's kernel has the family that is left out, and none can load it
    // (image_build::modules).
    (
        "network: all families but AF_VSOCK, which reaches the host of a virtual machine",
        Examined,
        "socket",
    ),
    (
        "memory",
        All,
        "mmap mmap2 munmap mremap remap_file_pages mprotect madvise brk msync mincore mlock mlock2 mlockall munlock munlockall \
         membarrier pkey_alloc pkey_free pkey_mprotect map_shadow_stack memfd_secret mseal",
    ),
    (
        "processes and threads",
        All,
        "fork vfork execve execveat exit exit_group wait4 waitid waitpid getpid gettid getppid getpgid setpgid getpgrp getsid \
         setsid set_tid_address set_robust_list rseq arch_prctl prctl modify_ldt set_thread_area get_thread_area futex \
         futex_time64 futex_waitv futex_wait futex_wake futex_requeue restart_syscall pause uretprobe",
    ),
    (
        "threads and processes, in the container's own namespaces",
        Examined,
        "clone",
    ),
    (
        "signals",
        All,
        "kill tkill tgkill signal sigaction sigpending sigprocmask sigreturn sigsuspend sigaltstack rt_sigaction \
         rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 \
         rt_tgsigqueueinfo sgetmask ssetmask pidfd_open pidfd_send_signal",
    ),
    (
        "users, groups, capabilities and self-confinement",
        All,
        "getuid getuid32 geteuid geteuid32 getgid getgid32 getegid getegid32 getgroups getgroups32 getresuid getresuid32 \
         getresgid getresgid32 setuid setuid32 setgid setgid32 setreuid setreuid32 setregid setregid32 setresuid setresuid32 \
         setresgid setresgid32 setgroups setgroups32 setfsuid setfsuid32 setfsgid setfsgid32 capget capset seccomp \
         landlock_create_ruleset landlock_add_rule landlock_restrict_self lsm_get_self_attr lsm_set_self_attr \
         lsm_list_modules",
    ),
    (
        "scheduling and limits",
        All,
        "sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_getparam sched_setparam sched_getscheduler \
         sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_rr_get_interval_time64 getpriority \
         setpriority nice ioprio_get getrlimit ugetrlimit setrlimit getrusage getcpu times",
    ),
    (
        "scheduling by classes that keep to a control group's share: real-time ones pass over it, and over the machine's own programs",
        Examined,
        "sched_setscheduler ioprio_set",
    ),
    (
        "scheduling by a class that stands in memory; without the capability the kernel refuses real-time ones",
        Without("SYS_NICE"),
        "sched_setattr",
    ),
    (
        "limits, with the machine's process ids only its own",
        Examined,
        "prlimit64",
    ),
    (
        "time",
        All,
        "time gettimeofday clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep \
         clock_nanosleep_time64 nanosleep alarm getitimer setitimer timer_create timer_delete timer_getoverrun timer_gettime \
         timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime \
         timerfd_settime64 adjtimex clock_adjtime clock_adjtime64",
    ),
    (
        "System V and POSIX messages, semaphores and shared memory",
        All,
        "ipc msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget mq_open \
         mq_unlink mq_notify mq_getsetattr mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64",
    ),
    (
        "what the machine is",
        All,
        "uname olduname oldolduname sysinfo getrandom",
    ),
    (
        "execution domains: Linux with or without the 32-bit and 2.6 marks",
        Examined,
        "personality",
    ),
    ("another root folder", With("SYS_CHROOT"), "chroot"),
    (
        "placing memory on nodes",
        With("SYS_NICE"),
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("watching whole folders", Unconfined, "fanotify_init"),
    ("listing its own mounts", Unconfined, "statmount listmount"),
    (
        "debugging processes of the container",
        OwnProcesses,
        "ptrace process_vm_readv process_vm_writev get_robust_list",
    ),
    (
        "looking into and moving the memory of processes of the container",
        UnconfinedOwnProcesses,
        "kcmp pidfd_getfd process_madvise process_mrelease migrate_pages move_pages",
    ),
    (
        "mounts: the machine's file systems, the TPM's devices among them, come into reach by a mount; the runtime makes all that a container needs",
        Nobody,
        "mount umount umount2 pivot_root fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr",
    ),
    (
        "setting the machine's clock: it decides which certificates and tokens are in force",
        Nobody,
        "clock_settime clock_settime64 settimeofday stime",
    ),
    (
        "namespaces: a user namespace gives all capabilities over kernel code that is written for root; entering another leaves the container",
        Nobody,
        "unshare setns",
    ),
    (
        "a clone whose arguments no filter can see: its flags may make namespaces and enter control groups; the answer is ENOSYS, so that the C library uses clone",
        Nobody,
        "clone3",
    ),
    (
        "opening files by handle: it passes by all mounts and leaves the container's file system",
        Nobody,
        "open_by_handle_at",
    ),
    (
        "programs and counters in the kernel: by BPF the device filter is detached; performance counters observe the kernel and other containers",
        Nobody,
        "bpf perf_event_open",
    ),
    (
        "kernel modules and other kernels: they replace the kernel that was measured",
        Nobody,
        "init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load kexec_file_load",
    ),
    (
        "io_uring: its operations are system calls that no filter sees",
        Nobody,
        "io_uring_setup io_uring_enter io_uring_register",
    ),
    (
        "keys in the kernel: keyrings belong to users and not to containers: user 0 of every container shares the machine's own",
        Nobody,
        "add_key request_key keyctl",
    ),
    (
        "page faults by user code: it holds the kernel still in the middle of a copy, which exploits build on",
        Nobody,
        "userfaultfd",
    ),
    (
        "the machine's devices, power, swap, quotas, accounting, log and names: they act on the machine as a whole",
        Nobody,
        "ioperm iopl reboot swapon swapoff quotactl quotactl_fd acct syslog vhangup sethostname setdomainname",
    ),
    (
        "what is obsolete, or was never implemented: no program of this century needs it",
        Nobody,
        "_sysctl sysfs uselib lookup_dcookie nfsservctl vm86 vm86old afs_syscall bdflush break ftime getpmsg gtty idle lock \
         mpx prof profil putpmsg security stty tuxcall ulimit vserver",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_call_is_listed_once() {
        let mut seen = BTreeSet::new();
        for (purpose, _, names) in CALLS {
            for name in names.split_ascii_whitespace() {
                assert!(seen.insert(name), "{name} of {purpose:?} comes twice");
            }
        }
        // unistd_64.h and unistd_32.h of Linux 6.12 together, with the two that only socketcall of
        // 32-bit programs has.
        assert_eq!(seen.len(), 464);
    }
}
