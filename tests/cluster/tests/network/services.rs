//! Pods and services of three machines, called from each of them and from outside.

use crate::api::{HTTP, MACHINE_HTTP, SERVICES};
use crate::calls::{Answer, answer, answer_by_name, is_refused, reaches, refuses};
use crate::cluster::{Cluster, outside};
use serde_json::json;

/// The pods of the service `web`.
const ALL: [&str; 3] = ["web-1", "web-2", "web-3"];

pub(crate) fn pods_reach_each_other_and_services_across_machines_by_both_families(
    cluster: &Cluster,
) {
    for (name, family) in [("four", "IPv4"), ("six", "IPv6")] {
        let ports = json!([{"port": 80, "targetPort": HTTP}]);
        let spec = json!({"ipFamilies": [family], "selector": {"app": "web"}, "ports": ports});
        cluster
            .api
            .create(SERVICES, &json!({"metadata": {"name": name}, "spec": spec}));
    }
    for caller in &cluster.pods {
        for callee in &cluster.pods {
            for (own, address) in caller.addresses.into_iter().zip(callee.addresses) {
                let heard = answer(&caller.network, (address, HTTP).into());
                let by = callee.name.clone();
                assert_eq!(heard, Answer { by, caller: own });
            }
        }
        for to in cluster.web.inside() {
            reaches(&caller.network, to, &ALL);
            // A port that the service does not have, by the ranges that nodes read at the API.
            refuses(&caller.network, (to.ip(), to.port() + 1).into());
        }
        let by_name = |name: &str| {
            let heard = answer_by_name(caller, name);
            assert!(ALL.contains(&&*heard.by), "{name}: {heard:?}");
            heard.caller
        };
        assert!(by_name("four").is_ipv4());
        assert!(by_name("six.default").is_ipv6());
        by_name("web.default.svc.cluster.local");
    }
    for machine in &cluster.machines {
        for to in cluster.web.at(machine) {
            reaches(&cluster.outside, to, &ALL);
        }
    }
}

/// A service for callers of its machine, and one of which a machine without endpoints says nothing
/// to callers outside.
pub(crate) fn traffic_policies_keep_calls_on_their_machine_and_show_the_caller(cluster: &Cluster) {
    let all = json!({"app": "web"});
    let near = json!({"internalTrafficPolicy": "Local"});
    let everywhere = cluster.api.service("near", &all, &near);
    let one = json!({"pod": "web-1"});
    let first = cluster.api.service("near-the-first", &one, &near);
    for pod in &cluster.pods {
        for to in everywhere.inside() {
            reaches(&pod.network, to, &[&pod.name]);
        }
    }
    let [pod, other, _] = &cluster.pods;
    let [machine, elsewhere, _] = &cluster.machines;
    // Callers outside come to endpoints anywhere.
    for to in first.at(elsewhere) {
        reaches(&cluster.outside, to, &["web-1"]);
    }
    for to in first.inside() {
        reaches(&pod.network, to, &["web-1"]);
        assert!(is_refused(&other.network, to), "{to} elsewhere");
    }

    let kept = json!({"externalTrafficPolicy": "Local"});
    let kept = cluster.api.service("kept", &one, &kept);
    for (to, (own, _)) in kept.at(machine).into_iter().zip(outside()) {
        let heard = answer(&cluster.outside, to);
        assert_eq!((&*heard.by, heard.caller), ("web-1", own));
    }
    // The other machine has the service, too, and its own pods come to endpoints anywhere.
    for to in kept.inside() {
        reaches(&other.network, to, &["web-1"]);
    }
    for to in kept.at(elsewhere) {
        assert!(is_refused(&cluster.outside, to), "{to} without endpoints");
    }
    // Where the policy does not ask for it, the caller is the machine that was called.
    for (to, (own, _)) in cluster.web.at(machine).into_iter().zip(outside()) {
        assert_ne!(answer(&cluster.outside, to).caller, own);
    }
}

pub(crate) fn a_service_leads_to_programs_of_the_machines_network(cluster: &Cluster) {
    let machine = &cluster.machines[1];
    let labels = json!({"app": "host"});
    let more = json!({"hostNetwork": true});
    let api = &cluster.api;
    api.create_pod_with("host-2", machine, &labels, MACHINE_HTTP, &more);
    let ports = json!({"ports": [{"port": 80, "targetPort": MACHINE_HTTP}]});
    let service = cluster.api.service("host", &labels, &ports);
    assert_eq!(api.ready("host-2", machine).addresses, machine.addresses);
    for pod in &cluster.pods {
        for to in service.inside() {
            reaches(&pod.network, to, &["host-2"]);
        }
    }
    for machine in &cluster.machines {
        for to in service.at(machine) {
            reaches(&cluster.outside, to, &["host-2"]);
        }
    }
}
