//! The nftables table for services (pure).
//!
//! The *front* of a packet (address, protocol and port of a service) is looked up in one map, so
//! the cost does not grow with the number of services. The map says which chain picks an endpoint.
//! There is one chain for each number of endpoints, since a rule has to contain the limit of the
//! random number. That number and the front together are the key of a second map, which holds the
//! endpoints. So a change of endpoints only changes map entries, and a rule is added only for a
//! number of endpoints that no service had before.
//!
//! With `externalTrafficPolicy: Local`, callers from elsewhere get endpoints on this node only,
//! while this node's pods and programs get all: the latter have maps of their own, which are looked
//! up first.
//!
//! New packets of this node's pods and programs to an address in the services' ranges that no map
//! holds are refused, so that they do not leave the cluster.
//!
//! Fronts with `loadBalancerSourceRanges` are in a set, and their ranges in one set for each prefix
//! length: a rule masks the caller's address to that length, and looks up front and network.

use crate::fronts::{Front, Fronts};
use crate::picking::{
    CLIENTS, Chain, ENDPOINTS, ENDPOINTS_INSIDE, OWN_FRONTS, STAYING, STAYING_INSIDE, picking,
    places,
};
use crate::view::Protocol;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{
    AddressRange, ChainKind, Change, DESTINATION_CHANGED, Hook, NEW, Name, Step, Value, Values,
    Verdict,
};
use agent_sys::netlink::links::octets;
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The table: one for each family.
pub const TABLE: &str = "pratique-services";
/// Fronts, and the chains that pick for them.
pub(crate) const FRONTS: &str = "fronts";
/// Fronts for this node's pods, and for its own programs, where these get other endpoints than
/// callers from elsewhere.
pub(crate) const FRONTS_OF_PODS: &str = "fronts-of-pods";
const FRONTS_OF_NODE: &str = "fronts-of-node";
/// Prefix of the names of pods' links.
pub const POD_LINKS: &str = "pod-";
/// Fronts without endpoints, whose packets are rejected.
const EMPTY: &str = "empty";
/// The set of fronts with `loadBalancerSourceRanges`, and the chain that accepts their allowed
/// sources.
const RESTRICTED: &str = "restricted";
const SOURCES: &str = "sources";
/// The chain that all callers pass.
const SERVICES: &str = "services";
/// The chain that rejects packets to Services without endpoints.
const NOBODY: &str = "nobody";
/// The set of the services' ranges, and the chain that rejects packets to an address there that no
/// service has.
const RANGES: &str = "service-ranges";
const UNKNOWN: &str = "unknown";
/// Most clients that affinity remembers.
const MOST_CLIENTS: u32 = 65_536;
/// The bit of a packet's mark for connections that leave with the node's own address: upstream's.
pub const LEAVES_AS_NODE: u32 = 0x4000;
/// Before `NF_IP_PRI_NAT_DST`, that one, `NF_IP_PRI_NAT_SRC`, and just before `NF_IP_PRI_FILTER`.
const BEFORE_NAT: i32 = -110;
const DESTINATION_NAT: i32 = -100;
const SOURCE_NAT: i32 = 100;
const BEFORE_FILTER: i32 = -1;
/// Offset in the headers of UDP and TCP (RFC 768, RFC 9293).
const DESTINATION_PORT: u32 = 2;
/// Bytes of a register.
pub(crate) const REGISTER: u32 = 4;

/// The entries of maps and sets, and the chains that they need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    maps: BTreeMap<&'static str, BTreeMap<Vec<u8>, Value>>,
    sets: BTreeMap<&'static str, BTreeSet<Vec<u8>>>,
    /// By the lengths of their prefixes.
    sources: BTreeMap<u8, BTreeSet<Vec<u8>>>,
    chains: BTreeSet<Chain>,
}

