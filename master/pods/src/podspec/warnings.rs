//! Warnings for writers of pods and templates: deprecated fields, and fields without effect
//! (upstream: `pkg/api/pod/warnings.go`).

use super::annotations::{APP_ARMOR, SECCOMP_CONTAINER, SECCOMP_POD};
use super::context::{each_container, no_fields};
use master_schema::quantity::Quantity;
use master_schema::validate::forms::{has, number};
use master_schema::validate::{FieldPath, Fields, get, items, object, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Deprecated labels of nodes and their replacements.
const OLD_LABELS: &[(&str, &str)] = &[
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];
/// Annotations that nothing reads any more.
const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
/// Volume types that are removed or deprecated.
const OLD_VOLUMES: &[(&str, &str)] = &[
    (
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const NO_POD: &str = "a null labelSelector results in matching no pod";

/// The warning about a deprecated label of nodes.
pub fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS
        .iter()
        .find(|(label, _)| *label == key)
        .map(|(_, words)| *words)
}

/// The warnings about deprecated volume types.
pub fn old_volumes(source: &Fields) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    OLD_VOLUMES
        .iter()
        .copied()
        .filter(|(kind, _)| has(source, kind))
}

/// Warns about a pod.
pub fn of_pod(spec: &Fields, metadata: &Fields, warnings: &mut Vec<String>) {
    all(
        spec,
        metadata,
        &FieldPath::root("spec"),
        &FieldPath::root("metadata"),
        false,
        warnings,
    );
}

/// Warns about a template.
pub fn of_template(template: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let spec = object(template, "spec").unwrap_or(no_fields());
    let metadata = object(template, "metadata").unwrap_or(no_fields());
    all(
        spec,
        metadata,
        &at.field("spec"),
        &at.field("metadata"),
        true,
        warnings,
    );
}

fn all(
    spec: &Fields,
    metadata: &Fields,
    at: &FieldPath<'_>,
    meta: &FieldPath<'_>,
    template: bool,
    warnings: &mut Vec<String>,
) {
    let notes = object(metadata, "annotations").unwrap_or(no_fields());
    let notes_at = meta.field("annotations");
    nodes(spec, at, warnings);
    for (key, words) in OLD_ANNOTATIONS
        .iter()
        .filter(|(key, _)| notes.contains_key(*key))
    {
        warnings.push(format!("{}: {words}", notes_at.key(key)));
    }
    volumes(spec, at, warnings);
    twice(spec, "hostAliases", "ip", at, warnings);
    twice(spec, "imagePullSecrets", "name", at, warnings);
    for (index, secret) in items(spec, "imagePullSecrets")
        .iter()
        .filter_map(Value::as_object)
        .enumerate()
    {
        if text(secret, "name").is_empty() {
            let list = at.field("imagePullSecrets");
            warnings.push(format!(
                "{}: invalid empty name \"\"",
                list.index(index).field("name")
            ));
        }
    }
    fractions(object(spec, "overhead"), &at.field("overhead"), warnings);
    let security = object(spec, "securityContext").unwrap_or(no_fields());
    let profiles = Profiles {
        notes,
        notes_at: &notes_at,
        security,
        template,
    };
    profiles.pod(warnings);
    each_container(spec, at, |container, at| {
        profiles.container(container, warnings);
        let needs = object(container, "resources").unwrap_or(no_fields());
        let place = at.field("resources");
        for key in ["limits", "requests"] {
            fractions(object(needs, key), &place.field(key), warnings);
        }
        hidden(container, at, warnings);
    });
    ports(spec, at, warnings);
    if number(spec, "terminationGracePeriodSeconds") < 0 {
        let words = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.push(format!(
            "{}: {words}",
            at.field("terminationGracePeriodSeconds")
        ));
    }
    affinity(spec, at, warnings);
}

/// Where a pod's seccomp and AppArmor profiles come from: annotations were first, fields hold them
/// now.
struct Profiles<'a> {
    notes: &'a Fields,
    notes_at: &'a FieldPath<'a>,
    /// The pod's own security context.
    security: &'a Fields,
    /// AppArmor's annotations still count for a pod, whose fields show them; in a template they are
    /// old.
    template: bool,
}

