//! Validation of ResourceSlices (upstream: `resource/validation`).

use crate::validate::{binding, list, pool_name, qualified, set, taint};
use master_schema::object::now;
use master_schema::object::spec;
use master_schema::quantity::Quantity;
use master_schema::validate::forms::driver_name;
use master_schema::validate::forms::{formed, has, needed_form, number, on, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, labels, names, object, object_mut, text,
};
use serde_json::Value;
use std::collections::HashMap;

/// Devices of a slice, and of a slice with a rich device (see [`is_rich`]).
const DEVICES: usize = 128;
const RICH_DEVICES: usize = 64;
/// Attributes and capacities of a device together, and values of an attribute.
const FACTS: usize = 32;
const VALUES: usize = 48;
const VALUE: usize = 64;
const TAINTS: usize = 16;
const COUNTER_SETS: usize = 8;
const COUNTERS: usize = 32;
const CONSUMED_SETS: usize = 2;
const OPTIONS: usize = 10;

/// The fields by which a taint is the same one over writes.
const IDENTITY: [&str; 3] = ["key", "value", "effect"];

/// Sets the time of new taints that have none; `old` holds the previous taints.
pub(crate) fn stamp_taints(fields: &mut Fields, old: Option<&Fields>) {
    let devices = old.map_or(&[][..], |old| items(spec(old), "devices"));
    // By device, key, value and effect; of several the first counts.
    let mut known: HashMap<(&str, [Option<&Value>; 3]), Option<&Value>> = HashMap::new();
    for device in devices.iter().filter_map(Value::as_object) {
        for taint in items(device, "taints") {
            let identity = IDENTITY.map(|key| taint.get(key));
            let times = known.entry((text(device, "name"), identity));
            times.or_insert(taint.get("timeAdded"));
        }
    }
    let devices = object_mut(fields, "spec")
        .and_then(|spec| spec.get_mut("devices"))
        .and_then(Value::as_array_mut);
    for device in devices
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let name = text(device, "name").to_owned();
        for taint in device
            .get_mut("taints")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let Some(taint) = taint
                .as_object_mut()
                .filter(|taint| !has(taint, "timeAdded"))
            else {
                continue;
            };
            // KEP-5055: evictions count from it, and a driver publishes its slice again and again.
            let identity = IDENTITY.map(|key| taint.get(key));
            let before = known.get(&(name.as_str(), identity)).copied().flatten();
            let time = before.cloned().unwrap_or_else(|| now().into());
            taint.insert("timeAdded".to_owned(), time);
        }
    }
}

/// Validates a slice.
pub(crate) fn slice(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    driver_name(word(spec, "driver"), &at.field("driver"), faults);
    let nothing = Fields::new();
    let pool = object(spec, "pool").unwrap_or(&nothing);
    let place = at.field("pool");
    pool_name(pool, "name", &place, faults);
    let (slices, generation) = (
        number(pool, "resourceSliceCount"),
        number(pool, "generation"),
    );
    if slices <= 0 {
        faults.invalid(
            &place.field("resourceSliceCount"),
            &slices.into(),
            "must be greater than zero",
        );
    }
    if generation < 0 {
        faults.invalid(
            &place.field("generation"),
            &generation.into(),
            "must be greater than or equal to zero",
        );
    }
    nodes(spec, &at, faults);
    if has(spec, "sharedCounters") && has(spec, "devices") {
        faults.invalid(
            &at,
            &"".into(),
            "only one of `sharedCounters` or `devices` is allowed",
        );
    }
    let chosen = on(spec, "perDeviceNodeSelection");
    let devices = items(spec, "devices");
    let most = if devices.iter().filter_map(Value::as_object).any(is_rich) {
        RICH_DEVICES
    } else {
        DEVICES
    };
    set(
        devices,
        most,
        "name",
        &at.field("devices"),
        faults,
        |device, at, faults| {
            self::device(device, chosen, at, faults);
        },
    );
    set(
        items(spec, "sharedCounters"),
        COUNTER_SETS,
        "name",
        &at.field("sharedCounters"),
        faults,
        |set, at, faults| {
            counters(set, "name", at, faults);
        },
    );
}

