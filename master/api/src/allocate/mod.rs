//! Addresses and node ports of services: chosen at admission, written in the service's own transaction.
//!
//! An address is held by the `IPAddress` object of its name, a node port by a key `nodeports/<number>`. Both are created
//! together with the service and go together with it, so that no crash leaks one or gives it out twice. Where two services
//! choose the same at once, one transaction fails and its attempt is run again with another choice.

mod addresses;
mod defaults;
mod families;
mod ports;
mod repair;

use crate::admit::{Admitted, Operation, Request};
use crate::error::ApiError;
use crate::object::{meta_text, metadata};
use crate::validate::net::Range;
use crate::validate::{Faults, Fields, items, object, object_mut, text};
use crate::verbs::Call;
use master_store::Op;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

pub(crate) use defaults::prepare;
pub(crate) use repair::run as repair;

/// From where services get what they need, and where the API itself is found.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// Ranges of cluster addresses: one, or one of each family; the first is the usual one.
    pub services: Vec<Range>,
    /// Node ports.
    pub node_ports: RangeInclusive<u16>,
    /// Where this server listens, as clients inside the cluster reach it.
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

/// Gives a service what it needs and takes back what it needs no more.
pub(crate) async fn admit(
    request: &Request<'_>,
    service: &mut Fields,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    if !request.writes("", "services") || request.operation == Operation::Delete || ends(service) {
        return Ok(());
    }
    // On the heap, so that the writes of all other kinds don't carry its state.
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
    let mut held = Held {
        call,
        owner,
        ops: Vec::new(),
    };
    addresses::give(&mut held, spec, old, admitted).await?;
    ports::give(&mut held, spec, old).await?;
    admitted.ops.append(&mut held.ops);
    Ok(())
}

/// Whether a write is an object's last.
fn ends(fields: &Fields) -> bool {
    !meta_text(fields, "deletionTimestamp").is_empty()
        && items(metadata(fields), "finalizers").is_empty()
}

/// What becomes free when an object is gone.
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
    let mut held = Held {
        call,
        owner,
        ops: Vec::new(),
    };
    for address in addresses::of(spec) {
        held.free_address(address).await?;
    }
    for port in ports::of(spec) {
        held.free_port(port).await?;
    }
    Ok(held.ops)
}

/// Refuses to let go of an address that a service has. A range is held by its finalizer.
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
    crate::kinds::family_of(range.first())
}

/// Whose something is.
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

/// What one attempt takes and gives back.
struct Held<'a> {
    call: &'a Call,
    owner: Owner,
    ops: Vec<Op>,
}

/// A random number below `end`, which is not 0.
fn below(end: u128) -> u128 {
    uuid::Uuid::new_v4().as_u128().rotate_left(48) % end
}

/// How much of a range is kept for those who ask for something of it by name: a part of it between bounds, which others
/// get only when the rest is full (upstream's KEP-3070, KEP-3668).
fn reserved(size: u128, least: u128, most: u128, part: u128) -> u128 {
    if size <= least {
        0
    } else {
        (size / part).clamp(least, most)
    }
}

/// The texts of a list.
fn texts<'a>(spec: &'a Fields, key: &str) -> impl Iterator<Item = &'a str> {
    items(spec, key).iter().filter_map(Value::as_str)
}

/// Whether a service has addresses at all.
fn has_address(spec: &Fields) -> bool {
    text(spec, "type") != "ExternalName"
}
