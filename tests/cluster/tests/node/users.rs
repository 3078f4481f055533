//! Pods with users of their own (`hostUsers: false`): root in the pod, and an unprivileged id to
//! the machine.

use crate::cluster::{Cluster, shell};
use crate::network::{create, on_a_machine, with_addresses};
use crate::sharing::FIND;
use crate::site::{LIMIT, eventually, texts};
use crate::tunnels::{Client, Site as Tunneled};
use agent_confine::users::LOWEST;
use agent_runtime::Runtime;
use agent_sys::namespace::IDS;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use config_model::host_path::HostPath;
use config_tunnel::command::{RESIZE, STDIN};
use config_tunnel::websocket::Kind;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const HOLD: &str = "trap 'exit 0' TERM; while :; do busybox sleep 0.1; done";

/// A pod with users of its own and one container.
fn with_users(container: &Value, more: Value) -> Value {
    let mut spec = more;
    spec["hostUsers"] = json!(false);
    spec["terminationGracePeriodSeconds"] = json!(1);
    spec["containers"] = json!([container]);
    spec
}

/// What a command in the pod's container prints.
async fn asked(cluster: &Cluster, pod: &str, script: &str) -> String {
    let status = cluster.pod(pod).await.unwrap().status.unwrap();
    let id = status.container_statuses.unwrap()[0].container_id.clone();
    let id = id.unwrap().trim_start_matches("containerd://").to_owned();
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    let agent = cluster.site.agent();
    let done = agent.exec(&id, &command, LIMIT).await.unwrap();
    String::from_utf8(done.output).unwrap()
}

/// The first of the machine's ids that a pod has, by its own map.
async fn first_id(cluster: &Cluster, pod: &str) -> u32 {
    let map = asked(cluster, pod, "cat /proc/self/uid_map /proc/self/gid_map").await;
    let words: Vec<u32> = map
        .split_whitespace()
        .map(|one| one.parse().unwrap())
        .collect();
    let first = words[1];
    assert_eq!(words, [0, first, IDS, 0, first, IDS]);
    first
}

/// The processes of a pod as the machine sees them: the user and group that each is.
fn owners(uid: &str) -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let of_pod = entries.filter(|entry| {
        let groups = std::fs::read_to_string(entry.path().join("cgroup"));
        groups.is_ok_and(|groups| groups.contains(uid))
    });
    let ids = of_pod.filter_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let id = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line?.split_whitespace().next()?.parse().ok()
        };
        Some((id("Uid:")?, id("Gid:")?))
    });
    ids.collect()
}

async fn gone(cluster: &Cluster, name: &str) {
    cluster.delete(name, 1).await;
    eventually(name, || async {
        cluster.pod(name).await.is_none().then_some(())
    })
    .await;
}

/// The lines of an ended pod's container.
async fn said(cluster: &Cluster, name: &str, phase: &str) -> Vec<String> {
    cluster.reaches(name, "/phase", json!(phase)).await;
    let pod = cluster.pod(name).await.unwrap();
    let log = cluster.log(&pod, 0);
    texts(&log).into_iter().map(str::to_owned).collect()
}

