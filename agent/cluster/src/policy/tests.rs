//! Policies against a model, against the rules' own meaning, and against the kernel of this host. The last needs root.

use super::model::{Labels, NamedPort, Peer, Pod, Policy, Ports, Rule, Selector, Wants, is_meant};
use super::plan::Set;
use super::*;
use crate::{Places, Sandbox, Sandboxes, Wanted};
use agent_sys::namespace::{self, Kind, in_new};
use agent_sys::netlink::filter::{Step, Verdict};
use agent_sys::netlink::links::{LOOPBACK, Links, octets};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

pub(super) type Own = BTreeMap<IpAddr, Arc<Pod>>;

/// A connection: who began it, who answers, by which protocol and at which port.
#[derive(Debug, Clone, Copy)]
struct Connection {
    client: IpAddr,
    server: IpAddr,
    protocol: u8,
    port: u16,
}

/// What the API's documentation says of a connection.
fn is_allowed(world: &World, own: &Own, connection: Connection) -> bool {
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
    let peer = |peer: &Peer| is_meant(peer, &pod.namespace, other, far, namespaces);
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

/// What the rules themselves say of a packet of a connection, from the client or from the server.
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
        // Cables are not looked at here: the first two rules drop what comes from or goes to pods that are not known.
        let [_, _, to_pods @ ..] = table::to_pods(family);
        let judges: [&[Vec<Step>]; 2] = [&to_pods, &table::from_pods(family)];
        judges
            .into_iter()
            .all(|rules| own.chain(rules) != Some(Verdict::Drop))
    }

    /// What ends the packet's way through a chain of this kind, if something does.
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
                    .any(|(first, last)| (*first..=*last).contains(&address))
            }
            (_, None) => panic!("no set {name}"),
        }
    }

    /// What ends the chain, if the rule does.
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
            .prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods }),
        (range(), proptest::collection::vec(range(), 0..4))
            .prop_map(|(cidr, except)| Peer::Block { cidr, except }),
    ];
    let ports = prop_oneof![
        Just(Ports::All),
        (78_u16..83, 0_u16..3).prop_map(|(first, more)| Ports::Range(first, first + more)),
        "(web|dns)".prop_map(Ports::Named),
    ];
    let port = (prop_oneof![Just(6_u8), Just(17)], ports);
    let peers = proptest::collection::vec(peer, 0..3);
    (peers, proptest::collection::vec(port, 0..3)).prop_map(|(peers, ports)| Rule { peers, ports })
}

fn policy() -> impl Strategy<Value = Policy> {
    let rules = || proptest::option::of(proptest::collection::vec(rule(), 0..3));
    ("[mn]", selector(), rules(), rules()).prop_map(|(namespace, selects, ingress, egress)| {
        Policy {
            namespace,
            selects,
            ingress,
            egress,
        }
    })
}

