//! `ServiceAllocation`: cluster IPs and node ports of services, chosen at admission and written in
//! the service's transaction. Always enabled.
//!
//! An address is allocated by the `IPAddress` object of its name, a node port by a key
//! `nodeports/<number>`. Both are created and deleted in the service's transaction, so that no
//! crash leaks one or allocates it twice. If two services choose the same one, one transaction
//! fails and repeats its attempt with another choice.

mod addresses;
mod defaults;
mod families;
mod ports;
pub(crate) mod ranges;
mod repair;

use crate::plugin::{Admitted, Operation, Plugin, Request};
use crate::plugin_services::PluginServices;
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::served::Kinds;
use master_schema::validate::net::Range;
use master_schema::validate::{Faults, Fields, items, object, object_mut, text};
use master_store::{Op, Reader};
use serde_json::Value;
use std::sync::Arc;

pub use defaults::{keep, prepare};
pub use ranges::Ranges;
pub use repair::run as repair;

/// The plugin.
#[derive(Debug)]
pub(crate) struct ServiceAllocation {
    ranges: Ranges,
    kinds: Arc<Kinds>,
}

impl ServiceAllocation {
    pub(crate) fn new(parts: &PluginServices) -> Self {
        Self {
            ranges: parts.ranges.clone(),
            kinds: parts.kinds.clone(),
        }
    }
}

impl Plugin for ServiceAllocation {
    fn concerns(&self, request: &Request<'_>) -> bool {
        let addresses = request.operation == Operation::Delete
            && request.is("networking.k8s.io", "ipaddresses");
        request.writes("", "services") || addresses
    }

    /// Allocates what a service needs and frees what it no longer needs.
    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        service: &'a mut Fields,
        admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if ends(service) {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.serve(request, service, admitted))
    }

    /// Refuses to delete the address of a service. Ranges are protected by a finalizer.
    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if request.is("networking.k8s.io", "ipaddresses") {
            return Box::pin(addresses::check_unused(request, object));
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn release<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
    ) -> BoxFuture<'a, Result<Vec<Op>, ApiError>> {
        if request.is("", "services") {
            return Box::pin(self.free(request, object));
        }
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

impl ServiceAllocation {
    async fn serve(
        &self,
        request: &Request<'_>,
        service: &mut Fields,
        admitted: &mut Admitted,
    ) -> Result<(), ApiError> {
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
        let families: Vec<&'static str> = self
            .ranges
            .services
            .iter()
            .map(|range| family(*range))
            .collect();
        families::settle(spec, old, &families, &mut faults);
        refuse(faults, &owner)?;
        let mut allocation = Allocation {
            plugin: self,
            reader: request.reader,
            owner,
            ops: Vec::new(),
        };
        addresses::give(&mut allocation, spec, old, admitted).await?;
        ports::give(&mut allocation, spec, old).await?;
        admitted.ops.append(&mut allocation.ops);
        Ok(())
    }

    async fn free(&self, request: &Request<'_>, object: &Fields) -> Result<Vec<Op>, ApiError> {
        let owner = Owner {
            namespace: meta_text(object, "namespace").to_owned(),
            name: meta_text(object, "name").to_owned(),
        };
        let nothing = Fields::new();
        let spec = self::object(object, "spec").unwrap_or(&nothing);
        let mut allocation = Allocation {
            plugin: self,
            reader: request.reader,
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
}

/// Whether a write removes the last finalizer, and so the object.
fn ends(fields: &Fields) -> bool {
    !meta_text(fields, "deletionTimestamp").is_empty()
        && items(metadata(fields), "finalizers").is_empty()
}

fn refuse(faults: Faults, owner: &Owner) -> Result<(), ApiError> {
    faults.into_error("", "Service", &owner.name)
}

fn family(range: Range) -> &'static str {
    master_network::family_of(range.first())
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
    plugin: &'a ServiceAllocation,
    reader: &'a dyn Reader,
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
