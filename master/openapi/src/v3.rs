//! OpenAPI v3 documents: the schemas of a group and version, and its paths.

use crate::operation::{Action, META, Operation, PATCHES};
use config_kube::k8s_openapi::api::authentication::v1::TokenRequest;
use config_kube::k8s_openapi::api::autoscaling::v1::Scale;
use config_kube::k8s_openapi::api::core::v1::Binding;
use config_kube::k8s_openapi::api::policy::v1::Eviction;
use master_schema::registry::{Kind, Registry, Review, Subresource};
use master_schema::schema::{self, DEFINITIONS, Source};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Name of upstream's schema of list metadata.
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// A definition of what all kinds share.
fn meta(kind: &str) -> Source {
    Source::named(format!("{META}.{kind}"))
}

/// Schemas that operations reference beside the kinds'.
fn shared() -> [Source; 4] {
    [
        meta("DeleteOptions"),
        meta("ListMeta"),
        meta("Patch"),
        meta("Status"),
    ]
}

/// All documents, each with its path in the index, built one at a time.
pub(crate) fn documents(registry: &Registry) -> impl Iterator<Item = (String, Value)> {
    let versions: Vec<(String, String)> = registry
        .groups()
        .into_iter()
        .flat_map(|(group, versions)| {
            versions
                .into_iter()
                .map(move |version| (group.to_owned(), version.to_owned()))
        })
        .collect();
    versions.into_iter().map(|(group, version)| {
        let kinds: Vec<&Arc<Kind>> = registry
            .kinds()
            .iter()
            .filter(|kind| kind.group == group && kind.version == version)
            .collect();
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{group}/{version}")
        };
        let document = document(&format!("/{path}"), &kinds);
        (path, document)
    })
}

/// The schema of a subresource's body, if it differs from the kind's.
fn body_of(subresource: Subresource) -> Option<Source> {
    match subresource {
        Subresource::Scale => Some(Source::of::<Scale>()),
        Subresource::Binding => Some(Source::of::<Binding>()),
        Subresource::Eviction => Some(Source::of::<Eviction>()),
        Subresource::Token => Some(Source::of::<TokenRequest>()),
        Subresource::Status
        | Subresource::Approval
        | Subresource::Log
        | Subresource::Finalize
        | Subresource::EphemeralContainers
        | Subresource::Resize
        | Subresource::Power
        | Subresource::Proxy
        | Subresource::Exec
        | Subresource::Attach
        | Subresource::PortForward => None,
    }
}

fn document(root: &str, kinds: &[&Arc<Kind>]) -> Value {
    let mut sources: Vec<Source> = kinds.iter().map(|kind| kind.source.clone()).collect();
    sources.extend(
        kinds
            .iter()
            .flat_map(|kind| &kind.subresources)
            .filter_map(|sub| body_of(*sub)),
    );
    sources.extend(shared());
    let mut definitions = schema::definitions(&sources);
    let mut paths = Map::new();
    paths.insert(
        format!("{root}/"),
        json!({"get": {
            "description": "get available resources", "tags": [tag(kinds)],
            "responses": {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}},
        }}),
    );
    for kind in kinds {
        let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        if let Some(definition) = definitions.get_mut(kind.source.name()) {
            definition["x-kubernetes-group-version-kind"] = json!([gvk]);
        }
        if kind.review.is_none_or(Review::is_read) {
            definitions.insert(format!("{}List", kind.source.name()), list_definition(kind));
        }
        add_paths(root, kind, &mut paths);
    }
    for (name, kind) in [
        ("DeleteOptions", "DeleteOptions"),
        ("Status", "Status"),
        ("WatchEvent", "WatchEvent"),
    ] {
        let name = format!("{META}.{name}");
        if let Some(definition) = definitions.get_mut(&name) {
            definition["x-kubernetes-group-version-kind"] =
                json!([{"group": "", "version": "v1", "kind": kind}]);
        }
    }
    for (name, (group, version, kind)) in [
        (
            "io.k8s.api.autoscaling.v1.Scale",
            ("autoscaling", "v1", "Scale"),
        ),
        (
            "io.k8s.api.policy.v1.Eviction",
            ("policy", "v1", "Eviction"),
        ),
        ("io.k8s.api.core.v1.Binding", ("", "v1", "Binding")),
        (
            "io.k8s.api.authentication.v1.TokenRequest",
            ("authentication.k8s.io", "v1", "TokenRequest"),
        ),
    ] {
        if let Some(definition) = definitions.get_mut(name) {
            definition["x-kubernetes-group-version-kind"] =
                json!([{"group": group, "version": version, "kind": kind}]);
        }
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0+pratique"},
        "paths": paths, "components": {"schemas": definitions},
    })
}

fn tag(kinds: &[&Arc<Kind>]) -> String {
    kinds
        .first()
        .map_or_else(String::new, |kind| crate::operation::tag(kind))
}