pub(crate) fn front_key(front: Front) -> Vec<u8> {
    let [high, low] = front.port.to_be_bytes();
    let mut key = octets(front.address);
    key.extend([front.protocol.number(), 0, 0, 0, high, low, 0, 0]);
    key
}

fn endpoint_value(address: IpAddr, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let mut value = octets(address);
    value.extend([high, low, 0, 0]);
    value
}

impl Entries {
    fn put(&mut self, map: &'static str, key: Vec<u8>, value: Value) {
        self.maps.entry(map).or_default().insert(key, value);
    }

    fn add(&mut self, set: &'static str, key: Vec<u8>) {
        self.sets.entry(set).or_default().insert(key);
    }

    /// Adds a front's endpoints, and a chain that picks one of them; none where there are none.
    fn led(&mut self, front: &[u8], endpoints: &[(IpAddr, u16)], chain: Chain) -> Option<Name> {
        let count = u32::try_from(endpoints.len()).ok();
        let chain = Chain {
            endpoints: count.filter(|count| *count > 0)?,
            ..chain
        };
        let (map, staying) = places(chain);
        for ((address, port), number) in endpoints.iter().zip(0_u32..) {
            let value = endpoint_value(*address, *port);
            if chain.affinity.is_some() {
                self.add(staying, [front, &value].concat());
            }
            let numbered = [front, &number.to_ne_bytes()].concat();
            self.put(map, numbered, Value::Bytes(value));
        }
        self.chains.insert(chain);
        Some(chain.name())
    }
}

/// What maps and sets hold for these fronts, which are of one family.
pub fn entries(fronts: &Fronts) -> Entries {
    let mut all = Entries::default();
    for (front, pick) in fronts {
        let key = front_key(*front);
        if !pick.sources.is_empty() {
            all.add(RESTRICTED, key.clone());
        }
        for range in &pick.sources {
            let source = [key.clone(), octets(range.network())].concat();
            all.sources.entry(range.prefix).or_default().insert(source);
        }
        if pick.affinity.is_some() {
            let own = front_key(pick.own_front.unwrap_or(*front));
            all.put(OWN_FRONTS, key.clone(), Value::Bytes(own));
        }
        let chain = |as_node, inside| Chain {
            endpoints: 0,
            affinity: pick.affinity,
            as_node,
            inside,
        };
        // The node's own programs may come from an address that endpoints elsewhere can't answer.
        for (map, as_node) in [(FRONTS_OF_PODS, false), (FRONTS_OF_NODE, true)] {
            if let Some(name) = all.led(&key, &pick.inside, chain(as_node, true)) {
                all.put(map, key.clone(), Value::Goto(name));
            }
        }
        match all.led(&key, &pick.endpoints, chain(pick.as_node, false)) {
            Some(name) => all.put(FRONTS, key, Value::Goto(name)),
            None if pick.silent => all.put(FRONTS, key, Value::Goto(NOBODY.into())),
            None => all.add(EMPTY, key),
        }
    }
    all
}

/// The whole table of a family, in place of one that this or another agent made. Rules are
/// replaced, and maps and sets are filled anew; but the clients with affinity stay, and the
/// services' ranges until `service_ranges` replaces them.
pub fn all(family: Family, entries: &Entries) -> Vec<Change> {
    let mut changes = vec![Change::AddTable(TABLE), Change::ClearTable(TABLE)];
    changes.extend(maps_and_sets(family));
    changes.extend(chains());
    changes.extend(rules(family));
    changes.extend(difference(family, &Entries::default(), entries));
    changes
}

