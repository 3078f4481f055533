//! Volumes of a driver in the test's own process: what it is asked for, in which order, and what a
//! bad one can do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

use agent_api::{Answer, Api, ApiError, Call, Lines};
use agent_csi::{Csi, DriverOptions, DriverVolume};
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests_support::csi::{Driver, Fault};
use tokio::task::JoinHandle;

const NAME: &str = "memory.example";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";
/// No answer that a test waits for takes as long; one that never comes is waited for as long.
const LIMIT: Duration = Duration::from_secs(120);

/// A master that keeps objects by their paths.
#[derive(Debug, Default)]
struct Master(Mutex<BTreeMap<String, Value>>);

impl Master {
    fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), object);
    }

    fn get(&self, path: &str) -> Value {
        let all = self.0.lock().unwrap();
        all.get(path).cloned().unwrap_or_default()
    }

    fn take(&self, call: &Call) -> Result<Bytes, ApiError> {
        let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let mut all = self.0.lock().unwrap();
        let path = match call.method.as_str() {
            "POST" => format!(
                "{}/{}",
                call.path,
                body["metadata"]["name"].as_str().unwrap()
            ),
            _ => call.path.clone(),
        };
        match call.method.as_str() {
            "GET" => {
                let found = all.get(&path).map(|object| object.to_string().into());
                return found.ok_or_else(|| ApiError::from_answer(404, b"{}"));
            }
            "PATCH" => merge(all.entry(path).or_default(), &body),
            _ => {
                all.insert(path, body);
            }
        }
        Ok(Bytes::new())
    }
}

/// A merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut object[key], value);
        }
    }
}

impl Api for Master {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        Box::pin(async move { self.take(&call) })
    }

    fn watch(&self, _path: String) -> Answer<'_, Lines> {
        Box::pin(std::future::pending())
    }
}

/// A machine with its folder, an agent's part for drivers, and a master.
struct Machine {
    dir: tempfile::TempDir,
    master: Arc<Master>,
    limit: Duration,
    csi: Arc<Csi>,
    running: JoinHandle<()>,
}

impl Machine {
    fn new(limit: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let master = Arc::new(Master::default());
        master.put(
            "/api/v1/nodes/node-1",
            json!({"metadata": {"name": "node-1", "uid": "n"}}),
        );
        let rules = json!({"attachRequired": false});
        master.put(
            &rules_path(),
            json!({"metadata": {"name": NAME}, "spec": rules}),
        );
        let (csi, running) = begin(dir.path(), &master, limit);
        Self {
            dir,
            master,
            limit,
            csi,
            running,
        }
    }

    /// The agent ends, and begins again.
    fn restart(&mut self) {
        self.running.abort();
        (self.csi, self.running) = begin(self.dir.path(), &self.master, self.limit);
    }

    fn data(&self) -> &Path {
        self.dir.path()
    }

    async fn mounted(&self, pod: &str) -> Result<PathBuf, String> {
        self.mounted_for(&named(pod)).await
    }

    async fn mounted_for(&self, pod: &Pod) -> Result<PathBuf, String> {
        let volume = self.volume();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default"},
            "status": {"capacity": {"storage": "1Mi"}},
        }))
        .unwrap();
        let source = DriverVolume::Claimed {
            claim: &claim,
            volume: &volume,
            read_only: false,
        };
        self.csi.mount(pod, source).await
    }

    fn volume(&self) -> PersistentVolume {
        let size = self.master.get("size");
        let size = size.as_str().unwrap_or("1Mi");
        let csi = json!({"driver": NAME, "volumeHandle": "h", "volumeAttributes": {"a": "1"},
            "nodeStageSecretRef": {"namespace": "default", "name": "key"}});
        self.master.put(
            "/api/v1/namespaces/default/secrets/key",
            json!({"metadata": {}, "data": {"word": "b3Blbg=="}}),
        );
        serde_json::from_value(json!({"metadata": {"name": "pv-1"}, "spec":
            {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "csi": csi}}))
        .unwrap()
    }

    /// Mounts a pod's volume, as soon as its driver is registered.
    async fn mount(&self, pod: &str) -> PathBuf {
        eventually("the volume to be mounted", || async {
            self.mounted(pod).await.map_or_else(
                |error| {
                    assert!(error.contains("not found in the list"), "{error}");
                    None
                },
                Some,
            )
        })
        .await
    }

    async fn release(&self, pod: &str) {
        let released = || async { self.csi.release(&uid(pod)).await.ok() };
        eventually("the volume to be unmounted", released).await;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn begin(data: &Path, master: &Arc<Master>, call_limit: Duration) -> (Arc<Csi>, JoinHandle<()>) {
    let options = DriverOptions {
        data: data.to_owned(),
        node: "node-1".to_owned(),
        allowed: true,
        call_limit,
    };
    let csi = Arc::new(Csi::open(options, master.clone()));
    (csi.clone(), tokio::spawn(csi.run()))
}

fn rules_path() -> String {
    format!("/apis/storage.k8s.io/v1/csidrivers/{NAME}")
}

fn uid(pod: &str) -> String {
    format!("uid-{pod}")
}

fn named(pod: &str) -> Pod {
    let meta = json!({"name": pod, "namespace": "default", "uid": uid(pod)});
    serde_json::from_value(json!({"metadata": meta, "spec": {"containers": []}})).unwrap()
}

async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let looked = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, looked).await;
    found.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// How often a call was made.
