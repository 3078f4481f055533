//! The container engine as the kubelet uses it: the trait, its arguments and its results.

use agent_confine::{Capabilities, KernelView, Seccomp};
use agent_containerd::Pending;
use agent_images::{Image, ImageSpace, Keyring, Progress, PullPolicy};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The pod that a container belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// The pod's uid, which no two pods share.
    pub uid: String,
}

/// The kinds of a pod's containers. Init containers run in order before the main ones; sidecars
/// start in their turn, and run as long as the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    /// One of `spec.initContainers` that ends.
    Init,
    /// One of `spec.initContainers` with `restartPolicy: Always` (KEP-753).
    Sidecar,
    /// One of `spec.ephemeralContainers`: a debugger in a running pod (KEP-277).
    Ephemeral,
    /// One of `spec.containers`.
    Main,
}

/// Which container of which pod, and which of its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerKey {
    /// The pod.
    pub pod: PodRef,
    /// The container's name in the pod.
    pub container: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// 0 for the first start, one more for each restart.
    pub attempt: u32,
}

/// The engine's id of an attempt. It is derived from the key alone, so that the same attempt cannot
/// exist twice, whichever run of the agent starts it.
pub fn container_id(pod_uid: &str, container: &str, attempt: u32) -> String {
    let mut hash = Sha256::new();
    for part in [pod_uid.as_bytes(), container.as_bytes()] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.update(attempt.to_be_bytes());
    hex::encode(hash.finalize())
}

/// A file or folder of the host that is mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub destination: String,
    /// No writes through this mount.
    pub read_only: bool,
    /// No files there are executed.
    pub no_exec: bool,
    /// Which mounts below it are seen on both sides.
    pub propagation: agent_sys::attach::Propagation,
}

/// The layers of an image, as folders of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// The engine's name for all of them: see [`ContainerSpec::keeps`].
    pub name: String,
    /// The topmost first.
    pub folders: Vec<PathBuf>,
}

/// The namespaces that the containers of a pod share, by the paths at which they are held. Where
/// network or UTS is `None`, the container is in the host's; where IPC is `None`, it gets a
/// namespace of its own, unless [`SharedNamespaces::ipc`] asks for the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodNamespaces {
    /// The network.
    pub network: Option<PathBuf>,
    /// System V and POSIX IPC.
    pub ipc: Option<PathBuf>,
    /// Host name.
    pub uts: Option<PathBuf>,
    /// The folder in memory that is `/dev/shm`.
    pub shm: Option<PathBuf>,
    /// The user namespace, which owns the others.
    pub users: Option<UserNamespace>,
}

/// A user namespace and the ids of the machine that it maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserNamespace {
    /// The file by which the namespace is held.
    pub namespace: PathBuf,
    /// The machine's id that id 0 of the namespace is mapped to; [`agent_sys::namespace::IDS`] ids
    /// are mapped.
    pub first: u32,
    /// The folder at which the engine may mount the layers of an image while it makes a container.
    /// Its parent exists, and the caller of [`Runtime::start`] removes what is left.
    pub layers: PathBuf,
}

/// The process that holds the PID namespace which the containers of a pod share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Its pod.
    pub pod: PodRef,
    /// The pod's other namespaces.
    pub namespaces: PodNamespaces,
    /// Absolute path of the cgroup above its own.
    pub cgroup_parent: String,
}

/// Namespaces of the host that a container shares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedNamespaces {
    /// Process ids.
    pub pid: bool,
    /// System V and POSIX IPC.
    pub ipc: bool,
}

/// What a container may not do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Refuse to start as user 0.
    pub run_as_non_root: bool,
    /// No writes to the root file system.
    pub read_only_root: bool,
    /// Set-user-id programs gain no privileges.
    pub no_new_privileges: bool,
}

/// Whether a process gets the groups that its image's `/etc/group` lists for its user (KEP-3619).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupsPolicy {
    /// The process has them, too.
    #[default]
    Merge,
    /// It has none of them.
    Strict,
}

/// Limits of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    /// Request in thousandths of a CPU; becomes the weight.
    pub cpu_request_millis: u64,
    /// Limit in thousandths of a CPU.
    pub cpu_limit_millis: Option<u64>,
    /// Limit in bytes.
    pub memory_limit: Option<u64>,
    /// Processes and threads.
    pub pids_limit: Option<u64>,
}