/// The table's maps and sets, without entries.
fn maps_and_sets(family: Family) -> Vec<Change> {
    let (front, endpoint) = (front_bytes(family), endpoint_bytes(family));
    let verdicts = |name| map(name, front, Values::Verdicts);
    let numbered = |name| map(name, front + REGISTER, Values::Bytes(endpoint));
    let filled = [
        verdicts(FRONTS),
        verdicts(FRONTS_OF_PODS),
        verdicts(FRONTS_OF_NODE),
        numbered(ENDPOINTS),
        numbered(ENDPOINTS_INSIDE),
        map(OWN_FRONTS, front, Values::Bytes(front)),
        set(EMPTY.into(), front),
        set(STAYING.into(), front + endpoint),
        set(STAYING_INSIDE.into(), front + endpoint),
        set(RESTRICTED.into(), front),
    ];
    let mut changes: Vec<Change> = filled.into_iter().flatten().collect();
    // This set keeps its elements until the ranges are known ([`service_ranges`]).
    changes.push(Change::AddRanges {
        table: TABLE,
        name: RANGES.into(),
        ranges: Vec::new(),
    });
    changes.push(Change::AddMemory {
        table: TABLE,
        name: CLIENTS,
        length: front + family.bytes(),
        value: endpoint,
        most: MOST_CLIENTS,
    });
    changes
}

/// The chains that every table has: the base chains, and those that they jump to.
fn chains() -> [Change; 11] {
    [
        branch(SERVICES.into()),
        branch(UNKNOWN.into()),
        branch(NOBODY.into()),
        branch(SOURCES.into()),
        base("admission", ChainKind::Filter, Hook::Prerouting, BEFORE_NAT),
        base("own-admission", ChainKind::Filter, Hook::Output, BEFORE_NAT),
        base("callers", ChainKind::Nat, Hook::Prerouting, DESTINATION_NAT),
        base("own-callers", ChainKind::Nat, Hook::Output, DESTINATION_NAT),
        // Before routing: a machine may have no route to addresses of services.
        base(
            "nobody-there",
            ChainKind::Filter,
            Hook::Prerouting,
            BEFORE_FILTER,
        ),
        base(
            "nobody-there-own",
            ChainKind::Filter,
            Hook::Output,
            BEFORE_FILTER,
        ),
        base("leaving", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT),
    ]
}

/// The rules of these chains, in the order in which a packet passes them.
fn rules(family: Family) -> Vec<Change> {
    let mut changes = vec![rule(
        NOBODY,
        vec![Step::Count, Step::Verdict(Verdict::Drop)],
    )];
    for chain in ["admission", "own-admission"] {
        changes.extend(admission(family, chain));
    }
    let of_pod = || {
        vec![
            Step::LoadInName(0),
            Step::Is(0, POD_LINKS.as_bytes().to_vec()),
        ]
    };
    let led = |by| [load_front(family, 0), vec![Step::Follow(0, by)]].concat();
    changes.push(rule("callers", [of_pod(), led(FRONTS_OF_PODS)].concat()));
    changes.push(rule("own-callers", led(FRONTS_OF_NODE)));
    for chain in ["callers", "own-callers"] {
        changes.push(rule(
            chain,
            vec![Step::Verdict(Verdict::Jump(SERVICES.into()))],
        ));
    }
    changes.push(rule(SERVICES, led(FRONTS)));
    for chain in ["nobody-there", "nobody-there-own"] {
        changes.extend(refusals(family, chain));
    }
    changes.push(led_nowhere(family, "nobody-there", of_pod()));
    changes.push(led_nowhere(family, "nobody-there-own", Vec::new()));
    changes.extend(refused(UNKNOWN, Vec::new()));
    changes.push(leaving());
    changes
}

/// Gives marked packets an address of the node as they leave.
fn leaving() -> Change {
    let marked = LEAVES_AS_NODE.to_ne_bytes().to_vec();
    let mask = Step::Mask {
        of: 0,
        mask: marked.clone(),
    };
    rule(
        "leaving",
        vec![
            Step::LoadMark(0),
            mask,
            Step::Is(0, marked),
            Step::Count,
            Step::Masquerade,
        ],
    )
}

/// The whole table in place of one with unknown content: the affinity of its clients is lost.
pub fn anew(family: Family, entries: &Entries) -> Vec<Change> {
    let mut changes = none().to_vec();
    changes.extend(all(family, entries));
    changes
}