/// Pods at 10.1.NODE.1 and fd00::NODE:1 and on, of which those of node 0 are this one's.
pub(super) fn world() -> impl Strategy<Value = (World, Own)> {
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
                let key = (policy.namespace.clone(), number.to_string());
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
pub(super) fn fresh(family: Family, world: &World, own: &Own) -> Table {
    Planner::new(family).table(world, own).unwrap()
}

fn read(policy: &serde_json::Value) -> Policy {
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
    };
    for broken in [
        json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
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

/// A machine of its own with pods of the namespace `shop`, each labelled with its name, which call one another by addresses of a
/// family.
struct Node {
    family: Family,
    sandboxes: Sandboxes,
    policies: Policies,
    pods: BTreeMap<&'static str, Sandbox>,
}

impl Node {
    /// Runs a test once for each family.
    fn with(names: &[&'static str], test: impl Fn(&mut Self) + Send + Sync) {
        for family in Family::BOTH {
            Self::of(family, names, &test);
        }
    }

    fn of(family: Family, names: &[&'static str], test: impl FnOnce(&mut Self) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            alone: true,
            tunnel: false,
        };
        in_new(&[Kind::Network], || {
            Links::open()?.switch_on(LOOPBACK)?;
            let sandboxes = Sandboxes::open(places).unwrap();
            sandboxes
                .give_ranges(&["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap()))
                .unwrap();
            let mut node = Self {
                family,
                sandboxes,
                policies: Policies::default(),
                pods: BTreeMap::new(),
            };
            for name in names {
                node.add(name);
            }
            test(&mut node);
            for name in node.pods.keys() {
                node.sandboxes.remove(name).unwrap();
            }
            Ok(())
        })
        .unwrap();
    }

    fn add(&mut self, name: &'static str) {
        let wanted = Wanted {
            uid: name.to_owned(),
            network: true,
            ..Wanted::default()
        };
        self.pods
            .insert(name, self.sandboxes.make(&wanted).unwrap());
    }

    fn at(&self, name: &str) -> IpAddr {
        let mut own = self.pods[name].addresses.iter();
        *own.find(|at| Family::of(**at) == self.family).unwrap()
    }

    /// Every address of the machine or pod that asks.
    fn any(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Puts these policies in force.
    fn say(&self, policies: &[serde_json::Value]) {
        let pod = |name: &&'static str| {
            let pod = Pod {
                namespace: "shop".to_owned(),
                labels: [("app".to_owned(), (*name).to_owned())].into(),
                addresses: self.pods[*name].addresses.clone(),
                ports: vec![NamedPort {
                    name: "web".to_owned(),
                    protocol: 6,
                    port: 80,
                }],
            };
            ((*name).to_owned(), Arc::new(pod))
        };
        let pods: BTreeMap<String, Arc<Pod>> = self.pods.keys().map(pod).collect();
        let own = pods
            .values()
            .flat_map(|pod| pod.addresses.iter().map(move |at| (*at, Arc::clone(pod))))
            .collect();
        let policies = policies.iter().enumerate();
        let policies = policies.map(|(number, policy)| {
            (
                ("shop".to_owned(), number.to_string()),
                Arc::new(read(policy)),
            )
        });
        let world = World {
            pods: Some(pods),
            namespaces: Some([("shop".to_owned(), Arc::default())].into()),
            policies: Some(policies.collect()),
        };
        let families = Family::BOTH.into();
        assert!(self.policies.follow(&families, &world, &own).unwrap());
    }

    fn within<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let network = self.pods[name].held(Kind::Network).unwrap();
        namespace::inside(&[(Kind::Network, &network)], || Ok(work())).unwrap()
    }

    fn serve(&self, name: &str, port: u16) -> TcpListener {
        let any = self.any();
        self.within(name, || TcpListener::bind((any, port)).unwrap())
    }

    /// Whether a connection is answered; it is waited for longer where it should be.
    fn reaches(&self, from: &str, to: &str, port: u16, should: bool) -> bool {
        let address = (self.at(to), port).into();
        let limit = if should { PATIENCE } else { SILENCE };
        self.within(from, || TcpStream::connect_timeout(&address, limit).is_ok())
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a packet between two namespaces; only refusals wait for it to pass.
const SILENCE: Duration = Duration::from_millis(500);

#[test]
fn packets_are_let_through_as_policies_say() {
    Node::with(&["a", "b", "c"], |node| {
        let _web = node.serve("b", 80);
        let _other = node.serve("b", 81);
        let _far = node.serve("c", 80);
        node.say(&[]);
        assert!(
            node.reaches("a", "b", 81, true),
            "without policies all is open"
        );
        let to_b = json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"app": "a"}}}],
            "ports": [{"port": "web"}],
        }]});
        node.say(std::slice::from_ref(&to_b));
        for (from, to, port, should) in [
            ("a", "b", 80, true),
            ("a", "b", 81, false),
            ("c", "b", 80, false),
            ("a", "c", 80, true),
            ("b", "c", 80, true),
            ("b", "b", 81, true),
        ] {
            assert_eq!(
                node.reaches(from, to, port, should),
                should,
                "{from} to {to}:{port}"
            );
        }
        let at_b = (node.at("b"), 81).into();
        assert!(
            TcpStream::connect_timeout(&at_b, PATIENCE).is_ok(),
            "its own node reaches a pod always"
        );
        let block = format!("{}/{}", node.at("c"), node.family.bits());
        let all = match node.family {
            Family::V4 => "10.1.0.0/24",
            Family::V6 => "fd00:1::/64",
        };
        let from_a = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": [{
            "to": [{"ipBlock": {"cidr": all, "except": [block]}}],
            "ports": [{"port": 79, "endPort": 80}],
        }]});
        node.say(&[to_b, from_a]);
        for (from, to, should) in [("a", "b", true), ("a", "c", false), ("b", "c", true)] {
            assert_eq!(node.reaches(from, to, 80, should), should, "{from} to {to}");
        }
    });
}

#[test]
fn a_new_pod_is_silent_until_its_policies_are_in_force() {
    Node::with(&["a"], |node| {
        node.say(&[]);
        node.add("b");
        let _web = node.serve("b", 80);
        assert!(!node.reaches("a", "b", 80, false));
        assert!(!node.reaches("b", "a", 80, false));
        node.say(&[]);
        assert!(node.reaches("a", "b", 80, true));
    });
}

#[test]
fn what_is_no_longer_allowed_is_cut_in_both_directions() {
    Node::with(&["a", "b"], |node| {
        node.say(&[]);
        let listener = node.serve("b", 80);
        let to_b = (node.at("b"), 80);
        let mut client = node.within("a", || TcpStream::connect(to_b).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let any = node.any();
        let datagrams = node.within("b", || UdpSocket::bind((any, 53)).unwrap());
        let asking = node.within("a", || UdpSocket::bind((any, 0)).unwrap());
        asking.connect((node.at("b"), 53)).unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        asking.send(b"1").unwrap();
        let (_, asker) = datagrams.recv_from(&mut [0; 8]).unwrap();
        let closed = json!({"podSelector": {"matchLabels": {"app": "b"}}});
        node.say(&[closed]);
        client.write_all(b"up").unwrap();
        server.write_all(b"down").unwrap();
        datagrams.send_to(b"2", asker).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(SILENCE)).unwrap();
        }
        asking.set_read_timeout(Some(SILENCE)).unwrap();
        let mut buffer = [0; 8];
        assert!(server.read(&mut buffer).is_err(), "from the client");
        assert!(client.read(&mut buffer).is_err(), "from the server");
        assert!(asking.recv(&mut buffer).is_err(), "a datagram's answer");
        // The connection was held and not lost: with the policy gone, what was sent is sent again.
        node.say(&[]);
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        assert_eq!(server.read(&mut buffer).unwrap(), 2);
        assert_eq!(client.read(&mut buffer).unwrap(), 4);
    });
}