fn count(driver: &Driver, call: &str) -> usize {
    let calls = driver.calls();
    calls.iter().filter(|made| *made == call).count()
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_staged_once_published_for_each_pod_and_gone_with_the_last() {
    let mut machine = Machine::new(LIMIT);
    let driver = Driver::start(machine.data(), NAME);
    let path = machine.mount("a").await;
    assert_eq!(
        path,
        Path::new("pods/uid-a/volumes/kubernetes.io~csi/pv-1/mount")
    );
    std::fs::write(machine.data().join(path).join("f"), "kept").unwrap();
    let second = machine.mount("b").await;
    let text = std::fs::read_to_string(machine.data().join(second).join("f")).unwrap();
    assert_eq!(text, "kept", "both see the volume");
    let staged = driver.stages();
    assert_eq!(staged[0].secrets["word"], "open");
    assert_eq!(staged[0].volume_context["a"], "1");

    machine.restart();
    machine.mount("a").await;
    assert_eq!(driver.calls(), ["Stage h", "Publish h", "Publish h"]);

    let mut pods = machine.csi.pods();
    pods.sort();
    assert_eq!(pods, ["uid-a", "uid-b"]);
    machine.release("a").await;
    assert_eq!(driver.left(), (1, 1, Vec::new()));
    machine.release("b").await;
    eventually("the volume to be forgotten", || async {
        (driver.left() == (0, 0, Vec::new()) && files(&machine.data().join("csi")) == 0)
            .then_some(())
    })
    .await;
    assert_eq!(machine.csi.pods(), Vec::<String>::new());
    assert_eq!(
        files(&machine.data().join("pods/uid-b/volumes/kubernetes.io~csi")),
        0
    );
    machine.csi.release("of-no-volume").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_answer_is_lost_is_made_again_and_undone_also_by_the_next_agent() {
    let mut machine = Machine::new(LIMIT);
    let driver = Driver::start(machine.data(), NAME);
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        driver.misbehave(method, Some(Fault::Lies));
        let refused = eventually("a refusal by the driver", || async {
            let error = machine.mounted("a").await.unwrap_err();
            (!error.contains("not found in the list")).then_some(error)
        })
        .await;
        assert!(refused.contains("code = Unavailable"), "{refused}");
        driver.misbehave(method, None);
        machine.restart();
    }
    machine.mount("a").await;
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        driver.misbehave(method, Some(Fault::Lies));
    }
    eventually("a refusal by the driver", || async {
        let error = machine.csi.release("uid-a").await.unwrap_err();
        error.contains("code = Unavailable").then_some(())
    })
    .await;
    driver.misbehave("NodeUnpublishVolume", None);
    machine.restart();
    machine.release("a").await;
    driver.misbehave("NodeUnstageVolume", None);
    eventually("nothing to be left", || async {
        (files(&machine.data().join("csi")) == 0).then_some(())
    })
    .await;
    assert_eq!(driver.left(), (0, 0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_vanishes_keeps_the_volume_until_it_is_there_again() {
    let machine = Machine::new(LIMIT);
    let driver = Driver::start(machine.data(), NAME);
    machine.mount("a").await;
    // Its sockets go; what it mounted stays, as of a pod that begins again.
    let dir = tempfile::tempdir().unwrap();
    let other = Driver::start(dir.path(), NAME);
    other.inherit(&driver);
    drop(driver);
    eventually("the driver to be gone", || async {
        let error = machine.csi.release("uid-a").await.unwrap_err();
        error.contains("not found in the list").then_some(())
    })
    .await;
    let driver = Driver::start(machine.data(), NAME);
    driver.inherit(&other);
    machine.release("a").await;
    assert_eq!(driver.left().1, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_bad_driver_says_is_mounted_is_looked_at_and_its_answers_have_an_end() {
    let machine = Machine::new(LIMIT);
    let driver = Driver::start(machine.data(), NAME);
    machine.mount("a").await;
    let cases = [
        (Fault::Idle, "nothing is mounted there"),
        (Fault::Links, "Not a directory"),
        (Fault::Endless, "the driver's answer can't be read"),
        (
            Fault::Refuses,
            "rpc error: code = Internal desc = as the test wants",
        ),
    ];
    for (number, (fault, text)) in cases.into_iter().enumerate() {
        driver.misbehave("NodePublishVolume", Some(fault));
        let pod = format!("p{number}");
        let refused = machine.mounted(&pod).await.unwrap_err();
        assert!(refused.contains(text), "{fault:?}: {refused}");
        machine.release(&pod).await;
        let folder = format!("pods/uid-{pod}/volumes/kubernetes.io~csi/pv-1");
        assert!(!machine.data().join(folder).exists(), "{fault:?}");
    }
    assert_eq!(driver.left(), (1, 1, Vec::new()));
    assert!(Path::new("/proc").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_hangs_holds_up_no_other_pods_volumes() {
    let machine = Machine::new(Duration::from_secs(2));
    let driver = Driver::start(machine.data(), NAME);
    let other = Driver::start(machine.data(), "other.example");
    driver.misbehave("NodePublishVolume", Some(Fault::Hangs));
    let refused = eventually("an end of the call", || async {
        let error = machine.mounted("a").await.unwrap_err();
        (!error.contains("not found in the list")).then_some(error)
    })
    .await;
    assert!(refused.contains("no answer within 2 s"), "{refused}");
    let rules = json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true});
    machine.master.put(
        "/apis/storage.k8s.io/v1/csidrivers/other.example",
        json!({"metadata": {}, "spec": rules}),
    );
    let source = serde_json::from_value(json!({"driver": "other.example"})).unwrap();
    let source = DriverVolume::Inline {
        name: "v",
        source: &source,
    };
    let hangs = machine.mounted("a");
    let inline = eventually("the other's volume", || async {
        machine.csi.mount(&named("b"), source).await.ok()
    });
    let (inline, _) = tokio::join!(inline, hangs);
    assert_eq!(
        inline,
        Path::new("pods/uid-b/volumes/kubernetes.io~csi/v/mount")
    );
    let requests = other.publishes();
    assert_eq!(requests[0].staging_target_path, "");
    assert_eq!(
        requests[0].volume_context["csi.storage.k8s.io/pod.name"],
        "b"
    );
    driver.misbehave("NodePublishVolume", None);
    machine.release("a").await;
    machine.release("b").await;
    assert_eq!(driver.left().1 + other.left().1, 0);
}

/// On a runtime with one thread for calls that block, which all agents' parts share.
#[test]
fn a_file_system_that_is_silent_holds_no_thread_that_others_need() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1);
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let machine = Machine::new(Duration::from_secs(2));
        let rules = json!({"attachRequired": false, "fsGroupPolicy": "File"});
        let master = &machine.master;
        master.put(&rules_path(), json!({"metadata": {}, "spec": rules}));
        let driver = Driver::start(machine.data(), NAME);
        driver.misbehave("NodePublishVolume", Some(Fault::Silent));
        let grouped = |name: &str| {
            let security = json!({"fsGroup": 7});
            let mut pod = named(name);
            pod.spec.as_mut().unwrap().security_context = serde_json::from_value(security).unwrap();
            pod
        };
        let refused = eventually("an end of the wait for files", || async {
            let error = machine.mounted_for(&grouped("a")).await.unwrap_err();
            (!error.contains("not found in the list")).then_some(error)
        })
        .await;
        assert!(refused.contains("not answered for 2 s"), "{refused}");
        let other = tokio::task::spawn_blocking(|| 7);
        let other = tokio::time::timeout(LIMIT, other).await;
        assert_eq!(other.unwrap().unwrap(), 7);
        let again = machine.mounted_for(&grouped("a")).await.unwrap_err();
        assert!(again.contains("an earlier attempt"), "{again}");

        machine.release("a").await;
        driver.misbehave("NodePublishVolume", None);
        let path = eventually("the earlier attempt's end", || async {
            machine.mounted_for(&grouped("a")).await.ok()
        })
        .await;
        let given = std::fs::metadata(machine.data().join(path)).unwrap();
        assert_eq!(given.gid(), 7);
        machine.release("a").await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_knows_the_drivers_that_are_registered() {
    let machine = Machine::new(LIMIT);
    let drivers = || machine.master.get(CSI_NODE)["spec"]["drivers"].clone();
    let driver = Driver::start(machine.data(), NAME);
    let known =
        json!([{"name": NAME, "nodeID": "node-of-the-driver", "allocatable": {"count": 7}}]);
    eventually("the driver to be known", || async {
        (drivers() == known).then_some(())
    })
    .await;
    let owner = &machine.master.get(CSI_NODE)["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], "n");
    eventually("the driver to be informed", || async {
        driver
            .registration()
            .filter(|registration| registration.plugin_registered)
    })
    .await;
    let annotation = || {
        let node = machine.master.get("/api/v1/nodes/node-1");
        node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].clone()
    };
    let ids = format!("{{\"{NAME}\":\"node-of-the-driver\"}}");
    eventually("the annotation", || async {
        (annotation() == ids).then_some(())
    })
    .await;

    let data = machine.data();
    let thief = Driver::start_with(data, "thief", NAME, &[]);
    let nameless = Driver::start_with(data, "nameless", "../../etc", &[]);
    let placed = Driver::start_with(data, "placed", "placed.example", &[("zone", "a")]);
    let refusal = |driver: &Driver| driver.registration().map(|registration| registration.error);
    for (driver, text) in [
        (&thief, "registered already"),
        (&nameless, "no name of a CSI driver"),
        (&placed, "labels that the Node does not have: zone=a"),
    ] {
        let error = eventually("a refusal", || async { refusal(driver) }).await;
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(drivers(), known);
    drop((thief, nameless, placed));
    drop(driver);
    eventually("the driver to be unknown", || async {
        (drivers() == json!([]) && annotation().is_null()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_has_grown_is_expanded_and_its_claim_shows_it() {
    let machine = Machine::new(LIMIT);
    let driver = Driver::start(machine.data(), NAME);
    machine.mount("a").await;
    assert_eq!(count(&driver, "Expand h"), 0);
    machine.master.put("size", json!("2Mi"));
    machine.mount("a").await;
    assert_eq!(count(&driver, "Expand h"), 1);
    assert_eq!(count(&driver, "Publish h"), 1);
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/data/status";
    assert_eq!(
        machine.master.get(path)["status"]["capacity"]["storage"],
        "2Mi"
    );
    let rules = json!({"attachRequired": false, "requiresRepublish": true});
    machine
        .master
        .put(&rules_path(), json!({"metadata": {}, "spec": rules}));
    machine.mount("a").await;
    assert_eq!(count(&driver, "Publish h"), 2, "again and again");
    machine.release("a").await;
}

#[tokio::test]
async fn a_machine_without_privileged_pods_has_no_drivers_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let options = DriverOptions {
        data: dir.path().to_owned(),
        node: "node-1".to_owned(),
        allowed: false,
        call_limit: LIMIT,
    };
    let csi = Csi::open(options, Arc::new(Master::default()));
    let source = serde_json::from_value(json!({"driver": NAME})).unwrap();
    let source = DriverVolume::Inline {
        name: "v",
        source: &source,
    };
    let refused = csi.mount(&named("a"), source).await.unwrap_err();
    assert!(refused.contains("[node] privileged = true"), "{refused}");
}
