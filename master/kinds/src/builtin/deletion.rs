//! Kinds whose deletion differs from the default in its answer or in what happens to dependents.

use master_schema::registry::{Dependents, Kind};

/// Kinds whose deletion answers with the object (upstream: `ReturnDeletedObject`), by group and
/// plural.
const RETURNED: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "pods"),
    ("", "podtemplates"),
    ("", "resourcequotas"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourceclaimtemplates"),
    ("resource.k8s.io", "resourceslices"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattachments"),
    ("storage.k8s.io", "volumeattributesclasses"),
];

/// Kinds whose dependents are orphaned or not tracked, by group and plural.
// Upstream keeps the former for older clients, which deleted pods themselves.
const DEPENDENTS: &[(&str, &str, Dependents)] = &[
    ("", "replicationcontrollers", Dependents::Orphaned),
    ("batch", "jobs", Dependents::Orphaned),
    ("", "events", Dependents::Untracked),
    ("events.k8s.io", "events", Dependents::Untracked),
];

/// Sets it in the descriptors.
pub(super) fn apply(kinds: &mut [Kind]) {
    for kind in kinds {
        let is = |group: &str, plural: &str| kind.group == group && kind.plural == plural;
        kind.strategy.returns_deleted = RETURNED.iter().any(|(group, plural)| is(group, plural));
        if let Some((.., dependents)) = DEPENDENTS
            .iter()
            .find(|(group, plural, _)| is(group, plural))
        {
            kind.strategy.dependents = *dependents;
        }
    }
}
