//! Runs the process that holds the PID namespace which a pod's containers share: a container of its
//! own with only [`crate::pause`] in it. It is not in the pod's spec, and lists don't show it.

use super::Containerd;
use crate::c_strings;
use crate::labels::{self, Labels};
use crate::mapped::give;
use crate::model::{
    Confinement, ContainerKey, ContainerKind, ContainerSpec, GroupsPolicy, Pause, Resources,
    SharedNamespaces, container_id,
};
use crate::pause;
use crate::programs;
use crate::spec::runtime_spec;
use crate::specification;
use crate::users::Identity;
use agent_confine::{Capabilities, KernelView, Seccomp};
use agent_containerd::{Error, ErrorClass, failed, request};
use agent_images::{ImageDefaults, SNAPSHOTTER};
use containerd_client::services::v1::{
    Container as Stored, CreateContainerRequest, CreateTaskRequest, StartRequest,
};
use containerd_client::types::Mount;
use containerd_client::types::v1::Status as TaskStatus;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Upstream's value: nearly the last process to be killed when memory runs out.
const OOM_SCORE: i32 = -998;
/// More processes and threads than the runtime needs to start one.
const MOST_PROCESSES: u64 = 64;

impl Containerd {
    /// The id of the process's container; starts it if it does not run.
    pub(super) async fn hold_processes(&self, wanted: &Pause) -> Result<String, Error> {
        let id = id(&wanted.pod.uid);
        let status = self.task(&id).await?.map(|task| task.status);
        match status.and_then(|status| TaskStatus::try_from(status).ok()) {
            Some(TaskStatus::Running) => return Ok(id),
            // Its shim did not answer in time. If it were killed by mistake, all containers of the
            // pod would end.
            Some(TaskStatus::Unknown | TaskStatus::Paused | TaskStatus::Pausing) => {
                let text = "the pod's first process does not answer";
                return Err(Error::new(ErrorClass::Unavailable, text));
            }
            Some(TaskStatus::Created | TaskStatus::Stopped) | None => {}
        }
        self.clear(&id).await?;
        match self.begin_pause(&id, wanted).await {
            Ok(()) => Ok(id),
            Err(error) => {
                self.clear(&id).await?;
                Err(error)
            }
        }
    }

    /// Kills and removes it, if it exists.
    pub(super) async fn release_processes(&self, uid: &str) -> Result<(), Error> {
        let id = id(uid);
        if self.is_known(&id).await? {
            self.clear(&id).await?;
        }
        Ok(())
    }

    async fn begin_pause(&self, id: &str, wanted: &Pause) -> Result<(), Error> {
        let fail = || failed(ErrorClass::Create, "start the pod's first process");
        let spec = specification(wanted);
        let image = ImageDefaults::default();
        let identity = Identity {
            uid: pause::USER,
            gid: pause::USER,
            groups: vec![pause::USER],
        };
        let document = runtime_spec(&spec, id, &image, &identity, &self.host)?;
        c_strings::check("specification", &document)?;
        specification::keep(&self.options, id, &document)?;
        let stored = Stored {
            id: id.to_owned(),
            labels: Labels::from([(labels::POD_UID.to_owned(), wanted.pod.uid.clone())]),
            runtime: Some(programs::runtime(self.options.programs.as_ref(), 0)),
            spec: Some(specification::given(&self.options, &document)),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: id.to_owned(),
            ..Stored::default()
        };
        let create = CreateContainerRequest {
            container: Some(stored),
        };
        self.containers()
            .create(request(create))
            .await
            .map_err(fail())?;
        // A layer without a parent.
        let rootfs = self.prepare(id, "").await.map_err(fail())?;
        let folder = folder(&rootfs);
        let first = wanted.namespaces.users.as_ref().map(|users| users.first);
        let write = move || write_program(&folder?, first);
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.map_err(io::Error::other).flatten();
        written.map_err(|error| {
            let text = "write the program of the pod's first process";
            Error::caused(ErrorClass::Create, text, error)
        })?;
        let create = CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            ..CreateTaskRequest::default()
        };
        self.tasks().create(request(create)).await.map_err(fail())?;
        let start = StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        self.tasks().start(request(start)).await.map_err(fail())?;
        Ok(())
    }
}

/// The id for an empty container name, which no container in a pod's spec has.
fn id(uid: &str) -> String {
    container_id(uid, "", 0)
}

/// The folder of a layer without a parent, on this machine.
fn folder(mounts: &[Mount]) -> io::Result<PathBuf> {
    let bound = mounts.iter().find(|mount| mount.r#type == "bind");
    let source = bound.map(|mount| PathBuf::from(&mount.source));
    source.ok_or_else(|| io::Error::other("the layer is no folder"))
}

/// Writes the program as a file of the machine's root, also for a pod with a user namespace: only
/// the folder belongs to its root, the machine's user `first`.
fn write_program(folder: &Path, first: Option<u32>) -> io::Result<()> {
    if let Some(first) = first {
        give(folder, first)?;
    }
    let path = folder.join(pause::NAME);
    std::fs::write(&path, pause::program())?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(pause::MODE))
}

/// A container without privileges, in the pod's namespaces and with a PID namespace of its own.
fn specification(wanted: &Pause) -> ContainerSpec {
    ContainerSpec {
        key: ContainerKey {
            pod: wanted.pod.clone(),
            container: String::new(),
            kind: ContainerKind::Main,
            attempt: 0,
        },
        image: String::new(),
        image_digest: None,
        command: Some(vec![format!("/{}", pause::NAME)]),
        args: None,
        env: Vec::new(),
        working_dir: None,
        mounts: Vec::new(),
        keeps: Vec::new(),
        shared: SharedNamespaces::default(),
        pod: wanted.namespaces.clone(),
        target: None,
        user: None,
        group: None,
        supplemental_groups: Vec::new(),
        groups_policy: GroupsPolicy::Strict,
        capabilities: Capabilities {
            add: Vec::new(),
            drop: vec!["ALL".to_owned()],
        },
        confinement: Confinement {
            run_as_non_root: true,
            read_only_root: true,
            no_new_privileges: true,
        },
        privileged: false,
        view: KernelView::Least,
        stop_signal: None,
        seccomp: Seccomp::RuntimeDefault,
        resources: Resources {
            pids_limit: Some(MOST_PROCESSES),
            ..Resources::default()
        },
        needs: None,
        oom_score_adj: OOM_SCORE,
        cgroup_parent: wanted.cgroup_parent.clone(),
        stdin: false,
        tty: false,
        backoff: None,
        round: 0,
        log_path: PathBuf::new(),
    }
}
