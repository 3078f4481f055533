//! What a node costs and how fast it is. Run by `cargo xtask bench node`, it measures; in the test
//! command a few of everything show that it runs.
//!
//! The node is this process: kubelet, sandboxes and the kubelet's port, with the real containerd
//! beside it; the master's API and store are in the process, too, so that its memory and processor
//! time are more than a node's.

use crate::cluster::{Cluster, shell};
use crate::forward::Forward;
use crate::network::{on_a_machine, with_addresses};
use crate::site::{LIMIT, eventually};
use crate::tunnels::{Client, Site};
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_client::{ListParams, WatchEvent, Watcher};
use serde_json::json;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tests_harness::pace::{number, spent_by_process, spread};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

/// MiB of memory that this process has.
fn resident() -> usize {
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib >> 10
}

/// Follows the pods as they come to run.
struct Running {
    watcher: Watcher<Pod>,
    seen: HashSet<String>,
}

impl Running {
    async fn follow(cluster: &Cluster) -> Self {
        let all = ListParams::default();
        let pods = cluster.admin.list::<Pod>(Some("default"), &all).await;
        let from = pods.unwrap().resource_version;
        let watcher = cluster.admin.watch(Some("default"), &all, &from).await;
        Self {
            watcher: watcher.unwrap(),
            seen: HashSet::new(),
        }
    }

    /// Waits until `count` more pods have been running.
    async fn wait(&mut self, count: u32) {
        let wanted = self.seen.len() + usize::try_from(count).unwrap();
        let waiting = async {
            while self.seen.len() < wanted {
                let event = self.watcher.next().await.unwrap().unwrap();
                if let WatchEvent::Modified(pod) = event
                    && pod.status.unwrap_or_default().phase.as_deref() == Some("Running")
                {
                    self.seen.extend(pod.metadata.name);
                }
            }
        };
        timeout(LIMIT, waiting).await.expect("the pods to run");
    }
}

/// A pod that does nothing, with a network of its own.
async fn create(cluster: &Cluster, name: &str) {
    let main = shell("trap 'exit 0' TERM; sleep 100000 & wait");
    let spec = json!({"hostNetwork": false, "containers": [main]});
    cluster.create(name, spec).await;
}

/// Waits until the node has done with all pods but one, so that the next start is not measured
/// together with an end.
async fn alone(cluster: &Cluster) {
    let sandboxes = cluster.site.dir.path().join("run/pods");
    eventually("the pod's end", || async {
        let left = std::fs::read_dir(&sandboxes).unwrap().count();
        (left == 1).then_some(())
    })
    .await;
}

#[test]
fn pods_come_to_run() {
    let (starts, pods) = (number("PACE_STARTS", 2_u32), number("PACE_PODS", 3));
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let mut running = Running::follow(&cluster).await;
        create(&cluster, "first").await;
        running.wait(1).await;
        let mut times = Vec::new();
        for at in 0..starts {
            let begun = Instant::now();
            let name = format!("one-{at}");
            create(&cluster, &name).await;
            running.wait(1).await;
            times.push(begun.elapsed());
            cluster.delete(&name, 0).await;
            alone(&cluster).await;
        }
        let before = (resident(), spent_by_process(), Instant::now());
        for at in 0..pods {
            create(&cluster, &format!("many-{at}")).await;
        }
        running.wait(pods).await;
        println!(
            "{starts} pods one after another, bound to Running: {}",
            spread(&mut times)
        );
        println!(
            "{pods} pods at once: {:?} until all run, {:?} of this process",
            before.2.elapsed(),
            spent_by_process().saturating_sub(before.1)
        );
        let seconds = number("PACE_IDLE_SECONDS", 1);
        println!(
            "idle for {seconds} s: {:.2} % of a core",
            idle(seconds).await
        );
        println!(
            "memory: {} MiB before them, {} with them",
            before.0,
            resident()
        );
    });
}

