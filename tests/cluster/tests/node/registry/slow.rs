//! A registry that never answers, and the pods that have images of it.

use super::upstream::{Body, Reply, Upstream};
use crate::cluster::{Cluster, shell};
use crate::site::{Site, eventually};
use agent_images::Registry;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_keeps_no_other_container_of_the_pod_waiting() {
    let silent = Upstream::plain(|_| Reply {
        body: Body::Silence,
        ..Reply::status(200)
    })
    .await;
    let mut site = Site::new();
    site.others = vec![Registry {
        host: "silent.example".to_owned(),
        mirrors: vec![silent.url()],
        mirrors_only: true,
        insecure: true,
        ..Registry::default()
    }];
    let cluster = Cluster::at(site).await;
    let stuck =
        |name: &str| json!({"name": name, "image": "silent.example/app:1", "command": ["app"]});
    let spec = json!({"containers": [shell("exit 1"), stuck("second"), stuck("third")], "terminationGracePeriodSeconds": 1});
    cluster.create("p", spec).await;

    // The first container is started again while the second one's image is on its way, and the
    // third one waits its turn.
    let status = cluster
        .reaches("p", "/containerStatuses/0/restartCount", json!(1))
        .await;
    for waits in [1, 2] {
        let waiting = &status["containerStatuses"][waits]["state"]["waiting"];
        assert_eq!(waiting["reason"], "ContainerCreating", "{status}");
    }
    assert_eq!(silent.seen().len(), 1, "one fetch");

    cluster.delete("p", 1).await;
    eventually("the pod to be gone, and its fetch with it", || async {
        cluster.pod("p").await.is_none().then_some(())
    })
    .await;
}
