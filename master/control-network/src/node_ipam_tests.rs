//! Tests of node IPAM: which part of a range a node gets, and what is kept free.

use super::*;
use proptest::prelude::*;

fn range(text: &str, node_prefix: u8) -> PodRange {
    PodRange::new(Range::parse(text).unwrap(), node_prefix).unwrap()
}

fn free(name: &str) -> Claim {
    Claim {
        name: name.to_owned(),
        uid: format!("{name}-uid"),
        ..Claim::default()
    }
}

fn with(name: &str, ranges: &[&str]) -> Claim {
    Claim {
        ranges: ranges
            .iter()
            .map(|text| Range::parse(text).unwrap())
            .collect(),
        has: true,
        ..free(name)
    }
}

/// `node: range,range`, or `node!` where nothing is free.
fn planned(ranges: &[PodRange], nodes: &[Claim], last: &[usize]) -> Vec<String> {
    let words = |action: &Action| match action {
        Action::Give { name, ranges, .. } => {
            let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            format!("{name}: {}", texts.join(","))
        }
        Action::Event { name, .. } => format!("{name}!"),
    };
    give(ranges, nodes, last).iter().map(words).collect()
}

#[test]
fn nodes_without_ranges_get_a_part_of_each() {
    let both = [range("10.244.0.0/16", 24), range("fd00:1::/48", 64)];
    let nodes = [with("a", &["10.244.0.0/24"]), free("b"), free("c")];
    assert_eq!(
        planned(&both, &nodes, &[]),
        [
            "b: 10.244.1.0/24,fd00:1::/64",
            "c: 10.244.2.0/24,fd00:1:0:1::/64"
        ]
    );
}

#[test]
fn what_was_asked_for_is_asked_for_again_and_given_to_nobody_else() {
    let ranges = [range("10.244.0.0/16", 24)];
    let asked = Claim {
        asked: vec![Range::parse("10.244.0.0/24").unwrap()],
        ..free("b")
    };
    assert_eq!(
        planned(&ranges, &[free("a"), asked], &[]),
        ["a: 10.244.1.0/24", "b: 10.244.0.0/24"]
    );
}

/// The first write that fails ends the run.
#[test]
fn a_write_that_the_api_refuses_again_and_again_keeps_no_other_node_waiting() {
    let ranges = [range("10.0.0.0/23", 24)];
    let refused = Claim {
        asked: vec![Range::parse("10.0.0.0/24").unwrap()],
        ..free("a")
    };
    assert_eq!(
        planned(&ranges, &[refused, free("b"), free("c")], &[]),
        ["b: 10.0.1.0/24", "c!", "a: 10.0.0.0/24"]
    );
}

#[test]
fn a_repeated_write_is_not_the_last_assigned_part() {
    let ranges = [range("10.0.0.0/22", 24)];
    let mut memory = Memory::default();
    let [refused, given] = ["10.0.0.0/24", "10.0.1.0/24"].map(|text| Range::parse(text).unwrap());
    memory.note(&ranges, "a-uid", &[refused]);
    memory.note(&ranges, "b-uid", &[given]);
    memory.note(&ranges, "a-uid", &[refused]);
    assert_eq!(memory.last, [1]);
    // The part of `b` was released, and is not the next one.
    let asked = Claim {
        asked: vec![refused],
        ..free("a")
    };
    assert_eq!(
        planned(&ranges, &[asked, free("c")], &memory.last),
        ["c: 10.0.2.0/24", "a: 10.0.0.0/24"]
    );
}

#[test]
fn ranges_of_other_sizes_and_of_other_hands_are_kept_free() {
    let ranges = [range("10.244.0.0/16", 24)];
    let nodes = [
        with("larger", &["10.244.0.0/23"]),
        with("smaller", &["10.244.2.128/25"]),
        with("elsewhere", &["192.168.0.0/24"]),
        with("over-the-end", &["10.244.255.0/24"]),
        free("z"),
    ];
    assert_eq!(planned(&ranges, &nodes, &[]), ["z: 10.244.3.0/24"]);
    let whole = [with("all", &["10.0.0.0/8"]), free("z")];
    assert_eq!(planned(&ranges, &whole, &[]), ["z!"]);
    // A node whose value is not a range is left alone.
    let unread = Claim {
        has: true,
        ..free("a")
    };
    assert_eq!(planned(&ranges, &[unread], &[]), [""; 0]);
}

