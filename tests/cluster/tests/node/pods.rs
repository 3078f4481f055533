//! The kubelet between the master's own API, in process, and the real containerd: what users see of
//! their pods.

use crate::cluster::{Cluster, NODE, shell};
use crate::site::{IMAGE, LIMIT, eventually, texts};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use master_client::{ListParams, Patch};
use serde_json::json;
use std::time::{Duration, Instant};

/// A pod with an init container, files of a config map, and a process that ends in its own time.
async fn create_web(cluster: &Cluster) {
    let map: ConfigMap = serde_json::from_value(
        json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "from the map"}}),
    )
    .unwrap();
    cluster.admin.create(&map).await.unwrap();
    let mut main = shell(
        "echo $POD $K; cat /files/k /etc/hosts; trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done",
    );
    main["env"] = json!([
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
    ]);
    main["volumeMounts"] = json!([{"name": "files", "mountPath": "/files"}, {"name": "scratch", "mountPath": "/scratch"}]);
    let init = json!({"name": "init", "image": IMAGE, "command": ["/bin/sh", "-c", "echo ready > /scratch/init"],
                      "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]});
    let volumes =
        json!([{"name": "files", "configMap": {"name": "m"}}, {"name": "scratch", "emptyDir": {}}]);
    cluster
        .create(
            "web",
            json!({"containers": [main], "initContainers": [init], "volumes": volumes}),
        )
        .await;
}

/// The Node was made without labels: its kubelet adds those that charts choose by.
async fn the_kubelet_labels_its_node(cluster: &Cluster) {
    let labels = cluster
        .admin
        .get::<Node>(None, NODE)
        .await
        .unwrap()
        .metadata
        .labels
        .unwrap_or_default();
    for (label, value) in ["", "beta."].into_iter().flat_map(|prefix| {
        [
            (format!("{prefix}kubernetes.io/os"), "linux"),
            (format!("{prefix}kubernetes.io/arch"), "amd64"),
        ]
    }) {
        assert_eq!(
            labels.get(&label).map(String::as_str),
            Some(value),
            "{label}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_is_ready_and_goes_with_its_grace() {
    let cluster = Cluster::new().await;
    create_web(&cluster).await;

    let status = cluster.reaches("web", "/phase", json!("Running")).await;
    assert_eq!(status["hostIP"], "127.0.0.1");
    the_kubelet_labels_its_node(&cluster).await;
    assert_eq!(
        status["initContainerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    for condition in status["conditions"].as_array().unwrap() {
        assert_eq!(condition["status"], "True", "{condition}");
    }
    let pod = cluster.pod("web").await.unwrap();
    eventually("the pod's output", || async {
        (texts(&cluster.log(&pod, 0)).len() > 1).then_some(())
    })
    .await;
    assert_eq!(texts(&cluster.log(&pod, 0))[0], "web from the map");

    for reason in ["Pulling", "Pulled", "Created", "Started"] {
        eventually(reason, || async {
            let events = cluster
                .admin
                .list::<Event>(Some("default"), &ListParams::default())
                .await
                .unwrap()
                .items;
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some(reason))
                .then_some(())
        })
        .await;
    }

    let dirs = [cluster
        .config()
        .machine
        .data
        .join("pods")
        .join(pod.metadata.uid.as_deref().unwrap())];
    assert!(dirs[0].exists());
    cluster.delete("web", 20).await;
    eventually("the pod to be gone", || async {
        cluster.pod("web").await.is_none().then_some(())
    })
    .await;
    assert!(!dirs[0].exists(), "its folder went with it");
    assert!(
        agent_runtime::Runtime::list(&*cluster.site.agent(), None)
            .await
            .unwrap()
            .is_empty()
    );
}

/// Pods that end, or never begin, each for another reason.
async fn create_pods_that_end(cluster: &Cluster) {
    cluster
        .create(
            "crashes",
            json!({"containers": [shell("echo once more; exit 7")]}),
        )
        .await;
    cluster
        .create("done", json!({"restartPolicy": "Never", "containers": [shell("echo last > /dev/termination-log")]}))
        .await;
    cluster
        .create(
            "fails",
            json!({"restartPolicy": "Never", "containers": [shell("exit 3")]}),
        )
        .await;
    let mut absent = shell("true");
    absent["image"] = json!("registry.example/absent:1");
    cluster
        .create("absent", json!({"containers": [absent]}))
        .await;
    let mut never = shell("true");
    never["image"] = json!("registry.example/never:1");
    never["imagePullPolicy"] = json!("Never");
    cluster
        .create("never", json!({"containers": [never]}))
        .await;
    let mut programless = shell("true");
    programless["command"] = json!(["/no/such/program"]);
    cluster
        .create("programless", json!({"containers": [programless]}))
        .await;
    let mut keyless = shell("true");
    keyless["env"] =
        json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]);
    cluster
        .create("keyless", json!({"containers": [keyless]}))
        .await;
    cluster
        .create(
            "networked",
            json!({"hostNetwork": false, "containers": [shell("true")]}),
        )
        .await;
    let mut privileged = shell("true");
    privileged["securityContext"] = json!({"privileged": true});
    cluster
        .create("privileged", json!({"containers": [privileged]}))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_containers_have_the_reasons_that_users_know() {
    let cluster = Cluster::new().await;
    create_pods_that_end(&cluster).await;

    let state = "/containerStatuses/0/state";
    let waiting = format!("{state}/waiting/reason");
    let crashed = cluster
        .reaches("crashes", &waiting, json!("CrashLoopBackOff"))
        .await;
    assert_eq!(
        crashed["containerStatuses"][0]["lastState"]["terminated"]["exitCode"],
        7
    );
    // One, where the first pause was looked into and no later one.
    assert!(
        crashed["containerStatuses"][0]["restartCount"].as_u64() >= Some(1),
        "{crashed}"
    );
    assert_eq!(crashed["phase"], "Running");
    let done = cluster.reaches("done", "/phase", json!("Succeeded")).await;
    let ended = &done["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&ended["reason"], &ended["message"]),
        (&json!("Completed"), &json!("last\n"))
    );
    let failed = cluster.reaches("fails", "/phase", json!("Failed")).await;
    assert_eq!(
        failed["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Error"
    );
    cluster
        .reaches("absent", &waiting, json!("ErrImagePull"))
        .await;
    cluster
        .reaches("absent", &waiting, json!("ImagePullBackOff"))
        .await;
    cluster
        .reaches("never", &waiting, json!("ErrImageNeverPull"))
        .await;
    let message = cluster.event("ErrImageNeverPull").await;
    assert_eq!(
        message,
        "Container image \"registry.example/never:1\" is not present with pull policy of Never"
    );
    let started = cluster
        .reaches("programless", &waiting, json!("RunContainerError"))
        .await;
    let last = &started["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(
        (&last["reason"], &last["exitCode"]),
        (&json!("StartError"), &json!(128))
    );
    cluster
        .reaches("keyless", &waiting, json!("CreateContainerConfigError"))
        .await;
    // A node without a range of addresses keeps such a pod waiting, in upstream's words.
    let message = cluster.event("NetworkNotReady").await;
    assert!(message.contains("spec.podCIDRs"), "{message}");
    let networked = cluster.pod("networked").await.unwrap().status.unwrap();
    assert_eq!(networked.phase.as_deref(), Some("Pending"));
    assert_eq!(networked.pod_ip, None);
    let privileged = cluster
        .reaches("privileged", "/phase", json!("Failed"))
        .await;
    assert_eq!(privileged["reason"], "PrivilegedNotAllowed");
    for name in ["networked", "absent", "crashes"] {
        cluster.delete(name, 1).await;
        eventually(name, || async {
            cluster.pod(name).await.is_none().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_ignores_the_signal_is_killed_after_the_grace() {
    let cluster = Cluster::new().await;
    cluster.create("stubborn", json!({"terminationGracePeriodSeconds": 86400, "containers": [shell("trap '' TERM; while :; do sleep 0.1; done")]})).await;
    cluster
        .reaches("stubborn", "/phase", json!("Running"))
        .await;
    let start = Instant::now();
    cluster.delete("stubborn", 2).await;
    eventually("the pod to be gone", || async {
        cluster.pod("stubborn").await.is_none().then_some(())
    })
    .await;
    // Not before its time; and within the time of the test, where the pod's own grace is a day.
    assert!(
        start.elapsed() >= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_survive_a_new_agent_and_orphans_do_not() {
    let mut cluster = Cluster::new().await;
    for name in ["stays", "goes"] {
        cluster
            .create(name, json!({"containers": [shell("n=0; while :; do n=$((n+1)); echo line $n; sleep 0.1; done")]}))
            .await;
        cluster.reaches(name, "/phase", json!("Running")).await;
    }
    let before = cluster.pod("stays").await.unwrap();
    let started = serde_json::to_value(&before).unwrap()["status"]["containerStatuses"][0].clone();
    cluster.end().await;
    cluster.delete("goes", 0).await;
    cluster.begin();
    let lines = |pod: &Pod| texts(&cluster.log(pod, 0)).len();
    let count = lines(&before);
    eventually("output under the new agent", || async {
        (lines(&before) > count + 5).then_some(())
    })
    .await;
    let after =
        serde_json::to_value(cluster.pod("stays").await).unwrap()["status"]["containerStatuses"][0]
            .clone();
    assert_eq!(after, started, "the same container, never restarted");
    let log = cluster.log(&before, 0);
    let numbers: Vec<String> = (1..=texts(&log).len())
        .map(|number| format!("line {number}"))
        .collect();
    assert_eq!(texts(&log), numbers, "no line is lost or doubled");
    eventually("the orphan's end", || async {
        (agent_runtime::Runtime::list(&*cluster.site.agent(), None)
            .await
            .unwrap()
            .len()
            == 1)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_decide_what_is_ready_and_what_lives() {
    let cluster = Cluster::new().await;
    let mut main = shell("sleep 600");
    main["readinessProbe"] = json!({"exec": {"command": ["/bin/cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 20});
    // It is alive from the first probe on, however far its own command has run by then.
    let alive = json!({"command": ["/bin/sh", "-c", "! cat /tmp/dead"]});
    main["livenessProbe"] =
        json!({"exec": alive, "periodSeconds": 1, "timeoutSeconds": 20, "failureThreshold": 1});
    cluster
        .create(
            "probed",
            json!({"terminationGracePeriodSeconds": 1, "containers": [main]}),
        )
        .await;
    let status = cluster.reaches("probed", "/phase", json!("Running")).await;
    assert_eq!(status["containerStatuses"][0]["ready"], false);
    let id = status["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap()
        .trim_start_matches("containerd://")
        .to_owned();
    let agent = cluster.site.agent();
    let run = |script: &str| {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let (agent, id) = (agent.clone(), id.clone());
        async move {
            agent_runtime::Runtime::exec(&*agent, &id, &command, LIMIT)
                .await
                .unwrap()
        }
    };
    run("echo > /tmp/ready").await;
    let ready = cluster
        .reaches("probed", "/containerStatuses/0/ready", json!(true))
        .await;
    assert_eq!(ready["containerStatuses"][0]["restartCount"], 0);
    run("echo > /tmp/dead").await;
    cluster
        .reaches("probed", "/containerStatuses/0/restartCount", json!(1))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_reports_its_status_and_renews_its_lease() {
    let cluster = Cluster::new().await;
    let node = eventually("the node to be ready", || async {
        let node: Node = cluster.admin.get(None, NODE).await.unwrap();
        let conditions = node.status.as_ref()?.conditions.clone()?;
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
            .then_some(node)
    })
    .await;
    let status = node.status.unwrap();
    let info = status.node_info.unwrap();
    assert_eq!(
        (info.kubelet_version.as_str(), info.os_image.as_str()),
        ("v1.36.0", "Pratique test")
    );
    assert!(
        info.container_runtime_version
            .starts_with("containerd://1.")
    );
    assert_eq!(status.capacity.unwrap()["pods"].0, "120");
    let lease = eventually("the lease", || async {
        cluster
            .admin
            .get_opt::<Lease>(Some("kube-node-lease"), NODE)
            .await
            .unwrap()
    });
    let spec = lease.await.spec.unwrap();
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
        (Some(NODE), Some(40))
    );
    let port = status.daemon_endpoints;
    // As upstream's tests advertise a resource: by a whole status, in which what they do not know
    // is nought.
    let patch = json!({"status": {"capacity": {"example.com/chip": "5"},
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}});
    let patch = Patch::Strategic(patch);
    let patched = cluster.admin.patch_status::<Node>(None, NODE, &patch);
    patched.await.unwrap();
    eventually("its pods may have it, and the port is back", || async {
        let node: Node = cluster.admin.get(None, NODE).await.unwrap();
        let status = node.status?;
        let chips = status.allocatable?.get("example.com/chip").cloned();
        (chips.is_some_and(|chips| chips.0 == "5") && status.daemon_endpoints == port).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_and_its_pods_follow_the_machines_addresses() {
    let cluster = Cluster::new().await;
    let main = shell("while :; do sleep 0.1; done");
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [main]});
    cluster.create("p", spec).await;
    cluster.reaches("p", "/phase", json!("Running")).await;
    cluster.reaches("p", "/hostIP", json!("127.0.0.1")).await;
    let moved = ["192.0.2.7", "2001:db8::7"];
    let addresses = moved.map(|text| text.parse().unwrap());
    cluster.addresses.send_replace(addresses.to_vec());
    let both = json!(moved.map(|ip| json!({"ip": ip})));
    let status = cluster.reaches("p", "/hostIPs", both).await;
    assert_eq!(status["hostIP"], moved[0]);
    eventually("the Node to have no other addresses", || async {
        let node: Node = cluster.admin.get(None, NODE).await.unwrap();
        let all = node.status.unwrap().addresses.unwrap_or_default();
        let internal = all.iter().filter(|one| one.type_ == "InternalIP");
        let internal: Vec<&str> = internal.map(|one| &*one.address).collect();
        (internal == moved).then_some(())
    })
    .await;
}
