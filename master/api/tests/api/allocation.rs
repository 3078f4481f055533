//! Cluster IPs and node ports: allocated once, kept and freed, under concurrent writers and
//! crashes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Local, prepared};
use http::{Method, StatusCode};
use master_admission::EnabledPlugins;
use master_admission::services::Ranges;
use master_api::Options;
use master_client::UserInfo;
use master_schema::validate::net::Range;
use master_store::{
    BoxFuture, Committed, EmbeddedStore, Fetched, ListQuery, Listing, Op, Revision, Store,
    StoreError, WatchStream,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Addresses of services that every cluster has.
const OF_EVERY_CLUSTER: [&str; 2] = ["10.96.0.1", "10.96.0.10"];

pub(crate) fn options(services: &[&str], node_ports: std::ops::RangeInclusive<u16>) -> Options {
    let services = services
        .iter()
        .map(|range| Range::parse(range).unwrap())
        .collect();
    Options {
        ranges: Ranges {
            services,
            node_ports,
            advertise: vec!["192.0.2.1:6443".parse().unwrap()],
        },
        ..Options::default()
    }
}

async fn server() -> Local {
    Local::with(options(&["10.96.0.0/24"], 30000..=32767)).await
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

pub(crate) async fn create(server: &Local, name: &str, spec: &Value) -> (StatusCode, Value) {
    server
        .admin_ask(Method::POST, SERVICES, &service(name, spec))
        .await
}

async fn names(server: &Local, path: &str) -> BTreeSet<String> {
    let (_, list) = server.admin_ask(Method::GET, path, &Value::Null).await;
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_cluster_has_the_service_of_the_api() {
    let server = server().await;
    let (_, api) = server
        .admin_ask(Method::GET, &format!("{SERVICES}/kubernetes"), &Value::Null)
        .await;
    assert_eq!(api["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(
        api["spec"]["ports"],
        json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}])
    );
    let (_, slice) = server
        .admin_ask(
            Method::GET,
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
            &Value::Null,
        )
        .await;
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    assert_eq!(
        names(&server, ADDRESSES).await,
        BTreeSet::from(OF_EVERY_CLUSTER.map(str::to_owned))
    );
    let (_, range) = server
        .admin_ask(Method::GET, &format!("{RANGES}/kubernetes"), &Value::Null)
        .await;
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/24"]));
    server.api.prepare().await.unwrap();
    assert_eq!(
        names(&server, SERVICES).await.len(),
        1,
        "a second start makes nothing twice"
    );
}

#[tokio::test]
async fn a_service_gets_an_address_and_gives_it_back() {
    let server = server().await;
    let (status, made) = create(&server, "a", &json!({"ports": [{"port": 80}]})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let address = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(
        Range::parse("10.96.0.0/24")
            .unwrap()
            .contains(address.parse().unwrap())
    );
    assert_eq!(made["spec"]["clusterIPs"], json!([address]));
    assert_eq!(
        (&made["spec"]["ipFamilies"], &made["spec"]["ipFamilyPolicy"]),
        (&json!(["IPv4"]), &json!("SingleStack"))
    );
    let (_, held) = server
        .admin_ask(Method::GET, &format!("{ADDRESSES}/{address}"), &Value::Null)
        .await;
    let parent = json!({"group": "", "resource": "services", "namespace": "default", "name": "a"});
    assert_eq!(held["spec"]["parentRef"], parent);
    let path = format!("{ADDRESSES}/{address}");
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &path, &Value::Null)
            .await
            .0,
        StatusCode::FORBIDDEN,
        "it is in use"
    );
    let (status, error) = create(
        &server,
        "b",
        &json!({"clusterIP": address, "ports": [{"port": 80}]}),
    )
    .await;
    let text = format!(
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: \
         provided IP is already allocated"
    );
    assert_eq!(
        (status, error["message"].as_str().unwrap()),
        (StatusCode::UNPROCESSABLE_ENTITY, text.as_str())
    );
    server
        .admin_ask(Method::DELETE, &format!("{SERVICES}/a"), &Value::Null)
        .await;
    assert_eq!(
        names(&server, ADDRESSES).await.len(),
        OF_EVERY_CLUSTER.len()
    );
    let (status, _) = create(
        &server,
        "b",
        &json!({"clusterIP": address, "ports": [{"port": 80}]}),
    )
    .await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, error) = create(
        &server,
        "c",
        &json!({"clusterIP": "10.97.0.1", "ports": [{"port": 80}]}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("The range of valid IPs is 10.96.0.0/24"),
        "{error}"
    );
}

