//! Pods whose containers share their process ids.

use crate::cluster::{Cluster, shell};
use crate::site::{LIMIT, eventually};
use serde_json::{Value, json};

/// Says which process `sleep 4321` is, if it is there.
pub(crate) const FIND: &str = "find() { for p in /proc/[0-9]*; do \
    case \"$(busybox tr '\\0' ' ' < $p/cmdline 2>/dev/null)\" in 'sleep 4321 '*) echo ${p#/proc/};; esac; done; }";

fn named(name: &str, script: &str) -> Value {
    let mut container = shell(script);
    container["name"] = json!(name);
    container
}

/// A pod whose containers share their process ids, as a user whom the first process runs as, too.
fn sharing(policy: &str, containers: &[Value]) -> Value {
    json!({
        "shareProcessNamespace": true,
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 65535},
        "containers": containers,
    })
}

/// Whether a process of this machine is in a control group of the pod.
fn has_processes(uid: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let groups = entries.map(|entry| entry.path().join("cgroup"));
    let mut groups = groups.filter_map(|path| std::fs::read_to_string(path).ok());
    groups.any(|groups| groups.contains(uid))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_that_share_process_ids_reach_each_other_and_leave_no_orphan_to_the_first_process()
 {
    let cluster = Cluster::new().await;
    let script = format!(
        "{FIND}; until other=$(find); [ -n \"$other\" ]; do sleep 0.1; done; \
         (sleep 0.2 & echo $! > /dev/shm/orphan); orphan=$(busybox cat /dev/shm/orphan); \
         while [ -e /proc/$orphan ]; do sleep 0.1; done; \
         busybox cat /proc/1/comm > /dev/termination-log; \
         busybox cat /proc/1/environ && echo read >> /dev/termination-log; kill $other"
    );
    let containers = [named("main", &script), named("other", "exec sleep 4321")];
    cluster
        .create("shares", sharing("Never", &containers))
        .await;
    let status = cluster.reaches("shares", "/phase", json!("Failed")).await;
    let ended = |number: usize| &status["containerStatuses"][number]["state"]["terminated"];
    assert_eq!(ended(0)["message"], "pause\n", "{status}");
    assert_eq!(ended(0)["exitCode"], 0, "{status}");
    assert_eq!(ended(1)["exitCode"], 143, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_started_again_comes_back_to_those_with_whom_it_shares_process_ids() {
    let mut cluster = Cluster::new().await;
    let script = format!(
        "{FIND}; while [ ! -e /dev/shm/end ]; do sleep 0.1; done; busybox rm /dev/shm/end; \
         find > /dev/termination-log; exit 1"
    );
    let containers = [named("stays", "exec sleep 4321"), named("ends", &script)];
    cluster.create("p", sharing("Always", &containers)).await;
    let status = cluster.reaches("p", "/phase", json!("Running")).await;
    let id = status["containerStatuses"][0]["containerID"].as_str();
    let id = id.unwrap().trim_start_matches("containerd://").to_owned();
    let mut seen = Vec::new();
    for restarts in 1..=2 {
        // Also by an agent that did not make the process whose process ids they share.
        cluster.end().await;
        cluster.begin();
        let command = ["/bin/sh", "-c", "echo > /dev/shm/end"].map(str::to_owned);
        let agent = cluster.site.agent();
        let done = agent_runtime::Runtime::exec(&*agent, &id, &command, LIMIT).await;
        done.unwrap();
        let count = "/containerStatuses/1/restartCount";
        let status = cluster.reaches("p", count, json!(restarts)).await;
        let own = &status["containerStatuses"];
        assert_eq!(own[0]["restartCount"], 0, "{status}");
        seen.push(own[1]["lastState"]["terminated"]["message"].clone());
    }
    assert!(seen[0].is_string() && seen[0] == seen[1], "{seen:?}");

    let uid = cluster.pod("p").await.unwrap().metadata.uid.unwrap();
    assert!(has_processes(&uid));
    cluster.delete("p", 1).await;
    eventually("the pod to be gone", || async {
        cluster.pod("p").await.is_none().then_some(())
    })
    .await;
    assert!(!has_processes(&uid));
}
