//! Validation of ResourceClaims, their templates and DeviceClasses (upstream:
//! `resource/validation`). Expressions are limited in length; whether they compile is not checked.

use master_schema::object::spec;
use master_schema::validate::forms::driver_name;
use master_schema::validate::forms::{self, formed, has, needed_form, number, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, labels, names, object, object_mut, resource,
    text,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Requests, constraints, configurations and selectors of one claim or class.
pub(crate) const LIST: usize = 32;
/// Alternatives of one request.
const ALTERNATIVES: usize = 8;
/// Bytes of an expression, and of a driver's parameters.
const EXPRESSION: usize = 10 << 10;
const PARAMETERS: usize = 10 << 10;
/// Bytes of an attribute's name without its domain.
const IDENTIFIER: usize = 32;
/// Bytes of a pool's name.
const POOL: usize = 253;
const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];
const NO_REQUEST: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Validates the items of a list, unless there are too many.
pub(crate) fn list(
    all: &[Value],
    most: usize,
    at: &FieldPath<'_>,
    faults: &mut Faults,
    check: impl Fn(&Value, &FieldPath<'_>, &mut Faults),
) {
    if all.len() > most {
        return faults.too_many(at, all.len(), most);
    }
    for (index, item) in all.iter().enumerate() {
        check(item, &at.index(index), faults);
    }
}

/// Validates the items of a list of objects, unless there are too many, and that their values of
/// `key` are unique.
pub(crate) fn set(
    all: &[Value],
    most: usize,
    key: &str,
    at: &FieldPath<'_>,
    faults: &mut Faults,
    check: impl Fn(&Fields, &FieldPath<'_>, &mut Faults),
) {
    list(all, most, at, faults, |item, at, faults| {
        if let Some(item) = item.as_object() {
            check(item, at, faults);
        }
    });
    if all.len() <= most {
        let keys: Vec<Value> = all
            .iter()
            .map(|item| {
                item.as_object()
                    .map_or(Value::Null, |item| word(item, key).clone())
            })
            .collect();
        once(&keys, at, faults);
    }
}

/// Reports duplicate items of a list.
pub(crate) fn once(all: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    let mut known = HashSet::new();
    for (index, item) in all.iter().enumerate() {
        if !known.insert(item) {
            faults.duplicate(&at.index(index), item);
        }
    }
}

/// Sets defaults of a claim's spec.
pub(crate) fn claim_defaults(spec: Option<&mut Fields>) {
    let devices = spec.and_then(|spec| spec.get_mut("devices"));
    let requests = devices
        .and_then(|devices| devices.get_mut("requests"))
        .and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        if let Some(exactly) = request.get_mut("exactly").and_then(Value::as_object_mut) {
            request_defaults(exactly);
        }
        for request in request
            .get_mut("firstAvailable")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(request) = request.as_object_mut() {
                request_defaults(request);
            }
        }
    }
}

fn request_defaults(request: &mut Fields) {
    default_to(request, "allocationMode", "ExactCount");
    // KEP-4381: one device, unless the request says more.
    if text(request, "allocationMode") == "ExactCount" && number(request, "count") == 0 {
        request.insert("count".to_owned(), 1.into());
    }
    for toleration in request
        .get_mut("tolerations")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(toleration) = toleration.as_object_mut() {
            default_to(toleration, "operator", "Equal");
        }
    }
}

/// Sets defaults of a template.
pub(crate) fn template_defaults(fields: &mut Fields) {
    claim_defaults(
        object_mut(fields, "spec")
            .and_then(|spec| spec.get_mut("spec"))
            .and_then(Value::as_object_mut),
    );
}

/// The names of a claim's requests, each with those of its alternatives.
#[derive(Debug, Default)]
pub(crate) struct Requests<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Requests<'a> {
    /// Reads a claim's spec.
    pub(crate) fn of(spec: &'a Fields) -> Self {
        let requests =
            object(spec, "devices").map_or(&[][..], |devices| items(devices, "requests"));
        let each = requests.iter().filter_map(Value::as_object).map(|request| {
            let names = items(request, "firstAvailable")
                .iter()
                .filter_map(|request| request.get("name")?.as_str());
            (text(request, "name"), names.collect())
        });
        Self(each.collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self
                .0
                .get(request)
                .is_some_and(|names| names.contains(alternative)),
        }
    }

    /// Validates a name that refers to a request.
    pub(crate) fn reference(&self, name: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
        let own = name.as_str().unwrap_or_default();
        if own.matches('/').count() > 1 {
            return faults.invalid(at, name, NO_REQUEST);
        }
        for part in own.split('/') {
            formed(&part.into(), at, names::label, faults);
        }
        if !self.has(own) {
            faults.invalid(at, name, NO_REQUEST);
        }
    }

    /// Validates a list of such names.
    pub(crate) fn references(&self, fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
        let (all, at) = (items(fields, "requests"), at.field("requests"));
        list(all, LIST, &at, faults, |name, at, faults| {
            self.reference(name, at, faults);
        });
        if all.len() <= LIST {
            once(all, &at, faults);
        }
    }
}

