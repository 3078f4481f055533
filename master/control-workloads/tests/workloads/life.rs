//! Workloads against the real API server over the real store, with simulated kubelets that report
//! the wanted state at once.

use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use config_kube::k8s_openapi::api::core::v1::{Event, Pod, ResourceQuota};
use jiff::Timestamp;
use master_api::{ApiServer, Options};
use master_client::{
    Client, DeleteParams, DynamicObject, ListParams, Object, Patch, UserInfo, View,
};
use master_control::Controllers;
use master_control_workloads::CONTROLLERS;
use master_control_workloads::workload::pod::OwnedPod;
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(240);

pub(crate) struct Cluster {
    pub(crate) admin: Client,
    tasks: Vec<JoinHandle<()>>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// An API with the controllers of workloads and of the whole cluster (accounts, garbage, quotas),
/// and kubelets unless a test plays them itself.
pub(crate) async fn cluster(kubelets: bool) -> Cluster {
    let list = [master_control_cluster::CONTROLLERS, CONTROLLERS].concat();
    let store = TempDir::new().unwrap();
    let engine = EmbeddedStore::open(store.path()).unwrap();
    let options = Options {
        roles: master_control::roles(&list),
        ..Options::default()
    };
    let api = ApiServer::new(Arc::new(engine), options);
    api.prepare().await.unwrap();
    let own = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
    let controllers = Controllers::of(&list, master_control::Options::default())
        .run(api.client(own), std::future::pending());
    let admin = api.client(UserInfo::admin("admin"));
    let mut tasks = vec![tokio::spawn(controllers)];
    if kubelets {
        tasks.push(tokio::spawn(play_kubelets(admin.clone())));
    }
    Cluster {
        admin,
        tasks,
        _store: store,
    }
}

/// Simulates kubelets: every pod ends or runs, as its image says, as soon as it is seen, and is
/// removed as soon as it is deleted. A pod with an affinity to one node is bound to it first.
async fn play_kubelets(admin: Client) {
    loop {
        let pods = admin.list::<Pod>(None, &ListParams::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            if pod.metadata.deletion_timestamp.is_some() {
                end(&admin, &pod).await;
            } else if phase.as_deref() == Some("Pending") {
                bind(&admin, &pod).await;
                say(&admin, &pod, outcome(&pod)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How a pod ends, by the tag of its image.
fn outcome(pod: &Pod) -> Value {
    let containers = pod.spec.as_ref().map(|spec| &spec.containers);
    let image = containers.and_then(|all| all.first()?.image.as_deref());
    match image.and_then(|image| image.rsplit_once(':')) {
        Some((_, "succeeds")) => json!({"phase": "Succeeded"}),
        Some((_, "fails")) => json!({"phase": "Failed"}),
        _ => running(),
    }
}

/// Binds a pod to the node that its affinity names, as the scheduler does with pods of DaemonSets.
async fn bind(admin: &Client, pod: &Pod) {
    let node = OwnedPod::read(pod.clone()).meant_for;
    if node.is_empty() {
        return;
    }
    let meta = &pod.metadata;
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    let target = json!({"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": &*node}});
    let binding: DynamicObject = serde_json::from_value(target).unwrap();
    // It may be bound already, or have gone.
    let _bound = admin
        .create_subresource::<Pod>(namespace, name.unwrap_or_default(), "binding", &binding)
        .await;
}

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "startTime": now(), "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": now()}]})
}

pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) async fn say(admin: &Client, pod: &Pod, status: Value) {
    let meta = &pod.metadata;
    let patch = Patch::Strategic(json!({"status": status}));
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    // It may have gone meanwhile.
    let _gone = admin
        .patch_status::<Pod>(namespace, name.unwrap_or_default(), &patch)
        .await;
}

pub(crate) async fn end(admin: &Client, pod: &Pod) {
    let meta = &pod.metadata;
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::of(meta.uid.clone().unwrap_or_default())
    };
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    let _gone = admin
        .delete::<Pod>(namespace, name.unwrap_or_default(), &params)
        .await;
}

