//! Cluster IPs: chosen at random from the ranges of the `ServiceCIDR` objects, recorded in
//! `IPAddress` objects.

use super::{Allocation, Owner, below, defaults, has_address, reserved, texts};
use crate::plugin::{Admitted, Request};
use master_network::family_of;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::registry::Kind;
use master_schema::validate::net::Range;
use master_schema::validate::{Faults, FieldPath, Fields, get, object as inner, text};
use master_store::{Entry, Op, Reader};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Addresses tried at random before the ranges are searched.
const PROBES: usize = 16;
/// Store keys of ranges and addresses.
pub(crate) const RANGES: &str = "servicecidrs.networking.k8s.io/";
pub(crate) const ADDRESSES: &str = "ipaddresses.networking.k8s.io/";

/// Label that names the component that made an IPAddress.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const MANAGER: &str = "ipallocator.k8s.io";

/// The cluster IPs in a service's spec.
pub(super) fn of(spec: &Fields) -> Vec<IpAddr> {
    if !has_address(spec) {
        return Vec::new();
    }
    texts(spec, "clusterIPs")
        .filter_map(|address| address.parse().ok())
        .collect()
}

/// Allocates an address for each of a service's families and frees those that it no longer has.
pub(super) async fn give(
    allocation: &mut Allocation<'_>,
    spec: &mut Fields,
    old: Option<&Fields>,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    let before = old.map(of).unwrap_or_default();
    let headless = texts(spec, "clusterIPs").next() == Some("None");
    if has_address(spec) && !headless {
        let families: Vec<String> = texts(spec, "ipFamilies").map(str::to_owned).collect();
        let mut list: Vec<String> = texts(spec, "clusterIPs").map(str::to_owned).collect();
        list.resize(families.len().max(list.len()), String::new());
        let mut ranges = None;
        for (place, family) in list.iter_mut().zip(&families) {
            let requested = place.parse::<IpAddr>().ok();
            if requested.is_some_and(|requested| before.contains(&requested)) {
                continue;
            }
            if ranges.is_none() {
                ranges = Some(known_ranges(allocation.reader).await?);
            }
            let known = ranges.as_deref().unwrap_or_default();
            let (address, range) = match requested {
                Some(requested) => (
                    requested,
                    allocation
                        .take_asked(requested, known, get(spec, "clusterIPs"))
                        .await?,
                ),
                None => allocation.take_any(family, known).await?,
            };
            // Allocation unchanged, so that the range is not deleted while an address is taken from
            // it.
            admitted.hold(range);
            allocation.write_address(address)?;
            if requested.is_none() {
                *place = address.to_string();
            }
        }
        if let Some(first) = list.first() {
            spec.insert("clusterIP".to_owned(), first.clone().into());
            spec.insert("clusterIPs".to_owned(), json!(list));
        }
    }
    let after = of(spec);
    for address in before {
        if !after.contains(&address) {
            allocation.free_address(address).await?;
        }
    }
    Ok(())
}

/// A range from which addresses may be taken.
#[derive(Debug)]
struct OpenRange {
    range: Range,
    /// The object that names it.
    entry: Entry,
}

/// The offsets in a range of the addresses that services may have.
#[derive(Debug, Clone, Copy)]
struct Offsets {
    first: u128,
    /// From here on addresses are chosen at random; those before are reserved for requests by
    /// value, and chosen only when the rest is taken.
    upper: u128,
    last: u128,
}

impl Offsets {
    fn of(usable: RangeInclusive<u128>) -> Self {
        let (first, last) = usable.into_inner();
        Self {
            first,
            upper: first + reserved(last - first + 1, 16, 256, 16),
            last,
        }
    }

    /// One of the upper part.
    fn random(self) -> u128 {
        self.upper + below(self.last - self.upper + 1)
    }
}

/// The ranges from which addresses may be taken.
async fn known_ranges(reader: &dyn Reader) -> Result<Vec<OpenRange>, ApiError> {
    let mut ranges = Vec::new();
    for entry in master_objects::list(reader, RANGES).await? {
        let object: Fields = serde_json::from_slice(&entry.value.bytes()).unwrap_or_default();
        if meta_text(&object, "deletionTimestamp").is_empty() {
            ranges.extend(ranges_of(&object).into_iter().map(|range| OpenRange {
                range,
                entry: entry.clone(),
            }));
        }
    }
    Ok(ranges)
}

