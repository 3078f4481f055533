//! Which lists strategic merge patch merges, and by which key (upstream: `patchStrategy`, `patchMergeKey` tags).

/// How a patch's list meets the object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The patch's list replaces the object's.
    Atomic,
    /// Items are objects with this key, merged one by one.
    Key(&'static str),
    /// Items are plain values, each at most once.
    Set,
}

/// Definition (its last part), field, key (empty: a set), whether `retainKeys` is part of the strategy.
const TABLE: &[(&str, &str, &str, bool)] = &[
    ("ObjectMeta", "ownerReferences", "uid", false),
    ("ObjectMeta", "finalizers", "", false),
    ("PodSpec", "containers", "name", false),
    ("PodSpec", "initContainers", "name", false),
    ("PodSpec", "ephemeralContainers", "name", false),
    ("PodSpec", "volumes", "name", true),
    ("PodSpec", "imagePullSecrets", "name", false),
    ("PodSpec", "hostAliases", "ip", false),
    ("PodSpec", "topologySpreadConstraints", "topologyKey", false),
    ("PodSpec", "resourceClaims", "name", true),
    ("PodSpec", "schedulingGates", "name", false),
    ("Container", "env", "name", false),
    ("Container", "ports", "containerPort", false),
    ("Container", "volumeMounts", "mountPath", false),
    ("Container", "volumeDevices", "devicePath", false),
    ("EphemeralContainer", "env", "name", false),
    ("EphemeralContainer", "ports", "containerPort", false),
    ("EphemeralContainer", "volumeMounts", "mountPath", false),
    ("EphemeralContainer", "volumeDevices", "devicePath", false),
    ("PodStatus", "conditions", "type", false),
    ("PodStatus", "podIPs", "ip", false),
    ("PodStatus", "hostIPs", "ip", false),
    ("PodStatus", "resourceClaimStatuses", "name", true),
    ("NodeSpec", "podCIDRs", "", false),
    ("NodeStatus", "conditions", "type", false),
    ("NodeStatus", "addresses", "type", false),
    ("NamespaceStatus", "conditions", "type", false),
    ("ServiceAccount", "secrets", "name", false),
];

/// How a field of a definition of upstream's is merged.
pub fn merge(definition: &str, field: &str) -> Merge {
    match find(definition, field) {
        None => Merge::Atomic,
        Some(("", _)) => Merge::Set,
        Some((key, _)) => Merge::Key(key),
    }
}

/// Merge key (empty for a set) and whether `retainKeys` belongs to it.
pub fn find(definition: &str, field: &str) -> Option<(&'static str, bool)> {
    let own = definition.strip_prefix("io.k8s.")?.rsplit('.').next()?;
    TABLE.iter().find(|(name, known, ..)| *name == own && *known == field).map(|(_, _, key, retain)| (*key, *retain))
}