/// Waits until something holds.
pub(crate) async fn eventually<F: Future<Output = Result<(), String>>>(
    what: &str,
    mut check: impl FnMut() -> F,
) {
    let begun = tokio::time::Instant::now();
    loop {
        let found = check().await;
        let Err(last) = found else { return };
        assert!(begun.elapsed() < LIMIT, "{what}: {last}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Cluster {
    pub(crate) async fn create<T: Object>(&self, object: Value) -> T {
        let object = T::from_json(object.to_string().as_bytes()).unwrap();
        self.admin.create(&object).await.expect("it is made")
    }

    pub(crate) async fn get<T: Object>(&self, name: &str) -> T {
        self.admin
            .get(Some("default"), name)
            .await
            .expect("it is there")
    }

    pub(crate) async fn patch<T: Object>(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.admin
            .patch::<T>(Some("default"), name, &patch)
            .await
            .expect("it is taken");
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        let list = self
            .admin
            .list::<Pod>(Some("default"), &ListParams::default())
            .await;
        list.expect("pods are served").items
    }

    async fn complete(&self, name: &str, replicas: i32) -> Result<(), String> {
        let deployment: Deployment = self.get(name).await;
        let status = deployment.status.unwrap_or_default();
        let done = status.observed_generation == deployment.metadata.generation
            && status.updated_replicas == Some(replicas)
            && status.replicas == Some(replicas)
            && status.available_replicas == Some(replicas);
        if done {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    }

    pub(crate) async fn reasons(&self) -> BTreeSet<String> {
        let list = self
            .admin
            .list::<Event>(Some("default"), &ListParams::default())
            .await;
        let events = list.expect("events are served").items;
        events
            .into_iter()
            .filter_map(|event| event.reason)
            .collect()
    }
}

fn deployment(replicas: i32) -> Value {
    let container = json!({"name": "c", "image": "registry.example/c:1"});
    json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
    }})
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_rolls_scales_and_goes_with_all_that_it_made() {
    let cluster = cluster(true).await;
    let _made: Deployment = cluster.create(deployment(5)).await;
    eventually("five pods are available", || cluster.complete("web", 5)).await;
    cluster
        .patch::<Deployment>("web", image("registry.example/c:2"))
        .await;
    eventually("the new version is", || cluster.complete("web", 5)).await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 2}}))
        .await;
    eventually("two are left", || cluster.complete("web", 2)).await;
    eventually("no other pod is left", || async {
        let pods = cluster.pods().await;
        let images: Vec<_> = pods
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect();
        if images == ["registry.example/c:2"; 2] {
            Ok(())
        } else {
            Err(format!("{images:?}"))
        }
    })
    .await;
    eventually("the event", || async {
        let reasons = cluster.reasons().await;
        let wanted = ["ScalingReplicaSet", "SuccessfulCreate", "SuccessfulDelete"];
        let all = wanted.iter().all(|reason| reasons.contains(*reason));
        if all {
            Ok(())
        } else {
            Err(format!("{reasons:?}"))
        }
    })
    .await;
    let admin = &cluster.admin;
    admin
        .delete::<Deployment>(Some("default"), "web", &DeleteParams::default())
        .await
        .unwrap();
    eventually("nothing is left", || async {
        let sets = admin
            .list::<ReplicaSet>(Some("default"), &ListParams::default())
            .await
            .unwrap();
        let pods = cluster.pods().await.len();
        if sets.items.is_empty() && pods == 0 {
            Ok(())
        } else {
            Err(format!("{} and {pods}", sets.items.len()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_adopted_and_counts_and_a_relabelled_pod_is_released_and_replaced() {
    let cluster = cluster(true).await;
    let container = json!({"name": "c", "image": "registry.example/c:1"});
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}});
    let orphan = json!({"metadata": {"namespace": "default", "name": "orphan", "labels": {"app": "web"}},
        "spec": {"containers": [container]}});
    let _made: Pod = cluster.create(orphan).await;
    let set = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    let _made: ReplicaSet = cluster.create(set).await;
    let controlled = |pod: &Pod| {
        let owners = pod.metadata.owner_references.clone().unwrap_or_default();
        owners.iter().any(|owner| owner.controller == Some(true))
    };
    eventually("the orphan and one more pod are its own", || async {
        let pods = cluster.pods().await;
        let own = pods.iter().filter(|pod| controlled(pod)).count();
        if (pods.len(), own) == (2, 2) {
            Ok(())
        } else {
            Err(format!("{own} of {}", pods.len()))
        }
    })
    .await;
    cluster
        .patch::<Pod>("orphan", json!({"metadata": {"labels": {"app": "db"}}}))
        .await;
    eventually("it is free and another takes its place", || async {
        let pods = cluster.pods().await;
        let own = pods.iter().filter(|pod| controlled(pod)).count();
        let free: Pod = cluster.get("orphan").await;
        if (pods.len(), own, controlled(&free)) == (3, 2, false) {
            Ok(())
        } else {
            Err(format!("{own} of {}", pods.len()))
        }
    })
    .await;
}

/// The message of a Deployment's condition `ReplicaFailure`.
fn failure(deployment: Deployment) -> Option<String> {
    let status = deployment.status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let found = conditions.find(|one| one.type_ == "ReplicaFailure")?;
    Some(found.message.unwrap_or_default())
}

/// A Deployment of three pods under a quota of one, with the condition `ReplicaFailure`.
async fn stopped_by_a_quota(cluster: &Cluster) {
    let quota = json!({"metadata": {"namespace": "default", "name": "few"}, "spec": {"hard": {"pods": "1"}}});
    let _made: ResourceQuota = cluster.create(quota).await;
    eventually("the quota is counted", || async {
        let quota: ResourceQuota = cluster.get("few").await;
        let counted = quota.status.and_then(|status| status.hard);
        counted.map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    let _made: Deployment = cluster.create(deployment(3)).await;
    eventually("it says why", || async {
        match failure(cluster.get("web").await) {
            Some(message) if message.contains("exceeded quota") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn says_nothing_of_it(cluster: &Cluster) {
    eventually("nothing is said any more", || async {
        failure(cluster.get("web").await).map_or(Ok(()), Err)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_stops_pods_is_reported_and_ends_as_it_grows() {
    let cluster = cluster(true).await;
    stopped_by_a_quota(&cluster).await;
    cluster
        .patch::<ResourceQuota>("few", json!({"spec": {"hard": {"pods": "9"}}}))
        .await;
    eventually("all are there", || cluster.complete("web", 3)).await;
    says_nothing_of_it(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_failure_is_reported_for_pods_that_are_no_longer_wanted() {
    let cluster = cluster(true).await;
    stopped_by_a_quota(&cluster).await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 1}}))
        .await;
    says_nothing_of_it(&cluster).await;
}
