//! What pods see of config maps and secrets while these change.

use crate::cluster::{Cluster, shell};
use crate::lifecycle::wait_for_event;
use crate::site::{eventually, texts};
use config_kube::k8s_openapi::api::core::v1::{Event, Pod};
use http::Method;
use master_client::ListParams;
use serde_json::{Value, json};

fn map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": text}})
}

/// A pod that prints the files of a config map, of a secret, and of a config map that may be
/// missing.
async fn printing(cluster: &Cluster) -> Pod {
    let folder = "/api/v1/namespaces/default";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hidden"}});
    for (resource, object) in [("configmaps", map("m", "one")), ("secrets", secret)] {
        let path = format!("{folder}/{resource}");
        cluster.ask(Method::POST, &path, &object).await;
    }
    let mut main =
        shell("while :; do echo $(cat /map/k) $(cat /secret/k) $(cat /later/k); sleep 0.1; done");
    main["volumeMounts"] = json!(
        ["map", "secret", "later"]
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
    );
    let volumes = json!([
        {"name": "map", "configMap": {"name": "m"}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "later", "configMap": {"name": "l", "optional": true}},
    ]);
    let spec =
        json!({"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": volumes});
    cluster.create("prints", spec).await;
    cluster.reaches("prints", "/phase", json!("Running")).await;
    cluster.pod("prints").await.unwrap()
}

async fn prints(cluster: &Cluster, pod: &Pod, wanted: &str) {
    eventually(wanted, || async {
        let log = cluster.log(pod, 0);
        (texts(&log).last() == Some(&wanted)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_reaches_the_volumes_that_show_it_by_a_watch() {
    let mut cluster = Cluster::new().await;
    let pod = printing(&cluster).await;
    prints(&cluster, &pod, "one hidden").await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let path = format!("{maps}/m");
    for word in ["first", "second", "third", "two"] {
        cluster.ask(Method::PUT, &path, &map("m", word)).await;
        prints(&cluster, &pod, &format!("{word} hidden")).await;
    }
    cluster.ask(Method::POST, maps, &map("l", "late")).await;
    prints(&cluster, &pod, "two hidden late").await;
    let later = format!("{maps}/l");
    cluster.ask(Method::DELETE, &later, &Value::Null).await;
    prints(&cluster, &pod, "two hidden").await;
    let asked = cluster.asked.lock().unwrap().clone();
    for object in ["configmaps/m", "secrets/s", "configmaps/l"] {
        let times = asked.iter().filter(|path| path.ends_with(object)).count();
        // At the start, and once more where the pod is looked at before its watch has begun.
        assert!(times <= 2, "{object} is asked for {times} times");
    }

    // What changes while no agent runs shows under the next one.
    cluster.end().await;
    cluster.ask(Method::PUT, &path, &map("m", "three")).await;
    cluster.begin();
    prints(&cluster, &pod, "three hidden").await;
    cluster.ask(Method::PUT, &path, &map("m", "four")).await;
    prints(&cluster, &pod, "four hidden").await;
}

/// The reasons of the events about a pod, in the order in which they were written.
async fn reasons(cluster: &Cluster, pod: &str) -> Vec<String> {
    let all = cluster
        .admin
        .list::<Event>(Some("default"), &ListParams::default())
        .await;
    let about = |event: &Event| event.involved_object.name.as_deref() == Some(pod);
    let mut all: Vec<_> = all.unwrap().items.into_iter().filter(about).collect();
    let version = |event: &Event| event.metadata.name.clone();
    all.sort_by_key(version);
    all.into_iter().filter_map(|event| event.reason).collect()
}

fn condition<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["conditions"].as_array().unwrap();
    let found = all.iter().find(|one| one["type"] == name);
    &found.unwrap()["status"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_to_be_created_until_what_its_volumes_show_is_there() {
    let cluster = Cluster::new().await;
    let mut main = shell("echo $(cat /files/k); exec sleep 100000");
    main["volumeMounts"] = json!([{"name": "files", "mountPath": "/files"}]);
    let volume = json!({"name": "files", "configMap": {"name": "late"}});
    let spec = json!({"containers": [main], "volumes": [volume]});
    cluster.create("plain", spec.clone()).await;
    let mut prepared = spec;
    let mut init = shell("true");
    init["name"] = json!("init");
    prepared["initContainers"] = json!([init]);
    cluster.create("prepared", prepared).await;

    let words = "MountVolume.SetUp failed for volume \"files\" : configmap \"late\" not found";
    for (pod, reason) in [
        ("plain", "ContainerCreating"),
        ("prepared", "PodInitializing"),
    ] {
        eventually("the mount to fail", || async {
            let reasons = reasons(&cluster, pod).await;
            reasons.iter().any(|one| one == "FailedMount").then_some(())
        })
        .await;
        let wanted = json!({"reason": reason});
        let waits = "/containerStatuses/0/state/waiting";
        let status = cluster.reaches(pod, waits, wanted).await;
        assert_eq!(status["phase"], "Pending", "{status}");
        assert_eq!(condition(&status, "PodReadyToStartContainers"), "False");
        assert_eq!(condition(&status, "PodScheduled"), "True");
    }
    wait_for_event(&cluster, "FailedMount", words).await;

    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.ask(Method::POST, maps, &map("late", "there")).await;
    let ready = "/containerStatuses/0/ready";
    let status = cluster.reaches("plain", ready, json!(true)).await;
    assert_eq!(condition(&status, "PodReadyToStartContainers"), "True");
    cluster.reaches("prepared", ready, json!(true)).await;
    prints(&cluster, &cluster.pod("plain").await.unwrap(), "there").await;
    // Nothing but the mount failed, and no image was looked for before it.
    let found = eventually("the last event", || async {
        let mut reasons = reasons(&cluster, "plain").await;
        // The other pod may have fetched it.
        reasons.retain(|reason| reason != "Pulling");
        reasons.contains(&"Started".to_owned()).then_some(reasons)
    })
    .await;
    assert_eq!(found, ["FailedMount", "Pulled", "Created", "Started"]);
}
