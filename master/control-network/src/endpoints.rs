//! Endpoints of services that select pods: the older kind beside EndpointSlices, for clients that
//! still read it.
//!
//! Names, labels and annotations are upstream's. Endpoints hold the addresses of the service's
//! first family, at most a thousand; clients that need more or other ones read slices. Endpoints
//! that this controller did not create stay when a service is deleted.

use crate::change::Change;
use crate::endpoint_slices::ports::PortLists;
use crate::endpoint_slices::views::{self, Backend, ServiceView};
use crate::endpoint_slices::{HEADLESS, selecting_services};
use config_kube::k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use master_client::{ApiError, Delta, Key, Lookup, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Most addresses of an object (upstream's).
pub const MAX_ADDRESSES: usize = 1000;
/// The label that names the controller of an object, and this controller's name.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
/// The annotation of objects that leave out addresses.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const TRUNCATED: &str = "truncated";
/// The annotation with the time of the change that led to the last write.
pub(crate) const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Existing Endpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointsView {
    /// Metadata without managed fields.
    pub meta: ObjectMeta,
    /// Addresses with their ports.
    pub subsets: Vec<EndpointSubset>,
}

impl EndpointsView {
    /// Whether this controller created them.
    fn is_own(&self) -> bool {
        let labels = self.meta.labels.as_ref();
        labels.is_some_and(|labels| labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER))
    }
}

impl View for EndpointsView {
    type Object = Endpoints;

    fn read(endpoints: Endpoints) -> Self {
        Self {
            meta: ObjectMeta {
                managed_fields: None,
                ..endpoints.metadata
            },
            subsets: endpoints.subsets.unwrap_or_default(),
        }
    }
}

/// The controller. Its keys are services.
#[derive(Debug)]
pub struct EndpointsKeeper {
    services: Store<ServiceView>,
    pods: Lookup<Backend>,
    endpoints: Store<EndpointsView>,
}

/// A service, the pods that it selects, and its Endpoints.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The service's key.
    pub key: Key,
    /// The service; `None` if it was deleted.
    pub service: Option<Arc<ServiceView>>,
    /// Pods with their names, sorted by name.
    pub pods: Vec<(String, Arc<Backend>)>,
    /// The existing Endpoints.
    pub endpoints: Option<Arc<EndpointsView>>,
}

/// The actions on Endpoints.
pub type Action = Change<Endpoints>;

