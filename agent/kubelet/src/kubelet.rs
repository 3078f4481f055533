//! The kubelet as a whole: builds its parts, then runs them as a set of tasks.

use crate::capacity;
use crate::cluster;
use crate::config::Config;
use crate::configz;
use crate::garbage;
use crate::handle::Handle;
use crate::links;
use crate::mirrors::{self, Mirrors};
use crate::node;
use crate::oom;
use crate::pods::Pods;
use crate::ranges;
use crate::shared::Shared;
use agent_api::Api;
use agent_api::events::{self, Queue, Recorder};
use agent_claims::Folders;
use agent_cluster::Sandboxes;
use agent_content::Watched;
use agent_csi::Csi;
use agent_journal::Journal;
use agent_resources::machine::Facts;
use agent_resources::{Counted, Figures};
use agent_runtime::{NamedTurns, PULLS_OF_A_REGISTRY, PodRef, Runtime, Threads};
use agent_server::{KubeletState, Parts, Server};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Containers that are made and started at the same time: more only wait for the kernel's locks.
const STARTS: usize = 8;
/// Of these, those of one pod: an image, or a volume's file system, may delay the runtime.
const STARTS_OF_A_POD: usize = 2;

/// Pods that hold more than 256 KiB of config maps and secrets in memory at the same time, and
/// those of one namespace: each holds up to 20 MiB until its volumes are written.
pub(crate) const READING: usize = 4;
const READING_OF_A_NAMESPACE: usize = 2;

/// Containers with config maps and secrets for their environment variables in memory at the same
/// time, and those of one namespace: each holds up to 4 MiB until it runs.
const GATHERING: usize = 16;
const GATHERING_OF_A_NAMESPACE: usize = 4;

/// Containers that are being prepared (by a thread that looks into their volumes) or wait for their
/// turn to start: few enough for the limits of mounts and descriptors. Of these, those of one
/// namespace: as many as there are starts.
const PREPARED: usize = 48;
const PREPARED_OF_A_NAMESPACE: usize = STARTS;

/// Measurements of pods' disk usage at the same time, and removals of pods' files. Each blocks a
/// thread for a time that grows with the number of files.
const WALKS: usize = 2;
const REMOVALS: usize = 2;
/// Of both, those of one namespace.
const WALKS_OF_A_NAMESPACE: usize = 1;
/// Most blocking threads that all of these hold.
pub const BLOCKED_BY_WALKS: usize = WALKS + REMOVALS;

/// The kubelet: made first, then run; [`Kubelet::server`] answers the master meanwhile.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    queue: Queue,
}

impl Kubelet {
    /// A kubelet for this machine.
    pub fn new(
        config: Config,
        api: Arc<dyn Api>,
        runtime: Arc<dyn Runtime>,
        sandboxes: Arc<Sandboxes>,
    ) -> Self {
        let (events, queue) = Recorder::new();
        let facts = Facts::of_machine(&config.machine.data);
        let drivers = agent_csi::DriverOptions {
            data: config.machine.data.clone(),
            node: config.node_name.clone(),
            allowed: config.machine.privileged,
            call_limit: agent_csi::DriverOptions::CALL_LIMIT,
        };
        let figures = Arc::new(Figures::of_machine(&config.node_name));
        let runtime = Counted::new(runtime, figures.done().clone());
        let parallel_pulls = usize::try_from(config.parallel_pulls).unwrap_or(1);
        let shared = Shared {
            memory: facts.memory,
            folders: Arc::new(Folders::below(&config.machine.data)),
            watched: Watched::new(api.clone()),
            csi: Arc::new(Csi::open(drivers, api.clone())),
            facts,
            figures,
            pulls: NamedTurns::with_places(parallel_pulls, PULLS_OF_A_REGISTRY),
            config,
            api,
            runtime: Arc::new(runtime),
            sandboxes,
            policies: Arc::default(),
            events,
            pressure: Mutex::default(),
            images: tokio::sync::Mutex::default(),
            turns: NamedTurns::with_own_places(STARTS, STARTS_OF_A_POD),
            reading: NamedTurns::with_reserve(READING, READING_OF_A_NAMESPACE),
            gathering: NamedTurns::with_reserve(GATHERING, GATHERING_OF_A_NAMESPACE),
            preparing: Threads::new(PREPARED, PREPARED_OF_A_NAMESPACE),
            walks: NamedTurns::new(WALKS, WALKS_OF_A_NAMESPACE),
            removals: NamedTurns::new(REMOVALS, WALKS_OF_A_NAMESPACE),
            pods: Mutex::default(),
            listed: AtomicBool::default(),
            mirrors: Mirrors::default(),
            ends: watch::Sender::new(false),
            burstable: Mutex::default(),
            node: tokio::sync::Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            queue,
        }
    }

