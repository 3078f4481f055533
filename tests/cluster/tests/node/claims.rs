//! Persistent volumes from claim to data: the real kubectl, scheduler, controllers, kubelet and
//! containerd.

use crate::cluster::shell;
use crate::site::{eventually, texts};
use crate::tunnels::Site;
use crate::usage::of_pod;
use config_kube::identity::{CONTROLLER_MANAGER_USER, SCHEDULER_USER};
use config_kube::k8s_openapi::api::core::v1::{
    Event, Node, PersistentVolume, PersistentVolumeClaim, Pod,
};
use master_client::{ListParams, Patch, UserInfo};
use master_control::Controllers;
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio::task::JoinHandle;

/// A cluster of one node that places pods and keeps its objects in order.
struct Whole {
    site: Site,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Whole {
    async fn new() -> Self {
        let site = Site::new().await;
        // As the master labels a node that it admits.
        let labels = json!({"kubernetes.io/hostname": "worker-1", "pratique.dev/role": "worker"});
        let label = json!({ "metadata": { "labels": labels } });
        let label = Patch::Merge(label);
        let patched = site.cluster.admin.patch::<Node>(None, "worker-1", &label);
        patched.await.unwrap();
        let client = |user: &str| {
            let user = UserInfo::authenticated(user, Vec::<String>::new());
            site.cluster.server.client(user)
        };
        // But for the one that taints a Node whose Machine is gone: there never was one.
        let mut all = master_controllers::all();
        all.retain(|one| one.name != "machine-nodes");
        let controllers = Controllers::of(&all, master_control::Options::default());
        let controllers = controllers.run(client(CONTROLLER_MANAGER_USER), std::future::pending());
        let scheduler = master_schedule::run(
            client(SCHEDULER_USER),
            master_schedule::Options::default(),
            std::future::pending(),
        );
        Self {
            tasks: [tokio::spawn(controllers), tokio::spawn(scheduler)],
            site,
        }
    }

    async fn kubectl(&self, words: &[&str]) -> String {
        let (code, out, errors) = self.site.run(words, None).await;
        assert_eq!(code, 0, "{words:?}: {errors}");
        String::from_utf8(out).unwrap()
    }

    async fn apply(&self, document: &Value) {
        let input = Some(document.to_string().into_bytes());
        let (code, _, errors) = self.site.run(&["apply", "-f", "-"], input).await;
        assert_eq!(code, 0, "{errors}");
    }

    /// The pod of this name that runs, if it is another than this one.
    async fn runs(&self, name: &str, but: Option<&str>) -> Pod {
        eventually(&format!("{name} to run"), || async {
            let pod = self.site.cluster.pod(name).await?;
            let uid = pod.metadata.uid.as_deref();
            let status = pod.status.as_ref()?;
            let fresh = uid != but && pod.metadata.deletion_timestamp.is_none();
            (fresh && status.phase.as_deref() == Some("Running")).then_some(pod)
        })
        .await
    }

    /// The first line that a pod's container wrote.
    async fn first_line(&self, pod: &Pod) -> String {
        eventually("a line", || async {
            let log = self.site.cluster.log(pod, 0);
            texts(&log).first().map(|line| (*line).to_owned())
        })
        .await
    }

    fn folders(&self) -> PathBuf {
        self.site
            .cluster
            .site
            .dir
            .path()
            .join("kubelet/local-volumes")
    }

    fn names(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.folders())
            .into_iter()
            .flatten()
            .flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// Counts its starts on this volume, and prints the count.
const COUNT: &str = "echo begun >> /data/begun; wc -l < /data/begun; exec sleep 100000";

fn spec(script: &str) -> Value {
    let mut main = shell(script);
    main["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    json!({"hostNetwork": true, "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 0, "containers": [main]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stateful_set_keeps_its_data_until_its_claim_is_deleted() {
    let cluster = Whole::new().await;
    let asked =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    cluster
        .apply(&json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
            "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": spec(COUNT)},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": asked}],
        }}))
        .await;
    let first = cluster.runs("db-0", None).await;
    assert_eq!(cluster.first_line(&first).await.trim(), "1");
    let state = "jsonpath={.status.phase} {.spec.storageClassName}";
    let state = cluster
        .kubectl(&["get", "pvc", "data-db-0", "-o", state])
        .await;
    assert_eq!(state, "Bound local");

