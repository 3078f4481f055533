//! The nftables table of NetworkPolicies: what it holds, and the changes that bring it to what the
//! plan wants (pure).

use agent_cluster::rules::LINKS;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{
    AddressRange, ChainKind, Change, DESTINATION_CHANGED, Hook, Name, Step, Value, Values, Verdict,
};
use agent_sys::netlink::links::octets;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// A set of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Set {
    /// Keys of this length in bytes.
    Keys(u32, BTreeSet<Vec<u8>>),
    /// Ranges of addresses, in order; they do not touch.
    Ranges(Vec<AddressRange>),
}

/// The steps of each rule of a chain.
pub(crate) type Rules = Vec<Vec<Step>>;

/// The part of the table that changes. Sets and rules are shared with the planner and with later
/// tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Sets by name.
    pub(crate) sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Chains by name.
    pub(crate) chains: BTreeMap<Arc<str>, Arc<Rules>>,
    /// Pods of this node with ingress policies, and their chains.
    pub(crate) ingress: BTreeMap<IpAddr, Arc<str>>,
    /// Pods of this node with egress policies, and their chains.
    pub(crate) egress: BTreeMap<IpAddr, Arc<str>>,
    /// All pods of this node.
    pub(crate) known: BTreeSet<IpAddr>,
}

/// The name of the table.
pub(crate) const TABLE: &str = "pratique-policies";
/// Maps from the addresses of pods to the chains of their policies.
const INGRESS: &str = "ingress";
const EGRESS: &str = "egress";
/// Sets of the addresses of this node's pods: each alone, and each twice (from itself to itself).
const KNOWN: &str = "known";
const ITSELF: &str = "itself";
/// The base chains, which see all forwarded packets: the first applies the policies of the pods
/// that receive them, the second those of the pods that send them. A packet needs the consent of
/// both.
const TO_PODS: &str = "to-pods";
const FROM_PODS: &str = "from-pods";
/// After the pods' own table (`NF_IP_PRI_FILTER`).
const AFTER_FILTER: i32 = 10;
/// The register after an interface name.
const BEHIND_NAME: u32 = 4;

/// The whole table of a family, in place of an earlier one.
pub(crate) fn all(family: Family, table: &Table) -> Vec<Change> {
    let mut changes = vec![
        // The first makes sure that there is one to remove.
        Change::AddTable(TABLE),
        Change::RemoveTable(TABLE),
        Change::AddTable(TABLE),
        map(INGRESS, family.bytes()),
        map(EGRESS, family.bytes()),
        set(KNOWN.into(), family.bytes()),
        set(ITSELF.into(), 2 * family.bytes()),
        base_chain(TO_PODS, AFTER_FILTER),
        base_chain(FROM_PODS, AFTER_FILTER + 1),
    ];
    changes.extend(to_pods(family).map(|steps| rule(TO_PODS.into(), steps)));
    changes.extend(from_pods(family).map(|steps| rule(FROM_PODS.into(), steps)));
    changes.extend(difference(&Table::default(), table));
    changes
}

/// The rules for pods that receive forwarded packets. Packets that the machine itself sends or
/// receives are not forwarded, so that a node reaches its own pods whatever their policies.
pub(crate) fn to_pods(family: Family) -> [Vec<Step>; 4] {
    let unknown = |side: Step, address: u32| {
        vec![
            side,
            Step::Is(0, LINKS.as_bytes().to_vec()),
            Step::LoadNetwork {
                offset: address,
                length: family.bytes(),
                to: BEHIND_NAME,
            },
            Step::NotIn(BEHIND_NAME, KNOWN.into()),
            Step::Count,
            Step::Verdict(Verdict::Drop),
        ]
    };
    [
        // A pod whose policies are not known yet.
        unknown(Step::LoadInName(0), family.source_offset()),
        unknown(Step::LoadOutName(0), family.destination_offset()),
        itself(family),
        vec![Step::LoadServer(0), Step::Follow(0, INGRESS)],
    ]
}

/// The rules for pods that send forwarded packets.
pub(crate) fn from_pods(family: Family) -> [Vec<Step>; 2] {
    [
        itself(family),
        vec![Step::LoadClient(0), Step::Follow(0, EGRESS)],
    ]
}

/// A pod reaches itself whatever its policies. Such packets pass the machine only if a service has
/// translated their destination: the status of the connection shows that, at less cost than a
/// look-up in the set.
fn itself(family: Family) -> Vec<Step> {
    vec![
        Step::LoadStatus(0),
        Step::Mask {
            of: 0,
            mask: DESTINATION_CHANGED.to_ne_bytes().to_vec(),
        },
        Step::IsNot(0, vec![0; 4]),
        Step::LoadClient(0),
        Step::LoadServer(family.bytes() / 4),
        Step::In(0, ITSELF.into()),
        Step::Verdict(Verdict::Accept),
    ]
}

/// The changes from one table to another. What a rule refers to is added before the rule, and
/// removed after it.
pub(crate) fn difference(before: &Table, after: &Table) -> Vec<Change> {
    let mut changes = Vec::new();
    sets(&before.sets, &after.sets, &mut changes);
    chains(&before.chains, &after.chains, &mut changes);
    map_entries(INGRESS, &before.ingress, &after.ingress, &mut changes);
    map_entries(EGRESS, &before.egress, &after.egress, &mut changes);
    if before.known != after.known {
        known(&before.known, &after.known, &mut changes);
    }
    // Chains that are removed may jump to one another.
    let gone: Vec<Name> = gone(&before.chains, &after.chains);
    changes.extend(gone.iter().cloned().map(clear));
    changes.extend(
        gone.into_iter()
            .map(|name| Change::RemoveChain { table: TABLE, name }),
    );
    changes.extend(
        self::gone(&before.sets, &after.sets)
            .into_iter()
            .map(|name| Change::RemoveSet { table: TABLE, name }),
    );
    changes
}

