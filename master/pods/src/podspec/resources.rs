//! Validation of requests, limits and resource claims.

use config_kube::Amount;
use master_schema::validate::forms::{formed, has, needed_form, word};
use master_schema::validate::resource::{self, is_huge_page, is_native};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A value's amount; zero if it is not a quantity, which the schema has reported.
pub(super) fn amount(value: &Value) -> Amount {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(Amount::ZERO)
}

/// Whether limits may exceed requests: for native resources other than huge pages.
fn is_overcommittable(name: &str) -> bool {
    // CPU and memory can be shared out again; huge pages are reserved, devices handed out.
    is_native(name) && !is_huge_page(name)
}

/// Huge pages come in whole pages.
fn whole_pages(name: &str, value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let size = name
        .strip_prefix("hugepages-")
        .and_then(|size| size.parse::<Amount>().ok())
        .map(Amount::ceil_units);
    let found = amount(value).ceil_units();
    if !size.is_some_and(|size| size > 0 && found % size == 0) {
        let shown = value.as_str().unwrap_or_default();
        faults.invalid(
            at,
            value,
            format!("{shown} is not positive integer multiple of {name}"),
        );
    }
}

/// Validates requests and limits; `claims` are the pod's claims, `None` where claims are not
/// allowed.
pub(super) fn validate(
    needs: &Fields,
    claims: Option<&BTreeSet<&str>>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let nothing = super::context::no_fields();
    let (limits, requests) = (
        object(needs, "limits").unwrap_or(nothing),
        object(needs, "requests").unwrap_or(nothing),
    );
    let (at_limits, at_requests) = (at.field("limits"), at.field("requests"));
    for (name, limit) in limits {
        let at = at_limits.key(name);
        resource::container_name(name, &at, faults);
        resource::amount(name, limit, &at, faults);
        if is_huge_page(name) {
            whole_pages(name, limit, &at, faults);
        }
    }
    for (name, request) in requests {
        let at = at_requests.key(name);
        resource::container_name(name, &at, faults);
        resource::amount(name, request, &at, faults);
        match limits.get(name) {
            Some(limit) if amount(request) != amount(limit) && !is_overcommittable(name) => {
                let shown = limit.as_str().unwrap_or_default();
                faults.invalid(
                    &at_requests,
                    request,
                    format!("must be equal to {name} limit of {shown}"),
                );
            }
            Some(limit) if amount(request) > amount(limit) => {
                let shown = limit.as_str().unwrap_or_default();
                faults.invalid(
                    &at_requests,
                    request,
                    format!("must be less than or equal to {name} limit of {shown}"),
                );
            }
            None if !is_overcommittable(name) => {
                faults.required(
                    &at_limits,
                    "Limit must be set for non overcommitable resources",
                );
            }
            Some(_) | None => {}
        }
        if is_huge_page(name) {
            whole_pages(name, request, &at, faults);
        }
    }
    let all = || limits.keys().chain(requests.keys());
    if all().any(|name| is_huge_page(name)) && !all().any(|name| name == "cpu" || name == "memory")
    {
        faults.forbidden(at, "HugePages require cpu or memory");
    }
    if let Some(claims) = claims {
        used_claims(needs, claims, &at.field("claims"), faults);
    }
}

/// Validates requests and limits where claims are not allowed.
pub fn requirements(needs: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    validate(needs, None, at, faults);
}

/// The claims of a container must exist in the pod.
fn used_claims(needs: &Fields, known: &BTreeSet<&str>, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    // Claims of which a request is named.
    let mut parts: BTreeSet<&str> = BTreeSet::new();
    for (number, claim) in items(needs, "claims").iter().enumerate() {
        let Some(claim) = claim.as_object() else {
            continue;
        };
        let at = at.index(number);
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            faults.required(&at, "");
            continue;
        }
        let key = if request.is_empty() {
            name.to_owned()
        } else {
            format!("{name}/{request}")
        };
        if seen.contains(name) {
            faults.duplicate(&at, &Value::from(name));
        } else {
            if !request.is_empty() {
                formed(
                    get(claim, "request"),
                    &at.field("request"),
                    names::label,
                    faults,
                );
            }
            if seen.contains(&key) || (request.is_empty() && parts.contains(name)) {
                faults.duplicate(&at, &Value::from(key.as_str()));
            }
            if !request.is_empty() {
                parts.insert(name);
            }
            seen.insert(key);
        }
        if !known.contains(name) {
            faults.not_found_among(&at, &Value::from(name), ClaimNames(known));
        }
    }
}

/// The names that a claim of a container can have, for a message.
struct ClaimNames<'a>(&'a BTreeSet<&'a str>);

/// Names that a message shows.
const SHOWN: usize = 32;

impl fmt::Display for ClaimNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be one of the names in pod.spec.resourceClaims")?;
        if self.0.is_empty() {
            return f.write_str(" which is empty");
        }
        for (number, name) in self.0.iter().take(SHOWN).enumerate() {
            let before = if number == 0 { ": " } else { ", " };
            write!(f, "{before}{name}")?;
        }
        if self.0.len() > SHOWN {
            f.write_str(", …")?;
        }
        Ok(())
    }
}

