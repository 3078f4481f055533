//! Sizes and rates of what a node writes about itself, its pods and their claims: with a stolen
//! certificate, nobody fills the master's memory or the links to all other nodes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::authorization::{Caller, PODS, cluster, node};
use crate::common::Local;
use crate::taken_nodes::{
    CLAIMS, EVENTS, about_node, claims, cluster_with_clock, made, node_event,
};
use http::{Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const OWN: &str = "/api/v1/nodes/n1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

/// A status with a condition of this many KiB.
fn condition(kib: usize) -> Value {
    json!({"status": {"conditions": [{"type": "Told", "status": "True", "message": "m".repeat(kib << 10)}]}})
}

/// A status with a message of this many KiB.
fn message(kib: usize) -> Value {
    json!({"status": {"message": "m".repeat(kib << 10)}})
}

/// An annotation of this many KiB.
fn annotation(kib: usize) -> Value {
    json!({"metadata": {"annotations": {"a": "b".repeat(kib << 10)}}})
}

/// How many of these writes are done; the others come too soon.
async fn done(server: &Local, user: &UserInfo, method: Method, path: &str, all: &[Value]) -> usize {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut done = 0;
    for body in all {
        let headers = [("content-type", kind)];
        let sent = server.send(user, method.clone(), path, &headers, body.to_string());
        let (status, headers, answer) = sent.await;
        if status == StatusCode::TOO_MANY_REQUESTS {
            assert!(headers.contains_key("retry-after"));
            let text = String::from_utf8_lossy(&answer);
            assert!(text.contains("inspect the machine or retire it"), "{text}");
        } else {
            assert!(status.is_success(), "{path}: {answer:?}");
            done += 1;
        }
    }
    done
}

#[tokio::test]
async fn what_a_node_says_of_itself_its_pods_and_their_claims_has_a_size() {
    let server = cluster().await;
    claims(&server).await;
    let own = Caller::new(&server, node("n1"));
    let named = json!({"metadata": {"name": "n1"}});
    own.posts(LEASES, &named, 201).await;
    let csi_node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": []}});
    own.posts(CSI_NODES, &csi_node, 201).await;
    let own_status = format!("{OWN}/status");
    let pod_status = format!("{PODS}/on-n1/status");
    for (path, fits, large) in [
        (own_status.clone(), condition(180), condition(200)),
        // Beside that status.
        (OWN.to_owned(), annotation(10), annotation(100)),
        // By itself.
        (own_status.clone(), annotation(150), annotation(200)),
        (pod_status.clone(), message(150), message(210)),
        (
            format!("{CLAIMS}/of-n1/status"),
            condition(50),
            condition(70),
        ),
        (format!("{LEASES}/n1"), annotation(10), annotation(20)),
        (format!("{CSI_NODES}/n1"), annotation(50), annotation(70)),
    ] {
        let sent = server.ask(&own.user, Method::PATCH, &path, &large);
        let (code, answer) = sent.await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{path}");
        let text = answer["message"].as_str().unwrap();
        assert!(text.contains("bytes, and may with"), "{text}");
        own.patches(&path, &fits, 200).await;
        // The second one is no larger than what was there.
        own.patches(&path, &large, 403).await;
        own.patches(&path, &fits, 200).await;
    }
    // What another writer made large, the node makes smaller.
    let (code, answer) = server
        .admin_ask(Method::PATCH, &pod_status, &message(400))
        .await;
    assert_eq!(code, StatusCode::OK, "{answer}");
    own.patches(&pod_status, &message(401), 403).await;
    own.patches(&pod_status, &message(300), 200).await;
    own.patches(&pod_status, &message(1), 200).await;
    // What others say of a node keeps it from no report, and it adds nothing to that.
    let sent = server.admin_ask(Method::PATCH, OWN, &annotation(240)).await;
    assert_eq!(sent.0, StatusCode::OK, "{}", sent.1);
    own.patches(&own_status, &condition(185), 200).await;
    own.patches(&own_status, &annotation(241), 403).await;
    own.patches(&own_status, &annotation(200), 200).await;
    // A pod of many containers has more to say.
    let containers: Vec<_> = (0..20)
        .map(|n| json!({"name": format!("c{n}"), "image": "x:1"}))
        .collect();
    let many =
        json!({"metadata": {"name": "many"}, "spec": {"nodeName": "n1", "containers": containers}});
    made(&server, PODS, &many).await;
    let status = format!("{PODS}/many/status");
    own.patches(&status, &message(300), 200).await;
    own.patches(&status, &message(400), 403).await;
}

#[tokio::test]
async fn what_a_node_says_of_itself_and_its_pods_comes_at_a_rate() {
    let (server, seconds) = cluster_with_clock().await;
    let user = node("n1");
    let texts = |count: usize| -> Vec<_> {
        (0..count)
            .map(|n| json!({"status": {"message": n.to_string(), "phase": "Running"}}))
            .collect()
    };
    let phases = vec![json!({"status": {"phase": "Running"}}); 22];
    let own_status = format!("{OWN}/status");
    let said = async || done(&server, &user, Method::PATCH, &own_status, &phases).await;
    assert_eq!(said().await, 20);
    // A node that is not ready looks twice a second whether it is.
    seconds.fetch_add(1, Ordering::Relaxed);
    assert_eq!(said().await, 2);
    // Each pod by itself: all may start at once.
    let neighbour = json!({"metadata": {"name": "neighbour"}, "spec": {"nodeName": "n1",
        "containers": [{"name": "c", "image": "x:1"}]}});
    made(&server, PODS, &neighbour).await;
    let of_pod = async |pod: &str, count: usize| {
        let path = format!("{PODS}/{pod}/status");
        done(&server, &user, Method::PATCH, &path, &texts(count)).await
    };
    assert_eq!(of_pod("on-n1", 205).await, 200);
    assert_eq!(of_pod("neighbour", 50).await, 50);
    seconds.fetch_add(1, Ordering::Relaxed);
    assert_eq!(of_pod("on-n1", 3).await, 1);
    // The lease, as often as it is renewed, and more; another node is not concerned.
    let renewed = vec![json!({"spec": {"holderIdentity": "n1"}}); 25];
    let lease = [json!({"metadata": {"name": "n1"}})];
    assert_eq!(done(&server, &user, Method::POST, LEASES, &lease).await, 1);
    let path = format!("{LEASES}/n1");
    assert_eq!(
        done(&server, &user, Method::PATCH, &path, &renewed).await,
        19
    );
    Caller::new(&server, node("n2"))
        .patches(
            "/api/v1/nodes/n2/status",
            &json!({"status": {"phase": "Running"}}),
            200,
        )
        .await;
}

/// At the rate of small events, large ones would be a gigabyte before the first of them is removed.
#[tokio::test]
async fn events_of_a_node_have_a_rate_of_bytes() {
    let (server, seconds) = cluster_with_clock().await;
    let user = node("n1");
    let mut event = node_event("n1", &about_node("n1"));
    let small = vec![event.clone(); 20];
    event["message"] = "m".repeat(7000).into();
    let many = vec![event; 100];
    let posted = async |all: &[Value]| done(&server, &user, Method::POST, EVENTS, all).await;
    assert_eq!(posted(&many).await, 100);
    // After this time as many events might come as at first, but not as many bytes.
    seconds.fetch_add(10, Ordering::Relaxed);
    let second = posted(&many).await;
    assert!((30..60).contains(&second), "{second}");
    seconds.fetch_add(1, Ordering::Relaxed);
    let third = posted(&many).await;
    assert!(third <= 1, "{third}");
    // Those that an agent writes have their 4 KiB a second.
    seconds.fetch_add(10, Ordering::Relaxed);
    assert_eq!(posted(&small).await, 20);
}

/// The managers of fields that it would name have no limit of their own.
#[tokio::test]
async fn a_node_applies_no_configuration() {
    let server = cluster().await;
    let path = format!("{OWN}/status?fieldManager=a&force=true");
    let config = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"phase": "Running"}});
    for (user, code) in [(node("n1"), 403), (UserInfo::admin("a"), 200)] {
        let headers = [("content-type", "application/apply-patch+yaml")];
        let sent = server.send(&user, Method::PATCH, &path, &headers, config.to_string());
        let (status, _, answer) = sent.await;
        assert_eq!(status.as_u16(), code, "{answer:?}");
    }
}
