//! The kubelet's own API: logs of pods and of the machine, tunnels, pods, what they use, and the agent's figures.
//!
//! TLS verified a certificate to the cluster's root, or the caller has a token; the master says who that is and whether it may
//! ([`agent_port::Access`]). Nothing is told to others, not even health.

use crate::cleanup::MAX_LOGS;
use crate::configz;
use crate::names::{log_folder, log_name, pod_ref};
use crate::network::is_on_host;
use crate::shared::Shared;
use agent_journal::Journal;
use agent_pods::find;
use agent_port::{Access, Answer, Body, Caller, Limits, answer, text};
use agent_resources::{Question, Subjects};
use agent_runtime::logs::{Reader, Wish};
use agent_runtime::{ContainerState, Error, PodRef};
use agent_sys::beneath::Beneath;
use agent_sys::namespace::Kind;
use agent_tunnel::{Ports, Reach, Refusal, Tunnel, Tunnels};
use bytes::Bytes;
use config_kube::k8s_openapi::List;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::local_volume::SERVED;
use config_tunnel::port::{FOLDER, PortPath};
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::Timestamp;
use rustls::ServerConfig;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

/// Between two looks for more of a log that is followed.
const FOLLOW: Duration = Duration::from_millis(200);
/// Bytes of a log that are sent in one piece.
const PIECE: usize = 32 * 1024;

/// Answers requests to the kubelet.
#[derive(Debug, Clone)]
pub struct Server {
    shared: Arc<Shared>,
    tunnels: Tunnels,
    access: Access,
    journal: Journal,
}

/// Serves the kubelet's API until `shutdown` is true or its sender is gone.
///
/// `tls` must verify client certificates against the cluster's root, and let callers without one in: they may have a token.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Server,
    shutdown: watch::Receiver<bool>,
) {
    agent_port::serve(Limits::default(), listener, tls, server, shutdown).await;
}

