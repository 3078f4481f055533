//! Reads what a table of the packet filter holds, as the kernel encodes it: for a process that
//! takes over the table of another, and for tests that compare two.

use super::filter::Filter;
use super::message::{Attributes, DUMP, Message, Part, attributes_of};
use super::{Family, Socket};
use crate::error::Result;
use nix::libc;
use std::collections::BTreeMap;

/// `NFNL_SUBSYS_NFTABLES`, and `NFT_MSG_GET*`.
const NFTABLES: u16 = 10 << 8;
const GET_CHAINS: u16 = 4;
const GET_RULES: u16 = 7;
const GET_SETS: u16 = 10;
const GET_ELEMENTS: u16 = 13;
/// Bytes of `struct nfgenmsg`.
const HEADER: usize = 4;

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expression {
    /// What it does.
    pub name: String,
    /// Its settings; none of a counter, which says there what it has counted.
    pub settings: Vec<u8>,
}

/// The expressions of each rule of a chain, in order.
pub type Rules = Vec<Vec<Expression>>;

/// A table, without what differs between two that do the same: handles, counters, times that run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Chains by name.
    pub chains: BTreeMap<String, Rules>,
    /// Where those chains begin that see packets.
    pub hooks: BTreeMap<String, Vec<u8>>,
    /// The keys of each set, with the value of each key that has one.
    pub sets: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Filter {
    /// What a table holds; nothing where there is none, or one without chains.
    ///
    /// # Errors
    /// The kernel refuses a list, as when a set goes while its elements are asked for; a list has
    /// more than 65,536 parts, or none comes for 10 s.
    pub fn held(&mut self, table: &str) -> Result<Held> {
        let (socket, family) = self.parts();
        let mut held = Held::default();
        for part in ask(socket, family, GET_CHAINS, &[])? {
            let all = part.attributes(HEADER);
            if text(&all, 1) == table {
                held.chains.insert(text(&all, 3), Vec::new());
                let hook = value(&all, 4);
                held.hooks
                    .extend(hook.map(|hook| (text(&all, 3), hook.to_vec())));
            }
        }
        if held.chains.is_empty() {
            // The kernel refuses the other questions about a table that is not there.
            return Ok(held);
        }
        for part in ask(socket, family, GET_RULES, &[table])? {
            let all = part.attributes(HEADER);
            if text(&all, 1) == table {
                let rules = held.chains.entry(text(&all, 2)).or_default();
                rules.push(expressions(value(&all, 4).unwrap_or_default()));
            }
        }
        for part in ask(socket, family, GET_SETS, &[table])? {
            let all = part.attributes(HEADER);
            if text(&all, 1) == table {
                held.sets.insert(text(&all, 2), BTreeMap::new());
            }
        }
        for (name, set) in &mut held.sets {
            for part in ask(socket, family, GET_ELEMENTS, &[table, name])? {
                let all = part.attributes(HEADER);
                let list = attributes_of(value(&all, 3).unwrap_or_default());
                set.extend(list.into_iter().map(|(_, one)| element(one)));
            }
        }
        Ok(held)
    }

    /// The keys of a set that `wanted` selects; none where there is no such table or set.
    ///
    /// # Errors
    /// The kernel refuses the list for another reason than that there is none (`ENOENT`); more than
    /// 65,536 parts of it hold wanted keys, or none comes for 10 s.
    pub fn keys(
        &mut self,
        table: &str,
        set: &str,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>> {
        let (socket, family) = self.parts();
        let keys = |part: &Part| {
            let all = part.attributes(HEADER);
            let list = attributes_of(value(&all, 3).unwrap_or_default());
            let list = list.into_iter().filter_map(|(_, one)| key(one));
            list.filter(|key| wanted(key)).collect::<Vec<_>>()
        };
        // Parts of a large set without such a key are not kept.
        let has_some = |part: &Part| !keys(part).is_empty();
        let request = list_request(family, GET_ELEMENTS, &[table, set]);
        match socket.send_and_keep(&[request], "list", "a set of the packet filter", &has_some) {
            Ok(parts) => Ok(parts.iter().flat_map(keys).collect()),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// An element's key, as it was written.
fn key(element: &[u8]) -> Option<Vec<u8>> {
    let all = attributes_of(element);
    let data = attributes_of(value(&all, 1)?);
    value(&data, 1).map(<[u8]>::to_vec)
}

/// Asks for all objects of a kind: those of a table, and of a set in it.
fn ask(socket: &mut Socket, family: Family, kind: u16, of: &[&str]) -> Result<Vec<Part>> {
    let request = list_request(family, kind, of);
    socket.send(&[request], "list", "the packet filter")
}

fn list_request(family: Family, kind: u16, of: &[&str]) -> Message {
    let header = [family.number(), 0, 0, 0];
    let attributes = (1..).zip(of);
    let attributes = attributes.fold(Attributes::new(), |all, (kind, name)| all.text(kind, name));
    Message::new(NFTABLES | kind, DUMP, &header, attributes)
}

fn expressions(list: &[u8]) -> Vec<Expression> {
    let all = attributes_of(list).into_iter();
    let all = all.map(|(_, one)| {
        let one = attributes_of(one);
        let name = text(&one, 1);
        let counts = name == "counter";
        let settings = value(&one, 2).filter(|_| !counts);
        let settings = settings.unwrap_or_default().to_vec();
        Expression { name, settings }
    });
    all.collect()
}

/// The key of an element, with the mark of a range's end, and what it leads to.
fn element(one: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let all = attributes_of(one);
    let bytes = |kind| value(&all, kind).unwrap_or_default();
    ([bytes(1), bytes(3)].concat(), bytes(2).to_vec())
}

fn value<'a>(attributes: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    let mut all = attributes.iter();
    all.find(|(one, _)| *one == kind).map(|(_, value)| *value)
}

fn text(attributes: &[(u16, &[u8])], kind: u16) -> String {
    let bytes = value(attributes, kind).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::filter::{Change, Step, Value, Values, Verdict};
    use super::*;
    use crate::namespace::{Kind, in_new};

    #[test]
    fn a_table_is_read_as_it_was_made_and_no_other_ones_parts() {
        for family in Family::BOTH {
            in_new(&[Kind::Network], || {
                let table = "t";
                let mut filter = Filter::open(family)?;
                assert_eq!(filter.held(table)?, Held::default());
                let branch = |table, name: &'static str| Change::AddBranch {
                    table,
                    name: name.into(),
                };
                let steps = vec![Step::Count, Step::Verdict(Verdict::Jump("b".into()))];
                let chain = "a".into();
                filter.apply(&[
                    Change::AddTable("other"),
                    branch("other", "x"),
                    Change::AddTable(table),
                    branch(table, "a"),
                    branch(table, "b"),
                    Change::AddMap {
                        table,
                        name: "m",
                        length: 4,
                        values: Values::Verdicts,
                    },
                    Change::AddEntries {
                        table,
                        map: "m",
                        entries: vec![(vec![1; 4], Value::Goto("b".into()))],
                    },
                    Change::AddRule {
                        table,
                        chain,
                        steps,
                    },
                ])?;
                let held = filter.held(table)?;
                let names: Vec<&String> = held.chains.keys().collect();
                assert_eq!(names, ["a", "b"]);
                assert_eq!(held.chains["a"].len(), 1);
                let [counter, verdict] = held.chains["a"][0].as_slice() else {
                    unreachable!("{held:?}");
                };
                assert_eq!((&*counter.name, &*counter.settings), ("counter", &[][..]));
                assert!(verdict.settings.ends_with(b"b\0\0\0"), "{verdict:?}");
                assert_eq!(held.sets["m"].len(), 1);
                let keys = |table, set, first| {
                    let mut filter = Filter::open(family).unwrap();
                    filter.keys(table, set, &|key| key[0] == first).unwrap()
                };
                assert_eq!(keys(table, "m", 1), [vec![1; 4]]);
                assert!(keys(table, "m", 2).is_empty());
                assert!(keys(table, "n", 1).is_empty() && keys("none", "m", 1).is_empty());
                assert!(held.hooks.is_empty());
                Ok(())
            })
            .unwrap();
        }
    }
}