#[test]
fn a_full_range_is_reported_and_takes_nothing_of_the_other() {
    let both = [range("10.0.0.0/24", 25), range("fd00::/48", 64)];
    let nodes = [free("a"), free("b"), free("c"), free("d")];
    let expected = [
        "a: 10.0.0.0/25,fd00::/64",
        "b: 10.0.0.128/25,fd00:0:0:1::/64",
        "c!",
        "d!",
    ];
    assert_eq!(planned(&both, &nodes, &[]), expected);
}

#[test]
fn a_part_that_came_back_is_given_last() {
    let ranges = [range("10.0.0.0/22", 24)];
    let nodes = [with("a", &["10.0.1.0/24"]), free("b")];
    assert_eq!(planned(&ranges, &nodes, &[2]), ["b: 10.0.3.0/24"]);
    assert_eq!(planned(&ranges, &nodes, &[3]), ["b: 10.0.0.0/24"]);
    let nodes = [with("a", &["10.0.0.0/24"]), free("b")];
    assert_eq!(planned(&ranges, &nodes, &[3]), ["b: 10.0.1.0/24"]);
}

#[test]
fn sizes_that_cannot_be_counted_are_refused() {
    let of = |text: &str, prefix| PodRange::new(Range::parse(text).unwrap(), prefix);
    assert!(of("10.0.0.0/8", 24).is_some() && of("10.0.0.0/24", 24).is_some());
    assert_eq!(of("10.0.0.0/7", 24), None);
    assert_eq!(of("10.0.0.0/24", 23), None);
    assert_eq!(of("10.0.0.0/24", 33), None);
}

#[derive(Debug, Clone)]
enum Event {
    Join(u8),
    Leave(u8),
    /// Carries out the plan up to a write that fails; `took_effect`: that write was made all the
    /// same.
    Write {
        fails_after: usize,
        took_effect: bool,
    },
    /// The master forgets everything except the Nodes.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0_u8..12).prop_map(Event::Join),
        2 => (0_u8..12).prop_map(Event::Leave),
        4 => (0_usize..6, any::<bool>())
            .prop_map(|(fails_after, took_effect)| Event::Write { fails_after, took_effect }),
        1 => Just(Event::Restart),
    ];
    proptest::collection::vec(event, 0..60)
}

fn overlap(one: Range, other: Range) -> bool {
    one.contains(other.first()) || other.contains(one.first())
}

proptest! {
    #[test]
    fn no_address_is_of_two_nodes_whatever_happens(events in events(), dual in any::<bool>()) {
        let mut ranges = vec![range("10.9.0.0/24", 27)];
        ranges.extend(dual.then(|| range("fd00::/60", 64)));
        let mut nodes: BTreeMap<String, Claim> = BTreeMap::new();
        let mut last = Vec::new();
        for event in events {
            match event {
                Event::Join(number) => {
                    let name = number.to_string();
                    nodes.entry(name.clone()).or_insert_with(|| free(&name));
                }
                Event::Leave(number) => drop(nodes.remove(&number.to_string())),
                Event::Restart => {
                    last.clear();
                    for node in nodes.values_mut() {
                        node.asked.clear();
                    }
                }
                Event::Write { fails_after, took_effect } => {
                    let all: Vec<Claim> = nodes.values().cloned().collect();
                    let free = 8_usize.saturating_sub(all.iter().filter(|node| node.has).count());
                    let actions = give(&ranges, &all, &last);
                    let waiting = all.iter().filter(|node| !node.has).count();
                    let given = actions.iter().filter(|one| matches!(one, Action::Give { .. })).count();
                    prop_assert_eq!(actions.len(), waiting, "nobody is forgotten");
                    prop_assert_eq!(given, waiting.min(free), "what is free is given");
                    for (number, action) in actions.into_iter().enumerate() {
                        let Action::Give { name, ranges: own, .. } = action else { continue };
                        prop_assert_eq!(own.len(), ranges.len());
                        last = ranges.iter().zip(&own).map(|(of, part)| of.parts_of(*part).start).collect();
                        let node = nodes.get_mut(&name).unwrap();
                        node.asked.clone_from(&own);
                        if number < fails_after || took_effect {
                            node.ranges = own;
                            node.has = true;
                            node.asked.clear();
                        }
                        if number >= fails_after {
                            break;
                        }
                    }
                }
            }
            let given: Vec<Range> = nodes.values().flat_map(|node| node.ranges.clone()).collect();
            for (number, one) in given.iter().enumerate() {
                for other in given.iter().skip(number + 1) {
                    prop_assert!(!overlap(*one, *other), "{} and {}", one, other);
                }
            }
        }
    }
}
