//! The encoding of changes of the packet filter: a batch of messages between a begin and an end
//! message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Family;
use super::expression::{expression, whole};
use super::filter::{AddressRange, ChainKind, Change, Hook, Value, Values, Verdict};
use super::links::octets;
use super::message::{APPEND, Attributes, CREATE, Message};

/// `NFNL_SUBSYS_NFTABLES`, the upper byte of its messages' types.
const NFTABLES: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `AF_UNSPEC`: the edges of a batch are of no family.
const UNSPECIFIED: u8 = 0;
/// `NFT_MSG_*`.
const NEW_TABLE: u16 = 0;
const REMOVE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const REMOVE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const REMOVE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const REMOVE_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
const REMOVE_ELEMENTS: u16 = 14;
/// `NFTA_LIST_ELEM` and the two shapes of `NFTA_DATA_*`.
const LIST_ELEMENT: u16 = 1;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
/// Most elements in one message: its length is a number of 16 bits.
const ELEMENTS_AT_ONCE: usize = 512;

/// The messages of a batch; the kernel answers the last change.
pub(super) fn batch(family: Family, changes: &[Change]) -> Vec<Message> {
    let edge = |kind| Message::new(kind, 0, &header(UNSPECIFIED, NFTABLES), Attributes::new());
    let written = |(change, id)| written(family, change, id);
    let mut messages: Vec<Message> = changes.iter().zip(1_u32..).flat_map(written).collect();
    if let Some(last) = messages.pop() {
        messages.push(last.answered());
    }
    messages.insert(0, edge(BATCH_BEGIN));
    messages.push(edge(BATCH_END));
    messages
}

/// `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn request(family: Family, kind: u16, flags: u16, attributes: Attributes) -> Message {
    let header = header(family.number(), 0);
    Message::new(NFTABLES << 8 | kind, flags, &header, attributes)
}

/// A change as messages; the number tells the sets of a batch apart.
fn written(family: Family, change: &Change, id: u32) -> Vec<Message> {
    let request = |kind, flags, attributes| request(family, kind, flags, attributes);
    match change {
        Change::AddTable(name) => {
            vec![request(NEW_TABLE, CREATE, Attributes::new().text(1, name))]
        }
        Change::RemoveTable(name) => {
            vec![request(REMOVE_TABLE, 0, Attributes::new().text(1, name))]
        }
        Change::AddChain {
            table,
            name,
            kind,
            hook,
            priority,
        } => vec![request(
            NEW_CHAIN,
            CREATE,
            chain(table, name, *kind, *hook, *priority),
        )],
        Change::ClearTable(name) => {
            // Without a chain it means the rules of all.
            vec![request(REMOVE_RULE, 0, Attributes::new().text(1, name))]
        }
        Change::ClearChain { table, name } => {
            // Without a handle it means all rules of the chain.
            let rules = Attributes::new().text(1, table).text(2, name);
            vec![request(REMOVE_RULE, 0, rules)]
        }
        Change::RemoveChain { table, name } => {
            let chain = Attributes::new().text(1, table).text(3, name);
            vec![request(REMOVE_CHAIN, 0, chain)]
        }
        Change::AddBranch { table, name } => {
            let branch = Attributes::new().text(1, table).text(3, name);
            vec![request(NEW_CHAIN, CREATE, branch)]
        }
        Change::AddRule {
            table,
            chain,
            steps,
        } => {
            let steps = steps.iter().flat_map(whole);
            let steps = steps.fold(Attributes::new(), |all, step| {
                let (name, data) = expression(family, &step);
                all.nest(
                    LIST_ELEMENT,
                    &Attributes::new().text(1, name).nest(2, &data),
                )
            });
            let rule = Attributes::new()
                .text(1, table)
                .text(2, chain)
                .nest(4, &steps);
            vec![request(NEW_RULE, CREATE | APPEND, rule)]
        }
        Change::AddSet { .. }
        | Change::AddRanges { .. }
        | Change::RemoveSet { .. }
        | Change::ClearSet { .. }
        | Change::AddMap { .. }
        | Change::AddMemory { .. }
        | Change::AddMeter { .. }
        | Change::AddEntries { .. }
        | Change::AddElements { .. }
        | Change::RemoveElements { .. } => of_set(family, change, id),
    }
}

