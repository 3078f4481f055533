//! The limits of a stolen node certificate: an attacker with it cannot falsify what admins read or
//! policies rely on.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::authorization::{Caller, PODS, cluster, cluster_with, node};
use crate::common::{Local, node_request};
use http::{Method, StatusCode};
use jiff::Timestamp;
use master_api::{Clock, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) const EVENTS: &str = "/api/v1/namespaces/default/events";
const SYSTEM: &str = "/api/v1/namespaces/kube-system/events";
const NEWER: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const MACHINES: &str = "/apis/pratique.dev/v1alpha1/machines";
pub(crate) const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// A cluster whose clock shows these seconds since 1970.
pub(crate) async fn cluster_with_clock() -> (Local, Arc<AtomicI64>) {
    let seconds = Arc::new(AtomicI64::new(1_800_000_000));
    let shown = seconds.clone();
    let clock = Clock::of(move || Timestamp::from_second(shown.load(Ordering::Relaxed)).unwrap());
    let options = Options {
        clock,
        ..Options::default()
    };
    (cluster_with(options).await, seconds)
}

/// An event as the agent writes it.
pub(crate) fn node_event(host: &str, about: &Value) -> Value {
    json!({
        "metadata": {"generateName": "e-"}, "involvedObject": about, "reason": "Tested", "message": "m",
        "source": {"component": "kubelet", "host": host}, "reportingComponent": "kubelet", "reportingInstance": host,
    })
}

/// The same event in the newer version.
fn newer_node_event(host: &str, about: &Value) -> Value {
    json!({
        "metadata": {"generateName": "e-"}, "regarding": about, "reason": "Tested", "note": "m", "action": "Testing",
        "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kubelet",
        "reportingInstance": host,
    })
}

fn about(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "namespace": "default", "name": name})
}

pub(crate) fn about_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": name})
}

pub(crate) async fn made(server: &Local, path: &str, object: &Value) -> Value {
    let (status, answer) = server.admin_ask(Method::POST, path, object).await;
    assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    answer
}

/// Deletes a pod, which is gone then.
async fn gone(server: &Local, pod: &str) {
    let (path, now) = (format!("{PODS}/{pod}"), json!({"gracePeriodSeconds": 0}));
    server.admin_ask(Method::DELETE, &path, &now).await;
    let (status, _) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{pod}");
}

