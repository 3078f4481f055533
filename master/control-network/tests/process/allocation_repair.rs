//! The controller repairs lost allocations, through the real API server over the real store.

use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::core::v1::{Event, Service};
use config_kube::k8s_openapi::api::networking::v1::IPAddress;
use master_api::{ApiServer, Options};
use master_client::{ApiError, BoxFuture, Key, ListParams, ObjectEvent, UserInfo};
use master_control::Controllers;
use master_control::controller::{Controller, Now, Plan};
use master_control::options::Allocations;
use master_control::setup::Setup;
use master_control_network::CONTROLLERS;
use master_control_network::allocation_repair::{AllocationRepair, PERIOD, Repair};
use master_store::{Action, EmbeddedStore, Expect, Op, Store};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time for what the controller does, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(180);

/// The API server as the implementation of [`Allocations`].
#[derive(Debug)]
struct Repairs(ApiServer);

impl Allocations for Repairs {
    fn repair(&self) -> BoxFuture<'_, Result<Vec<ObjectEvent>, ApiError>> {
        Box::pin(self.0.repair_allocations())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_allocation_of_a_service_is_made_again_with_an_event() {
    let folder = TempDir::new().expect("a folder for the store");
    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("an empty store opens"));
    let options = Options {
        roles: master_control::roles(CONTROLLERS),
        ..Options::default()
    };
    let api = ApiServer::new(Arc::clone(&store) as Arc<dyn Store>, options);
    api.prepare().await.expect("the system namespaces are made");
    let admin = api.client(UserInfo::admin("admin"));
    let service = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {
        "clusterIP": "10.96.0.77", "ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).expect("a service");
    admin.create(&service).await.expect("the service is made");
    let lost = Op {
        key: "ipaddresses.networking.k8s.io/10.96.0.77".into(),
        expect: Expect::Any,
        action: Action::Delete,
    };
    store
        .commit(vec![lost])
        .await
        .expect("the store is written to");
    assert!(admin.get::<IPAddress>(None, "10.96.0.77").await.is_err());

    let user = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
    let options = master_control::Options {
        allocations: Some(Arc::new(Repairs(api.clone()))),
        ..master_control::Options::default()
    };
    let controllers = Controllers::new(options).with::<AllocationRepair>();
    let running = tokio::spawn(controllers.run(api.client(user), std::future::pending()));
    let limit = Instant::now() + LIMIT;
    loop {
        let events = admin.list::<Event>(None, &ListParams::default()).await;
        let events = events.expect("the events are listed").items;
        if events.iter().any(|event| {
            event.reason.as_deref() == Some("ClusterIPNotAllocated")
                && event.involved_object.name.as_deref() == Some("web")
        }) {
            break;
        }
        assert!(Instant::now() < limit, "no event about the repair");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let address = admin.get::<IPAddress>(None, "10.96.0.77").await;
    let address = address.expect("it is allocated again");
    assert_eq!(address.spec.parent_ref.name, "web");
    running.abort();
}

#[test]
fn everything_is_checked_at_the_start_and_then_from_time_to_time() {
    let now = Now::read();
    let mut due = Plan::act(Repair);
    due.requeue_in(PERIOD);
    assert_eq!(AllocationRepair::plan(&(), now), due);
    let (nobody, _) = Setup::for_test::<AllocationRepair>(&master_control::Options::default());
    assert_eq!(nobody.facts(&Key::cluster("allocations"), now), None);
}
