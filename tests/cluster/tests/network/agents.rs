//! An agent that is killed, and a machine that is lost, under calls.

use crate::api::HTTP;
use crate::calls::{Open, PATIENCE, REPEATS, name, reaches, repeat};
use crate::cluster::{Cluster, eventually};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tests_support::callers::Caller;

/// How often the agent is killed, and how often each caller is answered before the next thing
/// happens.
const KILLS: usize = 2;
const CALLS: usize = 20;
/// Between two calls of a caller: all of a pod stay within its share of new connections, 256 a
/// second.
const PACE: Duration = Duration::from_millis(25);

/// Calls a pod's program by connections of their own.
fn calls(place: &Path, to: SocketAddr, wanted: &[&str]) -> Caller {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let again = move || {
        let heard = name(to, PATIENCE).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert!(wanted.contains(&heard), "{to}: {heard:?}");
        thread::sleep(PACE);
    };
    Caller::new(
        format!("calls of {to} from {}", place.display()),
        place,
        again,
    )
}

/// Uses one connection, which must not break.
fn holds(place: &Path, to: SocketAddr) -> Caller {
    let mut open = Open::new(place, to);
    let again = move || {
        assert!(open.goes_on(PATIENCE), "{to}");
        thread::sleep(PACE);
    };
    Caller::new(format!("a connection to {to}"), place, again)
}

/// Waits until each caller is answered some more times.
fn progress(callers: &[Caller]) {
    let before: Vec<usize> = callers.iter().map(Caller::answered).collect();
    for (caller, before) in callers.iter().zip(before) {
        eventually(&caller.what, || {
            assert!(!caller.has_failed(), "{} has failed", caller.what);
            (caller.answered() >= before + CALLS).then_some(())
        });
    }
}

/// Callers on every path to and from a pod of the machine whose agent is killed: pod address,
/// `ClusterIP`, `NodePort`.
fn callers(cluster: &Cluster) -> Vec<Caller> {
    let [far, pod, _] = &cluster.pods;
    let [other, machine, _] = &cluster.machines;
    let (here, there) = (json!({"pod": pod.name}), json!({"pod": far.name}));
    let service = cluster.api.service("here", &here, &json!({}));
    let away = cluster.api.service("there", &there, &json!({}));
    let ports = json!([{"port": REPEATS, "targetPort": REPEATS}]);
    let open = cluster.api.service("open", &here, &json!({"ports": ports}));
    let mut callers = Vec::new();
    for family in 0..2 {
        let direct = |port: u16| SocketAddr::from((pod.addresses[family], port));
        let back = SocketAddr::from((far.addresses[family], HTTP));
        let inside = [&service, &away, &open].map(|one| one.inside()[family]);
        for (place, to, by) in [
            (&far.network, direct(HTTP), pod),
            (&far.network, inside[0], pod),
            (&pod.network, back, far),
            (&pod.network, inside[1], far),
            (&cluster.outside, service.at(machine)[family], pod),
            (&cluster.outside, service.at(other)[family], pod),
            (&cluster.outside, away.at(machine)[family], far),
        ] {
            reaches(place, to, &[&by.name]);
            callers.push(calls(place, to, &[&by.name]));
        }
        callers.extend([
            holds(&far.network, direct(REPEATS)),
            holds(&far.network, inside[2]),
            holds(&cluster.outside, open.at(machine)[family]),
        ]);
    }
    callers
}

pub(crate) fn an_agent_that_is_killed_breaks_no_connection_and_fails_no_call(cluster: &Cluster) {
    cluster.lose_third();
    let (far, pod, machine) = (&cluster.pods[0], &cluster.pods[1], &cluster.machines[1]);
    repeat(pod);
    let callers = callers(cluster);
    progress(&callers);
    for kill in 0..KILLS {
        machine.kill_agent();
        progress(&callers);
        machine.start_agent();
        // Known to the next agent alone.
        let name = format!("after-{kill}");
        let service = cluster
            .api
            .service(&name, &json!({"pod": far.name}), &json!({}));
        for to in service.inside() {
            reaches(&pod.network, to, &[&far.name]);
        }
        progress(&callers);
    }
    Caller::end(callers);
}

pub(crate) fn callers_are_led_away_from_a_machine_that_is_lost(cluster: &Cluster) {
    cluster.lose_third();
    let left = ["web-1", "web-2"];
    let mut callers = Vec::new();
    for (pod, machine) in cluster.pods.iter().zip(&cluster.machines).take(2) {
        let inside = cluster.web.inside().map(|to| (&pod.network, to));
        let outside = cluster.web.at(machine).map(|to| (&cluster.outside, to));
        for (place, to) in [inside, outside].concat() {
            reaches(place, to, &left);
            callers.push(calls(place, to, &left));
        }
    }
    progress(&callers);
    Caller::end(callers);
}
