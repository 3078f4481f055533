//! Static pods: the machine's own configuration has them run, and the master shows mirrors.

use crate::cluster::{Cluster, NODE, shell};
use crate::site::{IMAGE, eventually};
use crate::tunnels::Site;
use agent_runtime::{ContainerState, Runtime};
use config_kube::k8s_openapi::api::core::v1::Pod;
use http::Method;
use serde_json::{Value, json};

const NAME: &str = "exporter-worker-1";

fn manifest(word: &str) -> String {
    let command = format!("echo {word}; trap 'exit 0' TERM; while :; do busybox sleep 0.1; done");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "exporter", "labels": {"app": "exporter"}},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", command]}],
        },
    })
    .to_string()
}

/// An admin's binding: nodes may show their static pods.
async fn allow(cluster: &Cluster) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "static-pods"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:pratique:static-pods"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    cluster.ask(Method::POST, path, &binding).await;
}

/// The ids of containers of static pods that run.
async fn running(cluster: &Cluster) -> Vec<String> {
    let seen = cluster.site.agent().list(None).await.unwrap();
    let runs = seen
        .iter()
        .filter(|seen| matches!(seen.state, ContainerState::Running { .. }));
    runs.map(|seen| seen.id.clone()).collect()
}

/// The UID of the pod that the master has under the name.
fn uid(pod: &Pod) -> Option<String> {
    pod.metadata.uid.clone()
}

#[tokio::test]
async fn a_static_pod_runs_without_its_mirror_and_the_mirror_decides_nothing() {
    let first = manifest("one");
    let mut cluster = Cluster::new().await.with_static_pods(&[&first]).await;
    // No role allows the node to create the mirror: the static pod runs without it.
    let ids = eventually("a running container", || async {
        Some(running(&cluster).await).filter(|ids| ids.len() == 1)
    })
    .await;
    assert!(cluster.pod(NAME).await.is_none(), "a mirror nobody allowed");

    allow(&cluster).await;
    // The node tries again by itself; another start only makes the test short.
    cluster.end().await;
    cluster.begin();
    let status = cluster.reaches(NAME, "/phase", json!("Running")).await;
    assert_eq!(running(&cluster).await, ids, "the same container");
    assert_eq!(
        status["containerStatuses"][0]["containerID"],
        json!(format!("containerd://{}", ids[0]))
    );
    let mirror = cluster.pod(NAME).await.unwrap();
    let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Node", NODE));

    // A user deletes the mirror: another one shows the same container.
    cluster.delete(NAME, 30).await;
    eventually("another mirror with the pod's status", || async {
        let other = cluster
            .pod(NAME)
            .await
            .filter(|pod| uid(pod) != uid(&mirror))?;
        let phase = other.status?.phase?;
        (phase == "Running").then_some(())
    })
    .await;
    assert_eq!(running(&cluster).await, ids, "the same container");

    // Another manifest after a boot: another pod, and only that.
    let second = manifest("two");
    let cluster = cluster.with_static_pods(&[&second]).await;
    eventually("the new pod alone", || async {
        let now = running(&cluster).await;
        (now.len() == 1 && now != ids).then_some(())
    })
    .await;
    let shown = config_static_pods::read(&second, NODE).unwrap();
    eventually("its mirror", || async {
        let mirror = cluster.pod(NAME).await?;
        let annotations = mirror.metadata.annotations?;
        (annotations.get(config_static_pods::MIRROR) == shown.metadata.uid.as_ref()).then_some(())
    })
    .await;

    // And none.
    let cluster = cluster.with_static_pods(&[]).await;
    eventually("nothing left", || async {
        let empty = running(&cluster).await.is_empty() && cluster.pod(NAME).await.is_none();
        empty.then_some(())
    })
    .await;
}

/// A user who may create pods gives one the static pod's name, to reach the static pod's container
/// through it.
#[tokio::test]
async fn a_pod_with_the_name_of_a_static_pod_does_not_run_and_leads_to_nothing() {
    let cluster = Cluster::new().await;
    let cluster = cluster
        .with_static_pods(&[&manifest("of-the-machine")])
        .await;
    eventually("a running container", || async {
        Some(running(&cluster).await).filter(|ids| ids.len() == 1)
    })
    .await;
    let spec = json!({"containers": [shell("while :; do busybox sleep 0.1; done")]});
    cluster.create(NAME, spec).await;
    let status = cluster.reaches(NAME, "/phase", json!("Failed")).await;
    assert_eq!(status["reason"], json!("NameOfStaticPod"), "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("default/exporter-worker-1"), "{message}");
    assert_eq!(running(&cluster).await.len(), 1, "the static pod alone");

    let site = Site::over(cluster).await;
    let tries: [&[&str]; 3] = [
        &["logs", NAME],
        &["exec", NAME, "--", "/bin/sh", "-c", "echo of-the-machine"],
        &[
            "get",
            "--raw",
            "/api/v1/namespaces/default/pods/exporter-worker-1/log",
        ],
    ];
    for words in tries {
        let (code, out, why) = site.run(words, None).await;
        let out = String::from_utf8_lossy(&out);
        assert!(!out.contains("of-the-machine"), "{words:?}: {out}");
        assert_ne!(code, 0, "{words:?}: {out} {why}");
    }

    // The way that an admin gives: the mirror, once the name is free.
    allow(&site.cluster).await;
    site.cluster.delete(NAME, 0).await;
    site.cluster.reaches(NAME, "/phase", json!("Running")).await;
    let (code, out, why) = site.run(&["logs", NAME], None).await;
    assert_eq!(code, 0, "{why}");
    assert_eq!(String::from_utf8_lossy(&out), "of-the-machine\n");
}

/// What a node could do with the right to make pods, if mirrors were not looked at.
#[tokio::test]
async fn with_the_right_to_show_static_pods_a_node_makes_nothing_else() {
    let cluster = Cluster::new().await;
    allow(&cluster).await;
    let good = config_static_pods::read(&manifest("one"), NODE).unwrap();
    let node: config_kube::k8s_openapi::api::core::v1::Node =
        cluster.admin.get(None, NODE).await.unwrap();
    let node_uid = node.metadata.uid.unwrap();
    let mirror = config_static_pods::mirror_of(&good, NODE, &node_uid);
    let mirror = serde_json::to_value(mirror).unwrap();
    let spoil = |change: &dyn Fn(&mut Value)| {
        let mut pod = mirror.clone();
        pod["metadata"]["name"] = json!("other-worker-1");
        change(&mut pod);
        pod
    };
    let attacks = [
        spoil(&|pod| pod["metadata"]["annotations"] = json!({})),
        spoil(&|pod| pod["spec"]["nodeName"] = json!("worker-2")),
        spoil(&|pod| pod["metadata"]["ownerReferences"] = json!([])),
        spoil(&|pod| pod["spec"]["serviceAccountName"] = json!("default")),
        spoil(&|pod| {
            pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
        }),
        spoil(&|pod| {
            pod["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "s"}}]);
        }),
    ];
    for attack in attacks {
        let answer = cluster
            .as_node(Method::POST, "/api/v1/namespaces/default/pods", &attack)
            .await;
        assert_eq!(answer, Err(403), "{attack}");
    }
    let control = spoil(&|_| {});
    let answer = cluster
        .as_node(Method::POST, "/api/v1/namespaces/default/pods", &control)
        .await;
    assert_eq!(answer, Ok(()), "the negative control");
}
