//! The first steps of a pod's task while the master does not answer.

use super::*;
use crate::kubelet::tests::{shared, shared_of};
use agent_api::{Answer, Api, Call, Lines};
use agent_images::{Image, Keyring, PullPolicy};
use agent_runtime::{
    Attached, Change, Command, ContainerSpec, ExecOutput, ImageSpace, Layers, Pause, Pending,
    Process, Progress, Resources, Runtime,
};
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::Node;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};
use tokio::time::Instant as Moment;

/// An engine without containers, which fetches an image for ever.
#[derive(Debug)]
struct Empty {
    other: Arc<dyn Runtime>,
    /// When an image was asked for first.
    asked: Arc<Mutex<Option<Moment>>>,
}

impl Runtime for Empty {
    fn list<'a>(&'a self, _pod_uid: Option<&'a str>) -> Pending<'a, Vec<Seen>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn obtain_image<'a>(
        &'a self,
        _image: &'a str,
        _policy: PullPolicy,
        _keys: &'a Keyring,
    ) -> Pending<'a, Image> {
        self.asked.lock().unwrap().get_or_insert_with(Moment::now);
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

    fn empty<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.other.empty(id)
    }

    fn remove<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.other.remove(id)
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
        self.other.images()
    }

    fn image_space(&self) -> Pending<'_, ImageSpace> {
        self.other.image_space()
    }

    fn layer<'a>(&'a self, id: &'a str) -> Pending<'a, Option<PathBuf>> {
        self.other.layer(id)
    }

    fn remove_image<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        self.other.remove_image(name)
    }

    fn changes(&self) -> tokio::sync::broadcast::Receiver<Change> {
        self.other.changes()
    }
}

/// A new pod of the machine's network with one container, and when its image was asked for.
struct Scene {
    _dir: tempfile::TempDir,
    asked: Arc<Mutex<Option<Moment>>>,
    pod: Arc<Pod>,
    worker: Worker,
}

fn with_empty_engine(shared: Arc<Shared>) -> (Arc<Shared>, Arc<Mutex<Option<Moment>>>) {
    let mut shared = Arc::into_inner(shared).unwrap();
    let asked = Arc::<Mutex<Option<Moment>>>::default();
    shared.runtime = Arc::new(Empty {
        other: shared.runtime.clone(),
        asked: asked.clone(),
    });
    // It is not asked for: the master is silent.
    shared.node = tokio::sync::Mutex::new(Some((Arc::<Node>::default(), Instant::now())));
    (Arc::new(shared), asked)
}

/// A master that blocks the thread which asks it for a token, as the making of volumes blocks it.
#[derive(Debug)]
struct Holding {
    asked: mpsc::Sender<()>,
    answer: Mutex<mpsc::Receiver<()>>,
}

impl Api for Holding {
    fn call(&self, _call: Call) -> Answer<'_, Bytes> {
        Box::pin(async {
            self.asked.send(()).unwrap();
            self.answer.lock().unwrap().recv().unwrap();
            let status = json!({"token": "secret", "expirationTimestamp": "2100-01-01T00:00:00Z"});
            let token = json!({"metadata": {}, "spec": {"audiences": []}, "status": status});
            Ok(token.to_string().into())
        })
    }

    fn watch(&self, _path: String) -> Answer<'_, Lines> {
        Box::pin(std::future::pending())
    }
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (shared, asked) = with_empty_engine(shared(dir.path()));
        let containers = json!([{"name": "a", "image": "i", "imagePullPolicy": "Never"}]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"hostNetwork": true, "hostIPC": true, "containers": containers},
        }))
        .unwrap();
        let pod = Arc::new(pod);
        let reference = agent_pods::pod_ref(&pod).unwrap();
        let version = watch::channel(DesiredPod::Pod(pod.clone())).1;
        Self {
            _dir: dir,
            asked,
            worker: Worker::new(shared, reference, version, TaskState::default()),
            pod,
        }
    }

    async fn step(&mut self) {
        let next = self.worker.step(&self.pod).await;
        assert!(matches!(next, Next::Wait(Some(_))));
        assert_eq!(self.worker.refused, None);
    }

    fn asked(&self) -> Option<Moment> {
        *self.asked.lock().unwrap()
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_that_are_still_being_made_at_a_pod_s_end_are_gone_with_it() {
    // What is held is in memory.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (answer, held) = mpsc::channel();
    let (asked, is_asked) = mpsc::channel();
    let master = Holding {
        asked,
        answer: Mutex::new(held),
    };
    let shared = shared_of(dir.path(), Vec::new(), Arc::new(master));
    let (shared, _asked) = with_empty_engine(shared);
    let token = json!([{"serviceAccountToken": {"path": "token"}}]);
    let volumes = json!([{"name": "t", "projected": {"sources": token}},
        {"name": "e", "emptyDir": {}}]);
    let pod = json!({
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {"hostNetwork": true, "containers": [{"name": "a"}], "volumes": volumes},
    });
    let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).unwrap());
    let reference = agent_pods::pod_ref(&pod).unwrap();
    let version = watch::channel(DesiredPod::Pod(pod.clone())).1;
    let mut worker = Worker::new(shared, reference, version, TaskState::default());

    assert!(worker.has_volumes(&pod).await.is_none(), "they are made");
    let asked = tokio::task::spawn_blocking(move || is_asked.recv());
    asked.await.unwrap().unwrap();
    worker.set_up.keep(std::iter::empty());
    let machine = worker.shared.config.machine.clone();
    let news = worker.news.clone();
    {
        let mut finish = Box::pin(worker.finish(None, &[]));
        let early = timeout(Duration::from_millis(500), &mut finish).await;
        answer.send(()).unwrap();
        let next = match early {
            Ok(next) => next,
            Err(_waits) => finish.await,
        };
        assert!(matches!(next, Next::Done));
    }
    news.notified().await;
    for left in [machine.pod_dir("u"), machine.held_dir("u")] {
        assert!(!left.exists(), "{}", left.display());
    }
}