/// The list's schema, which clients find by its kind.
fn list_definition(kind: &Kind) -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let item =
        json!({"allOf": [{"$ref": format!("{DEFINITIONS}{}", kind.source.name())}], "default": {}});
    json!({
        "description": format!("{}List is a list of {}.", kind.kind, kind.plural), "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("The version of this representation."),
            "kind": text("What this object represents."),
            "items": {"type": "array", "description": format!("List of {}.", kind.plural), "items": item},
            "metadata": {"allOf": [{"$ref": format!("{DEFINITIONS}{LIST_META}")}], "default": {},
                         "description": "The list's metadata."},
        },
        "x-kubernetes-group-version-kind": [
            {"group": kind.group, "version": kind.version, "kind": format!("{}List", kind.kind)},
        ],
    })
}

/// The path of the objects of all namespaces, where the kind has namespaces.
fn add_everywhere(root: &str, kind: &Kind, paths: &mut Map<String, Value>) {
    if kind.namespaced {
        let everywhere = Operation {
            everywhere: true,
            ..Operation::of(kind, Action::List)
        };
        paths.insert(
            format!("{root}/{}", kind.plural),
            json!({"get": everywhere.value()}),
        );
    }
}

fn add_paths(root: &str, kind: &Kind, paths: &mut Map<String, Value>) {
    let namespaced = if kind.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let collection = format!("{root}{namespaced}/{}", kind.plural);
    let object = format!("{collection}/{{name}}");
    let make = |action: Action| Operation::of(kind, action).value();
    if kind.review.is_some_and(Review::is_read) {
        add_everywhere(root, kind, paths);
        paths.insert(
            collection,
            with_parameters(kind, false, json!({"get": make(Action::List)})),
        );
        paths.insert(
            object,
            with_parameters(kind, true, json!({"get": make(Action::Read)})),
        );
        return;
    }
    if kind.review.is_some() {
        paths.insert(
            collection.clone(),
            with_parameters(kind, false, json!({"post": make(Action::Create)})),
        );
        return;
    }
    add_everywhere(root, kind, paths);
    let all = json!({
        "get": make(Action::List), "post": make(Action::Create), "delete": make(Action::DeleteCollection),
    });
    paths.insert(collection, with_parameters(kind, false, all));
    let one = json!({
        "get": make(Action::Read), "put": make(Action::Replace), "patch": make(Action::Patch),
        "delete": make(Action::Delete),
    });
    paths.insert(object.clone(), with_parameters(kind, true, one));
    for sub in &kind.subresources {
        add_subresource(&object, kind, *sub, paths);
    }
}

fn add_subresource(object: &str, kind: &Kind, sub: Subresource, paths: &mut Map<String, Value>) {
    let body = body_of(sub);
    let make = |action: Action| {
        let own = Operation::of(kind, action);
        Operation {
            subresource: Some(sub),
            schema: body
                .as_ref()
                .map_or_else(|| own.schema.clone(), |body| body.name().to_owned()),
            ..own
        }
        .value()
    };
    let mut methods = Map::new();
    for verb in sub.verbs() {
        let connects = matches!(
            sub,
            Subresource::Power
                | Subresource::Proxy
                | Subresource::Exec
                | Subresource::Attach
                | Subresource::PortForward
        );
        let (method, action) = match *verb {
            "get" if connects => ("get", Action::Connect),
            "create" if connects => ("post", Action::Connect),
            "update" if connects => ("put", Action::Connect),
            "patch" if connects => ("patch", Action::Connect),
            "delete" if connects => ("delete", Action::Connect),
            "get" => ("get", Action::Read),
            "create" => ("post", Action::Create),
            "update" => ("put", Action::Replace),
            _ => ("patch", Action::Patch),
        };
        methods.insert(method.to_owned(), make(action));
    }
    let path = format!("{object}/{}", sub.name());
    let methods = with_parameters(kind, true, Value::Object(methods));
    if sub == Subresource::Proxy {
        paths.insert(format!("{path}/{{path}}"), methods.clone());
    }
    paths.insert(path, methods);
}

/// Adds the parameters that are part of the path.
fn with_parameters(kind: &Kind, named: bool, mut methods: Value) -> Value {
    let parameter = |name: &str, about: String| {
        json!({
            "name": name, "in": "path", "required": true, "description": about,
            "schema": {"type": "string", "uniqueItems": true},
        })
    };
    let mut parameters = Vec::new();
    if named {
        parameters.push(parameter("name", format!("name of the {}", kind.kind)));
    }
    if kind.namespaced {
        parameters.push(parameter(
            "namespace",
            "object name and auth scope, such as for teams and projects".to_owned(),
        ));
    }
    if !parameters.is_empty() {
        methods["parameters"] = Value::Array(parameters);
    }
    methods
}

/// Patch types that a kind supports; clients know strategic merge patches for kinds of upstream's
/// groups only.
pub(crate) fn patches(kind: &Kind) -> Vec<&'static str> {
    let own = kind.group == config_kube::identity::GROUP;
    PATCHES
        .iter()
        .copied()
        .filter(|patch| !(own && patch.contains("strategic")))
        .collect()
}
