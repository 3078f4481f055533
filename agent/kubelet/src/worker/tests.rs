//! The first steps of a pod's task while the master does not answer, and its steps after the pod's
//! end.

use super::*;
use crate::kubelet::tests::{shared, shared_of};
use crate::names::{log_folder, log_name};
use agent_api::{Answer, Api, ApiError, Call, Lines};
use agent_csi::{Csi, DriverOptions};
use agent_images::{Image, Keyring, PullPolicy};
use agent_launch::Machine;
use agent_launch::container::termination_file;
use agent_pods::Eviction;
use agent_runtime::{
    Attached, Change, Command, ContainerSpec, ContainerState, ExecOutput, ExitCause, ImageSpace,
    Layers, Pause, Pending, Process, Progress, Resources, Runtime,
};
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use tests_support::containers::container;
use tokio::sync::broadcast;
use tokio::time::Instant as Moment;

/// An engine whose image pulls never end.
#[derive(Debug)]
struct Fetching {
    other: Arc<dyn Runtime>,
    state: Arc<EngineState>,
}

/// The engine's content, and the calls that it got.
#[derive(Debug, Default)]
pub(crate) struct EngineState {
    /// Its containers.
    pub(crate) seen: Mutex<Vec<Seen>>,
    /// When an image was first requested.
    asked: Mutex<Option<Moment>>,
    /// The containers that were emptied, and whether it fails to do that and to remove one.
    emptied: Mutex<Vec<String>>,
    fails: AtomicBool,
    /// Its images; those whose names end in `-held` can't be removed.
    images: Mutex<Vec<Image>>,
    /// What tells of changes.
    news: OnceLock<broadcast::Sender<Change>>,
}

impl EngineState {
    fn news(&self) -> &broadcast::Sender<Change> {
        self.news.get_or_init(|| broadcast::Sender::new(16))
    }

    /// Sends news; false if nobody listens.
    pub(crate) fn tell(&self, change: Change) -> bool {
        self.news().send(change).is_ok()
    }

    pub(crate) fn set_images(&self, images: Vec<Image>) {
        *self.images.lock().unwrap() = images;
    }

    pub(crate) fn images(&self) -> Vec<Image> {
        self.images.lock().unwrap().clone()
    }

    fn emptied(&self) -> Vec<String> {
        self.emptied.lock().unwrap().clone()
    }

    fn outcome(&self) -> Result<(), Error> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorClass::Create, "a file may not be changed"));
        }
        Ok(())
    }
}

impl Runtime for Fetching {
    fn list<'a>(&'a self, _pod_uid: Option<&'a str>) -> Pending<'a, Vec<Seen>> {
        let seen = self.state.seen.lock().unwrap().clone();
        Box::pin(std::future::ready(Ok(seen)))
    }

    fn empty<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        let done = self.state.outcome();
        if done.is_ok() {
            self.state.emptied.lock().unwrap().push(id.to_owned());
        }
        Box::pin(std::future::ready(done))
    }

    fn obtain_image<'a>(
        &'a self,
        _image: &'a str,
        _policy: PullPolicy,
        _keys: &'a Keyring,
    ) -> Pending<'a, Image> {
        let mut asked = self.state.asked.lock().unwrap();
        asked.get_or_insert_with(Moment::now);
        Box::pin(std::future::pending())
    }

    fn pull_progress(&self, _image: &str) -> Option<Progress> {
        None
    }

    fn version(&self) -> Pending<'_, String> {
        self.other.version()
    }

    fn layers<'a>(&'a self, image: &'a str, digest: &'a str) -> Pending<'a, Layers> {
        self.other.layers(image, digest)
    }

    fn start<'a>(&'a self, spec: &'a ContainerSpec) -> Pending<'a, ()> {
        self.other.start(spec)
    }

    fn share_processes<'a>(&'a self, wanted: &'a Pause) -> Pending<'a, String> {
        self.other.share_processes(wanted)
    }

    fn end_sharing<'a>(&'a self, _pod_uid: &'a str) -> Pending<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.other.stop(id)
    }

    fn kill<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.other.kill(id)
    }

    fn resize<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
        needs: &'a str,
    ) -> Pending<'a, ()> {
        self.other.resize(id, resources, needs)
    }

    fn remove<'a>(&'a self, _id: &'a str) -> Pending<'a, ()> {
        Box::pin(std::future::ready(self.state.outcome()))
    }

    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        limit: Duration,
    ) -> Pending<'a, ExecOutput> {
        self.other.exec(id, command, limit)
    }

    fn open<'a>(&'a self, id: &'a str, command: &'a Command) -> Pending<'a, Process> {
        self.other.open(id, command)
    }

    fn attach<'a>(&'a self, id: &'a str, stdin: bool) -> Pending<'a, Attached> {
        self.other.attach(id, stdin)
    }

    fn full_name(&self, image: &str) -> Option<String> {
        self.other.full_name(image)
    }

    fn images(&self) -> Pending<'_, Vec<Image>> {
        Box::pin(std::future::ready(Ok(self.state.images())))
    }

    fn image_space(&self) -> Pending<'_, ImageSpace> {
        self.other.image_space()
    }

    fn layer<'a>(&'a self, id: &'a str) -> Pending<'a, Option<PathBuf>> {
        self.other.layer(id)
    }

    fn remove_image<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        let removed = if name.ends_with("-held") {
            let text = format!("remove image {name}");
            Err(Error::new(ErrorClass::ImagePull, text))
        } else {
            let mut images = self.state.images.lock().unwrap();
            images.retain(|image| image.name != name);
            Ok(())
        };
        Box::pin(std::future::ready(removed))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.state.news().subscribe()
    }
}