impl Profiles<'_> {
    fn older(&self, key: &str, since: &str, field: &str) -> String {
        let place = self.notes_at.key(key);
        format!("{place}: {since}; use the \"{field}\" field instead")
    }

    fn pod(&self, warnings: &mut Vec<String>) {
        if !has(self.security, "seccompProfile") && self.notes.contains_key(SECCOMP_POD) {
            warnings.push(self.older(SECCOMP_POD, "non-functional in v1.27+", "seccompProfile"));
        }
    }

    fn container(&self, container: &Fields, warnings: &mut Vec<String>) {
        let own = object(container, "securityContext").unwrap_or(no_fields());
        let key = format!("{SECCOMP_CONTAINER}{}", text(container, "name"));
        if !has(own, "seccompProfile") && self.notes.contains_key(&key) {
            warnings.push(self.older(&key, "non-functional in v1.27+", "seccompProfile"));
        }
        let key = format!("{APP_ARMOR}{}", text(container, "name"));
        let has_field = has(self.security, "appArmorProfile") || has(own, "appArmorProfile");
        if self.template && !has_field && self.notes.contains_key(&key) {
            warnings.push(self.older(&key, "deprecated since v1.30", "appArmorProfile"));
        }
    }
}

/// Warns about node labels in a pod's selectors.
fn nodes(spec: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field("nodeSelector");
    for key in object(spec, "nodeSelector")
        .into_iter()
        .flat_map(Fields::keys)
    {
        warnings.extend(old_label(key).map(|words| format!("{}: {words}", place.key(key))));
    }
    let affinity = object(spec, "affinity").and_then(|affinity| object(affinity, "nodeAffinity"));
    let place = at.field("affinity");
    let place = place.field("nodeAffinity");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = affinity.and_then(|affinity| object(affinity, required)) {
        node_selector(selector, &place.field(required), warnings);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let place = place.field(preferred);
    for (index, term) in affinity
        .map_or(&[][..], |affinity| items(affinity, preferred))
        .iter()
        .enumerate()
    {
        if let Some(term) = term.get("preference").and_then(Value::as_object) {
            node_term(term, &place.index(index).field("preference"), warnings);
        }
    }
    let place = at.field("topologySpreadConstraints");
    for (index, spread) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let (at, Some(spread)) = (place.index(index), spread.as_object()) else {
            continue;
        };
        let key = text(spread, "topologyKey");
        warnings.extend(
            old_label(key).map(|words| format!("{}: {key} is {words}", at.field("topologyKey"))),
        );
        if !has(spread, "labelSelector") {
            warnings.push(format!("{}: {NO_POD}", at.field("labelSelector")));
        }
    }
}

/// Warns about node labels in a node selector.
pub fn node_selector(selector: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field("nodeSelectorTerms");
    for (index, term) in items(selector, "nodeSelectorTerms").iter().enumerate() {
        if let Some(term) = term.as_object() {
            node_term(term, &place.index(index), warnings);
        }
    }
}

fn node_term(term: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field("matchExpressions");
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let key = expression
            .get("key")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let at = place.index(index);
        warnings
            .extend(old_label(key).map(|words| format!("{}: {key} is {words}", at.field("key"))));
    }
}

fn volumes(spec: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field("volumes");
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let (at, Some(volume)) = (place.index(index), volume.as_object()) else {
            continue;
        };
        warnings.extend(old_volumes(volume).map(|(kind, words)| {
            // Upstream's path contains the field's own name.
            format!(
                "{}: {words}",
                at.field(if kind == "storageos" {
                    "storageOS"
                } else {
                    kind
                })
            )
        }));
        let template = volume
            .get("ephemeral")
            .and_then(|source| source.pointer("/volumeClaimTemplate/spec"));
        if let Some(claim) = template.and_then(Value::as_object) {
            let place = at.field("ephemeral");
            let place = place.field("volumeClaimTemplate");
            claim_sizes(claim, &place.field("spec"), warnings);
        }
    }
    beside_tokens(spec, &place, warnings);
}

/// Warns about sizes of a claim that are not whole bytes.
pub fn claim_sizes(claim: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let needs = object(claim, "resources").unwrap_or(no_fields());
    let place = at.field("resources");
    for key in ["requests", "limits"] {
        whole(object(needs, key), "storage", &place.field(key), warnings);
    }
}

/// The sources of a projected volume.
fn projected(volume: &Value) -> &[Value] {
    let sources = volume
        .get("projected")
        .and_then(|projected| projected.get("sources"));
    sources.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The path at which a source of a projected volume, of the type `kind`, has its only file.
fn path<'a>(source: &'a Value, kind: &str) -> Option<&'a str> {
    source.get(kind)?.get("path")?.as_str()
}