impl Controller for EndpointsKeeper {
    const NAME: &'static str = "endpoint-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "services", &["list", "watch"]),
        right("", "pods", &["list", "watch"]),
        right(
            "",
            "endpoints",
            &["list", "watch", "create", "update", "delete"],
        ),
        right("", "endpoints/restricted", &["create"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let services: Store<ServiceView> = setup.follow_keys();
        let by_label = services.index(&views::BY_LABEL);
        let pods: Store<Backend> = setup.follow(move |delta: &Delta<Backend>, keys| {
            let sides = [&delta.before, &delta.after];
            let pods = sides.into_iter().flatten();
            keys.extend(pods.flat_map(|pod| selecting_services(&by_label, &delta.key, pod)));
        });
        Self {
            pods: pods.index(&views::BY_NAMESPACE),
            endpoints: setup.follow_keys(),
            services,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let service = self.services.get(key);
        let endpoints = self.endpoints.get(key);
        let concerned = match &service {
            Some(service) => service.is_served(),
            None => endpoints.as_ref().is_some_and(|there| there.is_own()),
        };
        if !concerned {
            return None;
        }
        let selected = |pod: &Backend| {
            let service = service.as_ref();
            service.is_some_and(|service| service.selects(&pod.labels))
        };
        let pods = self.pods.get(&key.namespace).into_iter();
        let pods = pods.filter(|(_, pod)| selected(pod));
        Some(Facts {
            pods: pods.map(|(key, pod)| (key.name.clone(), pod)).collect(),
            key: key.clone(),
            service,
            endpoints,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        Plan {
            actions: reconcile(facts).into_iter().collect(),
            requeue: None,
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        action.carry_out(writer).await
    }
}

/// The action that a service needs; none if its Endpoints are up to date.
pub fn reconcile(facts: &Facts) -> Option<Action> {
    let there = facts.endpoints.as_deref();
    let Some(service) = facts.service.as_deref() else {
        return there.map(|there| Action::Delete {
            key: facts.key.clone(),
            uid: there.meta.uid.clone().unwrap_or_default(),
        });
    };
    let (subsets, truncated) = subsets(facts, service);
    let labels = labels(service);
    let before = there.map(|there| there.meta.clone()).unwrap_or_default();
    let mut annotations = before.annotations.clone().unwrap_or_default();
    let marked = annotations.get(OVER_CAPACITY).map(String::as_str);
    let as_wanted = there.is_some_and(|there| there.subsets == subsets)
        && before.labels.as_ref() == Some(&labels)
        && marked == truncated.then_some(TRUNCATED);
    if as_wanted {
        return None;
    }
    set(
        &mut annotations,
        OVER_CAPACITY,
        truncated.then(|| TRUNCATED.to_owned()),
    );
    set(
        &mut annotations,
        TRIGGER,
        trigger(facts, service).map(|time| time.to_string()),
    );
    let metadata = ObjectMeta {
        name: Some(facts.key.name.clone()),
        namespace: Some(facts.key.namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations).filter(|all| !all.is_empty()),
        ..before
    };
    let endpoints = Box::new(Endpoints {
        metadata,
        subsets: Some(subsets),
    });
    Some(match there {
        Some(_) => Action::Update(endpoints),
        None => Action::Create(endpoints),
    })
}

fn set(annotations: &mut BTreeMap<String, String>, name: &str, value: Option<String>) {
    match value {
        Some(value) => drop(annotations.insert(name.to_owned(), value)),
        None => drop(annotations.remove(name)),
    }
}

/// The service's own labels, and those that Endpoints have.
fn labels(service: &ServiceView) -> BTreeMap<String, String> {
    let mut labels = service.labels.clone();
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    } else {
        labels.remove(HEADLESS);
    }
    labels
}

/// The time of the first change that the object does not show yet: a pod became ready or unready,
/// or the service was made. None if pods only disappeared.
fn trigger(facts: &Facts, service: &ServiceView) -> Option<Timestamp> {
    let shown = facts.endpoints.iter().flat_map(|there| &there.subsets);
    let uids = |list: &Option<Vec<EndpointAddress>>, ready: bool| {
        let list = list.iter().flatten();
        let uid = |one: &EndpointAddress| one.target_ref.as_ref()?.uid.clone();
        list.filter_map(uid)
            .map(|uid| (uid, ready))
            .collect::<Vec<_>>()
    };
    let shown = shown.flat_map(|subset| {
        let ready = uids(&subset.addresses, true);
        [ready, uids(&subset.not_ready_addresses, false)].concat()
    });
    let shown: BTreeSet<(String, bool)> = shown.collect();
    let is_new = |pod: &Backend| {
        let ready = pod.ready || service.publish_not_ready;
        !shown.contains(&(pod.uid.clone(), ready))
    };
    let pods = facts.pods.iter().map(|(_, pod)| pod);
    let pods = pods.filter(|pod| counts(pod, service) && is_new(pod));
    let made = service.created.filter(|_| facts.endpoints.is_none());
    pods.filter_map(|pod| pod.changed).chain(made).min()
}

/// Whether a pod is among the service's endpoints, ready or not.
fn counts(pod: &Backend, service: &ServiceView) -> bool {
    !pod.ended && (!pod.terminating || service.publish_not_ready)
}

/// Addresses of pods with the same ports.
#[derive(Default)]
struct Group<'a> {
    ports: Vec<ResolvedPort<'a>>,
    ready: Vec<EndpointAddress>,
    not_ready: Vec<EndpointAddress>,
}

/// A port of a service with its number in a pod. Subsets and their ports are listed in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ResolvedPort<'a> {
    name: &'a str,
    protocol: &'a str,
    number: i32,
    app_protocol: Option<&'a str>,
}

/// The addresses of all pods, by their ports; true where some had to be left out.
fn subsets(facts: &Facts, service: &ServiceView) -> (Vec<EndpointSubset>, bool) {
    let mut lists = PortLists::of(&service.ports);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (name, pod) in facts.pods.iter().filter(|(_, pod)| counts(pod, service)) {
        let Some(address) = address(facts, service, name, pod) else {
            continue;
        };
        let list = lists.of_pod(pod);
        if list == groups.len() {
            groups.push(Group {
                ports: resolved(service, &lists.get(list)),
                ..Group::default()
            });
        }
        let Some(group) = groups.get_mut(list) else {
            continue;
        };
        // Pods without any of the ports are left out, unless the service is headless and has no
        // ports.
        if group.ports.is_empty() && !(service.headless && service.ports.is_empty()) {
            continue;
        }
        if pod.ready || service.publish_not_ready {
            group.ready.push(address);
        } else {
            group.not_ready.push(address);
        }
    }
    groups.sort_by(|one, other| one.ports.cmp(&other.ports));
    let mut room = MAX_ADDRESSES;
    let mut truncated = false;
    let mut take = |list: &mut Vec<EndpointAddress>| {
        list.sort_by(|one, other| one.ip.cmp(&other.ip));
        truncated |= list.len() > room;
        list.truncate(room);
        room = room.saturating_sub(list.len());
    };
    for group in &mut groups {
        take(&mut group.ready);
    }
    for group in &mut groups {
        take(&mut group.not_ready);
    }
    let some = |list: Vec<EndpointAddress>| Some(list).filter(|list| !list.is_empty());
    let subset = |group: Group<'_>| EndpointSubset {
        addresses: some(group.ready),
        not_ready_addresses: some(group.not_ready),
        ports: Some(group.ports.into_iter().map(port).collect::<Vec<_>>())
            .filter(|all| !all.is_empty()),
    };
    let all = groups.into_iter().map(subset);
    let all = all.filter(|one| one.addresses.is_some() || one.not_ready_addresses.is_some());
    (all.collect(), truncated)
}

fn port(port: ResolvedPort<'_>) -> EndpointPort {
    let name = Some(port.name).filter(|name| !name.is_empty());
    EndpointPort {
        name: name.map(str::to_owned),
        protocol: Some(port.protocol.to_owned()),
        port: port.number,
        app_protocol: port.app_protocol.map(str::to_owned),
    }
}

/// A service's ports with the numbers in pods, sorted, without named ports that the pods do not
/// have.
fn resolved<'a>(service: &'a ServiceView, numbers: &[Option<i32>]) -> Vec<ResolvedPort<'a>> {
    let ports = service.ports.iter().zip(numbers);
    let mut ports: Vec<ResolvedPort<'_>> = ports
        .filter_map(|(port, number)| {
            Some(ResolvedPort {
                name: &port.name,
                protocol: &port.protocol,
                number: (*number)?,
                app_protocol: port.app_protocol.as_deref(),
            })
        })
        .collect();
    ports.sort();
    ports
}

/// The pod's address of the service's first family.
fn address(
    facts: &Facts,
    service: &ServiceView,
    name: &str,
    pod: &Backend,
) -> Option<EndpointAddress> {
    let is_ipv6 = service
        .families
        .first()
        .is_some_and(|family| family == "IPv6");
    let of_family = |address: &&IpAddr| address.is_ipv6() == is_ipv6;
    let ip = pod.addresses.iter().find(of_family)?.to_string();
    let named = !pod.hostname.is_empty() && *pod.subdomain == *facts.key.name;
    Some(EndpointAddress {
        ip,
        hostname: named.then(|| pod.hostname.to_string()),
        node_name: Some(pod.node.to_string()).filter(|node| !node.is_empty()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(facts.key.namespace.clone()),
            name: Some(name.to_owned()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        }),
    })
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
