//! Volumes of CSI drivers: the real kubelet and containerd, the master's API and its authorizer,
//! and a driver in this process.

use crate::api::InProcess;
use crate::cluster::{Cluster, NODE, shell};
use crate::site::{eventually, texts};
use crate::tunnels::Site;
use crate::usage::of_pod;
use agent_api::get;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use config_kube::k8s_openapi::api::storage::v1::CSINode;
use http::Method;
use master_client::{Patch, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;
use tests_support::csi::{Driver, Fault};

pub(crate) const NAME: &str = "memory.example";

/// A CSIDriver object, a volume of the driver, and a claim that is bound to it.
pub(crate) async fn bound(cluster: &Cluster) {
    let rules = json!({"attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let rules = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NAME}, "spec": rules});
    cluster
        .ask(Method::POST, "/apis/storage.k8s.io/v1/csidrivers", &rules)
        .await;
    let asked = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-1",
        "resources": {"requests": {"storage": "1Mi"}}});
    let meta = json!({"name": "data", "namespace": "default"});
    let claim: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": meta, "spec": asked})).unwrap();
    let claim = cluster.admin.create(&claim).await.unwrap();
    let of = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
        "uid": claim.metadata.uid});
    let volume = json!({"metadata": {"name": "pv-1"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Mi"}, "storageClassName": "", "claimRef": of,
        "csi": {"driver": NAME, "volumeHandle": "disk-1"}}});
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    cluster.admin.create(&volume).await.unwrap();
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
    let at = Some("default");
    let status = Patch::Merge(status);
    let patched = cluster
        .admin
        .patch_status::<PersistentVolumeClaim>(at, "data", &status);
    patched.await.unwrap();
}

