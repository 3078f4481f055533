//! Cluster IPs and node ports of services: chosen at admission, written in the service's
//! transaction.
//!
//! An address is allocated by the `IPAddress` object of its name, a node port by a key
//! `nodeports/<number>`. Both are created and deleted in the service's transaction, so that no
//! crash leaks one or allocates it twice. If two services choose the same one, one transaction
//! fails and repeats its attempt with another choice.

mod addresses;
mod defaults;
mod families;
mod ports;
mod repair;

use crate::admit::{Admitted, Operation, Request};
use crate::object::{meta_text, metadata};
use crate::verbs::Call;
use master_schema::error::ApiError;
use master_schema::validate::net::Range;
use master_schema::validate::{Faults, Fields, items, object, object_mut, text};
use master_store::Op;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

pub(crate) use defaults::prepare;
pub(crate) use repair::run as repair;

/// The ranges that services get addresses and ports from, and the addresses of the API itself.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// Ranges of cluster IPs: one, or one per family; the first is the primary family's.
    pub services: Vec<Range>,
    /// Node ports.
    pub node_ports: RangeInclusive<u16>,
    /// The addresses of this server, as clients inside the cluster reach them.
    pub advertise: Vec<SocketAddr>,
}

impl Default for Ranges {
    fn default() -> Self {
        let services = Range::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 0)), 12)
            .into_iter()
            .collect();
        Self {
            services,
            node_ports: 30000..=32767,
            advertise: Vec::new(),
        }
    }
}

/// Allocates what a service needs and frees what it no longer needs.
pub(crate) async fn admit(
    request: &Request<'_>,
    service: &mut Fields,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    if !request.writes("", "services") || request.operation == Operation::Delete || ends(service) {
        return Ok(());
    }
    // Boxed, so that the futures of all other kinds' writes do not contain its state.
    Box::pin(serve(request, service, admitted)).await
}

async fn serve(
    request: &Request<'_>,
    service: &mut Fields,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    let call = request.call;
    let owner = Owner {
        namespace: meta_text(service, "namespace").to_owned(),
        name: meta_text(service, "name").to_owned(),
    };
    let nothing = Fields::new();
    let old = request
        .old
        .map(|old| object(old, "spec").unwrap_or(&nothing));
    let Some(spec) = object_mut(service, "spec") else {
        return Ok(());
    };
    let mut faults = Faults::default();
    let families: Vec<&'static str> = call
        .api
        .inner
        .options
        .ranges
        .services
        .iter()
        .map(|range| family(*range))
        .collect();
    families::settle(spec, old, &families, &mut faults);
    refuse(faults, &owner)?;
    let mut allocation = Allocation {
        call,
        owner,
        ops: Vec::new(),
    };
    addresses::give(&mut allocation, spec, old, admitted).await?;
    ports::give(&mut allocation, spec, old).await?;
    admitted.ops.append(&mut allocation.ops);
    Ok(())
}

/// Whether a write removes the last finalizer, and so the object.
fn ends(fields: &Fields) -> bool {
    !meta_text(fields, "deletionTimestamp").is_empty()
        && items(metadata(fields), "finalizers").is_empty()
}

/// The operations that free what a deleted object had.
pub(crate) async fn release(call: &Call, object: &Fields) -> Result<Vec<Op>, ApiError> {
    if call.kind.plural != "services" || !call.kind.group.is_empty() {
        return Ok(Vec::new());
    }
    Box::pin(free(call, object)).await
}

async fn free(call: &Call, object: &Fields) -> Result<Vec<Op>, ApiError> {
    let owner = Owner {
        namespace: meta_text(object, "namespace").to_owned(),
        name: meta_text(object, "name").to_owned(),
    };
    let nothing = Fields::new();
    let spec = self::object(object, "spec").unwrap_or(&nothing);
    let mut allocation = Allocation {
        call,
        owner,
        ops: Vec::new(),
    };
    for address in addresses::of(spec) {
        allocation.free_address(address).await?;
    }
    for port in ports::of(spec) {
        allocation.free_port(port).await?;
    }
    Ok(allocation.ops)
}

/// Refuses to delete the address of a service. Ranges are protected by a finalizer.
pub(crate) async fn check_delete(request: &Request<'_>, object: &Fields) -> Result<(), ApiError> {
    if request.operation != Operation::Delete {
        return Ok(());
    }
    if request.is("networking.k8s.io", "ipaddresses") {
        return Box::pin(addresses::check_unused(request, object)).await;
    }
    Ok(())
}

fn refuse(faults: Faults, owner: &Owner) -> Result<(), ApiError> {
    faults.into_error("", "Service", &owner.name)
}

fn family(range: Range) -> &'static str {
    master_kinds::builtin::family_of(range.first())
}

/// The service that an address or port belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    namespace: String,
    name: String,
}

impl Owner {
    fn text(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The operations of one attempt: what it allocates and frees.
struct Allocation<'a> {
    call: &'a Call,
    owner: Owner,
    ops: Vec<Op>,
}

/// A random number below `end`, which must not be 0.
fn below(end: u128) -> u128 {
    uuid::Uuid::new_v4().as_u128().rotate_left(48) % end
}

/// The size of the part of a range that is reserved for requests by value: `1/part` of it, between
/// bounds. Random choices use it only when the rest is full (KEP-3070, KEP-3668).
fn reserved(size: u128, least: u128, most: u128, part: u128) -> u128 {
    if size <= least {
        0
    } else {
        (size / part).clamp(least, most)
    }
}

/// The strings of a list.
fn texts<'a>(spec: &'a Fields, key: &str) -> impl Iterator<Item = &'a str> {
    items(spec, key).iter().filter_map(Value::as_str)
}

/// Whether a service has cluster IPs at all.
fn has_address(spec: &Fields) -> bool {
    text(spec, "type") != "ExternalName"
}