/// The attributes of a set of keys of one length.
fn set(table: &str, name: &str, shown_as: u32, length: u32, id: u32) -> Attributes {
    Attributes::new()
        .text(1, table)
        .text(2, name)
        .network_number(3, 0)
        .network_number(4, shown_as)
        .network_number(5, length)
        .network_number(10, id)
}

/// The attributes of a set that rules fill: clients with their own limits. It forgets those that
/// are not met any more where `forgets`.
fn meter(table: &str, name: &str, length: u32, most: u32, forgets: bool, id: u32) -> Attributes {
    let flags = if forgets { WITH_TIMEOUT } else { 0 } | FILLED_BY_RULES;
    Attributes::new()
        .text(1, table)
        .text(2, name)
        .network_number(3, flags)
        .network_number(4, 0)
        .network_number(5, length)
        .nest(9, &Attributes::new().network_number(1, most))
        .network_number(10, id)
}

/// A change of a set or map as messages.
fn of_set(family: Family, change: &Change, id: u32) -> Vec<Message> {
    let request = |kind, flags, attributes| request(family, kind, flags, attributes);
    let new_set = |attributes| vec![request(NEW_SET, CREATE, attributes)];
    // Elements are as many messages as they need.
    let requests = |kind, flags, all: Vec<Attributes>| -> Vec<Message> {
        let all = all.into_iter();
        all.map(|some| request(kind, flags, some)).collect()
    };
    match change {
        Change::AddSet {
            table,
            name,
            shown_as,
            length,
        } => new_set(set(table, name, *shown_as, *length, id)),
        Change::AddRanges {
            table,
            name,
            ranges: of,
        } => ranges(family, table, name, of, id),
        Change::ClearSet { table, name } => {
            // Without elements it means all of them.
            let set = Attributes::new().text(1, table).text(2, name);
            vec![request(REMOVE_ELEMENTS, 0, set)]
        }
        Change::RemoveSet { table, name } => {
            let set = Attributes::new().text(1, table).text(2, name);
            vec![request(REMOVE_SET, 0, set)]
        }
        Change::AddMap {
            table,
            name,
            length,
            values,
        } => new_set(map(table, name, *length, *values, id)),
        Change::AddMemory {
            table,
            name,
            length,
            value,
            most,
        } => new_set(memory(table, name, *length, *value, *most, id)),
        Change::AddMeter {
            table,
            name,
            length,
            most,
            forgets,
        } => new_set(meter(table, name, *length, *most, *forgets, id)),
        Change::AddEntries {
            table,
            map,
            entries,
        } => requests(NEW_ELEMENTS, CREATE, self::entries(table, map, entries)),
        Change::AddElements { table, set, keys } => {
            requests(NEW_ELEMENTS, CREATE, elements(table, set, keys))
        }
        Change::RemoveElements { table, set, keys } => {
            requests(REMOVE_ELEMENTS, 0, elements(table, set, keys))
        }
        Change::AddTable(_)
        | Change::RemoveTable(_)
        | Change::AddChain { .. }
        | Change::ClearTable(_)
        | Change::ClearChain { .. }
        | Change::RemoveChain { .. }
        | Change::AddBranch { .. }
        | Change::AddRule { .. } => Vec::new(),
    }
}