/// A new pod with `hostNetwork` and one container, and when its image was requested.
struct Scene {
    _dir: tempfile::TempDir,
    engine: Arc<EngineState>,
    pod: Arc<Pod>,
    worker: Worker,
}

pub(crate) fn with_own_engine(shared: Arc<Shared>) -> (Arc<Shared>, Arc<EngineState>) {
    let mut shared = Arc::into_inner(shared).unwrap();
    let state = Arc::<EngineState>::default();
    shared.runtime = Arc::new(Fetching {
        other: shared.runtime.clone(),
        state: state.clone(),
    });
    // It is not read: the master does not answer.
    shared.node = tokio::sync::Mutex::new(Some((Arc::<Node>::default(), Instant::now())));
    (Arc::new(shared), state)
}

/// A task of a pod, as it begins.
pub(super) fn worker_of(shared: &Arc<Shared>, pod: &Arc<Pod>) -> Worker {
    let reference = agent_pods::pod_ref(pod).unwrap();
    let version = watch::channel(DesiredPod::Pod(pod.clone())).1;
    Worker::new(shared.clone(), reference, version, TaskState::default())
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (shared, engine) = with_own_engine(shared(dir.path()));
        let containers = json!([{"name": "a", "image": "i", "imagePullPolicy": "Never"}]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"hostNetwork": true, "hostIPC": true, "containers": containers},
        }))
        .unwrap();
        let pod = Arc::new(pod);
        Self {
            _dir: dir,
            engine,
            worker: worker_of(&shared, &pod),
            pod,
        }
    }

    async fn step(&mut self) {
        let next = self.worker.step(&self.pod).await;
        assert!(matches!(next, Next::Wait(Some(_))));
        assert_eq!(self.worker.refused, None);
    }

    fn asked(&self) -> Option<Moment> {
        *self.engine.asked.lock().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_s_containers_do_not_wait_for_the_master_to_take_its_first_status() {
    let mut scene = Scene::new();
    let begun = Moment::now();
    scene.step().await;
    let time = scene.asked().expect("the image to be asked for") - begun;
    assert!(time < PATIENCE, "it waited for {time:?}");
    assert!(begun.elapsed() >= PATIENCE, "the status was given up");
}

#[tokio::test(start_paused = true)]
async fn volumes_that_failed_are_tried_again_when_what_they_show_has_changed() {
    let mut scene = Scene::new();
    let again = later(Timestamp::now(), Duration::from_secs(3600));
    scene.worker.notes.unmounted = Some(again);
    scene.step().await;
    assert_eq!(scene.asked(), None, "it waits for the volumes");
    // As a change of a source does.
    scene.worker.supplies.adopt();
    scene.step().await;
    assert!(scene.asked().is_some());
    assert_eq!(scene.worker.notes.unmounted, None);
}

/// A master that has every config map and secret, and takes every status, unless it is away.
#[derive(Debug, Default)]
pub(super) struct Taking {
    pub(super) away: AtomicBool,
    /// The statuses that were sent.
    pub(super) statuses: Mutex<Vec<Bytes>>,
}

impl Api for Taking {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        if call.path.ends_with("/status") {
            self.statuses.lock().unwrap().push(call.body);
        }
        let answer = if self.away.load(Ordering::Relaxed) {
            Err(ApiError::Transport("it is away".into()))
        } else {
            let object = json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "eA=="}});
            Ok(object.to_string().into())
        };
        Box::pin(std::future::ready(answer))
    }

    fn watch(&self, _path: String) -> Answer<'_, Lines> {
        Box::pin(std::future::pending())
    }
}

