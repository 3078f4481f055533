//! Autoscalers whose targets select the same pods: each is refused while there is another one, and
//! no longer once the other one ends or has no target.

use super::cluster::Cluster;
use super::{conditions, spec};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use master_client::{DeleteParams, Key};
use master_control::controller::Now;
use master_control::queue::Outcome;
use master_control::setup::{Setup, TestStores};
use master_control_scaling::HorizontalAutoscalers;
use master_control_workloads::workload::kept::Kept;
use serde_json::{Value, json};
use std::time::Duration;

/// The autoscalers, each with a Deployment of its name.
const NAMES: [&str; 2] = ["a", "b"];

/// The controller of the two, which looks at one when the test says so.
struct Pair {
    cluster: Cluster,
    controller: HorizontalAutoscalers,
    stores: TestStores,
    now: Now,
}

impl Pair {
    async fn new() -> Self {
        let cluster = Cluster::without_controllers().await;
        for name in NAMES {
            // A finalizer keeps an autoscaler that is being deleted.
            let meta =
                json!({"namespace": "default", "name": name, "finalizers": ["example.com/hold"]});
            let mut spec = spec(1, 5, Value::Null);
            spec.scale_target_ref.name = name.to_owned();
            let scaler = json!({"metadata": meta, "spec": spec});
            let _made: HorizontalPodAutoscaler = cluster.create(scaler).await;
            let containers = json!([{"name": "c", "image": "registry.example/c:1"}]);
            let template =
                json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}});
            let target = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
                "replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
            let _made: Deployment = cluster.create(target).await;
        }
        let options = master_control::Options::default();
        let (controller, stores) = Setup::for_test::<HorizontalAutoscalers>(&options);
        Self {
            cluster,
            controller,
            stores,
            now: Now::read(),
        }
    }

    /// Shows an autoscaler to the controller as it is now; the keys that this concerns.
    async fn show(&mut self, name: &str) -> Vec<Key> {
        let scaler: HorizontalPodAutoscaler = self.cluster.get(name).await;
        self.stores.see::<Kept<HorizontalPodAutoscaler>>(scaler)
    }

    /// Looks at an autoscaler, a minute later; whether it is refused for the other one.
    async fn is_ambiguous(&mut self, name: &str) -> bool {
        self.show(name).await;
        self.now.instant += Duration::from_secs(60);
        let key = Key::new("default", name);
        let admin = &self.cluster.admin;
        let run = self.stores.run(&self.controller, &key, self.now, admin);
        let outcome = run.await;
        assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
        let said = conditions(&self.cluster.get(name).await);
        let active = said.into_iter().find(|(kind, ..)| kind == "ScalingActive");
        let (_, status, reason) = active.expect("it has been looked at");
        status == "False" && reason == "AmbiguousSelector"
    }

    /// Two that are refused for each other.
    async fn refused() -> Self {
        let mut pair = Self::new().await;
        assert!(!pair.is_ambiguous("a").await, "it is the first one");
        assert!(pair.is_ambiguous("b").await);
        assert!(pair.is_ambiguous("a").await);
        pair
    }
}

#[tokio::test]
async fn an_autoscaler_that_is_being_deleted_lets_go_of_its_pods() {
    let mut pair = Pair::refused().await;
    let (admin, params) = (&pair.cluster.admin, DeleteParams::default());
    let deleted = admin.delete::<HorizontalPodAutoscaler>(Some("default"), "a", &params);
    deleted.await.expect("it begins to be deleted");
    assert_eq!(pair.show("a").await, [Key::new("default", "a")]);
    assert!(pair.is_ambiguous("a").await, "its status stays as it was");
    assert!(!pair.is_ambiguous("b").await);
}

#[tokio::test]
async fn an_autoscaler_that_lost_its_target_lets_go_of_its_pods() {
    let mut pair = Pair::refused().await;
    let (admin, params) = (&pair.cluster.admin, DeleteParams::default());
    let deleted = admin.delete::<Deployment>(Some("default"), "a", &params);
    deleted.await.expect("the target is deleted");
    assert!(pair.is_ambiguous("a").await, "nothing new is known of it");
    let scaler: HorizontalPodAutoscaler = pair.cluster.get("a").await;
    let lost = ["AbleToScale", "False", "FailedGetScale"].map(str::to_owned);
    assert!(conditions(&scaler).contains(&lost.into()), "{scaler:?}");
    assert!(!pair.is_ambiguous("b").await);
}