impl agent_port::Service for Server {
    async fn answer(&self, caller: Caller, mut request: Request<Incoming>) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let headers = request.headers().clone();
        let about = (&method, uri.path(), &headers);
        match self.access.admit(&*self.shared, &caller, about).await {
            Ok(()) => self.asked(&mut request).await,
            Err(denied) => Answer::Whole(text(denied.status, &format!("{denied}\n"))),
        }
    }
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>, journal: Journal) -> Self {
        Self {
            shared,
            tunnels: Tunnels::new(agent_tunnel::MOST),
            access: Access::default(),
            journal,
        }
    }

    /// Answers a caller who may ask this.
    async fn asked(&self, request: &mut Request<Incoming>) -> Answer {
        let uri = request.uri().clone();
        let path: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let asked = Question::of(&path, uri.query()).filter(|_| request.method() == Method::GET);
        if let Some(asked) = asked {
            return self.told(asked).await;
        }
        let granted = match path.as_slice() {
            [FOLDER, ..] => self.pod_port(request, &path).await,
            ["exec", space, pod, name] => self.exec(request, [space, pod, name]).await,
            ["attach", space, pod, name] => self.attach(request, [space, pod, name]).await,
            ["portForward", namespace, pod] => self.forward(request, namespace, pod),
            ["logs", below @ ..] if request.method() == Method::GET => {
                let query = uri.query().unwrap_or_default();
                return Answer::Whole(self.journal.answer(below, query).await);
            }
            [SERVED, name] => return Answer::Whole(self.volume(request, name).await),
            _ => return Answer::Whole(self.plain(request, &path)),
        };
        granted.map_or_else(
            |refusal| Answer::Whole(text(refusal.status, &format!("{refusal}\n"))),
            |Tunnel { head, work }| Answer::Tunnel(head, work),
        )
    }

    /// A pod of this node.
    fn pod(&self, namespace: &str, name: &str) -> Result<PodRef, Refusal> {
        let found = self.shared.pod_named(namespace, name);
        let why = || format!("pod {name:?} not found on this node");
        found.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, why()))
    }

    /// Ports of a pod that has its sandbox.
    fn forward(
        &self,
        request: &mut Request<Incoming>,
        namespace: &str,
        pod: &str,
    ) -> Result<Tunnel, Refusal> {
        let pod = self.pod(namespace, pod)?;
        let sandbox = self.shared.sandboxes.find(&pod.uid);
        let why = || format!("pod {:?} is not running", pod.name);
        let sandbox = sandbox.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, why()))?;
        let network = sandbox.held(Kind::Network);
        self.tunnels.forward(request, Ports { pod, network })
    }

    /// A port of a pod, for the API's proxy.
    async fn pod_port(
        &self,
        request: &mut Request<Incoming>,
        path: &[&str],
    ) -> Result<Tunnel, Refusal> {
        let asked = PortPath::parse(path);
        let asked = asked
            .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "this is no port of a pod"))?;
        let shared = &self.shared;
        let all = shared.all_pods();
        let named = all.iter().find(|pod| {
            let meta = &pod.metadata;
            meta.uid.as_deref() == Some(asked.uid)
                && meta.namespace.as_deref() == Some(asked.namespace)
                && meta.name.as_deref() == Some(asked.pod)
        });
        let why = || format!("pod {:?} not found on this node", asked.pod);
        let named = named.and_then(|pod| Some((pod, pod_ref(pod)?)));
        let (pod, reference) = named.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, why()))?;
        let reach = || {
            let sandbox = shared.sandboxes.find(asked.uid)?;
            if is_on_host(pod) {
                return shared.config.addresses.first().copied().map(Reach::Machine);
            }
            sandbox.addresses.first().copied().map(Reach::Own)
        };
        let tunnels = &self.tunnels;
        tunnels
            .reach(request, reference, pod, asked.port, reach)
            .await
    }

    /// What the node and its pods use.
    async fn told(&self, asked: Question) -> Answer {
        let shared = &self.shared;
        let subjects = || async {
            let seen = shared.runtime.list(None).await;
            Subjects::new(&shared.all_pods(), seen, shared.facts.space())
        };
        let told = shared.figures.answer(asked, subjects).await;
        Answer::Whole(answer(StatusCode::OK, asked.media_type(), told.into()))
    }

    /// A command in a running container.
    async fn exec(
        &self,
        request: &mut Request<Incoming>,
        [namespace, pod, container]: [&str; 3],
    ) -> Result<Tunnel, Refusal> {
        let (_, id) = self.container(namespace, pod, container).await?;
        self.tunnels.exec(request, self.shared.runtime.clone(), id)
    }

    /// The streams of a running container's own process. One of `stdinOnce` reads to the end of one client; a terminal has no
    /// such end, and can be attached to again.
    async fn attach(
        &self,
        request: &mut Request<Incoming>,
        [namespace, pod, container]: [&str; 3],
    ) -> Result<Tunnel, Refusal> {
        let (pod, id) = self.container(namespace, pod, container).await?;
        let all = self.shared.all_pods();
        let own = all
            .iter()
            .find(|one| one.metadata.uid.as_ref() == Some(&pod.uid));
        let once = own
            .and_then(|pod| find(pod, container))
            .is_some_and(|(_, one)| one.stdin_once == Some(true) && one.tty != Some(true));
        let runtime = self.shared.runtime.clone();
        self.tunnels.attach(request, runtime, id, once)
    }

    /// A pod of this node, and the id of its container that runs.
    async fn container(
        &self,
        namespace: &str,
        pod: &str,
        name: &str,
    ) -> Result<(PodRef, String), Refusal> {
        let pod = self.pod(namespace, pod)?;
        let seen = self.shared.runtime.list(Some(&pod.uid)).await;
        let down = |error: Error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.chain());
        let seen = seen.map_err(down)?;
        let id = agent_tunnel::running(&seen, &pod, name)?;
        Ok((pod, id))
    }

    /// The folder of a persistent volume is made or removed.
    async fn volume(&self, request: &Request<Incoming>, name: &str) -> Response<Body> {
        let (shared, name) = (self.shared.clone(), name.to_owned());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let done = tokio::task::spawn_blocking(move || {
            let query = uri.query().unwrap_or_default();
            shared.folders.answer(method.as_str(), &name, query)
        });
        let (status, line) = done.await.unwrap_or((503, "the kubelet ends\n".to_owned()));
        let status = StatusCode::from_u16(status);
        text(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &line)
    }

    /// What is answered without a tunnel.
    fn plain(&self, request: &Request<Incoming>, path: &[&str]) -> Response<Body> {
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n");
        }
        match path {
            ["healthz"] => text(StatusCode::OK, "ok"),
            ["pods"] => self.pods(),
            ["metrics"] => figures(),
            ["configz"] => {
                let body = configz::text(&self.shared.config, &self.shared.sandboxes);
                answer(StatusCode::OK, "application/json", body.into())
            }
            ["containerLogs", namespace, pod, container] => self.logs(
                namespace,
                pod,
                container,
                request.uri().query().unwrap_or_default(),
            ),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    fn pods(&self) -> Response<Body> {
        let items = self
            .shared
            .all_pods()
            .iter()
            .map(|pod| Pod::clone(pod))
            .collect();
        match serde_json::to_vec(&List::<Pod> {
            items,
            ..List::default()
        }) {
            Ok(body) => answer(StatusCode::OK, "application/json", body.into()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        }
    }

    fn logs(&self, namespace: &str, pod: &str, container: &str, query: &str) -> Response<Body> {
        let wish = match Wish::parse(query, Timestamp::now()) {
            Ok(wish) => wish,
            Err(fault) => return text(StatusCode::BAD_REQUEST, &format!("{fault}\n")),
        };
        let Some(reference) = self.shared.pod_named(namespace, pod) else {
            return text(StatusCode::NOT_FOUND, &format!("pod {pod:?} not found\n"));
        };
        let config = &self.shared.config;
        let opened = crate::names::is_plain(container).then(|| {
            let dir = Beneath::root(&config.logs)?.dir(&log_folder(&reference, container))?;
            Ok(log_number(&dir, wish.previous)?.map(|number| (dir, number)))
        });
        let opened: std::io::Result<Option<_>> = opened.unwrap_or(Ok(None));
        let (dir, number) = match opened {
            Ok(Some(found)) => found,
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return broken(container, &error);
            }
            Ok(None) | Err(_) => {
                let what = if wish.previous {
                    "previous terminated container"
                } else {
                    "container"
                };
                let message =
                    format!("{what} {container:?} in pod {pod:?} not found: it has not started\n");
                return text(StatusCode::BAD_REQUEST, &message);
            }
        };
        match Reader::open(dir, &log_name(number), wish.clone()) {
            Ok(reader) => {
                let path = config.log_file(&reference, container, number);
                let body = StreamBody::new(pieces(
                    self.shared.clone(),
                    reader,
                    wish.follow,
                    reference.uid,
                    path,
                ));
                let mut response = Response::new(BodyExt::boxed_unsync(body));
                response.headers_mut().insert(
                    http::header::CONTENT_TYPE,
                    http::HeaderValue::from_static("text/plain"),
                );
                response
            }
            Err(error) => broken(container, &error),
        }
    }
}

