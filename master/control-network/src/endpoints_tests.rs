//! Tests of the plan of Endpoints: subsets, the limit of addresses, and who owns the object.

use super::*;
use crate::endpoint_slices::views::{NamedPort, PortView, Target};
use serde_json::json;

fn service() -> ServiceView {
    let object = json!({
        "metadata": {"uid": "s", "labels": {"part": "shop"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "raw", "port": 81}]},
    });
    View::read(serde_json::from_value(object).unwrap())
}

fn pod(number: u16, ready: bool, port: i32) -> (String, Arc<Backend>) {
    let [high, low] = number.to_be_bytes();
    let status = if ready { "True" } else { "False" };
    let object = json!({
        "metadata": {"uid": format!("u{number}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]},
        "status": {
            "podIPs": [{"ip": format!("10.1.{high}.{low}")}, {"ip": format!("fd00::{number}")}],
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": format!("2026-01-02T00:00:{:02}Z", number % 60)}],
        },
    });
    let pod = View::read(serde_json::from_value(object).unwrap());
    (format!("p{number}"), Arc::new(pod))
}

fn facts(service: ServiceView, pods: Vec<(String, Arc<Backend>)>) -> Facts {
    Facts {
        key: Key::new("shop", "web"),
        service: Some(Arc::new(service)),
        pods,
        endpoints: None,
    }
}

/// The object after this action, as the API would hold it.
fn after(action: Option<Action>) -> Endpoints {
    match action {
        Some(Action::Create(object) | Action::Update(object)) => *object,
        other => panic!("{other:?}"),
    }
}

fn stored(object: &Endpoints) -> Arc<EndpointsView> {
    Arc::new(View::read(object.clone()))
}

fn annotation<'a>(object: &'a Endpoints, name: &str) -> Option<&'a str> {
    let all = object.metadata.annotations.as_ref()?;
    all.get(name).map(String::as_str)
}

/// `ready|others:ports` of each subset.
fn lines(object: &Endpoints) -> Vec<String> {
    let list = |list: &Option<Vec<EndpointAddress>>| {
        let ips = list.iter().flatten().map(|one| one.ip.as_str());
        ips.collect::<Vec<_>>().join(",")
    };
    let line = |subset: &EndpointSubset| {
        let ports = subset.ports.iter().flatten();
        let ports: Vec<String> = ports.map(|port| port.port.to_string()).collect();
        format!(
            "{}|{}:{}",
            list(&subset.addresses),
            list(&subset.not_ready_addresses),
            ports.join(",")
        )
    };
    object.subsets.iter().flatten().map(line).collect()
}

#[test]
fn pods_of_the_same_ports_are_together_and_nothing_is_written_twice() {
    let mut facts = facts(
        service(),
        vec![pod(1, true, 8080), pod(2, false, 8080), pod(3, true, 9090)],
    );
    let made = after(reconcile(&facts));
    assert_eq!(
        lines(&made),
        ["10.1.0.1|10.1.0.2:8080,81", "10.1.0.3|:9090,81"]
    );
    let labels = made.metadata.labels.as_ref().unwrap();
    assert_eq!(
        labels["endpoints.kubernetes.io/managed-by"],
        "endpoint-controller"
    );
    assert_eq!(labels["part"], "shop");
    assert_eq!(annotation(&made, TRIGGER), Some("2026-01-01T00:00:00Z"));
    facts.endpoints = Some(stored(&made));
    assert_eq!(reconcile(&facts), None);
    // A pod becomes ready: the annotation says when.
    facts.pods[1] = pod(2, true, 8080);
    let changed = after(reconcile(&facts));
    assert_eq!(lines(&changed)[0], "10.1.0.1,10.1.0.2|:8080,81");
    assert_eq!(annotation(&changed, TRIGGER), Some("2026-01-02T00:00:02Z"));
    facts.endpoints = Some(stored(&changed));
    // The deletion of a pod has no known time.
    facts.pods.remove(0);
    let changed = after(reconcile(&facts));
    assert_eq!(annotation(&changed, TRIGGER), None);
    assert_eq!(lines(&changed)[0], "10.1.0.2|:8080,81");
}

/// Searching and comparing them one by one would take longer than any test may run.
#[test]
fn ports_of_a_service_are_not_searched_among_those_of_each_pod() {
    const PORTS: usize = 20_000;
    let mut service = service();
    let view = |number: usize| PortView {
        name: format!("p{number}"),
        protocol: "TCP".to_owned(),
        app_protocol: None,
        target: Target::Name(format!("n{number}")),
    };
    service.ports = (0..PORTS).map(view).collect();
    let named = |number: usize| (format!("n{number}"), "TCP".to_owned(), 80);
    let named: Arc<[NamedPort]> = (0..PORTS).rev().map(named).collect();
    let with = |number: u16| {
        let (name, one) = pod(number, true, 80);
        let ports = Arc::clone(&named);
        let backend = Backend {
            ports,
            ..(*one).clone()
        };
        (name, Arc::new(backend))
    };
    let facts = facts(service, (0..500).map(with).collect());
    let made = after(reconcile(&facts));
    let [subset] = made.subsets.as_deref().unwrap() else {
        panic!("pods of one template are together")
    };
    assert_eq!(subset.ports.as_ref().unwrap().len(), PORTS);
    assert_eq!(subset.addresses.as_ref().unwrap().len(), 500);
}

#[test]
fn more_than_a_thousand_are_cut_and_the_object_says_so() {
    let pods = |count: u16| (0..count).map(|number| pod(number, number % 2 == 0, 80));
    let mut facts = facts(service(), pods(1002).collect());
    let made = after(reconcile(&facts));
    let subset = &made.subsets.as_ref().unwrap()[0];
    let length = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let lengths = (
        length(&subset.addresses),
        length(&subset.not_ready_addresses),
    );
    assert_eq!(lengths, (501, 499), "those that are ready come first");
    assert_eq!(annotation(&made, OVER_CAPACITY), Some(TRUNCATED));
    facts.endpoints = Some(stored(&made));
    facts.pods = pods(10).collect();
    assert_eq!(annotation(&after(reconcile(&facts)), OVER_CAPACITY), None);
}

#[test]
fn endpoints_go_with_their_service_and_those_of_others_stay() {
    let mut gone = facts(service(), Vec::new());
    let made = after(reconcile(&gone));
    assert!(
        lines(&made).is_empty(),
        "a service without pods has empty ones"
    );
    gone.endpoints = Some(stored(&made));
    assert!(gone.endpoints.as_ref().unwrap().is_own());
    gone.service = None;
    assert!(matches!(reconcile(&gone), Some(Action::Delete { .. })));
    assert!(!EndpointsView::default().is_own());
}

#[test]
fn pods_on_their_way_out_count_only_where_the_service_wants_all() {
    let (name, terminating) = pod(1, true, 80);
    let terminating = Arc::new(Backend {
        terminating: true,
        ..(*terminating).clone()
    });
    let headless = ServiceView {
        headless: true,
        ports: Vec::new(),
        ..service()
    };
    let all = ServiceView {
        publish_not_ready: true,
        ..headless.clone()
    };
    let pods = vec![(name, terminating), pod(2, false, 80)];
    let made = after(reconcile(&facts(headless, pods.clone())));
    assert_eq!(lines(&made), ["|10.1.0.2:"]);
    assert!(made.metadata.labels.unwrap().contains_key(HEADLESS));
    let made = after(reconcile(&facts(all, pods)));
    assert_eq!(lines(&made), ["10.1.0.1,10.1.0.2|:"]);
}
