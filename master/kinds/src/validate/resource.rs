//! Names and amounts of resources: what containers ask for, what quotas and limit ranges bound (`core/validation`).

use super::forms::NOT_NEGATIVE;
use super::{At, Faults, names};
use crate::quantity::Quantity;
use serde_json::Value;

/// Resources that containers can ask for.
const OF_CONTAINERS: &[&str] = &["cpu", "memory", "ephemeral-storage"];
/// Further resources without a domain that a quota can count, in parts.
const OF_QUOTAS: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// Objects that a quota can count, one by one.
const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const NOT_WHOLE: &str = "must be an integer";

/// Resources that are upstream's own: without a domain, or of its domain.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether it is a size of huge pages.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// A resource of somebody's own domain, which quotas can count.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified(&format!("requests.{name}")).is_ok()
}

fn is_of_containers(name: &str) -> bool {
    OF_CONTAINERS.contains(&name) || is_huge_page(name)
}

/// Whether it is a resource without a domain that a quota can count.
pub fn is_of_quotas(name: &str) -> bool {
    is_of_containers(name)
        || OF_QUOTAS.contains(&name)
        || COUNTED.contains(&name)
        || name.starts_with("requests.hugepages-")
}

/// Checks the name of a resource; whether the rest of it can be judged.
pub fn name(name: &str, at: &At<'_>, faults: &mut Faults) -> bool {
    if let Err(fault) = names::qualified(name) {
        faults.invalid(at, &name.into(), fault);
        return false;
    }
    if !name.contains('/') && !is_of_quotas(name) && name != "storage" {
        faults.invalid(
            at,
            &name.into(),
            "must be a standard resource type or fully qualified",
        );
    }
    true
}

/// Checks the name of a container's resource.
pub fn container_name(name: &str, at: &At<'_>, faults: &mut Faults) {
    if !self::name(name, at, faults) {
        return;
    }
    if !name.contains('/') {
        if !is_of_containers(name) {
            faults.invalid(
                at,
                &name.into(),
                "must be a standard resource for containers",
            );
        }
    } else if !is_native(name) && !is_extended(name) {
        faults.invalid(
            at,
            &name.into(),
            "doesn't follow extended resource name standard",
        );
    }
}

/// Checks the name of a quota's resource.
pub fn quota_name(name: &str, at: &At<'_>, faults: &mut Faults) {
    if self::name(name, at, faults) && !name.contains('/') && !is_of_quotas(name) {
        faults.invalid(at, &name.into(), "must be a standard resource for quota");
    }
}

/// Checks an amount of a resource; what is no quantity the schema told.
pub fn amount(name: &str, value: &Value, at: &At<'_>, faults: &mut Faults) {
    let Some(found) = Quantity::read(value) else {
        return;
    };
    if found.is_negative() {
        faults.invalid(at, value, NOT_NEGATIVE);
    }
    if (COUNTED.contains(&name) || is_extended(name)) && found.amount().ceil_milli() % 1000 != 0 {
        faults.invalid(at, value, NOT_WHOLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(check: impl Fn(&At<'_>, &mut Faults)) -> Vec<String> {
        let mut faults = Faults::default();
        check(&At::root("r"), &mut faults);
        faults
            .found()
            .map(|(_, _, message)| message.split(": ").last().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn names_are_judged_by_where_they_stand() {
        assert!(said(|at, faults| container_name("example.com/gpu", at, faults)).is_empty());
        assert!(said(|at, faults| container_name("hugepages-2Mi", at, faults)).is_empty());
        assert_eq!(
            said(|at, faults| container_name("widgets", at, faults)),
            [
                "must be a standard resource type or fully qualified",
                "must be a standard resource for containers"
            ]
        );
        assert_eq!(
            said(|at, faults| container_name("requests.example.com/gpu", at, faults)),
            ["doesn't follow extended resource name standard"]
        );
        for good in [
            "requests.example.com/gpu",
            "count/pods",
            "requests.hugepages-2Mi",
            "services.nodeports",
        ] {
            assert!(
                said(|at, faults| quota_name(good, at, faults)).is_empty(),
                "{good}"
            );
        }
        assert_eq!(
            said(|at, faults| quota_name("storage", at, faults)),
            ["must be a standard resource for quota"]
        );
    }

    #[test]
    fn things_are_counted_one_by_one_and_never_below_zero() {
        for (name, value, faults) in [
            ("pods", "1500m", vec![NOT_WHOLE]),
            ("example.com/gpu", "0.5", vec![NOT_WHOLE]),
            ("cpu", "0.5", vec![]),
            ("cpu", "-1", vec![NOT_NEGATIVE]),
        ] {
            assert_eq!(
                said(|at, faults| amount(name, &json!(value), at, faults)),
                faults,
                "{name} {value}"
            );
        }
    }
}
