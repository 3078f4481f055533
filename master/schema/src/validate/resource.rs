//! Validation of resource names and quantities, of containers, quotas and limit ranges
//! (`core/validation`).

use super::forms::NOT_NEGATIVE;
use super::{Faults, FieldPath, names};
use crate::quantity::Quantity;
use serde_json::Value;

/// Resources that containers can request.
const OF_CONTAINERS: &[&str] = &["cpu", "memory", "ephemeral-storage"];
/// Further resources without a domain that a quota can limit by quantity.
const OF_QUOTAS: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// Objects that a quota can count.
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

/// Whether a resource is native: without a domain, or of upstream's domain.
pub fn is_native(name: &str) -> bool {
    // Upstream looks for the domain anywhere in the name.
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether it is a huge page resource.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether it is an extended resource, which quotas can count.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified(&format!("requests.{name}")).is_ok()
}

fn is_of_containers(name: &str) -> bool {
    OF_CONTAINERS.contains(&name) || is_huge_page(name)
}

/// Whether it is a resource without a domain that a quota can limit.
pub fn is_of_quotas(name: &str) -> bool {
    is_of_containers(name)
        || OF_QUOTAS.contains(&name)
        || COUNTED.contains(&name)
        || name.starts_with("requests.hugepages-")
}

/// Validates the name of a resource; returns whether further checks make sense.
pub fn name(name: &str, at: &FieldPath<'_>, faults: &mut Faults) -> bool {
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

/// Validates the name of a container's resource.
pub fn container_name(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
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

/// Validates the name of a quota's resource.
pub fn quota_name(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    if self::name(name, at, faults) && !name.contains('/') && !is_of_quotas(name) {
        faults.invalid(at, &name.into(), "must be a standard resource for quota");
    }
}

/// Validates a quantity of a resource; the schema has reported values that are none.
pub fn amount(name: &str, value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(found) = Quantity::read(value) else {
        return;
    };
    if found.is_negative() {
        faults.invalid(at, value, NOT_NEGATIVE);
    }
    // Objects and devices are counted: half of one cannot be granted.
    if (COUNTED.contains(&name) || is_extended(name)) && found.amount().ceil_milli() % 1000 != 0 {
        faults.invalid(at, value, NOT_WHOLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(check: impl Fn(&FieldPath<'_>, &mut Faults)) -> Vec<String> {
        let mut faults = Faults::default();
        check(&FieldPath::root("r"), &mut faults);
        faults
            .found()
            .map(|(_, _, message)| message.split(": ").last().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn names_are_validated_by_their_place() {
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
