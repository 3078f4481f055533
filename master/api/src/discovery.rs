//! Discovery: which groups, versions and resources there are, in the aggregated and the plain form.

use crate::error::ApiError;
use crate::registry::{Kind, Registry, Subresource};
use crate::verbs::no_resource;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use serde_json::{Value, json};

/// The version that is spoken.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0+pratique", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
        "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
    })
}

/// Answers a path below `/api` or `/apis`.
pub(crate) fn answer(registry: &Registry, path: &str, aggregated: Option<&str>) -> Result<Value, ApiError> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (segments.as_slice(), aggregated) {
        (["api"], Some(version)) => Ok(aggregate(registry, version, true)),
        (["apis"], Some(version)) => Ok(aggregate(registry, version, false)),
        (["api"], None) => Ok(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        })),
        (["apis"], None) => {
            let groups: Vec<Value> = named_groups(registry).map(|(name, versions)| group(name, &versions)).collect();
            Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        (["apis", name], _) => {
            let found = named_groups(registry).find(|(group, _)| group == name).ok_or_else(no_resource)?;
            let mut group = group(found.0, &found.1);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Ok(group)
        }
        (["api", version], _) => resources(registry, "", version),
        (["apis", group, version], _) => resources(registry, group, version),
        _ => Err(no_resource()),
    }
}

fn named_groups(registry: &Registry) -> impl Iterator<Item = (&str, Vec<&str>)> {
    registry.groups().into_iter().filter(|(group, _)| !group.is_empty())
}

fn group(name: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// One version's resources, in the plain form.
fn resources(registry: &Registry, group: &str, version: &str) -> Result<Value, ApiError> {
    let kinds: Vec<_> = registry.kinds().iter().filter(|kind| kind.group == group && kind.version == version).collect();
    let Some(first) = kinds.first() else { return Err(no_resource()) };
    let mut list = Vec::new();
    for kind in &kinds {
        let mut resource = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": kind.verbs(),
        });
        if kind.review.is_none() {
            resource["storageVersionHash"] = storage_version(registry, kind).into();
        }
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        list.push(resource);
        list.extend(kind.subresources.iter().map(|sub| {
            let mut resource = json!({
                "name": format!("{}/{}", kind.plural, sub.name()), "singularName": "", "namespaced": kind.namespaced,
                "kind": sub.body(&kind.kind).map_or(kind.kind.as_str(), |(_, _, body)| body), "verbs": sub.verbs(),
            });
            if let Some((group, version, _)) = sub.body(&kind.kind).filter(|(group, _, _)| !group.is_empty()) {
                resource["group"] = group.into();
                resource["version"] = version.into();
            }
            resource
        }));
    }
    Ok(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(), "resources": list,
    }))
}

/// Tells clients when objects are stored in another version: the beginning of a hash of the stored version's name.
fn storage_version(registry: &Registry, kind: &Kind) -> String {
    let stored = registry.kinds().iter().find(|other| other.table == kind.table && other.stored_as_served());
    let (group, version, kind) =
        stored.map_or((&kind.group, &kind.version, &kind.kind), |kind| (&kind.group, &kind.version, &kind.kind));
    let hash = digest::digest(&digest::SHA256, format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}

/// All groups at once (KEP 3352).
fn aggregate(registry: &Registry, form: &str, core: bool) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|version| {
                    let kinds = registry.kinds().iter().filter(|k| k.group == group && k.version == version);
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
            let body =
                sub.body(&kind.kind).map_or_else(|| own.clone(), |(group, version, kind)| gvk(group, version, kind));
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
    fn the_stored_version_is_told_by_upstreams_hash() {
        let registry = Registry::new(crate::kinds::all());
        let hash = |group: &str, version: &str, plural: &str| {
            storage_version(&registry, registry.find(group, version, plural).unwrap())
        };
        assert_eq!(hash("", "v1", "pods"), "xPOwRZ+Yhw8=");
        assert_eq!(hash("events.k8s.io", "v1", "events"), "r2yiGXH7wu8=", "stored as core/v1");
        assert_eq!(hash("autoscaling", "v1", "horizontalpodautoscalers"), "qwQve8ut294=", "stored as v2");
    }
}
