//! One operation of a path: action, parameters, body and answers.

use crate::v3::patches;
use master_schema::registry::{GroupVersionKind, Kind, Subresource};
use master_schema::schema::DEFINITIONS;
use serde_json::{Map, Value, json};

/// Patch types.
pub(crate) const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
/// Media types of bodies and answers.
const FORMS: [&str; 2] = ["application/json", "application/yaml"];
/// Package of upstream's shared schemas.
pub(crate) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A query parameter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Parameter {
    name: &'static str,
    /// The type of its value, in JSON Schema.
    kind: &'static str,
    description: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        description,
    }
}

const PRETTY: Parameter = parameter(
    "pretty",
    "string",
    "If 'true', then the output is pretty printed.",
);
const WATCH: Parameter = parameter(
    "watch",
    "boolean",
    "Watch for changes to the described resources and return them as a stream of add, update, and remove \
     notifications. Specify resourceVersion.",
);
const FORCE: Parameter = parameter(
    "force",
    "boolean",
    "Takes fields from other managers; for apply only.",
);
/// Parameters of lists.
const LIST: &[Parameter] = &[
    parameter(
        "allowWatchBookmarks",
        "boolean",
        "Whether bookmarks are wanted in a watch.",
    ),
    parameter("continue", "string", "The token of the page before."),
    parameter(
        "fieldSelector",
        "string",
        "A selector to restrict the list of returned objects by their fields. Defaults to everything.",
    ),
    parameter(
        "labelSelector",
        "string",
        "A selector to restrict the list of returned objects by their labels. Defaults to everything.",
    ),
    parameter("limit", "integer", "Objects of one page at most."),
    parameter(
        "resourceVersion",
        "string",
        "The resource version that is asked for.",
    ),
    parameter(
        "resourceVersionMatch",
        "string",
        "How the resource version is interpreted.",
    ),
    parameter(
        "sendInitialEvents",
        "boolean",
        "Whether a watch begins with the existing objects.",
    ),
    parameter(
        "timeoutSeconds",
        "integer",
        "Limits the duration of the call.",
    ),
];
/// Parameters of writes.
const WRITE: &[Parameter] = &[
    parameter("dryRun", "string", "All: nothing is written."),
    parameter(
        "fieldManager",
        "string",
        "The name of the actor that makes the change.",
    ),
    parameter(
        "fieldValidation",
        "string",
        "Ignore, Warn or Strict: how unknown and duplicate fields are handled.",
    ),
];
/// Parameters of deletions.
const DELETE: &[Parameter] = &[
    parameter("dryRun", "string", "All: nothing is written."),
    parameter(
        "gracePeriodSeconds",
        "integer",
        "Seconds until the object may go by force.",
    ),
    parameter(
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Refused: this server can read every object that it stores.",
    ),
    parameter(
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy.",
    ),
    parameter(
        "propagationPolicy",
        "string",
        "Orphan, Background or Foreground.",
    ),
];

/// The action of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    List,
    Create,
    DeleteCollection,
    Read,
    Replace,
    Patch,
    Delete,
    Connect,
}

impl Action {
    /// The word for it in `operationId`.
    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Create => "create",
            Self::DeleteCollection => "deleteCollection",
            Self::Read => "read",
            Self::Replace => "replace",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Connect => "connect",
        }
    }

    /// Upstream's `x-kubernetes-action`.
    fn extension(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Create => "post",
            Self::DeleteCollection => "deletecollection",
            Self::Read => "get",
            Self::Replace => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Connect => "connect",
        }
    }

    /// Its query parameters.
    fn parameters(self) -> Vec<Parameter> {
        let mut all = vec![PRETTY];
        match self {
            Self::List => {
                all.extend(LIST);
                all.push(WATCH);
            }
            Self::Create | Self::Replace => all.extend(WRITE),
            Self::Patch => {
                all.extend(WRITE);
                all.push(FORCE);
            }
            Self::Delete => all.extend(DELETE),
            Self::DeleteCollection => {
                all.extend(DELETE);
                let list = LIST.iter().copied();
                all.extend(list.filter(|one| one.name != "allowWatchBookmarks"));
            }
            Self::Read => {}
            Self::Connect => all.clear(),
        }
        all.sort_unstable();
        all
    }
}

/// The tag that groups a kind's operations: `rbacAuthorization_v1`.
pub(crate) fn tag(kind: &Kind) -> String {
    let group = kind.group.strip_suffix(".k8s.io").unwrap_or(&kind.group);
    let mut words = group.split('.');
    let first = words.next().filter(|word| !word.is_empty());
    let others: String = words.map(capital).collect();
    format!("{}{others}_{}", first.unwrap_or("core"), kind.version)
}

/// A word with a capital at its beginning.
fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + chars.as_str()
    })
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) kind: &'a Kind,
    pub(crate) action: Action,
    pub(crate) subresource: Option<Subresource>,
    /// Name of the schema of body and answer.
    pub(crate) schema: String,
    /// Whether the operation covers all namespaces of a namespaced kind.
    pub(crate) everywhere: bool,
}

impl<'a> Operation<'a> {
    pub(crate) fn of(kind: &'a Kind, action: Action) -> Self {
        Self {
            kind,
            action,
            subresource: None,
            schema: kind.source.name().to_owned(),
            everywhere: false,
        }
    }

