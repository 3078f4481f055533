//! Who owns an address, by sources other than the node itself: the inventory, the certificates that
//! the master issued, and the cluster's ranges. What a Node reports of itself does not count. The
//! inventory also says which Nodes are of Machines.

use crate::entry_cache::EntryCache;
use crate::plugin::{Request, read};
use crate::plugin_services::PluginServices;
use crate::services::ranges::Ranges;
use jiff::Timestamp;
use master_objects::Clock;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::validate::net::Range;
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;

const MACHINES: &str = "machines.pratique.dev/";
const NODES: &str = "nodes/";

/// Machines and nodes in the cache. With more, each check decodes all of them.
const MAX_CACHED: usize = 16 * 1024;

/// The owners of addresses.
#[derive(Debug)]
pub(super) struct AddressOwners {
    ranges: Ranges,
    clock: Clock,
    machines: EntryCache<Arc<Machine>>,
    nodes: EntryCache<Arc<[Range]>>,
}

/// The addresses of a Machine, from its object.
#[derive(Debug, Default)]
struct Machine {
    name: String,
    node: String,
    is_master: bool,
    is_retired: bool,
    /// Addresses that an admin gave it.
    listed: Vec<IpAddr>,
    /// Addresses in its serving certificates, each with the end of the last one; one whose end
    /// cannot be read has none.
    certified: Vec<(IpAddr, Option<Timestamp>)>,
}

impl Machine {
    fn read(machine: &Fields) -> Self {
        let name = meta_text(machine, "name");
        let (spec, status) = (object(machine, "spec"), object(machine, "status"));
        let of =
            |fields: Option<&Fields>, key| fields.map_or("", |fields| text(fields, key)).to_owned();
        let all = |fields: Option<&Fields>, key| -> Vec<IpAddr> {
            let listed = fields.map_or(&[][..], |fields| items(fields, key));
            listed
                .iter()
                .filter_map(Value::as_str)
                .filter_map(address)
                .collect()
        };
        let last = status.and_then(|status| object(status, "certificate"));
        let end = last.and_then(|last| text(last, "notAfter").parse().ok());
        let now = all(status, "servingNames").into_iter().map(|at| (at, end));
        let earlier = status.and_then(|status| object(status, "earlierNames"));
        let earlier = earlier.into_iter().flatten().filter_map(|(name, end)| {
            Some((
                address(name)?,
                end.as_str().and_then(|end| end.parse().ok()),
            ))
        });
        let node = of(spec, "nodeName");
        Self {
            node: if node.is_empty() {
                name.to_owned()
            } else {
                node
            },
            name: name.to_owned(),
            is_master: of(spec, "role") == "master",
            is_retired: spec.is_some_and(|spec| get(spec, "retired") == true),
            listed: all(spec, "addresses"),
            certified: now.chain(earlier).collect(),
        }
    }

    fn has(&self, at: IpAddr, now: Timestamp) -> bool {
        let certified = |(own, end): &(IpAddr, Option<Timestamp>)| {
            *own == at && end.is_none_or(|end| now <= end)
        };
        !self.is_retired && (self.listed.contains(&at) || self.certified.iter().any(certified))
    }
}

/// An address; an IPv4 one in its IPv6 form is that IPv4 address.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical())
}

