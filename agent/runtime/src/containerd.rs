//! The engine: [`Runtime`] over containerd's services.
//!
//! Life of an attempt: a snapshot over the image, a container whose labels say whose it is, a task. When the
//! task has ended, its end is written to the labels and the task is deleted, which ends its shim; the
//! container stays as the record of the attempt until it is removed.

use crate::confine::paths;
use crate::connection::{channel, failed, is_absent, request, settled, unlimited};
use crate::exec;
use crate::images::{Images, Ready, SNAPSHOTTER};
use crate::keyring::Keyring;
use crate::labels::{self, End, Labels, Record};
use crate::log::{Fifos, Pumps};
use crate::memory;
use crate::model::{
    Change, Container, ContainerSpec, ContainerState, Error, ErrorClass, ExecOutput, Image,
    Pending, PullPolicy, Runtime, container_id,
};
use crate::programs::{self, Programs};
use crate::registry::Registries;
use crate::spec::{Host, runtime_spec, signal_number};
use crate::users::{Accounts, Wish};
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use containerd_client::services::v1::{
    Container as Stored, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest,
    DeleteTaskRequest, GetContainerRequest, GetRequest, KillRequest, ListContainersRequest,
    StartRequest, UpdateContainerRequest,
};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Status};
use containerd_client::types::Mount;
use containerd_client::types::v1::{Process, Status as TaskStatus};
use jiff::Timestamp;
use prost_types::{Any, FieldMask};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::broadcast;

/// Type of a runtime specification in containerd's messages.
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// Exit code of an attempt whose end nobody saw: the machine went down under it.
const CODE_UNKNOWN: i32 = 255;
/// Exit code of an attempt whose first process could not be started (upstream's).
const CODE_START_ERROR: i32 = 128;
/// How often a task that was killed is looked at until it can be deleted, and how far apart.
const DELETE_TRIES: u32 = 40;
const DELETE_PAUSE: Duration = Duration::from_millis(50);
/// News that a slow reader may miss before it is told to look at everything.
const NEWS: usize = 1024;