/// A pod whose volumes are made, with one container.
pub(super) struct Holder {
    /// The held folder is a tmpfs.
    _dir: tempfile::TempDir,
    pub(super) master: Arc<Taking>,
    engine: Arc<EngineState>,
    pub(super) shared: Arc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) worker: Worker,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Also where a test fails.
        let place = self.machine().memory_dir(&self.worker.pod.uid);
        let place = place.join("memory");
        agent_sys::mount::detach(&place.to_string_lossy()).ok();
    }
}

impl Holder {
    pub(super) async fn new(policy: &str, state: ContainerState) -> Self {
        Box::pin(Self::of(Self::pod(policy), Vec::new(), state)).await
    }

    /// A pod with volumes of each kind and this policy, as the master has it.
    fn pod(policy: &str) -> Pod {
        let pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": policy,
                "containers": [{"name": "a", "image": "i"}],
                "volumes": [
                    {"name": "disk", "emptyDir": {}},
                    {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                    {"name": "secret", "secret": {"secretName": "s"}},
                ],
            },
            "status": {"phase": "Running"},
        });
        serde_json::from_value(pod).unwrap()
    }

    pub(super) async fn of(pod: Pod, static_pods: Vec<Pod>, state: ContainerState) -> Self {
        Self::with(pod, static_pods, state, |_| {}).await
    }

    /// The same with a change of what the node's tasks share.
    async fn with(
        pod: Pod,
        static_pods: Vec<Pod>,
        state: ContainerState,
        change: impl FnOnce(&mut Shared),
    ) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let master = Arc::new(Taking::default());
        let shared = shared_of(dir.path(), static_pods, master.clone());
        let (shared, engine) = with_own_engine(shared);
        let mut shared = Arc::into_inner(shared).unwrap();
        change(&mut shared);
        let shared = Arc::new(shared);
        let pod = Arc::new(pod);
        let worker = worker_of(&shared, &pod);
        let made = worker.supplies.volumes(&pod, &Addresses::default()).await;
        for name in made.unwrap().into_keys().filter(|name| name != "secret") {
            let memory = shared.config.machine.memory_dir(&worker.pod.uid);
            let disk = shared.config.machine.pod_dir(&worker.pod.uid);
            let disk = disk.join(Machine::EMPTY_DIRS);
            let folder = if name == "memory" { memory } else { disk };
            std::fs::write(folder.join(name).join("f"), "taken").unwrap();
        }
        let seen = Seen {
            image: "i".to_owned(),
            // It has failed before: the next attempt does not come at once.
            backoff: Some(Duration::from_secs(10)),
            ..container(worker.pod.clone(), "a", state)
        };
        engine.seen.lock().unwrap().push(seen);
        let holder = Self {
            _dir: dir,
            master,
            engine,
            shared,
            pod,
            worker,
        };
        for kept in holder.kept() {
            std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
            std::fs::write(kept, "").unwrap();
        }
        holder
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.shared.config.machine
    }

    /// The folders of volumes that are there.
    pub(super) fn left(&self) -> Vec<PathBuf> {
        let (machine, uid) = (self.machine(), &self.worker.pod.uid);
        let disk = machine.pod_dir(uid).join(Machine::EMPTY_DIRS);
        let all = [disk, machine.memory_dir(uid), machine.held_dir(uid)];
        all.into_iter().filter(|folder| folder.exists()).collect()
    }

    /// What the status is made of, and the log.
    fn kept(&self) -> [PathBuf; 2] {
        let pod = &self.worker.pod;
        let message = termination_file(&format!("{}-a", pod.uid));
        let log = log_folder(pod, "a").join(log_name(0));
        [
            self.machine().pod_dir(&pod.uid).join(message),
            self.machine().logs.join(log),
        ]
    }

    /// Runs a step; returns the time until the next one, at most.
    pub(super) async fn step(&mut self) -> Duration {
        match self.worker.step(&self.pod).await {
            Next::Wait(at) => at.map_or(RESYNC, |at| between(Timestamp::now(), at)),
            Next::Done => Duration::ZERO,
        }
    }

    /// Whether the pod has released all its resources, and what is still read exists.
    pub(super) fn has_given_back(&self) -> bool {
        let is_kept = self.kept().iter().all(|path| path.exists());
        self.worker.released.is_set() && self.left().is_empty() && is_kept
    }
}