    is_measured(&cluster.site).await;

    cluster.kubectl(&["delete", "pod", "db-0"]).await;
    let second = cluster.runs("db-0", first.metadata.uid.as_deref()).await;
    assert_eq!(
        cluster.first_line(&second).await.trim(),
        "2",
        "the data is kept"
    );

    let grow = r#"{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}"#;
    let (code, _, refused) = cluster
        .site
        .run(&["patch", "pvc", "data-db-0", "-p", grow], None)
        .await;
    assert_ne!(code, 0);
    assert!(refused.contains("must support resize"), "{refused}");

    assert_eq!(cluster.names().len(), 1);
    cluster.kubectl(&["delete", "statefulset", "db"]).await;
    cluster.kubectl(&["delete", "pvc", "data-db-0"]).await;
    eventually("volume and folder to go", || async {
        let list = ListParams::default();
        let volumes = cluster
            .site
            .cluster
            .admin
            .list::<PersistentVolume>(None, &list);
        let gone = volumes.await.unwrap().items.is_empty();
        (gone && cluster.names().is_empty()).then_some(())
    })
    .await;
}

/// The claim's volume has figures of its own, and is among those of its pod.
async fn is_measured(site: &Site) {
    let metrics = site.kubelet_get("/metrics").await;
    for family in [
        "capacity_bytes",
        "available_bytes",
        "used_bytes",
        "inodes_free",
    ] {
        let labels = "{namespace=\"default\",persistentvolumeclaim=\"data-db-0\"} ";
        let sample = format!("\nkubelet_volume_stats_{family}{labels}");
        let (_, rest) = metrics.split_once(&sample).unwrap();
        let (value, _) = rest.split_once('\n').unwrap();
        assert!(value.parse::<u64>().unwrap() > 0, "{family} {value}");
    }
    let volume = eventually("a look at the pod's volumes", || async {
        let summary = site.summary().await;
        of_pod(&summary, "db-0")?.pointer("/volume/0").cloned()
    })
    .await;
    let claim = json!({"name": "data-db-0", "namespace": "default"});
    assert_eq!(
        (&volume["name"], &volume["pvcRef"]),
        (&json!("data"), &claim)
    );
    assert!(volume["capacityBytes"].as_u64() > volume["availableBytes"].as_u64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_is_reported_on_pod_and_claim_and_not_replaced_by_an_empty_folder() {
    let cluster = Whole::new().await;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }))
    .unwrap();
    cluster.site.cluster.admin.create(&claim).await.unwrap();
    let pod = |name: &str| {
        let mut spec = spec(COUNT);
        spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    };
    cluster.apply(&pod("first")).await;
    cluster.runs("first", None).await;
    cluster.kubectl(&["delete", "pod", "first"]).await;
    // As after a state that did not open.
    std::fs::remove_dir_all(cluster.folders()).unwrap();

    cluster.apply(&pod("second")).await;
    let text = cluster.site.cluster.event("FailedMount").await;
    assert!(text.contains("is LOST"), "{text}");
    let waiting = "/containerStatuses/0/state/waiting/reason";
    let reason = json!("ContainerCreating");
    cluster
        .site
        .cluster
        .reaches("second", waiting, reason)
        .await;
    eventually("the claim to tell of it", || async {
        let list = ListParams::default();
        let events = cluster
            .site
            .cluster
            .admin
            .list::<Event>(Some("default"), &list);
        let events = events.await.unwrap().items;
        let of_claim = |event: &Event| {
            let about = event.involved_object.kind.as_deref();
            about == Some("PersistentVolumeClaim") && event.reason.as_deref() == Some("VolumeLost")
        };
        events.iter().any(of_claim).then_some(())
    })
    .await;
    assert!(!cluster.folders().exists(), "no empty folder in its place");
}