/// A claim that a pod of each node has.
pub(crate) async fn claims(server: &Local) {
    for name in ["n1", "n2"] {
        let claim = json!({"metadata": {"name": format!("of-{name}")}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        made(server, CLAIMS, &claim).await;
        let pod = json!({"metadata": {"name": format!("keeper-{name}")}, "spec": {"nodeName": name,
            "containers": [{"name": "c", "image": "x:1"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": format!("of-{name}")}}]}});
        made(server, PODS, &pod).await;
    }
}

#[tokio::test]
async fn a_node_tells_of_itself_its_pods_and_their_claims_in_its_own_name() {
    let server = cluster().await;
    claims(&server).await;
    let own = Caller::new(&server, node("n1"));
    let claim = |name: &str| about("PersistentVolumeClaim", name);
    let gone = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "went", "uid": "a"});
    let replaced = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "on-n2", "uid": "before"});
    for mine in [about("Pod", "on-n1"), claim("of-n1"), gone, replaced] {
        own.posts(EVENTS, &node_event("n1", &mine), 201).await;
        own.posts(NEWER, &newer_node_event("n1", &mine), 201).await;
    }
    own.posts(EVENTS, &node_event("n1", &about_node("n1")), 201)
        .await;
    own.posts(NEWER, &newer_node_event("n1", &about_node("n1")), 201)
        .await;
    let machine = |name: &str| json!({"apiVersion": "pratique.dev/v1alpha1", "kind": "Machine", "name": name});
    for others in [
        about("Pod", "on-n2"),
        about("Pod", "went"),
        claim("of-n2"),
        about("Deployment", "d"),
        about_node("n2"),
        machine("n2"),
        machine("n1"),
        json!({"apiVersion": "example.com/v1", "kind": "Node", "name": "n1"}),
    ] {
        own.posts(EVENTS, &node_event("n1", &others), 403).await;
        own.posts(NEWER, &newer_node_event("n1", &others), 403)
            .await;
    }
    // Nor about another's pod beside its own, nor from another namespace.
    let mut beside = newer_node_event("n1", &about("Pod", "on-n1"));
    beside["related"] = about("Pod", "on-n2");
    own.posts(NEWER, &beside, 403).await;
    let elsewhere = NEWER.replace("/default/", "/kube-system/");
    own.posts(
        &elsewhere,
        &newer_node_event("n1", &about("Pod", "on-n1")),
        403,
    )
    .await;
    own.posts(&elsewhere, &newer_node_event("n1", &about_node("n1")), 403)
        .await;
    // Nor in another's name, or in none.
    let mine = about("Pod", "on-n1");
    own.posts(NEWER, &newer_node_event("n2", &mine), 403).await;
    for change in [
        json!({"source": {"component": "kubelet", "host": "n2"}}),
        json!({"reportingInstance": "n2"}),
        json!({"source": null, "reportingInstance": null}),
        json!({"metadata": {"name": "e", "finalizers": ["example.com/stays"]}}),
    ] {
        let mut event = node_event("n1", &mine);
        for (key, value) in change.as_object().unwrap() {
            event[key] = value.clone();
        }
        own.posts(EVENTS, &event, 403).await;
    }
}

/// By an invented UID a node would tell of any pod; late events of a pod whose name another node's
/// has by now are what that is for. An event that it wrote in that hour says nothing new later.
#[tokio::test]
async fn a_node_tells_of_the_predecessor_of_anothers_pod_for_an_hour() {
    let (server, seconds) = cluster_with_clock().await;
    let own = Caller::new(&server, node("n1"));
    let before = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": name, "uid": "before"});
    let names = ["on-n2", "on-n1", "went"];
    for name in names {
        let mut event = node_event("n1", &before(name));
        event["metadata"] = json!({ "name": format!("of-{name}") });
        own.posts(EVENTS, &event, 201).await;
    }
    for (later, others) in [(0, 201), (3599, 201), (1, 403), (3600, 403)] {
        let now = later + seconds.fetch_add(later, Ordering::Relaxed);
        let now = Timestamp::from_second(now).unwrap();
        let (last, micros) = (now.to_string(), format!("{now:.6}"));
        let last = json!({"count": 2, "message": last, "lastTimestamp": last});
        for (name, code) in names.into_iter().zip([others, 201, 201]) {
            let code = if code == 201 { 200 } else { code };
            own.patches(&format!("{EVENTS}/of-{name}"), &last, code)
                .await;
            let newer = json!({"series": {"count": later + 2, "lastObservedTime": micros}});
            own.patches(&format!("{NEWER}/of-{name}"), &newer, code)
                .await;
        }
        // One that is gone, and one whose name its own pod has by now, at any time.
        for (about, code) in [
            (before("on-n2"), others),
            (before("on-n1"), 201),
            (before("went"), 201),
        ] {
            own.posts(EVENTS, &node_event("n1", &about), code).await;
            own.posts(NEWER, &newer_node_event("n1", &about), code)
                .await;
        }
    }
}

#[tokio::test]
async fn a_node_changes_only_events_that_it_reported() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let named = |mut event: Value, name: &str| {
        event["metadata"] = json!({ "name": name });
        event
    };
    let drift = json!({"metadata": {"name": "drift"}, "involvedObject": {"kind": "Machine", "name": "n1"}, "reason": "Drifted",
        "message": "secret words", "source": {"component": "attestation"}});
    made(&server, EVENTS, &drift).await;
    let system = json!({"metadata": {"name": "other"}, "reason": "Any",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "kube-system"}});
    made(&server, SYSTEM, &system).await;
    made(
        &server,
        EVENTS,
        &named(node_event("n2", &about("Pod", "on-n2")), "of-n2"),
    )
    .await;
    own.posts(
        EVENTS,
        &named(node_event("n1", &about("Pod", "on-n1")), "of-n1"),
        201,
    )
    .await;
    let again = json!({"count": 2});
    let taken = node_event("n1", &about("Pod", "on-n1"));
    for path in [
        format!("{EVENTS}/drift"),
        format!("{EVENTS}/of-n2"),
        format!("{NEWER}/drift"),
        format!("{SYSTEM}/other"),
    ] {
        own.patches(&path, &again, 403).await;
        own.patches(&path, &json!({"message": "all is well"}), 403)
            .await;
        own.patches(&path, &taken, 403).await;
        let invalid = json!({"metadata": {"annotations": "none"}});
        let (_, answer) = server.ask(&own.user, Method::PATCH, &path, &invalid).await;
        assert!(!answer.to_string().contains("secret words"), "{answer}");
    }
    for name in ["drift", "of-n2"] {
        let path = format!("{EVENTS}/{name}");
        let event = named(node_event("n1", &about("Pod", "on-n1")), name);
        own.ask(Method::PUT, &path, &event, 403).await;
    }
    let mine = format!("{EVENTS}/of-n1");
    own.patches(&mine, &again, 200).await;
    own.patches(
        &mine,
        &json!({"involvedObject": about("Pod", "on-n2")}),
        403,
    )
    .await;
    own.patches(&mine, &json!({"reportingInstance": "n2"}), 403)
        .await;
    // It counts on after its pod went, and not once another node's has the name.
    gone(&server, "on-n1").await;
    own.patches(&mine, &json!({"count": 3}), 200).await;
    let others = json!({"metadata": {"name": "on-n1"}, "spec": {"nodeName": "n2",
        "containers": [{"name": "c", "image": "x:1"}]}});
    made(&server, PODS, &others).await;
    own.patches(&mine, &json!({"count": 4}), 403).await;
}

#[tokio::test]
async fn a_node_tells_no_more_of_a_claim_whose_pod_left_it() {
    let server = cluster().await;
    claims(&server).await;
    let own = Caller::new(&server, node("n1"));
    let mut event = node_event("n1", &about("PersistentVolumeClaim", "of-n1"));
    event["metadata"] = json!({"name": "mine"});
    own.posts(EVENTS, &event, 201).await;
    let mine = format!("{EVENTS}/mine");
    own.patches(&mine, &json!({"count": 2}), 200).await;
    gone(&server, "keeper-n1").await;
    own.patches(&mine, &json!({"count": 3}), 403).await;
}

#[tokio::test]
async fn a_node_reads_no_certificate_requests_and_asks_about_its_own_port_alone() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for path in ["", "?watch=1", "?fieldSelector=metadata.name%3Da", "/a"] {
        own.gets(&format!("{requests}{path}"), 403).await;
    }
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let ask =
        |attributes: Value| json!({"spec": {"user": "jane", "resourceAttributes": attributes}});
    let port = |name: &str| json!({"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": name});
    own.posts(reviews, &ask(port("n1")), 201).await;
    for other in [
        port("n2"),
        port(""),
        json!({"verb": "get", "resource": "secrets", "name": "n1"}),
        json!({"verb": "get", "group": "example.com", "resource": "nodes", "name": "n1"}),
    ] {
        own.posts(reviews, &ask(other), 403).await;
    }
    let path = json!({"spec": {"user": "jane", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}});
    own.posts(reviews, &path, 403).await;
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    own.posts(local, &ask(pods), 403).await;
}