#[test]
fn a_pod_is_root_inside_and_nobody_to_the_machine_over_restarts_of_the_agent() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        for name in ["one", "two"] {
            create(&cluster, name, with_users(&shell(HOLD), json!({}))).await;
            cluster.reaches(name, "/phase", json!("Running")).await;
        }
        let first = first_id(&cluster, "one").await;
        let second = first_id(&cluster, "two").await;
        assert!(first >= LOWEST && second >= LOWEST && first.abs_diff(second) >= IDS);
        assert_eq!(asked(&cluster, "one", "id -u").await, "0\n");
        let uid = cluster.pod("one").await.unwrap().metadata.uid.unwrap();
        let all = owners(&uid);
        assert!(!all.is_empty());
        assert!(all.iter().all(|one| *one == (first, first)), "{all:?}");
        // The network is the pod's to set, and the host name's namespace is its own, too.
        let set = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/hostname";
        assert_eq!(asked(&cluster, "one", set).await, "0\none\n");

        let cluster = cluster.again(Vec::new()).await;
        cluster.reaches("one", "/phase", json!("Running")).await;
        create(&cluster, "three", with_users(&shell(HOLD), json!({}))).await;
        let status = cluster.reaches("three", "/phase", json!("Running")).await;
        assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
        let third = first_id(&cluster, "three").await;
        assert!(third.abs_diff(first) >= IDS && third.abs_diff(second) >= IDS);
        assert_eq!(first_id(&cluster, "one").await, first, "it is adopted");
        let status = cluster.pod("one").await.unwrap().status.unwrap();
        assert_eq!(status.container_statuses.unwrap()[0].restart_count, 0);

        gone(&cluster, "one").await;
        let ledger = cluster.site.dir.path().join("pod-addresses.json");
        eventually("the ids to come back", || async {
            let text = std::fs::read_to_string(&ledger).unwrap();
            (!text.contains(&uid)).then_some(())
        })
        .await;
        create(&cluster, "four", with_users(&shell(HOLD), json!({}))).await;
        cluster.reaches("four", "/phase", json!("Running")).await;
        assert_eq!(
            first_id(&cluster, "four").await,
            first,
            "its end frees them"
        );
        for name in ["two", "three", "four"] {
            gone(&cluster, name).await;
        }
        let node = cluster.admin.get::<Node>(None, "worker-1").await.unwrap();
        let handlers = node.status.unwrap().runtime_handlers.unwrap();
        let mut features = handlers.into_iter().map(|one| one.features.unwrap());
        assert!(features.all(|one| one.user_namespaces == Some(true)));
    });
}

/// Volumes of each kind, with a group of the pod's.
fn volumes() -> (Value, Value) {
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "map", "configMap": {"name": "m"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "image", "image": {"reference": "preloaded.example/busybox:1", "pullPolicy": "IfNotPresent"}},
    ]);
    let mounts = json!([
        {"name": "disk", "mountPath": "/disk"},
        {"name": "disk", "mountPath": "/part", "subPath": "a/b"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "map", "mountPath": "/map"},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "image", "mountPath": "/image"},
    ]);
    (volumes, mounts)
}

#[test]
fn files_of_images_and_volumes_have_their_owners_inside() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let meta = |name: &str| json!({"name": name, "namespace": "default"});
        let map = json!({"metadata": meta("m"), "data": {"k": "mapped\n"}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        cluster.admin.create(&map).await.unwrap();
        let secret = json!({"metadata": meta("s"), "stringData": {"k": "secret\n"}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        cluster.admin.create(&secret).await.unwrap();
        let (volumes, mounts) = volumes();
        let script = "busybox stat -L -c '%u:%g %n' / /bin/busybox /etc/of-user-7 /image/etc/of-user-7 /disk /memory \
                /map/k /secret/k /etc/hosts /dev/shm /dev/termination-log; \
            cat /map/k /secret/k; \
            for at in / /disk/ /memory/ /part/ /dev/shm/; do echo x > ${at}new && busybox chown 5:6 ${at}new && \
                busybox stat -c '%u:%g %n' ${at}new; done; \
            busybox chown 9 /etc/of-user-7 && busybox stat -c '%u:%g %n' /etc/of-user-7; \
            echo > /image/new || echo read-only; echo through > /dev/stdout; cat; echo said > /dev/termination-log";
        let mut main = shell(script);
        main["volumeMounts"] = mounts;
        let more = json!({
            "restartPolicy": "Never",
            "volumes": volumes,
            "securityContext": {"fsGroup": 3, "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
        });
        create(&cluster, "owns", with_users(&main, more)).await;
        let lines = said(&cluster, "owns", "Succeeded").await;
        let expected = [
            "0:0 /",
            "0:0 /bin/busybox",
            "7:8 /etc/of-user-7",
            "7:8 /image/etc/of-user-7",
            "0:3 /disk",
            "0:3 /memory",
            "0:3 /map/k",
            "0:3 /secret/k",
            "0:0 /etc/hosts",
            "0:0 /dev/shm",
            "0:0 /dev/termination-log",
            "mapped",
            "secret",
            "5:6 /new",
            "5:6 /disk/new",
            "5:6 /memory/new",
            "5:6 /part/new",
            "5:6 /dev/shm/new",
            "9:8 /etc/of-user-7",
            "read-only",
            "through",
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let lines: Vec<&str> = lines
            .into_iter()
            .filter(|line| !line.starts_with("/bin/sh:"))
            .collect();
        assert_eq!(
            lines[..expected.len().min(lines.len())],
            expected,
            "{lines:?}"
        );
        let status = cluster.pod("owns").await.unwrap().status.unwrap();
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().message.as_deref(), Some("said\n"));

        let user = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 3});
        let script = "busybox id -u; busybox id -G; echo through > /dev/stdout; cat";
        let more = json!({"restartPolicy": "Never", "securityContext": user});
        create(&cluster, "as-user", with_users(&shell(script), more)).await;
        let lines = said(&cluster, "as-user", "Succeeded").await;
        assert_eq!(lines, ["1000", "1000 3", "through"]);
    });
}