/// Warns about files of projected volumes at the path of a service account token.
fn beside_tokens(spec: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let volumes = items(spec, "volumes");
    let sources = volumes.iter().flat_map(projected);
    let tokens: BTreeSet<&str> = sources
        .filter_map(|source| path(source, "serviceAccountToken"))
        .collect();
    if tokens.is_empty() {
        return;
    }
    for (index, source) in volumes
        .iter()
        .enumerate()
        .flat_map(|(index, volume)| projected(volume).iter().map(move |source| (index, source)))
    {
        let volume = at.index(index);
        let place = volume.field("projected");
        let place = place.field("sources");
        for (key, word) in [
            ("configMap", "configMap"),
            ("secret", "secrets"),
            ("downwardAPI", "downwardAPI"),
        ] {
            let place = place.field(word);
            let files = source
                .get(key)
                .and_then(|source| source.get("items"))
                .and_then(Value::as_array);
            for (index, file) in files.into_iter().flatten().enumerate() {
                let path = file.get("path").and_then(Value::as_str).unwrap_or_default();
                if tokens.contains(path) {
                    warnings.push(format!(
                        "{}: has duplicated path with ServiceAccountToken {path:?}",
                        place.index(index)
                    ));
                }
            }
        }
        let path = path(source, "clusterTrustBundle").unwrap_or_default();
        if tokens.contains(path) {
            let place = place.field("ClusterTrustBundle");
            warnings.push(format!(
                "{place}: has duplicated path with ServiceAccountToken {path:?}"
            ));
        }
    }
}

/// Warns about items of a list with the same key.
fn twice(spec: &Fields, list: &str, key: &str, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field(list);
    let mut known = BTreeSet::new();
    for (index, item) in items(spec, list).iter().enumerate() {
        let value = item.get(key).and_then(Value::as_str).unwrap_or_default();
        if !known.insert(value) {
            warnings.push(format!(
                "{}: duplicate {key} {value:?}",
                place.index(index).field(key)
            ));
        }
    }
}

/// Warns about memory and storage that are not whole bytes.
fn fractions(amounts: Option<&Fields>, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        whole(amounts, name, at, warnings);
    }
}

/// Warns about a quantity that is not an integer.
pub fn whole(amounts: Option<&Fields>, name: &str, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let found = amounts.and_then(|amounts| Quantity::read(get(amounts, name)));
    if let Some(amount) = found.filter(|amount| amount.amount().ceil_milli() % 1000 != 0) {
        let shown = amount.to_string();
        warnings.push(format!(
            "{}: fractional byte value {shown:?} is invalid, must be an integer",
            at.key(name)
        ));
    }
}

/// Warns about variables that are defined twice, unless the second refers to the first.
fn hidden(container: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let place = at.field("env");
    let mut known = BTreeSet::new();
    for (index, variable) in items(container, "env")
        .iter()
        .filter_map(Value::as_object)
        .enumerate()
    {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        let own = format!("$({name})");
        // A value such as `/opt:$(PATH)` builds on the earlier one, and is meant so.
        if !known.insert(name)
            && (has(variable, "valueFrom") || value == own || !value.contains(&own))
        {
            let words = format!(
                "hides previous definition of {name:?}, which may be dropped when using apply"
            );
            warnings.push(format!("{}: {words}", place.index(index)));
        }
    }
}

/// A port that a container names.
struct NamedPort {
    place: String,
    ip: String,
    host: i64,
}

/// Warnings beyond which no more are made of pairs of ports: an answer has 20.
const MAX_OF_PAIRS: usize = 100;