/// Validates a new claim.
pub(crate) fn claim(fields: &Fields, faults: &mut Faults) {
    claim_spec(spec(fields), &FieldPath::root("spec"), faults);
}

/// Validates a new template.
pub(crate) fn template(fields: &Fields, faults: &mut Faults) {
    let (template, at) = (spec(fields), FieldPath::root("spec"));
    let place = at.field("metadata");
    if let Some(meta) = object(template, "metadata") {
        labels::annotations(
            object(meta, "annotations"),
            &place.field("annotations"),
            faults,
        );
        labels::labels(object(meta, "labels"), &place.field("labels"), faults);
    }
    claim_spec(spec(template), &at.field("spec"), faults);
}

/// The spec is immutable.
pub(crate) fn same_spec(new: &Fields, old: &Fields, faults: &mut Faults) {
    // What is allocated answers this spec.
    faults.immutable(&FieldPath::root("spec"), get(new, "spec"), get(old, "spec"));
}

fn claim_spec(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(devices) = object(spec, "devices") else {
        return;
    };
    let (known, at) = (Requests::of(spec), at.field("devices"));
    set(
        items(devices, "requests"),
        LIST,
        "name",
        &at.field("requests"),
        faults,
        request,
    );
    list(
        items(devices, "constraints"),
        LIST,
        &at.field("constraints"),
        faults,
        |item, at, faults| {
            if let Some(item) = item.as_object() {
                constraint(item, &known, at, faults);
            }
        },
    );
    list(
        items(devices, "config"),
        LIST,
        &at.field("config"),
        faults,
        |item, at, faults| {
            if let Some(item) = item.as_object() {
                known.references(item, at, faults);
                configuration(item, at, faults);
            }
        },
    );
}

fn request(request: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    formed(
        word(request, "name"),
        &at.field("name"),
        names::label,
        faults,
    );
    let alternatives = items(request, "firstAvailable");
    match (object(request, "exactly"), alternatives.is_empty()) {
        (None, true) => faults.required(
            at,
            "exactly one of `exactly` or `firstAvailable` is required",
        ),
        (Some(_), false) => {
            let words = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            faults.invalid(at, &Value::Null, words);
        }
        (Some(exactly), true) => exact_request(exactly, &at.field("exactly"), faults),
        (None, false) => {
            set(
                alternatives,
                ALTERNATIVES,
                "name",
                &at.field("firstAvailable"),
                faults,
                |request, at, faults| {
                    formed(
                        word(request, "name"),
                        &at.field("name"),
                        names::label,
                        faults,
                    );
                    exact_request(request, at, faults);
                },
            );
        }
    }
}

fn exact_request(request: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed_form(request, "deviceClassName", at, names::subdomain, faults);
    selectors(request, at, faults);
    let (count, place) = (number(request, "count"), at.field("count"));
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            faults.invalid(
                &place,
                &count.into(),
                "must not be specified when allocationMode is 'All'",
            );
        }
        "ExactCount" if count <= 0 => {
            faults.invalid(&place, &count.into(), "must be greater than zero");
        }
        "All" | "ExactCount" => {}
        _ => faults.unsupported(
            &at.field("allocationMode"),
            word(request, "allocationMode"),
            &["All", "ExactCount"],
        ),
    }
    tolerations(request, at, faults);
}

/// Validates the selectors of a request or class.
fn selectors(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    list(
        items(fields, "selectors"),
        LIST,
        &at.field("selectors"),
        faults,
        |selector, at, faults| {
            let place = at.field("cel");
            match selector.get("cel").and_then(Value::as_object) {
                None => faults.required(&place, ""),
                Some(cel) if text(cel, "expression").len() > EXPRESSION => {
                    faults.too_long(&place.field("expression"), EXPRESSION);
                }
                Some(_) => {}
            }
        },
    );
}

/// Validates tolerations of device taints.
pub(crate) fn tolerations(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("tolerations");
    for (index, toleration) in items(fields, "tolerations").iter().enumerate() {
        let (at, Some(toleration)) = (at.index(index), toleration.as_object()) else {
            continue;
        };
        if !text(toleration, "key").is_empty() {
            formed(
                get(toleration, "key"),
                &at.field("key"),
                names::qualified,
                faults,
            );
        }
        let value = word(toleration, "value");
        match text(toleration, "operator") {
            "Exists" if !text(toleration, "value").is_empty() => {
                faults.invalid(
                    &at.field("value"),
                    value,
                    "must be empty for operator `Exists`",
                );
            }
            "Exists" => {}
            "Equal" => formed(value, &at.field("value"), names::label_value, faults),
            "" => faults.required(&at.field("operator"), ""),
            _ => faults.unsupported(
                &at.field("operator"),
                word(toleration, "operator"),
                &["Equal", "Exists"],
            ),
        }
        if !text(toleration, "effect").is_empty() {
            faults.one_of(&at.field("effect"), get(toleration, "effect"), EFFECTS);
        }
    }
}

