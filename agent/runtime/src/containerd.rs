//! The engine: [`Runtime`] over containerd's services.
//!
//! Life of an attempt: a container whose labels name pod, container and attempt, a snapshot over
//! the image, a task. When the task has ended, its end is written to the labels and the task is
//! deleted, which ends its shim; the container stays as the record of the attempt until it is
//! removed. Its snapshot may be removed before.

mod accounts;
mod attempt;
mod known;
mod layers;
mod mounts;
mod observation;
mod pause;
mod removal;
mod resize;

use crate::emptying::Emptying;
use crate::exec;
use crate::labels::Labels;
use crate::log::Pumps;
use crate::model::{
    Change, Container, ContainerSpec, ExecOutput, Layers, Pause, Resources, Runtime,
};
use crate::open;
use crate::pids::Depth;
use crate::process::{Attached, Command, Process};
use crate::programs::Programs;
use crate::spec::Host;
use accounts::Remembered;
use agent_confine::Turns;
use agent_containerd::{Error, ErrorClass, Pending, channel, failed, request};
use agent_images::{Image, ImageSpace, Images, Keyring, Progress, PullPolicy, Registries};
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use containerd_client::services::v1::{Container as Stored, UpdateContainerRequest};
use containerd_client::tonic::transport::Channel;
use known::Known;
use prost_types::FieldMask;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell, broadcast};

/// Capacity of the change broadcast; a reader that lags lists all containers.
const NEWS: usize = 1024;

/// Where containerd is and what the engine may use of the machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// containerd's socket.
    pub socket: PathBuf,
    /// containerd's root directory: images are on its file system.
    pub state: PathBuf,
    /// Directory of FIFOs and specifications, in memory: it must outlive the agent and not the boot
    /// ([`config_machine::specification::FOLDER`]).
    pub fifos: PathBuf,
    /// Directory of all logs; a log path in a container's record is trusted only below it.
    pub logs: PathBuf,
    /// Registries.
    pub registries: Registries,
    /// The programs that containerd starts for a container; `None`: those of containerd's own
    /// configuration, and its database keeps whole specifications.
    pub programs: Option<Programs>,
    /// Directories with OCI archives that are imported at the start.
    pub archives: Vec<PathBuf>,
}

/// containerd as the kubelet's engine.
#[derive(Debug)]
pub struct Containerd {
    pub(crate) channel: Channel,
    pub(crate) options: Options,
    pub(crate) images: Images,
    pub(crate) pumps: Pumps,
    pub(crate) news: broadcast::Sender<Change>,
    known: Known,
    boot: String,
    host: Host,
    /// The PID namespace of the engine's process; a restart of the engine keeps it.
    depth: OnceCell<Depth>,
    /// Layers of images are looked up one image at a time.
    viewing: Mutex<()>,
    /// A task is deleted by one call at a time. Of two concurrent calls, the later closes
    /// containerd's connection to the shim before the earlier has told it to end, and the shim
    /// stays for ever (containerd#12344).
    deletions: Turns<Mutex<()>>,
    emptying: Emptying,
    accounts: Remembered,
}

impl Containerd {
    /// The engine; nothing is connected before the first call.
    pub fn new(options: Options) -> Self {
        let channel = channel(options.socket.clone());
        let images = Images::new(
            channel.clone(),
            options.registries.clone(),
            options.state.clone(),
        );
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned();
        Self {
            channel,
            images,
            pumps: Pumps::new(options.logs.clone()),
            news: broadcast::channel(NEWS).0,
            known: Known::default(),
            boot,
            host: Host::probe(),
            depth: OnceCell::new(),
            viewing: Mutex::default(),
            deletions: Turns::default(),
            emptying: Emptying::default(),
            accounts: Remembered::default(),
            options,
        }
    }

