//! The scheduler with the real API server and the real store, in one process.

use config_kube::k8s_openapi::api::core::v1::{Event, Node, Pod};
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use futures_util::future::BoxFuture;
use master_api::{ApiServer, Options};
use master_client::{Client, ListParams, Patch, UserInfo};
use master_schedule::{Profile, Strategy};
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

struct Cluster {
    admin: Client,
    /// The scheduler's own.
    own: Client,
    scheduler: JoinHandle<()>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.scheduler.abort();
    }
}

async fn cluster() -> Cluster {
    let store = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(store.path()).expect("an empty store opens");
    let api = ApiServer::new(Arc::new(engine), Options::default());
    api.prepare().await.expect("the system namespaces are made");
    let own = api.client(UserInfo::authenticated(
        config_kube::identity::SCHEDULER_USER,
        Vec::<String>::new(),
    ));
    Cluster {
        admin: api.client(UserInfo::admin("admin")),
        scheduler: schedule(&own),
        own,
        _store: store,
    }
}

fn schedule(own: &Client) -> JoinHandle<()> {
    let mut options = master_schedule::Options::default();
    options.profiles.push(Arc::new(Profile {
        name: "packed".to_owned(),
        strategy: Strategy::MostAllocated,
        weights: vec![("cpu".to_owned(), 1)],
    }));
    tokio::spawn(master_schedule::run(
        own.clone(),
        options,
        std::future::pending(),
    ))
}

impl Cluster {
    /// Ends the scheduler at once.
    async fn stop(&mut self) {
        self.scheduler.abort();
        drop((&mut self.scheduler).await);
    }

    /// Begins another scheduler, which knows nothing.
    fn start(&mut self) {
        self.scheduler = schedule(&self.own);
    }

    async fn class(&self, name: &str, value: i32) {
        let class = json!({"metadata": {"name": name}, "value": value});
        let class: PriorityClass = serde_json::from_value(class).expect("a class");
        self.admin.create(&class).await.expect("the class is made");
    }

    /// Deletes a pod, as its node does when it has ended.
    async fn ended(&self, name: &str) {
        let now = master_client::DeleteParams {
            grace_period_seconds: Some(0),
            ..master_client::DeleteParams::default()
        };
        let deleted = self.admin.delete::<Pod>(Some("default"), name, &now);
        deleted.await.expect("the pod is deleted");
    }

    async fn is_leaving(&self, name: &str) -> bool {
        let metadata = self.read(name).await.metadata;
        metadata.deletion_timestamp.is_some()
    }

    async fn node(&self, name: &str, cpu: &str) {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
        self.admin.create(&node).await.expect("the node is made");
        let status = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
        }});
        self.admin
            .patch_status::<Node>(None, name, &Patch::Merge(status))
            .await
            .expect("the node is ready");
        // A new node is tainted until the controllers, which do not run here, find it ready.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        self.admin
            .patch::<Node>(None, name, &untainted)
            .await
            .expect("the node takes pods");
    }

    async fn pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
            "hostNetwork": true,
            "containers": [{"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "500m"}}}],
        }});
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.admin.create(&pod).await.expect("the pod is made");
    }

    async fn read(&self, name: &str) -> Pod {
        self.admin
            .get(Some("default"), name)
            .await
            .expect("the pod is there")
    }

    async fn node_of(&self, name: &str) -> Option<String> {
        self.read(name).await.spec.and_then(|spec| spec.node_name)
    }

    /// Reason and message of the condition `PodScheduled` if it is false.
    async fn waits_for(&self, name: &str) -> Option<(String, String)> {
        let conditions = self.read(name).await.status?.conditions?;
        let condition = conditions
            .into_iter()
            .find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((condition.reason?, condition.message?))
    }

    /// The time of that condition of the pod `web`, once its message says something.
    async fn waits_since(&self, says: &str) -> Option<Time> {
        let conditions = self.read("web").await.status?.conditions?;
        let condition = conditions.into_iter().find(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.type_ == "PodScheduled" && message.contains(says)
        });
        condition?.last_transition_time
    }

    async fn events(&self, reason: &str) -> Vec<String> {
        let list = self
            .admin
            .list::<Event>(Some("default"), &ListParams::default())
            .await
            .expect("events are served");
        let of_reason = list
            .items
            .into_iter()
            .filter(|event| event.reason.as_deref() == Some(reason));
        of_reason.filter_map(|event| event.message).collect()
    }
}

