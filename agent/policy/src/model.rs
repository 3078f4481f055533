//! The parts of network policies, namespaces and pods that the packet filter's rules depend on.

use agent_proxy::Key;
use config_kube::k8s_openapi::api::core::v1 as core;
use config_kube::k8s_openapi::api::networking::v1 as networking;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use config_model::format::Cidr;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Most rules of a policy for a direction, and most peers and ports of a rule. The API accepts no
/// more. A policy with more that was stored earlier is left out, since peers and ports multiply.
const MOST_RULES: usize = 1000;
const MOST_PEERS: usize = 1000;
const MOST_PORTS: usize = 1000;
/// Most named ports of a pod that count: rules with port names ignore the others.
const MOST_NAMED_PORTS: usize = 1000;

/// Bytes that an object takes besides its own fields: its key, and its entries in maps.
const PLACES: usize = 256;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Bytes of memory that labels take, about.
pub fn bytes_of(labels: &Labels) -> usize {
    let each = labels.iter();
    let each = each.map(|(key, value)| 2 * size_of::<String>() + key.len() + value.len());
    each.sum()
}

/// The number of a protocol by its name (RFC 9293, RFC 768, RFC 9260).
fn protocol(name: Option<&str>) -> Option<u8> {
    match name {
        None | Some("TCP") => Some(6),
        Some("UDP") => Some(17),
        Some("SCTP") => Some(132),
        Some(_) => None,
    }
}

/// A port of a pod that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Its name.
    pub name: String,
    /// The number of its protocol.
    pub protocol: u8,
    /// Its number.
    pub port: u16,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Labels.
    pub labels: Labels,
    /// Its own addresses; none with `hostNetwork`, before it has one, and after it has ended.
    pub addresses: Vec<IpAddr>,
    /// Its ports with names.
    pub ports: Vec<NamedPort>,
}

impl Pod {
    /// Reads what the rules need of an object; returns the pod's uid, too.
    pub fn read(pod: core::Pod) -> (String, Self) {
        let uid = pod.metadata.uid.unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let own = !ended && spec.host_network != Some(true);
        let listed = status.pod_ips.into_iter().flatten().map(|one| one.ip);
        let addresses = listed.chain(status.pod_ip).filter(|_| own);
        let mut addresses: Vec<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
        addresses.sort();
        addresses.dedup();
        // Of init containers only sidecars count.
        let beside = spec.init_containers.into_iter().flatten();
        let beside = beside.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.into_iter().chain(beside);
        let ports = ports.flat_map(|container| container.ports.unwrap_or_default());
        let named = ports.filter_map(|port| {
            Some(NamedPort {
                name: port.name?,
                protocol: protocol(port.protocol.as_deref())?,
                port: u16::try_from(port.container_port).ok()?,
            })
        });
        let read = Self {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            labels: pod.metadata.labels.unwrap_or_default(),
            addresses,
            ports: named.take(MOST_NAMED_PORTS).collect(),
        };
        (uid, read)
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let ports = self.ports.iter();
        let ports = ports.map(|port| size_of::<NamedPort>() + port.name.len());
        // Each address has an entry in the list of all pods' addresses.
        let addresses = self.addresses.len() * (PLACES + size_of::<IpAddr>());
        let fields = size_of::<Self>() + self.namespace.len() + bytes_of(&self.labels);
        PLACES + fields + addresses + ports.sum::<usize>()
    }
}

/// What a requirement wants of a label (`operator` and `values` of `matchExpressions`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wants {
    /// One of these.
    In(Vec<String>),
    /// None of these, or no such label.
    NotIn(Vec<String>),
    /// Any.
    Exists,
    /// No such label.
    Absent,
}

/// A label selector: all its requirements must hold. One without any selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(pub Vec<(String, Wants)>);

