//! Quota usage of a resource claim: the most devices of each class that it may be given.

use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

const OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// What a request for all devices that fit counts as: no claim is given more (upstream:
/// `AllocationResultsMaxSize`).
const MOST: i64 = 32;

pub(crate) fn tracks(resource: &str) -> bool {
    resource.ends_with(OF_CLASS)
}

pub(crate) fn usage(fields: &Fields) -> Quantities {
    let spec = object(fields, "spec").and_then(|spec| object(spec, "devices"));
    let requests = spec.map_or(&[][..], |devices| items(devices, "requests"));
    let mut used = Quantities::default();
    for request in requests.iter().filter_map(Value::as_object) {
        // One of the alternatives is given, and it is not known which.
        let mut most = Quantities::default();
        for one in items(request, "firstAvailable") {
            most.max(&one.as_object().map(devices).unwrap_or_default());
        }
        used.add(&most);
        used.add(&object(request, "exactly").map(devices).unwrap_or_default());
    }
    used
}

/// What one request, or one alternative of it, may be given.
fn devices(request: &Fields) -> Quantities {
    let count = match text(request, "allocationMode") {
        "ExactCount" => get(request, "count").as_i64().unwrap_or_default(),
        "All" => MOST,
        _ => 0,
    };
    let mut used = Quantities::default();
    let class = text(request, "deviceClassName");
    used.set(format!("{class}{OF_CLASS}"), Quantity::count(count));
    used
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    /// What a claim with these requests uses of quotas.
    fn used(requests: &Value) -> String {
        let claim = json!({"spec": {"devices": {"requests": requests}}});
        let fields = claim.as_object().unwrap();
        let kind = ("resource.k8s.io", "resourceclaims");
        crate::usage(kind.0, kind.1, fields, Timestamp::UNIX_EPOCH).to_string()
    }

    fn some(class: &str, count: i64) -> Value {
        json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count})
    }

    #[test]
    fn the_devices_of_each_class_are_counted() {
        const CLAIM: &str = "count/resourceclaims.resource.k8s.io=1";
        const GPU: &str = "gpu.deviceclass.resource.k8s.io/devices";
        assert_eq!(used(&json!([])), CLAIM);
        let both = json!([{"exactly": some("gpu", 2)}, {"exactly": some("gpu", 3)}]);
        assert_eq!(used(&both), format!("{CLAIM},{GPU}=5"));
        let all = json!([{"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]);
        assert_eq!(used(&all), format!("{CLAIM},{GPU}=32"));
    }

    #[test]
    fn of_alternatives_the_largest_of_each_class_counts() {
        let requests = json!([
            {"firstAvailable": [some("gpu", 1), some("gpu", 4), some("nic", 2)]},
            {"exactly": some("gpu", 1)},
        ]);
        assert_eq!(
            used(&requests),
            "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=5,\
             nic.deviceclass.resource.k8s.io/devices=2"
        );
    }

    #[test]
    fn only_claims_use_devices() {
        let tracks =
            |group, plural| crate::tracks(group, plural, "gpu.deviceclass.resource.k8s.io/devices");
        assert!(tracks("resource.k8s.io", "resourceclaims"));
        assert!(!tracks("", "pods") && !tracks("resource.k8s.io", "resourceclaimtemplates"));
    }
}
