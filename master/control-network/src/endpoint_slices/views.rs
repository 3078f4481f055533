//! Views of services, pods, nodes and slices: the fields that slices depend on.

use super::plan::{MANAGED_BY, MANAGER, SERVICE_NAME};
use config_kube::k8s_openapi::api::core::v1::{Container, Node, Pod, Service, ServicePort};
use config_kube::k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use jiff::Timestamp;
use master_client::{Index, Interner, Key, View};
use master_control::views::{created, uid, version};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

type Labels = BTreeMap<String, String>;

/// Services by the first label that they select, within their namespace.
pub(crate) static BY_LABEL: Index<ServiceView> = Index::new("selected-label", |key, service| {
    let first = service.selector.first_key_value();
    let value = first.map(|(name, value)| label_value(&key.namespace, name, value));
    value.into_iter().collect()
});

/// Pods by their namespace.
pub(crate) static BY_NAMESPACE: Index<Backend> =
    Index::new("namespace", |key, _| vec![key.namespace.clone()]);

/// Pods by the node to which they are bound.
pub(super) static BY_NODE: Index<Backend> = Index::new("node", |_, pod| vec![pod.node.to_string()]);

/// Slices of this controller by their service.
pub(super) static BY_SERVICE: Index<SliceView> = Index::new("service", |key, slice| {
    let service = slice.service.as_deref();
    let value = service.map(|name| Key::new(&key.namespace, name).to_string());
    value.into_iter().collect()
});

/// The value of [`BY_LABEL`].
pub(super) fn label_value(namespace: &str, name: &str, value: &str) -> String {
    format!("{namespace}/{name}={value}")
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortView {
    /// Its name; empty where it is the only one.
    pub name: String,
    /// Protocol.
    pub protocol: String,
    /// Application protocol.
    pub app_protocol: Option<String>,
    /// The pods' port.
    pub target: Target,
}

/// The target port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A number.
    Number(i32),
    /// The name of a container's port.
    Name(String),
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceView {
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: Labels,
    /// Labels of the pods behind it.
    pub selector: Labels,
    /// Families of its addresses: `IPv4`, `IPv6`.
    pub families: Vec<String>,
    /// Whether it has no address of its own.
    pub headless: bool,
    /// Whether its type is `ExternalName`.
    pub external_name: bool,
    /// Whether pods that are not ready count.
    pub publish_not_ready: bool,
    /// Its ports.
    pub ports: Vec<PortView>,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// Which endpoints clients prefer (`spec.trafficDistribution`).
    pub distribution: Option<String>,
}

impl ServiceView {
    /// Whether this controller writes its slices.
    pub fn is_served(&self) -> bool {
        !self.selector.is_empty() && !self.external_name
    }

    /// Whether it selects pods of these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
        !self.selector.is_empty() && self.selector.iter().all(has)
    }
}

impl View for ServiceView {
    type Object = Service;

    fn read(service: Service) -> Self {
        let spec = service.spec.unwrap_or_default();
        let address = spec.cluster_ip.unwrap_or_default();
        let of_address = if address.contains(':') {
            "IPv6"
        } else {
            "IPv4"
        };
        Self {
            uid: uid(&service.metadata),
            created: created(&service.metadata),
            labels: service.metadata.labels.unwrap_or_default(),
            selector: spec.selector.unwrap_or_default(),
            families: spec
                .ip_families
                .filter(|families| !families.is_empty())
                .unwrap_or_else(|| vec![of_address.to_owned()]),
            headless: address == "None",
            external_name: spec.type_.as_deref() == Some("ExternalName"),
            publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
            ports: spec.ports.into_iter().flatten().map(port).collect(),
            distribution: spec.traffic_distribution,
        }
    }
}

fn port(port: ServicePort) -> PortView {
    let target = match port.target_port {
        Some(IntOrString::String(name)) => Target::Name(name),
        Some(IntOrString::Int(number)) if number > 0 => Target::Number(number),
        Some(IntOrString::Int(_)) | None => Target::Number(port.port),
    };
    PortView {
        name: port.name.unwrap_or_default(),
        protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol,
        target,
    }
}

/// A named port of a container: name, protocol, number.
pub(crate) type NamedPort = (String, String, i32);

/// Values that the replicas of a template share, stored once.
#[derive(Debug, Default)]
struct Common {
    nodes: Interner<str>,
    labels: Interner<Labels>,
    ports: Interner<[NamedPort]>,
}