impl Selector {
    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, wants)| {
            let value = labels.get(key);
            match wants {
                Wants::In(list) => value.is_some_and(|value| list.contains(value)),
                Wants::NotIn(list) => value.is_none_or(|value| !list.contains(value)),
                Wants::Exists => value.is_some(),
                Wants::Absent => value.is_none(),
            }
        })
    }

    /// Values that it compares with an object's at most.
    pub(crate) fn effort(&self) -> usize {
        let each = self.0.iter().map(|(_, wants)| match wants {
            Wants::In(list) | Wants::NotIn(list) => 1 + list.len(),
            Wants::Exists | Wants::Absent => 1,
        });
        1 + each.sum::<usize>()
    }

    fn bytes(&self) -> usize {
        let each = self.0.iter().map(|(key, wants)| {
            let values = match wants {
                Wants::In(list) | Wants::NotIn(list) => list.as_slice(),
                Wants::Exists | Wants::Absent => &[],
            };
            let values = values.iter().map(|value| size_of::<String>() + value.len());
            size_of::<(String, Wants)>() + key.len() + values.sum::<usize>()
        });
        each.sum()
    }

    fn read(selector: LabelSelector) -> Option<Self> {
        let exact = selector.match_labels.into_iter().flatten();
        let mut all: Vec<(String, Wants)> = exact
            .map(|(key, value)| (key, Wants::In(vec![value])))
            .collect();
        for one in selector.match_expressions.into_iter().flatten() {
            let values = one.values.unwrap_or_default();
            let wants = match one.operator.as_str() {
                "In" => Wants::In(values),
                "NotIn" => Wants::NotIn(values),
                "Exists" => Wants::Exists,
                "DoesNotExist" => Wants::Absent,
                _ => return None,
            };
            all.push((one.key, wants));
        }
        Some(Self(all))
    }
}

/// The other end of a connection, as a rule selects it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PolicyPeer {
    /// Pods.
    Pods {
        /// Their namespaces; `None`: the policy's own.
        namespaces: Option<Selector>,
        /// Which pods of these namespaces.
        pods: Selector,
    },
    /// Addresses.
    Block {
        /// The range (`ipBlock.cidr`).
        cidr: Cidr,
        /// Ranges in it that are not selected.
        except: Vec<Cidr>,
    },
}

/// Which ports of a protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ports {
    /// All.
    All,
    /// From the first to the last, both included.
    Range(u16, u16),
    /// The port with this name of the pod that answers.
    Named(String),
}

/// One rule: it allows traffic from or to any of the peers, at any of the ports. An empty list
/// means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The peers, shared by everything that is computed from them.
    pub peers: Arc<[PolicyPeer]>,
    /// The number of a protocol, and its ports.
    pub ports: Vec<(u8, Ports)>,
}

/// A network policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: String,
    /// The pods of its namespace that it selects.
    pub selects: Selector,
    /// What they may receive; `None` if it does not concern ingress.
    pub ingress: Option<Vec<Rule>>,
    /// What they may call; `None` if it does not concern egress.
    pub egress: Option<Vec<Rule>>,
    /// Whether its rules are not kept: it can't be decoded or is not understood, or its namespace
    /// takes too much of what the node keeps. Then it selects all pods there, and lets nothing
    /// through.
    pub left_out: bool,
}

impl Policy {
    /// As [`Self::read`], with namespace and name.
    pub fn keyed(policy: networking::NetworkPolicy) -> (Key, Option<Self>) {
        (Key::of(&policy.metadata), Some(Self::read(policy)))
    }

    /// Reads what the rules need of an object. One that is not understood, or has longer lists than
    /// the API accepts, lets nothing through to or from any pod of its namespace.
    pub fn read(policy: networking::NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.unwrap_or_default();
        let closed = Self::closed(namespace.clone());
        let understood = || {
            let spec = policy.spec?;
            let types = spec.policy_types.unwrap_or_default();
            let named = |kind: &str| types.iter().any(|one| one == kind);
            if !types.iter().all(|one| one == "Ingress" || one == "Egress") {
                return None;
            }
            let has_ingress = types.is_empty() || named("Ingress");
            let has_egress = named("Egress") || (types.is_empty() && spec.egress.is_some());
            let lengths = [
                spec.ingress.as_ref().map_or(0, Vec::len),
                spec.egress.as_ref().map_or(0, Vec::len),
            ];
            if lengths.iter().any(|length| *length > MOST_RULES) {
                return None;
            }
            let ingress = spec.ingress.into_iter().flatten();
            let ingress: Option<Vec<Rule>> = ingress.map(|one| rule(one.from, one.ports)).collect();
            let egress = spec.egress.into_iter().flatten();
            let egress: Option<Vec<Rule>> = egress.map(|one| rule(one.to, one.ports)).collect();
            Some(Self {
                namespace,
                selects: Selector::read(spec.pod_selector?)?,
                ingress: has_ingress.then_some(ingress?),
                egress: has_egress.then_some(egress?),
                left_out: false,
            })
        };
        understood().unwrap_or(closed)
    }

    /// A policy of which only the namespace is known: it lets nothing through to or from any pod
    /// there.
    pub fn closed(namespace: String) -> Self {
        Self {
            namespace,
            selects: Selector::default(),
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
            left_out: true,
        }
    }

    /// What is kept of a policy that is left out: it closes its namespace.
    #[must_use]
    pub fn without_content(&self) -> Self {
        Self::closed(self.namespace.clone())
    }