fn ranges_of(object: &Fields) -> Vec<Range> {
    inner(object, "spec")
        .into_iter()
        .flat_map(|spec| texts(spec, "cidrs"))
        .filter_map(Range::parse)
        .collect()
}

/// All ranges, including those being deleted.
pub(super) fn all_ranges(entries: &[Entry]) -> Vec<Range> {
    let objects = entries
        .iter()
        .filter_map(|entry| serde_json::from_slice::<Fields>(&entry.value.bytes()).ok());
    objects.flat_map(|object| ranges_of(&object)).collect()
}

fn key(address: IpAddr) -> String {
    format!("{ADDRESSES}{address}")
}

/// Offsets of the usable addresses: all but the network address and IPv4's broadcast address.
fn usable(range: Range) -> Option<RangeInclusive<u128>> {
    let last = range
        .size()
        .checked_sub(if range.is_ipv6() { 1 } else { 2 })?;
    (last >= 1).then_some(1..=last)
}

impl Allocation<'_> {
    async fn is_free(&self, key: &str) -> Result<bool, ApiError> {
        Ok(self
            .reader
            .get(key)
            .await
            .map_err(store_error)?
            .entry
            .is_none())
    }

    /// The service for which an address is kept, where it is another one than this.
    fn kept_for(&self, address: IpAddr) -> Option<String> {
        let (namespace, name) = defaults::keeper(&self.plugin.ranges, address)?;
        let keeper = format!("{namespace}/{name}");
        (keeper != self.owner.text()).then_some(keeper)
    }

    /// The range of a requested address, if the address is free.
    async fn take_asked<'r>(
        &self,
        address: IpAddr,
        ranges: &'r [OpenRange],
        list: &Value,
    ) -> Result<&'r Entry, ApiError> {
        let fits = ranges.iter().find(|OpenRange { range, .. }| {
            let (offset, usable) = (range.offset(address), usable(*range));
            offset
                .zip(usable)
                .is_some_and(|(offset, usable)| usable.contains(&offset))
        });
        let why = match fits {
            Some(OpenRange { entry, .. }) if self.is_free(&key(address)).await? => {
                let Some(keeper) = self.kept_for(address) else {
                    return Ok(entry);
                };
                format!("provided IP is kept for the service {keeper}")
            }
            Some(_) => "provided IP is already allocated".to_owned(),
            None => {
                let family = family_of(address);
                let valid: Vec<String> = ranges
                    .iter()
                    .map(|open| open.range)
                    .filter(|range| family_of(range.first()) == family)
                    .map(|range| range.to_string())
                    .collect();
                let valid = valid.join(", ");
                format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {valid}"
                )
            }
        };
        let mut faults = Faults::default();
        let at = FieldPath::root("spec");
        faults.invalid(
            &at.field("clusterIPs"),
            list,
            format!("failed to allocate IP {address}: {why}"),
        );
        Err(super::refuse(faults, &self.owner)
            .err()
            .unwrap_or_else(|| full(&why)))
    }

    /// A free address of a family, and its range's object.
    async fn take_any<'r>(
        &self,
        family: &str,
        ranges: &'r [OpenRange],
    ) -> Result<(IpAddr, &'r Entry), ApiError> {
        for OpenRange { range, entry } in ranges
            .iter()
            .filter(|open| family_of(open.range.first()) == family)
        {
            let Some(offsets) = usable(*range).map(Offsets::of) else {
                continue;
            };
            for _ in 0..PROBES {
                let address = range.at(offsets.random());
                if self.kept_for(address).is_none() && self.is_free(&key(address)).await? {
                    return Ok((address, entry));
                }
            }
            if let Some(address) = self.search(*range, offsets).await? {
                return Ok((address, entry));
            }
        }
        Err(full("range is full"))
    }

    /// Searches a range: from a random offset upwards, then the rest of its upper part, then its
    /// lower part.
    async fn search(&self, range: Range, offsets: Offsets) -> Result<Option<IpAddr>, ApiError> {
        let entries = master_objects::list(self.reader, ADDRESSES).await?;
        let names = entries
            .iter()
            .filter_map(|entry| entry.key.strip_prefix(ADDRESSES)?.parse().ok());
        let taken: BTreeSet<u128> = names.filter_map(|address| range.offset(address)).collect();
        let start = offsets.random();
        let Offsets { first, upper, last } = offsets;
        // Ends at the latest one step after the number of taken and kept addresses, however large
        // the range is.
        let offsets = (start..=last).chain(upper..start).chain(first..upper);
        let mut free = offsets
            .filter(|offset| !taken.contains(offset))
            .map(|offset| range.at(offset));
        Ok(free.find(|address| self.kept_for(*address).is_none()))
    }

    /// Adds the operation that allocates an address.
    fn write_address(&mut self, address: IpAddr) -> Result<(), ApiError> {
        let registry = self.plugin.kinds.now();
        let Some(kind) = registry.find("networking.k8s.io", "v1", "ipaddresses") else {
            return Err(full("the kind IPAddress is not served"));
        };
        self.ops.push(held_by(kind, address, &self.owner)?);
        Ok(())
    }

    /// Adds the operation that frees an address, if it belongs to the owner.
    pub(super) async fn free_address(&mut self, address: IpAddr) -> Result<(), ApiError> {
        let fetched = self.reader.get(&key(address)).await.map_err(store_error)?;
        if let Some(entry) = fetched.entry
            && parent(&entry.value.bytes()) == Some(self.owner.clone())
        {
            self.ops.push(Op::delete(&entry.key, entry.modified));
        }
        Ok(())
    }
}

