//! Volumes of a CSI driver that shares no code with the agent: Python's gRPC and protobuf, and
//! CSI's messages as another project has them. What it gets and what it says is judged by these.

use crate::cluster::Cluster;
use crate::csi::{NAME, bound, gone, known, pod, says};
use crate::site::eventually;
use config_kube::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use nix::mount::{MntFlags, umount2};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tests_harness::process::Owned;

const STAGE: &str = "NodeStageVolume";
const PUBLISH: &str = "NodePublishVolume";
const EXPAND: &str = "NodeExpandVolume";
const UNPUBLISH: &str = "NodeUnpublishVolume";
const UNSTAGE: &str = "NodeUnstageVolume";

/// Why the driver refuses its first staging. On the wire each `%` and all but ASCII is escaped.
const REFUSAL: &str = "disk-1 has no room: 100% of «größe» is used (%41)";

/// The driver in `csi_driver.py`. Its mounts are removed when it is dropped.
struct Foreign {
    process: Owned,
    calls: PathBuf,
    log: PathBuf,
}

/// A call that it has answered.
#[derive(Debug, Deserialize)]
struct Answered {
    method: String,
    request: Value,
    /// The numbers of the fields that the message of CSI 1.1 does not have.
    unknown: Vec<u32>,
}

impl Foreign {
    fn start(cluster: &Cluster) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.ancestors().nth(2).unwrap();
        let folder = cluster.site.dir.path();
        let (calls, log) = (folder.join("driver.calls"), folder.join("driver.log"));
        let mut command = Command::new(root.join(".pratique/tools/python/bin/python3"));
        command
            .arg(here.join("tests/node/csi_driver.py"))
            .arg(NAME)
            .arg(cluster.config().machine.data)
            .arg(&calls)
            .arg(REFUSAL)
            .env("PYTHONUTF8", "1");
        let process = Owned::start(command, &log).unwrap();
        Self {
            process,
            calls,
            log,
        }
    }

    fn must_run(&self) {
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert!(self.process.alive(), "{}", log());
    }

    /// The calls so far, in their order.
    fn calls(&self) -> Vec<Answered> {
        let text = std::fs::read_to_string(&self.calls).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let call = |line| serde_json::from_str::<Answered>(line).unwrap();
        whole.lines().map(call).collect()
    }

    /// The requests of one method.
    fn requests(&self, method: &str) -> Vec<Value> {
        let calls = self.calls().into_iter();
        let of_method = calls.filter(|call| call.method == method);
        of_method.map(|call| call.request).collect()
    }

    /// The methods by which the volume came and went.
    fn moves(&self) -> Vec<String> {
        let calls = self.calls().into_iter();
        let moves =
            calls.filter(|call| call.request["volume_id"] == "disk-1" && call.method != EXPAND);
        moves.map(|call| call.method).collect()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.process.kill().ok();
        // There are some where the test has failed.
        for call in self.calls().iter().rev() {
            for key in ["target_path", "staging_target_path"] {
                if let Some(path) = call.request[key].as_str() {
                    umount2(path, MntFlags::MNT_DETACH).ok();
                }
            }
        }
    }
}

/// What the driver was sent while the volume came: each field where CSI has it.
fn check_requests(driver: &Foreign) {
    let staged = driver.requests(STAGE).pop().unwrap();
    let capability = json!({"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}});
    assert_eq!(staged["volume_capability"], capability);
    let published = driver.requests(PUBLISH);
    for (request, pod) in published.iter().zip(["first", "second"]) {
        assert_eq!(
            request["staging_target_path"],
            staged["staging_target_path"]
        );
        assert_eq!(request["volume_capability"], capability);
        let context = &request["volume_context"];
        assert_eq!(context["csi.storage.k8s.io/pod.name"], pod);
    }
    let grown = driver.requests(EXPAND);
    assert!(!grown.is_empty());
    for request in grown {
        assert_eq!(
            request["capacity_range"],
            json!({"required_bytes": "2097152"})
        );
        let path = &request["volume_path"];
        assert!(published.iter().any(|one| one["target_path"] == *path));
    }
    for call in driver.calls() {
        // Newer than CSI 1.1: where the volume is staged, and how it is used.
        let newer: &[u32] = if call.method == EXPAND { &[4, 5] } else { &[] };
        assert_eq!(call.unknown, newer, "{call:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_of_another_stack_registers_refuses_stages_publishes_and_grows_a_volume() {
    let cluster = Cluster::new().await.with_privileged_pods().await;
    bound(&cluster).await;
    let driver = Foreign::start(&cluster);
    let node = eventually("the driver to be known", || async {
        driver.must_run();
        known(&cluster).await
    })
    .await;
    let own = &node.spec.drivers[0];
    assert_eq!(
        (own.name.as_str(), own.node_id.as_str()),
        (NAME, "node-of-python")
    );
    assert_eq!(own.allocatable.as_ref().unwrap().count, Some(3));

    let script = "echo kept > /data/f; cat /data/f; exec sleep 100000";
    cluster.create("first", pod(script)).await;
    let refused = cluster.event("FailedMount").await;
    let words = format!("rpc error: code = ResourceExhausted desc = {REFUSAL}");
    assert!(refused.contains(&words), "{refused}");
    says(&cluster, "first", "kept").await;
    let staged = driver.requests(STAGE).pop().unwrap();
    let staged = Path::new(staged["staging_target_path"].as_str().unwrap());
    let text = std::fs::read_to_string(staged.join("f")).unwrap();
    assert_eq!(
        text, "kept\n",
        "the pod's file is on what the driver staged"
    );

    // As a resizer would, which has asked the driver's controller for the space.
    let larger = json!({"spec": {"capacity": {"storage": "2Mi"}}});
    cluster
        .patch("/api/v1/persistentvolumes/pv-1", &larger)
        .await;
    let size = "set -- $(busybox df -k /data | busybox tail -n 1)";
    let script = format!("{size}; echo $(cat /data/f) in $2 KiB; exec sleep 100000");
    cluster.create("second", pod(&script)).await;
    says(&cluster, "second", "kept in 2048 KiB").await;
    let claim = cluster.admin.get(Some("default"), "data").await;
    let claim: PersistentVolumeClaim = claim.unwrap();
    let shown = claim.status.and_then(|status| status.capacity).unwrap();
    assert_eq!(shown["storage"].0, "2Mi");
    check_requests(&driver);

    for name in ["first", "second"] {
        cluster.delete(name, 0).await;
        gone(&cluster, name).await;
    }
    let mut moves = eventually("the volume to be unstaged", || async {
        let moves = driver.moves();
        let after_both = moves.split(|call| call == UNPUBLISH).nth(2)?;
        let is_unstaged = after_both.iter().any(|call| call == UNSTAGE);
        is_unstaged.then_some(moves)
    })
    .await;
    // A staging that failed may have left something, which is taken back where no next try comes
    // before that.
    if moves[1] == UNSTAGE {
        moves.remove(1);
    }
    let came = [STAGE, STAGE, PUBLISH, PUBLISH];
    let all = [&came[..], &[UNPUBLISH, UNPUBLISH, UNSTAGE]].concat();
    assert_eq!(moves, all);
    let mounts = agent_sys::mounted::own().unwrap();
    let is_left = mounts.iter().any(|mount| mount.point == staged);
    assert!(!is_left, "{mounts:?}");
    let told = driver.requests("NotifyRegistrationStatus").pop();
    assert_eq!(told, Some(json!({"plugin_registered": true})));
}
