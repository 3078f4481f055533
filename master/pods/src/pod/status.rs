//! The status subresource of pods: which changes a kubelet may write.

use super::{keep, spec};
use crate::podspec::{self, is_sidecar};
use master_schema::validate::forms::{formed, number, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, names, net, object, object_mut, text,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

const GENERATION: &str = "observedGeneration";

/// A status without QoS class or observed generation keeps the old one, its conditions too
/// (upstream: `preserveOldObservedGeneration`).
pub(super) fn compose(result: &mut Fields, old: &Fields) {
    let before = object(old, "status").unwrap_or(podspec::no_fields());
    let Some(status) = object_mut(result, "status") else {
        return;
    };
    if text(status, "qosClass").is_empty() {
        keep(status, before, "qosClass");
    }
    if number(status, GENERATION) == 0 {
        keep(status, before, GENERATION);
    }
    // Several conditions of one type are allowed: the first has that of the first.
    let mut known: BTreeMap<&str, Vec<&Fields>> = BTreeMap::new();
    for condition in items(before, "conditions").iter().rev() {
        if let Some(condition) = condition.as_object() {
            let of_type = known.entry(text(condition, "type")).or_default();
            of_type.push(condition);
        }
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let Some(condition) = condition.as_object_mut() else {
            continue;
        };
        let before = known.get_mut(text(condition, "type")).and_then(Vec::pop);
        if let Some(before) = before
            && number(condition, GENERATION) == 0
        {
            keep(condition, before, GENERATION);
        }
    }
}

/// Validates a change of the status.
pub(super) fn validate(new: &Fields, old: &Fields, faults: &mut Faults) {
    let nothing = podspec::no_fields();
    let own = spec(old);
    let (new, old) = (
        object(new, "status").unwrap_or(nothing),
        object(old, "status").unwrap_or(nothing),
    );
    let at = FieldPath::root("status");
    conditions(new, faults);
    let nominated = text(new, "nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "nominatedNodeName") {
        formed(
            get(new, "nominatedNodeName"),
            &at.field("nominatedNodeName"),
            names::subdomain,
            faults,
        );
    }
    if !text(old, "qosClass").is_empty() {
        faults.immutable(
            &at.field("qosClass"),
            get(new, "qosClass"),
            get(old, "qosClass"),
        );
    }
    let policy = text(own, "restartPolicy");
    for (list, policy) in [
        ("containerStatuses", policy),
        ("initContainerStatuses", policy),
        // They are never restarted (KEP-277).
        ("ephemeralContainerStatuses", "Never"),
    ] {
        transitions(
            items(new, list),
            items(old, list),
            policy,
            own,
            &at.field(list),
            faults,
        );
    }
    claims(new, own, &at.field("resourceClaimStatuses"), faults);
    addresses(new, &at, faults);
}

/// Condition types that are not upstream's own are qualified names; upstream reports them below the
/// metadata.
fn conditions(status: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("metadata");
    let at = at.field("conditions");
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let Some(condition) = condition.as_object() else {
            continue;
        };
        if !matches!(
            text(condition, "type"),
            "PodScheduled" | "Ready" | "Initialized"
        ) {
            formed(
                word(condition, "type"),
                &at.index(index).field("Type"),
                names::qualified,
                faults,
            );
        }
    }
}

/// Containers that ended and are not restarted must stay terminated.
fn transitions(
    new: &[Value],
    old: &[Value],
    policy: &str,
    spec: &Fields,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    // Such containers come back, however they ended.
    if policy == "Always" || may_restart_all(spec) {
        return;
    }
    let restarting = restarting(spec);
    let alive = new.iter();
    let alive: HashSet<Option<&Value>> = alive
        .filter(|after| after.pointer("/state/terminated").is_none())
        .map(|after| after.get("name"))
        .collect();
    for (index, before) in old.iter().enumerate() {
        let Some(ended) = before.pointer("/state/terminated") else {
            continue;
        };
        let name = before.get("name");
        let failed = ended.get("exitCode").and_then(Value::as_i64) != Some(0);
        if (failed && policy == "OnFailure") || restarting.contains(&name) {
            continue;
        }
        if alive.contains(&name) {
            faults.forbidden(
                &at.index(index).field("state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

/// The names of the containers that have a restart policy of their own that restarts them.
fn restarting(spec: &Fields) -> HashSet<Option<&Value>> {
    let of = |list| items(spec, list).iter().filter_map(Value::as_object);
    let restarts = |container: &&Fields| {
        is_sidecar(container)
            || text(container, "restartPolicy") == "OnFailure"
            || !items(container, "restartPolicyRules").is_empty()
    };
    let containers = of("initContainers").chain(of("containers"));
    containers
        .filter(restarts)
        .map(|container| container.get("name"))
        .collect()
}

/// Whether the rule of some container can start all of them anew.
fn may_restart_all(spec: &Fields) -> bool {
    let of = |list| items(spec, list).iter().filter_map(Value::as_object);
    of("initContainers")
        .chain(of("containers"))
        .flat_map(|container| items(container, "restartPolicyRules"))
        .any(|rule| rule.get("action") == Some(&Value::from("RestartAllContainers")))
}

fn claims(status: &Fields, spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let known = items(spec, "resourceClaims").iter();
    let known: HashSet<Option<&Value>> = known.map(|known| known.get("name")).collect();
    let mut seen = BTreeSet::new();
    for (index, claim) in items(status, "resourceClaimStatuses").iter().enumerate() {
        let Some(claim) = claim.as_object() else {
            continue;
        };
        let at = at.index(index);
        let name = text(claim, "name");
        if !known.contains(&claim.get("name")) {
            let words = "must match the name of an entry in `spec.resourceClaims`";
            faults.invalid(&at.field("name"), word(claim, "name"), words);
        }
        if !seen.insert(name) {
            faults.duplicate(&at.field("name"), word(claim, "name"));
        }
        master_schema::validate::forms::optional_form(
            claim,
            "resourceClaimName",
            &at,
            names::subdomain,
            faults,
        );
    }
}

/// The addresses of pod and host: one per family.
fn addresses(status: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // `podIP` and `podIPs` are one field inside upstream, which does not compare them.
    for (list, first) in [("podIPs", ""), ("hostIPs", "hostIP")] {
        let place = at.field(list);
        let all = items(status, list);
        if let Some(ip) = all.first().and_then(|first| first.get("ip"))
            && !first.is_empty()
            && ip != get(status, first)
        {
            faults.invalid(&place.index(0).field("ip"), ip, "must be equal to `hostIP`");
        }
        let mut families = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, entry) in all.iter().enumerate() {
            let Some(entry) = entry.as_object() else {
                continue;
            };
            if let Some(address) = net::address(word(entry, "ip"), &place.index(index), faults) {
                families.push(address.is_ipv6());
            }
            if !seen.insert(text(entry, "ip")) {
                faults.duplicate(&place.index(index), &Value::Object(entry.clone()));
            }
        }
        families.sort_unstable();
        // Two addresses mean one of each family (KEP-563).
        let dual = matches!(families.as_slice(), [false, true]);
        if all.len() > 1 && !dual {
            let words = "may specify no more than one IP for each IP family";
            faults.invalid(&place, get(status, list), words);
        }
    }
}
