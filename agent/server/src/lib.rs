//! The kubelet's own API on port 10250: logs of pods and of the machine, tunnels, pods, what they
//! use, the agent's figures, folders of persistent volumes, and the machine's end.
//!
//! Enter by [`Server::new`], which takes the parts of the node that answers come from ([`Parts`]),
//! and by [`serve`]. What only the kubelet knows it provides by [`KubeletState`]. TLS verified a
//! certificate to the cluster's root, or the caller has a token; the master says who that is and
//! whether it may (`reviews`, [`agent_port::Access`]). Other callers get no information, not even
//! about health.
//!
//! Tasks: one for each connection, which are [`agent_port`]'s, and a look at pods' disks and
//! questions to drivers of volumes after a request for figures. One channel takes the order that
//! ends the machine to the daemon ([`Server::ending_by`]).

#[doc(hidden)]
pub mod decoders;
mod logs;
mod power;
mod reader;
mod reviews;
mod running;
mod zpages;

pub use reader::log_end;

use agent_api::Api;
use agent_claims::Folders;
use agent_cluster::{Sandboxes, link_name, rules};
use agent_csi::Csi;
use agent_journal::Journal;
use agent_pods::{find, is_on_host, pod_ref};
use agent_port::{Access, Body, Caller, Limits, Reply, answer, text};
use agent_resources::machine::Facts;
use agent_resources::{Disk, Figures, Links, MetricsRequest, Space, Subjects};
use agent_runtime::{Error, PodRef, Runtime};
use agent_sys::namespace::Kind;
use agent_tunnel::{ForwardTarget, Reach, Tunnel, TunnelRefusal, Tunnels};
use config_figures::Health;
use config_kube::k8s_openapi::List;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use config_kube::local_volume::SERVED;
use config_machine::power::{Order, is_order};
use config_tunnel::port::{FOLDER, PortPath};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use rustls::ServerConfig;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// The links of pods, of which figures are read.
pub const POD_LINKS: Links = Links {
    prefix: rules::LINKS,
    name: link_name,
};

/// What only the node's kubelet knows.
pub trait KubeletState: Send + Sync + fmt::Debug + 'static {
    /// The pods that are to run here, as the last watch reported them.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// A pod by namespace and name; the newest where one of the same name still ends.
    fn pod(&self, namespace: &str, name: &str) -> Option<PodRef>;

    /// The pod's status as the kubelet found it last, whether or not the master has it yet.
    fn status(&self, pod: &PodRef) -> Option<PodStatus>;

    /// The UID under which a pod runs here, by the UID of its object in the API. They differ for
    /// static pods.
    fn uid_of(&self, shown: &str) -> String;

    /// The kubelet's settings: the JSON document of `/configz`. Nothing of it is secret.
    fn settings(&self) -> String;

    /// The version of Kubernetes that it speaks: `v1.36.0`.
    fn version(&self) -> &'static str;
}

/// What the answers come from.
#[derive(Debug)]
pub struct Parts {
    /// The node's kubelet.
    pub node: Arc<dyn KubeletState>,
    /// Name of the Node, for which the master is asked whether a caller may.
    pub name: String,
    /// The machine's addresses; at the first one pods in its network are reached.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// The folder of all pods' logs: `/var/log/pods`.
    pub logs: PathBuf,
    /// The master's API, by which callers are authenticated and authorized.
    pub api: Arc<dyn Api>,
    /// The container engine.
    pub runtime: Arc<dyn Runtime>,
    /// Where pods are reached.
    pub sandboxes: Arc<Sandboxes>,
    /// What this node and its pods use.
    pub figures: Arc<Figures>,
    /// What the machine has.
    pub facts: Facts,
    /// The folders of persistent volumes.
    pub folders: Arc<Folders>,
    /// The drivers of volumes.
    pub csi: Arc<Csi>,
    /// The machine's own logs.
    pub journal: Journal,
}

