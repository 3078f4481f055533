//! Compares policies with a model of the API's documentation, and rules with an interpreter of
//! nftables steps.

use super::*;
use crate::model::{
    Labels, NamedPort, Pod, Policy, PolicyPeer, Ports, Rule, Selector, Wants, is_selected,
};
use crate::table::Set;
use agent_proxy::Key;
use agent_sys::netlink::filter::{DESTINATION_CHANGED, Step, Verdict};
use agent_sys::netlink::links::octets;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub(crate) type Own = BTreeMap<IpAddr, Arc<Pod>>;

/// A connection: client, server, protocol and port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
}

/// Whether the API's documentation allows a connection.
pub(crate) fn is_allowed(world: &World, own: &Own, connection: Connection) -> bool {
    let Connection { client, server, .. } = connection;
    if client == server && own.contains_key(&client) {
        return true;
    }
    let sides = [(server, client, true), (client, server, false)];
    sides.into_iter().all(|(at, other, ingress)| {
        let Some(pod) = own.get(&at) else {
            return true;
        };
        let policies = world.policies.as_ref().unwrap().values();
        let of_pod = policies
            .filter(|one| one.namespace == pod.namespace && one.selects.matches(&pod.labels));
        let lists =
            of_pod.filter_map(|one| if ingress { &one.ingress } else { &one.egress }.as_ref());
        let lists: Vec<_> = lists.collect();
        let allows = |rule: &Rule| allows(world, own, pod, rule, other, connection);
        lists.is_empty() || lists.into_iter().flatten().any(allows)
    })
}

fn pod_at<'a>(world: &'a World, own: &'a Own, at: IpAddr) -> Option<&'a Pod> {
    let away = world.pods.as_ref().unwrap().values();
    own.get(&at)
        .or_else(|| away.into_iter().find(|pod| pod.addresses.contains(&at)))
        .map(|pod| &**pod)
}

fn allows(
    world: &World,
    own: &Own,
    pod: &Pod,
    rule: &Rule,
    other: IpAddr,
    connection: Connection,
) -> bool {
    let namespaces = world.namespaces.as_ref().unwrap();
    let far = pod_at(world, own, other);
    let peer = |peer: &PolicyPeer| is_selected(peer, &pod.namespace, other, far, namespaces);
    let port = |(protocol, ports): &(u8, Ports)| {
        *protocol == connection.protocol
            && match ports {
                Ports::All => true,
                Ports::Range(first, last) => (*first..=*last).contains(&connection.port),
                Ports::Named(name) => {
                    let server = pod_at(world, own, connection.server);
                    server.is_some_and(|server| {
                        let mut ports = server.ports.iter();
                        ports.any(|one| {
                            (&one.name, one.protocol, one.port)
                                == (name, *protocol, connection.port)
                        })
                    })
                }
            }
    };
    (rule.peers.is_empty() || rule.peers.iter().any(peer))
        && (rule.ports.is_empty() || rule.ports.iter().any(port))
}

/// Evaluates the rules for a packet of a connection, from the client or from the server.
struct Filterer<'a> {
    family: Family,
    table: &'a Table,
    connection: Connection,
    registers: [u8; 64],
}

