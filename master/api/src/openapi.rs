//! `OpenAPI` v3: an index, and a document for each group and version, made from the kinds' schemas when first asked.
//!
//! What clients read in it: the schemas (`kubectl explain`, merge keys of `kubectl apply`), and on each path the
//! kind, the parameters (`fieldValidation`, `dryRun`) and the patch types.

use crate::error::ApiError;
use crate::path::Query;
use crate::paths::matches_tag;
use crate::registry::{Kind, Registry, Subresource};
use crate::schema::{self, DEFINITIONS};
use crate::server::{Body, body};
use crate::verbs::{json_bytes, no_resource};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// The documents, once made.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    index: OnceLock<Bytes>,
    groups: OnceLock<Vec<(String, Bytes)>>,
}

impl Documents {
    /// Answers a path below `/openapi`.
    pub(crate) fn answer(
        &self,
        registry: &Registry,
        path: &str,
        parts: &Parts,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let name = match path.strip_prefix("/openapi/v3") {
            Some("") => return Ok(json_bytes(StatusCode::OK, self.index(registry))),
            Some(rest) => rest.strip_prefix('/').ok_or_else(no_resource)?,
            None => return Err(no_resource()),
        };
        let document = self.document(registry, name)?;
        let hash = hash(&document);
        let asked = query.get("hash");
        if !asked.is_empty() && asked != hash {
            return moved(&format!("{path}?hash={hash}"));
        }
        let tag = format!("\"{hash}\"");
        let mut response = if matches_tag(parts, &tag) {
            let mut unchanged = Response::new(body(""));
            *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
            unchanged
        } else {
            json_bytes(StatusCode::OK, document)
        };
        let headers = response.headers_mut();
        // Under a hash it never changes; the client keeps it.
        let cached = if asked.is_empty() { "no-cache, private" } else { "public, immutable, max-age=31536000" };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cached));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        Ok(response)
    }

    /// The index at `/openapi/v3`.
    pub(crate) fn index(&self, registry: &Registry) -> Bytes {
        let index = self.index.get_or_init(|| {
            let paths: Map<String, Value> = self
                .groups(registry)
                .iter()
                .map(|(path, document)| {
                    let url = format!("/openapi/v3/{path}?hash={}", hash(document));
                    (path.clone(), json!({ "serverRelativeURL": url }))
                })
                .collect();
            json!({ "paths": paths }).to_string().into()
        });
        index.clone()
    }

    /// One document, by its path in the index.
    pub(crate) fn document(&self, registry: &Registry, path: &str) -> Result<Bytes, ApiError> {
        let found = self.groups(registry).iter().find(|(known, _)| known == path);
        found.map(|(_, document)| document.clone()).ok_or_else(no_resource)
    }

    fn groups(&self, registry: &Registry) -> &[(String, Bytes)] {
        self.groups.get_or_init(|| {
            let mut documents = Vec::new();
            for (group, versions) in registry.groups() {
                for version in versions {
                    let kinds: Vec<Arc<Kind>> = registry
                        .kinds()
                        .iter()
                        .filter(|kind| kind.group == group && kind.version == version)
                        .cloned()
                        .collect();
                    let path =
                        if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
                    documents.push((path.clone(), document(&format!("/{path}"), &kinds).to_string().into()));
                }
            }
            documents
        })
    }
}

/// Sends a client that asks for an older document to the present one.
fn moved(to: &str) -> Result<Response<Body>, ApiError> {
    let mut response = Response::new(body(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(to).map_err(|_not_a_header| no_resource())?;
    response.headers_mut().insert(header::LOCATION, to);
    Ok(response)
}

/// A name for a document's content.
fn hash(document: &Bytes) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, document);
    hex::encode_upper(digest)
}

fn document(root: &str, kinds: &[Arc<Kind>]) -> Value {
    let sources: Vec<schema::Source> = kinds.iter().map(|kind| kind.source).collect();
    let (mut definitions, _) = schema::definitions(&sources);
    let mut paths = Map::new();
    for kind in kinds {
        let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        if let Some(definition) = definitions.get_mut(&kind.schema) {
            definition["x-kubernetes-group-version-kind"] = json!([gvk]);
        }
        if kind.review.is_none() {
            list_definition(kind, &mut definitions);
        }
        add_paths(root, kind, &gvk, &mut paths);
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0+pratique"},
        "paths": paths, "components": {"schemas": definitions},
    })
}