/// The changes that remove the table, if it exists.
pub fn none() -> [Change; 2] {
    [Change::AddTable(TABLE), Change::RemoveTable(TABLE)]
}

/// The changes from a table with some entries to one with others. Chains are added and not removed
/// ([`Chains::trim`]).
pub(crate) fn difference(family: Family, before: &Entries, after: &Entries) -> Vec<Change> {
    let mut changes = Vec::new();
    for chain in after.chains.difference(&before.chains) {
        changes.push(branch(chain.name()));
        changes.extend(picking(family, *chain));
    }
    for prefix in after.sources.keys() {
        if !before.sources.contains_key(prefix) {
            changes.extend(admitting(family, *prefix));
        }
    }
    let (no_entries, no_keys) = (BTreeMap::new(), BTreeSet::new());
    let maps = before.maps.keys().chain(after.maps.keys());
    for map in maps.collect::<BTreeSet<_>>() {
        let was = before.maps.get(map).unwrap_or(&no_entries);
        let is = after.maps.get(map).unwrap_or(&no_entries);
        map_difference(map, was, is, &mut changes);
    }
    let mut sets = |name: Name, before: &BTreeSet<Vec<u8>>, after: &BTreeSet<Vec<u8>>| {
        set_difference(&name, before, after, &mut changes);
    };
    let prefixes = before.sources.keys().chain(after.sources.keys());
    for prefix in prefixes.collect::<BTreeSet<_>>() {
        let was = before.sources.get(prefix).unwrap_or(&no_keys);
        let is = after.sources.get(prefix).unwrap_or(&no_keys);
        sets(sources_of(*prefix), was, is);
    }
    let names = before.sets.keys().chain(after.sets.keys());
    for set in names.collect::<BTreeSet<_>>() {
        let was = before.sets.get(set).unwrap_or(&no_keys);
        let is = after.sets.get(set).unwrap_or(&no_keys);
        sets((*set).into(), was, is);
    }
    changes
}

/// The chains of a family's table, and the prefix lengths that it has sets for. Unused ones stay at
/// first: they are usually few, and may be needed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chains {
    family: Family,
    picking: BTreeSet<Chain>,
    prefixes: BTreeSet<u8>,
    /// How many chains were needed when unused ones were last removed.
    needed: usize,
}

/// Most chains beyond twice the number that was needed then.
const MOST_UNUSED: usize = 1024;

impl Chains {
    /// Those that these entries need.
    pub fn of(family: Family, entries: &Entries) -> Self {
        Self {
            family,
            picking: entries.chains.clone(),
            prefixes: entries.sources.keys().copied().collect(),
            needed: entries.chains.len(),
        }
    }

    /// Whether so many have been added that unused ones should be removed: a Service adds some with
    /// each change of its affinity timeout.
    pub fn are_crowded(&self) -> bool {
        self.picking.len() > 2 * self.needed + MOST_UNUSED
    }

    /// The changes that remove unused chains. `entries`: all of the table.
    pub fn trim(&mut self, entries: &Entries) -> Vec<Change> {
        let unused = self.picking.difference(&entries.chains);
        let table = TABLE;
        let changes = unused.map(|chain| Change::RemoveChain {
            table,
            name: chain.name(),
        });
        let changes = changes.collect();
        self.picking.retain(|chain| entries.chains.contains(chain));
        self.needed = self.picking.len();
        changes
    }

    /// The changes that give some fronts of a table with these chains other endpoints. Chains that
    /// they add are recorded here.
    pub fn lead(&mut self, before: &Fronts, after: &Fronts) -> Vec<Change> {
        let mut before = Entries {
            chains: self.picking.clone(),
            ..entries(before)
        };
        for prefix in &self.prefixes {
            before.sources.entry(*prefix).or_default();
        }
        let after = entries(after);
        let changes = difference(self.family, &before, &after);
        self.picking.extend(after.chains);
        self.prefixes.extend(after.sources.into_keys());
        changes
    }
}