/// The status of a pod with these addresses.
fn addressed(pod: &[&str], host: &[&str]) -> Value {
    let list = |all: &[&str]| -> Vec<Value> { all.iter().map(|ip| json!({ "ip": ip })).collect() };
    json!({"status": {
        "podIP": pod.first(), "podIPs": list(pod), "hostIP": host.first(), "hostIPs": list(host),
    }})
}

#[tokio::test]
async fn a_node_gives_its_pods_addresses_of_its_own_ranges_alone() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let pod = format!("{PODS}/on-n1/status");
    own.patches(&pod, &addressed(&["10.1.1.2"], &[]), 403).await;
    let ranges =
        json!({"spec": {"podCIDR": "10.1.1.0/24", "podCIDRs": ["10.1.1.0/24", "fd00:1::/64"]}});
    let node_path = "/api/v1/nodes/n1";
    server.admin_ask(Method::PATCH, node_path, &ranges).await;
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"},
        {"type": "InternalIP", "address": "2001:db8::7"}, {"type": "Hostname", "address": "n1"}]}});
    own.patches(&format!("{node_path}/status"), &addresses, 200)
        .await;
    own.patches(
        &pod,
        &addressed(&["10.1.1.2", "fd00:1::2"], &["192.0.2.7", "2001:db8:0::7"]),
        200,
    )
    .await;
    for (of_pod, of_host) in [
        (&["10.1.2.2"][..], &[][..]),
        (&["10.1.1.2", "fd00:2::2"], &[]),
        (&["192.0.2.7"], &[]),
        (&["10.1.1.2"], &["192.0.2.8"]),
        (&["10.1.1.2"], &["192.0.2.7", "2001:db8::8"]),
    ] {
        own.patches(&pod, &addressed(of_pod, of_host), 403).await;
    }
    own.patches(&pod, &json!({"status": {"podIP": "10.1.2.2"}}), 403)
        .await;
    let (_, answer) = server
        .ask(
            &own.user,
            Method::PATCH,
            &pod,
            &addressed(&["10.1.2.2"], &[]),
        )
        .await;
    assert_eq!(
        answer["message"],
        "pods \"on-n1\" is forbidden: node \"n1\" cannot set the address 10.1.2.2 in the status of pod default/on-n1: the \
         Node's podCIDRs are 10.1.1.0/24, fd00:1::/64"
    );
    // A machine that moved goes on with what its pods had, and has its new address.
    let moved = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}});
    own.patches(&format!("{node_path}/status"), &moved, 200)
        .await;
    own.patches(&pod, &json!({"status": {"phase": "Running"}}), 200)
        .await;
    own.patches(&pod, &addressed(&["10.1.1.2"], &["192.0.2.9"]), 200)
        .await;
}

