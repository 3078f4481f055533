//! Resizes, pods that the node rejects, images as volumes: what upstream's node suites ask beyond
//! the plain life of a pod. Between the master's API, in process, and the real containerd.

use crate::api::InProcess;
use crate::cluster::{Cluster, NODE, shell};
use crate::lifecycle::wait_for_event;
use crate::site::{IMAGE, LIMIT, eventually, texts};
use agent_api::{Api, Call, STRATEGIC_MERGE};
use agent_sys::cgroup::{Groups, Version};
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::Method;
use jiff::Timestamp;
use master_client::{Patch, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

/// Runs until it is asked to end.
const HOLD: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// Sees the whole of a volume at `/all`, and at `/part` what its variables name.
fn with_part(script: &str, path: &str, value: &Value) -> Value {
    let mut main = shell(script);
    let mut variable = json!({"name": "PART"});
    for (key, value) in value.as_object().into_iter().flatten() {
        variable[key] = value.clone();
    }
    main["env"] = json!([variable]);
    main["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/all"},
        {"name": "v", "mountPath": "/part", "subPathExpr": path},
    ]);
    json!({"containers": [main], "volumes": [{"name": "v", "emptyDir": {}}], "restartPolicy": "Never"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_volume_is_named_by_variables_which_may_come_later() {
    let cluster = Cluster::new().await;
    let value = |text: &str| json!({"value": text});
    let mut fine = with_part(
        "test -d /all/mine/x && echo there",
        "$(PART)/x",
        &value("mine"),
    );
    // Labels mean nothing to a kernel without SELinux, as on upstream's nodes.
    fine["securityContext"] = json!({"seLinuxOptions": {"level": "s0:c0,c1"}});
    cluster.create("fine", fine).await;
    cluster
        .create("dots", with_part(HOLD, "$(PART)", &value("..")))
        .await;
    cluster
        .create("rooted", with_part(HOLD, "$(PART)", &value("/tmp")))
        .await;
    let annotation =
        json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['part']"}}});
    cluster
        .create("later", with_part(HOLD, "$(PART)/x", &annotation))
        .await;

    cluster.reaches("fine", "/phase", json!("Succeeded")).await;
    let pod = cluster.pod("fine").await.unwrap();
    assert_eq!(texts(&cluster.log(&pod, 0)), ["there"]);
    let words = "seLinuxOptions have no effect: this machine does not use SELinux";
    wait_for_event(&cluster, "SELinuxNotInUse", words).await;
    let waits = "/containerStatuses/0/state/waiting/reason";
    for name in ["dots", "rooted", "later"] {
        cluster
            .reaches(name, waits, json!("CreateContainerConfigError"))
            .await;
    }
    let change = Patch::Merge(json!({"metadata": {"annotations": {"part": "mine"}}}));
    cluster
        .admin
        .patch::<Pod>(Some("default"), "later", &change)
        .await
        .unwrap();
    cluster.reaches("later", "/phase", json!("Running")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_finds_no_room_or_no_port_is_rejected_and_its_successor_is_taken() {
    let cluster = Cluster::new().await;
    let with_port = || {
        let mut main = shell(HOLD);
        main["ports"] = json!([{"containerPort": 54_321, "hostPort": 54_321}]);
        json!({"containers": [main]})
    };
    cluster.create("first", with_port()).await;
    cluster.reaches("first", "/phase", json!("Running")).await;
    cluster.create("second", with_port()).await;
    let status = cluster.reaches("second", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "NodePorts");
    assert_eq!(
        status["message"],
        "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    );
    let mut huge = shell(HOLD);
    huge["resources"] = json!({"requests": {"cpu": "1000000"}});
    cluster.create("huge", json!({"containers": [huge]})).await;
    let status = cluster.reaches("huge", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "OutOfcpu");
    assert_eq!(status["observedGeneration"], 1);

    for name in ["first", "second"] {
        cluster.delete(name, 1).await;
        eventually("the pod to be gone", || async {
            cluster.pod(name).await.is_none().then_some(())
        })
        .await;
    }
    cluster.create("third", with_port()).await;
    cluster.reaches("third", "/phase", json!("Running")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_selects_other_nodes_or_does_not_tolerate_this_one_is_rejected() {
    let cluster = Cluster::new().await;
    let selects =
        |value: &str| json!({"containers": [shell(HOLD)], "nodeSelector": {"disk": value}});
    cluster.create("elsewhere", selects("ssd")).await;
    let status = cluster
        .reaches("elsewhere", "/phase", json!("Failed"))
        .await;
    assert_eq!(status["reason"], "NodeAffinity");
    assert_eq!(
        status["message"],
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    // Known at once, for what speaks against a pod is asked anew.
    let change = Patch::Merge(json!({"metadata": {"labels": {"disk": "ssd"}}}));
    let patched = cluster.admin.patch::<Node>(None, NODE, &change).await;
    patched.unwrap();
    cluster.create("here", selects("ssd")).await;
    cluster.reaches("here", "/phase", json!("Running")).await;

    let mut foreign = json!({"containers": [shell(HOLD)]});
    foreign["os"] = json!({"name": "windows"});
    cluster.create("foreign", foreign).await;
    let status = cluster.reaches("foreign", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "PodOSNotSupported");

    let mut confined = json!({"containers": [shell(HOLD)]});
    confined["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    cluster.create("confined", confined).await;
    let status = cluster.reaches("confined", "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], "AppArmor");
    let words = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(status["message"], words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_a_pod_have_together_what_the_pod_names_as_a_whole() {
    let cluster = Cluster::new().await;
    let mut second = shell(HOLD);
    second["name"] = json!("second");
    second["resources"] = json!({"limits": {"memory": "32Mi"}});
    let requests = json!({"cpu": "100m", "memory": "48Mi"});
    let limits = json!({"cpu": "500m", "memory": "64Mi"});
    let spec = json!({
        "containers": [shell(HOLD), second],
        "resources": {"requests": requests, "limits": limits},
    });
    cluster.create("whole", spec).await;
    let status = cluster.reaches("whole", "/phase", json!("Running")).await;
    assert_eq!(status["qosClass"], "Burstable");
    let uid = cluster.pod("whole").await.unwrap().metadata.uid.unwrap();
    let limit = |group: &str| {
        let path = format!("/kubepods/burstable/pod{uid}{group}");
        let text = of_group(&path, "memory", ["memory.max", "memory.limit_in_bytes"]);
        text.trim().parse::<u64>().unwrap()
    };
    assert_eq!(limit(""), 64 << 20);
    let own = |number: usize| {
        let id = status["containerStatuses"][number]["containerID"].as_str();
        limit(&format!(
            "/{}",
            id.unwrap().trim_start_matches("containerd://")
        ))
    };
    assert_eq!([own(0), own(1)], [64 << 20, 32 << 20]);
    assert_eq!(status["resources"]["limits"], limits);
    assert_eq!(status["allocatedResources"], requests);

    // A container without a limit has the pod's; nothing is restarted for it.
    let limits = json!({"cpu": "500m", "memory": "96Mi"});
    resize_by(&cluster, "whole", &json!({"resources": {"limits": limits}})).await;
    let memory = "/resources/limits/memory";
    let status = cluster.reaches("whole", memory, json!("96Mi")).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    eventually("the groups to have the pod's limit", || async {
        ([limit(""), own(0), own(1)] == [96 << 20, 96 << 20, 32 << 20]).then_some(())
    })
    .await;
    // Less than it uses is never given to it.
    let limits = json!({"cpu": "500m", "memory": "4Ki"});
    let requests = json!({"memory": "4Ki"});
    let change = json!({"resources": {"requests": requests, "limits": limits}, "containers": [
        {"name": "second", "resources": {"requests": {"memory": "4Ki"}, "limits": {"memory": "4Ki"}}},
    ]});
    resize_by(&cluster, "whole", &change).await;
    let fault = eventually("the resize to fail", || async {
        let status = serde_json::to_value(cluster.pod("whole").await?.status).unwrap();
        let found = condition(&status, "PodResizeInProgress")?;
        let message = found["message"].as_str()?.to_owned();
        (found["reason"] == "Error").then_some(message)
    })
    .await;
    assert!(
        fault.contains("memory limit (4096) below current usage"),
        "{fault}"
    );
    assert_eq!(limit(""), 96 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_container_is_given_other_resources_while_it_runs() {
    let cluster = Cluster::new().await;
    let mut init = shell(HOLD);
    init["name"] = json!("first");
    init["resources"] = amounts("100m", "64Mi");
    let spec = json!({"initContainers": [init], "containers": [shell(HOLD)]});
    cluster.create("begins", spec).await;
    let running = "/initContainerStatuses/0/state/running/startedAt";
    eventually("the init container to run", || async {
        let status = serde_json::to_value(cluster.pod("begins").await?.status).unwrap();
        status.pointer(running).cloned()
    })
    .await;
    let change =
        json!({"initContainers": [{"name": "first", "resources": amounts("150m", "80Mi")}]});
    resize_by(&cluster, "begins", &change).await;
    let has = "/initContainerStatuses/0/resources";
    let status = cluster
        .reaches("begins", has, amounts("150m", "80Mi"))
        .await;
    let init = &status["initContainerStatuses"][0];
    assert_eq!(init["restartCount"], 0);
    let id = init["containerID"].as_str().unwrap();
    let id = id.trim_start_matches("containerd://");
    let uid = cluster.pod("begins").await.unwrap().metadata.uid.unwrap();
    let group = format!("/kubepods/burstable/pod{uid}/{id}");
    let quota = of_group(&group, "cpu", QUOTA);
    assert!(quota.starts_with("15000"), "{quota}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_has_what_an_earlier_container_has_written_for_it() {
    let cluster = Cluster::new().await;
    let variable = |key: &str, optional: bool| {
        let file = json!({"volumeName": "v", "path": "of/vars", "key": key, "optional": optional});
        json!({"name": key, "valueFrom": {"fileKeyRef": file}})
    };
    let with = |optional: bool| {
        let mut writes = shell("busybox mkdir /v/of && echo \"A='a b'\" > /v/of/vars");
        writes["name"] = json!("writes");
        writes["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        let mut main = shell("echo \"$A ${B-unset}\" > /dev/termination-log");
        main["env"] = json!([variable("A", false), variable("B", optional)]);
        json!({
            "restartPolicy": "Never",
            "initContainers": [writes],
            "containers": [main],
            "volumes": [{"name": "v", "emptyDir": {}}],
        })
    };
    cluster.create("fine", with(true)).await;
    cluster.create("waits", with(false)).await;
    let status = cluster.reaches("fine", "/phase", json!("Succeeded")).await;
    let own = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(own["message"], "a b unset\n", "{status}");
    let reason = "/containerStatuses/0/state/waiting/reason";
    let status = cluster
        .reaches("waits", reason, json!("CreateContainerConfigError"))
        .await;
    let message = &status["containerStatuses"][0]["state"]["waiting"]["message"];
    let words = "environment variable key \"B\" not found in file \"of/vars\"";
    assert_eq!(message, words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_shows_the_files_of_an_image_which_nobody_writes_or_executes() {
    let cluster = Cluster::new().await;
    let with = |reference: &str, part: &str, script: &str| {
        let mut main = shell(script);
        main["volumeMounts"] = json!([
            {"name": "files", "mountPath": "/all"},
            {"name": "files", "mountPath": "/part", "subPath": part},
        ]);
        let image = json!({"reference": reference, "pullPolicy": "IfNotPresent"});
        json!({
            "restartPolicy": "Never",
            "containers": [main],
            "volumes": [{"name": "files", "image": image}],
        })
    };
    // It is on the machine, as part of its image.
    let there = "preloaded.example/busybox:1";
    let script = "busybox cmp /bin/busybox /all/bin/busybox && busybox cmp /bin/busybox /part/busybox \
        && ! echo > /all/bin/busybox && ! echo > /all/new && ! /all/bin/busybox true \
        && echo fine > /dev/termination-log";
    cluster.create("shows", with(there, "bin", script)).await;
    let status = cluster.reaches("shows", "/phase", json!("Succeeded")).await;
    let own = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(own["message"], "fine\n", "{status}");

    let missing = "registry.example/none:1";
    cluster.create("missing", with(missing, "bin", HOLD)).await;
    cluster.create("no-part", with(there, "none", HOLD)).await;
    let waits = "/containerStatuses/0/state/waiting";
    let reason = format!("{waits}/reason");
    let backs_off = json!("ImagePullBackOff");
    let status = cluster.reaches("missing", &reason, backs_off).await;
    let message = status.pointer(waits).unwrap()["message"].as_str().unwrap();
    let beginning = format!("Back-off pulling image {missing:?}: ErrImagePull: ");
    assert!(message.starts_with(&beginning), "{message}");
    cluster
        .reaches("no-part", &reason, json!("CreateContainerConfigError"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_image_is_taken_by_a_running_pod_whatever_its_policy() {
    let cluster = Cluster::new().await;
    let spec = json!({"containers": [shell(HOLD)], "restartPolicy": "Never"});
    cluster.create("moves", spec).await;
    let status = cluster.reaches("moves", "/phase", json!("Running")).await;
    assert_eq!(status["containerStatuses"][0]["image"], IMAGE);
    let ready_since = |status: &Value| {
        let conditions = status["conditions"].as_array().unwrap();
        let ready = conditions
            .iter()
            .find(|one| one["type"] == "Ready")
            .unwrap();
        assert_eq!(ready["status"], "True", "{status}");
        time(&ready["lastTransitionTime"])
    };
    let before = ready_since(&status);
    eventually("a later second", || async {
        (Timestamp::now().as_second() > before.as_second()).then_some(())
    })
    .await;
    // It is on the machine, as part of its image.
    let image = "preloaded.example/busybox:1";
    let change =
        Patch::Strategic(json!({"spec": {"containers": [{"name": "main", "image": image}]}}));
    cluster
        .admin
        .patch::<Pod>(Some("default"), "moves", &change)
        .await
        .unwrap();
    let state = "/containerStatuses/0/restartCount";
    cluster.reaches("moves", state, json!(1)).await;
    let status = cluster
        .reaches("moves", "/containerStatuses/0/ready", json!(true))
        .await;
    assert_eq!(status["containerStatuses"][0]["image"], image);
    assert_eq!(status["phase"], "Running");
    // Nobody saw the moment between the two, unless it took longer than it is kept quiet.
    let container = &status["containerStatuses"][0];
    let ended = time(&container["lastState"]["terminated"]["finishedAt"]);
    let started = time(&container["state"]["running"]["startedAt"]);
    let moment = started.as_second() - ended.as_second();
    assert!(moment >= 2 || ready_since(&status) == before, "{status}");
    let words = "Container main definition changed, will be restarted";
    wait_for_event(&cluster, "Killing", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_being_deleted_is_ready_as_long_as_its_probe_says_so() {
    let cluster = Cluster::new().await;
    let script =
        "echo > /tmp/ready; trap 'busybox rm /tmp/ready' TERM; while :; do sleep 0.1; done";
    let mut main = shell(script);
    main["readinessProbe"] =
        json!({"exec": {"command": ["/bin/sh", "-c", "test -e /tmp/ready"]}, "periodSeconds": 1});
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["/bin/sh", "-c", "while test ! -e /tmp/go; do sleep 0.1; done"]}}});
    let ready = "/containerStatuses/0/ready";
    cluster
        .create(
            "serves",
            json!({"containers": [main], "terminationGracePeriodSeconds": 300}),
        )
        .await;
    cluster.reaches("serves", ready, json!(true)).await;
    cluster.delete("serves", 300).await;
    let killing = "Stopping container main";
    wait_for_event(&cluster, "Killing", killing).await;
    let status = serde_json::to_value(cluster.pod("serves").await.unwrap().status).unwrap();
    assert_eq!(
        status.pointer(ready),
        Some(&json!(true)),
        "its hook runs still"
    );

    let id = status["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap();
    let id = id.trim_start_matches("containerd://");
    let go = ["/bin/sh", "-c", "echo > /tmp/go"].map(str::to_owned);
    let agent = cluster.site.agent();
    agent_runtime::Runtime::exec(&*agent, id, &go, LIMIT)
        .await
        .unwrap();
    let status = cluster.reaches("serves", ready, json!(false)).await;
    assert!(
        status["containerStatuses"][0]["state"]["running"].is_object(),
        "{status}"
    );
    let empty = json!({});
    let path = "/api/v1/namespaces/default/pods/serves?gracePeriodSeconds=0";
    cluster.ask(Method::DELETE, path, &empty).await;
}

/// Asks for other resources of a pod's container.
async fn resize(cluster: &Cluster, pod: &str, resources: &Value) {
    let change = json!({"containers": [{"name": "main", "resources": resources}]});
    resize_by(cluster, pod, &change).await;
}

/// Changes resources in a pod's spec.
async fn resize_by(cluster: &Cluster, pod: &str, spec: &Value) {
    let change = json!({"spec": spec});
    let api = InProcess {
        server: cluster.server.clone(),
        user: UserInfo::admin("admin"),
        away: Arc::default(),
        asked: Arc::default(),
    };
    let call = Call {
        method: Method::PATCH,
        path: format!("/api/v1/namespaces/default/pods/{pod}/resize"),
        content_type: STRATEGIC_MERGE,
        body: change.to_string().into(),
    };
    api.call(call).await.unwrap();
}

fn amounts(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn condition<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.find(|condition| condition["type"] == name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_ready_when_its_containers_are_and_another_has_opened_its_gate() {
    let cluster = Cluster::new().await;
    let gate = "example.com/in-the-load-balancer";
    let spec = json!({"containers": [shell(HOLD)], "readinessGates": [{"conditionType": gate}]});
    cluster.create("gated", spec).await;
    // Waits until a condition has a status, and returns what else it says.
    let has = async |name: &str, wanted: &str| {
        eventually(&format!("{name} to be {wanted}"), || async {
            let status = serde_json::to_value(cluster.pod("gated").await?.status).unwrap();
            let mut all = status["conditions"].as_array()?.iter();
            let found = all.find(|condition| condition["type"] == name)?.clone();
            (found["status"] == wanted).then_some(found)
        })
        .await
    };
    has("ContainersReady", "True").await;
    let closed = has("Ready", "False").await;
    assert_eq!(closed["reason"], "ReadinessGatesNotReady");
    let words = format!("corresponding conditions of pod readiness gates [{gate}] are not true");
    assert_eq!(closed["message"], words);
    for status in ["True", "False"] {
        let change = json!({"status": {"conditions": [{"type": gate, "status": status}]}});
        let path = "/api/v1/namespaces/default/pods/gated/status";
        cluster.patch(path, &change).await;
        has("Ready", status).await;
        assert_eq!(has("ContainersReady", "True").await["status"], "True");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_given_other_resources_with_a_restart_only_where_its_policy_says_so() {
    let cluster = Cluster::new().await;
    let mut main = shell(HOLD);
    main["resources"] = amounts("100m", "64Mi");
    main["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    cluster.create("grows", json!({"containers": [main]})).await;
    let (has, cpu) = (
        "/containerStatuses/0/resources",
        "/containerStatuses/0/resources/limits/cpu",
    );
    cluster.reaches("grows", "/phase", json!("Running")).await;
    cluster.reaches("grows", has, amounts("100m", "64Mi")).await;

    resize(&cluster, "grows", &amounts("150m", "64Mi")).await;
    let status = cluster.reaches("grows", cpu, json!("150m")).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(
        status["containerStatuses"][0]["allocatedResources"]["cpu"],
        "150m"
    );
    let quota = group_file(&cluster, "grows", ["cpu.max", "cpu/cpu.cfs_quota_us"]).await;
    assert!(quota.starts_with("15000"), "{quota}");
    let text = |what: &str| {
        let asked = amounts("150m", "64Mi");
        format!(
            "Pod resize {what}: {{\"containers\":[{{\"name\":\"main\",\"resources\":{asked}}}],\"generation\":2}}"
        )
    };
    for what in ["Started", "Completed"] {
        wait_for_event(
            &cluster,
            &format!("Resize{what}"),
            &text(&what.to_lowercase()),
        )
        .await;
    }

    resize(&cluster, "grows", &amounts("150m", "80Mi")).await;
    let restarts = "/containerStatuses/0/restartCount";
    cluster.reaches("grows", restarts, json!(1)).await;
    cluster.reaches("grows", has, amounts("150m", "80Mi")).await;
    wait_for_event(
        &cluster,
        "Killing",
        "Container main resize requires restart",
    )
    .await;

    // More than the node has: the container keeps its resources, and the condition goes when the
    // resize is withdrawn.
    resize(&cluster, "grows", &amounts("1000000", "80Mi")).await;
    let waits = eventually("the resize to wait", || async {
        let status = serde_json::to_value(cluster.pod("grows").await.unwrap().status).unwrap();
        condition(&status, "PodResizePending").cloned()
    })
    .await;
    assert_eq!(
        (&waits["status"], &waits["reason"]),
        (&json!("True"), &json!("Infeasible"))
    );
    let status = cluster.reaches("grows", has, amounts("150m", "80Mi")).await;
    assert_eq!(
        status["containerStatuses"][0]["allocatedResources"]["cpu"],
        "150m"
    );
    resize(&cluster, "grows", &amounts("120m", "80Mi")).await;
    cluster.reaches("grows", cpu, json!("120m")).await;
    eventually("the conditions to go", || async {
        let status = serde_json::to_value(cluster.pod("grows").await.unwrap().status).unwrap();
        let there = ["PodResizePending", "PodResizeInProgress"]
            .map(|name| condition(&status, name).is_some());
        (there == [false; 2]).then_some(())
    })
    .await;
    cluster.reaches("grows", restarts, json!(1)).await;
    let uid = cluster.pod("grows").await.unwrap().metadata.uid.unwrap();
    eventually("the pod's group to have what its container has", || async {
        let quota = of_group(&format!("/kubepods/pod{uid}"), "cpu", QUOTA);
        quota.starts_with("12000").then_some(())
    })
    .await;
}

/// Names of a file, in version 2 and 1.
const QUOTA: [&str; 2] = ["cpu.max", "cpu.cfs_quota_us"];

/// A file of a control group of the machine.
pub(crate) fn of_group(group: &str, controller: &str, names: [&str; 2]) -> String {
    let groups = Groups::mounted();
    let file = match groups.version() {
        Version::Two => names[0],
        Version::One => names[1],
    };
    groups.read(controller, group, file).unwrap()
}

/// A file of a container's control group, by its name in version 2 or 1.
async fn group_file(cluster: &Cluster, pod: &str, names: [&str; 2]) -> String {
    let pod = cluster.pod(pod).await.unwrap();
    let status = serde_json::to_value(pod.status).unwrap();
    let id = status["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap();
    let script = names
        .map(|name| format!("busybox cat /sys/fs/cgroup/{name} 2>/dev/null"))
        .join(" || ");
    let agent = cluster.site.agent();
    let command = ["/bin/sh", "-c", &script].map(str::to_owned);
    let id = id.trim_start_matches("containerd://");
    let done = agent_runtime::Runtime::exec(&*agent, id, &command, LIMIT)
        .await
        .unwrap();
    String::from_utf8(done.output).unwrap()
}