fn map_difference(
    map: &'static str,
    before: &BTreeMap<Vec<u8>, Value>,
    after: &BTreeMap<Vec<u8>, Value>,
    changes: &mut Vec<Change>,
) {
    let removed = before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value));
    let keys: Vec<Vec<u8>> = removed.map(|(key, _)| key.clone()).collect();
    if !keys.is_empty() {
        changes.push(Change::RemoveElements {
            table: TABLE,
            set: map.into(),
            keys,
        });
    }
    let added = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value));
    let entries: Vec<_> = added
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !entries.is_empty() {
        changes.push(Change::AddEntries {
            table: TABLE,
            map,
            entries,
        });
    }
}

fn set_difference(
    set: &Name,
    before: &BTreeSet<Vec<u8>>,
    after: &BTreeSet<Vec<u8>>,
    changes: &mut Vec<Change>,
) {
    let table = TABLE;
    let keys: Vec<Vec<u8>> = before.difference(after).cloned().collect();
    if !keys.is_empty() {
        let set = set.clone();
        changes.push(Change::RemoveElements { table, set, keys });
    }
    let keys: Vec<Vec<u8>> = after.difference(before).cloned().collect();
    if !keys.is_empty() {
        let set = set.clone();
        changes.push(Change::AddElements { table, set, keys });
    }
}

/// The rules that drop packets from sources outside of the allowed ranges, before their destination
/// is translated. An established connection continues even if the ranges change.
fn admission(family: Family, chain: &'static str) -> [Change; 2] {
    let begins = NEW.to_ne_bytes().to_vec();
    let of_restricted = || {
        let mut steps = vec![
            Step::LoadState(0),
            Step::Mask {
                of: 0,
                mask: begins.clone(),
            },
            Step::Is(0, begins.clone()),
        ];
        steps.extend(load_front(family, 0));
        steps.push(Step::In(0, RESTRICTED.into()));
        steps
    };
    let asked = Step::Verdict(Verdict::Jump(SOURCES.into()));
    let dropped = [Step::Count, Step::Verdict(Verdict::Drop)];
    [
        rule(chain, [of_restricted(), vec![asked]].concat()),
        rule(chain, [of_restricted(), dropped.to_vec()].concat()),
    ]
}

/// The name of the set of source ranges with a prefix length.
fn sources_of(prefix: u8) -> Name {
    format!("from-{prefix}").into()
}

/// The set of source ranges with a prefix length, and the rule that accepts their callers.
fn admitting(family: Family, prefix: u8) -> [Change; 3] {
    let behind = front_bytes(family) / REGISTER;
    let everything = Cidr {
        address: match family {
            Family::V4 => Ipv4Addr::BROADCAST.into(),
            Family::V6 => Ipv6Addr::from(u128::MAX).into(),
        },
        prefix,
    };
    let mut steps = load_front(family, 0);
    steps.extend([
        Step::LoadNetwork {
            offset: family.source_offset(),
            length: family.bytes(),
            to: behind,
        },
        Step::Mask {
            of: behind,
            mask: octets(everything.network()),
        },
        Step::In(0, sources_of(prefix)),
        Step::Verdict(Verdict::Accept),
    ]);
    let [made, cleared] = set(sources_of(prefix), front_bytes(family) + family.bytes());
    [made, cleared, rule(SOURCES, steps)]
}

/// The rules that refuse callers of fronts without endpoints at once. TCP is answered with a reset:
/// a caller in the middle of sending its first packet would see an ICMP error only with the next
/// one, a second later.
fn refusals(family: Family, chain: &'static str) -> [Change; 2] {
    let of_empty = [load_front(family, 0), vec![Step::In(0, EMPTY.into())]];
    refused(chain, of_empty.concat())
}