#[tokio::test]
async fn a_pod_on_the_machines_network_has_an_address_of_its_node() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let shared = json!({"metadata": {"name": "shared"}, "spec": {"nodeName": "n1", "hostNetwork": true,
        "containers": [{"name": "c", "image": "x:1"}]}});
    made(&server, PODS, &shared).await;
    let addresses =
        json!({"status": {"addresses": [{"type": "ExternalIP", "address": "198.51.100.7"}]}});
    own.patches("/api/v1/nodes/n1/status", &addresses, 200)
        .await;
    let ranges = json!({"spec": {"podCIDR": "10.1.1.0/24", "podCIDRs": ["10.1.1.0/24"]}});
    server
        .admin_ask(Method::PATCH, "/api/v1/nodes/n1", &ranges)
        .await;
    let pod = format!("{PODS}/shared/status");
    own.patches(&pod, &addressed(&["198.51.100.7"], &["198.51.100.7"]), 200)
        .await;
    for elsewhere in ["10.1.1.2", "198.51.100.8"] {
        own.patches(&pod, &addressed(&[elsewhere], &["198.51.100.7"]), 403)
            .await;
    }
    // The control plane may write any.
    let (status, answer) = server
        .admin_ask(
            Method::PATCH,
            &pod,
            &addressed(&["10.9.9.9"], &["10.9.9.9"]),
        )
        .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

