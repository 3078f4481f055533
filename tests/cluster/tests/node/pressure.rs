//! A node under pressure, by thresholds that this host can't meet: which pods are evicted, in which
//! order, and which are refused; and what a pod gives back at its end.

use crate::cluster::{Cluster, NODE, shell};
use crate::lifecycle::wait_for_event;
use crate::site::{IMAGE, eventually, texts};
use crate::suites::of_group;
use crate::tunnels::Site;
use agent_kubelet::{Least, Machine, Signal, Soft, Thresholds};
use agent_runtime::{Container, ContainerState, Runtime};
use agent_sys::cgroup::{Groups, Version};
use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::core::v1::{Event, Node, Pod};
use config_kube::quantity::Amount;
use http::Method;
use master_client::{ListParams, UserInfo};
use master_control::Controllers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const HOLD: &str = "echo held; while :; do sleep 0.2; done";

/// When the node evicted the pod.
fn evicted_at(status: &Value) -> String {
    let conditions = status["conditions"].as_array().unwrap();
    let disruption = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(disruption["reason"], "TerminationByKubelet", "{status}");
    disruption["lastTransitionTime"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The annotations of the event of a pod's eviction.
async fn annotations(cluster: &Cluster, pod: &str) -> Option<BTreeMap<String, String>> {
    let params = ListParams::default();
    let events = cluster.admin.list::<Event>(Some("default"), &params).await;
    let is_it = |event: &Event| {
        event.reason.as_deref() == Some("Evicted")
            && event.involved_object.name.as_deref() == Some(pod)
    };
    events
        .unwrap()
        .items
        .into_iter()
        .find(is_it)?
        .metadata
        .annotations
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_low_on_memory_evicts_pods_in_upstreams_order_and_takes_none_without_requests() {
    let cluster = Cluster::new().await;
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"},
                          "spec": {"hostNetwork": true, "containers": [shell(HOLD)]}});
    let manifest = manifest.to_string();
    let cluster = cluster.with_static_pods(&[&manifest]).await;
    let own = config_static_pods::read(&manifest, NODE).unwrap();
    let own = own.metadata.uid.unwrap();
    let runs = |one: &Container| matches!(one.state, ContainerState::Running { .. });
    eventually("the static pod", || async {
        let seen = cluster.site.agent().list(Some(&own)).await.ok()?;
        seen.iter().any(runs).then_some(())
    })
    .await;
    let greedy = shell(&format!(
        "x=$(head -c 30000000 /dev/zero | tr '\\0' x); {HOLD}"
    ));
    let mut guaranteed = shell(HOLD);
    guaranteed["resources"] = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    let plain = shell(HOLD);
    let critical = json!({"priorityClassName": "system-node-critical", "containers": [plain]});
    for (name, spec) in [
        ("guaranteed", json!({"containers": [guaranteed]})),
        ("critical", critical),
        ("frugal", json!({"containers": [plain]})),
        ("greedy", json!({"containers": [greedy]})),
    ] {
        cluster.create(name, spec).await;
        cluster.reaches(name, "/phase", json!("Running")).await;
        let pod = cluster.pod(name).await.unwrap();
        eventually(name, || async {
            texts(&cluster.log(&pod, 0)).contains(&"held").then_some(())
        })
        .await;
    }

    let cluster = cluster
        .under(Thresholds {
            hard: BTreeMap::from([(Signal::MemoryAvailable, Least::Amount(1 << 50))]),
            transition: Duration::from_secs(300),
            ..Thresholds::none()
        })
        .await;
    let mut times = Vec::new();
    for name in ["greedy", "frugal", "guaranteed"] {
        let status = cluster.reaches(name, "/reason", json!("Evicted")).await;
        assert_eq!(status["phase"], "Failed");
        let message = status["message"].as_str().unwrap();
        let beginning =
            "The node was low on resource: memory. Threshold quantity: 1024Ti, available: ";
        assert!(message.starts_with(beginning), "{message}");
        assert_eq!(
            message.contains("Container main was using "),
            name != "guaranteed",
            "{message}"
        );
        times.push(evicted_at(&status));
    }
    // Ten seconds lie between two evictions, and times of the API are whole seconds.
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    wait_for_event(
        &cluster,
        "EvictionThresholdMet",
        "Attempting to reclaim memory",
    )
    .await;
    let message = cluster.event("Evicted").await;
    assert!(message.starts_with("The node was low"), "{message}");
    let said = eventually("the event of the first", || annotations(&cluster, "greedy")).await;
    assert_eq!(said["offending_containers"], "main");
    assert_eq!(said["starved_resource"], "memory");

    cluster
        .create("late", json!({"containers": [shell(HOLD)]}))
        .await;
    let late = cluster.reaches("late", "/phase", json!("Failed")).await;
    assert_eq!(late["reason"], "Evicted");
    let refusal = "Pod was rejected: The node had condition: [MemoryPressure]. ";
    assert_eq!(late["message"], refusal);

    let node: Node = cluster.admin.get(None, "worker-1").await.unwrap();
    let status = node.status.unwrap();
    let declared = status.declared_features.unwrap();
    assert!(declared.contains(&"InPlacePodVerticalScalingInitContainers".to_owned()));
    let conditions = status.conditions.unwrap();
    let memory = conditions.iter().find(|one| one.type_ == "MemoryPressure");
    assert_eq!(memory.unwrap().status, "True");
    let disk = conditions.iter().find(|one| one.type_ == "DiskPressure");
    assert_eq!(disk.unwrap().status, "False");
    cluster
        .reaches("critical", "/phase", json!("Running"))
        .await;
    // Nothing would make another static pod in its place.
    let seen = cluster.site.agent().list(Some(&own)).await.unwrap();
    assert!(!seen.is_empty() && seen.iter().all(runs), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_goes_for_a_soft_threshold_has_its_grace_and_is_evicted_also_by_the_next_agent()
{
    let cluster = Cluster::new().await;
    let stubborn = shell("trap 'echo asked' TERM; echo held; while :; do sleep 0.2; done");
    let spec = json!({"terminationGracePeriodSeconds": 600, "containers": [stubborn]});
    cluster.create("stubborn", spec).await;
    cluster
        .reaches("stubborn", "/phase", json!("Running"))
        .await;
    let pod = cluster.pod("stubborn").await.unwrap();
    let says = |cluster: &Cluster, word| {
        let log = cluster.log(&pod, 0);
        texts(&log).contains(&word).then_some(())
    };
    eventually("the trap", || async { says(&cluster, "held") }).await;

    let soft = Soft {
        least: Least::Amount(1 << 50),
        grace: Duration::from_secs(1),
    };
    // The pod would have its ten minutes, and the test would not.
    let cluster = cluster
        .under(Thresholds {
            soft: BTreeMap::from([(Signal::MemoryAvailable, soft)]),
            max_pod_grace: Duration::from_secs(3600),
            transition: Duration::from_secs(300),
            ..Thresholds::none()
        })
        .await;
    eventually("the signal", || async { says(&cluster, "asked") }).await;
    let status = serde_json::to_value(cluster.pod("stubborn").await.unwrap().status).unwrap();
    assert_eq!(status["phase"], "Running", "{status}");
    assert_eq!(status.get("reason"), None, "{status}");

    // The agent that comes meanwhile sees a machine without pressure, and goes on with what the one
    // before began.
    let cluster = cluster.under(Thresholds::none()).await;
    eventually("the signal of the next agent", || async {
        let log = cluster.log(&pod, 0);
        let asked = texts(&log).into_iter().filter(|text| *text == "asked");
        (asked.count() == 2).then_some(())
    })
    .await;
    let (engine, uid) = (cluster.site.agent(), pod.metadata.uid.as_deref());
    for seen in engine.list(uid).await.unwrap() {
        engine.kill(&seen.id).await.unwrap();
    }
    let status = cluster
        .reaches("stubborn", "/reason", json!("Evicted"))
        .await;
    assert_eq!(status["phase"], "Failed");
    let message = status["message"].as_str().unwrap();
    let beginning = "The node was low on resource: memory. Threshold quantity: 1024Ti, available: ";
    assert!(message.starts_with(beginning), "{message}");
    evicted_at(&status);
    let count = &status["containerStatuses"][0]["restartCount"];
    assert_eq!(*count, 0, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_evicts_a_pod_before_all_meet_the_limit_of_their_memory() {
    const FILES: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
    let cluster = Cluster::new().await;
    let spec = json!({"containers": [shell(HOLD)]});
    cluster.create("near", spec).await;
    cluster.reaches("near", "/phase", json!("Running")).await;
    // The limit comes before the threshold, so that the first measurement is of both.
    let cluster = cluster.owning_machine().await;
    let limit = eventually("the limit of all pods", || async {
        let text = of_group("/kubepods", "memory", FILES);
        // What has no limit says so by a word, or by the largest number of pages.
        let limit = text.trim().parse::<u64>().ok();
        limit.filter(|limit| *limit < 1 << 62)
    })
    .await;
    // All of the machine, and all of the limit: both are met, and the limit's comes first.
    let cluster = cluster
        .under(Thresholds {
            hard: BTreeMap::from([(Signal::MemoryAvailable, Least::Percent(100))]),
            ..Thresholds::none()
        })
        .await;
    let status = cluster.reaches("near", "/reason", json!("Evicted")).await;
    assert_eq!(status["phase"], "Failed");
    let message = status["message"].as_str().unwrap();
    let beginning = "The node was low on resource: memory. Threshold quantity: ";
    let (least, _) = message
        .strip_prefix(beginning)
        .and_then(|rest| rest.split_once(", available: "))
        .unwrap_or_else(|| panic!("{message}"));
    let least: Amount = least.parse().unwrap();
    assert_eq!(u64::try_from(least.ceil_units()).unwrap(), limit);
    evicted_at(&status);

    let groups = Groups::mounted();
    let (file, none) = match groups.version() {
        Version::Two => (FILES[0], "max"),
        Version::One => (FILES[1], "-1"),
    };
    groups.write("memory", "/kubepods", file, none).unwrap();
}

/// The Node's condition of this type, and whether it has a taint of this key.
async fn seen(cluster: &Cluster, condition: &str, taint: &str) -> (Value, bool) {
    let node: Node = cluster.admin.get(None, "worker-1").await.unwrap();
    let node = serde_json::to_value(node).unwrap();
    let all = |at: &str| node.pointer(at).and_then(Value::as_array).cloned();
    let conditions = all("/status/conditions").unwrap_or_default();
    let found = conditions.into_iter().find(|one| one["type"] == condition);
    let taints = all("/spec/taints").unwrap_or_default();
    let tainted = taints
        .iter()
        .any(|one| one["key"] == taint && one["effect"] == "NoSchedule");
    (found.unwrap_or_default(), tainted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_low_on_memory_or_disk_evicts_has_its_condition_and_taint_and_loses_both() {
    let mut cluster = Cluster::new().await;
    let user = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
    let controllers = Controllers::of(
        &master_controllers::all(),
        master_control::Options::default(),
    );
    let controllers = controllers.run(cluster.server.client(user), std::future::pending());
    let controllers = tokio::spawn(controllers);
    for (signal, condition, taint, resource, [low, message], fine) in [
        (
            Signal::MemoryAvailable,
            "MemoryPressure",
            "node.kubernetes.io/memory-pressure",
            "memory",
            [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            ],
            "KubeletHasSufficientMemory",
        ),
        (
            Signal::NodefsAvailable,
            "DiskPressure",
            "node.kubernetes.io/disk-pressure",
            "ephemeral-storage",
            ["KubeletHasDiskPressure", "kubelet has disk pressure"],
            "KubeletHasNoDiskPressure",
        ),
    ] {
        let name = format!("of-{resource}");
        let spec = json!({"containers": [shell(HOLD)]});
        cluster.create(&name, spec).await;
        cluster.reaches(&name, "/phase", json!("Running")).await;
        cluster = cluster
            .under(Thresholds {
                hard: BTreeMap::from([(signal, Least::Amount(1 << 50))]),
                ..Thresholds::none()
            })
            .await;
        let status = cluster.reaches(&name, "/reason", json!("Evicted")).await;
        assert_eq!(status["phase"], "Failed");
        let text = status["message"].as_str().unwrap();
        let beginning =
            format!("The node was low on resource: {resource}. Threshold quantity: 1024Ti, ");
        assert!(text.starts_with(&beginning), "{text}");
        evicted_at(&status);
        eventually("the condition and its taint", || async {
            let (found, tainted) = seen(&cluster, condition, taint).await;
            (found["status"] == "True" && tainted).then_some(())
        })
        .await;
        let (found, _) = seen(&cluster, condition, taint).await;
        assert_eq!(
            (&found["reason"], &found["message"]),
            (&json!(low), &json!(message))
        );

        let event = low.trim_start_matches("Kubelet");
        let words = format!("Node worker-1 status is now: Node{event}");
        wait_for_event(&cluster, &format!("Node{event}"), &words).await;

        cluster = cluster.under(Thresholds::none()).await;
        eventually("both to be gone", || async {
            let (found, tainted) = seen(&cluster, condition, taint).await;
            (found["status"] == "False" && !tainted).then_some(())
        })
        .await;
        let (found, _) = seen(&cluster, condition, taint).await;
        assert_eq!(found["reason"], fine);
        let event = fine.trim_start_matches("Kubelet");
        let words = format!("Node worker-1 status is now: Node{event}");
        wait_for_event(&cluster, &format!("Node{event}"), &words).await;
        let again = format!("after-{resource}");
        let spec = json!({"containers": [shell(HOLD)]});
        cluster.create(&again, spec).await;
        cluster.reaches(&again, "/phase", json!("Running")).await;
        cluster.delete(&again, 0).await;
    }
    controllers.abort();
}

/// Most bytes of a termination message that are read.
const LONGEST_MESSAGE: usize = 4096;

/// A pod that takes something in volumes of each kind, in its container's layer, and in the file of
/// its termination message.
fn taking(then: &str) -> Value {
    let script = format!(
        "for at in /disk /memory /; do busybox dd if=/dev/zero of=$at/f bs=1M count=4 2>/dev/null; done; head -c 4194304 /dev/zero | tr '\\0' x > /dev/termination-log; echo held; {then}"
    );
    let mut main = shell(&script);
    let names = ["disk", "memory", "map", "image"];
    main["volumeMounts"] =
        json!(names.map(|name| json!({"name": name, "mountPath": format!("/{name}")})));
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "map", "configMap": {"name": "m"}},
        {"name": "image", "image": {"reference": IMAGE}},
    ]);
    json!({"restartPolicy": "Never", "containers": [main], "volumes": volumes})
}

/// The folders of a pod's volumes, its container's layer, its files of name resolution, and the
/// termination message where it is longer than what is read, as far as they are there.
async fn left(cluster: &Cluster, pod: &Pod) -> Vec<PathBuf> {
    let (machine, engine) = (cluster.config().machine, cluster.engine());
    let uid = pod.metadata.uid.as_deref().unwrap();
    let own = machine.pod_dir(uid);
    let in_memory = [
        machine.memory_dir(uid),
        machine.held_dir(uid),
        machine.images_dir(uid),
    ];
    let mut all = Vec::from(in_memory);
    all.extend([Machine::EMPTY_DIRS, "hosts", "resolv.conf"].map(|name| own.join(name)));
    let mut messages = Vec::new();
    for seen in engine.list(Some(uid)).await.unwrap() {
        all.extend(engine.layer(&seen.id).await.unwrap());
        messages.push(own.join("messages").join(&seen.id));
    }
    all.retain(|path| path.exists());
    let is_long = |path: &PathBuf| {
        let length = std::fs::metadata(path).unwrap().len();
        length > u64::try_from(LONGEST_MESSAGE).unwrap()
    };
    all.extend(messages.into_iter().filter(is_long));
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_evicted_or_over_gives_back_what_it_took_and_its_log_and_status_stay() {
    let cluster = Cluster::new().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.ask(Method::POST, maps, &map).await;
    let stays = taking("while :; do sleep 0.2; done");
    cluster.create("evicted", stays).await;
    let ends = taking("echo said >> /dev/termination-log");
    cluster.create("over", ends).await;
    cluster.reaches("evicted", "/phase", json!("Running")).await;
    let pod = cluster.pod("evicted").await.unwrap();
    eventually("what it takes", || async {
        texts(&cluster.log(&pod, 0)).contains(&"held").then_some(())
    })
    .await;
    assert_eq!(left(&cluster, &pod).await.len(), 8);
    let tail = |end: &str| "x".repeat(LONGEST_MESSAGE - end.len()) + end;
    let status = cluster.reaches("over", "/phase", json!("Succeeded")).await;
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["message"], tail("said\n"), "{status}");
    let pod = cluster.pod("over").await.unwrap();
    eventually("what it took", || async {
        left(&cluster, &pod).await.is_empty().then_some(())
    })
    .await;

    let cluster = cluster
        .under(Thresholds {
            hard: BTreeMap::from([(Signal::MemoryAvailable, Least::Amount(1 << 50))]),
            transition: Duration::from_secs(300),
            ..Thresholds::none()
        })
        .await;
    let status = cluster
        .reaches("evicted", "/reason", json!("Evicted"))
        .await;
    assert_eq!(status["phase"], "Failed");
    let pod = cluster.pod("evicted").await.unwrap();
    eventually("what the evicted one took", || async {
        left(&cluster, &pod).await.is_empty().then_some(())
    })
    .await;

    let site = Site::over(cluster).await;
    let (machine, engine) = (site.cluster.config().machine, site.cluster.engine());
    for (name, code, end) in [("over", 0, "said\n"), ("evicted", 137, "")] {
        let (failed, out, why) = site.run(&["logs", name], None).await;
        let out = String::from_utf8_lossy(&out);
        assert_eq!((failed, &*out), (0, "held\n"), "{why}");
        let pod = site.cluster.pod(name).await.unwrap();
        let all = engine.list(pod.metadata.uid.as_deref()).await.unwrap();
        let [seen] = <[Container; 1]>::try_from(all).unwrap();
        assert!(
            matches!(seen.state, ContainerState::Exited { code: ended, .. } if ended == code),
            "{seen:?}"
        );
        let status = serde_json::to_value(pod.status).unwrap();
        let ended = &status["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(ended["exitCode"], code, "{status}");
        assert_eq!(ended["message"], tail(end), "{status}");
        let file = machine.pod_dir(&seen.key.pod.uid).join("messages");
        let kept = std::fs::read_to_string(file.join(&seen.id)).unwrap();
        assert_eq!(kept, tail(end));
    }
}