/// Pool, driver and node are immutable: they identify the devices that the slice publishes.
pub(crate) fn slice_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let nothing = Fields::new();
    let pool = |fields| -> &Value { get(object(spec(fields), "pool").unwrap_or(&nothing), "name") };
    faults.immutable(&at.field("pool").field("name"), pool(new), pool(old));
    for key in ["driver", "nodeName"] {
        faults.immutable(&at.field(key), get(spec(new), key), get(spec(old), key));
    }
}

/// Whether a device has taints, counters or lists of attribute values, so that its slice may hold
/// fewer devices.
fn is_rich(device: &Fields) -> bool {
    let lists = ["bools", "ints", "strings", "versions"];
    let several = |attribute: &Value| lists.iter().any(|key| attribute.get(key).is_some());
    !items(device, "taints").is_empty()
        || !items(device, "consumesCounters").is_empty()
        || object(device, "attributes").is_some_and(|all| all.values().any(several))
}

/// Validates that exactly one of several fields selects the nodes.
fn nodes(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let mut given = Vec::new();
    node_name(
        spec,
        "must be either unset or set to a non-empty string",
        &mut given,
        at,
        faults,
    );
    if let Some(selector) = object(spec, "nodeSelector") {
        given.push("`nodeSelector`");
        let place = at.field("nodeSelector");
        labels::node_selector(selector, &place, faults);
        if items(selector, "nodeSelectorTerms").len() != 1 {
            let words = "must have exactly one node selector term";
            faults.invalid(
                &place.field("nodeSelectorTerms"),
                get(selector, "nodeSelectorTerms"),
                words,
            );
        }
    }
    switch(spec, "allNodes", "`allNodes`", &mut given, at, faults);
    switch(
        spec,
        "perDeviceNodeSelection",
        "`perDeviceNodeSelection`",
        &mut given,
        at,
        faults,
    );
    match given.as_slice() {
        [] => faults.required(at, ONE),
        [_] => {}
        several => {
            let shown = format!("{{{}}}", several.join(", "));
            faults.invalid(
                at,
                &shown.into(),
                format!("{ONE}, but multiple fields are set"),
            );
        }
    }
}

fn node_name(
    fields: &Fields,
    empty: &str,
    given: &mut Vec<&'static str>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    match get(fields, "nodeName").as_str() {
        None => {}
        Some("") => faults.invalid(&at.field("nodeName"), &"".into(), empty),
        Some(_) => {
            given.push("`nodeName`");
            formed(
                get(fields, "nodeName"),
                &at.field("nodeName"),
                names::subdomain,
                faults,
            );
        }
    }
}

fn switch(
    fields: &Fields,
    key: &str,
    word: &'static str,
    given: &mut Vec<&'static str>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    match get(fields, key).as_bool() {
        None => {}
        Some(true) => given.push(word),
        Some(false) => faults.invalid(
            &at.field(key),
            &false.into(),
            "must be either unset or set to true",
        ),
    }
}

fn device(device: &Fields, chosen: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    formed(
        word(device, "name"),
        &at.field("name"),
        names::label,
        faults,
    );
    facts(device, at, faults);
    let place = at.field("attributes");
    for (name, value) in object(device, "attributes").into_iter().flatten() {
        qualified(name, &place, faults);
        if let Some(value) = value.as_object() {
            attribute(value, &place.key(name), faults);
        }
    }
    let place = at.field("capacity");
    let shared = on(device, "allowMultipleAllocations");
    for (name, value) in object(device, "capacity").into_iter().flatten() {
        qualified(name, &place, faults);
        let Some(capacity) = value.as_object() else {
            continue;
        };
        let at = place.key(name);
        match object(capacity, "requestPolicy") {
            Some(policy) if shared => {
                self::policy(capacity, policy, &at.field("requestPolicy"), faults);
            }
            Some(_) => faults.forbidden(
                &at.field("requestPolicy"),
                "allowMultipleAllocations must be true",
            ),
            None => {}
        }
    }
    list(
        items(device, "taints"),
        TAINTS,
        &at.field("taints"),
        faults,
        |item, at, faults| {
            if let Some(item) = item.as_object() {
                taint(item, at, faults);
            }
        },
    );
    let consumed = items(device, "consumesCounters");
    set(
        consumed,
        CONSUMED_SETS,
        "counterSet",
        &at.field("consumesCounters"),
        faults,
        |set, at, faults| {
            counters(set, "counterSet", at, faults);
        },
    );
    device_nodes(device, chosen, at, faults);
    binding(device, at, faults);
}