    /// What answers on the kubelet's port, with the machine's logs; see [`agent_server::serve`].
    pub fn server(&self, journal: Journal) -> Server {
        let shared = &self.shared;
        Server::new(Parts {
            node: shared.clone(),
            name: shared.config.node_name.clone(),
            addresses: shared.config.addresses.clone(),
            logs: shared.config.machine.logs.clone(),
            api: shared.api.clone(),
            runtime: shared.runtime.clone(),
            sandboxes: shared.sandboxes.clone(),
            figures: shared.figures.clone(),
            facts: shared.facts.clone(),
            folders: shared.folders.clone(),
            csi: shared.csi.clone(),
            journal,
        })
    }

    /// What ends the containers before the machine ends; see [`crate::Drain`].
    pub fn drain(&self) -> crate::Drain {
        crate::Drain::new(self.shared.clone())
    }

    /// Keeps pods, node status and Lease until `shutdown` is true or its sender is gone. Containers
    /// keep running.
    pub async fn run(self, mut shutdown: watch::Receiver<bool>) {
        let Self { shared, queue } = self;
        agent_launch::stage::begin(&shared.config.machine, shared.memory);
        let mut tasks = JoinSet::new();
        tasks.spawn(Pods::new(shared.clone()).run());
        tasks.spawn(node::keep_status(shared.clone()));
        tasks.spawn(node::keep_lease(shared.clone()));
        tasks.spawn(mirrors::keep(shared.clone()));
        tasks.spawn(capacity::enforce(shared.clone()));
        if shared.config.owns_machine {
            tasks.spawn(oom::watch(shared.clone()));
        }
        if let Some(view) = &shared.config.cluster {
            tasks.spawn(cluster::follow(shared.clone(), view.clone()));
            tasks.spawn(ranges::keep(shared.clone(), view.clone()));
            tasks.spawn(shared.policies.clone().run(shared.sandboxes.clone()));
            if shared.config.pod_routes {
                tasks.spawn(agent_cluster::keep_routes(
                    shared.sandboxes.clone(),
                    view.clone(),
                    shared.config.node_name.clone(),
                ));
            }
        }
        tasks.spawn(shared.csi.clone().run());
        tasks.spawn(garbage::collect(shared.clone()));
        tasks.spawn(links::keep(shared.clone()));
        tasks.spawn(crate::pressure::keep(shared.clone()));
        tasks.spawn(events::write(
            queue,
            shared.api.clone(),
            shared.config.node_name.clone(),
        ));
        tokio::select! {
            // Cancel-safe: the value stays in the channel, and the tasks in the set, whichever arm
            // is dropped.
            _ = shutdown.wait_for(|ended| *ended) => {}
            ended = tasks.join_next() => tracing::error!(?ended, "a kubelet task ended unexpectedly"),
        }
        tasks.shutdown().await;
    }
}

impl KubeletState for Shared {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.all_pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<PodRef> {
        self.pod_named(namespace, name)
    }

    fn status(&self, pod: &PodRef) -> Option<PodStatus> {
        let handles = self.handles();
        handles.get(&pod.uid).and_then(Handle::status)
    }

    fn uid_of(&self, shown: &str) -> String {
        let of_mirror = self.mirrors.shown_by(shown);
        of_mirror.unwrap_or_else(|| shown.to_owned())
    }

    fn settings(&self) -> String {
        configz::text(&self.config, &self.sandboxes)
    }

    fn version(&self) -> &'static str {
        node::KUBELET_VERSION
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use agent_api::{Answer, ApiError, Call, Lines};
    use agent_cluster::{Sandbox, SandboxOptions, SandboxSpec};
    use agent_proxy::View;
    use agent_runtime::{Containerd, Options, Registries};
    use agent_sys::namespace::{Kind, in_new};
    use futures_util::{StreamExt, stream};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Duration;
    use tokio::time::Instant;

    /// A master that gives no answer.
    #[derive(Debug)]
    struct Silent;

    impl Api for Silent {
        fn call(&self, _call: Call) -> Answer<'_, bytes::Bytes> {
            Box::pin(std::future::pending())
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    /// A master that refuses lists of more than five objects as too large, and pages shorter ones.
    #[derive(Debug)]
    pub(crate) struct Large(pub(crate) Vec<Value>);