/// Validates the pod's resource claims and returns their names.
pub(super) fn claims<'a>(
    spec: &'a Fields,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (number, claim) in items(spec, "resourceClaims").iter().enumerate() {
        let Some(claim) = claim.as_object() else {
            continue;
        };
        let at = at.index(number);
        let name = text(claim, "name");
        if known.contains(name) {
            faults.duplicate(&at.field("name"), get(claim, "name"));
        } else {
            needed_form(claim, "name", &at, names::label, faults);
        }
        if !name.is_empty() {
            known.insert(name);
        }
        let whole = Value::Object(claim.clone());
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|key| has(claim, key)).count() {
            0 => faults.invalid(&at, &whole, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => {}
            _ => faults.invalid(
                &at,
                &whole,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
        }
        for key in sources.into_iter().filter(|key| has(claim, key)) {
            formed(word(claim, key), &at.field(key), names::subdomain, faults);
        }
    }
    known
}

/// Whether a resource may be requested at pod level.
fn of_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

/// Validates the resources at pod level.
pub(super) fn of_pod(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(needs) = object(spec, "resources") else {
        return;
    };
    let at = at.field("resources");
    if has(needs, "claims") {
        faults.forbidden(
            &at.field("claims"),
            "claims cannot be set for Resources at pod-level",
        );
    }
    for list in ["limits", "requests"] {
        let place = at.field(list);
        for name in object(needs, list)
            .into_iter()
            .flat_map(serde_json::Map::keys)
            .filter(|name| !of_pods(name))
        {
            faults.unsupported(
                &place.key(name),
                &Value::from(name.as_str()),
                &["cpu", "hugepages-", "memory"],
            );
        }
    }
    // KEP-2837: what the pod has as a whole covers its containers.
    validate(needs, None, &at, faults);
    let requested = |name: &str| {
        object(needs, "requests")
            .and_then(|list| list.get(name))
            .map_or(Amount::ZERO, amount)
    };
    for (name, sum) in aggregate(spec).iter().filter(|(name, _)| of_pods(name)) {
        if *sum > requested(name) {
            let shown = sum.to_quantity().0;
            let words =
                format!("must be greater than or equal to aggregate container requests of {shown}");
            let value = object(needs, "requests")
                .and_then(|list| list.get(name))
                .cloned();
            faults.invalid(
                &at.field("requests").key(name),
                &value.unwrap_or_else(|| "0".into()),
                words,
            );
        }
    }
    let list = at.field("containers");
    for (number, container) in items(spec, "containers").iter().enumerate() {
        let limits = container
            .pointer("/resources/limits")
            .and_then(Value::as_object);
        for (name, limit) in limits.into_iter().flatten() {
            let Some(whole) = object(needs, "limits").and_then(|list| list.get(name)) else {
                continue;
            };
            if amount(limit) > amount(whole) {
                let place = list.index(number);
                let words = format!(
                    "must be less than or equal to pod limits of {}",
                    whole.as_str().unwrap_or_default()
                );
                // Upstream's path has the resource before the list.
                faults.invalid(&place.key(name).field("limits"), limit, words);
            }
        }
    }
}

/// The largest total of resources that containers request at the same time: the sum of main
/// containers and sidecars, or one init container with the sidecars before it if that is more.
pub fn aggregate(spec: &Fields) -> BTreeMap<String, Amount> {
    let requests = |container: &Value| -> Vec<(String, Amount)> {
        let list = container
            .pointer("/resources/requests")
            .and_then(Value::as_object);
        list.into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), amount(value)))
            .collect()
    };
    let mut sum: BTreeMap<String, Amount> = BTreeMap::new();
    for container in items(spec, "containers") {
        for (name, amount) in requests(container) {
            let own = sum.entry(name).or_insert(Amount::ZERO);
            *own = *own + amount;
        }
    }
    let mut beside: BTreeMap<String, Amount> = BTreeMap::new();
    let mut start: BTreeMap<String, Amount> = BTreeMap::new();
    for container in items(spec, "initContainers") {
        let sidecar = container
            .as_object()
            .is_some_and(super::context::is_sidecar);
        for (name, amount) in requests(container) {
            // The sidecars before an init container run beside it (KEP-753).
            let together = beside.get(&name).copied().unwrap_or(Amount::ZERO) + amount;
            if sidecar {
                beside.insert(name.clone(), together);
                let own = sum.entry(name.clone()).or_insert(Amount::ZERO);
                *own = *own + amount;
            }
            let own = start.entry(name).or_insert(Amount::ZERO);
            *own = (*own).max(together);
        }
    }
    for (name, amount) in start {
        let own = sum.entry(name).or_insert(Amount::ZERO);
        *own = (*own).max(amount);
    }
    sum
}