    /// Bytes of memory that it takes, about, with what is kept to compute nftables rules.
    pub fn bytes(&self) -> usize {
        let rules = [&self.ingress, &self.egress].into_iter().flatten();
        let rules = rules.flatten().map(Rule::bytes);
        let fields = size_of::<Self>() + self.namespace.len() + self.selects.bytes();
        PLACES + fields + rules.sum::<usize>()
    }
}

impl Rule {
    fn bytes(&self) -> usize {
        let peers = self.peers.iter().map(|peer| match peer {
            PolicyPeer::Pods { namespaces, pods } => {
                namespaces.as_ref().map_or(0, Selector::bytes) + pods.bytes()
            }
            PolicyPeer::Block { except, .. } => except.len() * size_of::<Cidr>(),
        });
        let peers = peers.map(|bytes| size_of::<PolicyPeer>() + bytes);
        let ports = self.ports.iter().map(|(_, ports)| match ports {
            Ports::Named(name) => name.len(),
            Ports::All | Ports::Range(..) => 0,
        });
        let ports = ports.map(|bytes| size_of::<(u8, Ports)>() + bytes);
        size_of::<Self>() + peers.sum::<usize>() + ports.sum::<usize>()
    }
}

fn rule(
    peers: Option<Vec<networking::NetworkPolicyPeer>>,
    ports: Option<Vec<networking::NetworkPolicyPort>>,
) -> Option<Rule> {
    if peers.as_ref().is_some_and(|all| all.len() > MOST_PEERS)
        || ports.as_ref().is_some_and(|all| all.len() > MOST_PORTS)
    {
        return None;
    }
    let peers: Option<Arc<[PolicyPeer]>> = peers.into_iter().flatten().map(peer).collect();
    let ports: Option<Vec<(u8, Ports)>> = ports.into_iter().flatten().map(port).collect();
    Some(Rule {
        peers: peers?,
        ports: ports?,
    })
}

fn peer(peer: networking::NetworkPolicyPeer) -> Option<PolicyPeer> {
    if let Some(block) = peer.ip_block {
        let except = block.except.into_iter().flatten();
        let except: Option<Vec<Cidr>> = except.map(|text| text.parse().ok()).collect();
        return Some(PolicyPeer::Block {
            cidr: block.cidr.parse().ok()?,
            except: except?,
        });
    }
    if peer.namespace_selector.is_none() && peer.pod_selector.is_none() {
        return None;
    }
    let namespaces = match peer.namespace_selector {
        Some(selector) => Some(Selector::read(selector)?),
        None => None,
    };
    Some(PolicyPeer::Pods {
        namespaces,
        pods: Selector::read(peer.pod_selector.unwrap_or_default())?,
    })
}

fn port(port: networking::NetworkPolicyPort) -> Option<(u8, Ports)> {
    let protocol = protocol(port.protocol.as_deref())?;
    let ports = match port.port {
        None => Ports::All,
        Some(IntOrString::Int(first)) => {
            let last = port.end_port.unwrap_or(first);
            Ports::Range(u16::try_from(first).ok()?, u16::try_from(last).ok()?)
        }
        Some(IntOrString::String(name)) => Ports::Named(name),
    };
    Some((protocol, ports))
}

/// Pods, namespaces and policies of the cluster; `None` for a kind that has not been listed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct World {
    /// Pods by uid.
    pub pods: Option<BTreeMap<String, Arc<Pod>>>,
    /// Labels of namespaces by name.
    pub namespaces: Option<BTreeMap<String, Arc<Labels>>>,
    /// Policies by namespace and name.
    pub policies: Option<BTreeMap<Key, Arc<Policy>>>,
}

/// Whether a rule's peer selects a pod or address. Sets are updated by it, for addresses whose pods
/// have changed, and tests compare the kernel's rules with it.
pub(crate) fn is_selected(
    peer: &PolicyPeer,
    own: &str,
    address: IpAddr,
    pod: Option<&Pod>,
    namespaces: &BTreeMap<String, Arc<Labels>>,
) -> bool {
    match peer {
        PolicyPeer::Block { cidr, except } => {
            let within = |range: &Cidr| range.contains(address);
            within(cidr) && !except.iter().any(within)
        }
        PolicyPeer::Pods {
            namespaces: of,
            pods,
        } => pod.is_some_and(|pod| {
            let there = match of {
                None => pod.namespace == own,
                Some(selector) => namespaces
                    .get(&pod.namespace)
                    .is_some_and(|labels| selector.matches(labels)),
            };
            there && pods.matches(&pod.labels)
        }),
    }
}