/// Machines with addresses by the inventory and by their certificates, and a node with ranges.
async fn others_addresses(server: &Local) {
    let ends = ["2999-01-01T00:00:00Z", "2001-01-01T00:00:00Z"];
    for (name, spec, status) in [
        (
            "m1",
            json!({"nodeName": "n1", "addresses": ["192.0.2.7", "192.0.2.10"]}),
            json!({}),
        ),
        (
            "m2",
            json!({"nodeName": "n2", "addresses": ["192.0.2.8", "::ffff:192.0.2.11"]}),
            json!({}),
        ),
        (
            "m3",
            json!({}),
            json!({"servingNames": ["m3", "192.0.2.9", "192.0.2.10"],
            "certificate": {"serial": "1", "notAfter": ends[0]},
            "earlierNames": {"2001:db8::9": ends[0], "192.0.2.12": ends[1]}}),
        ),
        (
            "m4",
            json!({"retired": true, "addresses": ["192.0.2.13"]}),
            json!({"servingNames": ["192.0.2.14"], "certificate": {"serial": "1", "notAfter": ends[0]}}),
        ),
    ] {
        let mut spec = spec;
        spec["role"] = "worker".into();
        made(
            server,
            MACHINES,
            &json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
        let path = format!("{MACHINES}/{name}/status");
        let status = json!({ "status": status });
        let (status, answer) = server.admin_ask(Method::PATCH, &path, &status).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let ranges =
        json!({"spec": {"podCIDR": "10.1.2.0/24", "podCIDRs": ["10.1.2.0/24", "fd00:2::/64"]}});
    server
        .admin_ask(Method::PATCH, "/api/v1/nodes/n2", &ranges)
        .await;
}

/// A Node says itself which addresses it has. What others have by the inventory, by their
/// certificates and by the cluster's ranges is theirs whatever it says.
#[tokio::test]
async fn a_pod_on_the_machines_network_gets_no_address_that_is_anothers() {
    let mut options = Options::default();
    options.ranges.advertise = vec![([198, 51, 100, 1], 6443).into()];
    let server = cluster_with(options).await;
    let own = Caller::new(&server, node("n1"));
    others_addresses(&server).await;
    // Its own, one that nobody lists, and those that nobody has any more.
    let free = [
        "192.0.2.7",
        "192.0.2.10",
        "203.0.113.7",
        "2001:db8::7",
        "192.0.2.12",
        "192.0.2.13",
        "192.0.2.14",
    ];
    let others = [
        ("192.0.2.8", "the Machine \"m2\""),
        ("192.0.2.11", "the Machine \"m2\""),
        ("192.0.2.9", "the Machine \"m3\""),
        ("2001:db8::9", "the Machine \"m3\""),
        ("10.1.2.3", "the pods of the node \"n2\""),
        ("fd00:2::3", "the pods of the node \"n2\""),
        ("10.96.0.10", "the cluster's services"),
        ("198.51.100.1", "the API server"),
        ("127.0.0.1", "each machine"),
        ("fe80::1", "each machine"),
        ("64:ff9b::c000:208", "a translator"),
    ];
    let all = free.into_iter().chain(others.map(|(address, _)| address));
    let all: Vec<Value> = all
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    let claimed = json!({"status": {"addresses": all}});
    own.patches("/api/v1/nodes/n1/status", &claimed, 200).await;
    let shared = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "hostNetwork": true,
            "containers": [{"name": "c", "image": "x:1"}]}})
    };
    for (number, address) in free.iter().enumerate() {
        let name = format!("free-{number}");
        made(&server, PODS, &shared(&name)).await;
        let status = addressed(&[address], &[address]);
        own.patches(&format!("{PODS}/{name}/status"), &status, 200)
            .await;
    }
    made(&server, PODS, &shared("shared")).await;
    let pod = format!("{PODS}/shared/status");
    for (address, holder) in others {
        let status = addressed(&[address], &[address]);
        let sent = server.ask(&own.user, Method::PATCH, &pod, &status);
        let (code, answer) = sent.await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{address}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(holder), "{address}: {message}");
    }
    // The second of two is looked at, too; and what is given back is free.
    own.patches(
        &pod,
        &addressed(&["192.0.2.7", "fd00:2::3"], &["192.0.2.7"]),
        403,
    )
    .await;
    let moved = json!({"spec": {"addresses": ["192.0.2.11"]}});
    let path = format!("{MACHINES}/m2");
    server.admin_ask(Method::PATCH, &path, &moved).await;
    own.patches(&pod, &addressed(&["192.0.2.8"], &["192.0.2.8"]), 200)
        .await;
}

