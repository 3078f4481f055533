//! Nodes that fall silent.

use super::{Cluster, GRACE, cluster, eventually};
use config_kube::k8s_openapi::api::core::v1::{Event, Pod};
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, UNREACHABLE};
use master_client::ListParams;
use std::time::{Duration, Instant};

/// Attempts, as the host may stall for seconds.
const TRIES: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_becomes_not_ready_and_comes_back() {
    for _ in 0..TRIES {
        if falls_silent().await {
            return;
        }
    }
    panic!("in each try the machine stood still for {:?}", GRACE / 2);
}

/// The test; false if the host stalled, so that nothing was learned.
async fn falls_silent() -> bool {
    let cluster = cluster().await;
    cluster.node("silent").await;
    cluster.node("good").await;
    cluster.renew("good").await;
    cluster.heard.lock().expect("nobody panics").1 = Duration::ZERO;
    cluster.running_pod("patient", "silent", 300).await;
    cluster.running_pod("impatient", "silent", 0).await;
    // Both renew for longer than the grace period: nothing happens. Then one falls silent.
    let speaks = Instant::now() + GRACE * 3 / 2;
    let mut last = Instant::now();
    while Instant::now() < speaks {
        cluster.renew("good").await;
        // Before the renewal: the controllers can't have seen it earlier.
        last = Instant::now();
        cluster.renew("silent").await;
        let state = cluster.state("silent").await.0;
        if cluster.stood_still() {
            return false;
        }
        assert_eq!(state, "True");
        tokio::time::sleep(GRACE / 10).await;
    }
    eventually("the silent node is Unknown", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.state("silent").await == ("Unknown".to_owned(), "NodeStatusUnknown".to_owned())
        })
    })
    .await;
    assert!(last.elapsed() >= GRACE / 2, "not before its time");
    let state = cluster.state("good").await.0;
    if cluster.stood_still() {
        return false;
    }
    assert_eq!(state, "True");
    a_silence_has_its_consequences(&cluster).await;
    true
}

/// Taints, an eviction, a pod that is not ready, an event; and recovery when the node reports
/// again.
async fn a_silence_has_its_consequences(cluster: &Cluster) {
    for effect in [NO_SCHEDULE, NO_EXECUTE] {
        eventually("it is tainted", || {
            Box::pin(async {
                cluster.renew("good").await;
                cluster
                    .taints("silent")
                    .await
                    .contains(&(UNREACHABLE.to_owned(), effect.to_owned()))
            })
        })
        .await;
    }
    eventually("the pod without patience is being deleted", || {
        Box::pin(async {
            cluster.renew("good").await;
            let pod = cluster
                .admin
                .get_opt::<Pod>(Some("default"), "impatient")
                .await
                .expect("pods are served");
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        })
    })
    .await;
    eventually("the other is not known to be ready", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.pod_ready("patient").await == ("False".to_owned(), "NodeNotReady".to_owned())
        })
    })
    .await;
    eventually("the event", || {
        Box::pin(async {
            cluster.renew("good").await;
            let events = cluster
                .admin
                .list::<Event>(None, &ListParams::default())
                .await
                .expect("events are served");
            let reported = |severity: &str, kind: &str, message: Option<&str>| {
                events.items.iter().any(|event| {
                    event.reason.as_deref() == Some("NodeNotReady")
                        && event.type_.as_deref() == Some(severity)
                        && event.involved_object.kind.as_deref() == Some(kind)
                        && message.is_none_or(|text| event.message.as_deref() == Some(text))
                })
            };
            reported("Normal", "Node", None)
                && reported("Warning", "Pod", Some("Node is not ready"))
        })
    })
    .await;
    eventually("it comes back", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.renew("silent").await;
            cluster.ready("silent").await;
            cluster.taints("silent").await.is_empty() && cluster.state("silent").await.0 == "True"
        })
    })
    .await;
    let patient: Pod = cluster
        .admin
        .get(Some("default"), "patient")
        .await
        .expect("it outlived the silence");
    assert!(patient.metadata.deletion_timestamp.is_none());
}