static COMMON: LazyLock<Common> = LazyLock::new(Common::default);

/// A pod that may be behind services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backend {
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: Arc<Labels>,
    /// Its node; empty where it has none.
    pub node: Arc<str>,
    /// Its addresses.
    pub addresses: Box<[IpAddr]>,
    /// Its host name, where the specification names one.
    pub hostname: Box<str>,
    /// The headless service below whose DNS name it has its own.
    pub subdomain: Box<str>,
    /// Named ports of its containers.
    pub ports: Arc<[NamedPort]>,
    /// Whether it is ready.
    pub ready: bool,
    /// When it last became ready, or stopped being so.
    pub changed: Option<Timestamp>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether its containers will never run again.
    pub ended: bool,
}

impl View for Backend {
    type Object = Pod;

    fn read(pod: Pod) -> Self {
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let own = uid(&pod.metadata);
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        // Sidecars are init containers that keep running, so that they serve, too.
        let staying =
            |container: &&Container| container.restart_policy.as_deref() == Some("Always");
        let first = spec.init_containers.iter().flatten().filter(staying);
        let ports = spec.containers.iter().chain(first).flat_map(named_ports);
        let listed = status.pod_ips.iter().flatten().map(|one| one.ip.as_str());
        let mut addresses: Vec<IpAddr> = listed.filter_map(|text| text.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(status.pod_ip.and_then(|text| text.parse::<IpAddr>().ok()));
        }
        let mut conditions = status.conditions.iter().flatten();
        let condition = conditions.find(|condition| condition.type_ == "Ready");
        Self {
            uid: own,
            ports: COMMON.ports.intern(ports.collect()),
            labels: COMMON
                .labels
                .intern(Arc::new(pod.metadata.labels.unwrap_or_default())),
            node: COMMON
                .nodes
                .intern(spec.node_name.unwrap_or_default().into()),
            addresses: addresses.into(),
            hostname: spec.hostname.unwrap_or_default().into(),
            subdomain: spec.subdomain.unwrap_or_default().into(),
            ready: condition.is_some_and(|condition| condition.status == "True"),
            changed: condition
                .and_then(|condition| Some(condition.last_transition_time.as_ref()?.0)),
            terminating,
            ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        }
    }
}

fn named_ports(container: &Container) -> Vec<NamedPort> {
    let ports = container.ports.iter().flatten();
    let named = ports.filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some((port.name.clone()?, protocol, port.container_port))
    });
    named.collect()
}

/// A node's zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ZoneView {
    /// Its zone.
    pub zone: Option<String>,
}

impl View for ZoneView {
    type Object = Node;

    fn read(node: Node) -> Self {
        let labels = node.metadata.labels.unwrap_or_default();
        let zone = labels.get("topology.kubernetes.io/zone");
        Self {
            zone: zone.filter(|zone| !zone.is_empty()).cloned(),
        }
    }
}

/// A slice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceView {
    /// UID.
    pub uid: String,
    /// Resource version, so that a write fails if the slice has changed.
    pub version: String,
    /// The service, if the slice is this controller's.
    pub service: Option<String>,
    /// The UID of the service that owns it.
    pub owner: String,
    /// Labels.
    pub labels: Labels,
    /// Family of its addresses.
    pub family: String,
    /// Ports of all its endpoints.
    pub ports: Vec<EndpointPort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Annotations and the like, kept as they are.
    pub annotations: Option<Labels>,
}

impl View for SliceView {
    type Object = EndpointSlice;

    fn read(slice: EndpointSlice) -> Self {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        let own = labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER);
        let mut view = Self {
            uid: uid(&slice.metadata),
            service: labels.get(SERVICE_NAME).filter(|_| own).cloned(),
            ..Self::default()
        };
        // Nothing is needed of other managers' slices.
        if own {
            let owners = slice.metadata.owner_references.iter().flatten();
            let mut owner = owners.filter(|owner| owner.controller == Some(true));
            view = Self {
                version: version(&slice.metadata),
                owner: owner.next().map(|one| one.uid.clone()).unwrap_or_default(),
                labels,
                family: slice.address_type,
                ports: slice.ports.unwrap_or_default(),
                endpoints: slice.endpoints.unwrap_or_default(),
                annotations: slice.metadata.annotations,
                ..view
            };
        }
        view
    }
}