pub(super) fn exited(code: i32) -> ContainerState {
    let now = Timestamp::now();
    ContainerState::Exited {
        started_at: now,
        finished_at: now,
        code,
        cause: ExitCause::Own,
    }
}

pub(super) fn eviction(reason: &'static str) -> Eviction {
    Eviction {
        reason,
        message: "The node was low on resource: memory. ".to_owned(),
        annotations: BTreeMap::new(),
        grace: Duration::from_secs(1),
    }
}

/// Needs root, as all with a volume in memory.
#[tokio::test]
async fn an_ended_pod_releases_volumes_and_layers_and_keeps_what_is_read() {
    for (policy, code) in [("Never", 1), ("OnFailure", 0)] {
        let mut holder = Box::pin(Holder::new(policy, exited(code))).await;
        assert_eq!(holder.left().len(), 3);
        // The second step has nothing to do.
        for _ in 0..2 {
            holder.step().await;
            assert!(holder.has_given_back(), "{:?}", holder.left());
            assert_eq!(holder.engine.emptied(), ["u-a"]);
        }
        // Nothing is made in a folder that was removed.
        let (supplies, refusal) = (&holder.worker.supplies, "being removed");
        let refused = supplies.refresh(&holder.pod, &Addresses::default()).await;
        assert!(refused.unwrap_err().contains(refusal));
        let refused = supplies.image("image", "i", "sha256:0", None).await;
        assert!(refused.unwrap_err().chain().contains(refusal));
    }
}

#[tokio::test]
async fn a_resource_that_can_t_be_released_delays_no_other_and_is_tried_again_soon() {
    let mut holder = Box::pin(Holder::new("Never", exited(0))).await;
    holder.engine.fails.store(true, Ordering::Relaxed);
    assert!(holder.step().await <= RETRY);
    assert!(holder.left().is_empty() && !holder.worker.released.is_set());
    holder.step().await;
    assert_eq!(holder.worker.release_pause(), RETRY * 2);
    holder.engine.fails.store(false, Ordering::Relaxed);
    holder.step().await;
    assert!(holder.has_given_back());
    assert_eq!(holder.engine.emptied(), ["u-a"]);

    let mut holder = Box::pin(Holder::new("Never", exited(0))).await;
    let pods = holder.machine().data.join("pods");
    let aside = pods.with_extension("aside");
    std::fs::rename(&pods, &aside).unwrap();
    // No folder can be opened in it.
    std::fs::write(&pods, "").unwrap();
    assert!(holder.step().await <= RETRY);
    assert_eq!(holder.engine.emptied(), ["u-a"]);
    assert!(holder.left().is_empty() && !holder.worker.released.is_set());
    std::fs::remove_file(&pods).unwrap();
    std::fs::rename(&aside, &pods).unwrap();
    assert_eq!(holder.left().len(), 1, "that on the disk");
    holder.step().await;
    assert!(holder.has_given_back());

    let mut holder = Box::pin(Holder::new("Never", exited(0))).await;
    let memory = holder.machine().run.join("memory");
    let aside = memory.with_extension("aside");
    std::fs::rename(&memory, &aside).unwrap();
    std::fs::write(&memory, "").unwrap();
    assert!(holder.step().await <= RETRY);
    assert_eq!(holder.engine.emptied(), ["u-a"]);
    let disk = holder.machine().pod_dir("u").join(Machine::EMPTY_DIRS);
    assert!(!disk.exists() && !holder.worker.released.is_set());
    std::fs::remove_file(&memory).unwrap();
    std::fs::rename(&aside, &memory).unwrap();
    holder.step().await;
    assert!(holder.has_given_back());
}

