//! Discovery: groups, versions and resources, in the aggregated and the plain form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use master_schema::error::{ApiError, no_resource};
use master_schema::registry::{Kind, Registry, Subresource, Word};
use ring::digest;
use serde::Serialize;
use serde_json::{Value, json};

/// The answer to `/version`.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0+pratique", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
        "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
    })
}

/// A discovery document.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Document<'a> {
    /// Any document without an order of fields.
    Value(Value),
    /// The resources of one version.
    Resources(ResourceList<'a>),
}

/// The resources of one version, in upstream's order of fields: some scripts read them as text.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList<'a> {
    kind: &'static str,
    api_version: &'static str,
    group_version: String,
    resources: Vec<Resource<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    kind: &'a str,
    verbs: &'a [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'a [Word],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'a [Word],
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_version_hash: Option<String>,
}

/// Answers a path below `/api` or `/apis`.
///
/// # Errors
/// The path names no group or version.
pub fn answer<'a>(
    registry: &'a Registry,
    path: &str,
    aggregated: Option<&str>,
) -> Result<Document<'a>, ApiError> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments.as_slice() {
        ["api", version] => resources(registry, "", version),
        ["apis", group, version] => resources(registry, group, version),
        segments => named(registry, segments, aggregated).map(Document::Value),
    }
}

/// Lists groups and versions.
fn named(
    registry: &Registry,
    segments: &[&str],
    aggregated: Option<&str>,
) -> Result<Value, ApiError> {
    match (segments, aggregated) {
        (["api"], Some(version)) => Ok(aggregate(registry, version, true)),
        (["apis"], Some(version)) => Ok(aggregate(registry, version, false)),
        (["api"], None) => Ok(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        })),
        (["apis"], None) => {
            let groups: Vec<Value> = named_groups(registry)
                .map(|(name, versions)| group(name, &versions))
                .collect();
            Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        (["apis", name], _) => {
            let found = named_groups(registry)
                .find(|(group, _)| group == name)
                .ok_or_else(no_resource)?;
            let mut group = group(found.0, &found.1);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Ok(group)
        }
        _ => Err(no_resource()),
    }
}

fn named_groups(registry: &Registry) -> impl Iterator<Item = (&str, Vec<&str>)> {
    registry
        .groups()
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
}

fn group(name: &str, versions: &[&str]) -> Value {
    let version =
        |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// The resources of one version, in the plain form.
fn resources<'a>(
    registry: &'a Registry,
    group: &str,
    version: &str,
) -> Result<Document<'a>, ApiError> {
    let mut kinds = registry
        .kinds()
        .iter()
        .filter(|kind| kind.group == group && kind.version == version)
        .peekable();
    let Some(first) = kinds.peek() else {
        return Err(no_resource());
    };
    let group_version = first.api_version();
    let resources = kinds
        .flat_map(|kind| std::iter::once(whole(registry, kind)).chain(parts(kind)))
        .collect();
    Ok(Document::Resources(ResourceList {
        kind: "APIResourceList",
        api_version: "v1",
        group_version,
        resources,
    }))
}

fn whole<'a>(registry: &Registry, kind: &'a Kind) -> Resource<'a> {
    Resource {
        name: kind.plural.clone(),
        singular_name: &kind.singular,
        namespaced: kind.namespaced,
        group: "",
        version: "",
        kind: &kind.kind,
        verbs: kind.verbs(),
        short_names: &kind.short_names,
        categories: &kind.categories,
        storage_version_hash: kind
            .review
            .is_none()
            .then(|| storage_version(registry, kind)),
    }
}

