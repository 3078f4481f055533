//! The scheduler's view of a node.

use crate::resources::{PODS, Resources};
use crate::taints::NodeTaint;
use config_kube::k8s_openapi::api::core::v1::{Node, NodeStatus};
use config_kube::taints::{NOT_READY, UNREACHABLE};
use std::collections::{BTreeMap, HashMap};

/// The number of a node. It is reused once neither the node nor a pod on it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(crate) usize);

/// The fields of a node that matter for scheduling. Equal if no change can affect a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<NodeTaint>,
    pub(crate) allocatable: Resources,
    /// The most pods that it may run.
    pub(crate) most_pods: i64,
    pub(crate) cordoned: bool,
    /// The failure zone: region and zone, as one name.
    pub(crate) zone: Option<Box<str>>,
    /// Bytes of the images that it has, by name.
    pub(crate) images: BTreeMap<Box<str>, i64>,
    /// The hash of the node's name: it breaks ties among nodes of equal score.
    pub(crate) hash: u64,
}

/// The labels of a node's region and zone.
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";

impl NodeInfo {
    /// Reads a node. A node that is not ready counts as tainted even before a controller wrote the
    /// taint.
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let mut taints: Vec<NodeTaint> = spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .map(NodeTaint::of)
            .collect();
        let conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let ready = conditions
            .filter(|condition| condition.type_ == "Ready")
            .map(|c| c.status.as_str())
            .next();
        let finding = match ready {
            Some("True") => None,
            Some("Unknown") => Some(UNREACHABLE),
            Some(_) | None => Some(NOT_READY),
        };
        if let Some(key) = finding
            && !taints
                .iter()
                .any(|taint| taint.key() == key && taint.forbids())
        {
            taints.push(NodeTaint::found(key));
        }
        let allocatable =
            status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
        let allocatable = Resources::of(allocatable);
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let zone = labels.get(ZONE).map(|zone| {
            let region = labels.get(REGION).map_or("", String::as_str);
            format!("{region}/{zone}").into()
        });
        let name = node.metadata.name.clone().unwrap_or_default();
        Self {
            hash: hash(name.as_bytes()),
            name,
            labels,
            zone,
            images: images(status),
            taints,
            most_pods: allocatable.get(PODS).ceil_units(),
            allocatable,
            cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// FNV-1a: a tie-break that is the same on every machine.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn images(status: Option<&NodeStatus>) -> BTreeMap<Box<str>, i64> {
    let images = status.and_then(|status| status.images.as_ref());
    let images = images.into_iter().flatten();
    images
        .flat_map(|image| {
            let bytes = image.size_bytes.unwrap_or_default();
            let names = image.names.iter().flatten();
            names.map(move |name| (name.as_str().into(), bytes))
        })
        .collect()
}

/// A host port that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) address: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

/// The address of a host port at all addresses.
pub(crate) const ALL_ADDRESSES: &str = "0.0.0.0";
/// An address that no host port has, for the count at any address.
const ANY: &str = "";

impl HostPort {
    fn at(&self, address: &str) -> Self {
        Self {
            address: address.to_owned(),
            ..self.clone()
        }
    }
}

/// Host ports of pods, indexed so that collisions are found by look-ups: a pod can have thousands,
/// and a decision checks many nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostPorts {
    /// How often each port is taken at its address, and at any address.
    taken: HashMap<HostPort, usize>,
}

impl HostPorts {
    pub(crate) fn of(ports: &[HostPort]) -> Self {
        let mut all = Self::default();
        for port in ports {
            all.add(port);
        }
        all
    }

    pub(crate) fn add(&mut self, port: &HostPort) {
        for key in [port.clone(), port.at(ANY)] {
            *self.taken.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, port: &HostPort) {
        for key in [port.clone(), port.at(ANY)] {
            if let Some(count) = self.taken.get_mut(&key) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.taken.remove(&key);
                }
            }
        }
    }
}

/// A host port that a pod wants, with all ports that would collide.
#[derive(Debug)]
pub(crate) struct WantedPort(Vec<HostPort>);

impl WantedPort {
    pub(crate) fn of(port: &HostPort) -> Self {
        Self(if port.address == ALL_ADDRESSES {
            vec![port.at(ANY)]
        } else {
            vec![port.clone(), port.at(ALL_ADDRESSES)]
        })
    }

    /// Whether one of the taken ports collides: same protocol and port, and the same address, or
    /// one of the two is for all addresses.
    pub(crate) fn collides(&self, taken: &HostPorts) -> bool {
        self.0.iter().any(|port| taken.taken.contains_key(port))
    }
}