/// The list's schema, which clients look up by kind.
fn list_definition(kind: &Kind, definitions: &mut Map<String, Value>) {
    let text = json!({"type": "string"});
    let item = json!({"allOf": [{"$ref": format!("{DEFINITIONS}{}", kind.schema)}], "default": {}});
    let list = json!({
        "description": format!("{}List is a list of {}.", kind.kind, kind.plural), "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text, "kind": text, "items": {"type": "array", "items": item},
            "metadata": {"type": "object", "properties": {
                "continue": text, "resourceVersion": text, "selfLink": text,
                "remainingItemCount": {"type": "integer", "format": "int64"},
            }},
        },
        "x-kubernetes-group-version-kind": [
            {"group": kind.group, "version": kind.version, "kind": format!("{}List", kind.kind)},
        ],
    });
    definitions.insert(format!("{}List", kind.schema), list);
}

/// Patch types that a kind's path takes; the last only upstream's kinds.
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// Media types of bodies.
const BODIES: &[&str] = &["application/json", "application/yaml"];

fn add_paths(root: &str, kind: &Kind, gvk: &Value, paths: &mut Map<String, Value>) {
    let namespaced = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{namespaced}/{}", kind.plural);
    let object = format!("{collection}/{{name}}");
    if kind.review.is_some() {
        paths.insert(collection, json!({"post": operation(kind, gvk, "create", "post", BODIES)}));
        return;
    }
    if kind.namespaced {
        let all = json!({"get": operation(kind, gvk, "list", "get", &[])});
        paths.insert(format!("{root}/{}", kind.plural), all);
    }
    paths.insert(
        collection,
        json!({
            "get": operation(kind, gvk, "list", "get", &[]),
            "post": operation(kind, gvk, "create", "post", BODIES),
            "delete": operation(kind, gvk, "deletecollection", "delete", &[]),
        }),
    );
    // Kinds of other groups than upstream's have no strategic merge patch in the eyes of clients.
    let patches = if kind.group == config_kube::identity::GROUP { &PATCHES[..3] } else { PATCHES };
    let written = |patches: &[&str]| {
        json!({
            "get": operation(kind, gvk, "read", "get", &[]),
            "put": operation(kind, gvk, "replace", "put", BODIES),
            "patch": operation(kind, gvk, "patch", "patch", patches),
        })
    };
    for sub in kind.subresources {
        if matches!(sub, Subresource::Status | Subresource::Approval) {
            paths.insert(format!("{object}/{}", sub.name()), written(patches));
        }
    }
    let mut own = written(patches);
    own["delete"] = operation(kind, gvk, "delete", "delete", &[]);
    paths.insert(object, own);
}

fn operation(kind: &Kind, gvk: &Value, name: &str, action: &str, bodies: &[&str]) -> Value {
    let reference = json!({"$ref": format!("{DEFINITIONS}{}", kind.schema)});
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let mut parameters: BTreeSet<&str> = BTreeSet::from(["pretty"]);
    match action {
        "get" if name == "list" => parameters.extend([
            "labelSelector",
            "fieldSelector",
            "limit",
            "continue",
            "resourceVersion",
            "resourceVersionMatch",
            "watch",
            "timeoutSeconds",
            "allowWatchBookmarks",
            "sendInitialEvents",
        ]),
        "delete" => parameters.extend(["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
        "post" | "put" | "patch" => parameters.extend(["dryRun", "fieldManager", "fieldValidation"]),
        _ => {}
    }
    let word = match name {
        "read" => "get",
        "replace" => "put",
        "create" => "post",
        other => other,
    };
    let mut operation = json!({
        "operationId": format!("{name}{}{}", kind.version, kind.kind),
        "parameters": parameters.into_iter().map(parameter).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
        "x-kubernetes-action": word, "x-kubernetes-group-version-kind": gvk,
    });
    if !bodies.is_empty() {
        let content: Map<String, Value> = bodies
            .iter()
            .map(|body| {
                (
                    (*body).to_owned(),
                    json!({"schema": if action == "patch" { json!({"type": "object"}) } else { reference.clone() }}),
                )
            })
            .collect();
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}
