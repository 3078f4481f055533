//! QoS classes, which order evictions when a node runs short of a resource (upstream:
//! `ComputePodQOS`).

use super::resources::amount;
use config_kube::Amount;
use master_schema::validate::{Fields, items, object};
use serde_json::Value;
use std::collections::BTreeMap;

/// The resources that determine the class.
const DECIDING: [&str; 2] = ["cpu", "memory"];

/// Positive quantities of these resources.
fn deciding(list: Option<&Value>) -> impl Iterator<Item = (&'static str, Amount)> {
    DECIDING.into_iter().filter_map(move |name| {
        let found = amount(list?.get(name)?);
        // A request of zero counts as none.
        (found > Amount::ZERO).then_some((name, found))
    })
}

/// The QoS class of a pod.
pub fn class(spec: &Fields) -> &'static str {
    let mut requests: BTreeMap<&str, Amount> = BTreeMap::new();
    let mut limits: BTreeMap<&str, Amount> = BTreeMap::new();
    let mut limited = true;
    let mut count = |needs: Option<&Value>| {
        for (name, amount) in deciding(needs.and_then(|needs| needs.get("requests"))) {
            let own = requests.entry(name).or_insert(Amount::ZERO);
            *own = *own + amount;
        }
        let mut found = 0;
        for (name, amount) in deciding(needs.and_then(|needs| needs.get("limits"))) {
            let own = limits.entry(name).or_insert(Amount::ZERO);
            *own = *own + amount;
            found += 1;
        }
        limited &= found == DECIDING.len();
    };
    match object(spec, "resources") {
        // KEP-2837: what the pod names as a whole decides, whatever its containers name.
        Some(_whole) => count(spec.get("resources")),
        None => {
            // Init containers count, ephemeral ones have no resources.
            for container in items(spec, "containers")
                .iter()
                .chain(items(spec, "initContainers"))
            {
                count(container.get("resources"));
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    if limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}