/// Whether a path is one that can be read.
fn is_read(path: &[&str]) -> bool {
    let own = matches!(
        path,
        ["healthz" | "pods" | "configz" | "metrics" | "runningpods" | "statusz" | "flagz"]
            | ["runningpods", ""]
            | ["metrics", "slis"]
            | ["healthz", "ping"]
            | ["logs", ..]
            | ["containerLogs", _, _, _]
    );
    own || MetricsRequest::of(path, None).is_some()
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Answers requests to the kubelet.
#[derive(Debug, Clone)]
pub struct Server {
    parts: Arc<Parts>,
    tunnels: Tunnels,
    access: Access,
    /// When it began to answer.
    started: Timestamp,
    /// How its checks of health ended.
    health: Arc<Health>,
    /// Receives the order that ends the machine; `None` where the agent can't end it.
    power: Option<mpsc::Sender<Order>>,
}

/// Serves the kubelet's API until `shutdown` is true or its sender is gone.
///
/// `tls` must verify client certificates against the cluster's root, and let callers without one
/// in: they may have a token.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Server,
    shutdown: watch::Receiver<bool>,
) {
    agent_port::serve(Limits::default(), listener, tls, server, shutdown).await;
}

impl agent_port::RequestHandler for Server {
    async fn answer(&self, caller: Caller, mut request: Request<Incoming>) -> Reply {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let headers = request.headers().clone();
        if is_order(uri.path()) {
            return power::answer(self.power.as_ref(), &caller, &method, uri.path());
        }
        let reviews = &*self.parts;
        let admitted = self
            .access
            .admit(reviews, &caller, &method, uri.path(), &headers);
        match admitted.await {
            Ok(()) => {
                let path: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
                self.parts.figures.done().asked(method.as_str(), &path);
                self.asked(&mut request).await
            }
            Err(denied) => Reply::Whole(text(denied.status, &format!("{denied}\n"))),
        }
    }
}

impl Server {
    /// A server that answers from these parts.
    pub fn new(parts: Parts) -> Self {
        Self {
            parts: Arc::new(parts),
            tunnels: Tunnels::new(agent_tunnel::MOST),
            access: Access::default(),
            started: Timestamp::now(),
            health: Arc::default(),
            power: None,
        }
    }

    /// The same, on a machine that ends as its master orders through this channel.
    #[must_use]
    pub fn ending_by(self, orders: mpsc::Sender<Order>) -> Self {
        Self {
            power: Some(orders),
            ..self
        }
    }

    /// Answers an authorized request.
    async fn asked(&self, request: &mut Request<Incoming>) -> Reply {
        let uri = request.uri().clone();
        let path: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let asked =
            MetricsRequest::of(&path, uri.query()).filter(|_| request.method() == Method::GET);
        if let Some(asked) = asked {
            return self.node_metrics(asked).await;
        }
        let granted = match path.as_slice() {
            [FOLDER, ..] => self.pod_port(request, &path).await,
            ["exec", space, pod, name] => self.exec(request, [space, pod, name]).await,
            ["attach", space, pod, name] => self.attach(request, [space, pod, name]).await,
            ["portForward", namespace, pod] => self.forward(request, namespace, pod),
            ["logs", below @ ..] if request.method() == Method::GET => {
                let query = uri.query().unwrap_or_default();
                return Reply::Whole(self.parts.journal.answer(below, query).await);
            }
            ["metrics"] if request.method() == Method::GET => {
                return Reply::Whole(self.own_figures().await);
            }
            ["runningpods"] | ["runningpods", ""] if request.method() == Method::GET => {
                return Reply::Whole(self.running_pods().await);
            }
            [SERVED, name] => return Reply::Whole(self.volume(request, name).await),
            _ => return Reply::Whole(self.plain(request, &path)),
        };
        granted.map_or_else(
            |refusal| Reply::Whole(text(refusal.status, &format!("{refusal}\n"))),
            |Tunnel { head, work }| Reply::Tunnel(head, work),
        )
    }

    /// A pod of this node.
    fn pod(&self, namespace: &str, name: &str) -> Result<PodRef, TunnelRefusal> {
        let found = self.parts.node.pod(namespace, name);
        let why = || format!("pod {name:?} not found on this node");
        found.ok_or_else(|| TunnelRefusal::new(StatusCode::NOT_FOUND, why()))
    }

    /// Ports of a pod that has its sandbox.
    fn forward(
        &self,
        request: &mut Request<Incoming>,
        namespace: &str,
        pod: &str,
    ) -> Result<Tunnel, TunnelRefusal> {
        let pod = self.pod(namespace, pod)?;
        let sandbox = self.parts.sandboxes.find(&pod.uid);
        let why = || format!("pod {:?} is not running", pod.name);
        let sandbox = sandbox.ok_or_else(|| TunnelRefusal::new(StatusCode::BAD_REQUEST, why()))?;
        let network = sandbox.held(Kind::Network);
        self.tunnels
            .forward(request, ForwardTarget { pod, network })
    }