    pub(crate) fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone())
    }

    pub(crate) fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone())
    }

    fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone())
    }

    /// The PID namespace of the engine; determined once, by a connection of its own.
    ///
    /// # Errors
    /// Nothing listens at the engine's socket, or the process behind it can't be seen in `/proc`.
    pub(crate) async fn depth(&self) -> io::Result<Depth> {
        let depth = self
            .depth
            .get_or_try_init(|| Depth::of(&self.options.socket));
        depth.await.copied()
    }

    /// Writes labels of a container.
    pub(crate) async fn note(
        &self,
        id: &str,
        labels: Vec<(&'static str, String)>,
    ) -> Result<(), Error> {
        let paths = labels
            .iter()
            .map(|(key, _)| format!("labels.{key}"))
            .collect();
        let labels: Labels = labels
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let update = UpdateContainerRequest {
            container: Some(Stored {
                id: id.to_owned(),
                labels,
                ..Stored::default()
            }),
            update_mask: Some(FieldMask { paths }),
        };
        let result = self.containers().update(request(update)).await;
        result.map(drop).map_err(failed(
            ErrorClass::NotFound,
            format!("label container {id}"),
        ))
    }

    pub(crate) async fn ask_version(&self) -> Result<String, Error> {
        let fail = failed(ErrorClass::Unavailable, "ask containerd for its version");
        let answer = VersionClient::new(self.channel.clone())
            .version(request(()))
            .await
            .map_err(fail)?
            .into_inner();
        Ok(format!(
            "containerd://{}",
            answer.version.trim_start_matches('v')
        ))
    }
}

impl Host {
    /// Determines the machine's properties.
    fn probe() -> Self {
        let unified_cgroups = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let capabilities = read("/proc/self/status")
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
            .unwrap_or_default();
        let may_lower = capabilities & (1 << CAP_SYS_RESOURCE) != 0;
        let own = read("/proc/self/oom_score_adj").trim().parse().unwrap_or(0);
        let lowest_oom_score = (!may_lower).then_some(own);
        let tpms = agent_confine::Tpms::find(Path::new("/sys"));
        Self {
            unified_cgroups,
            capabilities,
            lowest_oom_score,
            tpms,
            devices: Vec::new(),
            target: None,
        }
    }
}

/// Number of the capability that lowers `oom_score_adj` (capability.h).
const CAP_SYS_RESOURCE: u32 = 24;

impl Runtime for Containerd {
    fn version(&self) -> Pending<'_, String> {
        Box::pin(self.ask_version())
    }

    fn obtain_image<'a>(
        &'a self,
        image: &'a str,
        policy: PullPolicy,
        keys: &'a Keyring,
    ) -> Pending<'a, Image> {
        Box::pin(self.images.ensure(image, policy, keys))
    }

    fn pull_progress(&self, image: &str) -> Option<Progress> {
        self.images.progress(image)
    }

    fn layers<'a>(&'a self, image: &'a str, digest: &'a str) -> Pending<'a, Layers> {
        Box::pin(self.layers_of(image, digest))
    }

    fn start<'a>(&'a self, spec: &'a ContainerSpec) -> Pending<'a, ()> {
        Box::pin(self.start_attempt(spec))
    }

    fn share_processes<'a>(&'a self, wanted: &'a Pause) -> Pending<'a, String> {
        Box::pin(self.hold_processes(wanted))
    }

    fn end_sharing<'a>(&'a self, pod_uid: &'a str) -> Pending<'a, ()> {
        Box::pin(self.release_processes(pod_uid))
    }

    fn stop<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.ask_to_end(id))
    }

    fn kill<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.signal(id, 9, true))
    }

    fn resize<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
        needs: &'a str,
    ) -> Pending<'a, ()> {
        Box::pin(self.give(id, resources, needs))
    }

    fn empty<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.drop_layer(id))
    }

    fn remove<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.clear(id))
    }

    fn list<'a>(&'a self, pod_uid: Option<&'a str>) -> Pending<'a, Vec<Container>> {
        Box::pin(self.observe_all(pod_uid))
    }

    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        limit: Duration,
    ) -> Pending<'a, ExecOutput> {
        Box::pin(exec::run(self, id, command, limit))
    }

    fn open<'a>(&'a self, id: &'a str, command: &'a Command) -> Pending<'a, Process> {
        Box::pin(open::start(self, id, command))
    }

    fn attach<'a>(&'a self, id: &'a str, stdin: bool) -> Pending<'a, Attached> {
        Box::pin(async move { open::attach(self, id, stdin) })
    }

    fn full_name(&self, image: &str) -> Option<String> {
        let reference = self.images.reference(image).ok()?;
        Some(reference.to_string())
    }

    fn images(&self) -> Pending<'_, Vec<Image>> {
        Box::pin(self.images.list())
    }

    fn image_space(&self) -> Pending<'_, ImageSpace> {
        Box::pin(self.images.space())
    }

    fn remove_image<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(self.images.remove(name))
    }

    fn layer<'a>(&'a self, id: &'a str) -> Pending<'a, Option<PathBuf>> {
        Box::pin(self.upper(id))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.news.subscribe()
    }
}