/// Per cent of a core that the process takes while nothing happens.
async fn idle(seconds: u32) -> f64 {
    let (begun, before) = (Instant::now(), spent_by_process());
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let used = spent_by_process().saturating_sub(before).as_secs_f64();
    used * 100.0 / begun.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_one_after_another() {
    let site = Site::new().await;
    site.runs("talks", "sleep 100000").await;
    let count = number("PACE_COMMANDS", 3_u32);
    let path = "/exec/default/talks/main?command=true&output=1&error=1";
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let (_, status, _) = Client::open(&site, path).await.rest().await;
        times.push(begun.elapsed());
        assert_eq!(status["status"], "Success", "{status}");
    }
    println!(
        "{count} commands, from the connection to the status: {}",
        spread(&mut times)
    );
}

#[test]
fn a_forwarded_port_carries_a_file() {
    let mib = number("PACE_MIB", 2_u32);
    on_a_machine(|| async {
        let site = Site::over(with_addresses().await).await;
        let script = format!(
            "mkdir /tmp/www; busybox dd if=/dev/zero of=/tmp/www/file bs=1048576 count={mib}; \
             exec busybox httpd -f -p 127.0.0.1:8080 -h /tmp/www"
        );
        let mut main = shell(&script);
        let listens = ["sh", "-c", "busybox netstat -ltn | busybox grep -q :8080"];
        main["readinessProbe"] = json!({"exec": {"command": listens}, "periodSeconds": 1});
        let spec = json!({"hostNetwork": false, "containers": [main]});
        site.cluster.create("web", spec).await;
        let ready = "/containerStatuses/0/ready";
        site.cluster.reaches("web", ready, json!(true)).await;
        let forward = Forward::new(&site, "pod/web", &[":8080"]).await;
        let mut stream = forward.connect(0).await;
        stream
            .write_all(b"GET /file HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        let (begun, before) = (Instant::now(), spent_by_process());
        let (mut all, mut bytes) = (0, vec![0; 1 << 20]);
        let reading = async {
            while let count @ 1.. = stream.read(&mut bytes).await.unwrap() {
                all += count;
            }
        };
        timeout(LIMIT, reading).await.expect("the file to end");
        assert!(
            all > usize::try_from(mib).unwrap() << 20,
            "{all} bytes came"
        );
        let rate = f64::from(mib) / begun.elapsed().as_secs_f64();
        let each = spent_by_process().saturating_sub(before).as_secs_f64() * 1e3 / f64::from(mib);
        println!(
            "{mib} MiB by kubectl port-forward: {rate:.0} MiB/s; CPU of this process {each:.2} ms a MiB"
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_followed() {
    let site = Site::new().await;
    let lines = number("PACE_LINES", 2_000_u32);
    let script = format!(
        "until [ -e /tmp/go ]; do sleep 0.1; done; \
         busybox yes 'a line of a log, as long as those of many programs are, with a time and a name' | busybox head -n {lines}; \
         sleep 100000"
    );
    site.runs("writes", &script).await;
    let mut kubectl = site.kubectl(&["logs", "-f", "writes"]).spawn().unwrap();
    let mut read = BufReader::new(kubectl.stdout.take().unwrap()).lines();
    let go = ["exec", "writes", "--", "busybox", "touch", "/tmp/go"];
    assert_eq!(site.run(&go, None).await.0, 0);
    let reading = async {
        read.next_line().await.unwrap().unwrap();
        let (begun, before) = (Instant::now(), spent_by_process());
        for _ in 1..lines {
            read.next_line().await.unwrap().unwrap();
        }
        (begun.elapsed(), spent_by_process().saturating_sub(before))
    };
    let (wall, cpu) = timeout(LIMIT, reading).await.expect("all lines to come");
    println!(
        "{lines} lines from a container to kubectl logs -f: {:.0} a second, {:?} of this process",
        f64::from(lines) / wall.as_secs_f64(),
        cpu
    );
    kubectl.kill().await.unwrap();
}