/// What the root of a pod tries: each line of its output names what was done that must not be.
const HOSTILE: &str = "exec 2>/dev/null; \
    for file in /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory /proc/sysrq-trigger /sys/power/state \
        /sys/kernel/mm/ksm/run /listed/f /listed/new; do (echo 1 > $file) && echo wrote $file; done; \
    [ -e /proc/pressure/cpu ] && (echo some 150000 2000000 > /proc/pressure/cpu) && echo watches pressure; \
    busybox chmod 600 /dev/null && echo closed null; busybox chown 0:0 /dev/zero && echo took zero; \
    busybox chmod 600 /proc/self/fd/0 && [ \"$(busybox readlink /proc/self/fd/0)\" = /dev/null ] && echo closed input; \
    busybox mknod /tmp/n c 1 3 && echo made a device; busybox mount -t tmpfs none /tmp && echo mounted; \
    busybox unshare -U true && echo nested; busybox unshare -m true && echo unshared; busybox hostname other && echo named; \
    busybox dmesg && echo read the log; \
    echo done";

#[test]
fn the_root_of_a_pod_has_no_right_over_the_machine_whatever_it_asks_for() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let listed = cluster.site.dir.path().join("listed");
        std::fs::create_dir(&listed).unwrap();
        std::fs::write(listed.join("f"), "of the machine\n").unwrap();
        let entry = HostPath {
            path: listed.display().to_string().parse().unwrap(),
            writable: false,
        };
        let cluster = cluster.again(vec![entry]).await;
        let mut main = shell(HOSTILE);
        main["securityContext"] = json!({
            "capabilities": {"add": ["ALL"]},
            "seccompProfile": {"type": "Unconfined"},
        });
        main["volumeMounts"] = json!([{"name": "v", "mountPath": "/listed", "readOnly": true}]);
        let more = json!({
            "restartPolicy": "Never",
            "volumes": [{"name": "v", "hostPath": {"path": listed}}],
        });
        create(&cluster, "hostile", with_users(&main, more)).await;
        assert_eq!(said(&cluster, "hostile", "Succeeded").await, ["done"]);
        assert_eq!(
            std::fs::read_to_string(listed.join("f")).unwrap(),
            "of the machine\n"
        );
        devices_are_the_machines();
        let files = changed(&cluster.site.dir.path().join("engine/root"));
        assert_eq!(files, Vec::<PathBuf>::new(), "layers stay the machine's");
    });
}

/// The runtime gives away the streams that it is started with: no device of the machine is among
/// them.
fn devices_are_the_machines() {
    for name in ["null", "zero", "full", "tty", "random", "urandom"] {
        let found = std::fs::metadata(Path::new("/dev").join(name)).unwrap();
        assert!(
            found.uid() < LOWEST && found.gid() < LOWEST,
            "{name}: {found:?}"
        );
        assert_eq!(found.mode() & 0o666, 0o666, "{name}");
    }
}

