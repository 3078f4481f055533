//! A rule, and whether it allows a request.

use serde::{Deserialize, Deserializer, Serialize};

/// A rule of a role (upstream: `PolicyRule`). Rules only allow, they never forbid.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// API groups; `*` matches all, the empty string is the core group.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub api_groups: Vec<String>,
    /// Paths that are not resources; a `*` at the end matches any rest.
    #[serde(
        rename = "nonResourceURLs",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "list"
    )]
    pub non_resource_urls: Vec<String>,
    /// Names of objects; an empty list matches all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resource_names: Vec<String>,
    /// Resources and subresources (`pods/log`); `*` matches all, `*/scale` that subresource of all
    /// resources.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resources: Vec<String>,
    /// Verbs; `*` matches all.
    #[serde(deserialize_with = "list")]
    pub verbs: Vec<String>,
}

/// A list that may be null in JSON.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The user of a request.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// The user's name.
    pub name: &'a str,
    /// The groups.
    pub groups: &'a [String],
}

/// The resource of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resource<'a> {
    /// API group.
    pub group: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Subresource; empty for the object itself.
    pub subresource: &'a str,
    /// Namespace; empty for the whole cluster.
    pub namespace: &'a str,
    /// Name; empty if the request names no single object.
    pub name: &'a str,
}

/// A request, as RBAC reads it.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// A verb on a resource.
    Resource(&'a str, Resource<'a>),
    /// A verb on a path that is not a resource.
    Path(&'a str, &'a str),
}

impl Request<'_> {
    /// The namespace of the request; empty for the whole cluster.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Resource(_, resource) => resource.namespace,
            Self::Path(..) => "",
        }
    }
}

fn any_or(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

impl Rule {
    /// Whether the rule allows a request.
    pub fn allows(&self, request: &Request<'_>) -> bool {
        match request {
            Request::Resource(verb, wanted) => {
                any_or(&self.verbs, verb)
                    && any_or(&self.api_groups, wanted.group)
                    && self.has_resource(wanted.resource, wanted.subresource)
                    && self.has_name(wanted.name)
            }
            Request::Path(verb, path) => any_or(&self.verbs, verb) && self.has_path(path),
        }
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|known| {
            if known == "*" {
                return true;
            }
            if subresource.is_empty() {
                return known == resource;
            }
            let Some((left, right)) = known.split_once('/') else {
                return false;
            };
            right == subresource && (left == "*" || left == resource)
        })
    }

    fn has_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || self.resource_names.iter().any(|known| known == name)
    }

    fn has_path(&self, path: &str) -> bool {
        self.non_resource_urls
            .iter()
            .any(|known| match known.strip_suffix('*') {
                Some(start) => path.starts_with(start.trim_end_matches('*')),
                None => known == path,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: serde_json::Value) -> Rule {
        serde_json::from_value(value).unwrap()
    }

    fn asks<'a>(verb: &'a str, group: &'a str, path: &'a str, name: &'a str) -> Request<'a> {
        let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
        Request::Resource(
            verb,
            Resource {
                group,
                resource,
                subresource,
                namespace: "n",
                name,
            },
        )
    }

    #[test]
    fn rules_allow_what_they_list_and_nothing_else() {
        let pods = rule(
            json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}),
        );
        assert!(pods.allows(&asks("get", "", "pods", "a")));
        assert!(pods.allows(&asks("get", "", "pods/log", "a")));
        for (verb, group, path) in [
            ("delete", "", "pods"),
            ("get", "apps", "pods"),
            ("get", "", "pods/exec"),
            ("get", "", "secrets"),
            ("get", "", "log"),
        ] {
            assert!(
                !pods.allows(&asks(verb, group, path, "a")),
                "{verb} {group} {path}"
            );
        }
        assert!(!pods.allows(&Request::Path("get", "/pods")));
    }

    #[test]
    fn a_star_matches_everything() {
        let all = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert!(all.allows(&asks("escalate", "rbac.authorization.k8s.io", "roles", "")));
        assert!(all.allows(&asks("get", "", "pods/exec", "x")));
        assert!(
            !all.allows(&Request::Path("get", "/metrics")),
            "paths are of their own"
        );
        let scale = rule(json!({"verbs": ["get"], "apiGroups": ["*"], "resources": ["*/scale"]}));
        assert!(scale.allows(&asks("get", "apps", "deployments/scale", "x")));
        assert!(!scale.allows(&asks("get", "apps", "deployments", "x")));
        assert!(!scale.allows(&asks("get", "apps", "deployments/status", "x")));
    }

    #[test]
    fn names_narrow_a_rule_to_single_objects() {
        let one = rule(
            json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}),
        );
        assert!(one.allows(&asks("get", "", "secrets", "a")));
        assert!(!one.allows(&asks("get", "", "secrets", "b")));
        assert!(
            !one.allows(&asks("list", "", "secrets", "")),
            "a list names no object"
        );
    }

    #[test]
    fn paths_match_whole_or_by_their_start() {
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/api/*"]}));
        for (path, allowed) in [
            ("/healthz", true),
            ("/healthz/x", false),
            ("/api/v1", true),
            ("/api", false),
            ("/api/", true),
            ("/apis", false),
        ] {
            assert_eq!(paths.allows(&Request::Path("get", path)), allowed, "{path}");
        }
        assert!(!paths.allows(&Request::Path("post", "/healthz")));
        let every = rule(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
        assert!(every.allows(&Request::Path("post", "/x")));
    }

    #[test]
    fn null_lists_are_empty() {
        let odd = rule(json!({"verbs": null, "resources": null, "apiGroups": null}));
        assert_eq!(odd, Rule::default());
    }
}