impl Filterer<'_> {
    fn passes(table: &Table, connection: Connection) -> bool {
        let family = Family::of(connection.client);
        let mut own = Filterer {
            family,
            table,
            connection,
            registers: [0; 64],
        };
        // Veth pairs are ignored here: the first two rules drop packets from and to unknown pods.
        let [_, _, to_pods @ ..] = table::to_pods(family);
        let judges: [&[Vec<Step>]; 2] = [&to_pods, &table::from_pods(family)];
        judges
            .into_iter()
            .all(|rules| own.chain(rules) != Some(Verdict::Drop))
    }

    /// The verdict of a chain on the packet, if it has one.
    fn chain(&mut self, rules: &[Vec<Step>]) -> Option<Verdict> {
        rules.iter().find_map(|rule| self.rule(rule))
    }

    fn load(&mut self, at: u32, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap() * 4;
        let end = at + bytes.len().next_multiple_of(4);
        self.registers[at..end].fill(0);
        self.registers[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn holds(&self, at: u32, length: usize) -> &[u8] {
        let at = usize::try_from(at).unwrap() * 4;
        &self.registers[at..at + length]
    }

    fn address(&self, at: u32) -> IpAddr {
        match self.family {
            Family::V4 => <[u8; 4]>::try_from(self.holds(at, 4)).unwrap().into(),
            Family::V6 => <[u8; 16]>::try_from(self.holds(at, 16)).unwrap().into(),
        }
    }

    fn is_in(&self, at: u32, name: &str) -> bool {
        match (name, self.table.sets.get(name).map(|set| &**set)) {
            ("itself", _) => {
                let length = usize::try_from(self.family.bytes()).unwrap();
                let (first, second) = self.holds(at, 2 * length).split_at(length);
                let mut known = self.table.known.iter();
                first == second && known.any(|one| octets(*one) == first)
            }
            (_, Some(Set::Keys(length, keys))) => {
                keys.contains(self.holds(at, usize::try_from(*length).unwrap()))
            }
            (_, Some(Set::Ranges(ranges))) => {
                let address = self.address(at);
                ranges
                    .iter()
                    .any(|range| (range.first..=range.last).contains(&address))
            }
            (_, None) => panic!("no set {name}"),
        }
    }

    /// The verdict of a rule, if it matches.
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "a step that policies do not use is a fault of theirs, whichever it is"
    )]
    fn rule(&mut self, steps: &[Step]) -> Option<Verdict> {
        let table = self.table;
        for step in steps {
            let holds = match step {
                Step::LoadClient(at) => {
                    let client = self.connection.client;
                    self.load(*at, &octets(client));
                    true
                }
                Step::LoadServer(at) => {
                    let server = self.connection.server;
                    self.load(*at, &octets(server));
                    true
                }
                // A pod reaches itself without the machine, except through services.
                Step::LoadStatus(at) => {
                    let led = self.connection.client == self.connection.server;
                    let status = if led { DESTINATION_CHANGED } else { 0 };
                    self.load(*at, &status.to_ne_bytes());
                    true
                }
                Step::Mask { of, mask } => {
                    let held = self.holds(*of, mask.len()).iter().zip(mask);
                    let masked: Vec<u8> = held.map(|(byte, mask)| byte & mask).collect();
                    self.load(*of, &masked);
                    true
                }
                Step::IsNot(at, bytes) => self.holds(*at, bytes.len()) != bytes,
                Step::LoadProtocol(at) => {
                    self.load(*at, &[self.connection.protocol]);
                    true
                }
                Step::LoadServerPort(at) => {
                    self.load(*at, &self.connection.port.to_be_bytes());
                    true
                }
                Step::In(at, set) => self.is_in(*at, set),
                Step::Is(at, bytes) => self.holds(*at, bytes.len()) == bytes,
                Step::AtLeast(at, bytes) => self.holds(*at, bytes.len()) >= bytes.as_slice(),
                Step::AtMost(at, bytes) => self.holds(*at, bytes.len()) <= bytes.as_slice(),
                Step::Count => true,
                Step::Follow(at, map) => {
                    let map = match *map {
                        "ingress" => &table.ingress,
                        "egress" => &table.egress,
                        other => panic!("no map {other}"),
                    };
                    let rules = map.get(&self.address(*at));
                    return rules.and_then(|name| self.chain(&table.chains[name]));
                }
                Step::Verdict(Verdict::Jump(name)) => {
                    return self.chain(&table.chains[&**name]);
                }
                Step::Verdict(verdict) => return Some(verdict.clone()),
                other => panic!("a policy has no such step: {other:?}"),
            };
            if !holds {
                return None;
            }
        }
        None
    }
}

fn labels() -> impl Strategy<Value = Labels> {
    proptest::collection::btree_map("[ab]", "[xy]", 0..3)
}