/// Where containerd is and what the engine may use of the machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// containerd's socket.
    pub socket: PathBuf,
    /// containerd's root directory, on whose file system images lie.
    pub state: PathBuf,
    /// Directory of FIFOs; it must outlive the agent and not the boot (`/run/pratique/io`).
    pub fifos: PathBuf,
    /// Directory below which all logs lie; what a container's record says of its log is believed no further.
    pub logs: PathBuf,
    /// Registries.
    pub registries: Registries,
    /// What containerd starts for a container; `None`: as it is set up.
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
    boot: String,
    host: Host,
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
            boot,
            host: Host::probe(),
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

    async fn start_attempt(&self, spec: &ContainerSpec) -> Result<(), Error> {
        let id = container_id(&spec.key.pod.uid, &spec.key.container, spec.key.attempt);
        let reference = self.images.reference(&spec.image)?;
        let missing = || {
            Error::new(
                ErrorClass::Create,
                format!("image {reference} is not on the machine"),
            )
        };
        let ready = self.images.find(&reference).await?.ok_or_else(missing)?;
        if spec
            .image_digest
            .as_ref()
            .is_some_and(|digest| *digest != ready.image.digest)
        {
            let message = format!(
                "image {reference} became another one while the container was being started"
            );
            return Err(Error::new(ErrorClass::Create, message));
        }
        let stored = self.record(spec, &id, &ready).await?;
        if let Err(error) = self.fill(spec, stored, &ready).await {
            self.clear(&id).await?;
            return Err(error);
        }
        match self.begin(spec, &id).await {
            Ok(()) => Ok(()),
            Err(error) if error.class == ErrorClass::Unavailable => Err(error),
            Err(error) => {
                self.drop_task(&id).await?;
                let end = End {
                    at: Timestamp::now(),
                    code: CODE_START_ERROR,
                    start_error: Some(error.chain()),
                };
                self.note(&id, end.labels()).await?;
                Err(error)
            }
        }
    }

    /// Makes the container's record, without which there is nothing: if the attempt exists, it is left alone.
    /// It also keeps the snapshot that is to come from containerd's collector.
    async fn record(&self, spec: &ContainerSpec, id: &str, ready: &Ready) -> Result<Stored, Error> {
        let record = Record {
            key: spec.key.clone(),
            image: spec.image.clone(),
            image_id: ready.image_id.clone(),
            log: spec.log_path.clone(),
            backoff: spec.backoff,
            boot: self.boot.clone(),
            stop_signal: ready
                .defaults
                .stop_signal
                .as_deref()
                .and_then(signal_number)
                .unwrap_or(15),
            created_at: Timestamp::now(),
            started_at: None,
            end: None,
            oom_killed: false,
        };
        let stored = Stored {
            id: id.to_owned(),
            labels: record.labels(),
            image: ready.image.name.clone(),
            runtime: Some(programs::runtime(self.options.programs.as_ref())),
            spec: Some(Any {
                type_url: SPEC_TYPE.to_owned(),
                value: b"{}".to_vec(),
            }),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: id.to_owned(),
            ..Stored::default()
        };
        let create = CreateContainerRequest {
            container: Some(stored.clone()),
        };
        let fail = failed(
            ErrorClass::Create,
            format!("create container {}", spec.key.container),
        );
        self.containers()
            .create(request(create))
            .await
            .map_err(fail)?;
        Ok(stored)
    }

    /// Gives a recorded container its root file system and its specification.
    async fn fill(&self, spec: &ContainerSpec, stored: Stored, ready: &Ready) -> Result<(), Error> {
        let fail = || {
            failed(
                ErrorClass::Create,
                format!("create container {}", spec.key.container),
            )
        };
        let mounts = self
            .prepare(&stored.id, &ready.snapshot)
            .await
            .map_err(fail())?;
        let wish = Wish {
            user: spec.user,
            group: spec.group,
        };
        let accounts = tokio::task::spawn_blocking(move || Accounts::read(&mounts))
            .await
            .unwrap_or_default();
        let identity =
            accounts.identity(ready.defaults.user.as_deref().unwrap_or_default(), wish)?;
        let document = runtime_spec(
            spec,
            &stored.id,
            &ready.defaults,
            &identity,
            &self.host_for(spec),
        )?
        .to_string();
        let spec_any = Any {
            type_url: SPEC_TYPE.to_owned(),
            value: document.into_bytes(),
        };
        let update = UpdateContainerRequest {
            container: Some(Stored {
                spec: Some(spec_any),
                ..stored
            }),
            update_mask: Some(FieldMask {
                paths: vec!["spec".to_owned()],
            }),
        };
        self.containers()
            .update(request(update))
            .await
            .map(drop)
            .map_err(fail())
    }

    /// The machine as it is now: devices come and go.
    fn host_for(&self, spec: &ContainerSpec) -> Host {
        let devices = if spec.privileged {
            paths::devices(Path::new("/dev"), &self.host.tpms)
        } else {
            Vec::new()
        };
        Host {
            devices,
            ..self.host.clone()
        }
    }

    async fn prepare(&self, id: &str, parent: &str) -> Result<Vec<Mount>, Status> {
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        settled(
            self.snapshots().remove(request(remove)).await,
            Code::NotFound,
        )?;
        let prepare = PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
            parent: parent.to_owned(),
            labels: HashMap::new(),
        };
        Ok(self
            .snapshots()
            .prepare(request(prepare))
            .await?
            .into_inner()
            .mounts)
    }

    /// Makes and starts the task, its output already read.
    async fn begin(&self, spec: &ContainerSpec, id: &str) -> Result<(), Error> {
        let fail = || {
            failed(
                ErrorClass::Start,
                format!("start container {}", spec.key.container),
            )
        };
        let fifos = Fifos::of(&self.options.fifos, id);
        self.pumps
            .begin(id, &fifos, &spec.log_path)
            .map_err(|error| {
                Error::caused(
                    ErrorClass::Create,
                    format!("open the log {}", spec.log_path.display()),
                    error,
                )
            })?;
        let mounts = containerd_client::services::v1::snapshots::MountsRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        let rootfs = self
            .snapshots()
            .mounts(request(mounts))
            .await
            .map_err(fail())?
            .into_inner()
            .mounts;
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let create = CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            stdout: text(&fifos.stdout),
            stderr: if spec.tty {
                String::new()
            } else {
                text(&fifos.stderr)
            },
            terminal: spec.tty,
            ..CreateTaskRequest::default()
        };
        self.tasks().create(request(create)).await.map_err(fail())?;
        let start = StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        self.tasks().start(request(start)).await.map_err(fail())?;
        self.note(id, vec![(labels::STARTED, Timestamp::now().to_string())])
            .await
    }

    /// The upper folder of a container's overlay.
    async fn upper(&self, id: &str) -> Result<Option<PathBuf>, Error> {
        let key = containerd_client::services::v1::snapshots::MountsRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        let result = self.snapshots().mounts(request(key)).await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at the layer of {id}"));
        let mounts = result.map_err(fail)?.into_inner().mounts;
        let mut options = mounts.iter().flat_map(|mount| &mount.options);
        Ok(options
            .find_map(|option| option.strip_prefix("upperdir="))
            .map(PathBuf::from))
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

    async fn task(&self, id: &str) -> Result<Option<Process>, Error> {
        let get = GetRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        let result = self.tasks().get(request(get)).await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at task {id}"));
        Ok(result.map_err(fail)?.into_inner().process)
    }

    /// Ends and deletes the task, if there is one, with all of its output in the log.
    async fn drop_task(&self, id: &str) -> Result<(), Error> {
        let doing = || format!("delete task {id}");
        let mut result = self.delete_task(id).await;
        for _ in 0..DELETE_TRIES {
            if !result
                .as_ref()
                .is_err_and(|status| status.code() == Code::FailedPrecondition)
            {
                break;
            }
            // It lives, or it has just been killed and its end is on the way.
            self.signal(id, 9, true).await?;
            tokio::time::sleep(DELETE_PAUSE).await;
            result = self.delete_task(id).await;
        }
        settled(result, Code::NotFound).map_err(failed(ErrorClass::Create, doing()))?;
        self.pumps.finish(id).await;
        Ok(())
    }

    async fn delete_task(&self, id: &str) -> Result<(), Status> {
        self.tasks()
            .delete(request(DeleteTaskRequest {
                container_id: id.to_owned(),
            }))
            .await
            .map(drop)
    }

    async fn signal(&self, id: &str, signal: u32, all: bool) -> Result<(), Error> {
        let kill = KillRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
            signal,
            all,
        };
        let result = self.tasks().kill(request(kill)).await;
        settled(result, Code::NotFound).map_err(failed(
            ErrorClass::Create,
            format!("signal {signal} to {id}"),
        ))
    }

    /// Removes every trace of an attempt but its log.
    async fn clear(&self, id: &str) -> Result<(), Error> {
        let fail = || failed(ErrorClass::Create, format!("remove container {id}"));
        self.drop_task(id).await?;
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        settled(
            self.snapshots().remove(request(remove)).await,
            Code::NotFound,
        )
        .map_err(fail())?;
        let delete = DeleteContainerRequest { id: id.to_owned() };
        settled(
            self.containers().delete(request(delete)).await,
            Code::NotFound,
        )
        .map_err(fail())?;
        Fifos::of(&self.options.fifos, id).remove();
        Ok(())
    }

    async fn stored(&self, id: &str) -> Result<Option<Record>, Error> {
        let result = self
            .containers()
            .get(request(GetContainerRequest { id: id.to_owned() }))
            .await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at container {id}"));
        Ok(result
            .map_err(fail)?
            .into_inner()
            .container
            .and_then(|stored| Record::read(&stored.labels)))
    }

    async fn observe_all(&self, pod_uid: Option<&str>) -> Result<Vec<Container>, Error> {
        let fail = || failed(ErrorClass::Create, "list containers");
        // Quoted as containerd's filters want it; uids have no quotes, and what has is refused.
        let quoted = |uid: &str| uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let filter = match pod_uid {
            Some(uid) if !quoted(uid) => {
                return Err(Error::new(ErrorClass::Config, format!("pod uid {uid:?}")));
            }
            Some(uid) => format!("labels.\"{}\"==\"{uid}\"", labels::POD_UID),
            None => format!("labels.\"{}\"", labels::POD_UID),
        };
        let list = ListContainersRequest {
            filters: vec![filter],
        };
        let mut stream = self
            .containers()
            .list_stream(unlimited(list))
            .await
            .map_err(fail())?
            .into_inner();
        let mut all = Vec::new();
        while let Some(message) = stream.message().await.map_err(fail())? {
            let Some(stored) = message.container else {
                continue;
            };
            if let Some(record) = Record::read(&stored.labels) {
                all.push((stored.id, record));
            }
        }
        let mut observed = Vec::with_capacity(all.len());
        for (id, record) in all {
            observed.extend(self.observe(id, record).await?);
        }
        Ok(observed)
    }

    /// Looks at one container; its end, if it has come, is written down before it is told.
    async fn observe(&self, id: String, record: Record) -> Result<Option<Container>, Error> {
        if record.end.is_some() {
            return Ok(Some(self.container(id, record, false)));
        }
        let task = self.task(&id).await?;
        let status = task
            .as_ref()
            .and_then(|task| TaskStatus::try_from(task.status).ok());
        match (task, status) {
            (Some(_), Some(TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing)) => {
                let fifos = Fifos::of(&self.options.fifos, &id);
                if let Err(error) = self.pumps.begin(&id, &fifos, &record.log) {
                    tracing::warn!(container = id, %error, "output not read");
                }
                Ok(Some(self.container(id, record, true)))
            }
            (Some(task), Some(TaskStatus::Stopped)) => {
                let at = task
                    .exited_at
                    .and_then(instant)
                    .unwrap_or_else(Timestamp::now);
                let code = i32::try_from(task.exit_status).unwrap_or(CODE_UNKNOWN);
                self.finish(
                    id,
                    End {
                        at,
                        code,
                        start_error: None,
                    },
                )
                .await
            }
            (None, _) if record.started_at.is_some() => match self.stored(&id).await? {
                // Another look was faster.
                Some(record) if record.end.is_some() => Ok(Some(self.container(id, record, false))),
                Some(_) => {
                    self.finish(
                        id,
                        End {
                            at: Timestamp::now(),
                            code: CODE_UNKNOWN,
                            start_error: None,
                        },
                    )
                    .await
                }
                None => Ok(None),
            },
            (_, Some(TaskStatus::Created | TaskStatus::Unknown) | None) | (None, Some(_)) => {
                Ok(Some(self.container(id, record, false)))
            }
        }
    }

    async fn finish(&self, id: String, end: End) -> Result<Option<Container>, Error> {
        let mut labels = end.labels();
        // Before the task is deleted, and the group with it.
        if self
            .group(&id)
            .await?
            .is_some_and(|group| memory::ran_out(&group))
        {
            labels.push((labels::OOM, "true".to_owned()));
        }
        self.note(&id, labels).await?;
        self.drop_task(&id).await?;
        Ok(self
            .stored(&id)
            .await?
            .map(|record| self.container(id, record, false)))
    }

    /// The control group that a container's specification names.
    async fn group(&self, id: &str) -> Result<Option<String>, Error> {
        let result = self
            .containers()
            .get(request(GetContainerRequest { id: id.to_owned() }))
            .await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at container {id}"));
        let spec = result
            .map_err(fail)?
            .into_inner()
            .container
            .and_then(|stored| stored.spec)
            .unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&spec.value).unwrap_or_default();
        Ok(document
            .pointer("/linux/cgroupsPath")
            .and_then(|path| path.as_str())
            .map(str::to_owned))
    }

    fn container(&self, id: String, record: Record, running: bool) -> Container {
        let started_at = record.started_at.unwrap_or(record.created_at);
        let state = match record.end {
            Some(end) => ContainerState::Exited {
                started_at,
                finished_at: end.at,
                code: end.code,
                oom_killed: record.oom_killed,
                start_error: end.start_error,
            },
            None if running => ContainerState::Running { started_at },
            None => ContainerState::Created,
        };
        Container {
            id,
            key: record.key,
            image: record.image,
            image_id: record.image_id,
            state,
            backoff: record.backoff,
            this_boot: record.boot == self.boot,
        }
    }

    /// The pod that a container belongs to, if it is a pod's and still there.
    pub(crate) async fn record_of(&self, id: &str) -> Option<String> {
        self.stored(id)
            .await
            .ok()
            .flatten()
            .map(|record| record.key.pod.uid)
    }

    /// Asks the first process to end, in the way that its image chose.
    async fn ask_to_end(&self, id: &str) -> Result<(), Error> {
        let signal = self
            .stored(id)
            .await?
            .map_or(15, |record| record.stop_signal);
        self.signal(id, signal, false).await
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

/// A time of containerd's messages.
pub(crate) fn instant(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

impl Host {
    /// Looks at the machine.
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
        let tpms = paths::Tpms::find(Path::new("/sys"));
        Self {
            unified_cgroups,
            capabilities,
            lowest_oom_score,
            tpms,
            devices: Vec::new(),
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

    fn start<'a>(&'a self, spec: &'a ContainerSpec) -> Pending<'a, ()> {
        Box::pin(self.start_attempt(spec))
    }

    fn stop<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.ask_to_end(id))
    }

    fn kill<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        Box::pin(self.signal(id, 9, true))
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

    fn images(&self) -> Pending<'_, Vec<Image>> {
        Box::pin(self.images.list())
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
