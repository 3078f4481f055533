//! Validation of a ResourceClaim's status: reservations and allocated devices (upstream:
//! `resource/validation`).

use crate::validate::{
    LIST, Requests, binding, configuration, list, pool_name, raw, set, tolerations,
};
use master_schema::object::meta_text;
use master_schema::object::spec;
use master_schema::validate::forms::driver_name;
use master_schema::validate::forms::{formed, needed, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, conditions, get, items, labels, names, object, text,
};
use serde_json::Value;
use std::collections::HashSet;

/// Consumers of one claim.
const CONSUMERS: usize = 256;
/// Bytes of a driver's device data, and conditions of a device.
const DATA: usize = 10 << 10;
const CONDITIONS: usize = 8;
/// Of a network device: bytes of its names, and number of addresses.
const INTERFACE: usize = 256;
const HARDWARE: usize = 128;
const ADDRESSES: usize = 16;

/// Validates a change of a claim's status.
pub(crate) fn status(new: &Fields, old: &Fields, faults: &mut Faults) {
    let nothing = Fields::new();
    let of = |fields| -> &Fields { object(fields, "status").unwrap_or(&nothing) };
    let (status, before, at) = (of(new), of(old), FieldPath::root("status"));
    let known = Requests::of(spec(new));
    let users = items(status, "reservedFor");
    set(
        users,
        CONSUMERS,
        "uid",
        &at.field("reservedFor"),
        faults,
        |user, at, faults| {
            for key in ["resource", "name", "uid"] {
                needed(user, key, at, faults);
            }
        },
    );
    let allocation = object(status, "allocation");
    devices(status, allocation, &at.field("devices"), faults);
    if !users.is_empty() {
        let place = at.field("reservedFor");
        if allocation.is_none() {
            faults.forbidden(&place, "may not be specified when `allocated` is not set");
        } else if !meta_text(new, "deletionTimestamp").is_empty()
            && has_others(users, items(before, "reservedFor"))
        {
            let words = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            faults.forbidden(&place, words);
        }
    }
    match (allocation, object(before, "allocation")) {
        (Some(_), Some(_)) => {
            faults.immutable(
                &at.field("allocation"),
                get(status, "allocation"),
                get(before, "allocation"),
            );
        }
        (Some(allocation), None) => {
            self::allocation(allocation, &known, &at.field("allocation"), faults);
        }
        (None, _) => {}
    }
}

/// Whether a list has items that another one has not.
fn has_others(list: &[Value], known: &[Value]) -> bool {
    let known: HashSet<&Value> = known.iter().collect();
    list.iter().any(|item| !known.contains(item))
}

fn allocation(allocation: &Fields, known: &Requests<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    if let Some(devices) = object(allocation, "devices") {
        let place = at.field("devices");
        list(
            items(devices, "results"),
            LIST,
            &place.field("results"),
            faults,
            |result, at, faults| {
                if let Some(result) = result.as_object() {
                    self::result(result, known, at, faults);
                }
            },
        );
        list(
            items(devices, "config"),
            2 * LIST,
            &place.field("config"),
            faults,
            |config, at, faults| {
                let Some(config) = config.as_object() else {
                    return;
                };
                if text(config, "source").is_empty() {
                    faults.required(&at.field("source"), "");
                } else {
                    faults.one_of(
                        &at.field("source"),
                        get(config, "source"),
                        &["FromClaim", "FromClass"],
                    );
                }
                known.references(config, at, faults);
                configuration(config, at, faults);
            },
        );
    }
    if let Some(selector) = object(allocation, "nodeSelector") {
        labels::node_selector(selector, &at.field("nodeSelector"), faults);
    }
}

fn result(result: &Fields, known: &Requests<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    known.reference(word(result, "request"), &at.field("request"), faults);
    device(result, at, faults);
    binding(result, at, faults);
    tolerations(result, at, faults);
}

/// Validates the names that identify a device.
fn device(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    driver_name(word(fields, "driver"), &at.field("driver"), faults);
    pool_name(fields, "pool", at, faults);
    formed(
        word(fields, "device"),
        &at.field("device"),
        names::label,
        faults,
    );
    let share = get(fields, "shareID");
    if let Some(id) = share.as_str()
        && uuid::Uuid::parse_str(id)
            .map(|read| read.hyphenated().to_string())
            .ok()
            .as_deref()
            != Some(id)
    {
        let words = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
                     hexadecimal characters";
        faults.invalid(&at.field("shareID"), share, words);
    }
}

/// Driver, pool, device and share, which together identify a device.
fn identity(device: &Fields) -> String {
    let own: Vec<&str> = ["driver", "pool", "device", "shareID"]
        .iter()
        .map(|key| text(device, key))
        .collect();
    own.join("/").trim_end_matches('/').to_owned()
}

/// Validates what drivers report about allocated devices.
fn devices(status: &Fields, allocation: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let results = allocation.and_then(|allocation| object(allocation, "devices"));
    let given = results.map_or(&[][..], |devices| items(devices, "results"));
    let given: HashSet<String> = given
        .iter()
        .filter_map(Value::as_object)
        .map(identity)
        .collect();
    let mut seen = HashSet::new();
    for (index, device_status) in items(status, "devices").iter().enumerate() {
        let (at, Some(device_status)) = (at.index(index), device_status.as_object()) else {
            continue;
        };
        device(device_status, &at, faults);
        let own = identity(device_status);
        if !given.contains(&own) {
            faults.invalid(
                &at,
                &own.as_str().into(),
                "must be an allocated device in the claim",
            );
        }
        let (all, place) = (items(device_status, "conditions"), at.field("conditions"));
        if all.len() > CONDITIONS {
            faults.too_many(&place, all.len(), CONDITIONS);
        }
        conditions::all(all, &place, faults);
        if !get(device_status, "data").is_null() {
            raw(get(device_status, "data"), DATA, &at.field("data"), faults);
        }
        if let Some(network) = object(device_status, "networkData") {
            self::network(network, &at.field("networkData"), faults);
        }
        if seen.contains(&own) {
            faults.duplicate(&at, &own.as_str().into());
        }
        seen.insert(own);
    }
}

fn network(network: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for (key, most) in [("interfaceName", INTERFACE), ("hardwareAddress", HARDWARE)] {
        if text(network, key).len() > most {
            faults.too_long(&at.field(key), most);
        }
    }
    let (all, place) = (items(network, "ips"), at.field("ips"));
    list(all, ADDRESSES, &place, faults, |address, at, faults| {
        let found = address.as_str().and_then(|text| {
            let (host, prefix) = text.split_once('/')?;
            let (host, prefix): (std::net::IpAddr, u8) = (host.parse().ok()?, prefix.parse().ok()?);
            master_schema::validate::net::Range::new(host, prefix)
                .map(|_| format!("{host}/{prefix}"))
        });
        match found {
            None => {
                let words =
                    "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                faults.invalid(at, address, words);
            }
            Some(canonical) if address != canonical.as_str() => {
                faults.invalid(
                    at,
                    address,
                    format!("must be in canonical form ({canonical:?})"),
                );
            }
            Some(_) => {}
        }
    });
    if all.len() <= ADDRESSES {
        crate::validate::once(all, &place, faults);
    }
}
