//! Warnings of several kinds: deprecated fields, fields without effect, and surprising values.

use master_pods::podspec::{no_fields, warnings as pods};
use master_schema::object::spec;
use master_schema::object::{meta_text, metadata};
use master_schema::registry::Kind;
use master_schema::validate::forms::{has, number};
use master_schema::validate::{FieldPath, Fields, get, items, names, net, object, text};
use serde_json::Value;

type Warn = fn(&Fields, Option<&Fields>, &mut Vec<String>);

const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const OLD_INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const HINTS: &str = "service.kubernetes.io/topology-mode";

/// Sets the warnings in the descriptors.
pub(super) fn apply(kinds: &mut [Kind]) {
    for kind in kinds {
        let warn: Warn = match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Pod") => pod,
            ("", "PodTemplate") => |new, old, warnings| template(new, old, &["template"], warnings),
            ("", "ReplicationController")
            | ("apps", "Deployment" | "ReplicaSet")
            | ("batch", "Job") => |new, old, warnings| {
                name(new, old, "Pod names and hostnames", warnings);
                template(new, old, &["spec", "template"], warnings);
            },
            ("apps", "DaemonSet") => {
                |new, old, warnings| template(new, old, &["spec", "template"], warnings)
            }
            ("apps", "StatefulSet") => stateful_set,
            ("batch", "CronJob") => cron_job,
            ("", "Service") => service,
            ("", "PersistentVolume") => volume,
            ("", "PersistentVolumeClaim") => claim,
            ("networking.k8s.io", "Ingress") => ingress,
            ("networking.k8s.io", "NetworkPolicy") => network_policy,
            ("node.k8s.io", "RuntimeClass") => runtime_class,
            ("storage.k8s.io", "StorageClass") => storage_class,
            ("storage.k8s.io", "CSIStorageCapacity") => capacity,
            _ => continue,
        };
        kind.strategy.warn = warn;
    }
}

/// Warns if a new object's name cannot become part of host names.
fn name(new: &Fields, old: Option<&Fields>, of: &str, warnings: &mut Vec<String>) {
    if old.is_none()
        && let Err(fault) = names::label(meta_text(new, "name"))
    {
        warnings.push(format!(
            "metadata.name: this is used in {of}, which can result in surprising behavior; a DNS label is recommended: \
             [{fault}]"
        ));
    }
}

fn pod(new: &Fields, old: Option<&Fields>, warnings: &mut Vec<String>) {
    name(new, old, "the Pod's hostname", warnings);
    pods::of_pod(spec(new), metadata(new), warnings);
}

/// Warns about a pod template if it is new or its part of the object changed.
fn template(new: &Fields, old: Option<&Fields>, path: &[&str], warnings: &mut Vec<String>) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let found = path
        .iter()
        .try_fold(new, |fields, step| object(fields, step));
    // Who changes another part was warned when the template was written.
    if let Some(found) = found.filter(|_| old.is_none_or(|old| get(old, first) != get(new, first)))
    {
        below(&FieldPath::root(first), rest, &mut |at| {
            pods::of_template(found, at, warnings);
        });
    }
}

/// Calls with the path that the steps lead to.
fn below(at: &FieldPath<'_>, path: &[&str], call: &mut dyn FnMut(&FieldPath<'_>)) {
    match path.split_first() {
        None => call(at),
        Some((step, rest)) => below(&at.field(step), rest, call),
    }
}

fn stateful_set(new: &Fields, old: Option<&Fields>, warnings: &mut Vec<String>) {
    template(new, old, &["spec", "template"], warnings);
    let at = FieldPath::root("spec");
    let place = at.field("volumeClaimTemplates");
    for (index, claim) in items(spec(new), "volumeClaimTemplates").iter().enumerate() {
        if let Some(claim) = claim.get("spec").and_then(Value::as_object) {
            pods::claim_sizes(claim, &place.index(index), warnings);
        }
    }
    if number(spec(new), "revisionHistoryLimit") < 0 {
        let words =
            "a negative value retains all historical revisions; a value >= 0 is recommended";
        warnings.push(format!("spec.revisionHistoryLimit: {words}"));
    }
}

