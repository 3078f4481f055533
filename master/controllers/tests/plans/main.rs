//! The plan of each controller for a key, from its stores and the time, without an API and without
//! waiting.
mod cluster;
mod lifecycle;
mod pods;

use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::{SignedDuration, Timestamp};
use master_client::{Key, View};
use master_control::controller::{Controller, Now, Plan};
use master_control::options::Options;
use master_control::setup::{Setup, TestStores};
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use std::time::{Duration, Instant};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

struct Clock(Instant, Timestamp);

impl Clock {
    fn new() -> Self {
        Self(
            Instant::now(),
            Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000),
        )
    }

    fn after(&self, seconds: u64) -> Now {
        let passed = Duration::from_secs(seconds);
        let wall = SignedDuration::try_from(passed).expect("a short time");
        Now {
            instant: self.0 + passed,
            wall: self.1 + wall,
        }
    }
}

/// A controller with its stores and a clock.
struct Scene<C> {
    controller: C,
    stand: TestStores,
    clock: Clock,
}

impl<C: Controller> Scene<C> {
    fn new() -> Self {
        Self::with(&Options::default())
    }

    fn with(options: &Options) -> Self {
        let (controller, stand) = Setup::for_test(options);
        Self {
            controller,
            stand,
            clock: Clock::new(),
        }
    }

    fn set<V: View>(&mut self, key: Key, value: V) -> Vec<Key> {
        self.stand.set(key, value)
    }

    fn plan(&self, key: &Key, seconds: u64) -> Plan<C::Action> {
        let now = self.clock.after(seconds);
        let facts = self.controller.facts(key, now);
        facts.map_or_else(Plan::nothing, |facts| C::plan(&facts, now))
    }

    /// The actions for one key.
    fn actions(&self, key: &Key, seconds: u64) -> Vec<C::Action> {
        self.plan(key, seconds).actions
    }

    /// Names of the keys with actions.
    fn busy(&self, keys: &[&Key], seconds: u64) -> Vec<String> {
        let busy = keys
            .iter()
            .filter(|key| !self.actions(key, seconds).is_empty());
        busy.map(|key| key.name.clone()).collect()
    }
}

fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        ..NodeCondition::default()
    }
}

fn node(ready: &str) -> NodeView {
    NodeView {
        uid: "uid".to_owned(),
        version: "7".to_owned(),
        conditions: vec![condition("Ready", ready)],
        ..NodeView::default()
    }
}

fn taint(key: &str, effect: &str, added: Timestamp) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        value: None,
        time_added: Some(Time(added)),
    }
}

fn pod(node: &str) -> PodView {
    PodView {
        uid: "pod-uid".to_owned(),
        node: node.into(),
        phase: "Running".into(),
        ready: true,
        ..PodView::default()
    }
}

fn named(name: &str) -> Key {
    Key::cluster(name)
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}