#[tokio::test]
async fn headless_and_named_services_have_no_address() {
    let server = server().await;
    let (_, made) = create(
        &server,
        "a",
        &json!({"clusterIP": "None", "selector": {"a": "b"}}),
    )
    .await;
    assert_eq!(
        (&made["spec"]["clusterIPs"], &made["spec"]["ipFamilies"]),
        (&json!(["None"]), &json!(["IPv4"]))
    );
    let (_, made) = create(
        &server,
        "b",
        &json!({"type": "ExternalName", "externalName": "example.com"}),
    )
    .await;
    assert!(made["spec"].get("clusterIP").is_none(), "{made}");
    assert_eq!(
        names(&server, ADDRESSES).await.len(),
        OF_EVERY_CLUSTER.len()
    );
    let patch =
        json!({"spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}});
    let (status, changed) = server
        .admin_ask(Method::PATCH, &format!("{SERVICES}/b"), &patch)
        .await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert!(
        changed["spec"]["clusterIP"]
            .as_str()
            .unwrap()
            .starts_with("10.96.0.")
    );
    let patch = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    let (status, changed) = server
        .admin_ask(Method::PATCH, &format!("{SERVICES}/b"), &patch)
        .await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert!(
        changed["spec"].get("clusterIP").is_none() && changed["spec"].get("ipFamilies").is_none()
    );
    assert_eq!(
        names(&server, ADDRESSES).await.len(),
        OF_EVERY_CLUSTER.len()
    );
}

#[tokio::test]
async fn node_ports_are_given_once() {
    let server = server().await;
    let both = json!({"type": "NodePort", "ports": [
        {"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"},
    ]});
    let (status, made) = create(&server, "a", &both).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let port = made["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port));
    assert_eq!(
        made["spec"]["ports"][1]["nodePort"], port,
        "one port under two protocols has one node port"
    );
    let asked = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let (_, error) = create(&server, "b", &asked).await;
    let text = format!(
        "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
    );
    assert_eq!(error["message"], text);
    let low = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    let (_, error) = create(&server, "b", &low).await;
    let end = "provided port is not in the valid range. The range of valid ports is 30000-32767";
    assert!(error["message"].as_str().unwrap().ends_with(end), "{error}");
    let patch = json!({"spec": {"type": "ClusterIP"}});
    let (status, changed) = server
        .admin_ask(Method::PATCH, &format!("{SERVICES}/a"), &patch)
        .await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert!(changed["spec"]["ports"][0].get("nodePort").is_none());
    assert_eq!(
        create(&server, "b", &asked).await.0,
        StatusCode::CREATED,
        "the port is free again"
    );
}

#[tokio::test]
async fn a_health_check_port_comes_and_goes_with_the_policy() {
    let server = server().await;
    let spec =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let (status, made) = create(&server, "a", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let port = made["spec"]["healthCheckNodePort"].as_i64().unwrap();
    assert_ne!(made["spec"]["ports"][0]["nodePort"], port);
    let patch = json!({"spec": {"externalTrafficPolicy": "Cluster"}});
    let (status, changed) = server
        .admin_ask(Method::PATCH, &format!("{SERVICES}/a"), &patch)
        .await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert!(changed["spec"].get("healthCheckNodePort").is_none());
    let asked = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    assert_eq!(
        create(&server, "b", &asked).await.0,
        StatusCode::CREATED,
        "the port is free again"
    );
}

#[tokio::test]
async fn a_balanced_service_gets_no_port_of_nodes_that_it_does_not_want() {
    let server = server().await;
    let mut spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    spec["ports"] = json!([{"port": 80}]);
    let port = |service: &Value| service["spec"]["ports"][0]["nodePort"].as_u64();
    let (status, made) = create(&server, "a", &spec).await;
    assert_eq!((status, port(&made)), (StatusCode::CREATED, None), "{made}");
    spec["ports"][0]["nodePort"] = json!(30_080);
    let (_, named) = create(&server, "b", &spec).await;
    assert_eq!(port(&named), Some(30_080), "the one that it names: {named}");
    let wanted = json!({"spec": {"allocateLoadBalancerNodePorts": true}});
    let path = format!("{SERVICES}/a");
    let (_, changed) = server.admin_ask(Method::PATCH, &path, &wanted).await;
    assert!(port(&changed).is_some(), "{changed}");
}

#[tokio::test]
async fn two_families_are_given_where_there_are_two() {
    let server = Local::with(options(&["10.96.0.0/24", "fd00:96::/112"], 30000..=32767)).await;
    let spec = json!({"ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 80}]});
    let (status, made) = create(&server, "a", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert!(
        made["spec"]["clusterIPs"][1]
            .as_str()
            .unwrap()
            .starts_with("fd00:96::")
    );
    let patch = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let (status, changed) = server
        .admin_ask(Method::PATCH, &format!("{SERVICES}/a"), &patch)
        .await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert_eq!(changed["spec"]["clusterIPs"].as_array().unwrap().len(), 1);
    assert_eq!(
        names(&server, ADDRESSES).await.len(),
        4,
        "its own, two of kube-dns, that of the API"
    );
}

#[tokio::test]
async fn a_full_range_gives_its_last_address_and_then_refuses() {
    let server = Local::with(options(&["10.96.0.0/29"], 30000..=30001)).await;
    // Of six, `kubernetes` and `kube-dns` have one each.
    for name in ["a", "b", "c", "d"] {
        let (status, made) = create(&server, name, &json!({"ports": [{"port": 80}]})).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    let (status, error) = create(&server, "f", &json!({"ports": [{"port": 80}]})).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .ends_with("failed to allocate a serviceIP: range is full"),
        "{error}"
    );
    let more = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.97.0.0/28"]}});
    assert_eq!(
        server.admin_ask(Method::POST, RANGES, &more).await.0,
        StatusCode::CREATED
    );
    let (status, made) = create(&server, "f", &json!({"ports": [{"port": 80}]})).await;
    assert_eq!(status, StatusCode::CREATED, "another range helps: {made}");
}

/// A store that fails at a chosen commit: before it is written, or after it and before the answer.
#[derive(Debug)]
struct Breaking {
    store: Arc<EmbeddedStore>,
    /// Commits until the failure; at 0 every commit fails.
    left: AtomicU64,
    written: bool,
}

impl Store for Breaking {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.store.revision()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        self.store.get(key)
    }

    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.store.everything()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.store.list(query)
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            let before = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                });
            match before {
                Ok(2..) => self.store.commit(ops).await,
                Ok(_) if self.written => {
                    self.store.commit(ops).await?;
                    Err(StoreError::Closed)
                }
                Ok(_) | Err(_) => Err(StoreError::Closed),
            }
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        self.store.watch(prefix, after)
    }

    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>> {
        self.store.changes(after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(revision)
    }
}

/// An operation of a client on one of a few services.
#[derive(Debug, Clone)]
enum Step {
    Create(u8, bool),
    Retype(u8, bool),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, any::<bool>()).prop_map(|(service, open)| Step::Create(service, open)),
        (0..6u8, any::<bool>()).prop_map(|(service, open)| Step::Retype(service, open)),
        (0..6u8).prop_map(Step::Delete),
    ]
}

async fn take(api: &master_api::ApiServer, step: &Step) {
    let kind = |open: &bool| if *open { "NodePort" } else { "ClusterIP" };
    let (method, path, body) = match step {
        Step::Create(name, open) => (
            Method::POST,
            SERVICES.to_owned(),
            service(
                &format!("s{name}"),
                &json!({"type": kind(open), "ports": [{"port": 80}]}),
            ),
        ),
        Step::Retype(name, open) => (
            Method::PATCH,
            format!("{SERVICES}/s{name}"),
            json!({"spec": {"type": kind(open)}}),
        ),
        Step::Delete(name) => (Method::DELETE, format!("{SERVICES}/s{name}"), Value::Null),
    };
    let kind = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind);
    let request = request.body(master_client::body(body)).unwrap();
    // Any answer will do: a refused operation must leave no trace either.
    drop(
        api.handle_as(
            request,
            UserInfo::admin("admin"),
            master_listener::Peer::default(),
        )
        .await,
    );
}

/// What services have equals what is allocated, without duplicates.
async fn check(store: &EmbeddedStore) {
    let read = async |prefix: &str| {
        let listing = store
            .list(ListQuery {
                prefix: prefix.to_owned(),
                ..ListQuery::default()
            })
            .await
            .unwrap();
        let entries = listing.entries.into_iter();
        entries
            .map(|entry| (entry.key[prefix.len()..].to_owned(), entry.value.bytes()))
            .collect::<BTreeMap<_, _>>()
    };
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (name, value) in read("services/").await {
        let service: Value = serde_json::from_slice(&value).unwrap();
        let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert!(
            addresses.insert(address),
            "{name} has an address that another has"
        );
        for port in service["spec"]["ports"].as_array().unwrap() {
            if let Some(node) = port["nodePort"].as_i64() {
                assert!(
                    ports.insert(node.to_string()),
                    "{name} has a node port that another has"
                );
            }
        }
    }
    assert_eq!(
        read("ipaddresses.networking.k8s.io/")
            .await
            .into_keys()
            .collect::<BTreeSet<_>>(),
        addresses
    );
    assert_eq!(
        read("nodeports/")
            .await
            .into_keys()
            .collect::<BTreeSet<_>>(),
        ports
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn nothing_leaks_and_nothing_is_given_twice(
        rounds in prop::collection::vec((prop::collection::vec(step(), 1..12), 1..10u64, any::<bool>()), 1..5)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            // Few addresses and ports, so that choices collide.
            let options = options(&["10.96.0.0/29"], 30000..=30003);
            prepared::fill(folder.path(), &options);
            let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
            for (steps, left, written) in rounds {
                let breaking = Breaking { store: store.clone(), left: AtomicU64::new(left), written };
                let api = master_api::ApiServer::new(Arc::new(breaking), options.clone());
                let tasks = steps.into_iter().map(|step| {
                    let api = api.clone();
                    tokio::spawn(async move { take(&api, &step).await })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                check(&store).await;
            }
        });
    }
}

/// Each repair is an event.
#[tokio::test]
async fn allocations_of_services_are_repaired_after_changes_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let api = master_api::ApiServer::new(
        Arc::clone(&store),
        options(&["10.96.0.0/24"], 30000..=30010),
    );
    api.prepare().await.unwrap();
    let server = Local::of(api, folder);
    for name in ["lost", "leaked"] {
        let ports = json!([{"port": 80, "nodePort": if name == "lost" { 30001 } else { 30002 }}]);
        let address = if name == "lost" {
            "10.96.0.77"
        } else {
            "10.96.0.78"
        };
        let (code, _) = create(
            &server,
            name,
            &json!({"type": "NodePort", "clusterIP": address, "ports": ports}),
        )
        .await;
        assert_eq!(code, StatusCode::CREATED);
    }
    let gone = |key: &str| Op {
        key: key.into(),
        expect: master_store::Expect::Any,
        action: master_store::Action::Delete,
    };
    let lost = [
        "ipaddresses.networking.k8s.io/10.96.0.77",
        "nodeports/30001",
        "services/default/leaked",
    ];
    store.commit(lost.map(gone).into()).await.unwrap();
    let found = server.api.repair_allocations().await.unwrap();
    let found: BTreeSet<&str> = found
        .iter()
        .map(|event| event.event.message.as_str())
        .collect();
    let expected = [
        "Cluster IP [IPv4]: 10.96.0.77 is not allocated; repairing",
        "Port 30001 is not allocated; repairing",
        "IPAddress: 10.96.0.78 for Service default/leaked appears to have leaked: cleaning up",
        "the node port 30002 appears to have leaked: cleaning up",
    ];
    assert_eq!(found, BTreeSet::from(expected));
    assert_eq!(
        names(&server, ADDRESSES).await,
        BTreeSet::from(["10.96.0.1", "10.96.0.10", "10.96.0.77"].map(str::to_owned))
    );
    let ports = store
        .list(ListQuery {
            prefix: "nodeports/".to_owned(),
            ..ListQuery::default()
        })
        .await
        .unwrap()
        .entries;
    let held: Vec<_> = ports
        .iter()
        .map(|entry| (&*entry.key, entry.value.bytes()))
        .collect();
    assert_eq!(held, [("nodeports/30001", "default/lost".into())]);
    assert_eq!(
        server.api.repair_allocations().await.unwrap(),
        [],
        "nothing is found a second time"
    );
}

#[tokio::test]
async fn a_range_on_its_way_out_gives_no_more_addresses() {
    let server = Local::with(options(&["10.96.0.0/29"], 30000..=30010)).await;
    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    let (code, made) = server.admin_ask(Method::POST, RANGES, &range).await;
    assert_eq!(
        (code, &made["metadata"]["finalizers"]),
        (
            StatusCode::CREATED,
            &json!(["networking.k8s.io/service-cidr-finalizer"])
        )
    );
    assert_eq!(made["status"]["conditions"][0]["status"], "True");
    let one =
        |port: i64| json!({"ports": [{"port": port}], "clusterIP": format!("10.97.0.{port}")});
    assert_eq!(
        create(&server, "first", &one(5)).await.0,
        StatusCode::CREATED
    );
    let path = format!("{RANGES}/more");
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &path, &Value::Null)
            .await
            .0,
        StatusCode::OK
    );
    let (_, range) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert!(
        range["metadata"]["deletionTimestamp"].is_string(),
        "it waits for its controller: {range}"
    );
    let (code, refusal) = create(&server, "second", &one(6)).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{refusal}");
    let (code, _) = server
        .admin_ask(
            Method::DELETE,
            &format!("{ADDRESSES}/10.97.0.5"),
            &Value::Null,
        )
        .await;
    assert_eq!(code, StatusCode::FORBIDDEN, "a service has it");
}

#[tokio::test]
async fn a_service_gets_no_address_that_it_names_itself_unless_an_admin_allows_it() {
    let spec = json!({"ports": [{"port": 6443}], "externalIPs": ["192.0.2.1"]});
    let refused = server().await;
    let (status, answer) = create(&refused, "taker", &spec).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    let plain = json!({"ports": [{"port": 6443}]});
    assert_eq!(create(&refused, "web", &plain).await.0, StatusCode::CREATED);
    let (path, mut web) = (format!("{SERVICES}/web"), service("web", &spec));
    let (status, answer) = refused.admin_ask(Method::PUT, &path, &web).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");

    let disabled = EnabledPlugins::new(&[], &["DenyServiceExternalIPs"]).unwrap();
    let allowed = Local::with(Options {
        admission: disabled,
        ..options(&["10.96.0.0/24"], 30000..=32767)
    });
    let allowed = allowed.await;
    let (status, answer) = create(&allowed, "web", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    web["spec"]["externalIPs"] = json!([]);
    assert_eq!(
        allowed.admin_ask(Method::PUT, &path, &web).await.0,
        StatusCode::OK
    );
}
