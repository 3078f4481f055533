//! Invariants of the decision and of the queue, for generated clusters and histories.

use master_schedule::{
    NodeInfo, Plugins, PodKey, PodRequest, Queue, Snapshot, Unschedulable, choose,
};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

fn node(name: &str, cpu: u32, pods: u32) -> NodeInfo {
    let node = json!({"metadata": {"name": name}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": format!("{cpu}m"), "memory": "64Gi", "pods": pods.to_string()},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn zoned(name: &str, zone: u8) -> NodeInfo {
    let labels = json!({"topology.kubernetes.io/zone": format!("z{zone}")});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "4", "memory": "64Gi", "pods": "10"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn pod(name: &str, cpu: u32, port: Option<u16>, priority: i32) -> PodRequest {
    let ports: Vec<_> = port
        .iter()
        .map(|port| json!({"containerPort": port, "hostPort": port}))
        .collect();
    let pod = json!({
        "metadata": {"namespace": "d", "name": name, "uid": name},
        "spec": {"priority": priority, "containers": [
            {"name": "c", "ports": ports, "resources": {"requests": {"cpu": format!("{cpu}m")}}}]},
    });
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

type Size = (u32, Option<u16>);

/// The usage of a node, by the simplest possible accounting.
#[derive(Default)]
struct Held {
    cpu: u32,
    pods: u32,
    ports: BTreeSet<u16>,
}

impl Held {
    fn fits(&self, node: (u32, u32), pod: Size) -> bool {
        let port_free = pod.1.is_none_or(|port| !self.ports.contains(&port));
        self.cpu + pod.0 <= node.0 && self.pods < node.1 && port_free
    }

    fn add(&mut self, pod: Size) {
        self.cpu += pod.0;
        self.pods += 1;
        self.ports.extend(pod.1);
    }
}

proptest! {
    /// Sound: no node is overcommitted and no host port used twice. Complete: a refusal means that
    /// no node had room.
    #[test]
    fn no_node_is_overcommitted_and_a_refused_pod_fits_none(
        nodes in proptest::collection::vec((0_u32..4000, 0_u32..6), 0..5),
        pods in proptest::collection::vec((1_u32..1500, proptest::option::of(80_u16..83)), 0..25),
    ) {
        let mut snapshot = Snapshot::default();
        let mut held: BTreeMap<String, (usize, Held)> = BTreeMap::new();
        for (index, (cpu, pods)) in nodes.iter().enumerate() {
            let name = format!("n{index}");
            snapshot.set_node(node(&name, *cpu, *pods));
            held.insert(name, (index, Held::default()));
        }
        for (index, size) in pods.iter().enumerate() {
            let request = pod(&format!("p{index}"), size.0, size.1, 0);
            let room = held.values().filter(|(node, held)| held.fits(nodes[*node], *size)).count();
            match choose(&request, &snapshot) {
                Ok(placement) => {
                    prop_assert_eq!(placement.feasible, room);
                    let (node, held) = held.get_mut(&placement.node).expect("a node of the snapshot");
                    prop_assert!(held.fits(nodes[*node], *size));
                    held.add(*size);
                    snapshot.assume(request, &placement.node);
                }
                Err(Unschedulable::NoNodes) => prop_assert!(nodes.is_empty()),
                Err(Unschedulable::NoneFits { nodes: count, reasons, .. }) => {
                    prop_assert_eq!((room, count), (0, nodes.len()));
                    prop_assert!(reasons.values().sum::<usize>() >= count);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    /// In a cluster of which each decision looks at a part, a snapshot that followed any history of
    /// nodes decides as a fresh one.
    #[test]
    fn nodes_are_examined_in_the_same_order_after_any_history(
        steps in proptest::collection::vec((0_usize..160, proptest::option::of(0_u8..3)), 0..80),
    ) {
        let mut followed = Snapshot::default();
        let mut zones: BTreeMap<String, u8> = (0..140).map(|at| (format!("n{at}"), 0)).collect();
        for (name, zone) in &zones {
            followed.set_node(zoned(name, *zone));
        }
        for (at, zone) in steps {
            let name = format!("n{at}");
            if let Some(zone) = zone {
                followed.set_node(zoned(&name, zone));
                zones.insert(name, zone);
            } else {
                followed.remove_node(&name);
                zones.remove(&name);
            }
        }
        let mut fresh = Snapshot::default();
        for (name, zone) in &zones {
            fresh.set_node(zoned(name, *zone));
        }
        for at in 0..4 {
            let request = pod(&format!("p{at}"), 100, None, 0);
            let placement = choose(&request, &followed);
            prop_assert_eq!(&placement, &choose(&request, &fresh));
            if let Ok(placement) = placement {
                placement.assume(request.clone(), &mut followed);
                placement.assume(request, &mut fresh);
            }
        }
    }

    /// Placing and removing pods leaves no trace.
    #[test]
    fn removed_pods_free_all_that_they_requested(pods in proptest::collection::vec((1_u32..1500, proptest::option::of(80_u16..83), any::<bool>()), 0..20)) {
        let mut snapshot = Snapshot::default();
        snapshot.set_node(node("n", 4000, 10));
        let before = snapshot.clone();
        let requests: Vec<_> = pods.iter().enumerate().map(|(i, p)| (pod(&format!("p{i}"), p.0, p.1, 0), p.2)).collect();
        for (request, assumed) in &requests {
            if *assumed { snapshot.assume(request.clone(), "n") } else { snapshot.place(request.clone(), "n"); }
        }
        for (request, assumed) in &requests {
            if *assumed { snapshot.forget(&request.key, &request.uid) } else { snapshot.remove(&request.key) };
        }
        let room = |snapshot: &Snapshot| choose(&pod("all", 4000, Some(80), 0), snapshot).map(|placement| placement.node);
        prop_assert_eq!(room(&snapshot), room(&before));
        prop_assert!(requests.iter().all(|(request, _)| !snapshot.holds(&request.key, &request.uid)));
    }

    /// In any history, every pending pod is tried in the end, and only pending ones are.
    #[test]
    fn the_queue_loses_no_pod(steps in proptest::collection::vec((0_u8..7, 0_u8..6, 0_u64..400), 0..80)) {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        let mut known: BTreeSet<PodKey> = BTreeSet::new();
        let mut taken: BTreeMap<PodKey, u64> = BTreeMap::new();
        for (step, which, seconds) in steps {
            let request = pod(&format!("p{which}"), 1, None, i32::from(which % 3));
            let key = request.key.clone();
            match step {
                0 => { queue.push(request, now); known.insert(key); }
                1 => { queue.remove(&key); known.remove(&key); taken.remove(&key); }
                2 => if let Some((waiting, seen)) = queue.take() {
                    prop_assert!(known.contains(&waiting.request.key), "only pods that wait are taken");
                    prop_assert!(!taken.contains_key(&waiting.request.key), "a taken pod is not taken again");
                    taken.insert(waiting.request.key, seen);
                },
                3 => if taken.remove(&key).is_some() { queue.failed(&key, now); },
                4 => if let Some(seen) = taken.remove(&key) { queue.unschedulable(&key, Plugins::ALL, seen, now); },
                5 => queue.cluster_changed(now, Plugins::ALL, |_, _| true),
                _ => now += Duration::from_secs(seconds),
            }
            prop_assert_eq!(queue.len(), known.len());
        }
        for key in taken.into_keys() {
            queue.failed(&key, now);
        }
        queue.wake(now + Duration::from_secs(301));
        let tried: BTreeSet<PodKey> = std::iter::from_fn(|| queue.take()).map(|(waiting, _)| waiting.request.key).collect();
        prop_assert_eq!(tried, known);
    }

    /// In any history of a small queue, a pod without a node waits in it or is to be listed again,
    /// and every pod is decided in the end.
    #[test]
    fn a_full_queue_loses_no_pod(
        most in 1_usize..13,
        steps in proptest::collection::vec((0_u8..8, 0_u8..24, 0_u64..400), 0..120),
    ) {
        let mut queue = Queue::with_limit(most);
        let mut now = Instant::now();
        let mut pending: BTreeMap<PodKey, PodRequest> = BTreeMap::new();
        let mut taken: BTreeMap<PodKey, u64> = BTreeMap::new();
        for (step, which, seconds) in steps {
            let request = pod(&format!("p{which}"), 1, None, i32::from(which % 3));
            let key = request.key.clone();
            match step {
                0..3 => { queue.push(request.clone(), now); pending.insert(key, request); }
                3 => { queue.remove(&key); pending.remove(&key); taken.remove(&key); }
                4 => if let Some((waiting, seen)) = queue.take() { taken.insert(waiting.request.key, seen); },
                5 => if let Some((key, seen)) = taken.pop_first() { queue.unschedulable(&key, Plugins::ALL, seen, now); },
                6 => if let Some((key, _)) = taken.pop_last() { queue.bound(&key, &key.name); pending.remove(&key); },
                _ => { now += Duration::from_secs(seconds); queue.wake(now); },
            }
            relist(&mut queue, &pending, now);
            prop_assert!(queue.len() <= most);
            prop_assert!(taken.keys().all(|key| queue.knows(key, &key.name)), "no other pod takes their place");
            let waits = pending.keys().all(|key| queue.knows(key, &key.name));
            prop_assert!(waits || queue.left_out() > 0);
        }
        for key in taken.into_keys() {
            queue.failed(&key, now);
        }
        now += Duration::from_secs(301);
        queue.wake(now);
        while let Some((waiting, _)) = queue.take() {
            let PodRequest { key, uid, .. } = waiting.request;
            queue.bound(&key, &uid);
            pending.remove(&key);
            relist(&mut queue, &pending, now);
        }
        prop_assert!(pending.is_empty());
    }
}

/// Lists all pods that wait where the queue asks for it, as the loop does.
fn relist(queue: &mut Queue, pending: &BTreeMap<PodKey, PodRequest>, now: Instant) {
    if queue.must_relist(now) {
        queue.retain(&pending.keys().cloned().collect());
        for request in pending.values() {
            queue.push(request.clone(), now);
        }
    }
}

/// A part of the nodes is enough only where all of the part are feasible.
#[test]
fn the_only_node_with_room_is_found_among_many() {
    let mut snapshot = Snapshot::default();
    for at in 0..300 {
        let cpu = if at == 250 { 4000 } else { 100 };
        snapshot.set_node(node(&format!("n{at}"), cpu, 10));
    }
    for at in 0..4 {
        let request = pod(&format!("p{at}"), 1000, None, 0);
        let placement = choose(&request, &snapshot).expect("one has room");
        assert_eq!(
            (
                placement.node.as_str(),
                placement.feasible,
                placement.looked
            ),
            ("n250", 1, 300)
        );
        placement.assume(request, &mut snapshot);
    }
    let refused = choose(&pod("p4", 1000, None, 0), &snapshot).expect_err("none has room");
    let why = "0/300 nodes are available: 300 Insufficient cpu.";
    assert_eq!(refused.to_string(), why);
}

#[test]
fn the_queue_gives_out_pods_by_priority_and_then_by_age() {
    let mut queue = Queue::default();
    let now = Instant::now();
    for (name, priority) in [("old", 0), ("young", 0), ("urgent", 5)] {
        queue.push(pod(name, 1, None, priority), now);
    }
    let order: Vec<String> = std::iter::from_fn(|| queue.take())
        .map(|(waiting, _)| waiting.request.key.name)
        .collect();
    assert_eq!(order, ["urgent", "old", "young"]);
}

#[test]
fn failed_pods_are_tried_again_after_doubled_back_off() {
    let mut queue = Queue::default();
    let mut now = Instant::now();
    let request = pod("p", 1, None, 0);
    queue.push(request.clone(), now);
    for seconds in [1, 2, 4, 8, 10, 10] {
        queue.take().expect("it is its turn");
        queue.failed(&request.key, now);
        assert_eq!(queue.wake(now), Some(now + Duration::from_secs(seconds)));
        assert!(!queue.is_ready());
        now += Duration::from_secs(seconds);
        queue.wake(now);
        assert!(queue.is_ready());
    }
}

#[test]
fn an_unschedulable_pod_waits_for_a_change_of_the_cluster() {
    let mut queue = Queue::default();
    let now = Instant::now();
    let request = pod("p", 1, None, 0);
    queue.push(request.clone(), now);
    let (_, seen) = queue.take().expect("it is its turn");
    queue.unschedulable(&request.key, Plugins::ALL, seen, now);
    queue.wake(now + Duration::from_secs(60));
    assert!(!queue.is_ready(), "time alone changes nothing");
    queue.push(request.clone(), now);
    assert!(!queue.is_ready(), "its own status changes nothing");
    queue.cluster_changed(now + Duration::from_secs(60), Plugins::ALL, |_, _| true);
    assert!(queue.is_ready());
}

#[test]
fn a_change_during_a_decision_makes_the_pod_be_tried_again() {
    let mut queue = Queue::default();
    let now = Instant::now();
    let request = pod("p", 1, None, 0);
    queue.push(request.clone(), now);
    let (_, seen) = queue.take().expect("it is its turn");
    queue.cluster_changed(now, Plugins::ALL, |_, _| true);
    queue.unschedulable(&request.key, Plugins::ALL, seen, now);
    queue.wake(now + Duration::from_secs(1));
    assert!(queue.is_ready(), "it only backs off");
}

/// A queue of 20 pods that is full, of which another one is left out.
fn full(now: Instant) -> Queue {
    let mut queue = Queue::with_limit(20);
    for at in 0..20 {
        let request = pod(&format!("p{at}"), 1, None, 0);
        assert_eq!(queue.push(request, now), None);
    }
    let other = pod("other", 1, None, 0);
    assert_eq!(queue.push(other.clone(), now), Some(other.key));
    queue
}

/// Takes pods of the queue, which are bound.
fn bind(queue: &mut Queue, pods: usize) {
    for _ in 0..pods {
        let (waiting, _) = queue.take().expect("it is its turn");
        let PodRequest { key, uid, .. } = waiting.request;
        queue.bound(&key, &uid);
    }
}

#[test]
fn pods_are_listed_again_once_a_tenth_of_a_full_queue_is_free() {
    let now = Instant::now();
    let mut queue = full(now);
    assert_eq!((queue.len(), queue.left_out()), (20, 1));
    assert!(!queue.must_relist(now));
    bind(&mut queue, 2);
    assert!(!queue.must_relist(now), "a list costs more than that");
    bind(&mut queue, 1);
    assert!(queue.must_relist(now));
    assert!(!queue.must_relist(now), "it asks once");
}

/// The others may fit nowhere, and hold their places for good.
#[test]
fn pods_are_listed_again_after_a_while_where_less_is_free() {
    let now = Instant::now();
    let later = now + Duration::from_secs(300);
    let mut queue = full(now);
    assert!(!queue.must_relist(later), "there is no room");
    bind(&mut queue, 1);
    assert!(!queue.must_relist(now));
    assert!(queue.must_relist(later));
}

#[test]
fn a_full_queue_drops_the_youngest_pod_of_the_lowest_priority() {
    let mut queue = Queue::with_limit(3);
    let now = Instant::now();
    let mut push = |name: &str, priority| {
        let replaced = queue.push(pod(name, 1, None, priority), now);
        replaced.map(|key| key.name)
    };
    for (name, priority) in [("middle", 5), ("old", 0), ("young", 0)] {
        assert_eq!(push(name, priority), None);
    }
    assert_eq!(push("equal", 0).as_deref(), Some("equal"));
    assert_eq!(push("high", 9).as_deref(), Some("young"));
    assert_eq!(push("higher", 10).as_deref(), Some("old"));
    assert_eq!(push("late", 4).as_deref(), Some("late"));
    assert_eq!(queue.left_out(), 4);
    let order: Vec<String> = std::iter::from_fn(|| queue.take())
        .map(|(waiting, _)| waiting.request.key.name)
        .collect();
    assert_eq!(order, ["higher", "high", "middle"]);
}

/// What counts on a node must be bound there or be given up, which only its own turn does.
#[test]
fn a_pod_that_may_be_bound_is_not_dropped_from_a_full_queue() {
    let mut queue = Queue::with_limit(1);
    let now = Instant::now();
    let (low, high) = (pod("low", 1, None, 0), pod("high", 1, None, 9));
    queue.push(low.clone(), now);
    queue.take().expect("it is its turn");
    assert_eq!(queue.push(high.clone(), now), Some(high.key.clone()));
    queue.unclear(&low.key, now);
    queue.wake(now + Duration::from_secs(1));
    assert!(queue.is_ready());
    assert_eq!(queue.push(high.clone(), now), Some(high.key.clone()));
    queue.take().expect("it is its turn again");
    queue.failed(&low.key, now);
    assert_eq!(queue.push(high, now), Some(low.key), "it has no node");
}