#[test]
fn containers_of_a_pod_with_users_of_its_own_share_process_ids_and_not_the_machines_devices() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let script = format!(
            "{FIND}; until other=$(find); [ -n \"$other\" ]; do busybox sleep 0.1; done; \
             busybox cat /proc/1/comm; kill $other && echo ended the other; kill -9 1; \
             (busybox cat /proc/1/environ; busybox chmod 600 /proc/1/root/pause) 2>/dev/null || echo no more"
        );
        let mut other = shell("exec sleep 4321");
        other["name"] = json!("other");
        let mut spec = with_users(&shell(&script), json!({"shareProcessNamespace": true}));
        spec["restartPolicy"] = json!("Never");
        spec["containers"].as_array_mut().unwrap().push(other);
        create(&cluster, "shares", spec).await;
        let said = said(&cluster, "shares", "Failed").await;
        assert_eq!(said, ["pause", "ended the other", "no more"]);
        devices_are_the_machines();
    });
}

/// What a process tries to take of the devices that it was started with: each line names what it
/// could do.
const TAKES: &str = "for n in 0 1 2; do at=/proc/self/fd/$n; [ -c $at ] && ! [ -t $n ] || continue; \
    (busybox chmod 666 $at || busybox chown $(busybox id -u) $at || busybox touch $at) 2>/dev/null \
        && echo took $n >> /dev/shm/took; done; true; ";

