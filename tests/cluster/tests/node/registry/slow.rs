//! Registries that are slow or never answer, and the pods that have images of them.

use super::private::image_with;
use super::upstream::{Body, Reply, Upstream, serves};
use crate::cluster::{Cluster, shell};
use crate::site::{Site, eventually};
use agent_images::Registry;
use config_kube::k8s_openapi::api::core::v1::Event;
use master_client::ListParams;
use serde_json::json;
use tests_harness::oci::Entry;
use tokio::sync::watch;

/// A registry of this name, which is at its mirror alone.
fn mirrored(host: &str, upstream: &Upstream) -> Registry {
    Registry {
        host: host.to_owned(),
        mirrors: vec![upstream.url()],
        mirrors_only: true,
        insecure: true,
        ..Registry::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_keeps_no_other_container_of_the_pod_waiting() {
    let silent = Upstream::plain(|_| Reply {
        body: Body::Silence,
        ..Reply::status(200)
    })
    .await;
    let mut site = Site::new();
    site.others = vec![mirrored("silent.example", &silent)];
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

/// What a pod's events of a reason say.
async fn messages(cluster: &Cluster, reason: &str) -> Vec<String> {
    let params = ListParams::default();
    let events = cluster.admin.list::<Event>(Some("default"), &params).await;
    let events = events.unwrap().items.into_iter();
    let of_it = events.filter(|event| event.reason.as_deref() == Some(reason));
    of_it.filter_map(|event| event.message).collect()
}

/// The bytes of a size as events write it.
fn bytes(size: &str) -> f64 {
    let (number, unit) = size.split_once(' ').unwrap();
    let unit = ["B", "KiB", "MiB"].iter().position(|one| *one == unit);
    number.parse::<f64>().unwrap() * f64::powi(1024.0, i32::try_from(unit.unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_a_long_pull_by_its_bytes_and_layers() {
    // A layer that the engine has, as that of its other images, would not be fetched.
    let image = image_with(&[Entry::Folder("of-the-slow-registry")]);
    let (gate, held) = watch::channel(false);
    let [_, (_, config), layer] = image.blobs();
    let (came, whole) = (
        config.len() + layer.1.len() / 2,
        config.len() + layer.1.len(),
    );
    let slow = Upstream::plain(move |seen| {
        if seen.target.ends_with(&layer.0) {
            let body = Body::Held(layer.1.clone(), held.clone());
            return Reply {
                body,
                ..Reply::status(200)
            };
        }
        serves(&image, seen)
    })
    .await;
    let mut site = Site::new();
    site.others = vec![mirrored("slow.example", &slow)];
    let cluster = Cluster::at(site).await;
    let main = json!({"name": "main", "image": "slow.example/app:1", "command": ["sleep", "1000"]});
    cluster.create("p", json!({"containers": [main]})).await;

    let begins = "Pulling image \"slow.example/app:1\": ";
    let far = eventually("the event of a pull that takes long", || async {
        let all = messages(&cluster, "Pulling").await.into_iter();
        let mut far = all.filter_map(|one| Some(one.strip_prefix(begins)?.to_owned()));
        far.next()
    })
    .await;
    let (fetched, rest) = far.split_once(" of ").unwrap();
    let (all, rest) = rest.split_once(" after ").unwrap();
    for (shown, real) in [(fetched, came), (all, whole)] {
        let off = bytes(shown) - f64::from(u32::try_from(real).unwrap());
        assert!(off.abs() <= bytes("0.1 MiB"), "{real} bytes: {far}");
    }
    assert!(rest.ends_with("s, 0 of 1 layers fetched"), "{far}");

    gate.send(true).unwrap();
    cluster.reaches("p", "/phase", json!("Running")).await;
    let pulled = eventually("the end of the pull", || async {
        messages(&cluster, "Pulled").await.pop()
    });
    assert!(pulled.await.starts_with("Successfully pulled image"));
}
