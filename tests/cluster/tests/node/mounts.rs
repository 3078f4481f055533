//! Mounts that names of a pod's own lead astray: what is only to be read stays so.
//!
//! The runtime looks a volume's path up twice, and says at the second place what the mount refuses.
//! Beside it, other files of an image by which its author could reach the machine: devices, and
//! what the runtime reads before the container runs.

use crate::cluster::Cluster;
use crate::site::{Site, eventually, texts};
use config_model::host_path::HostPath;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tests_harness::oci::Entry;

/// An image of one layer, which the machine may have for others, too.
const IMAGE: &str = "preloaded.example/astray:1";
/// What the pod writes into the layer, if it can.
const MARK: &str = "written-by-a-pod";

/// Its paths, and through them volumes, lead back to themselves, and one of them to `/dev`.
const ENTRIES: [Entry<'static>; 10] = [
    Entry::Link("led", "dev"),
    Entry::Folder("run"),
    Entry::Folder("var"),
    Entry::Link("var/run", "/run"),
    Entry::Folder("d"),
    Entry::Folder("d/var"),
    Entry::Link("d/var/run", "/d"),
    Entry::Folder("e"),
    Entry::Folder("e/1/2"),
    Entry::Link("e/1/2/k", "/e"),
];

fn container(name: &str, script: &str, mounts: &Value) -> Value {
    json!({
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": mounts,
    })
}

/// A pod of which the volume `target`, at `/d/var/run`, comes to lie at `/d`, and what is said of
/// another volume is said of it.
fn astray(target: Value) -> Value {
    let link = "busybox mkdir -p /x/1/2 && busybox ln -s /d /x/1/2/k";
    let init = container("init", link, &json!([{"name": "x", "mountPath": "/x"}]));
    let write = format!("busybox touch /d/{MARK}; echo $?");
    let mounts = json!([
        {"name": "r", "mountPath": "/run"},
        {"name": "w", "mountPath": "/d/var/run", "readOnly": true},
        {"name": "x", "mountPath": "/e/1/2/k"},
    ]);
    let mut target = target;
    target["name"] = json!("w");
    let others = ["r", "x"].map(|name| json!({"name": name, "emptyDir": {}}));
    json!({
        "restartPolicy": "Never",
        "initContainers": [init],
        "containers": [container("main", &write, &mounts)],
        "volumes": [target, others[0], others[1]],
    })
}

