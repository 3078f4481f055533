//! kube-rs, unmodified, against the listener: typed calls; `runtime` holds what its runtime does.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![allow(
    clippy::panic,
    reason = "a panic names what happened in place of what may"
)]

mod runtime;

use crate::common::{Kubelet, Local, Server};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use kube::api::{
    DeleteParams, EvictParams, ListParams, LogParams, Patch, PatchParams, PostParams,
    Preconditions, VersionMatch,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use master_api::{ApiServer, Options};
use master_listener::ServeOptions;
use master_store::EmbeddedStore;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for what happens at once on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

struct Cluster {
    server: Server,
    store: Arc<EmbeddedStore>,
    client: Client,
}

async fn cluster() -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let api = ApiServer::new(store.clone(), Options::default());
    api.prepare().await.unwrap();
    let server = Server::over(Local::of(api, folder), ServeOptions::default()).await;
    let kubeconfig: Kubeconfig = serde_json::from_value(server.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Cluster {
        server,
        store,
        client: Client::try_from(config).unwrap(),
    }
}

impl Cluster {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = config_kube::k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), "default")
    }
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    object(json!({"metadata": {"name": name}, "data": {"a": "1"}}))
}

fn pod(name: &str) -> Pod {
    let spec = json!({"nodeName": "n1", "serviceAccountName": "own", "containers": [{"name": "c", "image": "x:1"}]});
    object(json!({"metadata": {"name": name, "labels": {"app": "p"}}, "spec": spec}))
}

/// Waits for a condition; panics with its name after the time limit.
async fn within_limit<T>(what: &str, coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, coming)
        .await
        .unwrap_or_else(|_elapsed| panic!("{what} did not come"))
}

fn code<T: std::fmt::Debug>(refused: kube::Result<T>) -> u16 {
    status_code(refused.unwrap_err())
}

/// The status code of the server's error.
fn status_code(error: kube::Error) -> u16 {
    let text = error.to_string();
    let kube::Error::Api(status) = error else {
        panic!("not an answer of the server's: {text}")
    };
    status.code
}

#[tokio::test]
async fn every_patch_is_understood() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    maps.create(&PostParams::default(), &config_map("m"))
        .await
        .unwrap();
    assert_eq!(
        code(maps.create(&PostParams::default(), &config_map("m")).await),
        409
    );
    let plain = PatchParams::default();
    let patched = maps
        .patch("m", &plain, &Patch::Merge(json!({"data": {"b": "2"}})))
        .await
        .unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    let patched = maps
        .patch("m", &plain, &Patch::Strategic(json!({"data": {"b": null}})))
        .await
        .unwrap();
    assert_eq!(patched.data.unwrap().len(), 1);
    let operations =
        serde_json::from_value(json!([{"op": "replace", "path": "/data/a", "value": "3"}]))
            .unwrap();
    let patched = maps
        .patch("m", &plain, &Patch::Json::<()>(operations))
        .await
        .unwrap();
    assert_eq!(patched.data.unwrap()["a"], "3");
    cluster.server.stop().await;
}

#[tokio::test]
async fn an_apply_conflicts_with_other_owners_until_it_is_forced() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    maps.create(&PostParams::default(), &config_map("m"))
        .await
        .unwrap();
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "4"}});
    let by = PatchParams::apply("applier");
    assert_eq!(
        code(maps.patch("m", &by, &Patch::Apply(&wanted)).await),
        409,
        "others own the field"
    );
    let applied = maps
        .patch("m", &by.clone().force(), &Patch::Apply(&wanted))
        .await
        .unwrap();
    assert_eq!(applied.data.as_ref().unwrap()["a"], "4");
    assert!(
        applied
            .managed_fields()
            .iter()
            .any(|owner| owner.manager.as_deref() == Some("applier"))
    );
    let again = maps.patch("m", &by, &Patch::Apply(&wanted)).await.unwrap();
    assert_eq!(
        again.resource_version(),
        applied.resource_version(),
        "nothing new was applied"
    );
    cluster.server.stop().await;
}

#[tokio::test]
async fn old_versions_dry_runs_and_preconditions_are_understood() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    let made = maps
        .create(&PostParams::default(), &config_map("m"))
        .await
        .unwrap();
    let newer = Patch::Merge(json!({"data": {"b": "2"}}));
    maps.patch("m", &PatchParams::default(), &newer)
        .await
        .unwrap();
    assert_eq!(
        code(maps.replace("m", &PostParams::default(), &made).await),
        409,
        "a version of long ago"
    );
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    maps.create(&dry, &config_map("dry")).await.unwrap();
    assert!(maps.get_opt("dry").await.unwrap().is_none());
    let entry = maps
        .entry("entered")
        .await
        .unwrap()
        .or_insert(|| config_map("entered"));
    let mut entry = entry.and_modify(|map| {
        map.data
            .get_or_insert_default()
            .insert("b".into(), "2".into());
    });
    entry.commit(&PostParams::default()).await.unwrap();
    assert_eq!(maps.get("entered").await.unwrap().data.unwrap().len(), 2);

    let other = Preconditions {
        uid: Some("somebody else's".into()),
        ..Preconditions::default()
    };
    assert_eq!(
        code(
            maps.delete("m", &DeleteParams::default().preconditions(other))
                .await
        ),
        409
    );
    maps.delete("m", &DeleteParams::foreground()).await.unwrap();
    maps.delete_collection(
        &DeleteParams::background(),
        &ListParams::default().labels("!kept"),
    )
    .await
    .unwrap();
    assert_eq!(code(maps.get("entered").await), 404);
    cluster.server.stop().await;
}

