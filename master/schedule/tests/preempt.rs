//! Preemption, tested with objects as the API returns them.

use master_schedule::{
    Budget, Budgets, NodeInfo, PodKey, PodRequest, Preemption, Snapshot, Victim, choose, preempt,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn node(name: &str, cpu: i32) -> NodeInfo {
    let node = json!({"metadata": {"name": name, "labels": {"name": name}}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": cpu.to_string(), "memory": "64Gi", "pods": "110"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn pod(name: &str, priority: i32, cpu: i32, change: impl FnOnce(&mut Value)) -> PodRequest {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": name},
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu.to_string()}}}]},
    });
    change(&mut pod);
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

fn plain(name: &str, priority: i32, cpu: i32) -> PodRequest {
    pod(name, priority, cpu, |_| ())
}

fn budget(app: &str, allowed: i32) -> Budgets {
    let budget = json!({"metadata": {"namespace": "default", "name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": allowed}});
    let budget = Budget::of(&serde_json::from_value(budget).expect("a budget"));
    let key = PodKey {
        namespace: "default".to_owned(),
        name: app.to_owned(),
    };
    [(key, budget)].into()
}

fn victims(preemption: &Preemption) -> Vec<&str> {
    let victims = preemption.victims.iter();
    victims.map(|victim| victim.key.name.as_str()).collect()
}

/// Two nodes with two processors each.
fn cluster(pods: &[(&str, i32, i32, &str)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for name in ["n1", "n2"] {
        snapshot.set_node(node(name, 2));
    }
    for (name, priority, cpu, node) in pods {
        snapshot.place(plain(name, *priority, *cpu), node);
    }
    snapshot
}

fn found(pod: &PodRequest, snapshot: &Snapshot, budgets: &Budgets) -> (String, Vec<String>) {
    assert!(choose(pod, snapshot).is_err(), "it fits nowhere");
    let found = preempt(pod, snapshot, budgets).expect("others can end");
    let names = victims(&found).into_iter().map(str::to_owned).collect();
    (found.node, names)
}

fn why_not(pod: &PodRequest, snapshot: &Snapshot) -> String {
    let none = preempt(pod, snapshot, &Budgets::new()).expect_err("nobody should end");
    none.to_string()
}

#[test]
fn preemption_deletes_the_fewest_pods_and_the_lowest_priority_first() {
    let snapshot = cluster(&[("a", 1, 1, "n1"), ("b", 2, 1, "n1"), ("c", 9, 2, "n2")]);
    let pod = plain("p", 5, 1);
    let expected = ("n1".to_owned(), vec!["a".to_owned()]);
    assert_eq!(found(&pod, &snapshot, &Budgets::new()), expected);
    let larger = plain("p", 5, 2);
    let (_, both) = found(&larger, &snapshot, &Budgets::new());
    assert_eq!(both.len(), 2);
}

#[test]
fn preemption_chooses_a_node_by_budgets_then_priority_then_number_then_age() {
    let pod = plain("p", 9, 2);
    let choice =
        |pods: &[(&str, i32, i32, &str)], budgets: &Budgets| found(&pod, &cluster(pods), budgets).0;
    let even = [("a", 1, 2, "n1"), ("b", 1, 2, "n2")];
    assert_eq!(choice(&even, &budget("a", 0)), "n2");
    assert_eq!(choice(&even, &budget("b", 0)), "n1");
    assert_eq!(
        choice(&[("a", 2, 2, "n1"), ("b", 1, 2, "n2")], &budget("b", 0)),
        "n1",
        "budgets come first"
    );
    assert_eq!(
        choice(&[("a", 2, 2, "n1"), ("b", 1, 2, "n2")], &budget("b", 1)),
        "n2",
        "it allows one"
    );
    assert_eq!(
        choice(
            &[("a", 2, 2, "n1"), ("b", 1, 1, "n2"), ("c", 1, 1, "n2")],
            &Budgets::new()
        ),
        "n2"
    );
    assert_eq!(
        choice(
            &[("a", 1, 2, "n1"), ("b", 1, 1, "n2"), ("c", 1, 1, "n2")],
            &Budgets::new()
        ),
        "n1"
    );
    let mut snapshot = cluster(&[("a", 1, 2, "n1")]);
    let young = self::pod("b", 1, 2, |pod| {
        pod["status"] = json!({"startTime": "2026-02-01T00:00:00Z"});
    });
    snapshot.place(young, "n2");
    assert_eq!(
        found(&pod, &snapshot, &Budgets::new()).0,
        "n2",
        "the younger one ends"
    );
}

#[test]
fn preemption_spares_pods_of_a_disruption_budget_where_others_suffice() {
    let snapshot = cluster(&[("a", 1, 1, "n1"), ("b", 3, 1, "n1"), ("c", 99, 2, "n2")]);
    let pod = plain("p", 9, 1);
    let (_, names) = found(&pod, &snapshot, &budget("a", 0));
    assert_eq!(names, ["b"], "although it is more important");
}

#[test]
fn preemption_does_not_count_a_disrupted_pod_against_its_budget_again() {
    let snapshot = cluster(&[("a", 1, 1, "n1"), ("b", 3, 1, "n1"), ("c", 99, 2, "n2")]);
    let budget = json!({"metadata": {"namespace": "default", "name": "a"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "disruptedPods": {"a": "2026-01-01T00:00:00Z"}}});
    let budget = Budget::of(&serde_json::from_value(budget).expect("a budget"));
    let key = PodKey {
        namespace: "default".to_owned(),
        name: "a".to_owned(),
    };
    let (_, names) = found(&plain("p", 9, 1), &snapshot, &[(key, budget)].into());
    assert_eq!(names, ["a"]);
}

/// Nodes with a pod each that fills them; those from `from` on have the label `disk`.
fn many_nodes(nodes: usize, from: usize, victim: impl Fn(usize) -> PodRequest) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for at in 0..nodes {
        let name = format!("n{at:04}");
        let mut labels = json!({"name": name});
        if at >= from {
            labels["disk"] = "ssd".into();
        }
        let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "64Gi", "pods": "110"},
        }});
        snapshot.set_node(NodeInfo::of(&serde_json::from_value(node).expect("a node")));
        snapshot.place(victim(at), &name);
    }
    snapshot
}

