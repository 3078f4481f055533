//! Containers that are slow to start, beside others of their pod: a shim that stops while
//! containerd waits for it.

use crate::cluster::{Cluster, shell};
use crate::site::{LIMIT, Site, eventually, subdir};
use agent_runtime::{Container, ContainerState};
use config_machine::programs;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// In the environment of a container whose shim is to stop.
const MARK: &str = "SLOW_TO_START";

/// The shims of containers that are marked: they wait.
struct Gate(PathBuf);

impl Gate {
    fn shut() -> (Site, Self) {
        let mut site = Site::new();
        let dir = subdir(site.dir.path(), "slow");
        let (at, shim) = (dir.display(), dir.join("shim"));
        // Its working directory has the container's id for a name; the specification lies
        // elsewhere.
        let kept = site.dir.path().join("io").display().to_string();
        let script = format!(
            "#!/usr/bin/busybox sh\nif busybox grep -q {MARK} {kept}/${{PWD##*/}}/config.json; then echo >> {at}/began; \
            while [ ! -e {at}/open ]; do busybox sleep 0.1; done; fi\nexec {} \"$@\"\n",
            programs::SHIM
        );
        std::fs::write(&shim, script).unwrap();
        std::fs::set_permissions(&shim, PermissionsExt::from_mode(0o755)).unwrap();
        site.shim = shim;
        (site, Self(dir))
    }

    /// The second container waits for its shim, which was started once, and the third one for its
    /// turn.
    fn assert_shut(&self, status: &Value) {
        for waits in [1, 2] {
            let waiting = &status["containerStatuses"][waits]["state"]["waiting"];
            assert_eq!(waiting["reason"], "ContainerCreating", "{status}");
        }
        let began = std::fs::read_to_string(self.0.join("began")).unwrap_or_default();
        assert!(began.len() <= 1, "the first start ended: {status}");
    }

    /// Waits until containerd has been asked for the slow container: until then a start can be
    /// given up.
    async fn reached(&self) {
        eventually("the slow start to begin", || async {
            std::fs::exists(self.0.join("began")).unwrap().then_some(())
        })
        .await;
    }

    fn open(&self) {
        std::fs::write(self.0.join("open"), "").unwrap();
    }
}

fn is_running(seen: &Container) -> bool {
    matches!(seen.state, ContainerState::Running { .. })
}

fn named(name: &str, script: &str) -> Value {
    let mut container = shell(script);
    container["name"] = json!(name);
    container
}

/// A pod whose second container is slow to start, and whose first one has a probe.
async fn begin(cluster: &Cluster) {
    let mut first = named(
        "first",
        "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 1",
    );
    first["readinessProbe"] = json!({"exec": {"command": ["/bin/cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 20});
    let mut second = named("second", "trap 'exit 0' TERM; while :; do sleep 0.1; done");
    second["env"] = json!([{"name": MARK, "value": "1"}]);
    let spec = json!({
        "containers": [first, second, named("third", "sleep 600")],
        "terminationGracePeriodSeconds": 1,
    });
    cluster.create("p", spec).await;
}

/// Runs a line in the first container.
async fn run(cluster: &Cluster, status: &Value, script: &str) {
    let id = status["containerStatuses"][0]["containerID"].as_str();
    let id = id.unwrap().trim_start_matches("containerd://");
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    let agent = cluster.site.agent();
    let done = agent_runtime::Runtime::exec(&*agent, id, &command, LIMIT).await;
    done.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_start_keeps_no_probe_and_no_restart_of_another_container_waiting() {
    let (site, gate) = Gate::shut();
    let cluster = Cluster::at(site).await;
    begin(&cluster).await;
    let first = "/containerStatuses/0";
    let status = cluster
        .reaches("p", &format!("{first}/started"), json!(true))
        .await;
    gate.assert_shut(&status);
    run(&cluster, &status, "echo > /tmp/ready").await;
    let status = cluster
        .reaches("p", &format!("{first}/ready"), json!(true))
        .await;
    gate.assert_shut(&status);
    run(&cluster, &status, "echo > /tmp/end").await;
    let status = cluster
        .reaches("p", &format!("{first}/restartCount"), json!(1))
        .await;
    gate.assert_shut(&status);

    gate.open();
    cluster.reaches("p", "/phase", json!("Running")).await;
    let status = cluster
        .reaches("p", "/containerStatuses/2/started", json!(true))
        .await;
    assert_eq!(
        status["containerStatuses"][1]["restartCount"], 0,
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_deleted_during_a_slow_start_leaves_nothing() {
    let (site, gate) = Gate::shut();
    let cluster = Cluster::at(site).await;
    begin(&cluster).await;
    let status = cluster
        .reaches("p", "/containerStatuses/0/started", json!(true))
        .await;
    gate.assert_shut(&status);
    gate.reached().await;
    cluster.delete("p", 1).await;
    // Its other container ends meanwhile.
    let ended = "/containerStatuses/0/state/terminated/exitCode";
    cluster.reaches("p", ended, json!(137)).await;

    gate.open();
    eventually("the pod to be gone", || async {
        cluster.pod("p").await.is_none().then_some(())
    })
    .await;
    let left = agent_runtime::Runtime::list(&*cluster.site.agent(), None).await;
    assert!(left.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_begins_during_a_slow_start_starts_what_did_not_start() {
    let (site, gate) = Gate::shut();
    let mut cluster = Cluster::at(site).await;
    begin(&cluster).await;
    let status = cluster
        .reaches("p", "/containerStatuses/0/started", json!(true))
        .await;
    gate.assert_shut(&status);
    gate.reached().await;
    cluster.end().await;
    cluster.begin();
    gate.open();
    let status = cluster
        .reaches("p", "/containerStatuses/2/started", json!(true))
        .await;
    // Where containerd gave up what the agent that is gone had asked for, the second container has
    // another attempt, as on upstream's kubelet, and the third one does not wait for that. Those
    // beside it are not touched, and each runs once.
    let second = "/containerStatuses/1/started";
    cluster.reaches("p", second, json!(true)).await;
    let restarts =
        |container: usize| status["containerStatuses"][container]["restartCount"].clone();
    assert_eq!([restarts(0), restarts(2)], [0, 0], "{status}");
    let seen = agent_runtime::Runtime::list(&*cluster.site.agent(), None).await;
    let mut running: Vec<String> = seen
        .unwrap()
        .into_iter()
        .filter(is_running)
        .map(|seen| seen.key.container)
        .collect();
    running.sort();
    assert_eq!(running, ["first", "second", "third"], "{status}");
}