/// Validates a taint of a device.
pub(crate) fn taint(taint: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    forms::taint(taint, EFFECTS, at, faults);
}

fn constraint(constraint: &Fields, known: &Requests<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    known.references(constraint, at, faults);
    let keys = ["matchAttribute", "distinctAttribute"];
    if let Some(key) = keys.into_iter().find(|key| has(constraint, key)) {
        full_name(text(constraint, key), &at.field(key), faults);
    } else {
        let words = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        faults.required(at, words);
    }
}

/// Validates a name of an attribute or capacity, with or without a domain.
pub(crate) fn qualified(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [own] => identifier(own, at, faults),
        [domain, own] => {
            if domain.is_empty() {
                faults.invalid(at, &"".into(), "the domain must not be empty");
            } else {
                driver_name(&(*domain).into(), at, faults);
            }
            if own.is_empty() {
                faults.invalid(at, &"".into(), "the name must not be empty");
            } else {
                identifier(own, at, faults);
            }
        }
        _ => faults.invalid(at, &name.into(), "must not contain more than one slash"),
    }
}

fn full_name(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    qualified(name, at, faults);
    if !name.contains('/') {
        let words = "a fully qualified name must be a domain and a name separated by a slash";
        faults.invalid(at, &name.into(), words);
    }
}

fn identifier(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    if name.len() > IDENTIFIER {
        faults.too_long(at, IDENTIFIER);
    }
    formed(&name.into(), at, names::identifier, faults);
}

/// Validates the name of a pool: subdomains separated by slashes.
pub(crate) fn pool_name(fields: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let (name, at) = (text(fields, key), at.field(key));
    if name.is_empty() {
        return faults.required(&at, "");
    }
    if name.len() > POOL {
        faults.too_long(&at, POOL);
    }
    for part in name.split('/') {
        formed(&part.into(), &at, names::subdomain, faults);
    }
}

/// Validates a driver's configuration of a device.
pub(crate) fn configuration(config: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("opaque");
    let Some(opaque) = object(config, "opaque") else {
        return faults.required(&at, "");
    };
    driver_name(word(opaque, "driver"), &at.field("driver"), faults);
    raw(
        get(opaque, "parameters"),
        PARAMETERS,
        &at.field("parameters"),
        faults,
    );
}

/// Validates an opaque object of another API: its form and size.
pub(crate) fn raw(value: &Value, most: usize, at: &FieldPath<'_>, faults: &mut Faults) {
    if value.is_null() {
        faults.required(at, "");
    } else if value.to_string().len() > most {
        faults.too_long(at, most);
    } else if !value.is_object() {
        faults.invalid(at, &"<value omitted>".into(), "must be a valid JSON object");
    }
}

/// Validates a DeviceClass.
pub(crate) fn class(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    selectors(spec, &at, faults);
    list(
        items(spec, "config"),
        LIST,
        &at.field("config"),
        faults,
        |config, at, faults| {
            if let Some(config) = config.as_object() {
                configuration(config, at, faults);
            }
        },
    );
    let name = get(spec, "extendedResourceName");
    if name
        .as_str()
        .is_some_and(|name| !resource::is_extended(name))
    {
        faults.invalid(
            &at.field("extendedResourceName"),
            name,
            "must be a valid extended resource name",
        );
    }
}

/// Validates the binding conditions and binding failure conditions of a device.
pub(crate) fn binding(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    const MAX_CONDITIONS: usize = 4;
    let (met, failed) = ("bindingConditions", "bindingFailureConditions");
    for key in [met, failed] {
        list(
            items(fields, key),
            MAX_CONDITIONS,
            &at.field(key),
            faults,
            |name, at, faults| {
                formed(name, at, names::qualified, faults);
            },
        );
    }
    let (met_at, failed_at) = (at.field(met), at.field(failed));
    let (wanted, failures) = (items(fields, met), items(fields, failed));
    once(wanted, &met_at, faults);
    once(failures, &failed_at, faults);
    let wanted_names: HashSet<&str> = wanted.iter().filter_map(Value::as_str).collect();
    for (index, name) in failures.iter().enumerate() {
        if name
            .as_str()
            .is_some_and(|name| wanted_names.contains(name))
        {
            let words = "bindingFailureConditions must not overlap with bindingConditions";
            faults.invalid(&failed_at.index(index), name, words);
        }
    }
    match (wanted.is_empty(), failures.is_empty()) {
        (true, false) => {
            let words = "bindingConditions are required to use bindingFailureConditions";
            faults.invalid(&met_at, get(fields, met), words);
        }
        (false, true) => {
            let words = "bindingFailureConditions are required to use bindingConditions";
            faults.invalid(&failed_at, get(fields, failed), words);
        }
        (true, true) | (false, false) => {}
    }
}
