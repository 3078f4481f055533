//! A machine's capacity, the requests of its pods, and the usage.

use super::facts::{Facts, Part};
use super::table::{Text, missing, row};
use super::units::{bytes, percent, processors};
use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{NodeStatus, Pod};
use master_schedule::{Resources, needed};

fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The table of resources; requests as the scheduler counts them.
pub(super) fn resources(text: &mut Text, facts: &Facts) {
    text.head("Resources");
    let status = facts.node.got().and_then(|node| node.status.as_ref());
    let empty = NodeStatus::default();
    let status = status.unwrap_or(&empty);
    let whole = Resources::of(status.capacity.as_ref());
    let free = Resources::of(status.allocatable.as_ref());
    let used = facts.used.got().map(|used| &used.node);
    let units = |number: Option<u64>| number.and_then(|number| i64::try_from(number).ok());
    let mut rows = vec![row(&["", "CAPACITY", "ALLOCATABLE", "REQUESTED", "USED"])];
    let living = facts.pods.got().map(|pods| {
        pods.iter()
            .filter(|pod| !is_over(pod))
            .collect::<Vec<&Pod>>()
    });
    for name in ["cpu", "memory", "ephemeral-storage", "pods"] {
        let show = if name == "cpu" {
            processors
        } else if name == "pods" {
            |amount: Amount| amount.to_string()
        } else {
            bytes
        };
        let limit = free.get(name);
        let shared = |amount: Amount| match percent(amount, limit) {
            Some(percent) => format!("{} ({percent}%)", show(amount)),
            None => show(amount),
        };
        let requested = living.as_ref().map(|living| {
            if name == "pods" {
                return Amount::units(i64::try_from(living.len()).unwrap_or(i64::MAX));
            }
            let each = living.iter();
            each.map(|pod| needed(pod).get(name))
                .fold(Amount::ZERO, |sum, one| sum + one)
        });
        let used = used.and_then(|used| match name {
            "cpu" => units(used.cpu.usage_nano_cores)
                // Rounded up to a thousandth.
                .map(|nanos| Amount::milli(nanos / 1_000_000 + i64::from(nanos % 1_000_000 > 0))),
            "memory" => units(used.memory.working_set_bytes).map(Amount::units),
            "ephemeral-storage" => units(used.fs.used_bytes).map(Amount::units),
            _ => None,
        });
        let shown = |all: &Resources| {
            let amount = all.get(name);
            if amount == Amount::ZERO {
                "-".to_owned()
            } else {
                show(amount)
            }
        };
        let known = |amount: Option<Amount>| amount.map_or_else(|| "-".to_owned(), shared);
        rows.push(vec![
            name.to_owned(),
            shown(&whole),
            shown(&free),
            known(requested),
            known(used),
        ]);
    }
    if facts.node.got().is_some() {
        text.table(&rows);
    } else {
        text.say("", "missing: the Node is not known");
    }
    if let Part::Missing(why) = &facts.used {
        text.say("  used", &missing(why));
    }
}
