//! Patches, applied configurations and managed fields, as clients send them.

use crate::run::{Shape, Target};
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_merge::apply::apply;
use master_merge::fields;
use master_merge::managed::Managers;
use master_merge::patch::Patch;
use master_merge::write::{Given, Versions, Write, update};
use master_schema::schema::{self, SchemaPosition, Schemas, Source};
use master_schema::validate::Fields;
use serde_json::{Value, json};

/// Pods, in their one version.
struct Pods {
    schemas: Schemas,
    name: String,
}

impl Pods {
    fn new() -> Self {
        let source = Source::of::<Pod>();
        Self {
            name: source.name().to_owned(),
            schemas: Schemas::compile(&schema::definitions(&[source])),
        }
    }
}

impl Versions for Pods {
    fn place(&self, api_version: &str) -> Option<SchemaPosition<'_>> {
        (api_version == "v1").then(|| self.schemas.place(&self.name))
    }

    fn convert(&self, _object: &Fields, _api_version: &str) -> Option<Fields> {
        None
    }
}

fn write<'a>(pods: &'a Pods, manager: &'a str) -> Write<'a> {
    let now = "2026-01-01T00:00:00Z";
    Write {
        manager,
        api_version: "v1",
        subresource: "",
        now,
        reset: &["status"],
        versions: pods,
    }
}

const FIELDS: &str = r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:image":{}}},"f:x":{"v:1":{},"v:\"b\"":{},"i:0":{}}}}"#;

fn pod(image: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}}, "spec": {
        "containers": [{"name": "a", "image": image, "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "k"}], "nodeSelector": {"n": "1"},
    }})
}

fn managed() -> Value {
    json!([{
        "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}}},
    }])
}

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "master-merge/fields-v1",
            shape: Shape::Json,
            seeds: vec![FIELDS.into()],
            decode: Box::new(|input| {
                let Ok(text) = std::str::from_utf8(input) else {
                    return;
                };
                if let Ok(set) = fields::decode(text) {
                    let mut out = Vec::new();
                    fields::encode(&set, &mut out);
                    let again = String::from_utf8_lossy(&out).into_owned();
                    assert!(
                        fields::decode(&again).as_ref() == Ok(&set),
                        "a set survives its text"
                    );
                }
            }),
        },
        Target {
            name: "master-merge/managed-fields",
            shape: Shape::Json,
            seeds: vec![managed().to_string().into()],
            decode: Box::new(|input| {
                let Ok(text) = std::str::from_utf8(input) else {
                    return;
                };
                if let Ok(managers) = Managers::decode(text)
                    && let Some(written) = managers.encode()
                {
                    assert!(
                        Managers::decode(&written).is_ok(),
                        "managers survive their text"
                    );
                }
            }),
        },
        applies(),
        patches(),
    ]
}

/// Any object, managed fields and configuration.
fn applies() -> Target {
    let pods = Pods::new();
    let seed = json!({"live": pod("x"), "managed": managed(), "config": pod("y")});
    Target {
        name: "master-merge/apply",
        shape: Shape::Json,
        seeds: vec![seed.to_string().into()],
        decode: Box::new(move |input| {
            let Ok(document) = serde_json::from_slice::<Value>(input) else {
                return;
            };
            let object = |key: &str| {
                document
                    .get(key)
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default()
            };
            let (live, config) = (object("live"), object("config"));
            let list = document.get("managed").map(ToString::to_string);
            let by = write(&pods, "m");
            if let Ok(once) = apply(&live, list.as_deref(), &config, true, &by) {
                // The result of an apply can be read again: its managed fields never break the next
                // apply.
                let again = apply(&once.object, once.managed.as_deref(), &config, true, &by);
                assert!(again.is_ok(), "an apply can be repeated: {again:?}");
            }
            let given = document.get("managed").map_or(Given::Nothing, Given::List);
            update(&live, &config, list.as_deref(), given, &by).ok();
        }),
    }
}

/// A patch of each kind, against a pod.
fn patches() -> Target {
    let pods = Pods::new();
    let seeds = [
        json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a", "image": "z"}]}}),
        json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}], "$retainKeys": ["containers"]}}),
        json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}, "$deleteFromPrimitiveList/finalizers": ["f"]}}),
        json!([{"op": "copy", "from": "/spec", "path": "/status"}, {"op": "test", "path": "/kind", "value": "Pod"}]),
    ];
    Target {
        name: "master-merge/patch",
        shape: Shape::Json,
        seeds: seeds.iter().map(|seed| seed.to_string().into()).collect(),
        decode: Box::new(move |input| {
            let Value::Object(object) = pod("x") else {
                return;
            };
            for kind in ["json", "merge", "strategic-merge"] {
                if let Ok((patch, _)) =
                    Patch::parse(&format!("application/{kind}-patch+json"), input, true)
                {
                    patch.touches(&["metadata", "managedFields"]);
                    patch
                        .apply(object.clone(), pods.schemas.place(&pods.name))
                        .ok();
                }
            }
        }),
    }
}
