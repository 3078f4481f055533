//! Mirrors Endpoints that others write, for services without a selector, as EndpointSlices, because
//! the nodes' proxies read only slices.
//!
//! Names, labels and annotations are upstream's. Endpoints with the label
//! `endpointslice.kubernetes.io/skip-mirror: "true"`, or by which a leader is elected, are left
//! alone.

use crate::endpoint_slices::ports::PortIndex;
use crate::endpoint_slices::views::ServiceView;
use crate::endpoint_slices::{Action, MANAGED_BY, SERVICE_NAME};
use crate::endpoints::{EndpointsView, TRIGGER};
use config_kube::k8s_openapi::api::core::v1::{self as core, EndpointSubset};
use config_kube::k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointPort, EndpointSlice,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use master_client::{ApiError, Delta, Index, Key, Lookup, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::{uid, version};
use master_control::writer::Writer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// This controller, by upstream's name.
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// Most endpoints of a slice (upstream's, and the API's).
const MAX_ENDPOINTS: usize = 1000;
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// kubectl's own annotation, which is not copied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A slice of this controller. Nothing is kept of others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MirrorView {
    /// The Endpoints that it mirrors; `None` if the slice is another controller's.
    pub of: Option<String>,
    /// UID.
    pub uid: String,
    /// Resource version.
    pub version: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// The UID of the Endpoints that own it.
    pub owner: String,
    /// Family of its addresses.
    pub family: String,
    /// Ports.
    pub ports: Vec<EndpointPort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl View for MirrorView {
    type Object = EndpointSlice;

    fn read(slice: EndpointSlice) -> Self {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        if labels.get(MANAGED_BY).is_none_or(|by| by != MANAGER) {
            return Self::default();
        }
        let owners = slice.metadata.owner_references.iter().flatten();
        let mut owner = owners.filter(|owner| owner.controller == Some(true));
        Self {
            of: labels.get(SERVICE_NAME).cloned(),
            uid: uid(&slice.metadata),
            version: version(&slice.metadata),
            owner: owner.next().map(|one| one.uid.clone()).unwrap_or_default(),
            annotations: slice.metadata.annotations.unwrap_or_default(),
            labels,
            family: slice.address_type,
            ports: slice.ports.unwrap_or_default(),
            endpoints: slice.endpoints.unwrap_or_default(),
        }
    }
}

/// Slices by the Endpoints that they mirror.
static BY_ENDPOINTS: Index<MirrorView> = Index::new("mirrored", |key, slice| {
    let of = slice.of.as_deref();
    let value = of.map(|name| Key::new(&key.namespace, name).to_string());
    value.into_iter().collect()
});

/// The controller. Its keys are Endpoints, which have their services' names.
#[derive(Debug)]
pub struct Mirroring {
    endpoints: Store<EndpointsView>,
    services: Store<ServiceView>,
    slices: Lookup<MirrorView>,
}

/// Endpoints, and the slices that mirror them.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Their key.
    pub key: Key,
    /// The Endpoints, if they are to be mirrored.
    pub endpoints: Option<Arc<EndpointsView>>,
    /// Slices of this controller, sorted by name.
    pub slices: Vec<(Arc<Key>, Arc<MirrorView>)>,
}

/// Whether these Endpoints of this service are to be mirrored.
pub fn is_mirrored(endpoints: &EndpointsView, service: Option<&ServiceView>) -> bool {
    let labels = endpoints.meta.labels.as_ref();
    let skipped = labels.is_some_and(|labels| labels.get(SKIP).is_some_and(|is| is == "true"));
    let annotations = endpoints.meta.annotations.as_ref();
    let elects = annotations.is_some_and(|all| all.contains_key(LEADER));
    let of_others =
        service.is_some_and(|service| service.selector.is_empty() && !service.external_name);
    !skipped && !elects && of_others
}