fn chain(table: &str, name: &str, kind: ChainKind, hook: Hook, priority: i32) -> Attributes {
    let number = match hook {
        Hook::Prerouting => 0,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    let kind = match kind {
        ChainKind::Filter => "filter",
        ChainKind::Nat => "nat",
    };
    let place = Attributes::new()
        .network_number(1, number)
        .bytes(2, &priority.to_be_bytes());
    Attributes::new()
        .text(1, table)
        .text(3, name)
        .nest(4, &place)
        .text(7, kind)
}

/// `NFT_SET_INTERVAL`, `NFT_SET_MAP`, `NFT_SET_TIMEOUT`, `NFT_SET_EVAL`, and
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVALS: u32 = 4;
const INTERVAL_END: u32 = 1;
const MAP: u32 = 8;
const WITH_TIMEOUT: u32 = 16;
const FILLED_BY_RULES: u32 = 32;
/// `NFT_DATA_VERDICT`.
const VERDICTS: u32 = 0xffff_ff00;

fn map(table: &str, name: &str, length: u32, values: Values, id: u32) -> Attributes {
    let map = Attributes::new()
        .text(1, table)
        .text(2, name)
        .network_number(3, MAP)
        .network_number(4, 0)
        .network_number(5, length);
    let map = match values {
        Values::Verdicts => map.network_number(6, VERDICTS),
        Values::Bytes(length) => map.network_number(6, 0).network_number(7, length),
    };
    map.network_number(10, id)
}

fn memory(table: &str, name: &str, key: u32, value: u32, most: u32, id: u32) -> Attributes {
    Attributes::new()
        .text(1, table)
        .text(2, name)
        .network_number(3, MAP | WITH_TIMEOUT | FILLED_BY_RULES)
        .network_number(4, 0)
        .network_number(5, key)
        .network_number(6, 0)
        .network_number(7, value)
        .nest(9, &Attributes::new().network_number(1, most))
        .network_number(10, id)
}

fn entries(table: &str, map: &str, entries: &[(Vec<u8>, Value)]) -> Vec<Attributes> {
    let leads = |to: &Verdict| Attributes::new().nest(DATA_VERDICT, &verdict(to));
    let entry = |(key, value): &(Vec<u8>, Value)| {
        let key = Attributes::new().bytes(DATA_VALUE, key);
        let value = match value {
            Value::Bytes(bytes) => Attributes::new().bytes(DATA_VALUE, bytes),
            Value::Goto(chain) => leads(&Verdict::Goto(chain.clone())),
            Value::Jump(chain) => leads(&Verdict::Jump(chain.clone())),
        };
        Attributes::new().nest(1, &key).nest(2, &value)
    };
    let message = |entries: &[(Vec<u8>, Value)]| {
        let list = entries.iter().fold(Attributes::new(), |all, one| {
            all.nest(LIST_ELEMENT, &entry(one))
        });
        Attributes::new().text(1, table).text(2, map).nest(3, &list)
    };
    entries.chunks(ELEMENTS_AT_ONCE).map(message).collect()
}

/// A set of ranges: each begins with an element, and ends before one that is marked, or with the
/// last address.
fn ranges(
    family: Family,
    table: &str,
    name: &str,
    ranges: &[AddressRange],
    id: u32,
) -> Vec<Message> {
    let set = Attributes::new()
        .text(1, table)
        .text(2, name)
        .network_number(3, INTERVALS)
        .network_number(4, 0)
        .network_number(5, family.bytes())
        .network_number(10, id);
    let key = |address: IpAddr| {
        let value = Attributes::new().bytes(DATA_VALUE, &octets(address));
        Attributes::new().nest(1, &value)
    };
    let edges = ranges.iter().flat_map(|range| {
        let end = behind(range.last).map(|end| key(end).network_number(3, INTERVAL_END));
        std::iter::once(key(range.first)).chain(end)
    });
    let edges: Vec<Attributes> = edges.collect();
    let message = |edges: &[Attributes]| {
        let list = edges
            .iter()
            .fold(Attributes::new(), |all, edge| all.nest(LIST_ELEMENT, edge));
        let all = Attributes::new()
            .text(1, table)
            .text(2, name)
            .nest(3, &list);
        request(family, NEW_ELEMENTS, CREATE, all)
    };
    let elements = edges.chunks(ELEMENTS_AT_ONCE).map(message);
    std::iter::once(request(family, NEW_SET, CREATE, set))
        .chain(elements)
        .collect()
}

/// The address behind another; none behind the last.
fn behind(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(Ipv4Addr::from(u32::from(address).checked_add(1)?).into()),
        IpAddr::V6(address) => Some(Ipv6Addr::from(u128::from(address).checked_add(1)?).into()),
    }
}

pub(super) fn verdict(verdict: &Verdict) -> Attributes {
    // `NF_DROP`, `NF_ACCEPT`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`.
    let (code, chain): (i32, _) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    let code = Attributes::new().bytes(1, &code.to_be_bytes());
    match chain {
        Some(chain) => code.text(2, chain),
        None => code,
    }
}

/// Keys of a set, as many in each as a message takes.
fn elements(table: &str, set: &str, keys: &[Vec<u8>]) -> Vec<Attributes> {
    let message = |keys: &[Vec<u8>]| {
        let list = keys.iter().fold(Attributes::new(), |all, key| {
            let value = Attributes::new().bytes(DATA_VALUE, key);
            all.nest(LIST_ELEMENT, &Attributes::new().nest(1, &value))
        });
        Attributes::new().text(1, table).text(2, set).nest(3, &list)
    };
    keys.chunks(ELEMENTS_AT_ONCE).map(message).collect()
}
