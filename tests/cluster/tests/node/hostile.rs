//! Hostile pods on a real engine: what they do to their volumes, logs and disk stays theirs, and
//! leaves nothing.
//!
//! One round of all of them is part of the ordinary run. `PRATIQUE_SOAK_MINUTES` makes
//! [`hostile_pods_leave_the_host_as_it_was`] repeat its rounds for that long.

use crate::cluster::{Cluster, shell};
use crate::lifecycle::wait_for_event;
use crate::site::{eventually, texts};
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use config_model::host_path::HostPath;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A word that occurs nowhere else on the machine.
const WORD: &str = "hunter2-of-the-hostile-pods";

fn mounted(script: &str, mounts: Value) -> Value {
    let mut main = shell(script);
    main["volumeMounts"] = mounts;
    main
}

/// A pod that runs once, with one volume at `/v`.
fn once(script: &str, volume: Value) -> Value {
    let mut volume = volume;
    volume["name"] = json!("v");
    let main = mounted(script, json!([{"name": "v", "mountPath": "/v"}]));
    json!({"restartPolicy": "Never", "containers": [main], "volumes": [volume], "terminationGracePeriodSeconds": 1})
}

impl Cluster {
    async fn content(&self) {
        let meta = |name: &str| json!({"name": name, "namespace": "default"});
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": meta("m"), "data": {"k": "from the map"}}))
                .unwrap();
        self.admin.create(&map).await.unwrap();
        let secret: Secret = serde_json::from_value(
            json!({"metadata": meta("s"), "stringData": {"k": format!("{WORD}\n")}}),
        )
        .unwrap();
        self.admin.create(&secret).await.unwrap();
    }

