//! What pods see of config maps and secrets while these change.

use crate::cluster::{Cluster, shell};
use crate::site::{eventually, texts};
use config_kube::k8s_openapi::api::core::v1::Pod;
use http::Method;
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