fn facts(device: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let nothing = Fields::new();
    let attributes = object(device, "attributes").unwrap_or(&nothing);
    let facts = attributes.len() + object(device, "capacity").map_or(0, Fields::len);
    if facts > FACTS {
        let words =
            format!("the total number of attributes and capacities must not exceed {FACTS}");
        faults.invalid(at, &facts.into(), words);
    }
    let count = |value: &Value| value.as_array().map_or(0, Vec::len);
    let of = |attribute: &Value| {
        attribute
            .as_object()
            .map_or(0, |all| all.values().map(count).sum::<usize>())
            .max(1)
    };
    let values: usize = attributes.values().map(of).sum();
    if values > VALUES {
        let words = format!("the total number of attribute values must not exceed {VALUES}");
        faults.invalid(at, &values.into(), words);
    }
}

fn attribute(attribute: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if has(attribute, "string") {
        string(get(attribute, "string"), &at.field("string"), faults);
    }
    if has(attribute, "version") {
        version(get(attribute, "version"), &at.field("version"), faults);
    }
    for key in ["bools", "ints", "strings", "versions"]
        .into_iter()
        .filter(|key| has(attribute, key))
    {
        let (place, all) = (at.field(key), items(attribute, key));
        if all.is_empty() {
            faults.invalid(
                &place,
                get(attribute, key),
                "must not be empty if specified",
            );
        }
        for (index, item) in all.iter().enumerate() {
            match key {
                "strings" => string(item, &place.index(index), faults),
                "versions" => version(item, &place.index(index), faults),
                _ => {}
            }
        }
    }
    let keys = [
        "bool", "int", "string", "version", "bools", "ints", "strings", "versions",
    ];
    match keys.into_iter().filter(|key| has(attribute, key)).count() {
        0 => faults.invalid(at, &"".into(), "exactly one value must be specified"),
        1 => {}
        _ => faults.invalid(
            at,
            &Value::Object(attribute.clone()),
            "exactly one value must be specified",
        ),
    }
}

fn string(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if value.as_str().is_some_and(|text| text.len() > VALUE) {
        faults.too_long(at, VALUE);
    }
}

fn version(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if !value.as_str().is_some_and(is_version) {
        faults.invalid(
            at,
            value,
            "must be a string compatible with semver.org spec 2.0.0",
        );
    }
    string(value, at, faults);
}

/// Whether a string is a semantic version (semver.org).
fn is_version(text: &str) -> bool {
    let (rest, build) = text
        .split_once('+')
        .map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, before) = rest
        .split_once('-')
        .map_or((rest, None), |(core, before)| (core, Some(before)));
    let word = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let plain = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    core.split('.').count() == 3
        && core.split('.').all(plain)
        && before.is_none_or(|all| {
            all.split('.')
                .all(|part| word(part) && (!digits(part) || plain(part)))
        })
        && build.is_none_or(|all| all.split('.').all(word))
}

/// Validates a counter set, which a field names.
fn counters(set: &Fields, name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    needed_form(set, name, at, names::label, faults);
    let place = at.field("counters");
    match object(set, "counters").filter(|all| !all.is_empty()) {
        None => faults.required(&place, ""),
        Some(all) if all.len() > COUNTERS => faults.too_many(&place, all.len(), COUNTERS),
        Some(all) => all
            .keys()
            .for_each(|name| formed(&name.as_str().into(), &place, names::label, faults)),
    }
}

fn device_nodes(device: &Fields, chosen: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    if !chosen {
        if ["nodeName", "nodeSelector", "allNodes"]
            .iter()
            .any(|key| has(device, key))
        {
            let words = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                         true in the ResourceSlice spec";
            faults.invalid(at, &Value::Null, words);
        }
        return;
    }
    let mut given = Vec::new();
    node_name(device, "must not be empty", &mut given, at, faults);
    if let Some(selector) = object(device, "nodeSelector") {
        given.push("`nodeSelector`");
        labels::node_selector(selector, &at.field("nodeSelector"), faults);
    }
    switch(device, "allNodes", "`allNodes`", &mut given, at, faults);
    let words = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set \
                 to true in the ResourceSlice spec";
    match given.as_slice() {
        [] => faults.required(at, words),
        [_] => {}
        several => faults.invalid(at, &format!("{{{}}}", several.join(", ")).into(), words),
    }
}

