//! Pods that ask for more than the node has, and a restarted agent's knowledge of its pods. Between
//! the master's API, in process, and the real containerd.

use crate::cluster::{Cluster, NODE, shell};
use crate::site::{LIMIT, eventually};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::quantity::Amount;
use serde_json::{Value, json};

/// Runs until it is asked to end.
const HOLD: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn with(resources: Value) -> Value {
    let mut main = shell(HOLD);
    main["resources"] = resources;
    json!({"containers": [main]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_needs_what_the_node_does_not_have_is_rejected() {
    let cluster = Cluster::new().await;
    let pages = json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "64Mi"}});
    cluster.create("pages", with(pages)).await;
    let status = cluster.reaches("pages", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "OutOfhugepages-2Mi", "{status}");
    let words = "Pod was rejected: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0";
    assert_eq!(status["message"], words);

    let device = || with(json!({"limits": {"example.com/device": "1"}}));
    cluster.create("device", device()).await;
    let status = cluster.reaches("device", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "OutOfexample.com/device", "{status}");
    // What an admin says that the node has is counted, as the scheduler counts it.
    let one = json!({"example.com/device": "1"});
    let has = json!({"status": {"capacity": one, "allocatable": one}});
    cluster
        .patch(&format!("/api/v1/nodes/{NODE}/status"), &has)
        .await;
    cluster.create("served", device()).await;
    cluster.reaches("served", "/phase", json!("Running")).await;
    cluster.create("second", device()).await;
    let status = cluster.reaches("second", "/phase", json!("Failed")).await;
    let words = "Pod was rejected: Node didn't have enough resource: example.com/device, requested: 1, used: 1, capacity: 1";
    assert_eq!(status["message"], words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_stays_ready_under_a_new_agent_until_its_probe_says_otherwise() {
    let mut cluster = Cluster::new().await;
    let mut serves = shell("echo > /tmp/ready; trap 'exit 0' TERM; while :; do sleep 0.1; done");
    serves["readinessProbe"] = json!({
        "exec": {"command": ["/bin/sh", "-c", "test -e /tmp/ready"]},
        "periodSeconds": 1, "failureThreshold": 1_000_000,
    });
    let mut ends = shell("while test ! -e /tmp/go; do sleep 0.1; done");
    ends["name"] = json!("ends");
    cluster
        .create(
            "serves",
            json!({"containers": [serves, ends], "restartPolicy": "Never"}),
        )
        .await;
    let runs = "/containerStatuses/1/started";
    cluster.reaches("serves", runs, json!(true)).await;
    let ready = "/containerStatuses/0/ready";
    let status = cluster.reaches("serves", ready, json!(true)).await;
    let ids = ["ends", "main"].map(|name| {
        let all = status["containerStatuses"].as_array().unwrap();
        let own = all.iter().find(|one| one["name"] == name).unwrap();
        let id = own["containerID"].as_str().unwrap();
        id.trim_start_matches("containerd://").to_owned()
    });
    run(&cluster, &ids[1], "busybox rm /tmp/ready").await;
    cluster.end().await;
    cluster.begin();
    run(&cluster, &ids[0], "echo > /tmp/go").await;
    let ended = "/containerStatuses/1/state/terminated/exitCode";
    let status = cluster.reaches("serves", ended, json!(0)).await;
    assert_eq!(status.pointer(ready), Some(&json!(true)), "{status}");
}

/// Runs a script in a container.
async fn run(cluster: &Cluster, id: &str, script: &str) {
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    let agent = cluster.site.agent();
    let done = agent_runtime::Runtime::exec(&*agent, id, &command, LIMIT).await;
    assert_eq!(done.unwrap().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_end_with_their_machine_critical_ones_last_and_the_master_is_notified() {
    let mut cluster = Cluster::new().await;
    // Of its 30 s it takes more than the two that a machine once gave to all.
    let patient = "trap 'sleep 3; while test ! -e /tmp/go; do sleep 0.1; done; echo in peace; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    cluster
        .create("plain", json!({"containers": [shell(patient)]}))
        .await;
    let vital = json!({"containers": [shell(HOLD)], "priorityClassName": "system-node-critical"});
    cluster.create("vital", vital).await;
    for name in ["plain", "vital"] {
        cluster.reaches(name, "/phase", json!("Running")).await;
    }
    eventually("the trap to be set", || async {
        let pod = cluster.pod("plain").await.unwrap();
        cluster.log(&pod, 0).contains("up").then_some(())
    })
    .await;

    let drain = cluster.drain.take().unwrap();
    let ending = tokio::spawn(async move { drain.end_pods().await });
    eventually("the Node to say that it ends", || async {
        let node: Node = cluster.admin.get(None, NODE).await.unwrap();
        let all = node.status?.conditions?;
        let ready = all.iter().find(|one| one.type_ == "Ready")?;
        let reported =
            [&ready.reason, &ready.message].map(|text| text.as_deref().unwrap_or_default());
        let wanted = ["KubeletNotReady", "node is shutting down"];
        (ready.status == "False" && reported == wanted).then_some(())
    })
    .await;
    cluster.create("late", with(json!({}))).await;
    let status = cluster.reaches("late", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "NodeShutdown", "{status}");
    let words = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(status["message"], words);
    // The other one has not ended yet.
    let vital = cluster.pod("vital").await.unwrap().status.unwrap();
    assert_eq!(vital.phase.as_deref(), Some("Running"));

    let plain = serde_json::to_value(cluster.pod("plain").await.unwrap().status).unwrap();
    assert_eq!(plain["phase"], "Running");
    let id = plain["containerStatuses"][0]["containerID"].as_str();
    let id = id.unwrap().trim_start_matches("containerd://").to_owned();
    run(&cluster, &id, "echo > /tmp/go").await;
    for name in ["plain", "vital"] {
        let status = cluster.reaches(name, "/phase", json!("Failed")).await;
        assert_eq!(status["reason"], "Terminated", "{status}");
        let words = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(status["message"], words);
        let mut all = status["conditions"].as_array().unwrap().iter();
        let target = all.find(|one| one["type"] == "DisruptionTarget").unwrap();
        assert_eq!(target["reason"], "TerminationByKubelet");
        assert_eq!(target["message"], words);
    }
    ending.await.unwrap();
    let plain = cluster.pod("plain").await.unwrap();
    assert!(cluster.log(&plain, 0).contains("in peace"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critical_pod_that_does_not_fit_has_the_room_of_the_nearest_other() {
    let cluster = Cluster::new().await;
    let all = eventually("the node to say what it has", || async {
        let node: Node = cluster.admin.get(None, NODE).await.unwrap();
        let all = node.status?.allocatable?;
        Some(Amount::try_from(all.get("cpu")?).unwrap().ceil_milli())
    })
    .await;
    let asks = |millis: i64| with(json!({"requests": {"cpu": format!("{millis}m")}}));
    cluster.create("large", asks(all - 300)).await;
    cluster.create("small", asks(100)).await;
    for name in ["large", "small"] {
        cluster.reaches(name, "/phase", json!("Running")).await;
    }
    let mut vital = asks(400);
    cluster.create("plain", vital.clone()).await;
    let status = cluster.reaches("plain", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "OutOfcpu", "{status}");
    vital["priorityClassName"] = json!("system-node-critical");
    cluster.create("vital", vital).await;
    cluster.reaches("vital", "/phase", json!("Running")).await;
    let status = cluster.reaches("large", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "Preempting", "{status}");
    let words = "Preempted in order to admit critical pod";
    assert_eq!(status["message"], words);
    assert_eq!(cluster.event("Preempting").await, words);
    let small = cluster.pod("small").await.unwrap().status.unwrap();
    assert_eq!(small.phase.as_deref(), Some("Running"));
}