/// A pod that has the claim's volume at `/data`.
pub(crate) fn pod(script: &str) -> Value {
    let mut main = shell(script);
    main["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let claim = json!({"claimName": "data"});
    json!({"containers": [main], "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "data", "persistentVolumeClaim": claim}]})
}

/// Waits until a line is the last that the pod wrote.
pub(crate) async fn says(cluster: &Cluster, name: &str, line: &str) {
    eventually(&format!("{name} to say {line:?}"), || async {
        let pod = cluster.pod(name).await?;
        let log = cluster.log(&pod, 0);
        (texts(&log).last() == Some(&line)).then_some(())
    })
    .await;
}

pub(crate) async fn gone(cluster: &Cluster, name: &str) {
    eventually(&format!("{name} to be gone"), || async {
        cluster.pod(name).await.is_none().then_some(())
    })
    .await;
}

/// The node's CSINode, if it names a driver.
pub(crate) async fn known(cluster: &Cluster) -> Option<CSINode> {
    let admin = InProcess {
        server: cluster.server.clone(),
        user: UserInfo::admin("admin"),
        away: Arc::default(),
        asked: Arc::default(),
    };
    let path = format!("/apis/storage.k8s.io/v1/csinodes/{NODE}");
    let node: CSINode = get(&admin, path).await.ok()?;
    (!node.spec.drivers.is_empty()).then_some(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drivers_volume_is_its_pods_until_the_last_is_gone_also_while_the_agent_begins_again() {
    let mut cluster = Cluster::new().await.with_privileged_pods().await;
    bound(&cluster).await;
    cluster
        .create(
            "first",
            pod("echo kept > /data/f; cat /data/f; exec sleep 100000"),
        )
        .await;
    let refused = cluster.event("FailedMount").await;
    assert!(
        refused
            .contains("driver name memory.example not found in the list of registered CSI drivers"),
        "{refused}"
    );
    let driver = Driver::start(&cluster.config().machine.data, NAME);
    says(&cluster, "first", "kept").await;
    let known = eventually("the driver to be known", || known(&cluster)).await;
    assert_eq!(known.spec.drivers[0].name, NAME);

    cluster.end().await;
    cluster.begin();
    cluster
        .create("second", pod("cat /data/f; exec sleep 100000"))
        .await;
    says(&cluster, "second", "kept").await;
    assert_eq!(
        driver.calls(),
        ["Stage disk-1", "Publish disk-1", "Publish disk-1"]
    );
    let context = &driver.publishes()[1].volume_context;
    assert_eq!(context["csi.storage.k8s.io/pod.name"], "second");

    cluster.delete("first", 0).await;
    eventually("the first pod's volume to be unmounted", || async {
        (driver.left() == (1, 1, Vec::new())).then_some(())
    })
    .await;
    cluster.end().await;
    cluster.delete("second", 0).await;
    cluster.begin();
    eventually("everything to be unmounted", || async {
        (driver.left() == (0, 0, Vec::new())).then_some(())
    })
    .await;
    gone(&cluster, "second").await;
    let folder = cluster.config().machine.data.join("pods");
    eventually("the pods' folders to go", || async {
        (std::fs::read_dir(&folder).unwrap().count() == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drivers_figures_of_its_volumes_are_reported_and_a_silent_one_delays_none() {
    let cluster = Cluster::new().await.with_privileged_pods().await;
    bound(&cluster).await;
    let driver = Driver::start(&cluster.config().machine.data, NAME);
    let script = "busybox dd if=/dev/zero of=/data/f bs=65536 count=4 2>/dev/null; echo kept; exec sleep 100000";
    cluster.create("writes", pod(script)).await;
    says(&cluster, "writes", "kept").await;
    let site = Site::over(cluster).await;
    let volume = eventually("the driver's figures", || async {
        let summary = site.summary().await;
        let own = of_pod(&summary, "writes")?.pointer("/volume/0")?.clone();
        // What the machine's images take is known once a look has ended, too.
        summary.pointer("/node/runtime/imageFs/usedBytes")?;
        Some(own)
    })
    .await;
    assert_eq!(volume["name"], "data");
    let claim = json!({"name": "data", "namespace": "default"});
    assert_eq!(volume["pvcRef"], claim);
    assert_eq!(volume["capacityBytes"], 1 << 20);
    assert_eq!(volume["usedBytes"], 4 << 16);
    assert!(volume["inodesUsed"].as_u64() >= Some(1), "{volume}");
    driver.misbehave("NodeGetVolumeStats", Some(Fault::Hangs));
    let text = site.kubelet_get("/metrics").await;
    let of = "{namespace=\"default\",persistentvolumeclaim=\"data\"}";
    for line in [
        format!("kubelet_volume_stats_capacity_bytes{of} {}", 1 << 20),
        format!("kubelet_volume_stats_used_bytes{of} {}", 4 << 16),
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_volume_comes_and_goes_with_its_pod_and_a_pod_that_is_over_has_none() {
    let cluster = Cluster::new().await.with_privileged_pods().await;
    bound(&cluster).await;
    let driver = Driver::start(&cluster.config().machine.data, NAME);
    let mut spec = pod("touch /data/f && echo written");
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!([{"name": "data", "csi": {"driver": NAME}}]);
    cluster.create("once", spec).await;
    says(&cluster, "once", "written").await;
    cluster.reaches("once", "/phase", json!("Succeeded")).await;
    eventually("the volume to be unmounted", || async {
        (driver.left() == (0, 0, Vec::new())).then_some(())
    })
    .await;
    let calls = driver.calls();
    assert!(calls[0].starts_with("Publish csi-"), "{calls:?}");
    assert!(calls[1].starts_with("Unpublish csi-"), "{calls:?}");
    assert!(driver.publishes()[0].staging_target_path.is_empty());
    assert!(cluster.pod("once").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_without_privileged_pods_mounts_no_drivers_volume_and_says_why() {
    let cluster = Cluster::new().await;
    bound(&cluster).await;
    let driver = Driver::start(&cluster.config().machine.data, NAME);
    cluster.create("claims", pod("true")).await;
    let refused = cluster.event("FailedMount").await;
    assert!(refused.contains("[node] privileged = true"), "{refused}");
    let mut inline = pod("true");
    inline["volumes"] = json!([{"name": "data", "csi": {"driver": NAME}}]);
    cluster.create("inline", inline).await;
    let status = cluster
        .reaches("inline", "/reason", json!("NotSupported"))
        .await;
    let text = status["message"].as_str().unwrap();
    assert!(text.contains("[node] privileged = true"), "{text}");
    let mut plugin = pod("true");
    plugin["volumes"] = json!([{"name": "data", "hostPath": {"path": cluster.config().machine.data.join("plugins")}}]);
    cluster.create("plugin", plugin).await;
    cluster
        .reaches("plugin", "/reason", json!("HostPathForbidden"))
        .await;
    assert_eq!((driver.registration(), driver.calls()), (None, Vec::new()));
}

/// The containers of a driver's pod as charts have them: a registrar without rights, and the
/// driver, which mounts where all pods of the machine see it. What it mounts in the pod's own
/// volume goes with the pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_privileged_container_mounts_below_the_folder_of_volumes_is_mounted_on_the_machine()
{
    let cluster = Cluster::new().await.with_privileged_pods().await;
    let data = cluster.config().machine.data;
    let path = |name: &str| json!({"path": data.join(name), "type": "DirectoryOrCreate"});
    let mut registrar = shell("touch /registration/sock && exec sleep 100000");
    registrar["name"] = json!("registrar");
    registrar["volumeMounts"] = json!([{"name": "registration", "mountPath": "/registration"}]);
    let mut driver = shell(
        "mkdir -p /plugins/d/m /own/m && mount -t tmpfs x /plugins/d/m && mount -t tmpfs x /own/m && echo driven > /plugins/d/m/f && echo mounted; exec sleep 100000",
    );
    // Mounted in the volume that the machine sees, too.
    driver["terminationMessagePath"] = json!("/own/message");
    driver["securityContext"] = json!({"privileged": true});
    driver["volumeMounts"] = json!([
        {"name": "plugins", "mountPath": "/plugins", "mountPropagation": "Bidirectional"},
        {"name": "own", "mountPath": "/own", "mountPropagation": "Bidirectional"},
    ]);
    let volumes = json!([
        {"name": "registration", "hostPath": path("plugins_registry")},
        {"name": "plugins", "hostPath": path("plugins")},
        {"name": "own", "emptyDir": {}},
    ]);
    let spec = json!({"containers": [driver, registrar], "volumes": volumes, "terminationGracePeriodSeconds": 0});
    cluster.create("driver", spec).await;
    says(&cluster, "driver", "mounted").await;
    let file = data.join("plugins/d/m/f");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "driven\n");
    let sock = data.join("plugins_registry/sock");
    eventually("the registrar's file", || async {
        sock.exists().then_some(())
    })
    .await;
    let uid = cluster.pod("driver").await.unwrap().metadata.uid.unwrap();
    let folder = data.join("pods").join(uid);
    let own = agent_sys::mounted::own().unwrap();
    let is_below = own.iter().any(|mount| mount.point.starts_with(&folder));
    assert!(is_below, "{own:?}");
    cluster.delete("driver", 0).await;
    gone(&cluster, "driver").await;
    eventually("the end of the pod's folder", || async {
        (!folder.exists()).then_some(())
    })
    .await;
    assert!(file.exists(), "what it mounted outlives it");
    nix::mount::umount(&data.join("plugins/d/m")).unwrap();
}