/// By these annotations a node would take another index of its Job, whose pod on another node then
/// goes as one too many, fail an index, or have the pods of others go first.
#[tokio::test]
async fn a_node_annotates_no_pod_through_its_status() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let pod = format!("{PODS}/on-n1");
    let status = format!("{pod}/status");
    let annotated = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}, "status": {"phase": "Running"}});
    let index = "batch.kubernetes.io/job-completion-index";
    // The control: the control plane and people may.
    let (code, answer) = server
        .admin_ask(Method::PATCH, &status, &annotated(index, json!("0")))
        .await;
    assert_eq!(code, StatusCode::OK, "{answer}");
    for (key, value) in [
        (index, json!("5")),
        (index, Value::Null),
        ("batch.kubernetes.io/job-index-failure-count", json!("9")),
        (
            "controller.kubernetes.io/pod-deletion-cost",
            json!("2147483647"),
        ),
        ("a", json!("b")),
    ] {
        own.patches(&status, &annotated(key, value), 403).await;
    }
    own.patches(&status, &json!({"status": {"phase": "Running"}}), 200)
        .await;
    let (_, stored) = server.admin_ask(Method::GET, &pod, &Value::Null).await;
    assert_eq!(stored["metadata"]["annotations"], json!({index: "0"}));
}

#[tokio::test]
async fn of_the_annotations_of_events_a_node_sets_those_of_evictions_alone() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let annotated = |annotations: Value| {
        let mut event = node_event("n1", &about("Pod", "on-n1"));
        event["reason"] = json!("Evicted");
        event["metadata"] = json!({"name": "evicted", "annotations": annotations});
        event
    };
    let of_eviction = json!({"offending_containers": "main,side", "offending_containers_usage": "290Mi,1Gi",
        "starved_resource": "memory"});
    let mut others = of_eviction.clone();
    others["a"] = json!("b");
    own.posts(EVENTS, &annotated(others), 403).await;
    let mut large = of_eviction.clone();
    large["offending_containers"] = json!("c".repeat(10 << 10));
    own.posts(EVENTS, &annotated(large), 403).await;
    own.posts(EVENTS, &annotated(of_eviction.clone()), 201)
        .await;
    let evicted = format!("{EVENTS}/evicted");
    let (_, stored) = server.admin_ask(Method::GET, &evicted, &Value::Null).await;
    assert_eq!(stored["metadata"]["annotations"], of_eviction);
    // Annotations of others stay, and a repetition is counted beside them.
    let theirs = json!({"metadata": {"annotations": {"a": "b"}}});
    own.patches(&evicted, &theirs, 403).await;
    let (status, answer) = server.admin_ask(Method::PATCH, &evicted, &theirs).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    own.patches(&evicted, &json!({"count": 2}), 200).await;
    let none = json!({"metadata": {"annotations": {"a": null}}});
    own.patches(&evicted, &none, 403).await;
}