    /// A port of a pod, for the API's proxy.
    async fn pod_port(
        &self,
        request: &mut Request<Incoming>,
        path: &[&str],
    ) -> Result<Tunnel, TunnelRefusal> {
        let asked = PortPath::parse(path);
        let asked = asked.ok_or_else(|| {
            TunnelRefusal::new(StatusCode::BAD_REQUEST, "this is no port of a pod")
        })?;
        let parts = &self.parts;
        let all = parts.node.pods();
        let uid = parts.node.uid_of(asked.uid);
        let named = all.iter().find(|pod| {
            let meta = &pod.metadata;
            meta.uid.as_deref() == Some(uid.as_str())
                && meta.namespace.as_deref() == Some(asked.namespace)
                && meta.name.as_deref() == Some(asked.pod)
        });
        let why = || format!("pod {:?} not found on this node", asked.pod);
        let named = named.and_then(|pod| Some((pod, pod_ref(pod)?)));
        let (pod, reference) =
            named.ok_or_else(|| TunnelRefusal::new(StatusCode::NOT_FOUND, why()))?;
        let reach = || {
            let sandbox = parts.sandboxes.find(&uid)?;
            if is_on_host(pod) {
                return parts
                    .addresses
                    .borrow()
                    .first()
                    .copied()
                    .map(Reach::Machine);
            }
            sandbox.addresses.first().copied().map(Reach::Own)
        };
        let tunnels = &self.tunnels;
        tunnels
            .reach(request, reference, pod, asked.port, reach)
            .await
    }

    /// What the node and its pods use.
    async fn node_metrics(&self, asked: MetricsRequest) -> Reply {
        let parts = &self.parts;
        let subjects = || async {
            let seen = parts.runtime.list(None).await;
            Subjects::new(&parts.node.pods(), seen, POD_LINKS, parts.facts.space())
        };
        if let MetricsRequest::Summary {
            only_cpu_and_memory: false,
        } = asked
        {
            self.look_at_disks();
        }
        let metrics = parts.figures.answer(asked, subjects).await;
        Reply::Whole(answer(StatusCode::OK, asked.media_type(), metrics.into()))
    }

    /// Measures the pods' disk usage in the background, for later answers: a slow disk delays no
    /// answer.
    fn look_at_disks(&self) {
        let parts = self.parts.clone();
        tokio::spawn(async move {
            let disks = parts.figures.disks();
            disks.look(&*parts.runtime, parts.facts.space()).await;
        });
        self.ask_drivers();
    }

    /// Asks the drivers of volumes how much of these is used, in the background, for later answers.
    fn ask_drivers(&self) {
        let (csi, disks) = (self.parts.csi.clone(), self.parts.figures.disks().clone());
        tokio::spawn(async move {
            let ask = |path: PathBuf| {
                let csi = csi.clone();
                async move { csi.usage(&path).await.map(space) }
            };
            disks.ask_drivers(ask).await;
        });
    }

    /// A command in a running container.
    async fn exec(
        &self,
        request: &mut Request<Incoming>,
        [namespace, pod, container]: [&str; 3],
    ) -> Result<Tunnel, TunnelRefusal> {
        let (_, id) = self.container(namespace, pod, container).await?;
        self.tunnels.exec(request, self.parts.runtime.clone(), id)
    }

    /// The streams of a running container's own process. One of `stdinOnce` reads to the end of one
    /// client; a terminal has no such end, and can be attached to again.
    async fn attach(
        &self,
        request: &mut Request<Incoming>,
        [namespace, pod, container]: [&str; 3],
    ) -> Result<Tunnel, TunnelRefusal> {
        let (pod, id) = self.container(namespace, pod, container).await?;
        let all = self.parts.node.pods();
        let own = all
            .iter()
            .find(|one| one.metadata.uid.as_ref() == Some(&pod.uid));
        let once = own
            .and_then(|pod| find(pod, container))
            .is_some_and(|(_, one)| one.stdin_once == Some(true) && one.tty != Some(true));
        let runtime = self.parts.runtime.clone();
        self.tunnels.attach(request, runtime, id, once)
    }