    /// The output of an ended pod.
    async fn output(&self, name: &str, phase: &str) -> Vec<String> {
        self.reaches(name, "/phase", json!(phase)).await;
        let pod = self.pod(name).await.unwrap();
        texts(&self.log(&pod, 0))
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    /// The output of a pod that runs on, once the text is a line of it `times` times.
    async fn prints(&self, name: &str, text: &str, times: usize) -> Vec<String> {
        eventually(name, || async {
            let pod = self.pod(name).await?;
            let log = self.log(&pod, 0);
            let lines = texts(&log).into_iter();
            let is_there = lines.clone().filter(|line| *line == text).count() >= times;
            is_there.then(|| lines.map(str::to_owned).collect())
        })
        .await
    }

    /// Waits until nothing is left in a folder of the agent's: it cleans up once the API has
    /// forgotten the pod.
    async fn emptied(&self, folder: &str) {
        let path = self.site.dir.path().join(folder);
        eventually(folder, || async {
            (std::fs::read_dir(&path).unwrap().count() == 0).then_some(())
        })
        .await;
    }

    async fn gone(&self, name: &str) {
        self.delete(name, 1).await;
        eventually(name, || async {
            self.pod(name).await.is_none().then_some(())
        })
        .await;
    }
}

/// A pod that gets the secret by all ways but a volume alone: variables by key and by all keys, and
/// an argument made of one; a hook is started with them, too.
fn variables() -> Value {
    let script = "until [ -e /hooked ]; do busybox sleep 0.1; done; for value in \"$ONE\" \"$ALL_k\" \"$0\"; do printf %s \"$value\" | busybox cmp - /v/k && echo same; done; exec sleep 600";
    let mut pod = once(script, json!({"secret": {"secretName": "s"}}));
    let main = &mut pod["containers"][0];
    main["env"] =
        json!([{"name": "ONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    main["envFrom"] = json!([{"prefix": "ALL_", "secretRef": {"name": "s"}}]);
    main["command"]
        .as_array_mut()
        .unwrap()
        .push(json!("$(ONE)"));
    main["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["/bin/sh", "-c", ": > /hooked", "$(ONE)"]}}});
    pod
}

/// A file on the disk below `dir` that contains the secret; file systems in memory are skipped.
fn on_the_disk(dir: &Path, device: u64) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            let Ok(meta) = entry.path().symlink_metadata() else {
                continue;
            };
            if meta.is_dir() && meta.dev() == device {
                folders.push(entry.path());
            } else if meta.is_file() && meta.dev() == device {
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                if bytes
                    .windows(WORD.len())
                    .any(|window| window == WORD.as_bytes())
                {
                    return Some(entry.path());
                }
            }
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_of_volumes_is_read_only_and_a_secret_never_lies_on_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let cluster = Cluster::new().await;
    cluster.content().await;
    let script = "exec 2>/dev/null; cat /v/k; busybox ln -sfn /etc /v/..data; echo link $?; echo x > /v/k; echo write $?; \
        busybox rm -rf /v/..data/k; echo remove $?; busybox mount -o remount,rw /v; echo remount $?; \
        grep ' /v ' /proc/mounts | cut -d' ' -f3; exec sleep 600";
    // It runs on, as do the others: what a pod wrote goes at its end.
    cluster
        .create(
            "keeps",
            once(script, json!({"secret": {"secretName": "s"}})),
        )
        .await;
    let lines = cluster.prints("keeps", "tmpfs", 1).await;
    assert_eq!(lines.first().map(String::as_str), Some(WORD), "{lines:?}");
    let ends: Vec<&str> = ["link 1", "write 1", "remove 1", "remount 1"].to_vec();
    let said: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| ends.contains(line))
        .collect();
    assert_eq!(said, ends, "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("tmpfs"), "{lines:?}");

    cluster.create("knows", variables()).await;
    cluster.prints("knows", "same", 3).await;

    // The store of the test's own master and the log that the pod wrote itself contain the secret;
    // nothing else does. The engine's state and the folder of the agent's FIFOs are in memory on a
    // machine.
    let dir = cluster.site.dir.path();
    let device = std::fs::metadata(dir).unwrap().dev();
    for part in ["kubelet", "engine/root", "run"] {
        assert_eq!(on_the_disk(&dir.join(part), device), None, "{part}");
    }
    for name in ["keeps", "knows"] {
        cluster.gone(name).await;
    }
    assert_eq!(on_the_disk(&dir.join("engine/root"), device), None);
    cluster.emptied("run/held").await;
    cluster.emptied("run/mounts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_config_map_is_mounted_by_its_sub_path() {
    let cluster = Cluster::new().await;
    cluster.content().await;
    let mount = json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/key", "subPath": "k"}]);
    let main = mounted("cat /key; echo; while :; do sleep 0.1; done", mount);
    let volumes = json!([{"name": "v", "configMap": {"name": "m"}}]);
    cluster
        .create("reads", json!({"containers": [main], "volumes": volumes}))
        .await;
    cluster.reaches("reads", "/phase", json!("Running")).await;
    let pod = cluster.pod("reads").await.unwrap();
    eventually("the key", || async {
        texts(&cluster.log(&pod, 0))
            .contains(&"from the map")
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_of_the_machine_is_given_as_its_configuration_lists_it() {
    let outside = tempfile::tempdir().unwrap();
    let cluster = Cluster::new().await;
    let listed = cluster.site.dir.path().join("listed");
    std::fs::create_dir(&listed).unwrap();
    std::fs::write(listed.join("f"), "of the machine\n").unwrap();
    std::os::unix::fs::symlink(outside.path(), listed.join("link")).unwrap();
    let path = |path: &Path| json!({"hostPath": {"path": path}});
    cluster
        .create("unlisted", once("ls /v", path(&listed)))
        .await;
    let refused = cluster.reaches("unlisted", "/phase", json!("Failed")).await;
    assert_eq!(refused["reason"], "HostPathForbidden");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.starts_with("Pod was rejected: volume v: hostPath "),
        "{message}"
    );
    assert!(message.contains("`host_paths` under `[node]`"), "{message}");

    let entry = |writable| HostPath {
        path: listed.display().to_string().parse().unwrap(),
        writable,
    };
    let cluster = cluster.again(vec![entry(false)]).await;
    // A mount that does not say `readOnly` gets what there is, and the pod's events say so.
    let reads = once(
        "cat /v/f; echo x 2>/dev/null > /v/new || echo refused",
        path(&listed),
    );
    cluster.create("narrowed", reads).await;
    assert_eq!(
        cluster.output("narrowed", "Succeeded").await,
        ["of the machine", "refused"]
    );
    wait_for_event(
        &cluster,
        "HostPathReadOnly",
        "volume v is mounted read-only: `host_paths` under `[node]` in the machine's configuration does not say `writable = \
         true` for its path",
    )
    .await;
    let cluster = cluster.again(vec![entry(true)]).await;
    cluster
        .create(
            "listed",
            once("cat /v/f; echo x > /v/new; echo $?", path(&listed)),
        )
        .await;
    assert_eq!(
        cluster.output("listed", "Succeeded").await,
        ["of the machine", "0"]
    );
    cluster
        .create("linked", once("ls /v", path(&listed.join("link"))))
        .await;
    let message = cluster.event("FailedMount").await;
    assert!(message.contains("a link is on the way"), "{message}");
    let waiting = "/containerStatuses/0/state/waiting/reason";
    cluster
        .reaches("linked", waiting, json!("ContainerCreating"))
        .await;
    let made = json!({"hostPath": {"path": listed.join("a/b"), "type": "DirectoryOrCreate"}});
    cluster
        .create("makes", once("echo x > /v/f; echo $?", made))
        .await;
    assert_eq!(cluster.output("makes", "Succeeded").await, ["0"]);
    assert!(listed.join("a/b/f").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_takes_more_of_the_disk_than_it_may_is_evicted() {
    let cluster = Cluster::new().await;
    let fill = |path: &str| {
        format!("busybox dd if=/dev/zero of={path} bs=1M count=8 2>/dev/null; echo done; sleep 600")
    };
    let mut wide = once(&fill("/v/f"), json!({"emptyDir": {"sizeLimit": "1Mi"}}));
    wide["restartPolicy"] = json!("Always");
    // Anybody may name the class of the cluster's own pods; no limit ends by that.
    wide["priorityClassName"] = json!("system-node-critical");
    cluster.create("fills-volume", wide).await;
    let mut own = once(&fill("/f"), json!({"emptyDir": {}}));
    own["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "2Mi"}});
    cluster.create("fills-layer", own).await;
    let status = cluster
        .reaches("fills-volume", "/reason", json!("Evicted"))
        .await;
    assert_eq!(status["phase"], "Failed");
    assert_eq!(
        status["message"],
        "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
    );
    let status = cluster
        .reaches("fills-layer", "/reason", json!("Evicted"))
        .await;
    assert_eq!(
        status["message"],
        "Container main exceeded its local ephemeral storage limit \"2Mi\". "
    );
    cluster
        .reaches(
            "fills-layer",
            "/containerStatuses/0/state/terminated/exitCode",
            json!(137),
        )
        .await;

    let script = "busybox dd if=/dev/zero of=/v/f bs=1M count=8 2>/dev/null; echo $?; busybox stat -c %s /v/f; \
        grep ' /v ' /proc/mounts | cut -d' ' -f3";
    cluster
        .create(
            "memory",
            once(
                script,
                json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
            ),
        )
        .await;
    assert_eq!(
        cluster.output("memory", "Succeeded").await,
        ["1", "1048576", "tmpfs"]
    );
    cluster.gone("memory").await;
    cluster.emptied("run/memory").await;
}

/// What is deleted while it is open takes the disk, though no folder shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_hides_what_it_takes_of_the_disk_is_evicted() {
    let cluster = Cluster::new().await;
    let hide = |path: &str| {
        format!(
            "exec 3>{path}; busybox rm {path}; busybox dd if=/dev/zero bs=1M count=8 >&3 2>/dev/null; sleep 600"
        )
    };
    let wide = once(&hide("/v/f"), json!({"emptyDir": {"sizeLimit": "1Mi"}}));
    cluster.create("hides-in-volume", wide).await;
    let mut own = once(&hide("/f"), json!({"emptyDir": {}}));
    own["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "2Mi"}});
    cluster.create("hides-in-layer", own).await;
    let status = cluster
        .reaches("hides-in-volume", "/reason", json!("Evicted"))
        .await;
    assert_eq!(
        status["message"],
        "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
    );
    let status = cluster
        .reaches("hides-in-layer", "/reason", json!("Evicted"))
        .await;
    assert_eq!(
        status["message"],
        "Pod ephemeral local storage usage exceeds the total limit of containers 2097152. "
    );
}

/// Memory in KiB by which the agent's process, or containerd, may grow over all rounds.
const GROWTH: u64 = 64 << 10;

/// The files of a folder with what they hold.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    });
    let mut all: Vec<_> = entries.collect();
    all.sort();
    all
}

/// The state of the host that a round could change.
#[derive(Debug)]
struct Host {
    mounts: Vec<String>,
    /// Remains of pods.
    files: BTreeSet<PathBuf>,
    /// Names of the processes of the engine and its containers.
    processes: Vec<String>,
    /// What the host's own folder holds.
    victim: Vec<(PathBuf, Vec<u8>)>,
    descriptors: usize,
    /// Resident memory of this process, in which the agent runs, and of containerd, in KiB.
    resident: [u64; 2],
}

impl Host {
    /// Whether nothing of the pods is left, and all else is as it was.
    fn is_as(&self, before: &Self) -> bool {
        self.mounts == before.mounts
            && self.processes == before.processes
            && self.victim == before.victim
    }

    fn look(cluster: &Cluster) -> Self {
        let dir = cluster.site.dir.path();
        let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let below = format!(" {}/run/", dir.display());
        // Without the ids, which are new for each mount.
        let place = |line: &str| {
            line.split(' ')
                .skip(2)
                .take(4)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let mut mounts: Vec<String> = all
            .lines()
            .filter(|line| line.contains(&below))
            .map(place)
            .collect();
        mounts.sort();
        let mut files = BTreeSet::new();
        for folder in [
            "kubelet/pods",
            "pods",
            "run/held",
            "run/mounts",
            "run/memory",
            "io",
            "engine/state/io.containerd.runtime.v2.task/k8s.io",
        ] {
            let entries = std::fs::read_dir(dir.join(folder))
                .into_iter()
                .flatten()
                .filter_map(Result::ok);
            files.extend(entries.map(|entry| entry.path()));
        }
        Self {
            mounts,
            files,
            processes: cluster.site.engine.processes(),
            victim: content(&dir.join("victim")),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            resident: [
                tests_harness::process::resident(std::process::id().cast_signed()).unwrap(),
                cluster.site.engine.resident().unwrap(),
            ],
        }
    }
}

/// A pod whose processes leave their sessions, also those of a command that the agent runs in it.
fn leaves() -> Value {
    let away = "busybox setsid busybox sleep 600 > /dev/null 2>&1 &";
    let script = format!("until [ -e /v/hooked ]; do busybox sleep 0.1; done; {away} exit 0");
    let mut pod = once(&script, json!({"emptyDir": {}}));
    let hook = format!("{away} : > /v/hooked");
    pod["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["/bin/sh", "-c", hook]}}});
    pod
}

/// Pods that each try something, and the phase in which they end; logs lie in `logs`.
fn hostile(logs: &Path, victim: &Path) -> Vec<(&'static str, Value, &'static str)> {
    let empty = json!({"emptyDir": {}});
    let flips = "i=0; while [ $i -lt 200 ]; do busybox rm -rf /v/d; busybox ln -s VICTIM /v/d; busybox rm -f /v/d; \
                 mkdir /v/d; i=$((i+1)); done";
    let neighbour = json!({"name": "second", "image": crate::site::IMAGE, "command": ["/bin/sh", "-c", "echo x > /d/pwned"],
                           "volumeMounts": [{"name": "v", "mountPath": "/d", "subPath": "d"}]});
    let mut races = once(
        &flips.replace("VICTIM", &victim.display().to_string()),
        empty.clone(),
    );
    races["containers"].as_array_mut().unwrap().push(neighbour);
    let links = "for n in 1 2 3; do busybox ln -s /dev/zero /v/$n; busybox mkfifo /v/p$n; done; \
                 busybox mknod /v/z c 1 5; busybox ln -s VICTIM /v/victim";
    let deep =
        "cd /v; i=0; while [ $i -lt 300 ]; do mkdir d && cd d || break; i=$((i+1)); done; echo $i";
    let words = "busybox dd if=/dev/zero of=/dev/termination-log bs=1M count=3 2>/dev/null; \
                 busybox yes | busybox head -c 3000000; busybox tr '\\n' x < /dev/zero | busybox head -c 300000";
    let bomb = "f() { f | f & }; busybox sh -c 'i=0; while [ $i -lt 2000 ]; do sleep 5 & i=$((i+1)); done' 2>/dev/null; \
                exit 1";
    vec![
        ("races", races, ""),
        (
            "links",
            once(
                &links.replace("VICTIM", &victim.display().to_string()),
                empty.clone(),
            ),
            "Succeeded",
        ),
        ("deep", once(deep, empty.clone()), "Succeeded"),
        ("words", once(words, empty.clone()), "Succeeded"),
        ("bomb", once(bomb, empty), "Failed"),
        ("leaves", leaves(), "Succeeded"),
        // The folder of logs, to put links into it: mounted read-only, although this machine's
        // configuration allows writing.
        (
            "plants",
            once(
                "busybox ln -s /etc /v/link && exit 0; exit 1",
                json!({"hostPath": {"path": logs}}),
            ),
            "Failed",
        ),
        (
            "unlisted",
            once("ls /v", json!({"hostPath": {"path": "/"}})),
            "Failed",
        ),
        (
            "writes",
            once(
                "busybox ln -sfn /etc /v/..data && exit 0; exit 1",
                json!({"configMap": {"name": "m"}}),
            ),
            "Failed",
        ),
    ]
}

impl Cluster {
    /// All hostile pods once, from their creation until the API has forgotten them.
    async fn suffer(&self, logs: &Path, victim: &Path) {
        for (name, spec, phase) in hostile(logs, victim) {
            self.create(name, spec).await;
            if phase.is_empty() {
                // No matter who wins the race for a name, the pod ends or waits for its sub path to
                // be a folder.
                eventually(name, || async { self.ran(name).await.then_some(()) }).await;
            } else {
                self.reaches(name, "/phase", json!(phase)).await;
            }
        }
        for (name, ..) in hostile(logs, victim) {
            self.gone(name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_pods_leave_the_host_as_it_was() {
    let minutes: u64 = std::env::var("PRATIQUE_SOAK_MINUTES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let cluster = Cluster::new().await;
    cluster.content().await;
    let victim = cluster.site.dir.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("precious"), "1").unwrap();
    let logs = cluster.config().machine.logs;
    std::fs::create_dir_all(&logs).unwrap();
    let entry = HostPath {
        path: logs.display().to_string().parse().unwrap(),
        writable: true,
    };
    let cluster = cluster.again(vec![entry]).await;
    let before = Host::look(&cluster);
    let mut first = None;
    for round in 1.. {
        cluster.suffer(&logs, &victim).await;
        let left = || async {
            let now = Host::look(&cluster);
            (now.is_as(&before) && now.files.is_empty()).then_some(now)
        };
        let now = eventually("nothing to be left", left).await;
        println!(
            "round {round}: {} descriptors; {} MiB here, {} MiB in containerd",
            now.descriptors,
            now.resident[0] >> 10,
            now.resident[1] >> 10
        );
        // Both vary with connections and what is cached; a leak of a little in each round shows
        // over rounds.
        let first = first.get_or_insert((now.descriptors, now.resident));
        assert!(now.descriptors < first.0 + 64, "descriptors leak");
        for (now, first) in now.resident.into_iter().zip(first.1) {
            assert!(now < first + GROWTH, "{first} KiB became {now}");
        }
        if Instant::now() >= end {
            return;
        }
    }
}

/// A container that prints empty lines without an end, as does the command of its probe.
fn loud(name: &str) -> Value {
    let mut container = shell("busybox yes '' & exec busybox yes '' >&2");
    container["name"] = json!(name);
    let command = json!({"command": ["busybox", "yes", ""]});
    container["readinessProbe"] = json!({"exec": command, "periodSeconds": 1, "timeoutSeconds": 1});
    container
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_that_print_without_an_end_hold_up_no_other_pod() {
    let cluster = Cluster::new().await;
    let spec =
        json!({"containers": [loud("main"), loud("other")], "terminationGracePeriodSeconds": 1});
    cluster.create("loud", spec).await;
    cluster.reaches("loud", "/phase", json!("Running")).await;
    let pod = cluster.pod("loud").await.unwrap();
    // More than the pipes between can hold: the agent reads them, and rotates the log meanwhile.
    eventually("an empty line", || async {
        (cluster.log(&pod, 0).len() > 1 << 20).then_some(())
    })
    .await;
    for number in 0..2 {
        let name = format!("quiet{number}");
        let mut main = shell("trap exit TERM; while :; do busybox sleep 0.1; done");
        let probe = json!({"exec": {"command": ["busybox", "true"]}, "periodSeconds": 1});
        main["readinessProbe"] = probe;
        let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
        cluster.create(&name, spec).await;
        cluster
            .reaches(&name, "/containerStatuses/0/ready", json!(true))
            .await;
        cluster.gone(&name).await;
    }
    let unready = cluster.pod("loud").await.unwrap().status.unwrap();
    let restarts = unready.container_statuses.unwrap_or_default();
    assert!(restarts.iter().all(|one| one.restart_count == 0));
    cluster.gone("loud").await;
}