/// A finalizer would outlive the node's retirement, and the deletion of another owner would wait
/// for what the node makes again and again.
#[tokio::test]
async fn what_a_node_makes_for_itself_goes_with_its_node() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let owner = |key: &str, value: Value| {
        let mut owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"});
        owner[key] = value;
        json!({"ownerReferences": [owner]})
    };
    let refused = [
        json!({"finalizers": ["example.com/stays"]}),
        owner("name", json!("n2")),
        owner("kind", json!("Namespace")),
        owner("apiVersion", json!("pratique.dev/v1alpha1")),
        owner("blockOwnerDeletion", json!(true)),
    ];
    let slice = json!({"nodeName": "n1", "driver": "d.example.com", "devices": [],
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}});
    for (all, name, spec) in [
        (
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            "n1",
            json!({}),
        ),
        (
            "/apis/storage.k8s.io/v1/csinodes",
            "n1",
            json!({"drivers": []}),
        ),
        ("/apis/resource.k8s.io/v1/resourceslices", "s1", slice),
    ] {
        let object = |metadata: &Value| {
            let mut object = json!({"metadata": metadata, "spec": spec});
            object["metadata"]["name"] = json!(name);
            object
        };
        for metadata in &refused {
            own.posts(all, &object(metadata), 403).await;
        }
        // As agents and upstream's kubelets and drivers make it.
        own.posts(all, &object(&owner("controller", json!(true))), 201)
            .await;
        let one = format!("{all}/{name}");
        for metadata in &refused {
            own.patches(&one, &json!({ "metadata": metadata }), 403)
                .await;
        }
        // What an admin added stays, and the node goes on beside it.
        let (status, answer) = server
            .admin_ask(Method::PATCH, &one, &json!({"metadata": refused[0]}))
            .await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        own.patches(&one, &json!({"metadata": {"annotations": {"a": "b"}}}), 200)
            .await;
        own.patches(&one, &json!({"metadata": {"finalizers": null}}), 403)
            .await;
    }
}

#[tokio::test]
async fn a_node_fills_the_store_with_nothing_that_stays() {
    let (server, seconds) = cluster_with_clock().await;
    let own = Caller::new(&server, node("n1"));
    let event = node_event("n1", &about_node("n1"));
    // Nothing large, and no annotations that nobody reads.
    let mut large = event.clone();
    large["message"] = "m".repeat(10 << 10).into();
    own.posts(EVENTS, &large, 403).await;
    let mut annotated = event.clone();
    annotated["metadata"]["annotations"] = json!({"a": "b"});
    own.posts(EVENTS, &annotated, 403).await;
    // Nor fields of managers that there are not.
    let mut managed = event.clone();
    managed["metadata"]["managedFields"] = json!([{"manager": "x".repeat(100), "operation": "Apply",
        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:message": {}}}]);
    let (status, answer) = server.ask(&own.user, Method::POST, EVENTS, &managed).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert!(!answer.to_string().contains("xxx"), "{answer}");
    // The rest comes at its rate.
    let posted = async |path: &str, objects: &[Value]| {
        let mut made = 0;
        for object in objects {
            let headers = [("content-type", "application/json")];
            let body = object.to_string();
            let sent = server.send(&own.user, Method::POST, path, &headers, body);
            let (status, headers, answer) = sent.await;
            match status {
                StatusCode::CREATED => made += 1,
                StatusCode::TOO_MANY_REQUESTS => assert!(headers.contains_key("retry-after")),
                _ => assert_eq!(status, StatusCode::FORBIDDEN, "{answer:?}"),
            }
        }
        made
    };
    let many = vec![event; 300];
    assert_eq!(posted(EVENTS, &many).await, 99);
    seconds.fetch_add(1, Ordering::Relaxed);
    assert_eq!(posted(EVENTS, &many).await, 10);
    Caller::new(&server, node("n2"))
        .posts(EVENTS, &node_event("n2", &about_node("n2")), 201)
        .await;
    // A clock that is set back keeps nobody waiting.
    seconds.fetch_sub(7200, Ordering::Relaxed);
    assert_eq!(posted(EVENTS, &many).await, 100);
    let request = |n: usize| {
        json!({"metadata": {"name": format!("r{n}")}, "spec": {"request": node_request("n1"),
            "signerName": "kubernetes.io/kubelet-serving", "usages": ["digital signature", "server auth"]}})
    };
    let requests: Vec<_> = (0..12).map(request).collect();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    assert_eq!(posted(path, &requests).await, 10);
    let slice = |n: usize| {
        json!({"metadata": {"name": format!("s{n}")}, "spec": {"nodeName": "n1", "driver": "d.example.com",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 80}, "devices": []}})
    };
    let slices: Vec<_> = (0..80).map(slice).collect();
    assert_eq!(
        posted("/apis/resource.k8s.io/v1/resourceslices", &slices).await,
        64
    );
}
