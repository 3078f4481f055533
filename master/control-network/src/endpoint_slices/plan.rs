//! Plans the slices that a service should have, and the writes that lead there (pure).

use super::ports::{Numbers, PortIndex, PortLists};
use super::{Backend, Facts, PortView, Selected, ServiceView, SliceView};
use crate::change::Change;
use crate::endpoints::TRIGGER;
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use config_kube::k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use master_client::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Most endpoints of a slice (upstream's default).
pub const MAX_ENDPOINTS: usize = 100;
/// The label that names a slice's service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names the controller of a slice.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// This controller, by upstream's name.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// The label of slices of headless services.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";

/// The actions on slices.
pub type Action = Change<EndpointSlice>;

/// Endpoints that have their ports in common.
#[derive(Debug, Default)]
struct Group {
    numbers: Numbers,
    endpoints: BTreeMap<String, Endpoint>,
}

/// The slices of an address family, found by their ports: there can be as many lists of ports as
/// pods.
struct OwnSlices<'a> {
    family: &'a str,
    all: Vec<&'a (Arc<Key>, Arc<SliceView>)>,
    taken: Vec<bool>,
    by_ports: PortIndex,
}

impl<'a> OwnSlices<'a> {
    fn of(facts: &'a Facts, family: &'a str) -> Self {
        let all = facts.slices.iter();
        let all: Vec<_> = all.filter(|(_, slice)| slice.family == family).collect();
        let mut by_ports = PortIndex::default();
        for (at, (_, slice)) in all.iter().enumerate() {
            by_ports.places(family, &slice.ports).push(at);
        }
        Self {
            family,
            taken: vec![false; all.len()],
            all,
            by_ports,
        }
    }

    /// The slices of these ports, which are not returned again.
    fn take(&mut self, ports: &[EndpointPort]) -> Vec<&'a (Arc<Key>, Arc<SliceView>)> {
        let places = self.by_ports.places(self.family, ports);
        let all = &self.all;
        let (same, others): (Vec<usize>, Vec<usize>) = std::mem::take(places)
            .into_iter()
            .partition(|at| all[*at].1.ports == ports);
        *places = others;
        for at in &same {
            self.taken[*at] = true;
        }
        same.into_iter().map(|at| self.all[at]).collect()
    }

    /// The slices that were not taken, in their order.
    fn rest(self) -> impl Iterator<Item = &'a (Arc<Key>, Arc<SliceView>)> {
        let all = self.all.into_iter().zip(self.taken);
        all.filter(|(_, taken)| !taken).map(|(slice, _)| slice)
    }
}

/// The writes for a service after which its slices hold each of its endpoints once: first
/// creations, then updates, then deletions, so that no endpoint is missing in between. A new slice
/// replaces an empty one by an update, so that clients never see both.
///
/// Guarantees: no slice holds more than [`MAX_ENDPOINTS`]; a slice whose endpoints stay as they are
/// is not written; each family has a slice, even if it is empty.
pub fn reconcile(facts: &Facts) -> Vec<Action> {
    let mut work = Work {
        facts,
        trigger: trigger(facts),
        create: Vec::new(),
        update: Vec::new(),
        delete: Vec::new(),
    };
    for family in &facts.service.families {
        work.family(family);
    }
    let served = |slice: &SliceView| facts.service.families.contains(&slice.family);
    for (key, slice) in facts.slices.iter().filter(|(_, slice)| !served(slice)) {
        work.remove(key, slice);
    }
    work.replace();
    let create = work.create.into_iter().map(Box::new).map(Action::Create);
    let delete = work.delete.into_iter().map(|(key, slice)| Action::Delete {
        key: key.clone(),
        uid: slice.uid.clone(),
    });
    create.chain(work.update).chain(delete).collect()
}

/// A slice while its new content is computed.
struct Draft<'a> {
    key: &'a Key,
    slice: &'a SliceView,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

struct Work<'a> {
    facts: &'a Facts,
    /// The time of the first change that slices do not show yet.
    trigger: Option<String>,
    create: Vec<EndpointSlice>,
    update: Vec<Action>,
    delete: Vec<(&'a Key, &'a SliceView)>,
}

