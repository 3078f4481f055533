//! What objects use of a resource quota: pure, for admission and for whoever recounts.
//!
//! Every kind counts as `count/<plural>.<group>`; pods, claims and services also by what they ask for.

mod claim;
mod pod;
mod scope;
mod service;

pub use pod::{missing, peak, pod_limits, pod_requests};
pub use scope::Scope;

use crate::quantity::{Quantities, Quantity};
use crate::validate::{Fields, items, object, text};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;

/// Kinds whose objects no quota counts: they are made by the cluster itself.
const IGNORED: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];

/// Old names of counts, beside `count/…`.
const COUNTED: &[&str] = &[
    "configmaps",
    "secrets",
    "replicationcontrollers",
    "resourcequotas",
];

/// Whether a quota may count objects of a kind.
pub fn counts(group: &str, plural: &str) -> bool {
    !IGNORED.contains(&(group, plural))
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() {
        format!("count/{plural}")
    } else {
        format!("count/{plural}.{group}")
    }
}

/// What an object uses.
pub fn usage(group: &str, plural: &str, fields: &Fields, now: Timestamp) -> Quantities {
    let mut used = match (group, plural) {
        ("", "pods") => pod::usage(fields, now),
        ("", "persistentvolumeclaims") => claim::usage(fields),
        ("", "services") => service::usage(fields),
        _ => Quantities::default(),
    };
    used.set(count_name(group, plural), Quantity::count(1));
    if group.is_empty() && COUNTED.contains(&plural) {
        used.set(plural, Quantity::count(1));
    }
    used
}

/// Whether a resource that a quota limits is one that objects of a kind may use.
pub fn tracks(group: &str, plural: &str, resource: &str) -> bool {
    if resource == count_name(group, plural)
        || group.is_empty() && COUNTED.contains(&plural) && resource == plural
    {
        return true;
    }
    match (group, plural) {
        ("", "pods") => pod::tracks(resource),
        ("", "persistentvolumeclaims") => claim::tracks(resource),
        ("", "services") => service::tracks(resource),
        _ => false,
    }
}

/// A quota, as admission and the recount need it.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    /// Its name.
    pub name: String,
    /// What its spec allows.
    pub wanted: Quantities,
    /// What its status says is allowed.
    pub hard: Quantities,
    /// What its status says is used.
    pub used: Quantities,
    /// Which pods (and claims) it is about; all of them where there is no scope.
    pub scopes: Vec<Scope>,
}

impl Quota {
    /// Reads a `ResourceQuota`.
    pub fn read(fields: &Fields) -> Self {
        let empty = Fields::new();
        let spec = object(fields, "spec").unwrap_or(&empty);
        let status = object(fields, "status").unwrap_or(&empty);
        let plain = items(spec, "scopes")
            .iter()
            .filter_map(Value::as_str)
            .map(Scope::exists);
        let selector =
            object(spec, "scopeSelector").map_or(&[][..], |found| items(found, "matchExpressions"));
        Self {
            name: text(crate::object::metadata(fields), "name").to_owned(),
            wanted: Quantities::read(object(spec, "hard")),
            hard: Quantities::read(object(status, "hard")),
            used: Quantities::read(object(status, "used")),
            scopes: plain
                .chain(
                    selector
                        .iter()
                        .filter_map(Value::as_object)
                        .map(Scope::read),
                )
                .collect(),
        }
    }

    /// Names of the limits that objects of a kind may use up: those that are in force, and those that are wanted and not
    /// counted yet.
    pub fn concerned(&self, group: &str, plural: &str) -> Vec<&str> {
        let names: BTreeSet<&str> = self.hard.names().chain(self.wanted.names()).collect();
        names
            .into_iter()
            .filter(|name| tracks(group, plural, name))
            .collect()
    }

    /// Those of these limits of which nobody knows how much is used: nothing may be made under them until they are counted.
    pub fn uncounted<'a>(&self, limits: &[&'a str]) -> Vec<&'a str> {
        let known = |name: &str| self.hard.get(name).is_some() && self.used.get(name).is_some();
        limits.iter().copied().filter(|name| !known(name)).collect()
    }

    /// Whether the quota's scopes hold for an object.
    pub fn covers(&self, group: &str, plural: &str, fields: &Fields) -> bool {
        self.scopes
            .iter()
            .all(|scope| scope.covers(group, plural, fields))
    }

    /// Whether an object uses anything of what the quota limits.
    pub fn matches(&self, group: &str, plural: &str, fields: &Fields) -> bool {
        !self.concerned(group, plural).is_empty() && self.covers(group, plural, fields)
    }
}
