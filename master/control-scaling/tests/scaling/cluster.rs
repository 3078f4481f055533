//! An API over a store, the controllers of workloads and of autoscalers, and nodes that run every
//! pod at once.

use config_kube::FromJson as _;
use config_kube::identity::{CONTROLLER_MANAGER_USER, USAGE_USER};
use config_kube::k8s_openapi::api::core::v1::{Event, Node, Pod};
use jiff::Timestamp;
use master_api::{ApiServer, DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_client::{BoxFuture, Client, ListParams, Object, Patch, UserInfo};
use master_control::{Controllers, Registration};
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;

/// The only node; nothing schedules, so pods name it.
pub(crate) const NODE: &str = "n1";
const LIMIT: Duration = Duration::from_secs(240);

pub(crate) struct Cluster {
    pub(crate) admin: Client,
    api: ApiServer,
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

fn controllers() -> Vec<Registration> {
    [
        master_control_workloads::CONTROLLERS,
        master_control_scaling::CONTROLLERS,
    ]
    .concat()
}

impl Cluster {
    /// An API, without controllers and nodes.
    pub(crate) async fn without_controllers() -> Self {
        let store = TempDir::new().unwrap();
        let engine = EmbeddedStore::open(store.path()).unwrap();
        let options = Options {
            roles: master_control::roles(&controllers()),
            ..Options::default()
        };
        let api = ApiServer::new(Arc::new(engine), options);
        api.prepare().await.unwrap();
        Self {
            admin: api.client(UserInfo::admin("admin")),
            api,
            tasks: Vec::new(),
            _store: store,
        }
    }

    /// A cluster with one node, whose pods use this many thousandths of a CPU each. Below zero it
    /// reports nothing.
    pub(crate) async fn using(level: &Arc<AtomicI64>) -> Self {
        let mut cluster = Self::without_controllers().await;
        let (api, admin) = (&cluster.api, &cluster.admin);
        let own = UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new());
        let controllers = Controllers::of(&controllers(), master_control::Options::default())
            .run(api.client(own), std::future::pending());
        let meter = Meter::new(admin.clone(), level);
        assert!(api.set_node_dialer(Arc::new(meter)));
        let node = json!({"metadata": {"name": NODE},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        let node = Node::from_json(node.to_string().as_bytes()).unwrap();
        admin.create(&node).await.expect("it is made");
        let own = UserInfo::authenticated(USAGE_USER, Vec::<String>::new());
        let usage = master_usage::run(
            api.client(own),
            api.usage().clone(),
            master_usage::Options {
                period: Duration::from_secs(1),
                wanted_period: Duration::from_secs(1),
                ..master_usage::Options::default()
            },
            std::future::pending(),
        );
        cluster.tasks = vec![
            tokio::spawn(controllers),
            tokio::spawn(usage),
            tokio::spawn(play_nodes(admin.clone())),
        ];
        cluster
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

/// The node, as far as it is asked for figures.
#[derive(Debug, Clone)]
struct Meter {
    admin: Client,
    level: Arc<AtomicI64>,
    /// Milliseconds of CPU time that each pod has used by a time, in milliseconds since 1970.
    used: Arc<Mutex<(f64, i64)>>,
}

impl Meter {
    fn new(admin: Client, level: &Arc<AtomicI64>) -> Self {
        let now = Timestamp::now().as_millisecond();
        Self {
            admin,
            level: Arc::clone(level),
            used: Arc::new(Mutex::new((0.0, now))),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a test")]
    async fn figures(&self) -> Option<String> {
        let level = self.level.load(Ordering::Relaxed);
        let params = ListParams::default();
        let pods = self.admin.list::<Pod>(Some("default"), &params).await;
        let pods = pods.map(|list| list.items).unwrap_or_default();
        let (used, at) = {
            let mut known = self.used.lock().unwrap();
            let now = Timestamp::now().as_millisecond().max(known.1);
            known.0 += (now - known.1) as f64 * level.max(0) as f64 / 1000.0;
            known.1 = now;
            *known
        };
        let of = |pod: &Pod| {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let labels = format!("{{container=\"c\",namespace=\"default\",pod=\"{name}\"}}");
            let seconds = used / 1000.0;
            format!(
                "container_cpu_usage_seconds_total{labels} {seconds} {at}\n\
                 container_memory_working_set_bytes{labels} 1048576 {at}\n"
            )
        };
        (level >= 0).then(|| pods.iter().map(of).collect())
    }

    async fn speak(self, mut stream: DuplexStream) -> std::io::Result<()> {
        let _request = stream.read(&mut [0; 4096]).await?;
        let answer = match self.figures().await {
            Some(text) => format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            ),
            None => "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await
    }
}

impl NodeDialer for Meter {
    fn dial(&self, _: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, far) = tokio::io::duplex(16 << 10);
        tokio::spawn(self.clone().speak(far));
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
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