/// All that the engine needs to run one attempt of a container.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// Identity.
    pub key: ContainerKey,
    /// Image as written in the pod; it must be on the machine ([`Runtime::obtain_image`]).
    pub image: String,
    /// Digest of the image that its pod was shown to be entitled to ([`Image::digest`]); the
    /// attempt starts from no other. `None` if that was not checked.
    pub image_digest: Option<String>,
    /// Replaces the image's entry point; then the image's arguments are dropped too.
    pub command: Option<Vec<String>>,
    /// Replaces the image's arguments.
    pub args: Option<Vec<String>>,
    /// Added to the image's environment, in order; replaces variables of the same name.
    pub env: Vec<(String, String)>,
    /// Replaces the image's working directory.
    pub working_dir: Option<String>,
    /// Volumes and files, in order of mounting.
    pub mounts: Vec<Mount>,
    /// Names of the [`Layers`] of its image volumes; they are kept as long as the container.
    pub keeps: Vec<String>,
    /// Namespaces of the host that it shares.
    pub shared: SharedNamespaces,
    /// Namespaces of its pod.
    pub pod: PodNamespaces,
    /// Id of the running container, or of the process of [`Runtime::share_processes`], whose PID
    /// namespace it joins; `None`: it gets one of its own.
    pub target: Option<String>,
    /// Replaces the image's user.
    pub user: Option<u32>,
    /// Replaces the image's group.
    pub group: Option<u32>,
    /// Further groups.
    pub supplemental_groups: Vec<u32>,
    /// Whether the process also gets the groups that the image lists for its user.
    pub groups_policy: GroupsPolicy,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// What it may not do.
    pub confinement: Confinement,
    /// All capabilities, no seccomp filter, and the machine's devices except its TPM. The caller
    /// has checked that the machine's configuration allows that.
    pub privileged: bool,
    /// What an unprivileged container sees of `/proc` (`procMount`): more than the default only in
    /// a pod with a user namespace. The caller has checked that the machine's configuration allows
    /// that.
    pub view: KernelView,
    /// Replaces the image's stop signal: `SIGUSR1` (KEP-4960).
    pub stop_signal: Option<String>,
    /// System call filter.
    pub seccomp: Seccomp,
    /// Limits.
    pub resources: Resources,
    /// The resources of the pod's spec, in the caller's own form; [`Container::needs`] returns
    /// them. At most 3 KiB.
    pub needs: Option<String>,
    /// −1000 (killed last) … 1000.
    pub oom_score_adj: i32,
    /// Absolute path of the cgroup above the container's own.
    pub cgroup_parent: String,
    /// Whether it has a stdin, to which attached clients write.
    pub stdin: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// The back-off before this attempt; kept so that the next one can be longer.
    pub backoff: Option<Duration>,
    /// How often all containers of its pod were restarted together before: [`Container::round`].
    pub round: u32,
    /// Where the log goes, in the CRI format.
    pub log_path: PathBuf,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// By itself, or by a signal.
    Own,
    /// The kernel killed it, as it was out of memory.
    OutOfMemory,
    /// Its first process could not be started, and why.
    NotStarted(String),
    /// Its end was not observed, for example because the machine lost power.
    Unseen,
    /// The engine has no record of it, though it ran.
    Lost,
}

impl ExitCause {
    /// Upstream's reason for an end with this exit code, in the container's status and in metrics.
    pub fn reason(&self, code: i32) -> &'static str {
        match self {
            Self::NotStarted(_) => "StartError",
            Self::OutOfMemory => "OOMKilled",
            Self::Unseen => "Unknown",
            Self::Lost => "ContainerStatusUnknown",
            Self::Own if code == 0 => "Completed",
            Self::Own => "Error",
        }
    }
}

/// The state of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, and not known to have been started.
    Created,
    /// Its first process runs.
    Running {
        /// When it was started.
        started_at: Timestamp,
    },
    /// Its first process ended.
    Exited {
        /// When it was started.
        started_at: Timestamp,
        /// When it ended, or was found gone.
        finished_at: Timestamp,
        /// Exit code: 128 + number for a signal; 255 if the end was not observed, 137 if the engine
        /// has no record of the container (upstream's codes).
        code: i32,
        /// How it ended.
        cause: ExitCause,
    },
}

/// A container as the engine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The engine's id.
    pub id: String,
    /// Identity.
    pub key: ContainerKey,
    /// Image as written in the pod.
    pub image: String,
    /// `repository@sha256:…` of the image that it runs.
    pub image_id: String,
    /// State.
    pub state: ContainerState,
    /// The back-off before it.
    pub backoff: Option<Duration>,
    /// How often all containers of its pod were restarted together before it, as its
    /// [`ContainerSpec`] said.
    pub round: u32,
    /// Whether it was started since the machine booted.
    pub this_boot: bool,
    /// The name of its stop signal, such as `SIGTERM`.
    pub stop_signal: Option<String>,
    /// The resources that it was given last, as the caller wrote them ([`ContainerSpec::needs`]).
    pub needs: Option<String>,
    /// User and groups of its first process at its start; none before that, or if there are too
    /// many groups to record.
    pub user: Option<User>,
}

/// User and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// All its groups, including that one.
    pub groups: Vec<u32>,
}

/// What a command in a container printed and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code; `None` if it exceeded its limit, and was killed.
    pub code: Option<i32>,
    /// Both outputs together, cut at 10 KiB.
    pub output: Vec<u8>,
}

/// News from the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Something about a container of this pod changed.
    Pod(String),
    /// The connection was lost and is back: anything may have changed.
    All,
}

