//! Starts an attempt: makes its record, its root file system and its task.

use super::Containerd;
use super::mounts::with_state;
use crate::c_strings;
use crate::labels::{self, End, Record};
use crate::log::Fifos;
use crate::mapped::mapped;
use crate::model::{ContainerSpec, User, container_id};
use crate::programs;
use crate::root;
use crate::signals::signal_number;
use crate::spec::{Host, runtime_spec};
use crate::specification;
use crate::users::RequestedIds;
use agent_containerd::{Error, ErrorClass, failed, request, settled};
use agent_images::{Ready, SNAPSHOTTER};
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::{
    Container as Stored, CreateContainerRequest, CreateTaskRequest, StartRequest,
};
use containerd_client::tonic::{Code, Status};
use containerd_client::types::Mount;
use containerd_client::types::v1::Status as TaskStatus;
use jiff::Timestamp;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for creating a task: an emulated machine takes seconds. Meanwhile the start holds a
/// turn that other pods wait for.
const CREATE_LIMIT: Duration = Duration::from_secs(60);
/// Exit code of an attempt whose first process could not be started (upstream's).
const CODE_START_ERROR: i32 = 128;

/// What image and pod determine of a container, before it is made.
struct Draft {
    specification: Value,
    user: User,
    /// The process whose PID namespace the specification names.
    target: Option<u32>,
}

impl Containerd {
    pub(super) async fn start_attempt(&self, spec: &ContainerSpec) -> Result<(), Error> {
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
        let draft = self.draft(spec, &id, &ready).await?;
        let _starting = self.known.start(&id);
        self.record(spec, &id, &ready, &draft).await?;
        let rootfs = match self.fill(spec, &id, &ready, &draft).await {
            Ok(rootfs) => rootfs,
            Err(error) => {
                self.clear_unused(&id).await?;
                return Err(error);
            }
        };
        match self.begin(spec, &id, rootfs, draft.target).await {
            Ok(()) => Ok(()),
            Err(error) if error.class == ErrorClass::Unavailable => Err(error),
            Err(error) => {
                self.drop_task(&id).await?;
                let end = End {
                    at: Timestamp::now(),
                    code: CODE_START_ERROR,
                    start_error: Some(error.chain()),
                    unseen: false,
                };
                self.note(&id, end.labels()).await?;
                Err(error)
            }
        }
    }

    /// Determines the specification of a container; nothing is made yet.
    ///
    /// # Errors
    /// The image or the pod requires what a container can't have.
    async fn draft(&self, spec: &ContainerSpec, id: &str, ready: &Ready) -> Result<Draft, Error> {
        let accounts = self.accounts_of(ready).await?;
        if !spec.privileged {
            let at = spec.mounts.iter().map(|mount| mount.destination.as_str());
            root::check_volumes(&at.collect::<Vec<_>>())?;
        }
        let requested = RequestedIds {
            user: spec.user,
            group: spec.group,
        };
        let identity = accounts.identity(
            ready.defaults.user.as_deref().unwrap_or_default(),
            requested,
        )?;
        let target = self.target(spec).await?;
        let host = Host {
            target,
            ..self.host_for(spec)
        };
        let mut specification = runtime_spec(spec, id, &ready.defaults, &identity, &host)?;
        accounts.give_home(identity.uid, &mut specification);
        c_strings::check("specification", &specification)?;
        Ok(Draft {
            specification,
            user: identity.user(spec),
            target,
        })
    }

    /// Makes the container's record, which comes first: an attempt that exists is left alone. The
    /// record also keeps the coming snapshot from containerd's garbage collector.
    async fn record(
        &self,
        spec: &ContainerSpec,
        id: &str,
        ready: &Ready,
        draft: &Draft,
    ) -> Result<(), Error> {
        let record = Record {
            key: spec.key.clone(),
            image: spec.image.clone(),
            image_id: ready.image_id.clone(),
            log: spec.log_path.clone(),
            backoff: spec.backoff,
            round: spec.round,
            boot: self.boot.clone(),
            stop_signal: [&spec.stop_signal, &ready.defaults.stop_signal]
                .into_iter()
                .flatten()
                .find_map(|name| signal_number(name))
                .unwrap_or(15),
            needs: spec.needs.clone(),
            user: Some(draft.user.clone()),
            created_at: Timestamp::now(),
            started_at: None,
            end: None,
            oom_killed: false,
        };
        let kept = spec.keeps.iter().enumerate();
        let kept = kept.map(|(number, name)| (labels::kept(number), name.clone()));
        let stored = Stored {
            id: id.to_owned(),
            labels: record.labels().into_iter().chain(kept).collect(),
            image: ready.image.name.clone(),
            runtime: Some(programs::runtime(
                self.options.programs.as_ref(),
                spec.pod.users.as_ref().map_or(0, |users| users.first),
            )),
            spec: Some(specification::given(&self.options, &draft.specification)),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: id.to_owned(),
            ..Stored::default()
        };
        let create = CreateContainerRequest {
            container: Some(stored),
        };
        let fail = failed(
            ErrorClass::Create,
            format!("create container {}", spec.key.container),
        );
        // Before it is made: a list that comes between finds no record.
        self.known.add(&spec.key.pod.uid, id);
        let created = self.containers().create(request(create)).await;
        created.map(drop).map_err(fail)
    }