impl<'a> Work<'a> {
    fn family(&mut self, family: &'a str) {
        let facts = self.facts;
        let mut groups = groups(facts, family);
        if groups.is_empty() {
            // An empty slice shows that there are no endpoints.
            groups.push(Group::default());
        }
        let mut own = OwnSlices::of(facts, family);
        for Group { numbers, endpoints } in groups {
            let ports = ports(&facts.service, &numbers);
            let same = own.take(&ports);
            self.group(family, &ports, endpoints, same);
        }
        for (key, slice) in own.rest() {
            self.remove(key, slice);
        }
    }

    /// Distributes the endpoints of a group to the slices with the same ports.
    fn group(
        &mut self,
        family: &str,
        ports: &[EndpointPort],
        mut rest: BTreeMap<String, Endpoint>,
        own: Vec<&'a (Arc<Key>, Arc<SliceView>)>,
    ) {
        let is_empty = rest.is_empty();
        let labels = labels(&self.facts.key.name, &self.facts.service);
        let mut drafts: Vec<Draft<'_>> = own
            .into_iter()
            .map(|(key, slice)| {
                let stays = slice.endpoints.iter();
                let endpoints: Vec<Endpoint> = stays
                    .filter_map(|old| rest.remove(&identity(old)))
                    .collect();
                let as_wanted = slice.labels == labels && slice.owner == self.facts.service.uid;
                Draft {
                    changed: endpoints != slice.endpoints || !as_wanted,
                    key,
                    slice,
                    endpoints,
                }
            })
            .collect();
        let mut rest: Vec<Endpoint> = rest.into_values().collect();
        // First the slices that are written anyway, the fullest first; then as few others as
        // possible.
        drafts.sort_by_key(|draft| (!draft.changed, std::cmp::Reverse(draft.endpoints.len())));
        for draft in drafts
            .iter_mut()
            .filter(|draft| draft.changed && !draft.endpoints.is_empty())
        {
            fill(draft, &mut rest);
        }
        while rest.len() >= MAX_ENDPOINTS {
            let whole = rest.split_off(rest.len().saturating_sub(MAX_ENDPOINTS));
            self.make(family, ports, whole);
        }
        let room = |draft: &&mut Draft<'_>| {
            let free = MAX_ENDPOINTS.saturating_sub(draft.endpoints.len());
            !draft.endpoints.is_empty() && free >= rest.len()
        };
        if !rest.is_empty() {
            match drafts.iter_mut().find(room) {
                Some(draft) => fill(draft, &mut rest),
                None => self.make(family, ports, std::mem::take(&mut rest)),
            }
        }
        let mut kept = false;
        for draft in drafts {
            if draft.endpoints.is_empty() && (!is_empty || kept) {
                self.remove(draft.key, draft.slice);
                continue;
            }
            kept = true;
            if draft.changed {
                self.rewrite(draft, &labels);
            }
        }
        if is_empty && !kept {
            self.make(family, ports, Vec::new());
        }
    }

    fn remove(&mut self, key: &'a Key, slice: &'a SliceView) {
        self.delete.push((key, slice));
    }

    /// Turns deletions of empty slices into updates with the content of new ones. The family must
    /// be the same, as it is immutable, and the slice must not belong to an earlier service, whose
    /// slices are garbage collected. A slice with endpoints stays until others have them.
    fn replace(&mut self) {
        for (key, old) in std::mem::take(&mut self.delete) {
            let is_free = old.endpoints.is_empty() && old.owner == self.facts.service.uid;
            let mut made = self.create.iter();
            let fits = made.rposition(|new| is_free && new.address_type == old.family);
            let Some(new) = fits.map(|at| self.create.remove(at)) else {
                self.delete.push((key, old));
                continue;
            };
            let metadata = ObjectMeta {
                name: Some(key.name.clone()),
                generate_name: None,
                uid: Some(old.uid.clone()),
                resource_version: Some(old.version.clone()),
                annotations: self.annotations(old.annotations.as_ref()),
                ..new.metadata
            };
            let slice = EndpointSlice { metadata, ..new };
            self.update.push(Action::Update(Box::new(slice)));
        }
    }

    fn make(&mut self, family: &str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) {
        let Key { namespace, name } = &self.facts.key;
        let metadata = ObjectMeta {
            generate_name: Some(prefix(name)),
            namespace: Some(namespace.clone()),
            labels: Some(labels(name, &self.facts.service)),
            annotations: self.annotations(None),
            owner_references: Some(vec![owner(self.facts)]),
            ..ObjectMeta::default()
        };
        let slice = EndpointSlice {
            metadata,
            address_type: family.to_owned(),
            endpoints: Some(endpoints),
            ports: Some(ports.to_vec()),
        };
        self.create.push(slice);
    }

    /// A slice's annotations with the time of the change that is written.
    fn annotations(
        &self,
        before: Option<&BTreeMap<String, String>>,
    ) -> Option<BTreeMap<String, String>> {
        let mut all = before.cloned().unwrap_or_default();
        all.remove(TRIGGER);
        let time = self.trigger.clone();
        all.extend(time.map(|time| (TRIGGER.to_owned(), time)));
        (!all.is_empty()).then_some(all)
    }

    fn rewrite(&mut self, draft: Draft<'_>, labels: &BTreeMap<String, String>) {
        let metadata = ObjectMeta {
            name: Some(draft.key.name.clone()),
            namespace: Some(draft.key.namespace.clone()),
            uid: Some(draft.slice.uid.clone()),
            resource_version: Some(draft.slice.version.clone()),
            labels: Some(labels.clone()),
            annotations: self.annotations(draft.slice.annotations.as_ref()),
            owner_references: Some(vec![owner(self.facts)]),
            ..ObjectMeta::default()
        };
        let slice = EndpointSlice {
            metadata,
            address_type: draft.slice.family.clone(),
            endpoints: Some(draft.endpoints),
            ports: Some(draft.slice.ports.clone()),
        };
        self.update.push(Action::Update(Box::new(slice)));
    }
}

