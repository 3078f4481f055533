//! What the graph counts, and which objects a change touches.

use super::{FOREGROUND, Graph, Link, Node, ORPHAN, Uid, is_absent};
use master_client::{Meta, OwnerRef};
use master_control::queue::{MAX_PER_NAMESPACE, WorkQueue};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Instant;

/// An object as one step of a history has it.
#[derive(Debug, Clone)]
struct Step {
    number: usize,
    gone: bool,
    owners: Vec<Reference>,
    deleting: bool,
    finalizers: Vec<&'static str>,
    namespace: &'static str,
}

#[derive(Debug, Clone)]
struct Reference {
    owner: usize,
    name: usize,
    block: bool,
}

impl Reference {
    fn of(owner: usize, block: bool) -> Self {
        Self {
            owner,
            name: 0,
            block,
        }
    }
}

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn meta(number: usize, owners: &[Reference], finalizers: &[&str], deleting: bool) -> Meta {
    let owner = |reference: &Reference| OwnerRef {
        api_version: "v1".to_owned(),
        kind: "Thing".to_owned(),
        name: reference.name.to_string(),
        uid: uid(reference.owner),
        block: reference.block,
    };
    Meta {
        name: number.to_string(),
        namespace: "a".to_owned(),
        uid: uid(number),
        deletion_timestamp: deleting.then(|| "2026-01-01T00:00:00Z".to_owned()),
        finalizers: finalizers.iter().map(|name| (*name).to_owned()).collect(),
        owner_references: owners.iter().map(owner).collect(),
        ..Meta::default()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let reference = (0_usize..6, 0_usize..2, any::<bool>())
        .prop_map(|(owner, name, block)| Reference { owner, name, block });
    let owners = prop::collection::vec(reference, 0..5);
    let finalizers = prop::sample::subsequence(vec![FOREGROUND, ORPHAN], 0..=2);
    let namespace = prop::sample::select(vec!["", "a", "b"]);
    let step = (
        0_usize..6,
        0_usize..4,
        owners,
        any::<bool>(),
        finalizers,
        namespace,
    );
    step.prop_map(
        |(number, gone, owners, deleting, finalizers, namespace)| Step {
            number,
            gone: gone == 0,
            owners,
            deleting,
            finalizers,
            namespace,
        },
    )
}

fn take(graph: &mut Graph, step: &Step) {
    if step.gone {
        graph.gone(&uid(step.number));
        return;
    }
    let meta = Meta {
        namespace: step.namespace.to_owned(),
        ..meta(step.number, &step.owners, &step.finalizers, step.deleting)
    };
    graph.set(0, &meta);
}

/// Counts anew all that the graph counts.
fn recount(graph: &Graph) {
    for (uid, node) in &graph.nodes {
        let absent = |link: &&Link| is_absent(&graph.alive, link.owner, &node.id.namespace);
        let absent = node.links.iter().filter(absent).count();
        assert_eq!(node.absent, absent, "owners of {node:?} that are absent");
        let going = |link: &&Link| graph.going.contains(&link.owner);
        let going = node.links.iter().filter(going).count();
        assert_eq!(node.going, going, "owners of {node:?} that go");
        let suspect = absent > 0 && !node.deleting;
        assert_eq!(graph.suspects.contains(uid), suspect, "{node:?}");
        for owner in &node.owners {
            let all = &graph.dependents[&owner.uid].all;
            assert!(all.contains(uid), "{node:?} is no dependent of its owner");
        }
    }
    for (owner, dependents) in &graph.dependents {
        let all = dependents.all.iter().map(|uid| &graph.nodes[uid]);
        let all: Vec<&Node> = all.collect();
        let names = |node: &&&Node| {
            let mut owners = node.owners.iter();
            owners.any(|own| own.uid == *owner && own.reference.block)
        };
        let blocking = all.iter().filter(names).count();
        assert_eq!(dependents.blocking, blocking, "{owner:?}: blocking");
        let waiting = all.iter().filter(|node| node.waits()).count();
        assert_eq!(dependents.waiting, waiting, "{owner:?}: waiting");
        assert!(!all.is_empty(), "{owner:?} is kept without dependents");
    }
}

proptest! {
    /// Named invariant: after any history each count is what a recount gives.
    #[test]
    fn what_is_counted_at_each_change_is_what_there_is(history in prop::collection::vec(step(), 0..60)) {
        let mut graph = Graph::default();
        for step in &history {
            take(&mut graph, step);
            recount(&graph);
        }
    }
}

fn touched(graph: &mut Graph) -> usize {
    graph.touched().len()
}

/// An owner whose deletion waits, of `count` objects that do not block it.
fn family(count: usize) -> Graph {
    let mut graph = Graph::default();
    graph.set(0, &meta(0, &[], &[FOREGROUND], true));
    for number in 1..=count {
        graph.set(0, &meta(number, &[Reference::of(0, false)], &[], false));
    }
    graph.touched();
    graph
}

#[test]
fn many_references_with_one_uid_are_one_owner() {
    let mut graph = Graph::default();
    let references = |owner: usize| {
        let all = (0..100).map(|name| Reference {
            owner,
            name,
            block: name == 50,
        });
        all.collect::<Vec<Reference>>()
    };
    graph.set(0, &meta(0, &[], &[], false));
    graph.set(0, &meta(1, &references(0), &[], false));
    graph.set(0, &meta(2, &references(1), &[], false));
    let node = &graph.nodes[&Uid::of(&uid(2))];
    assert_eq!(node.links.len(), 1);
    assert_eq!(node.owners.len(), 100, "each name is looked up");
    let dependents = &graph.dependents[&Uid::of(&uid(1))];
    assert_eq!((dependents.all.len(), dependents.blocking), (1, 1));
}

#[test]
fn a_change_that_is_none_for_the_graph_touches_no_relative() {
    let mut graph = family(10);
    graph.set(0, &meta(1, &[Reference::of(0, false)], &[], false));
    assert_eq!(graph.touched(), [Uid::of(&uid(1)).key("a")]);
    graph.set(0, &meta(0, &[], &[FOREGROUND], true));
    assert_eq!(graph.touched(), [Uid::of(&uid(0)).key("a")]);
}

#[test]
fn only_the_first_dependent_that_blocks_touches_the_others() {
    let mut graph = family(10);
    graph.set(0, &meta(1, &[Reference::of(0, true)], &[], false));
    assert_eq!(touched(&mut graph), 11, "their action changes with it");
    graph.set(0, &meta(2, &[Reference::of(0, true)], &[], false));
    assert_eq!(touched(&mut graph), 2, "it and its owner");
}

#[test]
fn dependents_that_are_being_deleted_are_not_touched_for_their_owner() {
    let mut graph = family(10);
    for number in 2..=10 {
        let owners = [Reference::of(0, false)];
        graph.set(0, &meta(number, &owners, &["example.com/stays"], true));
    }
    graph.touched();
    graph.set(0, &meta(1, &[Reference::of(0, true)], &[], false));
    assert_eq!(touched(&mut graph), 2, "it and its owner");
}

#[test]
fn many_objects_to_collect_in_a_namespace_delay_those_of_others_by_a_turn() {
    let (mut graph, owners) = (Graph::default(), [Reference::of(0, false)]);
    // The owner is not there.
    for number in 1..=1_001 {
        let namespace = if number > 1_000 { "few" } else { "many" };
        let object = Meta {
            namespace: namespace.to_owned(),
            ..meta(number, &owners, &[], false)
        };
        graph.set(0, &object);
    }
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    for key in graph.touched() {
        queue.add(Arc::new(key), now);
    }
    assert_eq!(queue.depth(), 1_001);
    let taken = std::iter::from_fn(|| queue.take(now));
    let collected = taken.filter_map(|taken| graph.action(&taken.key));
    let namespaces = collected.map(|action| action.object().namespace.clone());
    let mut expected = vec!["many"; MAX_PER_NAMESPACE];
    expected.insert(1, "few");
    assert_eq!(namespaces.collect::<Vec<String>>(), expected);
}