fn selector() -> impl Strategy<Value = Selector> {
    let values = || proptest::collection::vec("[xy]".prop_map(String::from), 1..2);
    let wants = prop_oneof![
        values().prop_map(Wants::In),
        values().prop_map(Wants::NotIn),
        Just(Wants::Exists),
        Just(Wants::Absent),
    ];
    proptest::collection::vec(("[ab]", wants), 0..3).prop_map(Selector)
}

fn range() -> impl Strategy<Value = config_model::format::Cidr> {
    let prefix = prop_oneof![Just(0_u8), Just(8), 24_u8..=32];
    (any::<bool>(), 0_u8..3, 0_u8..16, prefix).prop_map(|(v4, net, last, prefix)| {
        let text = if v4 {
            format!("10.1.{net}.{last}/{prefix}")
        } else {
            format!(
                "fd00::{net:x}:{last:x}/{}",
                if prefix < 24 { prefix } else { prefix + 96 }
            )
        };
        text.parse().unwrap()
    })
}

/// The addresses of the pod of a number on a node: one of each family.
fn ends(node: u8, number: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, node.into(), number.into());
    [Ipv4Addr::new(10, 1, node, number).into(), v6.into()]
}

fn rule() -> impl Strategy<Value = Rule> {
    let peer = prop_oneof![
        (proptest::option::of(selector()), selector())
            .prop_map(|(namespaces, pods)| PolicyPeer::Pods { namespaces, pods }),
        (range(), proptest::collection::vec(range(), 0..4))
            .prop_map(|(cidr, except)| PolicyPeer::Block { cidr, except }),
    ];
    let ports = prop_oneof![
        Just(Ports::All),
        (78_u16..83, 0_u16..3).prop_map(|(first, more)| Ports::Range(first, first + more)),
        "(web|dns)".prop_map(Ports::Named),
    ];
    let port = (prop_oneof![Just(6_u8), Just(17)], ports);
    let peers = proptest::collection::vec(peer, 0..3);
    (peers, proptest::collection::vec(port, 0..3)).prop_map(|(peers, ports)| Rule {
        peers: peers.into(),
        ports,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let rules = || proptest::option::of(proptest::collection::vec(rule(), 0..3));
    ("[mn]", selector(), rules(), rules()).prop_map(|(namespace, selects, ingress, egress)| {
        Policy {
            namespace,
            selects,
            ingress,
            egress,
            left_out: false,
        }
    })
}

/// Pods at addresses from 10.1.NODE.1 and fd00::NODE:1 on; node 0 is this node.
pub(crate) fn world() -> impl Strategy<Value = (World, Own)> {
    let port = ("(web|dns)", prop_oneof![Just(6_u8), Just(17)], 78_u16..83).prop_map(
        |(name, protocol, port)| NamedPort {
            name,
            protocol,
            port,
        },
    );
    let pod = ("[mn]", labels(), proptest::collection::vec(port, 0..3));
    let pods = proptest::collection::vec((0_u8..2, pod), 1..8);
    let namespaces = proptest::collection::btree_map("[mn]", labels().prop_map(Arc::new), 0..3);
    let policies = proptest::collection::vec(policy(), 0..5);
    (pods, namespaces, policies).prop_map(|(pods, namespaces, policies)| {
        let mut own = Own::new();
        let mut all = BTreeMap::new();
        for ((node, (namespace, labels, ports)), number) in pods.into_iter().zip(1_u8..) {
            let at = ends(node, number);
            let pod = Arc::new(Pod {
                namespace,
                labels,
                addresses: at.to_vec(),
                ports,
            });
            all.insert(number.to_string(), Arc::clone(&pod));
            if node == 0 {
                own.extend(at.map(|at| (at, Arc::clone(&pod))));
            }
        }
        let policies = policies
            .into_iter()
            .zip(0..)
            .map(|(policy, number): (_, u8)| {
                let key = Key {
                    namespace: policy.namespace.clone(),
                    name: number.to_string(),
                };
                (key, Arc::new(policy))
            });
        let world = World {
            pods: Some(all),
            namespaces: Some(namespaces),
            policies: Some(policies.collect()),
        };
        (world, own)
    })
}

proptest! {
    #[test]
    fn rules_judge_as_the_policies_say((world, own) in world()) {
        for (family, place) in Family::BOTH.into_iter().zip(0..) {
            let table = fresh(family, &world, &own);
            let ends = || (0_u8..3).flat_map(|net| (0_u8..9).map(move |last| ends(net, last)[place]));
            for client in ends() {
                for server in ends() {
                    for (protocol, port) in [(6, 78), (6, 80), (17, 80), (17, 82), (1, 0)] {
                        let connection = Connection { client, server, protocol, port };
                        prop_assert_eq!(
                            Filterer::passes(&table, connection),
                            is_allowed(&world, &own, connection),
                            "{:?}", connection
                        );
                    }
                }
            }
        }
    }
}

/// The table, made without any earlier one.
pub(crate) fn fresh(family: Family, world: &World, own: &Own) -> Table {
    Planner::new(family).table(world, own).unwrap()
}

pub(crate) fn read(policy: &serde_json::Value) -> Policy {
    let policy = json!({"metadata": {"namespace": "shop"}, "spec": policy});
    Policy::read(serde_json::from_value(policy).unwrap())
}

#[test]
fn a_policy_that_is_not_understood_closes_its_namespace() {
    let closed = Policy {
        namespace: "shop".to_owned(),
        selects: Selector::default(),
        ingress: Some(Vec::new()),
        egress: Some(Vec::new()),
        left_out: true,
    };
    for broken in [
        json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
        json!({"podSelector": {}, "policyTypes": ["Forward"]}),
        json!({"podSelector": {}, "ingress": [{"from": [{}]}]}),
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "ten"}}]}]}),
        json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["ten"]}}]}]}),
        json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "DCCP"}]}]}),
    ] {
        assert_eq!(read(&broken), closed, "{broken}");
    }
    let both =
        read(&json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{}]}));
    assert_eq!(
        (both.ingress, both.egress),
        (Some(vec![]), Some(vec![Rule::default()]))
    );
    let ingress = read(&json!({"podSelector": {}}));
    assert_eq!((ingress.ingress, ingress.egress), (Some(vec![]), None));
}

