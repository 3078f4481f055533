//! The choice of a volume for a claim.

use crate::claim::Claim;
use crate::volume::Volume;
use config_kube::label_selector;
use master_client::Key;
use std::collections::BTreeMap;

/// The node from which a volume must be reachable.
#[derive(Debug, Clone, Copy)]
pub enum ReachableFrom<'a> {
    /// For a claim that is bound at once: from anywhere.
    Anywhere,
    /// For a claim that waits for its first pod, before there is one: only a volume that is kept
    /// for it.
    Kept,
    /// For a pod on a node, by the node's name and labels.
    Node(&'a str, &'a BTreeMap<String, String>),
}

/// The best volume for a claim (upstream: `FindMatchingVolume`): the one that is kept for it; else,
/// of those that are available, one with the fewest access modes, and of these the smallest. Names
/// decide between equal ones.
///
/// Guarantees: the volume has all that the claim asks for, and is for no other claim.
pub fn best<'v>(
    key: &Key,
    claim: &Claim,
    volumes: impl Iterator<Item = (&'v str, &'v Volume)>,
    from: ReachableFrom<'_>,
) -> Option<&'v str> {
    let mut found: Option<(usize, config_kube::Amount, &str)> = None;
    for (name, volume) in volumes.filter(|(_, volume)| could(claim, volume)) {
        let reached = match from {
            ReachableFrom::Node(node, labels) => volume.is_reached(node, labels),
            ReachableFrom::Anywhere | ReachableFrom::Kept => true,
        };
        if volume.is_for(key, claim) {
            // It is this volume or none, so from elsewhere there is none.
            return reached.then_some(name);
        }
        let free = volume.claim.is_none() && volume.phase == "Available";
        let selector = claim.selector.as_ref();
        let selected =
            selector.is_none_or(|selector| label_selector::selects(selector, &volume.labels));
        let waits = matches!(from, ReachableFrom::Kept);
        if !free || !selected || !reached || waits || volume.class != claim.class_name() {
            continue;
        }
        let rank = (volume.modes.len(), volume.size, name);
        if found.is_none_or(|best| rank < best) {
            found = Some(rank);
        }
    }
    found.map(|(_, _, name)| name)
}

/// Whether a volume has what any volume of the claim must have.
fn could(claim: &Claim, volume: &Volume) -> bool {
    volume.size >= claim.size
        && volume.block == claim.block
        && volume.attributes == claim.attributes
        && !volume.leaving
        && has_modes(claim, volume)
}

fn has_modes(claim: &Claim, volume: &Volume) -> bool {
    claim.modes.iter().all(|mode| volume.modes.contains(mode))
}

/// Why a volume does not do for a claim that asks for it by name, in upstream's words.
pub fn fault(claim: &Claim, volume: &Volume) -> Option<&'static str> {
    let faults = [
        (volume.size < claim.size, "requested PV is too small"),
        (
            volume.class != claim.class_name(),
            "storageClassName does not match",
        ),
        (
            volume.attributes != claim.attributes,
            "volumeAttributesClassName does not match",
        ),
        (volume.block != claim.block, "incompatible volumeMode"),
        (!has_modes(claim, volume), "incompatible accessMode"),
    ];
    let mut faults = faults.into_iter();
    faults.find_map(|(there, text)| there.then_some(text))
}

#[cfg(test)]
mod tests;