/// Warns about ports that several containers name.
fn ports(spec: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    // By number and protocol: ports with others have nothing to do with each other.
    let mut known: BTreeMap<(i64, String), Vec<NamedPort>> = BTreeMap::new();
    each_container(spec, at, |container, at| {
        let place = at.field("ports");
        for (index, port) in items(container, "ports")
            .iter()
            .filter_map(Value::as_object)
            .enumerate()
        {
            let own = place.index(index).to_string();
            let (ip, host) = (text(port, "hostIP"), number(port, "hostPort"));
            let (container, protocol) = (number(port, "containerPort"), text(port, "protocol"));
            if !ip.is_empty() && host == 0 {
                let name = text(port, "name");
                let shown = format!(
                    "{{Name:{name} HostPort:{host} ContainerPort:{container} Protocol:{protocol} HostIP:{ip}}}"
                );
                warnings.push(format!("{own}: hostIP set without hostPort: {shown}"));
            }
            let alike = known.entry((container, protocol.to_owned())).or_default();
            for other in &*alike {
                if warnings.len() >= MAX_OF_PAIRS {
                    break;
                }
                let how = if (ip, host) == (&*other.ip, other.host) {
                    "duplicate"
                } else if host == 0 || other.host == 0 {
                    "overlapping"
                } else if host == other.host && ip.is_empty() != other.ip.is_empty() {
                    // One of the two takes the port at all addresses of the node.
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                let place = &other.place;
                warnings.push(format!("{own}: {how} port definition with {place}"));
            }
            alike.push(NamedPort {
                place: own,
                ip: ip.to_owned(),
                host,
            });
        }
    });
}

/// Warns about affinity terms without a selector.
fn affinity(spec: &Fields, at: &FieldPath<'_>, warnings: &mut Vec<String>) {
    let Some(affinity) = object(spec, "affinity") else {
        return;
    };
    let place = at.field("affinity");
    for key in ["podAffinity", "podAntiAffinity"] {
        let Some(own) = object(affinity, key) else {
            continue;
        };
        let place = place.field(key);
        let lists = [
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            (
                "preferredDuringSchedulingIgnoredDuringExecution",
                "podAffinityTerm",
            ),
        ];
        for (list, inner) in lists {
            let place = place.field(list);
            for (index, term) in items(own, list)
                .iter()
                .filter_map(Value::as_object)
                .enumerate()
            {
                let at = place.index(index);
                let weighted = at.field(inner);
                let (term, at) = if inner.is_empty() {
                    (Some(term), &at)
                } else {
                    (object(term, inner), &weighted)
                };
                if term.is_some_and(|term| !has(term, "labelSelector")) {
                    warnings.push(format!("{}: {NO_POD}", at.field("labelSelector")));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn warnings(pod: &Value) -> Vec<String> {
        let of = |key: &str| pod[key].as_object().cloned().unwrap_or_default();
        let mut warnings = Vec::new();
        of_pod(&of("spec"), &of("metadata"), &mut warnings);
        warnings
    }

    #[test]
    fn deprecated_fields_have_upstreams_warnings() {
        let pod = json!({
            "metadata": {"annotations": {"scheduler.alpha.kubernetes.io/critical-pod": "", SECCOMP_POD: "x"}},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "volumes": [{"name": "a", "gitRepo": {}}, {"name": "b", "storageos": {}}],
                "topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}],
                "affinity": {
                    "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference":
                        {"matchExpressions": [{"key": "node-role.kubernetes.io/master"}]}}]},
                    "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {}}]},
                },
                "terminationGracePeriodSeconds": -1,
            },
        });
        assert_eq!(
            warnings(&pod),
            [
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.\
                 matchExpressions[0].key: node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" \
                 instead",
                "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since \
                 v1.17; use \"topology.kubernetes.io/zone\" instead",
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
                "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \
                 \"priorityClassName\" field instead",
                "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
                "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
                "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \
                 \"seccompProfile\" field instead",
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.\
                 labelSelector: a null labelSelector results in matching no pod",
            ]
        );
    }

    #[test]
    fn odd_container_settings_cause_warnings() {
        let port = |port: i64, host: i64, ip: &str| json!({"containerPort": port, "protocol": "TCP", "hostPort": host, "hostIP": ip});
        let pod = json!({"spec": {
            "containers": [
                {"name": "a", "ports": [port(80, 0, ""), port(81, 81, "1.1.1.1"), port(82, 0, "1.1.1.1")],
                 "env": [{"name": "X", "value": "1"}, {"name": "X", "value": "$(X)2"}, {"name": "X", "value": "3"}],
                 "resources": {"limits": {"memory": "1500m", "cpu": "1500m"}}},
                {"name": "b", "ports": [port(80, 0, ""), port(81, 81, "")]},
            ],
            "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}],
        }});
        assert_eq!(
            warnings(&pod),
            [
                "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                "spec.imagePullSecrets[2].name: invalid empty name \"\"",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[0].env[2]: hides previous definition of \"X\", which may be dropped when using apply",
                "spec.containers[0].ports[2]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:82 Protocol:TCP \
                 HostIP:1.1.1.1}",
                "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[1]",
            ]
        );
    }

    /// Each pair of a thousand ports could have a warning, of which an answer shows a few.
    #[test]
    fn pairs_of_many_ports_cause_a_bounded_number_of_warnings() {
        let port = json!({"containerPort": 80, "protocol": "TCP"});
        let ports = vec![port; 1000];
        let pod = json!({"spec": {"containers": [{"name": "a", "ports": ports}]}});
        assert_eq!(warnings(&pod).len(), MAX_OF_PAIRS);
    }
}
