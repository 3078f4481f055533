//! A network policy, and its changes.

use crate::api::{HTTP, POLICIES, Pod};
use crate::calls::{MOMENT, Open, PATIENCE, REPEATS, answer, is_refused, repeat};
use crate::cluster::{Cluster, eventually};
use http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A pod's open connections to the one that is guarded, of both families.
struct Caller<'a> {
    pod: &'a Pod,
    open: [Open; 2],
    /// Where new ones go.
    new: [SocketAddr; 2],
}

impl<'a> Caller<'a> {
    fn new(pod: &'a Pod, guarded: &Pod) -> Self {
        let at = |port: u16| guarded.addresses.map(|address| (address, port).into());
        Self {
            pod,
            open: at(REPEATS).map(|to| Open::new(&pod.network, to)),
            new: at(HTTP),
        }
    }

    /// Waits until its open connections are cut, and no new ones are opened.
    fn is_cut_off(&mut self) {
        let Self { pod, open, new } = self;
        eventually(&format!("{} to be cut off", pod.name), || {
            let is_cut = open.iter_mut().all(|open| !open.goes_on(MOMENT));
            let mut new = new.iter();
            (is_cut && new.all(|to| is_refused(&pod.network, *to))).then_some(())
        });
    }

    /// Its open connections go on, and it opens new ones.
    fn passes(&mut self) {
        for open in &mut self.open {
            assert!(open.goes_on(PATIENCE), "{}", self.pod.name);
        }
        for to in self.new {
            answer(&self.pod.network, to);
        }
    }
}

pub(crate) fn a_policy_and_its_changes_hold_across_machines_also_for_open_connections(
    cluster: &Cluster,
) {
    cluster.lose_third();
    let labels = json!({"app": "stranger"});
    let (api, machine) = (&cluster.api, &cluster.machines[1]);
    api.create_pod("stranger", machine, &labels);
    let stranger = api.ready("stranger", machine);
    let [guarded, friend, _] = &cluster.pods;
    repeat(guarded);
    let [mut friend, mut stranger] = [friend, &stranger].map(|pod| Caller::new(pod, guarded));
    for caller in [&mut friend, &mut stranger] {
        caller.passes();
    }
    let lets_in = |pod: &str| {
        let from = json!([{"podSelector": {"matchLabels": {"pod": pod}}}]);
        let ingress = json!([{"from": from, "ports": [{"port": HTTP}, {"port": REPEATS}]}]);
        json!({"podSelector": {"matchLabels": {"pod": guarded.name}}, "ingress": ingress})
    };
    let policy = json!({"metadata": {"name": "guards"}, "spec": lets_in(&friend.pod.name)});
    api.create(POLICIES, &policy);
    stranger.is_cut_off();
    friend.passes();
    let policy = format!("{POLICIES}/guards");
    let other = json!({"spec": lets_in(&stranger.pod.name)});
    api.ask(Method::PATCH, &policy, &other).unwrap();
    friend.is_cut_off();
    stranger.passes();
    api.ask(Method::DELETE, &policy, &Value::Null).unwrap();
    friend.passes();
    stranger.passes();
}