/// The time of the first change that no slice shows yet: a pod became ready or unready, or the
/// service was created. `None` if pods were only deleted.
fn trigger(facts: &Facts) -> Option<String> {
    let shown = facts.slices.iter().flat_map(|(_, slice)| &slice.endpoints);
    let shown = shown.filter_map(|one| {
        let uid = one.target_ref.as_ref()?.uid.as_deref()?;
        Some((uid, one.conditions.as_ref()?.serving?))
    });
    let shown: BTreeSet<(&str, bool)> = shown.collect();
    let pods = facts.pods.iter().map(|selected| &selected.pod);
    let new = pods.filter(|pod| !pod.ended && !shown.contains(&(pod.uid.as_str(), pod.ready)));
    let made = facts.service.created.filter(|_| facts.slices.is_empty());
    let times = new.filter_map(|pod| pod.changed).chain(made);
    times.min().map(|time| time.to_string())
}

fn fill(draft: &mut Draft<'_>, rest: &mut Vec<Endpoint>) {
    let room = MAX_ENDPOINTS
        .saturating_sub(draft.endpoints.len())
        .min(rest.len());
    draft.changed |= room > 0;
    draft.endpoints.extend(rest.drain(..room));
}

/// The identity of an endpoint, which does not depend on its conditions.
fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let uid = target.and_then(|target| target.uid.as_deref());
    let node = endpoint.node_name.as_deref().unwrap_or_default();
    let addresses = endpoint.addresses.join(",");
    format!("{}/{node}/{addresses}", uid.unwrap_or_default())
}

/// The prefix of a new slice's name; the API adds five letters.
fn prefix(service: &str) -> String {
    format!("{service}-")
}

