//! The Python client of PyPI, unmodified, against the listener: typed calls, dynamic calls, a
//! watch.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Server;
use master_api::Options;
use master_listener::ServeOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Typed calls of every verb.
const TYPED: &str = r#"
from kubernetes import client, config, watch
config.load_kube_config()
core, apps = client.CoreV1Api(), client.AppsV1Api()
core.create_namespaced_config_map("default", {"metadata": {"name": "m"}, "data": {"a": "1"}})
assert core.read_namespaced_config_map("m", "default").data == {"a": "1"}
core.patch_namespaced_config_map("m", "default", {"data": {"b": "2"}})
found = core.list_namespaced_config_map("default", field_selector="metadata.name=m").items
assert [m.data for m in found] == [{"a": "1", "b": "2"}], found
template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}
spec = {"replicas": 2, "selector": {"matchLabels": {"app": "w"}}, "template": template}
apps.create_namespaced_deployment("default", {"metadata": {"name": "w"}, "spec": spec})
scale = apps.read_namespaced_deployment_scale("w", "default")
assert (scale.spec.replicas, scale.status.selector) == (2, "app=w"), scale
scale.spec.replicas = 3
assert apps.replace_namespaced_deployment_scale("w", "default", scale).spec.replicas == 3
events = watch.Watch().stream(core.list_namespaced_config_map, "default", timeout_seconds=2)
seen = [(e["type"], e["object"].metadata.name) for e in events if e["object"].metadata.name == "m"]
assert seen == [("ADDED", "m")], seen
try:
    core.read_namespaced_config_map("none", "default")
    raise AssertionError("found what is not there")
except client.ApiException as refused:
    assert (refused.status, refused.reason) == (404, "Not Found"), refused
core.delete_namespaced_config_map("m", "default", propagation_policy="Background")
core.delete_collection_namespaced_config_map("default")
apps.delete_namespaced_deployment("w", "default", grace_period_seconds=0)
print("typed calls work")
"#;

/// Dynamic calls, which use discovery.
const DYNAMIC: &str = r#"
from kubernetes import config, dynamic
client = dynamic.DynamicClient(config.new_client_from_config())
maps = client.resources.get(api_version="v1", kind="ConfigMap")
made = maps.create(namespace="default", body={"metadata": {"generateName": "d-"}, "data": {"a": "1"}})
name = made.metadata.name
assert name.startswith("d-") and len(name) == 7, name
body = {"metadata": {"name": name}, "data": {"a": "2"}}
assert maps.patch(namespace="default", body=body, content_type="application/merge-patch+json").data.a == "2"
assert maps.get(namespace="default", name=name).data.a == "2"
for event in maps.watch(namespace="default", timeout=2):
    assert event["type"] in ("ADDED", "BOOKMARK"), event
machines = client.resources.get(api_version="pratique.dev/v1alpha1", kind="Machine")
assert machines.get().items == []
maps.delete(namespace="default", name=name)
print("dynamic calls work")
"#;

/// The interpreter with the client that the test command installed.
fn python() -> PathBuf {
    let python =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.pratique/tools/python/bin/python3");
    assert!(
        python.exists(),
        "the Python client is needed: `cargo xtask test` (or `cargo xtask tools`) installs it"
    );
    python
}

async fn runs(script: &str, expected: &str) {
    let server = Server::start(Options::default(), ServeOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("config"),
        server.kubeconfig().to_string(),
    )
    .unwrap();
    let mut command = Command::new(python());
    command
        .args(["-c", script])
        .env("KUBECONFIG", folder.path().join("config"))
        .env("HOME", folder.path());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(expected), "{said}");
    server.stop().await;
}

#[tokio::test]
async fn the_python_clients_typed_calls_work() {
    runs(TYPED, "typed calls work").await;
}

#[tokio::test]
async fn the_python_clients_dynamic_calls_work() {
    runs(DYNAMIC, "dynamic calls work").await;
}