/// Validates the values that may be requested of a capacity.
fn policy(capacity: &Fields, policy: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let whole = Quantity::read(get(capacity, "value")).unwrap_or_default();
    let usual = Quantity::read(get(policy, "default"));
    let values = items(policy, "validValues");
    let range = object(policy, "validRange");
    match (values.is_empty(), range) {
        (false, Some(_)) => {
            let words = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            faults.forbidden(at, words);
        }
        (false, None) => match usual {
            None => faults.required(&at.field("default"), "required when validValues is defined"),
            Some(usual) => options(values, usual, whole, &at.field("validValues"), faults),
        },
        (true, Some(range)) => match usual {
            None => faults.required(&at.field("default"), "required when validRange is defined"),
            Some(usual) => self::range(range, usual, whole, &at.field("validRange"), faults),
        },
        (true, None) => {}
    }
}

fn options(
    values: &[Value],
    usual: Quantity,
    whole: Quantity,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let read: Vec<Quantity> = values.iter().filter_map(Quantity::read).collect();
    for (index, pair) in read.windows(2).enumerate() {
        if pair[0] > pair[1] {
            faults.invalid(
                &at.index(index + 1),
                &values[index + 1],
                "values must be sorted in ascending order",
            );
        }
    }
    list(values, OPTIONS, at, faults, |value, at, faults| {
        if Quantity::read(value).is_some_and(|value| value > whole) {
            faults.invalid(
                at,
                value,
                format!("option is larger than capacity value: {whole}"),
            );
        }
    });
    for (index, value) in read.iter().enumerate().take(OPTIONS) {
        if read[..index].contains(value) {
            faults.duplicate(&at.index(index), &values[index]);
        }
    }
    if !read.contains(&usual) {
        faults.invalid(
            at,
            &usual.to_string().into(),
            "default value is not valid according to the requestPolicy",
        );
    }
}

fn range(
    range: &Fields,
    usual: Quantity,
    whole: Quantity,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let of = |key: &str| Quantity::read(get(range, key));
    let shown = |quantity: Quantity| Value::String(quantity.to_string());
    let Some(min) = of("min") else {
        return faults.required(&at.field("min"), "required when validRange is defined");
    };
    if min > whole {
        faults.invalid(
            &at.field("min"),
            &shown(min),
            format!("min is larger than capacity value: {whole}"),
        );
    }
    if usual < min {
        faults.invalid(
            &at.field("default"),
            &shown(usual),
            format!("default is less than min: {min}"),
        );
    }
    if let Some(max) = of("max") {
        if min > max {
            faults.invalid(
                &at.field("max"),
                &shown(min),
                format!("min is larger than max: {max}"),
            );
        }
        if max > whole {
            faults.invalid(
                &at.field("max"),
                &shown(max),
                format!("max is larger than capacity value: {whole}"),
            );
        }
        if usual > max {
            faults.invalid(
                &at.field("default"),
                &shown(usual),
                format!("default is more than max: {max}"),
            );
        }
    }
    let (Some(step), place) = (of("step"), at.field("step")) else {
        return;
    };
    if step <= Quantity::ZERO {
        return faults.invalid(&place, &shown(step), "must be greater than zero");
    }
    let first = min.plus(step);
    if first > whole {
        let words = format!("one step {first} is larger than capacity value: {whole}");
        faults.invalid(&place, &shown(step), words);
    }
    for value in [Some(usual), of("max")].into_iter().flatten() {
        if value.minus(min).amount().nanos() % step.amount().nanos() != 0 {
            let words = format!("value is not a multiple of a given step ({step}) from ({min})");
            faults.invalid(&place, &shown(value), words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_semver_org() {
        for good in [
            "1.2.3",
            "0.0.0",
            "1.0.0-alpha.1",
            "1.0.0-0a+build.007",
            "1.0.0+x-y",
        ] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "",
            "1.2",
            "01.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            "1.2.3-a..b",
            "v1.2.3",
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