fn owner(facts: &Facts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: facts.key.name.clone(),
        uid: facts.service.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The labels of a slice: the service's own, and those of slices.
fn labels(name: &str, service: &ServiceView) -> BTreeMap<String, String> {
    let mut labels = service.labels.clone();
    labels.retain(|label, _| ![SERVICE_NAME, MANAGED_BY, HEADLESS].contains(&label.as_str()));
    labels.insert(SERVICE_NAME.to_owned(), name.to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// The endpoints of a family, grouped by ports.
fn groups(facts: &Facts, family: &str) -> Vec<Group> {
    let mut lists = PortLists::of(&facts.service.ports);
    let mut groups: Vec<Group> = Vec::new();
    for PodEndpoint { pod, endpoint } in endpoints(facts, family) {
        let list = lists.of_pod(pod);
        if list == groups.len() {
            groups.push(Group {
                numbers: lists.get(list),
                ..Group::default()
            });
        }
        if let Some(group) = groups.get_mut(list) {
            group.endpoints.insert(identity(&endpoint), endpoint);
        }
    }
    groups
}

/// A pod that is an endpoint of the service.
#[derive(Debug)]
pub struct PodEndpoint<'a> {
    /// The pod.
    pub pod: &'a Backend,
    /// The endpoint.
    pub endpoint: Endpoint,
}

/// Each pod that is an endpoint of the service in a family.
pub fn endpoints<'a>(facts: &'a Facts, family: &str) -> Vec<PodEndpoint<'a>> {
    let service = &facts.service;
    let of_pod = |selected: &'a Selected| {
        let pod = &*selected.pod;
        let is_there = selected.node.is_some() || service.publish_not_ready;
        if pod.ended || !is_there {
            return None;
        }
        let of_family =
            |address: &&IpAddr| family == if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let address = pod.addresses.iter().find(of_family)?.to_string();
        let endpoint = endpoint(facts, selected, address);
        Some(PodEndpoint { pod, endpoint })
    };
    facts.pods.iter().filter_map(of_pod).collect()
}

/// A service's ports with the numbers in pods, without named ports that the pods do not have.
fn ports(service: &ServiceView, numbers: &[Option<i32>]) -> Vec<EndpointPort> {
    let of_pods = |(port, number): (&PortView, &Option<i32>)| {
        Some(EndpointPort {
            name: Some(port.name.clone()),
            protocol: Some(port.protocol.clone()),
            port: Some((*number)?),
            app_protocol: port.app_protocol.clone(),
        })
    };
    let ports = service.ports.iter().zip(numbers);
    ports.filter_map(of_pods).collect()
}

fn endpoint(facts: &Facts, selected: &Selected, address: String) -> Endpoint {
    let (service, pod) = (&facts.service, &selected.pod);
    let zone = selected.node.as_ref().and_then(|node| node.zone.clone());
    // A pod that is being deleted is not ready, unless the service publishes all addresses.
    let ready = service.publish_not_ready || (pod.ready && !pod.terminating);
    let named = !pod.hostname.is_empty() && *pod.subdomain == *facts.key.name;
    Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(pod.ready),
            terminating: Some(pod.terminating),
        }),
        hints: hints(service, ready, zone.as_deref(), &pod.node),
        hostname: named.then(|| pod.hostname.to_string()),
        node_name: Some(pod.node.to_string()).filter(|node| !node.is_empty()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(facts.key.namespace.clone()),
            name: Some(selected.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        }),
        zone,
        deprecated_topology: None,
    }
}

/// The `hints` of an endpoint: the zones and nodes whose clients should use it, by the Service's
/// `trafficDistribution` (KEP-4444, KEP-3015). A node without a zone gives no hint for zones, but
/// still one for its own clients.
fn hints(
    service: &ServiceView,
    ready: bool,
    zone: Option<&str>,
    node: &str,
) -> Option<EndpointHints> {
    let for_node = match service.distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => None,
        Some("PreferSameNode") => Some(node).filter(|node| !node.is_empty()),
        Some(_) | None => return None,
    };
    let name = str::to_owned;
    let for_zones = zone.map(|zone| vec![ForZone { name: name(zone) }]);
    let for_nodes = for_node.map(|node| vec![ForNode { name: name(node) }]);
    let known = for_zones.is_some() || for_nodes.is_some();
    (ready && known).then_some(EndpointHints {
        for_zones,
        for_nodes,
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