/// The ranges of a Node's pods.
pub(super) fn pod_ranges(node: &Fields) -> Vec<Range> {
    let spec = object(node, "spec");
    let listed = spec.map_or(&[][..], |spec| items(spec, "podCIDRs"));
    let listed = listed.iter().filter_map(Value::as_str);
    let all = listed.chain(spec.map(|spec| text(spec, "podCIDR")));
    let mut ranges: Vec<Range> = all.filter_map(Range::parse).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

impl AddressOwners {
    pub(super) fn new(parts: &PluginServices) -> Self {
        Self {
            ranges: parts.ranges.clone(),
            clock: parts.clock.clone(),
            machines: EntryCache::with_limit(MAX_CACHED),
            nodes: EntryCache::with_limit(MAX_CACHED),
        }
    }

    /// The Machines of the inventory.
    async fn machines(&self, request: &Request<'_>) -> Result<Vec<Arc<Machine>>, ApiError> {
        let entries = master_objects::list(request.reader, MACHINES).await?;
        let machine =
            |entry: &_| Arc::new(read(entry).as_ref().map(Machine::read).unwrap_or_default());
        let machines = entries.iter().map(|entry| self.machines.of(entry, machine));
        Ok(machines.collect())
    }

    /// Whether the inventory has a Machine for this node.
    pub(super) async fn has_machine(
        &self,
        request: &Request<'_>,
        node: &str,
    ) -> Result<bool, ApiError> {
        let machines = self.machines(request).await?;
        Ok(machines.iter().any(|machine| machine.node == node))
    }

    /// The first of these addresses, which a node writes for a pod on its machine's network, that
    /// has another owner, and that owner; `None` if no address has one. An address that the
    /// inventory lists for the node's own Machine is the node's, even if other machines have it,
    /// too. For a node without a Machine, only the addresses of Machines count.
    pub(super) async fn other(
        &self,
        request: &Request<'_>,
        node: &str,
        addresses: &[IpAddr],
    ) -> Result<Option<(IpAddr, String)>, ApiError> {
        let machines = self.machines(request).await?.into_iter();
        let (own, others): (Vec<_>, Vec<_>) = machines.partition(|machine| machine.node == node);
        let now = self.clock.now();
        let is_listed = |at| own.iter().any(|machine| machine.listed.contains(at));
        let unlisted = || addresses.iter().filter(|at| !is_listed(*at));
        for at in unlisted() {
            if let Some(other) = others.iter().find(|other| other.has(*at, now)) {
                return Ok(Some((*at, format!("the Machine {:?}", other.name))));
            }
        }
        if own.is_empty() {
            return Ok(None);
        }
        let is_master = own.iter().any(|machine| machine.is_master);
        for at in unlisted() {
            let mut api = self.ranges.advertise.iter();
            if !is_master && api.any(|api| api.ip().to_canonical() == *at) {
                return Ok(Some((*at, "the API server".to_owned())));
            }
        }
        for at in addresses {
            if is_of_each(*at) {
                return Ok(Some((*at, "each machine".to_owned())));
            }
            if is_translated(*at) {
                return Ok(Some((*at, "a translator".to_owned())));
            }
            if self.ranges.services.iter().any(|range| range.contains(*at)) {
                return Ok(Some((*at, "the cluster's services".to_owned())));
            }
        }
        for entry in master_objects::list(request.reader, NODES).await? {
            let ranges = self.nodes.of(&entry, |entry| {
                read(entry)
                    .as_ref()
                    .map(pod_ranges)
                    .unwrap_or_default()
                    .into()
            });
            let taken = addresses
                .iter()
                .find(|at| ranges.iter().any(|range| range.contains(**at)));
            if let Some(at) = taken {
                let name = entry.key.trim_start_matches(NODES);
                return Ok(Some((*at, format!("the pods of the node {name:?}"))));
            }
        }
        Ok(None)
    }
}

/// Whether an address is valid only within a machine or a link, so that it identifies no machine.
fn is_of_each(at: IpAddr) -> bool {
    let link_local = match at {
        IpAddr::V4(at) => at.is_link_local() || at.is_broadcast(),
        IpAddr::V6(at) => at.is_unicast_link_local(),
    };
    at.is_loopback() || at.is_unspecified() || at.is_multicast() || link_local
}

/// Whether an IPv6 address leads to an IPv4 one behind a translator (RFC 6052, RFC 8215): no
/// machine has one of these.
fn is_translated(at: IpAddr) -> bool {
    match at {
        IpAddr::V4(_) => false,
        IpAddr::V6(at) => matches!(
            at.segments(),
            [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..]
        ),
    }
}