/// The rules that refuse packets that these steps match.
fn refused(chain: &'static str, when: Vec<Step>) -> [Change; 2] {
    let tcp = vec![
        Step::LoadProtocol(0),
        Step::Is(0, vec![Protocol::Tcp.number()]),
    ];
    let counted = |answer| vec![Step::Count, answer];
    [
        rule(chain, [tcp, when.clone(), counted(Step::Reset)].concat()),
        rule(chain, [when, counted(Step::Reject)].concat()),
    ]
}

/// The rule for new connections to an address in the services' ranges that no service has
/// translated. `by`: steps that match the sender. Upstream drops packets to an address that no
/// service has; here callers are refused at once, as by a service without endpoints.
fn led_nowhere(family: Family, chain: &'static str, by: Vec<Step>) -> Change {
    let begins = NEW.to_ne_bytes().to_vec();
    let led = DESTINATION_CHANGED.to_ne_bytes().to_vec();
    let mask = |mask: &Vec<u8>| Step::Mask {
        of: 0,
        mask: mask.clone(),
    };
    let mut steps = vec![
        Step::LoadState(0),
        mask(&begins),
        Step::Is(0, begins),
        Step::LoadNetwork {
            offset: family.destination_offset(),
            length: family.bytes(),
            to: 0,
        },
        Step::In(0, RANGES.into()),
        Step::LoadStatus(0),
        mask(&led),
        Step::IsNot(0, led),
    ];
    steps.extend(by);
    steps.push(Step::Verdict(Verdict::Goto(UNKNOWN.into())));
    rule(chain, steps)
}

/// The changes that replace the ranges that belong to services only.
pub(crate) fn service_ranges(ranges: &[AddressRange]) -> [Change; 2] {
    let all = Change::AddRanges {
        table: TABLE,
        name: RANGES.into(),
        ranges: ranges.to_vec(),
    };
    [cleared(RANGES.into()), all]
}

/// Bytes of an address and a port, each in whole registers.
const fn endpoint_bytes(family: Family) -> u32 {
    family.bytes() + REGISTER
}

/// Bytes of an address, a protocol and a port.
pub(crate) const fn front_bytes(family: Family) -> u32 {
    family.bytes() + 2 * REGISTER
}

/// Loads a packet's front into the registers from one on.
pub(crate) fn load_front(family: Family, at: u32) -> Vec<Step> {
    let behind = at + family.bytes() / REGISTER;
    vec![
        Step::LoadNetwork {
            offset: family.destination_offset(),
            length: family.bytes(),
            to: at,
        },
        Step::LoadProtocol(behind),
        Step::LoadTransport {
            offset: DESTINATION_PORT,
            length: 2,
            to: behind + 1,
        },
    ]
}

/// A map, emptied if it exists.
fn map(name: &'static str, length: u32, values: Values) -> [Change; 2] {
    let map = Change::AddMap {
        table: TABLE,
        name,
        length,
        values,
    };
    [map, cleared(name.into())]
}

/// A set, emptied if it exists.
fn set(name: Name, length: u32) -> [Change; 2] {
    let set = Change::AddSet {
        table: TABLE,
        name: name.clone(),
        // Programs such as `nft` show the elements as integers.
        shown_as: 4,
        length,
    };
    [set, cleared(name)]
}

fn cleared(name: Name) -> Change {
    let table = TABLE;
    Change::ClearSet { table, name }
}

fn branch(name: Name) -> Change {
    Change::AddBranch { table: TABLE, name }
}

fn base(name: &'static str, kind: ChainKind, hook: Hook, priority: i32) -> Change {
    Change::AddChain {
        table: TABLE,
        name,
        kind,
        hook,
        priority,
    }
}

fn rule(chain: &'static str, steps: Vec<Step>) -> Change {
    rule_of(chain.into(), steps)
}

pub(crate) fn rule_of(chain: Name, steps: Vec<Step>) -> Change {
    Change::AddRule {
        table: TABLE,
        chain,
        steps,
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "table_network_tests.rs"]
mod network_tests;