#[test]
fn a_port_of_sctp_lets_sctp_through_and_no_other_protocol() {
    let policy = read(&json!({"podSelector": {}, "ingress": [{"ports": [
        {"protocol": "SCTP", "port": 80}, {"protocol": "SCTP", "port": "web"},
    ]}]}));
    let port = |protocol, port| NamedPort {
        name: "web".to_owned(),
        protocol,
        port,
    };
    let own = ends(0, 1);
    let pod = Arc::new(Pod {
        namespace: "shop".to_owned(),
        addresses: own.to_vec(),
        ports: vec![port(6, 81), port(132, 82)],
        ..Pod::default()
    });
    let key = Key {
        namespace: "shop".to_owned(),
        name: "sctp".to_owned(),
    };
    let world = World {
        pods: Some(BTreeMap::new()),
        namespaces: Some(BTreeMap::new()),
        policies: Some(BTreeMap::from([(key, Arc::new(policy))])),
    };
    let pods = Own::from(own.map(|at| (at, Arc::clone(&pod))));
    for (family, place) in Family::BOTH.into_iter().zip(0..) {
        let table = fresh(family, &world, &pods);
        let (client, server) = (ends(1, 1)[place], own[place]);
        let passes = |(protocol, port)| {
            let connection = Connection {
                client,
                server,
                protocol,
                port,
            };
            Filterer::passes(&table, connection)
        };
        let all = [6, 17, 132].map(|protocol| [79, 80, 81, 82].map(|port| (protocol, port)));
        let through: Vec<(u8, u16)> = all
            .into_iter()
            .flatten()
            .filter(|one| passes(*one))
            .collect();
        assert_eq!(through, [(132, 80), (132, 82)], "{family:?}");
    }
}
