use super::*;
use crate::namespace::{Kind, in_new};
use nix::libc;

fn table(family: Family) -> Vec<Change> {
    let rule = |steps| Change::AddRule {
        table: "t",
        chain: "c".into(),
        steps,
    };
    let chain = |name, kind, hook, priority| Change::AddChain {
        table: "t",
        name,
        kind,
        hook,
        priority,
    };
    let load = Step::LoadNetwork {
        offset: family.source_offset(),
        length: family.bytes(),
        to: 4,
    };
    let bytes = |first: [u8; 2]| {
        let mut bytes = first.to_vec();
        bytes.resize(family.bytes().try_into().unwrap(), 0);
        bytes
    };
    let masked = Step::Mask {
        of: 4,
        mask: bytes([255, 255]),
    };
    let (first, last) = match family {
        Family::V4 => ("10.1.0.0", "255.255.255.255"),
        Family::V6 => ("fd00:1::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    };
    vec![
        Change::AddTable("t"),
        Change::AddSet {
            table: "t",
            name: "s".into(),
            shown_as: 41 << 6 | 7,
            length: 16 + family.bytes(),
        },
        Change::AddRanges {
            table: "t",
            name: "r".into(),
            ranges: [first, last]
                .map(|address| AddressRange {
                    first: address.parse().unwrap(),
                    last: address.parse().unwrap(),
                })
                .to_vec(),
        },
        chain("c", ChainKind::Filter, Hook::Prerouting, -300),
        chain("n", ChainKind::Nat, Hook::Postrouting, 100),
        chain("d", ChainKind::Nat, Hook::Prerouting, -100),
        rule(vec![
            Step::LoadInName(0),
            Step::Is(0, b"pod-".to_vec()),
            load.clone(),
            Step::NotIn(0, "s".into()),
            Step::Count,
            Step::Verdict(Verdict::Drop),
        ]),
        rule(vec![load, masked, Step::IsNot(4, bytes([10, 1]))]),
        rule(vec![
            Step::LoadState(0),
            Step::Mask {
                of: 0,
                mask: ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec(),
            },
            Step::IsNot(0, vec![0; 4]),
            Step::Verdict(Verdict::Accept),
        ]),
        Change::AddRule {
            table: "t",
            chain: "n".into(),
            steps: vec![
                Step::LoadProtocol(0),
                Step::Is(0, vec![6]),
                Step::Masquerade,
            ],
        },
    ]
}

/// Rules whose encoding differs by the family beyond the length of addresses.
fn of_family() -> Vec<Change> {
    let rule = |chain: &'static str, steps| Change::AddRule {
        table: "t",
        chain: chain.into(),
        steps,
    };
    let judged = vec![
        Step::LoadClient(0),
        Step::In(0, "r".into()),
        Step::LoadServer(0),
        Step::In(0, "r".into()),
        Step::Reject,
    ];
    let led = vec![
        Step::LoadProtocol(0),
        Step::Is(0, vec![6]),
        Step::LoadServer(4),
        Step::LoadTransport {
            offset: 2,
            length: 2,
            to: 9,
        },
        Step::Destination {
            address: 4,
            port: 9,
        },
    ];
    vec![rule("c", judged), rule("d", led)]
}

#[test]
fn what_is_cleared_can_be_filled_anew_at_once() {
    for family in Family::BOTH {
        in_new(&[Kind::Network], || {
            let mut filter = Filter::open(family)?;
            let entry = |chain: &'static str| Change::AddEntries {
                table: "t",
                map: "m",
                entries: vec![(vec![1; 4], Value::Goto(chain.into()))],
            };
            let cleared = |chain: &'static str| {
                let (table, name) = ("t", "m");
                vec![
                    Change::AddTable(table),
                    Change::ClearTable(table),
                    Change::AddMap {
                        table,
                        name,
                        length: 4,
                        values: Values::Verdicts,
                    },
                    Change::ClearSet {
                        table,
                        name: name.into(),
                    },
                    Change::AddBranch {
                        table,
                        name: chain.into(),
                    },
                    Change::AddRule {
                        table,
                        chain: chain.into(),
                        steps: vec![Step::Count],
                    },
                    entry(chain),
                ]
            };
            for chain in ["a", "b", "a"] {
                filter.apply(&cleared(chain))?;
            }
            // It holds that key already, so that this is another value for it.
            assert!(filter.apply(&[entry("b")]).is_err());
            Ok(())
        })
        .unwrap();
    }
}

fn elements(add: bool, keys: Vec<Vec<u8>>) -> Change {
    let (table, set) = ("t", "s".into());
    if add {
        Change::AddElements { table, set, keys }
    } else {
        Change::RemoveElements { table, set, keys }
    }
}

#[test]
fn the_kernel_takes_a_batch_whole_or_not_at_all() {
    for family in Family::BOTH {
        takes_whole_or_not_at_all(family);
    }
}

fn takes_whole_or_not_at_all(family: Family) {
    in_new(&[Kind::Network], || {
        let mut filter = Filter::open(family)?;
        filter.apply(&table(family))?;
        filter.apply(&of_family())?;
        // The same set again would be refused if it differed; a table that is put in place of
        // itself is new.
        let again: Vec<Change> = [Change::AddTable("t"), Change::RemoveTable("t")]
            .into_iter()
            .chain(table(family))
            .collect();
        filter.apply(&again)?;
        let address = |number: u8| {
            let mut address = vec![number];
            address.resize(family.bytes().try_into().unwrap(), 0);
            address
        };
        let key = |number: u8| [name_key("pod-1").as_slice(), &address(number)].concat();
        let many: Vec<Vec<u8>> = (0..=255).map(key).collect();
        filter.apply(&[elements(true, many.clone())])?;
        filter.apply(&[elements(true, many.clone())])?;
        filter.apply(&[elements(false, vec![key(1)])])?;
        // One that isn't there any more keeps another from going.
        let mixed = [elements(false, vec![key(2)]), elements(false, vec![key(1)])];
        let error = filter.apply(&mixed).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
        filter.apply(&[elements(false, vec![key(2)])])?;
        filter.apply(&[Change::RemoveTable("t")])?;
        let error = filter.apply(&[Change::RemoveTable("t")]).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_kernel_takes_the_largest_batch_and_not_much_more() {
    in_new(&[Kind::Network], || {
        let mut filter = Filter::open(Family::V4)?;
        filter.apply(&table(Family::V4))?;
        let clear = |count| {
            let (table, name) = ("t", "c".into());
            vec![Change::ClearChain { table, name }; count]
        };
        let one = encoded_length(Family::V4, &clear(2)) - encoded_length(Family::V4, &clear(1));
        let most = (MAX_BATCH - encoded_length(Family::V4, &clear(1))) / one;
        filter.apply(&clear(most))?;
        let error = filter.apply(&clear(most + 4)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EMSGSIZE), "{error}");
        Ok(())
    })
    .unwrap();
}