/// A container engine.
///
/// Guarantees: [`Runtime::list`] shows every container that was ever made and not removed, also
/// those made by an earlier run of the agent; two calls of [`Runtime::start`] for one key make at
/// most one container.
pub trait Runtime: Send + Sync + fmt::Debug + 'static {
    /// Name and version, as in `containerd://1.7.24`; an error means that the engine isn't up.
    fn version(&self) -> Pending<'_, String>;

    /// Makes sure that the image is on the machine and ready to run, and that a pod with these keys
    /// may run it: an image that a registry gave only to the holder of a pull secret is given to
    /// other pods only when the registry gives it to them, too (KEP-2535, policy
    /// `NeverVerifyPreloadedImages`).
    fn obtain_image<'a>(
        &'a self,
        image: &'a str,
        policy: PullPolicy,
        keys: &'a Keyring,
    ) -> Pending<'a, Image>;

    /// The same for a pod without keys.
    fn ensure_image<'a>(&'a self, image: &'a str, policy: PullPolicy) -> Pending<'a, Image> {
        self.obtain_image(image, policy, Keyring::NONE)
    }

    /// The progress of an image's pull; none if the image is not being pulled, or before the
    /// registry has sent its manifest.
    fn pull_progress(&self, image: &str) -> Option<Progress>;

    /// The layers of an image that is on the machine with this digest ([`Image::digest`]). They
    /// stay while the image does, or a container that keeps them.
    fn layers<'a>(&'a self, image: &'a str, digest: &'a str) -> Pending<'a, Layers>;

    /// Makes the container and starts its first process.
    ///
    /// After an error nothing of it runs. An error of class [`crate::ErrorClass::Start`] leaves the
    /// container as [`ContainerState::Exited`] with code 128, so that it counts as an attempt.
    fn start<'a>(&'a self, spec: &'a ContainerSpec) -> Pending<'a, ()>;

    /// Makes sure that there is a process whose PID namespace the containers of a pod can share,
    /// and returns its id, which they name as their [`ContainerSpec::target`]. [`Runtime::list`]
    /// does not show it. If it ends, all processes of the namespace end.
    fn share_processes<'a>(&'a self, wanted: &'a Pause) -> Pending<'a, String>;

    /// Ends that process, and with it all processes of its PID namespace; no error if there is
    /// none.
    fn end_sharing<'a>(&'a self, pod_uid: &'a str) -> Pending<'a, ()>;

    /// Asks the container to end, with its stop signal: the pod's, else the image's, else SIGTERM.
    fn stop<'a>(&'a self, id: &'a str) -> Pending<'a, ()>;

    /// Ends all processes of the container at once.
    fn kill<'a>(&'a self, id: &'a str) -> Pending<'a, ()>;

    /// Sets other limits of a running container, and records its pod's resources (`needs`).
    fn resize<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
        needs: &'a str,
    ) -> Pending<'a, ()>;

    /// Removes the root file system of a container that has ended, with all that it wrote there.
    /// [`Runtime::list`] still shows the container and its end, and its log stays. No error if the
    /// container does not exist. After an error, the next call continues where this one ended.
    fn empty<'a>(&'a self, id: &'a str) -> Pending<'a, ()>;

    /// Removes a container that doesn't run, with its root file system, however long that takes;
    /// its log stays.
    fn remove<'a>(&'a self, id: &'a str) -> Pending<'a, ()>;

    /// The containers of the pod with this uid, or of every pod.
    fn list<'a>(&'a self, pod_uid: Option<&'a str>) -> Pending<'a, Vec<Container>>;

    /// Runs a command in a running container and waits for its end, at most `limit`.
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        limit: Duration,
    ) -> Pending<'a, ExecOutput>;

    /// Starts another process in a running container, with streams for a client.
    fn open<'a>(
        &'a self,
        id: &'a str,
        command: &'a crate::process::Command,
    ) -> Pending<'a, crate::process::Process>;

    /// The streams of a running container's own process; its output still goes to the log. Stdin is
    /// included if `stdin` asks for it, and the container has one that has not ended.
    fn attach<'a>(&'a self, id: &'a str, stdin: bool) -> Pending<'a, crate::process::Attached>;

    /// The name that an image has on the machine ([`Image::name`]), from the name in a pod's spec;
    /// `None` if that is not an image reference.
    fn full_name(&self, image: &str) -> Option<String>;

    /// Images on the machine.
    fn images(&self) -> Pending<'_, Vec<Image>>;

    /// The disk space that images take.
    fn image_space(&self) -> Pending<'_, ImageSpace>;

    /// The folder of a container's writable layer; `None` once it is removed.
    fn layer<'a>(&'a self, id: &'a str) -> Pending<'a, Option<PathBuf>>;

    /// Forgets an image; its data is deleted when nothing else uses it.
    fn remove_image<'a>(&'a self, name: &'a str) -> Pending<'a, ()>;

    /// News; each receiver gets all of them from now on.
    fn changes(&self) -> tokio::sync::broadcast::Receiver<Change>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_where_keys_differ_and_fit_containerd() {
        assert_ne!(container_id("u", "ab", 0), container_id("ua", "b", 0));
        assert_ne!(container_id("u", "a", 0), container_id("u", "a", 1));
        assert_eq!(container_id("u", "a", 0), container_id("u", "a", 0));
        assert!(container_id("u", "a", 0).len() <= 76);
    }
}
