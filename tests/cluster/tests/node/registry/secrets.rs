//! imagePullSecrets from the API to a TLS registry with a password: what users see of their pods.

use super::pem;
use super::private::{basic, image, known};
use super::upstream::{Authority, Upstream};
use crate::cluster::Cluster;
use crate::site::{Site, eventually};
use agent_images::{DOCKER_HUB, Registries};
use config_kube::k8s_openapi::api::core::v1::{Event, Secret, ServiceAccount};
use master_client::ListParams;
use serde_json::{Value, json};
use std::path::Path;

/// The password as it is in documents, and in base64 in `auth` and a header.
const WORDS: [&str; 2] = ["hunter2", "cHVsbGVyOmh1bnRlcjI"];

/// A cluster whose only registry knows `puller`, and the image's name there.
async fn cluster() -> (Cluster, Upstream, String) {
    let (authority, image) = (Authority::new(), image());
    let registry = Upstream::tls(&authority, move |seen| basic(&image, seen)).await;
    let mut site = Site::new();
    site.registries = Some(Registries::new(
        vec![known(&registry)],
        DOCKER_HUB,
        pem(&authority),
    ));
    let name = format!("{}/team/app:1", registry.host());
    (Cluster::at(site).await, registry, name)
}

async fn secret(cluster: &Cluster, name: &str, host: &str, password: &str) {
    let document =
        json!({"auths": {host: {"username": "puller", "password": password}}}).to_string();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": document},
    }))
    .unwrap();
    cluster.admin.create(&secret).await.unwrap();
}

fn spec(image: &str, policy: &str, secrets: &[&str]) -> Value {
    let main = json!({"name": "main", "image": image, "imagePullPolicy": policy, "command": ["/bin/sh", "-c", "sleep 600"]});
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({"containers": [main], "imagePullSecrets": secrets})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pull_secrets_of_a_pod_or_of_its_account_fetch_its_image_and_no_other_pods() {
    let (cluster, registry, image) = cluster().await;
    secret(&cluster, "pull", &registry.host(), "hunter2").await;
    secret(&cluster, "wrong", &registry.host(), "guess").await;
    let account: ServiceAccount = serde_json::from_value(
        json!({"metadata": {"name": "puller", "namespace": "default"}, "imagePullSecrets": [{"name": "pull"}]}),
    )
    .unwrap();
    cluster.admin.create(&account).await.unwrap();

    cluster
        .create("named", spec(&image, "IfNotPresent", &["pull"]))
        .await;
    cluster.reaches("named", "/phase", json!("Running")).await;
    let mut by_account = spec(&image, "Always", &[]);
    by_account["serviceAccountName"] = json!("puller");
    cluster.create("account", by_account).await;
    cluster.reaches("account", "/phase", json!("Running")).await;

    let waiting = "/containerStatuses/0/state/waiting/reason";
    for (pod, secrets) in [
        ("none", &[][..]),
        ("wrong", &["wrong"]),
        ("absent", &["absent"]),
    ] {
        cluster
            .create(pod, spec(&image, "IfNotPresent", secrets))
            .await;
        let status = cluster
            .reaches(pod, waiting, json!("ImagePullBackOff"))
            .await;
        let message = status["containerStatuses"][0]["state"]["waiting"]["message"]
            .as_str()
            .unwrap();
        assert!(
            message.contains("ErrImagePull")
                && (message.contains("unauthorized") || message.contains("401")),
            "{message}"
        );
    }
    cluster.create("never", spec(&image, "Never", &[])).await;
    cluster
        .reaches("never", waiting, json!("ErrImageNeverPull"))
        .await;

    let events = || async {
        cluster
            .admin
            .list::<Event>(Some("default"), &ListParams::default())
            .await
            .unwrap()
            .items
    };
    let event = eventually("the event of the absent secret", || async {
        let missing =
            |event: &Event| event.reason.as_deref() == Some("FailedToRetrieveImagePullSecret");
        events()
            .await
            .into_iter()
            .find(missing)
            .and_then(|event| event.message)
    });
    assert!(event.await.contains("(absent)"));
    let all = serde_json::to_string(&events().await).unwrap();
    assert!(
        WORDS.iter().all(|word| !all.contains(word)),
        "an event tells the password"
    );
    for folder in ["engine", "kubelet", "pods", "io"] {
        nothing_of_it(&cluster.site.dir.path().join(folder));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_pull_secret_for_a_registry_is_tried_and_one_that_was_mended_is_read_again() {
    let (cluster, registry, image) = cluster().await;
    for (name, password) in [("wrong", "guess"), ("other", "guess"), ("pull", "hunter2")] {
        secret(&cluster, name, &registry.host(), password).await;
    }
    for (pod, secrets) in [("first", ["pull", "wrong"]), ("last", ["wrong", "pull"])] {
        cluster.create(pod, spec(&image, "Always", &secrets)).await;
        cluster.reaches(pod, "/phase", json!("Running")).await;
    }
    cluster
        .create("neither", spec(&image, "Always", &["wrong", "other"]))
        .await;
    let waiting = "/containerStatuses/0/state/waiting/reason";
    cluster
        .reaches("neither", waiting, json!("ImagePullBackOff"))
        .await;
    let document =
        json!({"auths": {registry.host(): {"username": "puller", "password": "hunter2"}}});
    let mended = json!({"stringData": {".dockerconfigjson": document.to_string()}});
    let path = "/api/v1/namespaces/default/secrets/other";
    cluster.patch(path, &mended).await;
    cluster.reaches("neither", "/phase", json!("Running")).await;
}

/// No file below holds the password, in any form. Root file systems come from images, and are
/// skipped.
fn nothing_of_it(path: &Path) {
    let Ok(meta) = path.symlink_metadata() else {
        return;
    };
    if meta.is_dir() {
        let entries = std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .filter(|entry| entry.file_name() != "snapshots")
            .for_each(|entry| nothing_of_it(&entry.path()));
    } else if meta.is_file() {
        let bytes = std::fs::read(path).unwrap_or_default();
        for word in WORDS {
            assert!(
                !bytes
                    .windows(word.len())
                    .any(|part| part == word.as_bytes()),
                "{} holds it",
                path.display()
            );
        }
    }
}
