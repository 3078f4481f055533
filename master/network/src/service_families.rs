//! Validation of a service's cluster IPs, families and their changes (upstream:
//! `ValidateServiceClusterIPsRelatedFields`).

use crate::service::headless;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, net, text};
use serde_json::Value;
use std::collections::HashSet;
use std::net::IpAddr;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

/// Validates the addresses and families of a service's spec.
pub fn validate(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // It has neither address nor family; that it was given some is reported with its type.
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let (first, all) = (text(spec, "clusterIP"), items(spec, "clusterIPs"));
    let addresses_at = at.field("clusterIPs");
    match all.first() {
        None if !first.is_empty() => faults.required(&addresses_at, ""),
        Some(_) if first.is_empty() => {
            faults.invalid(
                &addresses_at,
                get(spec, "clusterIPs"),
                "must be empty when `clusterIP` is not specified",
            );
        }
        Some(found) if found != first => {
            faults.invalid(
                &addresses_at,
                get(spec, "clusterIPs"),
                "first value must match `clusterIP`",
            );
        }
        Some(_) | None => {}
    }
    families(spec, at, faults);
    addresses(spec, all, &addresses_at, faults);
}

fn families(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("ipFamilies");
    let mut seen: HashSet<&Value> = HashSet::new();
    for (number, family) in items(spec, "ipFamilies").iter().enumerate() {
        faults.one_of(&place.index(number), family, &FAMILIES);
        if !seen.insert(family) {
            faults.duplicate(&place.index(number), family);
        }
    }
    let policy = get(spec, "ipFamilyPolicy");
    if !policy.is_null() {
        faults.one_of(&at.field("ipFamilyPolicy"), policy, &POLICIES);
    }
}

fn addresses(spec: &Fields, all: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    let list = get(spec, "clusterIPs");
    let mut parsed: Vec<IpAddr> = Vec::new();
    let mut good = true;
    for (number, value) in all.iter().enumerate() {
        if number == 0 && value == "None" {
            if all.len() > 1 {
                good = false;
                faults.invalid(at, list, "'None' must be the first and only value");
            }
            continue;
        }
        match net::address(value, &at.index(number), faults) {
            Some(address) => parsed.push(address),
            None => good = false,
        }
    }
    if all.len() > 2 {
        faults.invalid(at, list, "may only hold up to 2 values");
    }
    if !good {
        return;
    }
    let count = |six: bool| {
        parsed
            .iter()
            .filter(|address| address.is_ipv6() == six)
            .count()
    };
    if count(true) > 1 || count(false) > 1 {
        faults.invalid(
            at,
            list,
            "may specify no more than one IP for each IP family",
        );
    }
    for (number, (family, address)) in items(spec, "ipFamilies").iter().zip(&parsed).enumerate() {
        let own = family_of(*address);
        if family != own && FAMILIES.iter().any(|known| family == known) {
            let text = format!(
                "expected an {} value as indicated by `ipFamilies[{number}]`",
                family.as_str().unwrap_or_default()
            );
            faults.invalid(&at.index(number), &address.to_string().into(), text);
        }
    }
}

/// The family of an address, as upstream names it.
pub fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "IPv6" } else { "IPv4" }
}

/// Validates how addresses and families change.
pub(crate) fn validate_update(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if [new, old]
        .iter()
        .any(|spec| text(spec, "type") == "ExternalName")
    {
        return;
    }
    // A headless service has no address to keep.
    if !(headless(new) && headless(old)) {
        change(new, old, "clusterIPs", "clusterIP", at, faults);
    }
    if !headless(new) && !headless(old) {
        change(new, old, "ipFamilies", "ipFamily", at, faults);
    }
}

/// The first item is immutable; the second may be added, and removed if the policy becomes
/// SingleStack.
fn change(
    new: &Fields,
    old: &Fields,
    key: &str,
    one: &str,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let (before, after) = (items(old, key), items(new, key));
    let place = at.field(key);
    if before.len() == after.len() {
        for (number, (was, is)) in before.iter().zip(after).enumerate() {
            if was != is {
                let number = if key == "ipFamilies" { 0 } else { number };
                faults.invalid(
                    &place.index(number),
                    get(new, key),
                    "may not change once set",
                );
            }
        }
        return;
    }
    let moved = matches!((before.first(), after.first()), (Some(was), Some(is)) if was != is);
    if before.len() > after.len() && after.is_empty() {
        faults.invalid(
            &place.index(0),
            get(new, key),
            format!("primary {one} can not be unset"),
        );
    }
    if moved {
        faults.invalid(&place.index(0), get(new, key), "may not change once set");
    }
    if before.len() > after.len()
        && after.len() == 1
        && text(new, "ipFamilyPolicy") != "SingleStack"
    {
        let text = format!("must be set to 'SingleStack' when releasing the secondary {one}");
        faults.invalid(
            &at.field("ipFamilyPolicy"),
            get(new, "ipFamilyPolicy"),
            text,
        );
    }
}
