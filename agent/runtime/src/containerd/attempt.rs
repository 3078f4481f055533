//! The start of an attempt: its record, its root file system, its task.

use super::Containerd;
use crate::labels::{self, End, Record};
use crate::log::Fifos;
use crate::mapped::mapped;
use crate::model::{ContainerSpec, container_id};
use crate::process::Control;
use crate::programs;
use crate::root;
use crate::signals::signal_number;
use crate::spec::{Host, runtime_spec};
use crate::specification;
use crate::users::{Accounts, Wish};
use agent_containerd::{Error, ErrorClass, failed, request, settled};
use agent_images::{Ready, SNAPSHOTTER};
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::{
    Container as Stored, CreateContainerRequest, CreateTaskRequest, StartRequest,
    UpdateContainerRequest,
};
use containerd_client::tonic::{Code, Status};
use containerd_client::types::Mount;
use containerd_client::types::v1::Status as TaskStatus;
use jiff::Timestamp;
use prost_types::FieldMask;
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A task that takes longer to be made has failed: an emulated machine takes seconds. What is made
/// holds a turn that other pods wait for.
const CREATE_LIMIT: Duration = Duration::from_secs(60);
/// Exit code of an attempt whose first process could not be started (upstream's).
const CODE_START_ERROR: i32 = 128;

/// What a recorded container was given.
struct Filled {
    /// What its root file system is mounted from.
    rootfs: Vec<Mount>,
    /// The process that its specification names.
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
        let stored = self.record(spec, &id, &ready).await?;
        let filled = match self.fill(spec, stored, &ready).await {
            Ok(filled) => filled,
            Err(error) => {
                self.clear(&id).await?;
                return Err(error);
            }
        };
        match self.begin(spec, &id, filled).await {
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

    /// Makes the container's record, which comes first: an attempt that exists is left alone. The
    /// record also keeps the coming snapshot from containerd's garbage collector.
    async fn record(&self, spec: &ContainerSpec, id: &str, ready: &Ready) -> Result<Stored, Error> {
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
            user: None,
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
            spec: Some(specification::any(&json!({}))),
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
        // Before it is made: a list that comes between finds no record.
        self.known.add(&spec.key.pod.uid, id);
        self.containers()
            .create(request(create))
            .await
            .map_err(fail)?;
        Ok(stored)
    }

    /// The first process of the container whose processes this one is to see; none where it asks
    /// for none.
    ///
    /// # Errors
    /// That container doesn't run.
    async fn target(&self, spec: &ContainerSpec) -> Result<Option<u32>, Error> {
        let Some(id) = &spec.target else {
            return Ok(None);
        };
        let task = self.task(id).await?;
        let running = task.filter(|task| task.status == TaskStatus::Running as i32);
        let name = &spec.key.container;
        let text = format!("the container that {name} is to look into does not run");
        running
            .map(|task| Some(task.pid))
            .ok_or_else(|| Error::new(ErrorClass::Create, text))
    }

    /// Gives a recorded container its root file system and its specification.
    async fn fill(
        &self,
        spec: &ContainerSpec,
        stored: Stored,
        ready: &Ready,
    ) -> Result<Filled, Error> {
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
        let users = spec.pod.users.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let layers = root::layers(&mounts);
            root::check(&layers)?;
            let accounts = Accounts::read(&layers);
            let mounts = match users {
                Some(users) => mapped(mounts, &users)?,
                None => mounts,
            };
            Ok((accounts, mounts))
        });
        let (accounts, mounts) = looked.await.map_err(|error| {
            Error::caused(ErrorClass::Create, "look at the image's files", error)
        })??;
        if !spec.privileged {
            let mut at = spec.mounts.iter().map(|mount| &mount.destination);
            at.try_for_each(|at| root::check_volume(at))?;
        }
        let identity =
            accounts.identity(ready.defaults.user.as_deref().unwrap_or_default(), wish)?;
        let target = self.target(spec).await?;
        let host = Host {
            target,
            ..self.host_for(spec)
        };
        let mut document = runtime_spec(spec, &stored.id, &ready.defaults, &identity, &host)?;
        accounts.give_home(identity.uid, &mut document);
        let mut stored = stored;
        stored.spec = Some(specification::keep(&self.options, &stored.id, &document)?);
        let mut paths = vec!["spec".to_owned()];
        if let Some(user) = labels::user_text(&identity.user(spec)) {
            paths.push(format!("labels.{}", labels::USER));
            stored.labels.insert(labels::USER.to_owned(), user);
        }
        let update = UpdateContainerRequest {
            container: Some(stored),
            update_mask: Some(FieldMask { paths }),
        };
        self.containers()
            .update(request(update))
            .await
            .map_err(fail())?;
        Ok(Filled {
            rootfs: mounts,
            target,
        })
    }

    /// The machine as it is now: devices come and go.
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
            // A start that was cut off has left it.
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

    /// Makes and starts the task, its output already read.
    async fn begin(&self, spec: &ContainerSpec, id: &str, filled: Filled) -> Result<(), Error> {
        let Filled { rootfs, target } = filled;
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
        // The runtime gives the streams that it is started with to the pod's root. Without a pipe,
        // the input would be the machine's own `/dev/null`, which the pod sees as its own: its
        // owner may close it to all others.
        let input = spec.stdin || spec.pod.users.is_some();
        if input {
            fifos.make_input().map_err(|error| {
                Error::caused(ErrorClass::Create, "make the container's input", error)
            })?;
        }
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let create = CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            stdin: if input {
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
        };
        let mut create = request(create);
        create.set_timeout(CREATE_LIMIT);
        let made = self.tasks().create(create).await.map_err(fail())?;
        if !spec.privileged {
            self.confine_mounts(spec, id, made.into_inner().pid).await?;
        }
        // The PID could have been reused between the lookup and the start. It was not, if the
        // container still has it: no process gets the PID of a living one.
        if self.target(spec).await? != target {
            let text = "the container to look into was started anew meanwhile";
            return Err(Error::new(ErrorClass::Start, text));
        }
        let start = StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        self.tasks().start(request(start)).await.map_err(fail())?;
        if input && !spec.stdin {
            let own = Control::own(self.channel.clone(), id);
            own.end_input().await?;
        }
        self.note(id, vec![(labels::STARTED, Timestamp::now().to_string())])
            .await
    }
}