    /// The first process of the container whose PID namespace this one joins; `None` if it joins
    /// none.
    ///
    /// # Errors
    /// That container doesn't run.
    async fn target(&self, spec: &ContainerSpec) -> Result<Option<u32>, Error> {
        let Some(id) = &spec.target else {
            return Ok(None);
        };
        let task = with_state(|| self.task(id)).await?;
        let running = task.filter(|task| task.status == TaskStatus::Running as i32);
        let name = &spec.key.container;
        let text = format!("the container whose processes {name} shares does not run");
        running
            .map(|task| Some(task.pid))
            .ok_or_else(|| Error::new(ErrorClass::Create, text))
    }

    /// Writes the specification of a recorded container, and makes its root file system; returns
    /// the latter's mounts.
    async fn fill(
        &self,
        spec: &ContainerSpec,
        id: &str,
        ready: &Ready,
        draft: &Draft,
    ) -> Result<Vec<Mount>, Error> {
        // After the record: an attempt that exists keeps its own.
        specification::keep(&self.options, id, &draft.specification)?;
        let fail = failed(
            ErrorClass::Create,
            format!("create container {}", spec.key.container),
        );
        let mounts = self.prepare(id, &ready.snapshot).await.map_err(fail)?;
        let Some(users) = spec.pod.users.clone() else {
            return Ok(mounts);
        };
        let shown = tokio::task::spawn_blocking(move || mapped(mounts, &users)).await;
        shown.map_err(|error| {
            Error::caused(
                ErrorClass::Create,
                "show the image's files as the pod's",
                error,
            )
        })?
    }

    /// The machine's present properties: devices can change.
    fn host_for(&self, spec: &ContainerSpec) -> Host {
        let devices = if spec.privileged {
            agent_confine::devices(Path::new("/dev"), &self.host.tpms)
        } else {
            Vec::new()
        };
        Host {
            devices,
            ..self.host.clone()
        }
    }

    pub(super) async fn prepare(&self, id: &str, parent: &str) -> Result<Vec<Mount>, Status> {
        let prepare = PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
            parent: parent.to_owned(),
            labels: HashMap::new(),
        };
        let prepared = match self.snapshots().prepare(request(prepare.clone())).await {
            // An interrupted start has left it.
            Err(status) if status.code() == Code::AlreadyExists => {
                let remove = RemoveSnapshotRequest {
                    snapshotter: SNAPSHOTTER.to_owned(),
                    key: id.to_owned(),
                };
                let removed = self.snapshots().remove(request(remove)).await;
                settled(removed, Code::NotFound)?;
                self.snapshots().prepare(request(prepare)).await
            }
            prepared => prepared,
        };
        Ok(prepared?.into_inner().mounts)
    }

    /// Starts to read the container's output, and makes its input if it has one.
    fn open_fifos(&self, spec: &ContainerSpec, id: &str) -> Result<Fifos, Error> {
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
        if spec.stdin {
            fifos.make_input().map_err(|error| {
                Error::caused(ErrorClass::Create, "make the container's input", error)
            })?;
        }
        Ok(fifos)
    }

    /// Makes and starts the task, its output already read.
    async fn begin(
        &self,
        spec: &ContainerSpec,
        id: &str,
        rootfs: Vec<Mount>,
        target: Option<u32>,
    ) -> Result<(), Error> {
        let fail = || {
            failed(
                ErrorClass::Start,
                format!("start container {}", spec.key.container),
            )
        };
        let fifos = self.open_fifos(spec, id)?;
        let mut create = request(task_of(spec, id, &fifos, rootfs));
        create.set_timeout(CREATE_LIMIT);
        let made = self.tasks().create(create).await.map_err(fail())?;
        if !spec.privileged {
            self.confine_mounts(spec, id, made.into_inner().pid).await?;
        }
        // The PID could have been reused between the lookup and the start. It was not, if the
        // container still has it: no process gets the PID of a living one.
        if self.target(spec).await? != target {
            let text = "the container whose processes it shares was restarted meanwhile";
            return Err(Error::new(ErrorClass::Start, text));
        }
        let start = StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        // Concurrently: writing the label waits for the disk, which takes as long as the start. If
        // the machine goes down meanwhile, it is unknown whether the container ran, and the label
        // marks it as possibly started.
        let noted = vec![(labels::STARTED, Timestamp::now().to_string())];
        let mut tasks = self.tasks();
        let (started, noted) = tokio::join!(tasks.start(request(start)), self.note(id, noted));
        started.map_err(fail())?;
        noted?;
        Ok(())
    }
}

/// The request for the task of a container.
fn task_of(spec: &ContainerSpec, id: &str, fifos: &Fifos, rootfs: Vec<Mount>) -> CreateTaskRequest {
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    CreateTaskRequest {
        container_id: id.to_owned(),
        rootfs,
        stdin: if spec.stdin {
            text(&fifos.stdin)
        } else {
            String::new()
        },
        stdout: text(&fifos.stdout),
        stderr: if spec.tty {
            String::new()
        } else {
            text(&fifos.stderr)
        },
        terminal: spec.tty,
        ..CreateTaskRequest::default()
    }
}