    /// A pod of this node, and the id of its container that runs.
    async fn container(
        &self,
        namespace: &str,
        pod: &str,
        name: &str,
    ) -> Result<(PodRef, String), TunnelRefusal> {
        let pod = self.pod(namespace, pod)?;
        let seen = self.parts.runtime.list(Some(&pod.uid)).await;
        let down =
            |error: Error| TunnelRefusal::new(StatusCode::SERVICE_UNAVAILABLE, error.chain());
        let seen = seen.map_err(down)?;
        let id = agent_tunnel::running(&seen, &pod, name)?;
        Ok((pod, id))
    }

    /// The folder of a persistent volume is made or removed.
    async fn volume(&self, request: &Request<Incoming>, name: &str) -> Response<Body> {
        let (parts, name) = (self.parts.clone(), name.to_owned());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let done = tokio::task::spawn_blocking(move || {
            let query = uri.query().unwrap_or_default();
            parts.folders.answer(method.as_str(), &name, query)
        });
        let (status, line) = done.await.unwrap_or((503, "the kubelet ends\n".to_owned()));
        let status = StatusCode::from_u16(status);
        text(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &line)
    }

    /// What is answered without a tunnel.
    fn plain(&self, request: &Request<Incoming>, path: &[&str]) -> Response<Body> {
        if request.method() != Method::GET {
            // What is not served at all is answered first, as upstream's kubelet does: clients see
            // by 404 that a node lacks a part such as checkpoints.
            return if is_read(path) {
                text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n")
            } else {
                not_found()
            };
        }
        match path {
            ["healthz"] | ["healthz", "ping"] => {
                self.note_health();
                text(StatusCode::OK, "ok")
            }
            ["metrics", "slis"] => {
                self.note_health();
                let metrics = self.health.write();
                answer(StatusCode::OK, config_figures::CONTENT_TYPE, metrics.into())
            }
            ["pods"] => self.pods(),
            ["configz"] => {
                let body = self.parts.node.settings();
                answer(StatusCode::OK, "application/json", body.into())
            }
            ["flagz"] => text(StatusCode::OK, &zpages::flags(&self.parts.node.settings())),
            ["statusz"] => {
                let version = self.parts.node.version();
                let page = zpages::status(self.started, Timestamp::now(), version);
                text(StatusCode::OK, &page)
            }
            ["containerLogs", namespace, pod, container] => {
                let query = request.uri().query().unwrap_or_default();
                logs::answer(&self.parts, namespace, pod, container, query)
            }
            _ => not_found(),
        }
    }

    /// Notes that the server is healthy: that it answers is all that the check asks for.
    fn note_health(&self) {
        self.health.note("healthz", [("ping", true)]);
    }

    /// Metrics of the kubelet's work, of its way to the master, and of the agent's process.
    async fn own_figures(&self) -> Response<Body> {
        let parts = &self.parts;
        self.ask_drivers();
        // An engine that is down runs nothing that could be counted.
        let seen = parts.runtime.list(None).await.unwrap_or_default();
        let done = parts.figures.done().text(&parts.name, &seen);
        let disks = parts.figures.disks().clone();
        let claims = tokio::task::spawn_blocking(move || disks.claims()).await;
        let own = agent_sys::figures::of_this_process().text();
        let metrics = done + &claims.unwrap_or_default() + &parts.api.figures() + &own;
        answer(StatusCode::OK, config_figures::CONTENT_TYPE, metrics.into())
    }

    fn pods(&self) -> Response<Body> {
        let pods = self.parts.node.pods();
        let items = pods.iter().map(|pod| Pod::clone(pod)).collect();
        Self::list(&List {
            items,
            ..List::default()
        })
    }

    /// The pods that run, as the engine reports them.
    async fn running_pods(&self) -> Response<Body> {
        match self.parts.runtime.list(None).await {
            Ok(seen) => Self::list(&running::pods(&seen)),
            Err(error) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("{}\n", error.chain()),
            ),
        }
    }

    fn list(pods: &List<Pod>) -> Response<Body> {
        match serde_json::to_vec(pods) {
            Ok(body) => answer(StatusCode::OK, "application/json", body.into()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        }
    }
}

/// A driver's figures of a volume.
fn space(usage: agent_csi::Usage) -> Space {
    Space {
        disk: Disk {
            size: usage.bytes.total,
            free: usage.bytes.available,
            inodes: usage.inodes.total,
            free_inodes: usage.inodes.available,
        },
        used: Some(usage.bytes.used),
        inodes_used: Some(usage.inodes.used),
    }
}

#[cfg(test)]
mod tests;
