//! The pod network of three machines and of a host outside: network namespaces of this host on one
//! segment, with the real master, agents and containerd as processes, and the kernel's packet
//! filter. Pods' routes are plain: this kernel may have no WireGuard, with which machines are
//! joined in `stories`.
//!
//! All tests use one cluster ([`cluster::Cluster`]), in the order of [`main`]: the last machine is
//! lost in the middle of them, so that the master's patience with it runs out meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

mod agents;
mod api;
mod calls;
mod clients;
mod cluster;
mod datagrams;
mod policies;
mod services;

use agent_sys::namespace::{Kind, inside};
use cluster::Cluster;
use libtest_mimic::{Arguments, Conclusion, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use tests_support::switch::Switch;

/// What is shown of the cluster.
type Test = fn(&Cluster);

/// Tests, each under the name of its function.
macro_rules! tests {
    ($($function:path),* $(,)?) => {
        [$((stringify!($function), $function as Test)),*]
    };
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Switch::new(folder.path().join("switch"));
    let place = folder.path().join("outside");
    switch.add_host(&place, &cluster::outside());
    // The host outside is this process.
    let run = || Ok(run(&arguments, switch, &place));
    let conclusion = inside(&[(Kind::Network, &place)], run).unwrap();
    drop(folder);
    conclusion.exit();
}

fn run(arguments: &Arguments, switch: Switch, outside: &Path) -> Conclusion {
    let needed = !arguments.list;
    let cluster = needed.then(|| Arc::new(Cluster::start(switch, outside)));
    let tests = tests![
        services::pods_reach_each_other_and_services_across_machines_by_both_families,
        services::traffic_policies_keep_calls_on_their_machine_and_show_the_caller,
        services::a_service_leads_to_programs_of_the_machines_network,
        clients::kube_rs_in_pods_of_each_machine_uses_the_api_by_its_service,
        datagrams::datagrams_of_a_caller_follow_the_endpoints_of_a_service,
        policies::a_policy_and_its_changes_hold_across_machines_also_for_open_connections,
        agents::an_agent_that_is_killed_breaks_no_connection_and_fails_no_call,
        agents::callers_are_led_away_from_a_machine_that_is_lost,
    ];
    let trials = tests.map(|(name, test)| {
        let cluster = cluster.clone();
        Trial::test(name, move || {
            let cluster = cluster.unwrap();
            let ended = catch_unwind(AssertUnwindSafe(|| test(&cluster)));
            ended.map_err(|_panic| cluster.logs().into())
        })
    });
    libtest_mimic::run(arguments, trials.into())
}
