//! Measures the cost of managed fields: microseconds for one creation and one update of a ConfigMap
//! of 1 KiB and of a Deployment. Run it with `--release`.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use master_merge::write::{Given, Versions, Write, update};
use master_schema::schema::{self, SchemaPosition, Schemas, Source};
use master_schema::validate::Fields;
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 20_000;

struct One(Schemas, String);

impl Versions for One {
    fn place(&self, _api_version: &str) -> Option<SchemaPosition<'_>> {
        Some(self.0.place(&self.1))
    }

    fn convert(&self, _object: &Fields, _api_version: &str) -> Option<Fields> {
        None
    }
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Fields::new()
        }
    }
}

fn measure(name: &str, versions: &One, object: &Fields, changed: &Fields) -> Result<(), String> {
    let now = "2026-01-01T00:00:00Z";
    let write = Write {
        manager: "m",
        api_version: "v1",
        subresource: "",
        now,
        reset: &["status"],
        versions,
    };
    let nothing = Fields::new();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(update(
            &nothing,
            black_box(object),
            None,
            Given::Nothing,
            &write,
        )?);
    }
    let create = start.elapsed() / ROUNDS;
    let managed = update(&nothing, object, None, Given::Nothing, &write)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(update(
            object,
            black_box(changed),
            managed.as_deref(),
            Given::Nothing,
            &write,
        )?);
    }
    println!(
        "{name}: create {create:?}, update {:?}",
        start.elapsed() / ROUNDS
    );
    Ok(())
}

fn main() -> Result<(), String> {
    let sources = [Source::of::<ConfigMap>(), Source::of::<Deployment>()];
    let definitions = schema::definitions(&sources);
    let versions = |index: usize| {
        let name = sources[index].name().to_owned();
        One(Schemas::compile(&definitions), name)
    };
    let map = |last: &str| {
        let mut data: serde_json::Map<String, Value> = (0..8)
            .map(|number| (format!("key-{number}"), json!("x".repeat(112))))
            .collect();
        data.insert("last".to_owned(), json!(last));
        fields(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}, "data": data}),
        )
    };
    measure("config map", &versions(0), &map("1"), &map("2"))?;
    let deployment = |replicas: u32| {
        let container = |name: &str| {
            json!({
                "name": name, "image": "registry.example/x:1", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "terminationMessagePath": "/dev/termination-log",
            })
        };
        fields(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "uid": "u", "labels": {"app": "web"}, "annotations": {"a": "b"}},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                    "containers": [container("a"), container("b")], "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                }},
            },
        }))
    };
    measure("deployment", &versions(1), &deployment(1), &deployment(2))
}
