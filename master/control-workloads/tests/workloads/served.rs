//! Jobs, CronJobs, DaemonSets, StatefulSets, ReplicationControllers and budgets against the real
//! API server, with simulated kubelets that report the wanted state at once.

use crate::life::{Cluster, cluster, eventually};
use config_kube::k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, StatefulSet,
};
use config_kube::k8s_openapi::api::batch::v1::{CronJob, Job};
use config_kube::k8s_openapi::api::core::v1::{
    Event, Node, PersistentVolumeClaim, Pod, ReplicationController,
};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use master_client::{ApiError, DeleteParams, DynamicObject, ListParams, Object, Patch};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// A template whose pods' image has a tag.
fn template(tag: &str) -> Value {
    let image = format!("registry.example/c:{tag}");
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

/// A workload of pods with an image's tag; `more` are fields of its specification.
fn workload(name: &str, tag: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
        "selector": {"matchLabels": {"app": "web"}}, "template": template(tag)}});
    for (field, value) in more.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

/// A Job of pods with an image's tag, which are not started again.
fn job(name: &str, tag: &str, more: Value) -> Value {
    let mut object = workload(name, tag, more);
    object["spec"].as_object_mut().unwrap().remove("selector");
    object["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    object
}

/// An object as JSON.
fn json_of<T: Object>(object: &T) -> Value {
    serde_json::from_slice(&object.to_json().unwrap()).unwrap()
}

/// The true conditions of a status.
fn conditions(object: &Value) -> BTreeMap<String, String> {
    let all = object["status"]["conditions"].as_array();
    let held = all
        .into_iter()
        .flatten()
        .filter(|one| one["status"] == "True");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    held.map(|one| (text(&one["type"]), text(&one["reason"])))
        .collect()
}

impl Cluster {
    /// Waits until the status of an object has these fields.
    async fn status<T: Object>(&self, name: &str, wanted: Value) {
        let what = format!("{} {name} says {wanted}", T::KIND);
        eventually(&what, || async {
            let found: T = self.get(name).await;
            let status = json_of(&found)["status"].clone();
            let fields = wanted.as_object().unwrap();
            if fields.iter().all(|(key, value)| status[key] == *value) {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
    }

    /// Waits until a condition is true, for a reason.
    async fn condition<T: Object>(&self, name: &str, kind: &str, reason: &str) {
        eventually(&format!("{} {name} is {kind}", T::KIND), || async {
            let found: T = self.get(name).await;
            let held = conditions(&json_of(&found));
            if held.get(kind).is_some_and(|found| found == reason) {
                Ok(())
            } else {
                Err(format!("{held:?}"))
            }
        })
        .await;
    }

    async fn names(&self) -> BTreeSet<String> {
        let pods = self.pods().await;
        pods.into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect()
    }

    /// Deletes an object as `kubectl` does, in the background: without a policy, Jobs and
    /// ReplicationControllers orphan their pods.
    async fn delete<T: Object>(&self, name: &str) {
        let params = DeleteParams {
            propagation: Some("Background"),
            ..DeleteParams::default()
        };
        self.admin
            .delete::<T>(Some("default"), name, &params)
            .await
            .expect("it is deleted");
    }

    /// Waits until no object of a kind is left.
    async fn none<T: Object + Debug>(&self) {
        eventually(&format!("no {} is left", T::KIND), || async {
            let params = ListParams::default();
            let list = self.admin.list::<T>(Some("default"), &params);
            let items = list.await.unwrap().items;
            if items.is_empty() {
                Ok(())
            } else {
                Err(format!("{items:?}"))
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_counts_each_success_once_and_goes_after_its_time() {
    let cluster = cluster(true).await;
    let spec = json!({"completions": 5, "parallelism": 2});
    let _made: Job = cluster.create(job("all", "succeeds", spec)).await;
    cluster
        .condition::<Job>("all", "Complete", "CompletionsReached")
        .await;
    cluster
        .status::<Job>("all", json!({"succeeded": 5, "active": null}))
        .await;
    let done: Job = cluster.get("all").await;
    let status = done.status.unwrap_or_default();
    assert_eq!(status.failed.unwrap_or_default(), 0);
    assert!(status.start_time.is_some() && status.completion_time.is_some());
    let pods = cluster.pods().await;
    assert_eq!(pods.len(), 5);
    eventually("its pods are free", || async {
        let held = cluster.pods().await;
        let held = held
            .iter()
            .filter(|pod| pod.metadata.finalizers.iter().flatten().next().is_some());
        match held.count() {
            0 => Ok(()),
            held => Err(format!("{held} are held")),
        }
    })
    .await;
    let ttl = json!({"spec": {"ttlSecondsAfterFinished": 0}});
    cluster.patch::<Job>("all", ttl).await;
    cluster.none::<Job>().await;
    cluster.none::<Pod>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_takes_a_pod_back_and_counts_it() {
    let cluster = cluster(true).await;
    let _made: Job = cluster.create(job("all", "runs", json!({}))).await;
    cluster.status::<Job>("all", json!({"ready": 1})).await;
    let pod = cluster.names().await.into_iter().next().unwrap();
    let alone = json!({"metadata": {"ownerReferences": null, "finalizers": null}});
    cluster.patch::<Pod>(&pod, alone).await;
    eventually("the pod is the Job's again", || async {
        let metadata = cluster.get::<Pod>(&pod).await.metadata;
        let owned = metadata.owner_references.iter().flatten().next().is_some();
        if owned && metadata.finalizers.iter().flatten().next().is_some() {
            Ok(())
        } else {
            Err(format!("{metadata:?}"))
        }
    })
    .await;
    let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let done = cluster
        .admin
        .patch_status::<Pod>(Some("default"), &pod, &done)
        .await;
    done.expect("it has ended");
    cluster
        .condition::<Job>("all", "Complete", "CompletionsReached")
        .await;
    assert_eq!(cluster.pods().await.len(), 1, "no other was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_fails_at_its_limit_by_index_and_by_deadline() {
    let cluster = cluster(true).await;
    let _made: Job = cluster
        .create(job("bad", "fails", json!({"backoffLimit": 0})))
        .await;
    cluster
        .condition::<Job>("bad", "Failed", "BackoffLimitExceeded")
        .await;
    cluster
        .status::<Job>("bad", json!({"failed": 1, "active": null}))
        .await;
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0});
    let _made: Job = cluster.create(job("some", "fails", spec)).await;
    cluster
        .condition::<Job>("some", "Failed", "FailedIndexes")
        .await;
    cluster
        .status::<Job>("some", json!({"failedIndexes": "0,1", "failed": 2}))
        .await;
    let _made: Job = cluster
        .create(job("long", "runs", json!({"activeDeadlineSeconds": 1})))
        .await;
    cluster
        .condition::<Job>("long", "Failed", "DeadlineExceeded")
        .await;
    for name in ["bad", "some", "long"] {
        cluster.delete::<Job>(name).await;
    }
    cluster.none::<Pod>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_has_no_pods_and_begins_anew_as_it_is_resumed() {
    let cluster = cluster(true).await;
    let _made: Job = cluster.create(job("slow", "runs", json!({}))).await;
    cluster.status::<Job>("slow", json!({"ready": 1})).await;
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
    cluster.patch::<Job>("slow", suspend(true)).await;
    cluster
        .condition::<Job>("slow", "Suspended", "JobSuspended")
        .await;
    cluster.none::<Pod>().await;
    cluster.patch::<Job>("slow", suspend(false)).await;
    cluster
        .status::<Job>("slow", json!({"active": 1, "ready": 1}))
        .await;
    let events = cluster.reasons().await;
    assert!(
        events.contains("Suspended") && events.contains("Resumed"),
        "{events:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cron_job_makes_jobs_keeps_a_short_history_and_takes_all_with_it() {
    let cluster = cluster(true).await;
    let template = json!({"spec": job("x", "succeeds", json!({}))["spec"]});
    let cron = json!({"metadata": {"namespace": "default", "name": "tick"}, "spec": {
        "schedule": "@every 1s", "successfulJobsHistoryLimit": 1, "jobTemplate": template}});
    let _made: CronJob = cluster.create(cron).await;
    eventually("a Job succeeds", || async {
        let cron: CronJob = cluster.get("tick").await;
        let status = cron.status.unwrap_or_default();
        let ended = status.active.is_none() && status.last_successful_time.is_some();
        if ended && status.last_schedule_time.is_some() {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    let events = cluster.reasons().await;
    for reason in ["SuccessfulCreate", "SawCompletedJob"] {
        assert!(events.contains(reason), "{reason} is not in {events:?}");
    }
    cluster
        .patch::<CronJob>("tick", json!({"spec": {"suspend": true}}))
        .await;
    cluster.delete::<CronJob>("tick").await;
    cluster.none::<Job>().await;
    cluster.none::<Pod>().await;
}

/// A node that takes pods: the API marks each new one as not ready.
async fn node(cluster: &Cluster, name: &str) {
    let node = json!({"metadata": {"name": name}});
    let node: Node = serde_json::from_value(node).unwrap();
    cluster.admin.create(&node).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"taints": null}}));
    cluster
        .admin
        .patch::<Node>(None, name, &patch)
        .await
        .unwrap();
}

/// Pods by the node that they are bound to.
async fn by_node(cluster: &Cluster) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for pod in cluster.pods().await {
        let node = pod.spec.and_then(|spec| spec.node_name);
        *all.entry(node.unwrap_or_default()).or_default() += 1;
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_set_has_a_pod_on_each_node_that_fits_and_rolls() {
    let cluster = cluster(true).await;
    for name in ["n1", "n2"] {
        node(&cluster, name).await;
    }
    let _made: DaemonSet = cluster.create(workload("each", "runs", json!({}))).await;
    let served = |nodes: i32| {
        json!({"desiredNumberScheduled": nodes, "currentNumberScheduled": nodes,
            "updatedNumberScheduled": nodes, "numberAvailable": nodes, "numberReady": nodes})
    };
    cluster.status::<DaemonSet>("each", served(2)).await;
    let one_each = ["n1", "n2"].map(|node| (node.to_owned(), 1));
    assert_eq!(by_node(&cluster).await, one_each.into());
    node(&cluster, "n3").await;
    cluster.status::<DaemonSet>("each", served(3)).await;

    let before = cluster.names().await;
    let template = json!({"spec": {"template": template("runs2")}});
    cluster.patch::<DaemonSet>("each", template).await;
    eventually("all pods are new", || async {
        let now = cluster.names().await;
        if now.len() == 3 && now.is_disjoint(&before) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    cluster
        .status::<DaemonSet>(
            "each",
            json!({"observedGeneration": 2, "updatedNumberScheduled": 3, "numberAvailable": 3}),
        )
        .await;

    let kept = cluster.names().await;
    cluster
        .admin
        .delete::<Node>(None, "n2", &DeleteParams::default())
        .await
        .unwrap();
    cluster.status::<DaemonSet>("each", served(2)).await;
    node(&cluster, "n2").await;
    cluster.status::<DaemonSet>("each", served(3)).await;
    assert_eq!(
        cluster.names().await,
        kept,
        "the pods of a node that comes back go on"
    );
    cluster.delete::<DaemonSet>("each").await;
    cluster.none::<Pod>().await;
}

async fn claims(cluster: &Cluster) -> BTreeSet<String> {
    let params = ListParams::default();
    let list = cluster
        .admin
        .list::<PersistentVolumeClaim>(Some("default"), &params);
    let claims = list.await.unwrap().items;
    claims
        .into_iter()
        .filter_map(|claim| claim.metadata.name)
        .collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_keeps_names_and_claims_while_it_scales_and_rolls() {
    let cluster = cluster(true).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let spec = json!({"replicas": 3, "serviceName": "db", "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Delete"}});
    let _made: StatefulSet = cluster.create(workload("db", "runs", spec)).await;
    let whole = |replicas: i32| {
        json!({"replicas": replicas, "readyReplicas": replicas,
            "availableReplicas": replicas, "updatedReplicas": replicas})
    };
    cluster.status::<StatefulSet>("db", whole(3)).await;
    assert_eq!(cluster.names().await, set(["db-0", "db-1", "db-2"]));
    let all = set(["data-db-0", "data-db-1", "data-db-2"]);
    assert_eq!(claims(&cluster).await, all);

    let replicas = |replicas: i32| json!({"spec": {"replicas": replicas}});
    cluster.patch::<StatefulSet>("db", replicas(1)).await;
    cluster.status::<StatefulSet>("db", whole(1)).await;
    assert_eq!(cluster.names().await, set(["db-0"]));
    assert_eq!(claims(&cluster).await, all, "they are retained");

    cluster.patch::<StatefulSet>("db", replicas(2)).await;
    let template = json!({"spec": {"template": template("runs2")}});
    cluster.patch::<StatefulSet>("db", template).await;
    cluster.status::<StatefulSet>("db", whole(2)).await;
    let new = set(["registry.example/c:runs2"]);
    eventually("all pods are of the new template", || async {
        let set: StatefulSet = cluster.get("db").await;
        let status = set.status.unwrap_or_default();
        let pods = cluster.pods().await;
        let images: BTreeSet<_> = pods
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect();
        if images == new && pods.len() == 2 && status.current_revision == status.update_revision {
            Ok(())
        } else {
            Err(format!("{images:?} {status:?}"))
        }
    })
    .await;
    cluster.delete::<StatefulSet>("db").await;
    cluster.none::<Pod>().await;
    eventually("its claims go with it", || async {
        let left = claims(&cluster).await;
        if left.contains("data-db-0") || left.contains("data-db-1") {
            Err(format!("{left:?}"))
        } else {
            Ok(())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_controller_keeps_its_pods_and_is_scaled() {
    let cluster = cluster(true).await;
    let mut object = workload("old", "runs", json!({"replicas": 2}));
    object["spec"]["selector"] = json!({"app": "web"});
    let _made: ReplicationController = cluster.create(object).await;
    let served = |pods: i32| json!({"replicas": pods, "readyReplicas": pods, "availableReplicas": pods, "fullyLabeledReplicas": pods});
    cluster
        .status::<ReplicationController>("old", served(2))
        .await;
    let first = cluster.names().await.into_iter().next().unwrap();
    cluster.delete::<Pod>(&first).await;
    eventually("another takes its place", || async {
        let names = cluster.names().await;
        if names.len() == 2 && !names.contains(&first) {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await;
    cluster
        .patch::<ReplicationController>("old", json!({"spec": {"replicas": 4}}))
        .await;
    cluster
        .status::<ReplicationController>("old", served(4))
        .await;
    cluster.delete::<ReplicationController>("old").await;
    cluster.none::<Pod>().await;
}

/// A workload that is deleted without its pods and created again adopts them with their revisions:
/// none of the pods is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_workload_adopts_its_orphaned_pods_and_replaces_none() {
    let cluster = cluster(true).await;
    for name in ["n1", "n2"] {
        node(&cluster, name).await;
    }
    let served = json!({"updatedNumberScheduled": 2, "numberAvailable": 2});
    comes_back::<DaemonSet>(&cluster, json!({}), served).await;
    let served = json!({"updatedReplicas": 2, "availableReplicas": 2});
    comes_back::<StatefulSet>(&cluster, json!({"replicas": 2, "serviceName": "s"}), served).await;
    let served = json!({"updatedReplicas": 2, "availableReplicas": 2});
    comes_back::<Deployment>(&cluster, json!({"replicas": 2}), served).await;
}

async fn comes_back<T: Object + Debug>(cluster: &Cluster, more: Value, served: Value) {
    let uids = || async {
        let pods = cluster.pods().await.into_iter();
        pods.filter_map(|pod| pod.metadata.uid)
            .collect::<BTreeSet<_>>()
    };
    let revisions = || async {
        let params = ListParams::default();
        let list = cluster
            .admin
            .list::<ControllerRevision>(Some("default"), &params);
        let all = list.await.unwrap().items.into_iter();
        all.filter_map(|one| one.metadata.name)
            .collect::<BTreeSet<_>>()
    };
    let _made: T = cluster.create(workload("web", "runs", more.clone())).await;
    cluster.status::<T>("web", served.clone()).await;
    let (pods, known) = (uids().await, revisions().await);
    let params = DeleteParams {
        propagation: Some("Orphan"),
        ..DeleteParams::default()
    };
    let gone = cluster
        .admin
        .delete::<T>(Some("default"), "web", &params)
        .await;
    gone.expect("it is deleted");
    cluster.none::<T>().await;
    assert_eq!(uids().await, pods, "they stay");

    let _made: T = cluster.create(workload("web", "runs", more)).await;
    cluster.status::<T>("web", served).await;
    assert_eq!(
        (uids().await, revisions().await),
        (pods, known),
        "{}",
        T::KIND
    );
    cluster.delete::<T>("web").await;
    cluster.none::<Pod>().await;
    cluster.none::<ControllerRevision>().await;
}

async fn evict(cluster: &Cluster, pod: &str) -> Result<(), ApiError> {
    let eviction = json!({"metadata": {"namespace": "default", "name": pod}});
    let eviction: DynamicObject = serde_json::from_value(eviction).unwrap();
    let made = cluster
        .admin
        .create_subresource::<Pod>(Some("default"), pod, "eviction", &eviction);
    made.await.map(drop)
}

/// A drain as `kubectl drain` does it: each pod is evicted, again and again while its budget
/// refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_with_a_budget_ends_and_never_takes_more_than_it_allows() {
    let cluster = cluster(true).await;
    let budget = |name: &str, more: Value| {
        let mut budget = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}}});
        for (field, value) in more.as_object().unwrap() {
            budget["spec"][field] = value.clone();
        }
        budget
    };
    for (spec, allowed) in [
        (json!({"minAvailable": 3}), 1),
        (json!({"maxUnavailable": "50%"}), 2),
    ] {
        let _made: Deployment = cluster
            .create(workload("web", "runs", json!({"replicas": 4})))
            .await;
        let _made: PodDisruptionBudget = cluster.create(budget("web", spec)).await;
        let whole = json!({"currentHealthy": 4, "expectedPods": 4, "disruptionsAllowed": allowed, "desiredHealthy": 4 - allowed});
        cluster
            .status::<PodDisruptionBudget>("web", whole.clone())
            .await;
        cluster
            .condition::<PodDisruptionBudget>("web", "DisruptionAllowed", "SufficientPods")
            .await;
        let drained = cluster.names().await;
        for pod in &drained {
            eventually("its eviction is allowed", || async {
                match evict(&cluster, pod).await {
                    Ok(()) => Ok(()),
                    Err(error) if error.code == 429 => Err(error.to_string()),
                    Err(error) => unreachable!("{error}"),
                }
            })
            .await;
            let ready = cluster.pods().await;
            let ready = ready.iter().filter(|pod| is_ready(pod)).count();
            assert!(ready >= 4 - allowed, "{ready} of 4 are left");
        }
        cluster.status::<PodDisruptionBudget>("web", whole).await;
        assert!(cluster.names().await.is_disjoint(&drained));
        cluster.delete::<PodDisruptionBudget>("web").await;
        cluster.delete::<Deployment>("web").await;
        cluster.none::<Pod>().await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
    pod.metadata.deletion_timestamp.is_none() && ready.next().is_some()
}

/// `kubectl describe` shows under `From` who wrote an event: upstream's names, which people and
/// tools know.
#[tokio::test(flavor = "multi_thread")]
async fn events_name_the_controller_as_upstream_does() {
    let cluster = cluster(true).await;
    node(&cluster, "n1").await;
    let one = || json!({"replicas": 1});
    let _made: Deployment = cluster.create(workload("web", "runs", one())).await;
    let _made: DaemonSet = cluster.create(workload("each", "runs", json!({}))).await;
    let named = json!({"replicas": 1, "serviceName": "db"});
    let _made: StatefulSet = cluster.create(workload("db", "runs", named)).await;
    let mut old = workload("old", "runs", one());
    old["spec"]["selector"] = json!({"app": "web"});
    let _made: ReplicationController = cluster.create(old).await;
    let jobs = json!({"spec": job("x", "succeeds", json!({}))["spec"]});
    let cron = json!({"metadata": {"namespace": "default", "name": "tick"}, "spec": {
        "schedule": "@every 1s", "jobTemplate": jobs}});
    let _made: CronJob = cluster.create(cron).await;
    let wanted = [
        ("CronJob", "cronjob-controller"),
        ("DaemonSet", "daemonset-controller"),
        ("Deployment", "deployment-controller"),
        ("Job", "job-controller"),
        ("ReplicaSet", "replicaset-controller"),
        ("ReplicationController", "replication-controller"),
        ("StatefulSet", "statefulset-controller"),
    ];
    let wanted: BTreeSet<_> = wanted
        .map(|(kind, from)| (kind.to_owned(), from.to_owned()))
        .into();
    eventually("an event of every controller", || async {
        let params = ListParams::default();
        let list = cluster.admin.list::<Event>(Some("default"), &params).await;
        let events = list.unwrap().items.into_iter();
        let found: BTreeSet<_> = events
            .filter_map(|event| {
                let from = event.source?.component?;
                assert_eq!(event.reporting_component.as_ref(), Some(&from));
                Some((event.involved_object.kind?, from))
            })
            .filter(|(kind, _)| kind != "Node" && kind != "Pod")
            .collect();
        if found == wanted {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}
