//! A cluster of one node for tests: the master's own API, in process, the kubelet, and the real
//! containerd.

use crate::api::InProcess;
use crate::site::{IMAGE, LIMIT, Site, eventually};
use agent_api::{Api, ApiError, Call};
use agent_cluster::{SandboxOptions, Sandboxes};
use agent_journal::Journal;
use agent_kubelet::{Config, Drain, Kubelet, Machine, Thresholds};
use agent_proxy::View;
use agent_runtime::Containerd;
use agent_server::Server;
use config_kube::k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, Pod};
use config_model::ShutdownGrace;
use config_model::host_path::HostPath;
use http::Method;
use master_admission::EnabledPlugins;
use master_api::{ApiServer, Options};
use master_client::{Client, DeleteParams, ListParams, UserInfo};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Name of the cluster's node.
pub(crate) const NODE: &str = "worker-1";

/// A master, a node's parts, and a kubelet that can be stopped and started again.
pub(crate) struct Cluster {
    pub(crate) site: Site,
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
    host_paths: Vec<HostPath>,
    /// None at first: this host's free resources must not affect the node.
    thresholds: Thresholds,
    privileged: bool,
    owns_machine: bool,
    static_pods: Vec<Pod>,
    /// Whether the node follows the objects of services and network policies.
    follows: bool,
    /// What its present agent knows of these.
    pub(crate) view: View,
    kubelet: Option<(watch::Sender<bool>, JoinHandle<()>, JoinHandle<()>)>,
    engine: Option<Arc<Containerd>>,
    /// The machine's addresses.
    pub(crate) addresses: watch::Sender<Vec<IpAddr>>,
    /// Whether the master gives the node no answers; its open watches go on.
    pub(crate) away: Arc<AtomicBool>,
    /// The paths of the node's calls so far, watches aside.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    pub(crate) port: Option<Server>,
    /// What ends its pods with the machine.
    pub(crate) drain: Option<Drain>,
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        Self::at(Site::new()).await
    }

    pub(crate) async fn at(site: Site) -> Self {
        let store = master_store::EmbeddedStore::open(&site.dir.path().join("store")).unwrap();
        let roles = master_control::roles(&master_controllers::all());
        let options = Options {
            roles,
            // It keeps from the kubelet what a node can never carry out, and that is shown here,
            // too.
            admission: EnabledPlugins::new(&[], &["PodResizeValidator"]).unwrap(),
            ..Options::default()
        };
        let server = ApiServer::new(Arc::new(store), options);
        server.prepare().await.unwrap();
        let admin = server.client(UserInfo::admin("admin"));
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
        admin.create(&node).await.unwrap();
        let mut cluster = Self {
            site,
            server,
            admin,
            host_paths: Vec::new(),
            thresholds: Thresholds::none(),
            privileged: false,
            owns_machine: false,
            static_pods: Vec::new(),
            follows: false,
            view: View::default(),
            kubelet: None,
            engine: None,
            addresses: watch::channel(vec![Ipv4Addr::LOCALHOST.into()]).0,
            away: Arc::default(),
            asked: Arc::default(),
            port: None,
            drain: None,
        };
        cluster.begin();
        cluster
    }

    /// The same machine after a boot with another configuration.
    pub(crate) async fn again(mut self, host_paths: Vec<HostPath>) -> Self {
        self.end().await;
        self.host_paths = host_paths;
        self.begin();
        self
    }

    /// The same machine, whose agent ends in the middle of what it does; another one starts.
    pub(crate) async fn killed(mut self) -> Self {
        let (_shutdown, running, following) = self.kubelet.take().unwrap();
        for task in [running, following] {
            task.abort();
            assert!(task.await.is_err());
        }
        self.engine = None;
        self.begin();
        self
    }

    /// The same machine, whose configuration allows privileged pods.
    pub(crate) async fn with_privileged_pods(mut self) -> Self {
        self.end().await;
        self.privileged = true;
        self.begin();
        self
    }

    /// The same machine, which is the node's own now: the kernel keeps all pods of this host within
    /// what the node gives them, which is nearly all there is.
    pub(crate) async fn owning_machine(mut self) -> Self {
        self.end().await;
        self.owns_machine = true;
        self.begin();
        self
    }

    /// The same machine, whose configuration has these pods.
    pub(crate) async fn with_static_pods(mut self, manifests: &[&str]) -> Self {
        self.end().await;
        let read = |text: &&str| config_static_pods::read(text, NODE).unwrap();
        self.static_pods = manifests.iter().map(read).collect();
        self.begin();
        self
    }

    /// The same machine with other thresholds.
    pub(crate) async fn under(mut self, thresholds: Thresholds) -> Self {
        self.end().await;
        self.thresholds = thresholds;
        self.begin();
        self
    }

    /// The same machine, whose node follows the cluster's network policies.
    pub(crate) async fn following(mut self) -> Self {
        self.end().await;
        self.follows = true;
        self.begin();
        self
    }

    /// Whether every container of a pod has ended, or waits with a reason why it can't start.
    pub(crate) async fn ran(&self, name: &str) -> bool {
        let status = self
            .pod(name)
            .await
            .and_then(|pod| pod.status)
            .unwrap_or_default();
        let all = status.container_statuses.unwrap_or_default();
        let state = |one: &ContainerStatus| one.state.clone().unwrap_or_default();
        let waits = |one: &ContainerStatus| {
            state(one)
                .waiting
                .is_some_and(|waiting| waiting.message.is_some())
        };
        !all.is_empty()
            && all
                .iter()
                .all(|one| state(one).terminated.is_some() || waits(one))
    }

    pub(crate) fn config(&self) -> Config {
        let path = |name: &str| self.site.dir.path().join(name);
        Config {
            node_name: NODE.into(),
            addresses: self.addresses.subscribe(),
            port: 10250,
            machine: Machine {
                data: path("kubelet"),
                run: path("run"),
                logs: path("pods"),
                host_paths: self.host_paths.clone(),
                privileged: self.privileged,
                pids: 512,
                unsafe_sysctls: Vec::new(),
                resolv_conf: PathBuf::from("/etc/resolv.conf"),
                hosts: PathBuf::from("/etc/hosts"),
            },
            parallel_pulls: 5,
            owns_machine: self.owns_machine,
            max_pods: 120,
            reserved_memory: 64 << 20,
            reserved_cpu_millis: 100,
            reserved_storage: 0,
            thresholds: self.thresholds.clone(),
            shutdown: ShutdownGrace::of(LIMIT, LIMIT),
            os_image: "Pratique test".into(),
            notices: agent_kubelet::Notices::default(),
            cluster: self.follows.then(|| self.view.clone()),
            static_pods: self.static_pods.clone(),
            pod_routes: false,
        }
    }

    /// Starts an agent's worth of kubelet and engine.
    pub(crate) fn begin(&mut self) {
        self.view = View::default();
        let engine = self.site.agent();
        let following = tokio::spawn({
            let engine = engine.clone();
            async move { engine.run().await }
        });
        let user = UserInfo::authenticated(&format!("system:node:{NODE}"), ["system:nodes"]);
        let api = Arc::new(InProcess {
            server: self.server.clone(),
            user,
            away: self.away.clone(),
            asked: self.asked.clone(),
        });
        let (shutdown, ended) = watch::channel(false);
        let options = SandboxOptions {
            run: self.site.dir.path().join("run/pods"),
            ledger: self.site.dir.path().join("pod-addresses.json"),
            kubernetes_only: false,
            tunnel: false,
        };
        let sandboxes = Arc::new(Sandboxes::open(options).unwrap());
        let kubelet = Kubelet::new(self.config(), api, engine.clone(), sandboxes);
        let journal = Journal::new(agent_journal::LogPaths {
            folder: self.site.dir.path().join("machine-logs"),
            ..agent_journal::LogPaths::default()
        });
        self.engine = Some(engine);
        self.port = Some(kubelet.server(journal));
        self.drain = Some(kubelet.drain());
        let running = tokio::spawn(kubelet.run(ended));
        self.kubelet = Some((shutdown, running, following));
    }

    pub(crate) async fn end(&mut self) {
        let (shutdown, running, following) = self.kubelet.take().unwrap();
        shutdown.send(true).unwrap();
        running.await.unwrap();
        following.abort();
        assert!(following.await.is_err());
        self.engine = None;
    }

    /// The kubelet's own engine. Another one that looks at containers deletes tasks that have
    /// ended beside it, by which a shim can be left for ever (containerd#12344).
    pub(crate) fn engine(&self) -> Arc<Containerd> {
        self.engine.clone().unwrap()
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!(NODE);
        if spec.get("hostNetwork").is_none() {
            spec["hostNetwork"] = json!(true);
        }
        // No controllers run here, so the test publishes the root's certificate that the token's
        // volume needs.
        spec["automountServiceAccountToken"] = json!(false);
        let meta = json!({"name": name, "namespace": "default", "labels": {"app": name}});
        let pod: Pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap();
        self.admin.create(&pod).await.unwrap();
    }

    /// An admin's request, which must succeed.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) {
        self.send(method, path, agent_api::JSON, body).await;
    }

    /// A change of an object by an admin, which must succeed.
    pub(crate) async fn patch(&self, path: &str, change: &Value) {
        let form = agent_api::STRATEGIC_MERGE;
        self.send(Method::PATCH, path, form, change).await;
    }

    async fn send(&self, method: Method, path: &str, form: &'static str, body: &Value) {
        let api = InProcess {
            server: self.server.clone(),
            user: UserInfo::admin("admin"),
            away: Arc::default(),
            asked: Arc::default(),
        };
        let call = Call {
            method,
            path: path.to_owned(),
            content_type: form,
            body: body.to_string().into(),
        };
        api.call(call).await.unwrap();
    }

    /// A request of the node's own; the code of a refusal.
    pub(crate) async fn as_node(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<(), u16> {
        let api = InProcess {
            server: self.server.clone(),
            user: UserInfo::authenticated(&format!("system:node:{NODE}"), ["system:nodes"]),
            away: Arc::default(),
            asked: Arc::default(),
        };
        let call = Call {
            method,
            path: path.to_owned(),
            content_type: agent_api::JSON,
            body: body.to_string().into(),
        };
        match api.call(call).await {
            Ok(_) => Ok(()),
            Err(ApiError::Status { code, .. }) => Err(code),
            Err(error) => unreachable!("{}", error.chain()),
        }
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        self.admin
            .get_opt::<Pod>(Some("default"), name)
            .await
            .unwrap()
    }

    /// Waits until the pod's status has what is looked for at a JSON pointer.
    pub(crate) async fn reaches(&self, name: &str, pointer: &str, wanted: Value) -> Value {
        let start = Instant::now();
        loop {
            let pod = self.pod(name).await;
            let status = serde_json::to_value(pod.and_then(|pod| pod.status)).unwrap();
            if status.pointer(pointer) == Some(&wanted) {
                return status;
            }
            assert!(
                start.elapsed() < LIMIT,
                "waited {} s for {pointer} of {name} to be {wanted}: {status}",
                LIMIT.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits for an event with this reason and returns its message.
    pub(crate) async fn event(&self, reason: &str) -> String {
        eventually(reason, || async {
            let events = self
                .admin
                .list::<Event>(Some("default"), &ListParams::default())
                .await
                .unwrap()
                .items;
            events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some(reason))?
                .message
        })
        .await
    }

    pub(crate) async fn delete(&self, name: &str, grace: i64) {
        let params = DeleteParams {
            grace_period_seconds: Some(grace),
            ..DeleteParams::default()
        };
        self.admin
            .delete::<Pod>(Some("default"), name, &params)
            .await
            .unwrap();
    }

    pub(crate) fn log(&self, pod: &Pod, attempt: u32) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap();
        let name = pod.metadata.name.as_deref().unwrap();
        let path = self
            .config()
            .machine
            .logs
            .join(format!("default_{name}_{uid}"))
            .join("main")
            .join(format!("{attempt}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

pub(crate) fn shell(script: &str) -> Value {
    json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script]})
}