impl Controller for Mirroring {
    const NAME: &'static str = "endpointslicemirroring-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "services", &["list", "watch"]),
        right("", "endpoints", &["list", "watch"]),
        right("", "endpoints/finalizers", &["update"]),
        right(
            "discovery.k8s.io",
            "endpointslices",
            &["list", "watch", "create", "update", "delete"],
        ),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let slices: Store<MirrorView> = setup.follow(|delta: &Delta<MirrorView>, keys| {
            let sides = [&delta.before, &delta.after].into_iter().flatten();
            let names = sides.filter_map(|slice| slice.of.as_deref());
            keys.extend(names.map(|name| Key::new(&delta.key.namespace, name)));
        });
        Self {
            endpoints: setup.follow_keys(),
            services: setup.follow_keys(),
            slices: slices.index(&BY_ENDPOINTS),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let service = self.services.get(key);
        let endpoints = self.endpoints.get(key);
        let endpoints = endpoints.filter(|one| is_mirrored(one, service.as_deref()));
        let slices = self.slices.get(&key.to_string());
        (endpoints.is_some() || !slices.is_empty()).then(|| Facts {
            key: key.clone(),
            endpoints,
            slices,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        Plan {
            actions: reconcile(facts),
            requeue: None,
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        action.carry_out(writer).await
    }
}

/// The writes after which the slices have each address once: first creations, then updates, then
/// deletions.
pub fn reconcile(facts: &Facts) -> Vec<Action> {
    let mut left: Vec<Option<&(Arc<Key>, Arc<MirrorView>)>> = Vec::new();
    let mut by_ports = PortIndex::default();
    for (at, one) in facts.slices.iter().enumerate() {
        left.push(Some(one));
        by_ports.places(&one.1.family, &one.1.ports).push(at);
    }
    let (mut create, mut update) = (Vec::new(), Vec::new());
    if let Some(endpoints) = facts.endpoints.as_deref() {
        let meta = metadata(&facts.key, endpoints);
        for wanted in wanted(&endpoints.subsets) {
            let same = |at: &usize| {
                let slice = left.get(*at).copied().flatten();
                slice.is_some_and(|(_, slice)| {
                    slice.family == wanted.address_type
                        && Some(&slice.ports) == wanted.ports.as_ref()
                })
            };
            let ports = wanted.ports.as_deref().unwrap_or_default();
            let places = by_ports.places(&wanted.address_type, ports);
            let found = places
                .iter()
                .position(same)
                .map(|place| places.remove(place));
            let Some((key, slice)) = found.and_then(|at| left.get_mut(at)?.take()) else {
                let metadata = ObjectMeta {
                    generate_name: Some(format!("{}-", facts.key.name)),
                    ..meta.clone()
                };
                create.push(Action::Create(Box::new(EndpointSlice {
                    metadata,
                    ..wanted
                })));
                continue;
            };
            let as_wanted = Some(&slice.endpoints) == wanted.endpoints.as_ref()
                && Some(&slice.labels) == meta.labels.as_ref()
                && slice.annotations == meta.annotations.clone().unwrap_or_default()
                && Some(&slice.owner) == endpoints.meta.uid.as_ref();
            if !as_wanted {
                let metadata = ObjectMeta {
                    name: Some(key.name.clone()),
                    uid: Some(slice.uid.clone()),
                    resource_version: Some(slice.version.clone()),
                    ..meta.clone()
                };
                update.push(Action::Update(Box::new(EndpointSlice {
                    metadata,
                    ..wanted
                })));
            }
        }
    }
    let delete = left.into_iter().flatten();
    let delete = delete.map(|(key, slice)| Action::Delete {
        key: (**key).clone(),
        uid: slice.uid.clone(),
    });
    create.into_iter().chain(update).chain(delete).collect()
}

/// The metadata that all slices of these Endpoints share.
fn metadata(key: &Key, endpoints: &EndpointsView) -> ObjectMeta {
    let mut labels = endpoints.meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), key.name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.meta.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| ![TRIGGER, LAST_APPLIED].contains(&name.as_str()));
    ObjectMeta {
        namespace: Some(key.namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations).filter(|all| !all.is_empty()),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Endpoints".to_owned(),
            name: key.name.clone(),
            uid: endpoints.meta.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

/// Endpoints of one family with the same ports.
struct Group {
    family: &'static str,
    ports: Vec<EndpointPort>,
    endpoints: BTreeMap<String, Endpoint>,
}

/// Groups, found by family and ports: there can be a thousand of them.
#[derive(Default)]
struct Groups {
    all: Vec<Group>,
    by_ports: PortIndex,
}

impl Groups {
    /// The index of the group of this family and these ports.
    fn place(&mut self, family: &'static str, ports: &[EndpointPort]) -> usize {
        let all = &mut self.all;
        let places = self.by_ports.places(family, ports);
        let mut known = places.iter().copied();
        let is_same = |at: &usize| {
            let group = all.get(*at);
            group.is_some_and(|group| group.family == family && group.ports == ports)
        };
        if let Some(place) = known.find(is_same) {
            return place;
        }
        places.push(all.len());
        all.push(Group {
            family,
            ports: ports.to_vec(),
            endpoints: BTreeMap::new(),
        });
        all.len() - 1
    }
}

/// Slices without metadata: as many as needed for each family and set of ports.
fn wanted(subsets: &[EndpointSubset]) -> Vec<EndpointSlice> {
    let mut groups = Groups::default();
    for subset in subsets {
        let ports: Vec<EndpointPort> = subset.ports.iter().flatten().map(port).collect();
        let ready = subset.addresses.iter().flatten().map(|one| (one, true));
        let others = subset.not_ready_addresses.iter().flatten();
        let others = others.map(|one| (one, false));
        // Once for all addresses of the subset.
        let mut places: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (address, ready) in ready.chain(others) {
            let family = if address.ip.contains(':') {
                "IPv6"
            } else {
                "IPv4"
            };
            let place = places.entry(family);
            let place = *place.or_insert_with(|| groups.place(family, &ports));
            if let Some(group) = groups.all.get_mut(place) {
                // An address that is already listed as ready stays ready.
                let known = group.endpoints.entry(address.ip.clone());
                known.or_insert_with(|| endpoint(address, ready));
            }
        }
    }
    let slices = |group: Group| {
        let all: Vec<Endpoint> = group.endpoints.into_values().collect();
        let slice = |endpoints: &[Endpoint]| EndpointSlice {
            metadata: ObjectMeta::default(),
            address_type: group.family.to_owned(),
            endpoints: Some(endpoints.to_vec()),
            ports: Some(group.ports.clone()),
        };
        all.chunks(MAX_ENDPOINTS).map(slice).collect::<Vec<_>>()
    };
    groups.all.into_iter().flat_map(slices).collect()
}

fn port(port: &core::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    }
}

fn endpoint(address: &core::EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
#[path = "mirroring_tests.rs"]
mod tests;
