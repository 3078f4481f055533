//! Tests the rules by themselves, and with the kernel of this host. Needs root.

use super::*;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::filter::Filter;
use std::net::{Ipv4Addr, Ipv6Addr};

fn pods(count: u8) -> BTreeMap<String, Vec<IpAddr>> {
    let pod = |number: u8| {
        let v6 = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, number.into());
        let v4 = Ipv4Addr::new(10, 1, 0, number);
        (format!("{LINKS}{number}"), vec![v4.into(), v6.into()])
    };
    (2..count).map(pod).collect()
}

#[test]
fn the_kernel_takes_the_table_again_and_again_and_single_pods() {
    for family in Family::BOTH {
        is_taken(family);
    }
}

fn is_taken(family: Family) {
    let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|text| text.parse().unwrap());
    in_new(&[Kind::Network], || {
        let mut filter = Filter::open(family)?;
        for (ranges, pods) in [
            (&ranges[..0], pods(0)),
            (&ranges, pods(0)),
            (&ranges, pods(250)),
        ] {
            let peers = [
                "10.1.1.0/24",
                "10.1.4.0/22",
                "192.0.2.7/32",
                "fd00:1:0:1::/64",
                "2001:db8::7/128",
            ];
            let peers = peers.map(|text| text.parse().unwrap());
            for kubernetes_only in [false, true] {
                for tunnel in [false, true] {
                    let forwarding = Forwarding {
                        kubernetes_only,
                        tunnel,
                    };
                    filter.apply(&all(family, ranges, &pods, &[], forwarding))?;
                    filter.apply(&all(family, ranges, &pods, &peers, forwarding))?;
                }
            }
        }
        let ip = match family {
            Family::V4 => Ipv4Addr::new(10, 1, 0, 254).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 254).into(),
        };
        filter.apply(&[admit("pod-x", ip)])?;
        filter.apply(&[dismiss("pod-x", ip)])?;
        assert!(filter.apply(&[dismiss("pod-x", ip)]).is_err());
        Ok(())
    })
    .unwrap();
}

#[test]
fn few_rules_match_every_packet() {
    for family in Family::BOTH {
        let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|text| text.parse().unwrap());
        let forwarding = Forwarding {
            kubernetes_only: true,
            tunnel: false,
        };
        let changes = all(family, &ranges, &pods(9), &[], forwarding);
        let of = |wanted: &str| {
            let steps = changes.iter().filter_map(|change| {
                let Change::AddRule { chain, steps, .. } = change else {
                    return None;
                };
                (*chain == *wanted).then_some(steps)
            });
            steps.cloned().collect::<Vec<_>>()
        };
        // The pod's own address, the jump to the machines' chain, this node's range from elsewhere,
        // and DNS by UDP and TCP.
        assert_eq!(of("from-pods").len(), 5);
        assert_eq!(of(BY_CONNECTION).len(), 2);
        assert!(of(TO_MACHINES).len() >= 4);
        // On established connections, answers to masqueraded packets are accepted by the first
        // rule, which matches no link name, and what a pod sends by the next one.
        let looks = |steps: &Vec<Step>| steps.contains(&Step::LoadInName(0));
        assert_eq!(of("through").iter().position(looks), Some(1));
        assert!(of("through")[1].ends_with(&[Step::Verdict(Verdict::Accept)]));
        for chain in [BY_CONNECTION, "own-answers"] {
            let named =
                |steps: &Vec<Step>| matches!(steps[0], Step::LoadInName(_) | Step::LoadOutName(_));
            assert!(!of(chain).iter().any(named), "{chain}");
        }
    }
}

#[test]
fn a_machine_that_serves_only_kubernetes_forwards_nothing_else() {
    for family in Family::BOTH {
        let rules = Rules {
            family,
            own: Vec::new(),
            sizes: BTreeSet::new(),
        };
        let last = |kubernetes_only| {
            let forwarding = Forwarding {
                kubernetes_only,
                tunnel: true,
            };
            match rules.through(forwarding).pop() {
                Some(Change::AddRule { steps, .. }) => steps,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(last(true), end(Verdict::Drop));
        assert_ne!(last(false), end(Verdict::Drop));
    }
}