fn cron_job(new: &Fields, old: Option<&Fields>, warnings: &mut Vec<String>) {
    name(new, old, "Pod names and hostnames", warnings);
    template(
        new,
        old,
        &["spec", "jobTemplate", "spec", "template"],
        warnings,
    );
    if text(spec(new), "schedule").contains("TZ") {
        warnings.push(
            "CRON_TZ or TZ used in spec.schedule is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                .to_owned(),
        );
    }
}

fn annotation(fields: &Fields, key: &str) -> bool {
    object(metadata(fields), "annotations").is_some_and(|notes| notes.contains_key(key))
}

fn old_class(fields: &Fields, warnings: &mut Vec<String>) {
    if annotation(fields, OLD_CLASS) {
        let words = "deprecated since v1.8; use \"storageClassName\" attribute instead";
        warnings.push(format!("metadata.annotations[{OLD_CLASS}]: {words}"));
    }
}

fn volume(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    old_class(new, warnings);
    let (spec, at) = (spec(new), FieldPath::root("spec"));
    let required = object(spec, "nodeAffinity").and_then(|affinity| object(affinity, "required"));
    if let Some(selector) = required {
        let place = at.field("nodeAffinity");
        pods::node_selector(selector, &place.field("required"), warnings);
    }
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach \
             is to use dynamic provisioning."
                .to_owned(),
        );
    }
    warnings.extend(
        pods::old_volumes(spec).map(|(kind, words)| format!("{}: {words}", at.field(kind))),
    );
    pods::whole(
        object(spec, "capacity"),
        "storage",
        &at.field("capacity"),
        warnings,
    );
}

fn claim(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    old_class(new, warnings);
    pods::claim_sizes(spec(new), &FieldPath::root("spec"), warnings);
}

fn ingress(new: &Fields, old: Option<&Fields>, warnings: &mut Vec<String>) {
    if old.is_none() && annotation(new, OLD_INGRESS_CLASS) && !has(spec(new), "ingressClassName") {
        let words = "is deprecated, please use 'spec.ingressClassName' instead";
        warnings.push(format!("annotation {OLD_INGRESS_CLASS:?} {words}"));
    }
}

fn network_policy(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    let at = FieldPath::root("spec");
    for (list, peers) in [("ingress", "from"), ("egress", "to")] {
        let place = at.field(list);
        for (index, rule) in items(spec(new), list)
            .iter()
            .filter_map(Value::as_object)
            .enumerate()
        {
            let rule_at = place.index(index);
            let place = rule_at.field(peers);
            for (index, peer) in items(rule, peers).iter().enumerate() {
                let Some(block) = peer.get("ipBlock").and_then(Value::as_object) else {
                    continue;
                };
                let peer_at = place.index(index);
                let at = peer_at.field("ipBlock");
                warnings.extend(net::range_warning(text(block, "cidr"), &at.field("cidr")));
                let place = at.field("except");
                for (index, part) in items(block, "except").iter().enumerate() {
                    warnings.extend(net::range_warning(
                        part.as_str().unwrap_or_default(),
                        &place.index(index),
                    ));
                }
            }
        }
    }
}

fn runtime_class(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    let chosen =
        object(new, "scheduling").and_then(|scheduling| object(scheduling, "nodeSelector"));
    for words in chosen
        .unwrap_or(no_fields())
        .keys()
        .filter_map(|key| pods::old_label(key))
    {
        warnings.push(format!("scheduling.nodeSelector: {words}"));
    }
}