/// The operation that creates the IPAddress object of a service's address.
pub(super) fn held_by(kind: &Kind, address: IpAddr, owner: &Owner) -> Result<Op, ApiError> {
    let object = json!({
        "metadata": {
            "name": address.to_string(), "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": master_schema::object::now(),
            "labels": {"ipaddress.kubernetes.io/ip-family": family_of(address), MANAGED_BY: MANAGER},
        },
        "spec": {"parentRef": {
            "group": "", "resource": "services", "namespace": owner.namespace, "name": owner.name,
        }},
    });
    let bytes = master_objects::encode(kind, object.as_object().cloned().unwrap_or_default())?;
    Ok(Op::create(&key(address), bytes))
}

/// Whether an IPAddress object was made for a service.
pub(super) fn is_own(object: &Fields) -> bool {
    inner(metadata(object), "labels").is_some_and(|labels| text(labels, MANAGED_BY) == MANAGER)
}

fn full(why: &str) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("Internal error occurred: failed to allocate a serviceIP: {why}"),
    )
}

/// The service that an IPAddress belongs to.
fn parent(stored: &[u8]) -> Option<Owner> {
    let object: Fields = serde_json::from_slice(stored).ok()?;
    parent_of(&object)
}

pub(super) fn parent_of(object: &Fields) -> Option<Owner> {
    let parent = inner(inner(object, "spec")?, "parentRef")?;
    let service = text(parent, "group").is_empty() && text(parent, "resource") == "services";
    service.then(|| Owner {
        namespace: text(parent, "namespace").to_owned(),
        name: text(parent, "name").to_owned(),
    })
}

/// Refuses to delete the IPAddress of an address that a service has.
pub(super) async fn check_unused(request: &Request<'_>, object: &Fields) -> Result<(), ApiError> {
    let name = meta_text(object, "name");
    let Some(owner) = parent_of(object) else {
        return Ok(());
    };
    let key = format!("services/{}", owner.text());
    let Some(entry) = request.get(&key).await? else {
        return Ok(());
    };
    let service: Fields = serde_json::from_slice(&entry.value.bytes()).unwrap_or_default();
    let spec = inner(&service, "spec").cloned().unwrap_or_default();
    if name
        .parse()
        .is_ok_and(|address| of(&spec).contains(&address))
    {
        return Err(request.forbidden(
            name,
            &format!("the address is in use by the service {}", owner.text()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_not_allocated() {
        let usable = |text: &str| usable(Range::parse(text).unwrap());
        assert_eq!(usable("10.0.0.0/30"), Some(1..=2));
        assert_eq!(usable("10.0.0.0/31"), None);
        assert_eq!(usable("10.0.0.0/32"), None);
        assert_eq!(usable("fd00::/126"), Some(1..=3));
    }
}