#[test]
fn a_terminal_of_a_pod_with_users_of_its_own_is_the_pods_and_no_device_is() {
    on_a_machine(|| async {
        let site = Tunneled::over(with_addresses().await).await;
        let script = format!(
            "{TAKES} cat /dev/shm/took 2>/dev/null; \
             while read word; do busybox stty size; busybox id -u; busybox tty; echo after $word; done"
        );
        let mut main = shell(&script);
        (main["tty"], main["stdin"]) = (json!(true), json!(true));
        create(&site.cluster, "shell", with_users(&main, json!({}))).await;
        site.cluster
            .reaches("shell", "/phase", json!("Running"))
            .await;
        devices_are_the_machines();
        first_id(&site.cluster, "shell").await;

        let path = "/attach/default/shell/main?input=1&output=1&tty=1";
        let mut client = Client::open(&site, path).await;
        let window = [&[RESIZE][..], br#"{"Width":132,"Height":43}"#].concat();
        client.send(Kind::Binary, &window).await;
        client
            .send(Kind::Binary, &[&[STDIN][..], b"go\n"].concat())
            .await;
        eventually("the terminal to answer", || async {
            let pod = site.cluster.pod("shell").await.unwrap();
            let log = site.cluster.log(&pod, 0);
            assert!(!log.contains("took"), "{log}");
            let all = ["43 132", "0\r", "/dev/pts/", "after go"];
            all.iter().all(|one| log.contains(one)).then_some(())
        })
        .await;
        client.send(Kind::Close, &1000_u16.to_be_bytes()).await;
        client.rest().await;

        // A command with a terminal of its own, too.
        let mut kubectl = site.kubectl(&["exec", "shell", "--", "sh", "-c", TAKES]);
        assert!(kubectl.status().await.unwrap().success());
        let path = "/exec/default/shell/main?command=busybox&command=tty&output=1&tty=1";
        let client = Client::open(&site, path).await;
        let (out, _, _) = client.rest().await;
        assert!(out.contains("/dev/pts/"), "{out}");
        let took = "cat /dev/shm/took 2>/dev/null";
        assert_eq!(asked(&site.cluster, "shell", took).await, "");
        devices_are_the_machines();
    });
}

/// The runtime gives a command's streams to the user that it runs as, with the machine's rights:
/// here users of the machine itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_in_a_container_takes_a_device_of_the_machine() {
    let cluster = Cluster::new().await;
    let mut main = shell(HOLD);
    main["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    main["tty"] = json!(true);
    let probe = json!({"exec": {"command": ["/bin/sh", "-c", TAKES]}, "periodSeconds": 1});
    main["readinessProbe"] = probe;
    cluster.create("user", json!({"containers": [main]})).await;
    let ready = "/containerStatuses/0/ready";
    cluster.reaches("user", ready, json!(true)).await;
    let script = format!("{TAKES} busybox id -u; cat /dev/shm/took 2>/dev/null");
    assert_eq!(asked(&cluster, "user", &script).await, "1000\n");
    let null = std::fs::metadata("/dev/null").unwrap();
    assert_eq!((null.uid(), null.gid()), (0, 0), "{null:?}");
    devices_are_the_machines();
}

/// Files of the image's own layers that are not root's, except the one that belongs to another
/// user.
fn changed(root: &Path) -> Vec<PathBuf> {
    let snapshots = root.join("io.containerd.snapshotter.v1.overlayfs/snapshots");
    let layers = std::fs::read_dir(snapshots).unwrap().flatten();
    let mut folders: Vec<PathBuf> = layers.map(|layer| layer.path().join("fs")).collect();
    folders.retain(|layer| layer.join("bin/busybox").exists());
    assert!(!folders.is_empty());
    let mut wrong = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let found = entry.metadata().unwrap();
            let expected = if entry.file_name() == "of-user-7" {
                7
            } else {
                0
            };
            if found.uid() != expected {
                wrong.push(entry.path());
            }
            if found.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    wrong
}

/// What it could do with all of `/proc`: it sees more, and sets nothing of the machine.
const UNMASKED: &str = "exec 2>/dev/null; \
    (busybox head -c 9 /proc/interrupts | busybox grep -q .) && echo sees; \
    for file in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory /proc/irq/default_smp_affinity \
        /proc/sys/kernel/printk /proc/sys/fs/file-max /proc/sys/net/ipv4/ip_default_ttl; do (echo 1 > $file) && echo wrote $file; done; \
    (busybox head -c 1 /proc/kcore | busybox grep -q .) && echo read memory; \
    [ -e /sys/class/tpm/tpm0 ] && echo sees the TPM; [ -n \"$(busybox ls /sys/firmware)\" ] && echo sees the firmware; \
    busybox mount -t proc none /tmp && echo mounted; echo done";

#[test]
fn all_of_proc_is_shown_where_privileged_pods_may_run_and_gives_nothing_of_the_machine() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let mut main = shell(UNMASKED);
        main["securityContext"] = json!({"procMount": "Unmasked"});
        let more = || json!({"restartPolicy": "Never"});
        create(&cluster, "refused", with_users(&main, more())).await;
        let status = cluster.reaches("refused", "/phase", json!("Failed")).await;
        assert_eq!(status["reason"], "NotSupported");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("[node] privileged = true"), "{message}");
        let cluster = cluster.with_privileged_pods().await;
        create(&cluster, "shown", with_users(&main, more())).await;
        let lines = said(&cluster, "shown", "Succeeded").await;
        assert_eq!(lines, ["sees", "done"]);
        devices_are_the_machines();
    });
}

#[test]
fn what_a_pod_with_users_of_its_own_can_not_have_is_reported() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let mut beyond = shell(HOLD);
        beyond["securityContext"] = json!({"runAsUser": 65_536});
        create(&cluster, "beyond", with_users(&beyond, json!({}))).await;
        let waiting = "/containerStatuses/0/state/waiting/reason";
        let reason = json!("CreateContainerConfigError");
        let status = cluster.reaches("beyond", waiting, reason).await;
        let state = &status["containerStatuses"][0]["state"]["waiting"];
        let words =
            "65536 is no user or group id of a pod with hostUsers: false: use one of 0 to 65535";
        assert_eq!(state["message"], words);
        let mut mighty = shell(HOLD);
        mighty["securityContext"] = json!({"privileged": true});
        create(&cluster, "mighty", with_users(&mighty, json!({}))).await;
        let status = cluster.reaches("mighty", "/phase", json!("Failed")).await;
        assert_eq!(status["reason"], "NotSupported", "{status}");
    });
}
