//! The cost of controllers in a large cluster: a changed pod leads to plans for its own key only,
//! and without changes nothing is planned.
//!
//! `PRATIQUE_PODS=50000 cargo test -p master-controllers --test scale -- --nocapture` measures the
//! idle cost at that size.

#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::core::v1::Pod;
use futures_util::stream::{self, StreamExt};
use master_api::{ApiServer, Options};
use master_client::{Client, Patch, UserInfo};
use master_control::Controllers;
use master_controllers::all;
use master_store::EmbeddedStore;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time for what the controllers do.
const LIMIT: Duration = Duration::from_secs(180);
/// For how long the idle cost is measured.
const IDLE: Duration = Duration::from_secs(20);
/// Controllers whose keys are pods.
const OF_PODS: [&str; 3] = ["pod-readiness", "taint-eviction", "pod-gc"];
/// Controllers that follow pods or all objects, and have nothing to plan here.
const OTHERS: [&str; 4] = [
    "node-lifecycle",
    "garbage-collector",
    "resourcequota-controller",
    "storage-protection",
];

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < limit, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn make_pod(admin: &Client, number: usize) {
    let pod = json!({"metadata": {"namespace": "default", "name": format!("p{number}")}, "spec": {
        "containers": [{"name": "c", "image": "registry.example/c:1"}]}});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    admin.create(&pod).await.expect("the pod is made");
}

/// Seconds of processor time that this process has taken, by the kernel's hundredths (proc(5),
/// `stat`).
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, rest) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = rest.split_whitespace().skip(11).take(2);
    let ticks: u32 = ticks
        .map(|text| text.parse::<u32>().expect("a number"))
        .sum();
    f64::from(ticks) / 100.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_pod_costs_its_own_key_and_an_idle_cluster_costs_nothing() {
    let measured = std::env::var("PRATIQUE_PODS").ok();
    let pods: usize = measured
        .as_deref()
        .map_or(300, |text| text.parse().expect("a number"));
    let folder = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(folder.path()).expect("an empty store opens");
    let api = ApiServer::new(
        Arc::new(engine),
        Options {
            roles: master_control::roles(&all()),
            ..Options::default()
        },
    );
    api.prepare().await.expect("the system namespaces are made");
    let admin = api.client(UserInfo::admin("admin"));
    let own = api.client(UserInfo::authenticated(
        CONTROLLER_MANAGER_USER,
        Vec::<String>::new(),
    ));
    let controllers = Controllers::of(&all(), master_control::Options::default());
    let figures = controllers.figures();
    let running = tokio::spawn(controllers.run(own, std::future::pending()));
    stream::iter(0..pods)
        .for_each_concurrent(16, |number| make_pod(&admin, number))
        .await;
    for name in OF_PODS {
        until("every pod is planned", || figures.runs(name) >= pods as u64).await;
    }
    if measured.is_some() {
        let (before, plans) = (processor_time(), figures.all_runs());
        tokio::time::sleep(IDLE).await;
        let share = (processor_time() - before) / IDLE.as_secs_f64() * 100.0;
        println!(
            "{} controllers, {pods} pods, idle: {share:.2} % of a core, {} plans in {IDLE:?}",
            all().len(),
            figures.all_runs() - plans
        );
    }
    let status = json!({"status": {"phase": "Running"}});
    admin
        .patch_status::<Pod>(Some("default"), "p7", &Patch::Strategic(status))
        .await
        .expect("its phase changes");
    let planned = pods as u64 + 1;
    for name in OF_PODS {
        until("the pod is planned", || figures.runs(name) >= planned).await;
    }
    for name in OF_PODS {
        assert_eq!(figures.runs(name), planned, "{name}");
    }
    for name in OTHERS {
        assert_eq!(figures.runs(name), 0, "{name} has no key here");
    }
    running.abort();
}