/// A kind's subresources; those whose body is of another kind name that kind.
fn parts(kind: &Kind) -> impl Iterator<Item = Resource<'_>> {
    kind.subresources.iter().map(|sub| {
        let body = sub.body(&kind.kind);
        // Of the core group both are left out, as of the kind itself.
        let grouped = body.filter(|body| !body.group.is_empty());
        Resource {
            name: format!("{}/{}", kind.plural, sub.name()),
            singular_name: "",
            namespaced: kind.namespaced,
            group: grouped.map_or("", |body| body.group),
            version: grouped.map_or("", |body| body.version),
            kind: body.map_or(kind.kind.as_str(), |body| body.kind),
            verbs: sub.verbs(),
            short_names: &[],
            categories: &[],
            storage_version_hash: None,
        }
    })
}

/// The priority of the core group, above all others (upstream's number).
const FIRST: usize = 18_000;
/// The difference to the priority of the next group.
const STEP: usize = 100;

/// The APIServices of a server that serves all its groups by itself: one for each version of each
/// group except that of `own`, the kind APIService.
pub fn services(registry: &Registry, own: &Kind) -> Vec<Value> {
    let groups = registry.groups().into_iter();
    let groups = groups.filter(|(group, _)| *group != own.group).enumerate();
    let mut all = Vec::new();
    for (place, (group, versions)) in groups {
        for (order, version) in versions.into_iter().enumerate() {
            let available = json!({
                "type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
            });
            all.push(json!({
                "kind": own.kind, "apiVersion": own.api_version(),
                "metadata": {
                    "name": format!("{version}.{group}"), "creationTimestamp": null,
                    "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
                },
                "spec": {
                    "group": group, "version": version,
                    "groupPriorityMinimum": FIRST.saturating_sub(place * STEP),
                    "versionPriority": 15_usize.saturating_sub(order).max(1),
                },
                "status": {"conditions": [available]},
            }));
        }
    }
    all
}

/// Tells clients when the storage version changes: the start of a hash of the stored version's
/// name.
fn storage_version(registry: &Registry, kind: &Kind) -> String {
    let stored = registry
        .kinds()
        .iter()
        .find(|other| other.table == kind.table && other.stored_as_served());
    let (group, version, kind) = stored.map_or((&kind.group, &kind.version, &kind.kind), |kind| {
        (&kind.group, &kind.version, &kind.kind)
    });
    let hash = digest::digest(
        &digest::SHA256,
        format!("{group}/{version}/{kind}").as_bytes(),
    );
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}

/// All groups in one document (KEP-3352).
fn aggregate(registry: &Registry, form: &str, core: bool) -> Value {
    let groups = registry
        .groups()
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|version| {
                    let kinds = registry
                        .kinds()
                        .iter()
                        .filter(|k| k.group == group && k.version == version);
                    let resources: Vec<Value> = kinds.map(|kind| aggregated(kind)).collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"), "metadata": {},
        "items": items,
    })
}

fn aggregated(kind: &Kind) -> Value {
    let gvk = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let own = gvk(&kind.group, &kind.version, &kind.kind);
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|sub: &Subresource| {
            let body = sub.body(&kind.kind).map_or_else(
                || own.clone(),
                |body| gvk(body.group, body.version, body.kind),
            );
            json!({"subresource": sub.name(), "responseKind": body, "verbs": sub.verbs()})
        })
        .collect();
    let mut resource = json!({
        "resource": kind.plural, "responseKind": own, "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": kind.verbs(),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    if !subresources.is_empty() {
        resource["subresources"] = Value::Array(subresources);
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_version_has_upstreams_hash() {
        let registry = master_kinds::builtin::registry();
        let hash = |group: &str, version: &str, plural: &str| {
            storage_version(&registry, registry.find(group, version, plural).unwrap())
        };
        assert_eq!(hash("", "v1", "pods"), "xPOwRZ+Yhw8=");
        assert_eq!(
            hash("events.k8s.io", "v1", "events"),
            "r2yiGXH7wu8=",
            "stored as core/v1"
        );
        assert_eq!(
            hash("autoscaling", "v1", "horizontalpodautoscalers"),
            "qwQve8ut294=",
            "stored as v2"
        );
    }
}