/// What two maps have under a key; never the same.
struct Differing<'a, T> {
    name: &'a Arc<str>,
    before: Option<&'a T>,
    after: Option<&'a T>,
}

/// The entries that differ, in order. One pass over both maps: most entries of a table are those of
/// the last one, and shared, so that only pointers are compared.
fn differing<'a, T: PartialEq>(
    before: &'a BTreeMap<Arc<str>, T>,
    after: &'a BTreeMap<Arc<str>, T>,
) -> Vec<Differing<'a, T>> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut all = Vec::new();
    loop {
        let held = before.peek().map(|(name, _)| *name);
        let wanted = after.peek().map(|(name, _)| *name);
        let Some(name) = held.into_iter().chain(wanted).min() else {
            return all;
        };
        let before = before.next_if(|(own, _)| *own == name);
        let after = after.next_if(|(own, _)| *own == name);
        let (before, after) = (
            before.map(|(_, held)| held),
            after.map(|(_, wanted)| wanted),
        );
        if before != after {
            all.push(Differing {
                name,
                before,
                after,
            });
        }
    }
}

/// Names that only the first has.
fn gone<T: PartialEq>(before: &BTreeMap<Arc<str>, T>, after: &BTreeMap<Arc<str>, T>) -> Vec<Name> {
    let differ = differing(before, after).into_iter();
    let gone = differ.filter(|one| one.after.is_none());
    gone.map(|one| one.name.to_string().into()).collect()
}

/// Changes the sets of this node's pods.
fn known(before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>, changes: &mut Vec<Change>) {
    let key = |address: &IpAddr| octets(*address);
    let twice = |address: &IpAddr| octets(*address).repeat(2);
    for (name, key) in [
        (KNOWN, &key as &dyn Fn(&IpAddr) -> Vec<u8>),
        (ITSELF, &twice),
    ] {
        let keys = |of: &BTreeSet<IpAddr>| of.iter().map(key).collect::<BTreeSet<_>>();
        set_elements(&name.into(), &keys(before), &keys(after), changes);
    }
}

/// Adds sets, and changes the elements of existing ones.
fn sets(
    before: &BTreeMap<Arc<str>, Arc<Set>>,
    after: &BTreeMap<Arc<str>, Arc<Set>>,
    changes: &mut Vec<Change>,
) {
    let nothing = BTreeSet::new();
    for one in differing(before, after) {
        let Some(wanted) = one.after else { continue };
        let held = one.before;
        let name: Name = one.name.to_string().into();
        match &**wanted {
            Set::Keys(length, keys) => {
                let held = match held.map(|held| &**held) {
                    Some(Set::Keys(_, held)) => held,
                    Some(Set::Ranges(_)) | None => {
                        changes.push(set(name.clone(), *length));
                        &nothing
                    }
                };
                set_elements(&name, held, keys, changes);
            }
            // Named by its content, so an existing one is the same.
            Set::Ranges(ranges) => changes.push(Change::AddRanges {
                table: TABLE,
                name,
                ranges: ranges.clone(),
            }),
        }
    }
}

/// Adds chains, and replaces the rules of existing ones.
fn chains(
    before: &BTreeMap<Arc<str>, Arc<Rules>>,
    after: &BTreeMap<Arc<str>, Arc<Rules>>,
    changes: &mut Vec<Change>,
) {
    let differ = differing(before, after).into_iter();
    let differ: Vec<(Name, bool, &Rules)> = differ
        .filter_map(|one| {
            let rules = one.after?;
            let name = one.name.to_string().into();
            Some((name, one.before.is_some(), &**rules))
        })
        .collect();
    // All chains exist before the rules of one jump to another.
    changes.extend(differ.iter().map(|(name, is_there, _)| {
        let name = name.clone();
        if *is_there {
            clear(name)
        } else {
            Change::AddBranch { table: TABLE, name }
        }
    }));
    for (name, _, rules) in differ {
        changes.extend(rules.iter().map(|steps| rule(name.clone(), steps.clone())));
    }
}

fn clear(name: Name) -> Change {
    Change::ClearChain { table: TABLE, name }
}

fn map_entries(
    map: &'static str,
    before: &BTreeMap<IpAddr, Arc<str>>,
    after: &BTreeMap<IpAddr, Arc<str>>,
    changes: &mut Vec<Change>,
) {
    let removed = before
        .iter()
        .filter(|(address, chain)| after.get(*address) != Some(chain));
    let keys: Vec<Vec<u8>> = removed.map(|(address, _)| octets(*address)).collect();
    if !keys.is_empty() {
        changes.push(Change::RemoveElements {
            table: TABLE,
            set: map.into(),
            keys,
        });
    }
    let added = after
        .iter()
        .filter(|(address, chain)| before.get(*address) != Some(chain));
    let entries: Vec<(Vec<u8>, Value)> = added
        .map(|(address, chain)| {
            let chain = chain.to_string().into();
            (octets(*address), Value::Jump(chain))
        })
        .collect();
    if !entries.is_empty() {
        changes.push(Change::AddEntries {
            table: TABLE,
            map,
            entries,
        });
    }
}

fn set_elements(
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

fn base_chain(name: &'static str, priority: i32) -> Change {
    Change::AddChain {
        table: TABLE,
        name,
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority,
    }
}

fn map(name: &'static str, length: u32) -> Change {
    Change::AddMap {
        table: TABLE,
        name,
        length,
        values: Values::Verdicts,
    }
}

fn set(name: Name, length: u32) -> Change {
    // Programs such as `nft` show the elements as integers.
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