/// Repeats a query until it returns something.
async fn eventually<'a, T>(what: &str, mut ask: impl FnMut() -> BoxFuture<'a, Option<T>>) -> T {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < limit, "not within 120 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_bound_and_gets_an_event_scheduled() {
    let cluster = cluster().await;
    cluster.node("worker-1", "2").await;
    cluster.pod("web", |_| ()).await;
    let node = eventually("the pod is bound", || Box::pin(cluster.node_of("web"))).await;
    assert_eq!(node, "worker-1");
    let message = eventually("the event is there", || {
        Box::pin(async { cluster.events("Scheduled").await.into_iter().next() })
    })
    .await;
    assert_eq!(message, "Successfully assigned default/web to worker-1");
    assert!(cluster.waits_for("web").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unschedulable_pod_shows_the_reason_and_is_bound_once_a_node_has_room() {
    let cluster = cluster().await;
    cluster.pod("web", |_| ()).await;
    let why = eventually("the condition is there", || {
        Box::pin(cluster.waits_for("web"))
    })
    .await;
    assert_eq!(
        why,
        (
            "Unschedulable".to_owned(),
            "no nodes available to schedule pods".to_owned()
        )
    );
    let conditions = cluster
        .read("web")
        .await
        .status
        .and_then(|status| status.conditions);
    let observed: Vec<_> = conditions
        .iter()
        .flatten()
        .map(|condition| condition.observed_generation)
        .collect();
    assert_eq!(observed, [Some(1)], "it says of which spec it speaks");
    cluster.node("small", "100m").await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
        0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    eventually("the condition follows", || {
        Box::pin(async {
            cluster
                .waits_for("web")
                .await
                .filter(|(_, why)| why == message)
        })
    })
    .await;
    eventually("the event is there", || {
        Box::pin(async {
            cluster
                .events("FailedScheduling")
                .await
                .into_iter()
                .find(|why| why == message)
        })
    })
    .await;
    cluster.node("large", "4").await;
    let node = eventually("the pod is bound", || Box::pin(cluster.node_of("web"))).await;
    assert_eq!(node, "large");
}

/// The condition's time says since when the pod has waited, not since when for this reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_scheduled_condition_keeps_its_transition_time_when_the_reason_changes() {
    let mut cluster = cluster().await;
    cluster.pod("web", |_| ()).await;
    let first = eventually("it waits", || {
        Box::pin(cluster.waits_since("no nodes available"))
    })
    .await;
    // It is tried again after more than a second.
    cluster.node("small", "100m").await;
    let second = eventually("it says why", || {
        Box::pin(cluster.waits_since("Insufficient cpu"))
    })
    .await;
    assert_eq!(second, first);
    cluster.stop().await;
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let cordoned = cluster.admin.patch::<Node>(None, "small", &cordon);
    cordoned.await.expect("the node takes no pods");
    cluster.start();
    let third = eventually("it says why", || {
        Box::pin(cluster.waits_since("unschedulable"))
    })
    .await;
    assert_eq!(third, first, "also by another process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_fits_no_node_shows_that_preemption_does_not_help() {
    let cluster = cluster().await;
    cluster.node("worker-1", "4").await;
    let missing = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]);
    cluster
        .pod("web", |pod| pod["spec"]["volumes"] = missing)
        .await;
    let message = "0/1 nodes are available: persistentvolumeclaim \"missing\" not found. preemption: \
        0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    eventually("the condition says so", || {
        Box::pin(async {
            let why = cluster.waits_for("web").await;
            why.filter(|(_, why)| why == message)
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_pod_gets_the_resources_of_a_deleted_pod() {
    let cluster = cluster().await;
    cluster.node("worker-1", "500m").await;
    cluster.pod("first", |_| ()).await;
    eventually("the first pod is bound", || {
        Box::pin(cluster.node_of("first"))
    })
    .await;
    cluster.pod("second", |_| ()).await;
    eventually("the second waits", || Box::pin(cluster.waits_for("second"))).await;
    cluster.ended("first").await;
    eventually("the second is bound", || {
        Box::pin(cluster.node_of("second"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_higher_priority_preempts_another() {
    let cluster = cluster().await;
    cluster.node("worker-1", "500m").await;
    cluster.class("high", 1000).await;
    cluster.pod("low", |_| ()).await;
    eventually("it is bound", || Box::pin(cluster.node_of("low"))).await;
    cluster
        .pod("high", |pod| {
            pod["spec"]["priorityClassName"] = json!("high");
        })
        .await;
    eventually("the other one is ended", || {
        Box::pin(async {
            let low = cluster.read("low").await;
            low.metadata.deletion_timestamp.map(drop)
        })
    })
    .await;
    let status = cluster.read("low").await.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let preempted = conditions
        .iter()
        .find(|one| one.reason.as_deref() == Some("PreemptionByScheduler"));
    let observed = preempted.map(|one| one.observed_generation);
    assert_eq!(observed, Some(Some(1)));
    let nominated = cluster.read("high").await.status.unwrap_or_default();
    assert_eq!(nominated.nominated_node_name.as_deref(), Some("worker-1"));
    // A pod that is less important waits, also while the place is free.
    cluster.pod("late", |_| ()).await;
    eventually("it waits", || Box::pin(cluster.waits_for("late"))).await;
    cluster.ended("low").await;
    eventually("the important pod is bound", || {
        Box::pin(cluster.node_of("high"))
    })
    .await;
    assert_eq!(cluster.node_of("late").await.unwrap_or_default(), "");
    let events = eventually("the event is there", || {
        Box::pin(async { cluster.events("Preempted").await.into_iter().next() })
    })
    .await;
    assert!(events.starts_with("Preempted by pod ") && events.ends_with(" on node worker-1"));
    let all = ListParams::default();
    let all = cluster.admin.list::<Event>(Some("default"), &all).await;
    let mut all = all.expect("events are served").items.into_iter();
    let event = all.find(|event| event.reason.as_deref() == Some("Preempted"));
    let related = event.and_then(|event| event.related).unwrap_or_default();
    assert_eq!(related.kind.as_deref(), Some("Pod"));
    assert_eq!(related.name.as_deref(), Some("high"));
}

/// Otherwise a scheduler that starts while a victim is ending would preempt another pod elsewhere,
/// if that seems to cost less by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_nominated_node_is_kept_over_a_restart_of_the_scheduler() {
    let mut cluster = cluster().await;
    cluster.class("high", 1000).await;
    cluster.class("lowest", -10).await;
    cluster.node("worker-1", "500m").await;
    cluster.pod("low", |_| ()).await;
    eventually("it is bound", || Box::pin(cluster.node_of("low"))).await;
    let important = |pod: &mut Value| pod["spec"]["priorityClassName"] = json!("high");
    cluster.pod("high", important).await;
    eventually("the other one is ended", || {
        Box::pin(async { cluster.is_leaving("low").await.then_some(()) })
    })
    .await;
    cluster.stop().await;
    cluster.node("worker-2", "500m").await;
    let unimportant = |pod: &mut Value| pod["spec"]["priorityClassName"] = json!("lowest");
    cluster
        .pod("lowest", |pod| {
            unimportant(pod);
            pod["spec"]["nodeName"] = json!("worker-2");
        })
        .await;
    cluster.start();
    // The important pod is decided first: once this one waits, the important one has been decided
    // again. This one has the lowest priority, and so preempts nothing.
    cluster.pod("late", unimportant).await;
    eventually("it waits", || Box::pin(cluster.waits_for("late"))).await;
    cluster.ended("low").await;
    let node = eventually("the important pod is bound", || {
        Box::pin(cluster.node_of("high"))
    })
    .await;
    assert_eq!(node, "worker-1");
    assert!(!cluster.is_leaving("lowest").await, "one end is enough");
}

/// A nomination that no longer helps is removed, also from the pod's status.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_no_longer_fits_its_nominated_node_loses_the_nomination() {
    let cluster = cluster().await;
    cluster.node("worker-1", "500m").await;
    cluster.class("high", 1000).await;
    cluster.pod("low", |_| ()).await;
    eventually("it is bound", || Box::pin(cluster.node_of("low"))).await;
    cluster
        .pod("high", |pod| {
            pod["spec"]["priorityClassName"] = json!("high");
        })
        .await;
    let nominated = || async {
        let status = cluster.read("high").await.status.unwrap_or_default();
        status.nominated_node_name
    };
    eventually("a node is nominated", || Box::pin(nominated())).await;
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let cordoned = cluster.admin.patch::<Node>(None, "worker-1", &cordon);
    cordoned.await.expect("the node takes no pods");
    cluster.ended("low").await;
    eventually("none is nominated", || {
        Box::pin(async { nominated().await.is_none().then_some(()) })
    })
    .await;
    assert_eq!(cluster.node_of("high").await.unwrap_or_default(), "");
}

/// Otherwise a client that reads the status would wait for a place that another pod gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_loses_its_nomination_to_a_pod_of_higher_priority() {
    let cluster = cluster().await;
    cluster.node("worker-1", "500m").await;
    cluster.class("middle", 100).await;
    cluster.class("high", 1000).await;
    cluster.pod("low", |_| ()).await;
    eventually("it is bound", || Box::pin(cluster.node_of("low"))).await;
    let nominated = |name: &'static str| async {
        let status = cluster.read(name).await.status.unwrap_or_default();
        status.nominated_node_name
    };
    for name in ["middle", "high"] {
        let important = |pod: &mut Value| pod["spec"]["priorityClassName"] = json!(name);
        cluster.pod(name, important).await;
        let node = eventually("a node is nominated", || Box::pin(nominated(name))).await;
        assert_eq!(node, "worker-1");
    }
    eventually("none is nominated for the other one", || {
        Box::pin(async { nominated("middle").await.is_none().then_some(()) })
    })
    .await;
    cluster.ended("low").await;
    let node = eventually("the most important one is bound", || {
        Box::pin(cluster.node_of("high"))
    })
    .await;
    assert_eq!(node, "worker-1");
    cluster.node("worker-2", "500m").await;
    let node = eventually("the other one is bound", || {
        Box::pin(cluster.node_of("middle"))
    })
    .await;
    assert_eq!(node, "worker-2");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_schedulers_pods_and_gated_pods_are_left_alone() {
    let cluster = cluster().await;
    cluster.node("worker-1", "4").await;
    cluster
        .pod("theirs", |pod| {
            pod["spec"]["schedulerName"] = json!("other");
        })
        .await;
    cluster
        .pod("gated", |pod| {
            pod["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
        })
        .await;
    cluster.pod("ours", |_| ()).await;
    eventually("ours is bound, which came last", || {
        Box::pin(cluster.node_of("ours"))
    })
    .await;
    for name in ["theirs", "gated"] {
        assert_eq!(cluster.node_of(name).await.unwrap_or_default(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_bound_by_the_profile_of_its_scheduler_name_which_its_events_show() {
    let cluster = cluster().await;
    for name in ["worker-1", "worker-2"] {
        cluster.node(name, "4").await;
    }
    cluster.pod("first", |_| ()).await;
    let first = eventually("the first is bound", || Box::pin(cluster.node_of("first"))).await;
    for name in ["second", "third"] {
        let named = |pod: &mut Value| pod["spec"]["schedulerName"] = json!("packed");
        cluster.pod(name, named).await;
        let node = eventually("it is bound", || Box::pin(cluster.node_of(name))).await;
        assert_eq!(node, first, "the fuller node is filled");
    }
    let event = || async {
        let params = ListParams {
            fields: Some("reason=Scheduled,involvedObject.name=third".to_owned()),
            ..ListParams::default()
        };
        let list = cluster.admin.list::<Event>(Some("default"), &params).await;
        let events = list.expect("events are served").items;
        events.into_iter().next()?.reporting_component
    };
    let by = eventually("the event is there", || Box::pin(event())).await;
    assert_eq!(by, "packed");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_pods_are_spread_evenly_and_no_node_is_overcommitted() {
    let cluster = cluster().await;
    for index in 0..4 {
        cluster.node(&format!("worker-{index}"), "5").await;
    }
    for index in 0..50 {
        cluster.pod(&format!("p{index}"), |_| ()).await;
    }
    let placed = eventually("forty are bound and ten wait", || {
        Box::pin(async {
            let pods = cluster
                .admin
                .list::<Pod>(Some("default"), &ListParams::default())
                .await
                .expect("pods are served");
            let placed: Vec<String> = pods
                .items
                .iter()
                .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
                .collect();
            let waiting = pods
                .items
                .iter()
                .filter_map(|pod| pod.status.as_ref()?.conditions.as_ref());
            let waiting = waiting
                .flatten()
                .filter(|c| c.reason.as_deref() == Some("Unschedulable"))
                .count();
            (placed.len() == 40 && waiting == 10).then_some(placed)
        })
    })
    .await;
    for index in 0..4 {
        let name = format!("worker-{index}");
        assert_eq!(
            placed.iter().filter(|node| **node == name).count(),
            10,
            "{name}"
        );
    }
}

/// What a node's kubelet does with pods that are bound to it: it runs those for which it has room
/// and refuses the others, in the order in which it sees them.
#[derive(Default)]
struct Kubelet {
    /// Thousandths of a CPU that run, by pod.
    running: BTreeMap<String, i64>,
    refused: BTreeSet<String>,
    /// The node of each pod that has one.
    nodes: BTreeMap<String, String>,
}

impl Kubelet {
    /// Looks at all pods; each takes half a CPU.
    async fn look(&mut self, admin: &Client, room: i64) {
        let all = ListParams::default();
        let pods = admin.list::<Pod>(Some("default"), &all).await;
        for pod in pods.expect("pods are served").items {
            let name = pod.metadata.name.unwrap_or_default();
            let Some(node) = pod.spec.and_then(|spec| spec.node_name) else {
                assert!(!self.nodes.contains_key(&name), "a pod loses no node");
                continue;
            };
            let known = self.nodes.insert(name.clone(), node.clone());
            assert!(known.is_none_or(|known| known == node), "it is bound once");
            if self.running.contains_key(&name) || self.refused.contains(&name) {
                continue;
            }
            let status = if self.running.values().sum::<i64>() + 500 <= room {
                self.running.insert(name.clone(), 500);
                json!({"phase": "Running"})
            } else {
                self.refused.insert(name.clone());
                json!({"phase": "Failed", "reason": "OutOfcpu"})
            };
            let patch = Patch::Merge(json!({"status": status}));
            let said = admin.patch_status::<Pod>(Some("default"), &name, &patch);
            said.await.expect("the node says so");
        }
    }
}

/// Two schedulers begin at once with the same view of one node, and know nothing of each other's
/// decisions; static pods take room beside them. Each pod is bound once, the node is full, and what
/// is beyond its room waits or was refused by the kubelet.
#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_and_static_pods_fill_a_node_and_never_overcommit_it() {
    let mut cluster = cluster().await;
    cluster.stop().await;
    cluster.node("only", "4").await;
    for number in 0..12 {
        let of = ["default-scheduler", "other"][number % 2];
        let name = format!("p{number}");
        cluster
            .pod(&name, |pod| pod["spec"]["schedulerName"] = json!(of))
            .await;
    }
    let profile = Profile {
        name: "other".to_owned(),
        strategy: Strategy::LeastAllocated,
        weights: vec![("cpu".to_owned(), 1)],
    };
    let options = master_schedule::Options {
        profiles: vec![Arc::new(profile)],
        ..master_schedule::Options::default()
    };
    let forever = std::future::pending();
    let other = master_schedule::run(cluster.own.clone(), options, forever);
    let other = tokio::spawn(other);
    cluster.start();
    for number in 0..2 {
        let name = format!("static{number}");
        cluster
            .pod(&name, |pod| pod["spec"]["nodeName"] = json!("only"))
            .await;
    }
    let mut kubelet = Kubelet::default();
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(Instant::now() < limit, "it never comes to rest");
        kubelet.look(&cluster.admin, 4000).await;
        let mut waiting = 0;
        for number in 0..12 {
            let name = format!("p{number}");
            let unbound = !kubelet.nodes.contains_key(&name);
            waiting += usize::from(unbound && cluster.waits_for(&name).await.is_some());
        }
        let decided = kubelet.running.len() + kubelet.refused.len() + waiting;
        if decided == 14 && kubelet.running.len() == 8 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.abort();
    assert!(kubelet.nodes.values().all(|node| node == "only"));
}