/// What the kernel tells of the agent.
fn figures() -> Response<Body> {
    let told = agent_sys::figures::of_this_process().text();
    answer(StatusCode::OK, config_figures::CONTENT_TYPE, told.into())
}

/// The number of the newest attempt that has a log, or of the one before it.
fn log_number(dir: &Beneath, previous: bool) -> std::io::Result<Option<u32>> {
    let number =
        |name: std::ffi::OsString| name.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    let mut all: Vec<u32> = dir
        .names(MAX_LOGS)?
        .into_iter()
        .filter_map(number)
        .collect();
    all.sort_unstable();
    let newest = all.pop();
    Ok(if previous { all.pop() } else { newest })
}

/// The answer where a log can't be read. The error names no path.
fn broken(container: &str, error: &std::io::Error) -> Response<Body> {
    text(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("log of {container:?}: {error}\n"),
    )
}

/// The log in pieces; with `follow` until its container has ended and all was sent.
fn pieces(
    shared: Arc<Shared>,
    reader: Reader,
    follow: bool,
    uid: String,
    path: PathBuf,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send {
    let state = (shared, reader, uid, path, false);
    stream::try_unfold(
        state,
        move |(shared, mut reader, uid, path, mut ended)| async move {
            loop {
                let mut piece = Vec::new();
                while piece.len() < PIECE
                    && let Some(text) = reader.piece()?
                {
                    piece.extend(text);
                }
                if !piece.is_empty() {
                    return Ok(Some((
                        Frame::data(Bytes::from(piece)),
                        (shared, reader, uid, path, ended),
                    )));
                }
                if !follow || reader.finished() || ended {
                    return Ok(None);
                }
                sleep(FOLLOW).await;
                // One more read follows: what was written before the end is in the file by then.
                ended = !runs(&shared, &uid, &path).await;
            }
        },
    )
    .boxed()
}

/// True while the container whose log this is may write.
async fn runs(shared: &Shared, uid: &str, path: &std::path::Path) -> bool {
    let Ok(seen) = shared.runtime.list(Some(uid)).await else {
        return true;
    };
    seen.iter().any(|seen| {
        let log = shared
            .config
            .log_file(&seen.key.pod, &seen.key.container, seen.key.attempt);
        log == path && !matches!(seen.state, ContainerState::Exited { .. })
    })
}

#[cfg(test)]
mod tests;
