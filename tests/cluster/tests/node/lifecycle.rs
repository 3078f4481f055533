//! The lives of containers: hooks, sidecars, health over gRPC. Between the master's API, in
//! process, and the real containerd.

use crate::cluster::{Cluster, shell};
use crate::health::Health;
use crate::site::{IMAGE, eventually, subdir};
use config_kube::k8s_openapi::api::core::v1::Event;
use config_model::host_path::HostPath;
use master_client::ListParams;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A cluster whose pods write down what happens to them in a folder that the test reads.
async fn witnessed() -> (Cluster, PathBuf) {
    let cluster = Cluster::new().await;
    let folder = subdir(cluster.site.dir.path(), "witness");
    let entry = HostPath {
        path: folder.display().to_string().parse().unwrap(),
        writable: true,
    };
    (cluster.again(vec![entry]).await, folder)
}

/// A container named so that runs a script and sees the folder at `/w`.
fn witness(name: &str, script: &str) -> Value {
    let mut container = shell(script);
    container["name"] = json!(name);
    container["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    container
}

fn volumes(folder: &Path) -> Value {
    json!([{"name": "w", "hostPath": {"path": folder}}])
}

fn run(script: &str) -> Value {
    json!({"exec": {"command": ["/bin/sh", "-c", script]}})
}

fn order(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("order")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn allow(folder: &Path, what: &str) {
    std::fs::write(folder.join(what), "").unwrap();
}

async fn is_gone(cluster: &Cluster, name: &str) {
    eventually("the pod to be gone", || async {
        cluster.pod(name).await.is_none().then_some(())
    })
    .await;
}

/// Waits for an event with this reason whose message is this one.
pub(crate) async fn wait_for_event(cluster: &Cluster, reason: &str, message: &str) {
    eventually(message, || async {
        let params = ListParams::default();
        let events = cluster.admin.list::<Event>(Some("default"), &params).await;
        let events = events.unwrap().items;
        let is_it = |event: &Event| {
            event.reason.as_deref() == Some(reason) && event.message.as_deref() == Some(message)
        };
        events.iter().any(is_it).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_started_again_while_the_master_is_away() {
    let (cluster, folder) = witnessed().await;
    let script =
        "echo run >> /w/order; while [ ! -e /w/go ]; do sleep 0.1; done; busybox rm /w/go; exit 1";
    let spec = json!({"containers": [witness("main", script)], "volumes": volumes(&folder)});
    cluster.create("steady", spec).await;
    let status = cluster
        .reaches("steady", "/containerStatuses/0/ready", json!(true))
        .await;
    let conditions = status["conditions"].as_array().unwrap();
    for ready in conditions.iter().filter(|one| one["status"] == "True") {
        let words = [&ready["reason"], &ready["message"]];
        assert_eq!(words, [&Value::Null; 2], "earlier reasons: {ready}");
    }

    cluster.away.store(true, Ordering::SeqCst);
    allow(&folder, "go");
    eventually("the container to run again", || async {
        (order(&folder) == ["run", "run"]).then_some(())
    })
    .await;
    let pod = cluster.pod("steady").await.unwrap();
    assert_eq!(
        pod.status.unwrap().container_statuses.unwrap()[0].restart_count,
        0,
        "the master was away"
    );
    cluster.away.store(false, Ordering::SeqCst);
    cluster
        .reaches("steady", "/containerStatuses/0/restartCount", json!(1))
        .await;
    cluster.delete("steady", 0).await;
    is_gone(&cluster, "steady").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_run_after_the_start_and_before_the_stop() {
    let (cluster, folder) = witnessed().await;
    let life =
        "trap 'echo term >> /w/order; exit 0' TERM; echo > /w/runs; while :; do sleep 0.1; done";
    let mut first = witness("main", life);
    let wait = "echo post >> /w/order; while [ ! -e /w/go ]; do sleep 0.1; done";
    first["lifecycle"] = json!({"postStart": run(wait), "preStop": run("echo pre >> /w/order; sleep 1; echo stop >> /w/order")});
    let second = witness(
        "second",
        "echo second >> /w/order; trap 'exit 0' TERM; while :; do sleep 0.1; done",
    );
    let spec = json!({"containers": [first, second], "volumes": volumes(&folder), "terminationGracePeriodSeconds": 300});
    cluster.create("hooked", spec).await;

    // The container runs, and counts as one that does not before its hook has ended; nor is the
    // next one started.
    let first_state = "/containerStatuses/0/state/waiting/reason";
    eventually("the hook to run", || async {
        (folder.join("runs").exists() && order(&folder) == ["post"]).then_some(())
    })
    .await;
    let status = cluster
        .reaches("hooked", first_state, json!("ContainerCreating"))
        .await;
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["containerStatuses"][1]["containerID"], Value::Null);
    allow(&folder, "go");
    cluster.reaches("hooked", "/phase", json!("Running")).await;
    eventually("the second container", || async {
        (order(&folder) == ["post", "second"]).then_some(())
    })
    .await;

    cluster.delete("hooked", 300).await;
    is_gone(&cluster, "hooked").await;
    assert_eq!(order(&folder), ["post", "second", "pre", "stop", "term"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_that_fail_are_reported_in_upstreams_words() {
    let cluster = Cluster::new().await;
    let mut broken = shell("sleep 600");
    broken["lifecycle"] = json!({"postStart": run("echo a secret; exit 1")});
    let spec = json!({"containers": [broken], "terminationGracePeriodSeconds": 1});
    cluster.create("broken", spec).await;
    wait_for_event(&cluster, "FailedPostStartHook", "PostStartHook failed").await;
    wait_for_event(&cluster, "Killing", "FailedPostStartHook").await;
    cluster
        .reaches("broken", "/containerStatuses/0/restartCount", json!(1))
        .await;

    // Nothing listens on this port; and a slow hook delays nothing beyond the grace.
    let mut refused = shell("sleep 600");
    let port = tests_harness::port::free().unwrap();
    refused["lifecycle"] = json!({"preStop": {"httpGet": {"path": "/", "port": port}}});
    let mut slow = shell("trap 'exit 0' TERM; while :; do sleep 0.1; done");
    slow["name"] = json!("slow");
    slow["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 86_000}}});
    let spec = json!({"containers": [refused, slow], "terminationGracePeriodSeconds": 86_400});
    cluster.create("refused", spec).await;
    cluster.reaches("refused", "/phase", json!("Running")).await;
    cluster.delete("refused", 3).await;
    wait_for_event(&cluster, "FailedPreStopHook", "PreStopHook failed").await;
    is_gone(&cluster, "refused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_starts_before_and_ends_after_the_work_and_is_started_again() {
    let (cluster, folder) = witnessed().await;
    let life = |name: &str| {
        format!(
            "echo {name} up >> /w/order; trap 'echo {name} down >> /w/order; exit 0' TERM; \
             while [ ! -e /w/end-{name} ]; do sleep 0.1; done; busybox rm /w/end-{name}; exit 3"
        )
    };
    let mut proxy = witness("proxy", &life("proxy"));
    proxy["restartPolicy"] = json!("Always");
    let mut probe = run("[ -e /w/ready ]");
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(60);
    probe["failureThreshold"] = json!(100_000);
    proxy["startupProbe"] = probe;
    let work = "echo main up >> /w/order; while [ ! -e /w/done ]; do sleep 0.1; done; echo main down >> /w/order";
    let spec = json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 300, "volumes": volumes(&folder),
        "initContainers": [proxy], "containers": [witness("main", work)],
    });
    cluster.create("served", spec).await;

    let sidecar = "/initContainerStatuses/0";
    let running = eventually("the sidecar to run", || async {
        let status = serde_json::to_value(cluster.pod("served").await?.status).unwrap();
        let state = status.pointer("/initContainerStatuses/0/state/running");
        state.is_some_and(Value::is_object).then_some(status)
    })
    .await;
    assert_eq!(running["initContainerStatuses"][0]["started"], false);
    let waiting = &running["containerStatuses"][0]["state"]["waiting"]["reason"];
    assert_eq!(
        (waiting, &running["phase"]),
        (&json!("PodInitializing"), &json!("Pending"))
    );
    allow(&folder, "ready");
    cluster.reaches("served", "/phase", json!("Running")).await;
    cluster
        .reaches("served", &format!("{sidecar}/ready"), json!(true))
        .await;

    // It fails under a policy that restarts nothing, and is started again; the work continues.
    allow(&folder, "end-proxy");
    let again = cluster
        .reaches("served", &format!("{sidecar}/restartCount"), json!(1))
        .await;
    assert_eq!(again["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(again["phase"], "Running");
    eventually("the sidecar to be up again", || async {
        (order(&folder) == ["proxy up", "main up", "proxy up"]).then_some(())
    })
    .await;

    allow(&folder, "done");
    cluster
        .reaches("served", "/phase", json!("Succeeded"))
        .await;
    let ends = ["proxy up", "main up", "proxy up", "main down", "proxy down"];
    assert_eq!(order(&folder), ends);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_deleted_is_asked_whether_it_is_ready_until_it_ends() {
    let (cluster, folder) = witnessed().await;
    let script = "trap 'echo > /w/asked' TERM; while [ ! -e /w/end ]; do sleep 0.1; done";
    let mut main = witness("main", script);
    let mut probe = run("[ -e /w/ready ]");
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(60);
    main["readinessProbe"] = probe;
    let spec = json!({
        "terminationGracePeriodSeconds": 300, "containers": [main], "volumes": volumes(&folder),
    });
    cluster.create("leaving", spec).await;
    cluster.reaches("leaving", "/phase", json!("Running")).await;
    cluster.delete("leaving", 300).await;
    eventually("the container to be asked to end", || async {
        folder.join("asked").exists().then_some(())
    })
    .await;
    allow(&folder, "ready");
    cluster
        .reaches("leaving", "/containerStatuses/0/ready", json!(true))
        .await;
    allow(&folder, "end");
    is_gone(&cluster, "leaving").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_over_grpc_decides_what_is_ready_and_what_lives() {
    let cluster = Cluster::new().await;
    let health = Health::serve().await;
    let probe = |service: &str| json!({"grpc": {"port": health.port, "service": service}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1});
    let mut main = shell("sleep 600");
    main["readinessProbe"] = probe("ready");
    let mut lives = probe("lives");
    lives["terminationGracePeriodSeconds"] = json!(1);
    main["livenessProbe"] = lives;
    health.set("ready", Some(2));
    health.set("lives", Some(1));
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 86_400});
    cluster.create("probed", spec).await;
    let unready = "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    wait_for_event(&cluster, "Unhealthy", unready).await;
    let status = cluster.reaches("probed", "/phase", json!("Running")).await;
    assert_eq!(status["containerStatuses"][0]["ready"], false);
    health.set("ready", Some(1));
    cluster
        .reaches("probed", "/containerStatuses/0/ready", json!(true))
        .await;
    assert_eq!(health.agent().as_deref(), Some("kube-probe/1.36"));

    // The probe's own grace of a second holds, not the pod's of a day.
    health.set("lives", None);
    cluster
        .reaches("probed", "/containerStatuses/0/restartCount", json!(1))
        .await;
    wait_for_event(
        &cluster,
        "Killing",
        "Container main failed liveness probe, will be restarted",
    )
    .await;
    let words = "Liveness probe failed: error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): unknown method";
    wait_for_event(&cluster, "Unhealthy", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_asked_to_end_by_the_signal_that_it_names_and_keeps_its_own_restart_policy()
{
    let (cluster, folder) = witnessed().await;
    let script = "trap 'echo usr1 >> /w/order; exit 0' USR1; trap 'echo term >> /w/order' TERM; \
                  echo > /w/runs; while :; do sleep 0.1; done";
    let mut main = witness("main", script);
    main["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    let mut once = witness("once", "exit 4");
    once["restartPolicy"] = json!("Never");
    let spec = json!({
        "os": {"name": "linux"}, "volumes": volumes(&folder), "terminationGracePeriodSeconds": 300,
        "containers": [main, once],
    });
    cluster.create("signalled", spec).await;
    let code = "/containerStatuses/1/state/terminated/exitCode";
    let status = cluster.reaches("signalled", code, json!(4)).await;
    assert_eq!(status["containerStatuses"][1]["restartCount"], 0);
    // The signal of one that names none is what its image says, or this.
    let signals = [0, 1].map(|index| status["containerStatuses"][index]["stopSignal"].clone());
    assert_eq!(signals, [json!("SIGUSR1"), json!("SIGTERM")]);
    eventually("the trap", || async {
        folder.join("runs").exists().then_some(())
    })
    .await;
    cluster.delete("signalled", 300).await;
    is_gone(&cluster, "signalled").await;
    assert_eq!(order(&folder), ["usr1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_containers_of_a_pod_are_started_anew_by_the_rule_of_one() {
    let (cluster, folder) = witnessed().await;
    let hold = "while :; do sleep 0.1; done";
    let mut sidecar = witness(
        "sidecar",
        &format!("trap 'echo asked >> /w/order' TERM; {hold}"),
    );
    sidecar["restartPolicy"] = json!("Always");
    let init = witness("init", "echo init >> /w/order");
    // It ends when the other one has run, too: what was never started is not started anew.
    let script = format!(
        "echo main >> /w/order; [ -e /w/again ] && {hold}; while [ ! -e /w/done ]; do sleep 0.1; done; \
         echo > /w/again; exit 42"
    );
    let mut main = witness("main", &script);
    main["restartPolicy"] = json!("Never");
    main["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
    ]);
    let spec = json!({
        "restartPolicy": "Never", "volumes": volumes(&folder), "initContainers": [sidecar, init],
        "containers": [main, witness("done", "echo > /w/done")],
    });
    cluster.create("anew", spec).await;
    let count = "/containerStatuses/0/restartCount";
    cluster.reaches("anew", count, json!(1)).await;
    let status = cluster
        .reaches("anew", "/containerStatuses/1/restartCount", json!(1))
        .await;
    let counts = |list: &str| {
        let all = status[list].as_array().unwrap().iter();
        all.map(|one| one["restartCount"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(counts("initContainerStatuses"), [json!(1), json!(1)]);
    assert_eq!(
        status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"],
        42
    );
    let status = cluster.reaches("anew", "/phase", json!("Running")).await;
    let conditions = status["conditions"].as_array().unwrap();
    let mut conditions = conditions.iter();
    let restarting = conditions.find(|one| one["type"] == "AllContainersRestarting");
    assert_eq!(restarting.unwrap()["status"], "False");
    eventually("what runs of the second round", || async {
        (order(&folder) == ["init", "main", "init", "main"]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debugger_looks_into_a_container_of_a_running_pod_and_has_no_more_rights() {
    let cluster = Cluster::new().await;
    let mut main = shell("exec sleep 4321");
    main["restartPolicy"] = json!("Always");
    cluster
        .create("looked-into", json!({"containers": [main]}))
        .await;
    cluster
        .reaches("looked-into", "/phase", json!("Running"))
        .await;
    let script = "busybox tr '\\0' ' ' < /proc/1/cmdline > /dev/termination-log; exit 3";
    let debugger =
        |name: &str| json!({"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script]});
    let mut inside = debugger("inside");
    inside["targetContainerName"] = json!("main");
    let alone = debugger("alone");
    let mut mighty = debugger("mighty");
    mighty["securityContext"] = json!({"privileged": true});
    let mut pod = serde_json::to_value(cluster.pod("looked-into").await).unwrap();
    pod["spec"]["ephemeralContainers"] = json!([inside, alone, mighty]);
    let path = "/api/v1/namespaces/default/pods/looked-into/ephemeralcontainers";
    cluster.ask(http::Method::PUT, path, &pod).await;

    let ended =
        |number: usize| format!("/ephemeralContainerStatuses/{number}/state/terminated/exitCode");
    cluster.reaches("looked-into", &ended(0), json!(3)).await;
    cluster.reaches("looked-into", &ended(1), json!(3)).await;
    let waits = "/ephemeralContainerStatuses/2/state/waiting/reason";
    let reason = json!("CreateContainerConfigError");
    let status = cluster.reaches("looked-into", waits, reason).await;
    let words = |number: usize| {
        let state = &status["ephemeralContainerStatuses"][number]["state"];
        state["terminated"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(words(0).contains("sleep 4321"), "{:?}", words(0));
    assert!(words(1).contains("/proc/1/cmdline"), "{:?}", words(1));
    let refused = &status["ephemeralContainerStatuses"][2]["state"]["waiting"]["message"];
    assert!(
        refused.as_str().unwrap().contains("privileged"),
        "{refused}"
    );
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(status["ephemeralContainerStatuses"][0]["restartCount"], 0);
    cluster.delete("looked-into", 1).await;
    is_gone(&cluster, "looked-into").await;
}
