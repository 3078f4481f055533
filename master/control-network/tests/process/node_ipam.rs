//! Nodes get their ranges of pod addresses from the controller, through the real API server over
//! the real store.

use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::core::v1::{Event, Node};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use master_api::{ApiServer, Options};
use master_client::{Body, Client, DeleteParams, ListParams, Patch, UserInfo};
use master_control::pod_range::PodRange;
use master_control::{Controllers, Registration};
use master_control_network::node_ipam::NodeIpam;
use master_listener::{Extensions, Peer};
use master_schema::validate::net::Range;
use master_store::EmbeddedStore;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const CONTROLLER: &[Registration] = &[Registration::of::<NodeIpam>()];
/// Time for what the controller does, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(180);

struct Cluster {
    api: ApiServer,
    admin: Client,
    controller: JoinHandle<()>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controller.abort();
    }
}

fn controller(api: &ApiServer) -> JoinHandle<()> {
    let range = Range::parse("10.9.0.0/24").and_then(|range| PodRange::new(range, 25));
    let options = master_control::Options {
        pod_ranges: range.into_iter().collect(),
        ..master_control::Options::default()
    };
    let user = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
    let controllers = Controllers::of(CONTROLLER, options);
    tokio::spawn(controllers.run(api.client(user), std::future::pending()))
}

async fn cluster() -> Cluster {
    let store = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(store.path()).expect("an empty store opens");
    let options = Options {
        roles: master_control::roles(CONTROLLER),
        ..Options::default()
    };
    let api = ApiServer::new(Arc::new(engine), options);
    api.prepare().await.expect("the system namespaces are made");
    Cluster {
        admin: api.client(UserInfo::admin("admin")),
        controller: controller(&api),
        api,
        _store: store,
    }
}

impl Cluster {
    async fn join(&self, name: &str) {
        let node = json!({"metadata": {"name": name}});
        let node: Node = serde_json::from_value(node).expect("a node");
        self.admin.create(&node).await.expect("the node is made");
    }

    /// The ranges of all nodes by their names.
    async fn ranges(&self) -> BTreeMap<String, String> {
        let nodes = self.admin.list::<Node>(None, &ListParams::default()).await;
        let nodes = nodes.expect("the nodes are listed").items.into_iter();
        let entry = |node: Node| {
            let spec = node.spec.unwrap_or_default();
            let ranges = spec.pod_cidrs.unwrap_or_default();
            assert_eq!(spec.pod_cidr.as_ref(), ranges.first());
            (node.metadata.name.unwrap_or_default(), ranges.join(","))
        };
        nodes.map(entry).collect()
    }

    async fn becomes(&self, expected: &[(&str, &str)]) {
        let expected: BTreeMap<String, String> = expected
            .iter()
            .map(|(name, ranges)| ((*name).to_owned(), (*ranges).to_owned()))
            .collect();
        let limit = Instant::now() + LIMIT;
        loop {
            let now = self.ranges().await;
            if now == expected {
                return;
            }
            assert!(Instant::now() < limit, "{now:?} is not {expected:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until an event reports that no range is left for a node.
    async fn is_reported(&self, node: &str) {
        let limit = Instant::now() + LIMIT;
        loop {
            let events = self.admin.list::<Event>(None, &ListParams::default()).await;
            let events = events.expect("the events are listed").items;
            if events.iter().any(|event| {
                event.reason.as_deref() == Some("CIDRNotAvailable")
                    && event.involved_object.name.as_deref() == Some(node)
            }) {
                return;
            }
            assert!(Instant::now() < limit, "no event about {node}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_ranges_until_none_is_left_and_they_come_back_with_a_node() {
    let mut cluster = cluster().await;
    cluster.join("a").await;
    cluster.becomes(&[("a", "10.9.0.0/25")]).await;
    // A restarted controller knows the allocated ranges.
    cluster.controller.abort();
    cluster.controller = controller(&cluster.api);
    cluster.join("b").await;
    let two = [("a", "10.9.0.0/25"), ("b", "10.9.0.128/25")];
    cluster.becomes(&two).await;
    cluster.join("c").await;
    cluster.is_reported("c").await;
    cluster.becomes(&[two[0], two[1], ("c", "")]).await;
    let params = DeleteParams::default();
    let gone = cluster.admin.delete::<Node>(None, "a", &params).await;
    gone.expect("the node goes");
    cluster.becomes(&[two[1], ("c", "10.9.0.0/25")]).await;
}

/// Lets nodes register themselves.
#[derive(Debug)]
struct Open;

impl Extensions for Open {
    fn claims(&self, _: &str) -> bool {
        false
    }

    fn may_register(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        Box::pin(std::future::ready(Response::new(master_client::body(""))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_choose_its_ranges_itself() {
    let cluster = cluster().await;
    cluster.api.set_extensions(Arc::new(Open));
    let node = UserInfo::authenticated("system:node:n", vec!["system:nodes".to_owned()]);
    let kubelet = cluster.api.client(node);
    let own = |spec: serde_json::Value| {
        let node = json!({"metadata": {"name": "n"}, "spec": spec});
        serde_json::from_value::<Node>(node).expect("a node")
    };
    for spec in [
        json!({"podCIDRs": ["10.9.0.0/25"]}),
        json!({"podCIDR": "0.0.0.0/0"}),
    ] {
        let refused = kubelet.create(&own(spec)).await.unwrap_err().to_string();
        assert!(refused.contains("ranges of pod addresses"), "{refused}");
    }
    kubelet.create(&own(json!({}))).await.expect("it registers");
    cluster.becomes(&[("n", "10.9.0.0/25")]).await;
    let patch =
        Patch::Merge(json!({"spec": {"podCIDRs": ["10.9.0.0/24"], "podCIDR": "10.9.0.0/24"}}));
    let refused = kubelet.patch::<Node>(None, "n", &patch).await;
    assert!(refused.is_err(), "{refused:?}");
}