/// The end of the pod's container: its message, where it was not started.
async fn refused(cluster: &Cluster, pod: &str) -> String {
    let status = eventually("the pod's end", || async {
        let status = serde_json::to_value(cluster.pod(pod).await?.status?).unwrap();
        let state = &status["containerStatuses"][0]["state"];
        let state = [&state["terminated"], &state["waiting"]];
        let ended = state
            .iter()
            .find(|state| state["message"].is_string() || state["exitCode"].is_number());
        ended.map(|&state| state.clone())
    });
    let status = status.await;
    let log = cluster.log(&cluster.pod(pod).await.unwrap(), 0);
    assert_eq!(log, "", "the container ran");
    status["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_only_read_stays_so_wherever_links_lead_the_runtime() {
    let site = Site::new();
    site.preload(IMAGE, &ENTRIES);
    let (folder, listed) = listed(&site);
    std::fs::create_dir(folder.join("var")).unwrap();
    std::os::unix::fs::symlink("/run", folder.join("var/run")).unwrap();
    let cluster = Cluster::at(site).await.again(vec![listed]).await;
    let image = json!({"image": {"reference": IMAGE, "pullPolicy": "Never"}});
    let host = json!({"hostPath": {"path": &folder}});
    for (name, target) in [("host", host), ("image", image)] {
        cluster.create(name, astray(target)).await;
        let message = refused(&cluster, name).await;
        assert!(
            message.contains("permits more than its pod asks for"),
            "{message}"
        );
    }
    assert_eq!(cluster.site.layers_with("d/var/run").len(), 1);
    assert!(cluster.site.layers_with(MARK).is_empty());
    assert!(!folder.join(MARK).exists());
}

/// A pod with a terminal, for which the runtime makes `console` in the container's `/dev` while it
/// still sees the machine's files. Its volume `b` has a link of that name, to `made`, and its
/// volume `a` a link to `/dev`.
fn with_terminal(made: &Path, mounts: &Value) -> Value {
    let made = made.display();
    let links = format!("busybox ln -s /dev /a/d && busybox ln -s {made} /b/console");
    let places = ["a", "b"].map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let mut init = container("init", &links, &json!(places));
    init["securityContext"] = json!({"runAsUser": 1000});
    let mut main = container("main", "echo ran", mounts);
    main["tty"] = json!(true);
    json!({
        "restartPolicy": "Never",
        "initContainers": [init],
        "containers": [main],
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_volume_has_the_runtime_make_a_file_of_the_machine() {
    let site = Site::new();
    site.preload(IMAGE, &ENTRIES);
    let made = site.dir.path().join("made-by-a-pod");
    let cluster = Cluster::at(site).await;
    let at = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let (link, nul) = (
        "led the mount of a volume to /dev",
        "mountPath must not contain a NUL",
    );
    for (name, mounts, told) in [
        ("volume", json!([at("a", "/v"), at("b", "/v/d")]), link),
        ("image", json!([at("b", "/led")]), link),
        ("nul", json!([at("b", "/./dev\0x")]), nul),
        ("null", json!([at("b", "/dev/null\0x")]), nul),
        (
            "nested",
            json!([at("a", "/dev/v"), at("b", "/dev/v/d")]),
            "below /dev",
        ),
        (
            "shared",
            json!([at("a", "/dev/shm"), at("b", "/dev/shm/d")]),
            "below /dev",
        ),
    ] {
        cluster.create(name, with_terminal(&made, &mounts)).await;
        let message = refused(&cluster, name).await;
        assert!(message.contains(told), "{name}: {message}");
        assert!(!made.exists(), "{name}: the runtime made it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_in_dev_is_seen_there() {
    let site = Site::new();
    site.preload(IMAGE, &ENTRIES);
    let cluster = Cluster::at(site).await;
    let script = "echo shm > /dev/shm/x; echo own > /dev/own/x; cat /m/x /v/x";
    let places = [
        ("m", "/dev/shm"),
        ("m", "/m"),
        ("v", "/dev/own"),
        ("v", "/v"),
    ];
    let mounts = places.map(|(name, path)| json!({"name": name, "mountPath": path}));
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [container("main", script, &json!(mounts))],
        "volumes": [
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "v", "emptyDir": {}},
        ],
    });
    assert_eq!(output(&cluster, "sees", spec).await, ["shm", "own"]);
}

/// A folder of the machine that its configuration lists to be read.
fn listed(site: &Site) -> (PathBuf, HostPath) {
    let folder = site.dir.path().join("listed");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.display().to_string().parse().unwrap();
    let writable = false;
    (folder, HostPath { path, writable })
}

/// Containers that are made while another one of their pod changes what a path of theirs leads to.
const RACERS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_that_flips_a_name_makes_no_volume_writable() {
    let site = Site::new();
    site.preload(IMAGE, &ENTRIES);
    let (folder, listed) = listed(&site);
    let cluster = Cluster::at(site).await.again(vec![listed]).await;
    let flip = "cd /s; busybox ln -s /d l; busybox mkdir k; \
        while :; do busybox mv -T k f; busybox mv -T l k; busybox mv -T k l; busybox mv -T f k; done";
    let shared = json!({"name": "s", "mountPath": "/s"});
    let mut flipper = container("flips", flip, &json!([shared]));
    flipper["restartPolicy"] = json!("Always");
    let mounts = json!([
        shared,
        {"name": "w", "mountPath": "/d", "readOnly": true},
        {"name": "y", "mountPath": "/s/k"},
    ]);
    let write = format!("busybox touch /d/{MARK}");
    let racer = |number| container(&format!("main{number}"), &write, &mounts);
    let racers: Vec<Value> = (0..RACERS).map(racer).collect();
    let spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "initContainers": [flipper],
        "containers": racers,
        "volumes": [
            {"name": "s", "emptyDir": {}},
            {"name": "w", "hostPath": {"path": &folder}},
            {"name": "y", "emptyDir": {}},
        ],
    });
    cluster.create("races", spec).await;
    let ended = || async {
        let status = cluster.pod("races").await?.status?;
        let phase = status.phase?;
        ["Succeeded", "Failed"]
            .contains(&phase.as_str())
            .then_some(())
    };
    eventually("the end of all racers", ended).await;
    assert!(!folder.join(MARK).exists());
}

/// A pod of one container, which runs once.
fn once(main: &Value) -> Value {
    json!({"restartPolicy": "Never", "containers": [main]})
}

/// The output of a pod that runs once.
async fn output(cluster: &Cluster, name: &str, spec: Value) -> Vec<String> {
    cluster.create(name, spec).await;
    let ended = || async {
        let phase = cluster.pod(name).await?.status?.phase?;
        ["Succeeded", "Failed"]
            .contains(&phase.as_str())
            .then_some(())
    };
    eventually("the pod's end", ended).await;
    let log = cluster.log(&cluster.pod(name).await.unwrap(), 0);
    texts(&log).into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_in_an_image_opens_for_nobody() {
    let site = Site::new();
    let nodes = [Entry::Device("console", 5, 1), Entry::Device("null", 1, 3)];
    site.preload(IMAGE, &nodes);
    let cluster = Cluster::at(site).await;
    let script = "for node in /console /null /dev/null; do (: > $node) 2>/dev/shm/e; \
        echo $node $? $(busybox sed 's/.*: //' /dev/shm/e); done";
    let refused = [
        "/console 1 Permission denied",
        "/null 1 Permission denied",
        "/dev/null 0",
    ];
    for (name, read_only) in [("written", false), ("read", true)] {
        let mut main = container("main", script, &json!([]));
        main["securityContext"] = json!({"readOnlyRootFilesystem": read_only});
        assert_eq!(output(&cluster, name, once(&main)).await, refused, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_in_the_place_of_an_images_accounts_holds_up_nobody() {
    let site = Site::new();
    site.preload(IMAGE, &[Entry::Pipe("etc/passwd")]);
    let cluster = Cluster::at(site).await;
    let main = container("main", "echo $HOME", &json!([]));
    assert_eq!(output(&cluster, "starts", once(&main)).await, ["/"]);
}