    /// The `operationId`, as upstream's generated clients expect it.
    fn id(&self) -> String {
        let (group, version) = tag(self.kind)
            .split_once('_')
            .map(|(a, b)| (capital(a), capital(b)))
            .unwrap_or_default();
        let scope = if self.kind.namespaced && !self.everywhere {
            "Namespaced"
        } else {
            ""
        };
        let sub = self
            .subresource
            .map_or_else(String::new, |sub| capital(sub.name()));
        let tail = if self.everywhere {
            "ForAllNamespaces"
        } else {
            ""
        };
        let (word, collection) = if self.action == Action::DeleteCollection {
            (Action::Delete.word(), "Collection")
        } else {
            (self.action.word(), "")
        };
        format!(
            "{word}{group}{version}{collection}{scope}{}{sub}{tail}",
            self.kind.kind
        )
    }

    /// The operation as JSON.
    pub(crate) fn value(&self) -> Value {
        let body = self.subresource.and_then(|sub| sub.body(&self.kind.kind));
        let GroupVersionKind {
            group,
            version,
            kind,
        } = body.unwrap_or(GroupVersionKind {
            group: &self.kind.group,
            version: &self.kind.version,
            kind: &self.kind.kind,
        });
        let parameters: Vec<Value> = self
            .action
            .parameters()
            .into_iter()
            .map(|parameter| {
                let schema = json!({"type": parameter.kind, "uniqueItems": true});
                json!({"name": parameter.name, "in": "query",
                    "description": parameter.description, "schema": schema})
            })
            .collect();
        let mut operation = json!({
            "operationId": self.id(), "tags": [tag(self.kind)],
            "description": format!("{} {}", self.action.word(), self.kind.plural),
            "responses": self.responses(), "x-kubernetes-action": self.action.extension(),
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        });
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        if let Some(request) = self.request() {
            operation["requestBody"] = request;
        }
        operation
    }

    fn request(&self) -> Option<Value> {
        let (forms, schema, required) = match self.action {
            Action::Create | Action::Replace => (FORMS.to_vec(), self.schema.clone(), true),
            Action::Patch => (patches(self.kind), format!("{META}.Patch"), true),
            Action::Delete | Action::DeleteCollection => {
                (FORMS.to_vec(), format!("{META}.DeleteOptions"), false)
            }
            Action::List | Action::Read | Action::Connect => return None,
        };
        let mut request = json!({ "content": content(&forms, &schema) });
        if required {
            request["required"] = true.into();
        }
        Some(request)
    }

    fn responses(&self) -> Value {
        let log = self.subresource == Some(Subresource::Log);
        let schema = match self.action {
            _ if log || self.action == Action::Connect => {
                let text = json!({"schema": {"type": "string"}});
                return json!({"200": {"description": "OK", "content": {"*/*": text}}});
            }
            Action::List => format!("{}List", self.schema),
            Action::Delete if self.kind.strategy.returns_deleted => self.schema.clone(),
            Action::Delete | Action::DeleteCollection => format!("{META}.Status"),
            Action::Create | Action::Read | Action::Replace | Action::Patch | Action::Connect => {
                self.schema.clone()
            }
        };
        let mut responses = Map::new();
        let codes: &[(&str, &str)] = match self.action {
            Action::Create => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
            Action::Replace | Action::Patch => &[("200", "OK"), ("201", "Created")],
            Action::Delete => &[("200", "OK"), ("202", "Accepted")],
            Action::List | Action::DeleteCollection | Action::Read | Action::Connect => {
                &[("200", "OK")]
            }
        };
        for (code, word) in codes {
            let answer = json!({"description": word, "content": content(&FORMS, &schema)});
            responses.insert((*code).to_owned(), answer);
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        Value::Object(responses)
    }
}

fn content(forms: &[&str], schema: &str) -> Value {
    let reference = json!({"schema": {"$ref": format!("{DEFINITIONS}{schema}")}});
    Value::Object(
        forms
            .iter()
            .map(|form| ((*form).to_owned(), reference.clone()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::ConfigMap;
    use config_kube::k8s_openapi::api::rbac::v1::ClusterRole;

    #[test]
    fn operations_have_upstreams_names() {
        let (map, role) = (Kind::of::<ConfigMap>(true), Kind::of::<ClusterRole>(false));
        let operation = Operation::of;
        let everywhere = Operation {
            everywhere: true,
            ..operation(&map, Action::List)
        };
        for (operation, name) in [
            (
                operation(&map, Action::Read),
                "readCoreV1NamespacedConfigMap",
            ),
            (everywhere, "listCoreV1ConfigMapForAllNamespaces"),
            (
                operation(&map, Action::DeleteCollection),
                "deleteCoreV1CollectionNamespacedConfigMap",
            ),
            (
                operation(&role, Action::DeleteCollection),
                "deleteRbacAuthorizationV1CollectionClusterRole",
            ),
        ] {
            assert_eq!(operation.id(), name);
        }
        assert_eq!([tag(&map), tag(&role)], ["core_v1", "rbacAuthorization_v1"]);
    }
}
