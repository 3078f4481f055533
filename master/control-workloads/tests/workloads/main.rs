//! The controllers of workloads: the plan of each from the content of its stores, without an API
//! and without waiting, and (in `life` and `served`) the result against the real API.

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests may stop at the first surprise, and cases are written in place"
)]

mod budgets;
mod cron_jobs;
mod daemons;
mod deployment;
mod jobs;
mod life;
mod replicas;
mod served;
mod stateful;

use config_kube::k8s_openapi::serde::de::DeserializeOwned;
use jiff::{SignedDuration, Timestamp};
use master_client::Key;
use master_control::controller::{Controller, Now, Plan};
use master_control::options::Options;
use master_control::setup::{Setup, TestStores};
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::{OwnedPod, Owner};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time at which each scene begins.
fn epoch() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000)
}

fn at(seconds: i64) -> Timestamp {
    epoch() + SignedDuration::from_secs(seconds)
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn kept<T: DeserializeOwned>(object: Value) -> Kept<T> {
    Kept(serde_json::from_value(object).expect("an object of its kind"))
}

/// A controller with its stores and a clock.
struct Scene<C> {
    controller: C,
    stand: TestStores,
    start: Instant,
}

impl<C: Controller> Scene<C> {
    fn new() -> Self {
        let (controller, stand) = Setup::for_test(&Options::default());
        let start = Instant::now();
        Self {
            controller,
            stand,
            start,
        }
    }

    fn now(&self, seconds: u64) -> Now {
        let passed = Duration::from_secs(seconds);
        Now {
            instant: self.start + passed,
            wall: epoch() + SignedDuration::try_from(passed).unwrap(),
        }
    }

    fn plan(&self, key: &Key, seconds: u64) -> Plan<C::Action> {
        let now = self.now(seconds);
        let facts = self.controller.facts(key, now);
        facts.map_or_else(Plan::nothing, |facts| C::plan(&facts, now))
    }
}

/// A running and ready pod of an owner.
fn pod_of(kind: &str, owner: &str, uid: &str) -> OwnedPod {
    OwnedPod {
        uid: uid.to_owned(),
        created: Some(at(0)),
        node: "n1".into(),
        phase: "Running".into(),
        labels: Arc::new([("app".to_owned(), "web".to_owned())].into()),
        owner: Some(Arc::new(Owner {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: owner.to_owned(),
            uid: format!("{owner}-uid"),
        })),
        ready: Some(at(0)),
        ..OwnedPod::default()
    }
}