/// A volume is mounted for the pod, and its driver is missing.
fn without_driver(shared: &mut Shared) {
    let volume = json!({"driver": "disk.example", "handle": "h", "boot": "", "stage": null,
        "targets": {"u/v": "Done"}});
    let data = shared.config.machine.data.clone();
    std::fs::create_dir_all(data.join("csi")).unwrap();
    std::fs::write(data.join("csi/h"), volume.to_string()).unwrap();
    let options = DriverOptions {
        data,
        node: "node".to_owned(),
        allowed: true,
        call_limit: DriverOptions::CALL_LIMIT,
    };
    shared.csi = Arc::new(Csi::open(options, shared.api.clone()));
}

#[tokio::test]
async fn a_driver_that_is_gone_keeps_nothing_but_its_own_volume() {
    let pod = Holder::pod("Never");
    let mut holder = Holder::with(pod, Vec::new(), exited(0), without_driver).await;
    assert_eq!(holder.shared.csi.pods(), ["u"]);
    assert!(holder.step().await <= RETRY);
    assert!(holder.left().is_empty() && !holder.worker.released.is_set());
    assert_eq!(holder.engine.emptied(), ["u-a"]);
}

#[tokio::test]
async fn a_deleted_pod_is_removed_at_once_or_releases_its_resources_if_that_waits() {
    let deleted = || {
        let mut pod = Holder::pod("Never");
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
        pod
    };
    let mut holder = Box::pin(Holder::of(deleted(), Vec::new(), exited(0))).await;
    assert_eq!(holder.step().await, Duration::ZERO);
    assert!(holder.engine.emptied().is_empty(), "one removal is enough");
    assert!(!holder.machine().pod_dir("u").exists());

    let mut holder = Box::pin(Holder::of(deleted(), Vec::new(), exited(0))).await;
    holder.engine.fails.store(true, Ordering::Relaxed);
    assert!(holder.step().await <= RETRY);
    assert!(holder.machine().pod_dir("u").exists() && holder.left().is_empty());
    holder.engine.fails.store(false, Ordering::Relaxed);
    holder.step().await;
    assert!(!holder.machine().pod_dir("u").exists());
}

#[tokio::test]
async fn pods_that_run_or_will_run_again_and_static_ones_keep_their_resources() {
    let started_at = Timestamp::now();
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "hostNetwork": true,
            "restartPolicy": "Never",
            "containers": [{"name": "a", "image": "i"}],
            "volumes": [{"name": "disk", "emptyDir": {}}],
        },
    });
    let own = config_static_pods::read(&manifest.to_string(), "node").unwrap();
    let runs = ContainerState::Running { started_at };
    let all = [
        (Holder::pod("Never"), Vec::new(), runs),
        (Holder::pod("OnFailure"), Vec::new(), exited(1)),
        (own.clone(), vec![own], exited(0)),
    ];
    for (pod, static_pods, state) in all {
        let is_static = !static_pods.is_empty();
        let mut holder = Box::pin(Holder::of(pod, static_pods, state)).await;
        let before = holder.left();
        holder.step().await;
        assert_eq!(holder.left(), before);
        assert!(!before.is_empty() && holder.engine.emptied().is_empty());
        assert!(!holder.worker.released.is_set());
        // The static one has ended by its own policy, for as long as its container is there.
        assert_eq!(holder.worker.is_over(), is_static);
    }
}

#[tokio::test]
async fn an_evicted_pod_releases_its_resources_while_the_master_is_away() {
    let mut holder = Box::pin(Holder::new("Always", exited(137))).await;
    holder.master.away.store(true, Ordering::Relaxed);
    let record = holder.machine().pod_dir("u").join("eviction");
    let words = eviction(Eviction::PRESSURE).to_record();
    std::fs::write(&record, words).unwrap();
    // The next agent finds it.
    holder.worker = worker_of(&holder.shared, &holder.pod);
    assert!(holder.step().await <= RETRY, "its status is still to come");
    assert!(holder.has_given_back() && !holder.worker.is_over());
    assert_eq!(holder.engine.emptied(), ["u-a"]);
    assert!(record.exists(), "an agent after this one finds it, too");

    // This one runs again after the boot, unless the master knows of its end.
    let mut holder = Box::pin(Holder::new("Always", exited(137))).await;
    holder.master.away.store(true, Ordering::Relaxed);
    holder.worker.notes.evicted = Some(eviction(Eviction::SHUTDOWN));
    holder.step().await;
    assert_eq!(holder.left().len(), 3);
    holder.master.away.store(false, Ordering::Relaxed);
    holder.step().await;
    assert!(holder.has_given_back());
}
