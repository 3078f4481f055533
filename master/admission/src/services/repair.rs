//! Repairs the allocations of services: each cluster IP and node port must be allocated to exactly
//! the service that has it. Missing allocations are made, leaked ones freed, and what cannot be
//! repaired is reported; services are never changed. A controller of `master/control-network` runs
//! this from time to time and records what it reports as events.
//!
//! As a service is written in one transaction with its allocations, this finds something only after
//! a store was restored from elsewhere or changed by other means, or after the ranges were
//! reconfigured. Each repair is conditional on what it concerns being unchanged.

use super::{Owner, Ranges, addresses, ports};
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use master_client::{NewEvent, ObjectEvent, Severity};
use master_objects::store_error;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::Kind;
use master_schema::served::Kinds;
use master_schema::validate::Fields;
use master_schema::validate::net::Range;
use master_schema::validate::object as inner;
use master_store::{Action, Entry, Expect, ListQuery, Op, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Component name in events (upstream's).
const ADDRESSES: &str = "ipallocator-repair-controller";
const PORTS: &str = "portallocator-repair-controller";

/// A fault, and the operations that repair it; none if it cannot be repaired.
#[derive(Debug)]
struct Finding {
    component: &'static str,
    about: ObjectReference,
    reason: &'static str,
    message: String,
    ops: Vec<Op>,
}

/// A stored service.
struct Service {
    entry: Entry,
    owner: Owner,
    about: ObjectReference,
    addresses: Vec<IpAddr>,
    ports: Vec<i64>,
}

/// A stored IPAddress.
struct HeldAddress {
    entry: Entry,
    object: Fields,
}

/// All allocations, with the ranges they must lie in.
struct Allocations<'a> {
    services: BTreeMap<Owner, Service>,
    /// Addresses and ports that services have.
    had_addresses: BTreeSet<IpAddr>,
    had_ports: BTreeSet<i64>,
    addresses: BTreeMap<IpAddr, HeldAddress>,
    ports: BTreeMap<i64, Entry>,
    ranges: Vec<Range>,
    node_ports: RangeInclusive<i64>,
    kind: &'a Kind,
}

/// Checks everything once and repairs what it can; returns what it found.
///
/// # Errors
/// The store cannot be read, or refuses a repair for another reason than a concurrent change.
pub async fn run(
    store: &dyn Store,
    kinds: &Kinds,
    configured: &Ranges,
) -> Result<Vec<ObjectEvent>, ApiError> {
    let registry = kinds.now();
    let Some(kind) = registry.find("networking.k8s.io", "v1", "ipaddresses") else {
        return Ok(Vec::new());
    };
    let ranges = addresses::all_ranges(&entries(store, addresses::RANGES).await?);
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    let bounds = &configured.node_ports;
    let services: BTreeMap<Owner, Service> = entries(store, "services/")
        .await?
        .into_iter()
        .filter_map(Service::read)
        .collect();
    let picture = Allocations {
        had_addresses: services
            .values()
            .flat_map(|service| &service.addresses)
            .copied()
            .collect(),
        had_ports: services
            .values()
            .flat_map(|service| &service.ports)
            .copied()
            .collect(),
        services,
        ranges,
        node_ports: i64::from(*bounds.start())..=i64::from(*bounds.end()),
        kind,
        addresses: entries(store, addresses::ADDRESSES)
            .await?
            .into_iter()
            .filter_map(held_address)
            .collect(),
        ports: entries(store, ports::TABLE)
            .await?
            .into_iter()
            .filter_map(held_port)
            .collect(),
    };
    let mut found = Vec::new();
    for finding in picture.findings()? {
        found.extend(finding.settle(store).await?);
    }
    Ok(found)
}

async fn entries(store: &dyn Store, prefix: &str) -> Result<Vec<Entry>, ApiError> {
    let query = ListQuery {
        prefix: prefix.to_owned(),
        ..ListQuery::default()
    };
    Ok(store.list(query).await.map_err(store_error)?.entries)
}

fn held_address(entry: Entry) -> Option<(IpAddr, HeldAddress)> {
    let address = entry.key.strip_prefix(addresses::ADDRESSES)?.parse().ok()?;
    let object = serde_json::from_slice(&entry.value.bytes()).ok()?;
    Some((address, HeldAddress { entry, object }))
}

fn held_port(entry: Entry) -> Option<(i64, Entry)> {
    Some((entry.key.strip_prefix(ports::TABLE)?.parse().ok()?, entry))
}

/// The service that a node port is allocated to.
fn owner(entry: &Entry) -> Owner {
    let bytes = entry.value.bytes();
    let text = String::from_utf8_lossy(&bytes);
    let (namespace, name) = text.split_once('/').unwrap_or(("", &text));
    Owner {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn hold(entry: &Entry) -> Op {
    Op {
        key: entry.key.clone(),
        expect: Expect::Revision(entry.modified),
        action: Action::Check,
    }
}

fn absent(key: &str) -> Op {
    Op {
        key: key.into(),
        expect: Expect::Absent,
        action: Action::Check,
    }
}

impl Service {
    fn read(entry: Entry) -> Option<(Owner, Self)> {
        let object: Fields = serde_json::from_slice(&entry.value.bytes()).ok()?;
        let owner = Owner {
            namespace: meta_text(&object, "namespace").to_owned(),
            name: meta_text(&object, "name").to_owned(),
        };
        let nothing = Fields::new();
        let spec = inner(&object, "spec").unwrap_or(&nothing);
        let about = reference("v1", "Service", &object);
        let (addresses, ports) = (addresses::of(spec), ports::of(spec).into_iter().collect());
        Some((
            owner.clone(),
            Self {
                entry,
                owner,
                about,
                addresses,
                ports,
            },
        ))
    }
}

fn reference(version: &str, kind: &str, object: &Fields) -> ObjectReference {
    let text = |key: &str| Some(meta_text(object, key).to_owned()).filter(|text| !text.is_empty());
    ObjectReference {
        api_version: Some(version.to_owned()),
        kind: Some(kind.to_owned()),
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        ..ObjectReference::default()
    }
}

impl Allocations<'_> {
    fn findings(&self) -> Result<Vec<Finding>, ApiError> {
        let mut all = Vec::new();
        for service in self.services.values() {
            for address in &service.addresses {
                all.extend(self.address(service, *address)?);
            }
            all.extend(
                service
                    .ports
                    .iter()
                    .filter_map(|port| self.port(service, *port)),
            );
        }
        all.extend(
            self.addresses
                .iter()
                .filter_map(|(address, held)| self.leaked_address(*address, held)),
        );
        all.extend(
            self.ports
                .iter()
                .filter_map(|(port, allocation)| self.leaked_port(*port, allocation)),
        );
        Ok(all)
    }

    fn has(&self, owner: &Owner, has: impl Fn(&Service) -> bool) -> bool {
        self.services.get(owner).is_some_and(has)
    }

    /// The fault of an address of a service.
    fn address(&self, service: &Service, address: IpAddr) -> Result<Option<Finding>, ApiError> {
        let family = master_network::family_of(address);
        let finding = |reason, message, ops| {
            Some(Finding {
                component: ADDRESSES,
                about: service.about.clone(),
                reason,
                message,
                ops,
            })
        };
        if !self.ranges.iter().any(|range| range.contains(address)) {
            let message = format!(
                "Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service"
            );
            return Ok(finding("ClusterIPOutOfRange", message, Vec::new()));
        }
        let own = || addresses::held_by(self.kind, address, &service.owner);
        Ok(match self.addresses.get(&address) {
            None => {
                let message =
                    format!("Cluster IP [{family}]: {address} is not allocated; repairing");
                finding(
                    "ClusterIPNotAllocated",
                    message,
                    vec![hold(&service.entry), own()?],
                )
            }
            Some(HeldAddress { entry, object }) => match addresses::parent_of(object) {
                Some(parent) if parent == service.owner => None,
                Some(parent) if self.has(&parent, |other| other.addresses.contains(&address)) => {
                    let message = format!(
                        "Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service"
                    );
                    finding("ClusterIPAlreadyAllocated", message, Vec::new())
                }
                Some(_) | None => {
                    let message = format!(
                        "the ClusterIP [{family}]: {address} for Service {} has a wrong reference; repairing",
                        service.owner.text()
                    );
                    let Action::Put(value) = own()?.action else {
                        return Ok(None);
                    };
                    let ops = vec![
                        hold(&service.entry),
                        Op::update(&entry.key, entry.modified, value),
                    ];
                    finding("ClusterIPNotAllocated", message, ops)
                }
            },
        })
    }

    /// The fault of a node port of a service.
    fn port(&self, service: &Service, port: i64) -> Option<Finding> {
        let finding = |reason, message, ops| {
            Some(Finding {
                component: PORTS,
                about: service.about.clone(),
                reason,
                message,
                ops,
            })
        };
        if !self.node_ports.contains(&port) {
            let (first, last) = (self.node_ports.start(), self.node_ports.end());
            let message = format!(
                "Port {port} is not within the port range {first}-{last}; please recreate service"
            );
            return finding("PortOutOfRange", message, Vec::new());
        }
        let own = Bytes::from(service.owner.text());
        match self.ports.get(&port) {
            Some(entry) if entry.value == own => None,
            Some(entry) => {
                if self.has(&owner(entry), |other| other.ports.contains(&port)) {
                    let message = format!(
                        "Port {port} was assigned to multiple services; please recreate service"
                    );
                    return finding("PortAlreadyAllocated", message, Vec::new());
                }
                let ops = vec![
                    hold(&service.entry),
                    Op::update(&entry.key, entry.modified, own),
                ];
                finding(
                    "PortNotAllocated",
                    format!("Port {port} is not allocated; repairing"),
                    ops,
                )
            }
            None => {
                let ops = vec![hold(&service.entry), Op::create(&ports::key(port), own)];
                finding(
                    "PortNotAllocated",
                    format!("Port {port} is not allocated; repairing"),
                    ops,
                )
            }
        }
    }

    /// An address allocated to a service that does not have it. IPAddresses of other makers are not
    /// checked.
    fn leaked_address(&self, address: IpAddr, held: &HeldAddress) -> Option<Finding> {
        let HeldAddress { entry, object } = held;
        let owner = addresses::parent_of(object).filter(|_| addresses::is_own(object))?;
        if self.had_addresses.contains(&address) {
            return None;
        }
        let name = owner.text();
        let message =
            format!("IPAddress: {address} for Service {name} appears to have leaked: cleaning up");
        let about = reference("networking.k8s.io/v1", "IPAddress", object);
        let ops = vec![self.as_seen(&owner), Op::delete(&entry.key, entry.modified)];
        Some(Finding {
            component: ADDRESSES,
            about,
            reason: "IPAddressNotAllocated",
            message,
            ops,
        })
    }

    /// A node port allocated to a service that does not have it.
    fn leaked_port(&self, port: i64, entry: &Entry) -> Option<Finding> {
        if self.had_ports.contains(&port) {
            return None;
        }
        let owner = owner(entry);
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            name: Some(owner.name.clone()),
            namespace: Some(owner.namespace.clone()),
            ..ObjectReference::default()
        };
        let message = format!("the node port {port} appears to have leaked: cleaning up");
        let ops = vec![self.as_seen(&owner), Op::delete(&entry.key, entry.modified)];
        Some(Finding {
            component: PORTS,
            about,
            reason: "PortNotAllocated",
            message,
            ops,
        })
    }

    /// The precondition that a service is unchanged, or still absent.
    fn as_seen(&self, owner: &Owner) -> Op {
        self.services.get(owner).map_or_else(
            || absent(&format!("services/{}", owner.text())),
            |service| hold(&service.entry),
        )
    }
}

impl Finding {
    /// Writes the repair and reports it. If something changed meanwhile, the next run repairs it.
    async fn settle(self, store: &dyn Store) -> Result<Option<ObjectEvent>, ApiError> {
        if !self.ops.is_empty() {
            match store.commit(self.ops).await {
                Ok(_) => {}
                Err(StoreError::Conflict { .. }) => return Ok(None),
                Err(error) => return Err(store_error(error)),
            }
        }
        tracing::warn!(reason = self.reason, "{}", self.message);
        let action = if self.component == PORTS {
            "PortAllocation"
        } else {
            "ClusterIPAllocation"
        };
        let event = NewEvent {
            severity: Severity::Warning,
            reason: self.reason,
            action,
            message: self.message,
        };
        Ok(Some(ObjectEvent {
            component: self.component,
            about: self.about,
            event,
        }))
    }
}
