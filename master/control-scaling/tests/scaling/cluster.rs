//! An API over a store, the controllers of workloads and of autoscalers, and nodes that run every pod at once.

use config_kube::identity::CONTROLLER_MANAGER_USER;
use config_kube::k8s_openapi::api::core::v1::{Event, Pod};
use jiff::Timestamp;
use master_api::{ApiServer, Options};
use master_client::{Client, ListParams, Object, Patch, Transport, UserInfo};
use master_control::Controllers;
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(240);

pub(crate) struct Cluster {
    pub(crate) admin: Client,
    tasks: Vec<JoinHandle<()>>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Cluster {
    /// A cluster whose controllers reach the API through something.
    pub(crate) async fn through(
        through: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Self {
        let list = [
            master_control_workloads::CONTROLLERS,
            master_control_scaling::CONTROLLERS,
        ]
        .concat();
        let store = TempDir::new().unwrap();
        let engine = EmbeddedStore::open(store.path()).unwrap();
        let options = Options {
            roles: master_control::roles(&list),
            ..Options::default()
        };
        let api = ApiServer::new(Arc::new(engine), options);
        api.prepare().await.unwrap();
        let own = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
        let own = Client::new(through(Arc::new(api.clone())), own);
        let controllers = Controllers::of(&list, master_control::Options::default())
            .run(own, std::future::pending());
        let admin = api.client(UserInfo::admin("admin"));
        let tasks = vec![
            tokio::spawn(controllers),
            tokio::spawn(play_nodes(admin.clone())),
        ];
        Self {
            admin,
            tasks,
            _store: store,
        }
    }

    pub(crate) async fn create<T: Object>(&self, object: Value) -> T {
        let object = T::from_json(object.to_string().as_bytes()).unwrap();
        self.admin.create(&object).await.expect("it is made")
    }

    pub(crate) async fn get<T: Object>(&self, name: &str) -> T {
        let found = self.admin.get(Some("default"), name).await;
        found.expect("it is there")
    }

    pub(crate) async fn reasons(&self) -> BTreeSet<String> {
        let params = ListParams::default();
        let list = self.admin.list::<Event>(Some("default"), &params).await;
        let events = list.expect("events are served").items.into_iter();
        events.filter_map(|event| event.reason).collect()
    }
}

/// Every pod runs and is ready as soon as it is seen.
async fn play_nodes(admin: Client) {
    loop {
        let pods = admin.list::<Pod>(None, &ListParams::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let phase = pod.status.and_then(|status| status.phase);
            if phase.as_deref() != Some("Pending") {
                continue;
            }
            let status = json!({"phase": "Running", "startTime": now(), "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": now()}]});
            let patch = Patch::Strategic(json!({"status": status}));
            let meta = &pod.metadata;
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            // It may have gone meanwhile.
            let _gone = admin
                .patch_status::<Pod>(namespace, name.unwrap_or_default(), &patch)
                .await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Waits until something holds.
pub(crate) async fn eventually<F: Future<Output = Result<(), String>>>(
    what: &str,
    mut check: impl FnMut() -> F,
) {
    let begun = tokio::time::Instant::now();
    loop {
        let found = check().await;
        let Err(last) = found else { return };
        assert!(begun.elapsed() < LIMIT, "{what}: {last}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