#[tokio::test]
async fn lists_and_metadata_are_read() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    for number in 0..5 {
        maps.create(&PostParams::default(), &config_map(&format!("m{number}")))
            .await
            .unwrap();
    }
    let page = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(
        (page.items.len(), page.metadata.remaining_item_count),
        (2, Some(3))
    );
    let token = page.metadata.continue_.clone().unwrap();
    let rest = maps
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap();
    assert_eq!(
        rest.items
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>(),
        ["m2", "m3", "m4"]
    );
    let version = page.metadata.resource_version.unwrap();
    maps.delete("m0", &DeleteParams::default()).await.unwrap();
    let exact = ListParams::default()
        .at(&version)
        .matching(VersionMatch::Exact);
    assert_eq!(
        maps.list(&exact).await.unwrap().items.len(),
        5,
        "as it was then"
    );
    let metadata = maps
        .list_metadata(&ListParams::default().fields("metadata.name=m3"))
        .await
        .unwrap();
    assert_eq!(metadata.items[0].name_any(), "m3");
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let one = maps
        .patch_metadata("m3", &PatchParams::default(), &label)
        .await
        .unwrap();
    assert_eq!(one.labels()["a"], "b");
    cluster.server.stop().await;
}

#[tokio::test]
async fn tables_and_discovery_are_read() {
    let cluster = cluster().await;
    let maps = cluster.api::<ConfigMap>();
    maps.create(&PostParams::default(), &config_map("m1"))
        .await
        .unwrap();
    let table = http::Request::get("/api/v1/namespaces/default/configmaps?limit=500")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = cluster
        .client
        .request(table.body(Vec::new()).unwrap())
        .await
        .unwrap();
    let headings: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(headings, ["Name", "Data", "Age"]);
    assert_eq!(table["rows"][0]["cells"][0], "m1");

    assert_eq!(
        cluster.client.apiserver_version().await.unwrap().minor,
        "36"
    );
    let plain = kube::Discovery::new(cluster.client.clone())
        .run()
        .await
        .unwrap();
    let aggregated = kube::Discovery::new(cluster.client.clone())
        .run_aggregated()
        .await
        .unwrap();
    let names = |found: &kube::Discovery| {
        let groups = found.groups().flat_map(|group| {
            let kinds = group.recommended_resources().into_iter();
            kinds.map(|(kind, able)| {
                format!("{}/{} {:?}", kind.api_version, kind.plural, able.scope)
            })
        });
        let mut names: Vec<String> = groups.collect();
        names.sort();
        names
    };
    assert!(names(&plain).len() > 60);
    assert_eq!(
        names(&plain),
        names(&aggregated),
        "both forms tell the same"
    );
    cluster.server.stop().await;
}

#[tokio::test]
async fn scale_and_status_are_written_and_read() {
    let cluster = cluster().await;
    let deployments = cluster.api::<Deployment>();
    let template = json!({"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}});
    let spec =
        json!({"replicas": 2, "selector": {"matchLabels": {"app": "w"}}, "template": template});
    let made: Deployment = object(json!({"metadata": {"name": "w"}, "spec": spec}));
    deployments
        .create(&PostParams::default(), &made)
        .await
        .unwrap();
    let mut scale = deployments.get_scale("w").await.unwrap();
    assert_eq!(
        scale.status.as_ref().unwrap().selector.as_deref(),
        Some("app=w")
    );
    scale.spec.as_mut().unwrap().replicas = Some(5);
    deployments
        .replace_scale("w", &PostParams::default(), &scale)
        .await
        .unwrap();
    let smaller = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments
        .patch_scale("w", &PatchParams::default(), &smaller)
        .await
        .unwrap();
    let status =
        Patch::Merge(json!({"status": {"observedGeneration": 3}, "spec": {"replicas": 9}}));
    deployments
        .patch_status("w", &PatchParams::default(), &status)
        .await
        .unwrap();
    let found = deployments.get_status("w").await.unwrap();
    assert_eq!(
        (
            found.spec.unwrap().replicas,
            found.status.unwrap().observed_generation
        ),
        (Some(1), Some(3))
    );
    cluster.server.stop().await;
}

#[tokio::test]
async fn a_pods_logs_debug_and_eviction_requests_reach_their_subresources() {
    let cluster = cluster().await;
    cluster
        .server
        .local
        .api
        .set_node_dialer(Arc::new(Kubelet::default()));
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
    let node: Node =
        object(json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}}));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let own: ServiceAccount =
        object(json!({"metadata": {"name": "own"}, "automountServiceAccountToken": false}));
    cluster
        .api::<ServiceAccount>()
        .create(&PostParams::default(), &own)
        .await
        .unwrap();
    let pods = cluster.api::<Pod>();
    pods.create(&PostParams::default(), &pod("p"))
        .await
        .unwrap();
    assert_eq!(
        pods.logs("p", &LogParams::default()).await.unwrap(),
        "line 1\nline 2\n"
    );
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "x:1"}]}});
    let shown = pods
        .patch_ephemeral_containers("p", &PatchParams::default(), &Patch::Strategic(debugger))
        .await
        .unwrap();
    assert_eq!(shown.spec.unwrap().ephemeral_containers.unwrap().len(), 1);
    pods.evict("p", &EvictParams::default()).await.unwrap();
    assert!(
        pods.get("p")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some(),
        "its kubelet ends it"
    );
    cluster.server.stop().await;
}