/// As upstream documents: a tenth of the nodes where preemption may help, at least 100.
#[test]
fn preemption_chooses_among_a_tenth_of_the_nodes_where_it_may_help() {
    let chosen = |from: usize| {
        // From node to node, the victims are less important.
        let victim = |at: usize| {
            let important = 2000 - i32::try_from(at).expect("a small number");
            plain(&format!("v{at}"), important, 2)
        };
        let snapshot = many_nodes(2000, from, victim);
        let on_ssd = pod("p", 5000, 1, |pod| {
            pod["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        });
        found(&on_ssd, &snapshot, &Budgets::new()).0
    };
    assert_eq!(chosen(0), "n0199", "the last of 200 nodes");
    assert_eq!(chosen(1500), "n1599", "the last of 100 nodes, not of 200");
}

#[test]
fn preemption_looks_further_while_each_victim_violates_a_budget() {
    let victim = |at: usize| {
        let app = if at < 120 { "guarded" } else { "free" };
        pod(&format!("v{at}"), 1, 2, |pod| {
            pod["metadata"]["labels"] = json!({"app": app});
        })
    };
    let snapshot = many_nodes(150, 0, victim);
    let (node, _) = found(&plain("p", 9, 1), &snapshot, &budget("guarded", 0));
    assert_eq!(node, "n0120", "the first one after 120 that violate it");
}

#[test]
fn preemption_ends_the_pods_that_anti_affinity_refuses_and_no_others() {
    let snapshot = cluster(&[("a", 1, 1, "n1"), ("b", 1, 1, "n1"), ("c", 9, 1, "n2")]);
    let away_from_both = pod("p", 5, 0, |pod| {
        let needs = json!([{"key": "app", "operator": "In", "values": ["a", "c"]}]);
        let term = json!({"labelSelector": {"matchExpressions": needs}, "topologyKey": "name"});
        pod["spec"]["affinity"] =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    });
    let expected = ("n1".to_owned(), vec!["a".to_owned()]);
    assert_eq!(found(&away_from_both, &snapshot, &Budgets::new()), expected);
}

#[test]
fn preemption_that_does_not_help_is_reported_in_upstreams_words() {
    let snapshot = cluster(&[("a", 1, 2, "n1"), ("b", 7, 2, "n2")]);
    assert_eq!(
        why_not(&plain("p", 1, 1), &snapshot),
        "0/2 nodes are available: 2 No preemption victims found for incoming pod."
    );
    assert_eq!(
        why_not(&plain("p", 9, 3), &snapshot),
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    );
    let at_b = pod("p", 5, 1, |pod| {
        pod["spec"]["nodeSelector"] = json!({"name": "n2"});
    });
    assert_eq!(
        why_not(&at_b, &snapshot),
        "0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for \
         scheduling."
    );
    let never = pod("p", 9, 1, |pod| {
        pod["spec"]["preemptionPolicy"] = "Never".into();
    });
    assert_eq!(
        why_not(&never, &snapshot),
        "not eligible due to preemptionPolicy=Never."
    );
}

proptest! {
    /// Victims are less important and on one node; with them gone the pod fits there, and with any
    /// of them left it would not; the snapshot is as it was.
    #[test]
    fn preemption_victims_suffice_and_none_is_superfluous(
        pods in proptest::collection::vec((0..6_i32, 1..4_i32, 0..3_usize), 1..14),
        priority in 0..7_i32, cpu in 1..6_i32, protected in 0..14_usize,
    ) {
        let mut snapshot = Snapshot::default();
        let names = ["n0", "n1", "n2"];
        for name in names {
            snapshot.set_node(node(name, 6));
        }
        let mut placed = Vec::new();
        for (at, (priority, cpu, on)) in pods.into_iter().enumerate() {
            let pod = plain(&format!("v{at}"), priority, cpu);
            snapshot.place(pod.clone(), names[on]);
            placed.push((pod, names[on]));
        }
        let pod = plain("p", priority, cpu);
        let before = choose(&pod, &snapshot);
        if before.is_ok() {
            return Ok(());
        }
        let budgets = budget(&format!("v{protected}"), 0);
        if let Ok(found) = preempt(&pod, &snapshot, &budgets) {
            prop_assert!(!found.victims.is_empty());
            prop_assert_eq!(choose(&pod, &snapshot), before, "nothing is left changed");
            for Victim { key, .. } in &found.victims {
                let (victim, on) = placed.iter().find(|(one, _)| one.key == *key).expect("it is placed");
                prop_assert!(victim.priority < priority && *on == found.node);
                snapshot.remove(key);
            }
            prop_assert_eq!(choose(&pod, &snapshot).map(|found| found.node), Ok(found.node.clone()));
            for Victim { key, .. } in &found.victims {
                let (victim, _) = placed.iter().find(|(one, _)| one.key == *key).expect("it is placed");
                snapshot.place(victim.clone(), &found.node);
                prop_assert!(choose(&pod, &snapshot).is_err(), "{} need not end", key.name);
                snapshot.remove(key);
            }
        }
    }
}