    impl Large {
        fn page(&self, path: &str) -> Result<bytes::Bytes, ApiError> {
            let pairs = path
                .split(['?', '&'])
                .filter_map(|pair| pair.split_once('='));
            let query: BTreeMap<_, _> = pairs.collect();
            let number = |key| query.get(key).and_then(|text| text.parse::<usize>().ok());
            let from = number("continue").unwrap_or(0);
            let end = from.saturating_add(number("limit").unwrap_or(usize::MAX));
            let end = end.min(self.0.len());
            if end - from > 5 {
                return Err(ApiError::TooLarge(16 << 20));
            }
            let next = (end < self.0.len()).then(|| end.to_string());
            let metadata = json!({"resourceVersion": "9", "continue": next.unwrap_or_default()});
            let page = json!({"metadata": metadata, "items": self.0[from..end]});
            Ok(page.to_string().into())
        }
    }

    impl Api for Large {
        fn call(&self, call: Call) -> Answer<'_, bytes::Bytes> {
            Box::pin(std::future::ready(self.page(&call.path)))
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    /// A master without objects that ends each watch in order after a time.
    #[derive(Debug)]
    pub(crate) struct Ending {
        lives: Duration,
        asked: Mutex<Vec<Instant>>,
    }

    impl Ending {
        pub(crate) fn after(seconds: u64) -> Self {
            Self {
                lives: Duration::from_secs(seconds),
                asked: Mutex::default(),
            }
        }

        /// The times without a watch, between the end of each and the next.
        pub(crate) fn pauses(&self) -> Vec<Duration> {
            let asked = self.asked.lock().unwrap();
            let pairs = asked.iter().zip(asked.iter().skip(1));
            pairs
                .map(|(first, next)| (*next - *first).saturating_sub(self.lives))
                .collect()
        }
    }

    impl Api for Ending {
        fn call(&self, _call: Call) -> Answer<'_, bytes::Bytes> {
            let page = json!({"metadata": {"resourceVersion": "9"}, "items": []});
            Box::pin(std::future::ready(Ok(page.to_string().into())))
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            self.asked.lock().unwrap().push(Instant::now());
            let end = stream::once(tokio::time::sleep(self.lives));
            let lines: Lines = Box::pin(end.filter_map(|()| std::future::ready(None)));
            Box::pin(std::future::ready(Ok(lines)))
        }
    }

    /// What tasks share on a node whose master is silent and whose engine is not up; its folders
    /// all lie in `dir`.
    pub(crate) fn shared(dir: &Path) -> Arc<Shared> {
        shared_with(dir, Vec::new())
    }

    /// The same, with these static pods.
    pub(crate) fn shared_with(dir: &Path, static_pods: Vec<Pod>) -> Arc<Shared> {
        shared_of(dir, static_pods, Arc::new(Silent))
    }

    /// The same, of this master.
    pub(crate) fn shared_of(dir: &Path, static_pods: Vec<Pod>, api: Arc<dyn Api>) -> Arc<Shared> {
        let runtime = Containerd::new(Options {
            socket: dir.join("containerd.sock"),
            state: dir.join("state"),
            fifos: dir.join("fifos"),
            logs: dir.join("logs"),
            registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
            programs: None,
            archives: Vec::new(),
        });
        let sandboxes = Sandboxes::open(SandboxOptions {
            run: dir.join("pods"),
            ledger: dir.join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        });
        let config = Config {
            static_pods,
            cluster: Some(View::default()),
            ..crate::config::tests::config(dir)
        };
        let (runtime, sandboxes) = (Arc::new(runtime), Arc::new(sandboxes.unwrap()));
        Kubelet::new(config, api, runtime, sandboxes).shared
    }

    /// A pod with a host port; its UID is also its name.
    pub(crate) fn with_host_port(uid: &str) -> Pod {
        let port = json!({"containerPort": 80, "hostPort": 8080});
        let pod = json!({
            "metadata": {"namespace": "shop", "name": uid, "uid": uid},
            "spec": {"containers": [{"name": "main", "image": "x", "ports": [port]}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    /// Runs a test in a network namespace of its own, with [`shared_with`] and the sandbox of a pod
    /// whose UID is `a`. Needs root.
    pub(crate) fn beside_sandbox<F: Future<Output = ()>>(
        static_pods: Vec<Pod>,
        test: impl FnOnce(Arc<Shared>, Sandbox) -> F + Send,
    ) {
        in_new(&[Kind::Network], || {
            let dir = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let shared = shared_with(dir.path(), static_pods);
                let range = ["10.1.0.0/24".parse().unwrap()];
                shared.sandboxes.give_ranges(&range).unwrap();
                let wanted = SandboxSpec {
                    uid: "a".to_owned(),
                    network: true,
                    ..SandboxSpec::default()
                };
                let made = shared.sandboxes.make(&wanted).unwrap();
                test(shared.clone(), made).await;
                shared.sandboxes.remove("a").unwrap();
            });
            Ok(())
        })
        .unwrap();
    }
}