fn storage_class(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    let at = FieldPath::root("allowedTopologies");
    for (index, term) in items(new, "allowedTopologies")
        .iter()
        .filter_map(Value::as_object)
        .enumerate()
    {
        let at = at.index(index);
        let place = at.field("matchLabelExpressions");
        for (index, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let key = expression
                .get("key")
                .and_then(Value::as_str)
                .unwrap_or_default();
            warnings.extend(
                pods::old_label(key).map(|words| format!("{}: {words}", place.index(index))),
            );
        }
    }
}

fn capacity(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    let Some(topology) = object(new, "nodeTopology") else {
        return;
    };
    let at = FieldPath::root("nodeTopology");
    let place = at.field("matchExpressions");
    for (index, expression) in items(topology, "matchExpressions").iter().enumerate() {
        let key = expression
            .get("key")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let at = place.index(index);
        warnings.extend(
            pods::old_label(key).map(|words| format!("{}: {key} is {words}", at.field("key"))),
        );
    }
    let place = at.field("matchLabels");
    for key in object(topology, "matchLabels")
        .unwrap_or(no_fields())
        .keys()
    {
        warnings.extend(pods::old_label(key).map(|words| format!("{}: {words}", place.field(key))));
    }
}

/// Says what nodes of this cluster do not do for a service, though the API takes it.
fn not_served(new: &Fields, warnings: &mut Vec<String>) {
    let at = FieldPath::root("spec");
    let at = at.field("ports");
    for (index, port) in items(spec(new), "ports").iter().enumerate() {
        if text(port.as_object().unwrap_or(no_fields()), "protocol") == "SCTP" {
            let at = at.index(index);
            warnings.push(format!(
                "{}: nodes lead no SCTP to endpoints; connect to the pods' addresses instead",
                at.field("protocol")
            ));
        }
    }
    let mode = object(metadata(new), "annotations").map(|notes| text(notes, HINTS));
    if mode.is_some_and(|mode| mode.eq_ignore_ascii_case("auto")) {
        warnings.push(format!(
            "annotation {HINTS}: Auto has no effect here; use spec.trafficDistribution instead"
        ));
    }
}

fn service(new: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    not_served(new, warnings);
    let (spec, at) = (spec(new), FieldPath::root("spec"));
    if annotation(new, OLD_HINTS) {
        warnings.push(format!(
            "annotation {OLD_HINTS} is deprecated, please use {HINTS} instead"
        ));
    }
    let addresses = |key: &str, warnings: &mut Vec<String>| {
        let place = at.field(key);
        for (index, address) in items(spec, key).iter().enumerate() {
            warnings.extend(net::address_warning(
                address.as_str().unwrap_or_default(),
                &place.index(index),
            ));
        }
    };
    addresses("clusterIPs", warnings);
    let (kind, external) = (text(spec, "type"), !items(spec, "externalIPs").is_empty());
    let headless = kind == "ClusterIP" && text(spec, "clusterIP") == "None";
    if headless {
        let ignored = [
            ("loadBalancerIP", !text(spec, "loadBalancerIP").is_empty()),
            ("externalIPs", external),
            (
                "SessionAffinity",
                !matches!(text(spec, "sessionAffinity"), "" | "None"),
            ),
        ];
        warnings.extend(
            ignored
                .iter()
                .filter(|(_, set)| *set)
                .map(|(key, _)| format!("spec.{key} is ignored for headless services")),
        );
    }
    addresses("externalIPs", warnings);
    if external && !headless && kind != "ExternalName" {
        warnings.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .to_owned(),
        );
    }
    warnings.extend(net::address_warning(
        text(spec, "loadBalancerIP"),
        &at.field("loadBalancerIP"),
    ));
    let place = at.field("loadBalancerSourceRanges");
    for (index, range) in items(spec, "loadBalancerSourceRanges").iter().enumerate() {
        warnings.extend(net::range_warning(
            range.as_str().unwrap_or_default(),
            &place.index(index),
        ));
    }
    if external && kind == "ExternalName" {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings
            .push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        warnings.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""
                .to_owned(),
        );
    }
}
