//! From what the packet filter should hold for network policies to the changes that bring it there (pure).

use super::plan::{Set, Table};
use crate::rules::LINKS;
use agent_sys::netlink::filter::{ChainKind, Change, Hook, Name, Step, Value, Values, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// The table.
pub const TABLE: &str = "pratique-policies";
/// Maps from addresses of pods to chains.
const INGRESS: &str = "ingress";
const EGRESS: &str = "egress";
/// The pods of this node, and each with itself.
const KNOWN: &str = "known";
const ITSELF: &str = "itself";
/// The chain that sees all packets that are passed on.
const JUDGED: &str = "judged";
/// After the pods' own table (`NF_IP_PRI_FILTER`).
const AFTER_FILTER: i32 = 10;
/// Places in packets (RFC 791).
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
/// The register behind a name.
const BEHIND_NAME: u32 = 4;

/// The whole table, in place of an earlier one.
pub fn all(table: &Table) -> Vec<Change> {
    let mut changes = vec![
        // The first makes sure that there is one to remove.
        Change::AddTable(TABLE),
        Change::RemoveTable(TABLE),
        Change::AddTable(TABLE),
        map(INGRESS),
        map(EGRESS),
        set(KNOWN.into(), 4),
        set(ITSELF.into(), 8),
        Change::AddChain {
            table: TABLE,
            name: JUDGED,
            kind: ChainKind::Filter,
            hook: Hook::Forward,
            priority: AFTER_FILTER,
        },
    ];
    changes.extend(judged().map(|steps| rule(JUDGED.into(), steps)));
    changes.extend(difference(&Table::default(), table));
    changes
}

/// The rules that all packets pass which are passed on: what the machine itself sends and takes is not among them, since
/// the node of a pod reaches it whatever its policies.
pub(super) fn judged() -> [Vec<Step>; 5] {
    let unknown = |side: Step, address: u32| {
        vec![
            side,
            Step::Is(0, LINKS.as_bytes().to_vec()),
            Step::LoadNetwork {
                offset: address,
                length: 4,
                to: BEHIND_NAME,
            },
            Step::NotIn(BEHIND_NAME, KNOWN.into()),
            Step::Count,
            Step::Verdict(Verdict::Drop),
        ]
    };
    [
        // A pod whose policies are not known yet.
        unknown(Step::LoadInName(0), SOURCE),
        unknown(Step::LoadOutName(0), DESTINATION),
        vec![
            Step::LoadClient(0),
            Step::LoadServer(1),
            Step::In(0, ITSELF.into()),
            Step::Verdict(Verdict::Accept),
        ],
        vec![Step::LoadServer(0), Step::Follow(0, INGRESS)],
        vec![Step::LoadClient(0), Step::Follow(0, EGRESS)],
    ]
}

/// What makes of one table another.
pub fn difference(before: &Table, after: &Table) -> Vec<Change> {
    let mut changes = Vec::new();
    let nothing = BTreeSet::new();
    for (name, wanted) in &after.sets {
        match (before.sets.get(name), wanted) {
            (Some(held), wanted) if held == wanted => {}
            (held, Set::Keys(length, keys)) => {
                let held = match held {
                    Some(Set::Keys(_, held)) => held,
                    Some(Set::Ranges(_)) | None => {
                        changes.push(set(name.clone().into(), *length));
                        &nothing
                    }
                };
                elements(&name.clone().into(), held, keys, &mut changes);
            }
            // Named by its content: one that is there is the same.
            (_, Set::Ranges(ranges)) => changes.push(Change::AddRanges {
                table: TABLE,
                name: name.clone().into(),
                ranges: ranges.clone(),
            }),
        }
    }
    for (name, rules) in &after.chains {
        if before.chains.contains_key(name) {
            continue;
        }
        let name: Name = name.clone().into();
        changes.push(Change::AddBranch {
            table: TABLE,
            name: name.clone(),
        });
        changes.extend(rules.iter().map(|steps| rule(name.clone(), steps.clone())));
    }
    leads(INGRESS, &before.ingress, &after.ingress, &mut changes);
    leads(EGRESS, &before.egress, &after.egress, &mut changes);
    let key = |address: &Ipv4Addr| address.octets().to_vec();
    let twice = |address: &Ipv4Addr| [address.octets(), address.octets()].concat();
    for (name, key) in [
        (KNOWN, &key as &dyn Fn(&Ipv4Addr) -> Vec<u8>),
        (ITSELF, &twice),
    ] {
        let keys = |table: &Table| table.known.iter().map(key).collect::<BTreeSet<_>>();
        elements(&name.into(), &keys(before), &keys(after), &mut changes);
    }
    let gone = before
        .chains
        .keys()
        .filter(|name| !after.chains.contains_key(*name));
    changes.extend(gone.map(|name| Change::RemoveChain {
        table: TABLE,
        name: name.clone().into(),
    }));
    let gone = before
        .sets
        .keys()
        .filter(|name| !after.sets.contains_key(*name));
    changes.extend(gone.map(|name| Change::RemoveSet {
        table: TABLE,
        name: name.clone().into(),
    }));
    changes
}

fn leads(
    map: &'static str,
    before: &BTreeMap<Ipv4Addr, String>,
    after: &BTreeMap<Ipv4Addr, String>,
    changes: &mut Vec<Change>,
) {
    let goes = before
        .iter()
        .filter(|(address, chain)| after.get(*address) != Some(chain));
    let keys: Vec<Vec<u8>> = goes.map(|(address, _)| address.octets().to_vec()).collect();
    if !keys.is_empty() {
        changes.push(Change::RemoveElements {
            table: TABLE,
            set: map.into(),
            keys,
        });
    }
    let comes = after
        .iter()
        .filter(|(address, chain)| before.get(*address) != Some(chain));
    let entries: Vec<(Vec<u8>, Value)> = comes
        .map(|(address, chain)| (address.octets().to_vec(), Value::Jump(chain.clone().into())))
        .collect();
    if !entries.is_empty() {
        changes.push(Change::AddEntries {
            table: TABLE,
            map,
            entries,
        });
    }
}

fn elements(
    set: &Name,
    before: &BTreeSet<Vec<u8>>,
    after: &BTreeSet<Vec<u8>>,
    changes: &mut Vec<Change>,
) {
    let (table, set) = (TABLE, set.clone());
    let keys: Vec<Vec<u8>> = before.difference(after).cloned().collect();
    if !keys.is_empty() {
        let set = set.clone();
        changes.push(Change::RemoveElements { table, set, keys });
    }
    let keys: Vec<Vec<u8>> = after.difference(before).cloned().collect();
    if !keys.is_empty() {
        changes.push(Change::AddElements { table, set, keys });
    }
}

fn map(name: &'static str) -> Change {
    Change::AddMap {
        table: TABLE,
        name,
        length: 4,
        values: Values::Verdicts,
    }
}

fn set(name: Name, length: u32) -> Change {
    // Integers, as programs show them.
    let shown_as = 4;
    Change::AddSet {
        table: TABLE,
        name,
        shown_as,
        length,
    }
}

fn rule(chain: Name, steps: Vec<Step>) -> Change {
    Change::AddRule {
        table: TABLE,
        chain,
        steps,
    }
}
