//! The kubelet's own API: logs, tunnels, pods, what they use, and the agent's figures, for the master alone.
//!
//! A connection is trusted for what its certificate says: TLS verified the chain to the cluster's root, and here
//! the subject must be the API server. Everything else is 401 or 403, but for nothing: not even health is told.

use crate::cleanup::MAX_LOGS;
use crate::kubelet::Shared;
use crate::logs::{Reader, Wish};
use crate::names::{log_folder, log_name};
use agent_port::{Limits, Place, Room};
use agent_resources::{Question, Subjects};
use agent_runtime::{ContainerState, Error, PodRef};
use agent_sys::beneath::Beneath;
use agent_sys::namespace::Kind;
use agent_tunnel::{Ports, Refusal, Tunnel, Tunnels};
use bytes::Bytes;
use config_kube::identity::APISERVER_KUBELET_USER;
use config_kube::k8s_openapi::List;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::local_volume::SERVED;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Between two looks for more of a log that is followed.
const FOLLOW: Duration = Duration::from_millis(200);
/// Bytes of a log that are sent in one piece.
const PIECE: usize = 32 * 1024;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// How a request is answered.
enum Answer {
    Whole(Response<Body>),
    /// The connection is the tunnel's from then on.
    Tunnel(Tunnel),
}

/// Answers requests to the kubelet.
#[derive(Debug, Clone)]
pub struct Server {
    shared: Arc<Shared>,
    tunnels: Tunnels,
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Master,
    Other,
    Nobody,
}

impl Caller {
    /// From the certificates that TLS verified.
    fn of(certificates: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(leaf) = certificates.and_then(<[_]>::first) else {
            return Self::Nobody;
        };
        let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else {
            return Self::Other;
        };
        let mut names = leaf.subject().iter_common_name();
        match (
            names.next().and_then(|name| name.as_str().ok()),
            names.next(),
        ) {
            (Some(APISERVER_KUBELET_USER), None) => Self::Master,
            _ => Self::Other,
        }
    }
}

/// Serves the kubelet's API until `shutdown` is true or its sender is gone.
///
/// `tls` must verify client certificates against the cluster's root; whether it asks for one or insists, callers
/// without are turned away.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Server,
    shutdown: watch::Receiver<bool>,
) {
    serve_within(Limits::default(), listener, tls, server, shutdown).await;
}

async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Server,
    mut shutdown: watch::Receiver<bool>,
) {
    let port = Port {
        acceptor: TlsAcceptor::from(tls),
        masters: Arc::new(Semaphore::new(limits.master)),
        patience: limits.patience,
        server,
    };
    let (room, mut connections) = (Room::new(limits), JoinSet::new());
    loop {
        tokio::select! {
            // Accepting loses no connection when it is dropped; the channel keeps its value.
            () = asked_to_end(&mut shutdown) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => room.admit(from.ip(), &mut connections, |place| {
                    port.clone().connection(stream, place)
                }),
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    sleep(FOLLOW).await;
                }
            },
        }
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

/// What a connection needs.
#[derive(Clone)]
struct Port {
    acceptor: TlsAcceptor,
    /// The master's own connections.
    masters: Arc<Semaphore>,
    patience: Duration,
    server: Server,
}

impl Port {
    /// One connection, in a stranger's place until its certificate is the master's.
    async fn connection(self, stream: TcpStream, place: Place) {
        let Ok(Ok(tls)) = timeout(self.patience, self.acceptor.accept(stream)).await else {
            tracing::debug!("TLS handshake at the kubelet's port failed");
            return;
        };
        let caller = Caller::of(tls.get_ref().1.peer_certificates());
        let (slot, place) = if caller == Caller::Master {
            drop(place);
            (self.masters.try_acquire_owned().ok(), None)
        } else {
            (None, Some(place))
        };
        let busy = caller == Caller::Master && slot.is_none();
        let server = self.server;
        // What goes on when HTTP on this connection has ended: a tunnel, if one was granted.
        let granted = Arc::new(Mutex::new(None));
        let grant = granted.clone();
        let service = service_fn(move |mut request| {
            let (server, grant) = (server.clone(), grant.clone());
            async move {
                Ok::<_, Infallible>(if busy {
                    text(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "the kubelet answers as many requests at once as it may: try again\n",
                    )
                } else {
                    match server.answer(caller, &mut request).await {
                        Answer::Whole(response) => response,
                        Answer::Tunnel(Tunnel { head, work }) => {
                            *grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
                            head.map(|()| empty())
                        }
                    }
                })
            }
        });
        let http = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.patience)
            // Who gets nothing but a refusal gets it once.
            .keep_alive(slot.is_some())
            .serve_connection(TokioIo::new(tls), service)
            .with_upgrades();
        if let Err(error) = http.await {
            tracing::debug!(%error, "connection at the kubelet's port ended");
        }
        let work = granted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(work) = work {
            work.await;
        }
        drop((slot, place));
    }
}

/// Waits until the value is true or its sender is gone.
async fn asked_to_end(shutdown: &mut watch::Receiver<bool>) {
    drop(shutdown.wait_for(|ended| *ended).await);
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            tunnels: Tunnels::new(agent_tunnel::MOST),
        }
    }

    async fn answer(&self, caller: Caller, request: &mut Request<Incoming>) -> Answer {
        match caller {
            Caller::Master => {}
            Caller::Nobody => {
                return Answer::Whole(text(
                    StatusCode::UNAUTHORIZED,
                    "Unauthorized: a client certificate is needed\n",
                ));
            }
            Caller::Other => {
                return Answer::Whole(text(
                    StatusCode::FORBIDDEN,
                    "Forbidden: only the API server may ask the kubelet\n",
                ));
            }
        }
        let uri = request.uri().clone();
        let path: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let asked = Question::of(&path, uri.query()).filter(|_| request.method() == Method::GET);
        if let Some(asked) = asked {
            return self.told(asked).await;
        }
        let granted = match path.as_slice() {
            ["exec", space, pod, name] => self.exec(request, [space, pod, name]).await,
            ["attach", space, pod, name] => self.attach(request, [space, pod, name]).await,
            ["portForward", namespace, pod] => self.forward(request, namespace, pod),
            [SERVED, name] => return Answer::Whole(self.volume(request, name).await),
            _ => return Answer::Whole(self.plain(request, &path)),
        };
        granted.map_or_else(
            |refusal| Answer::Whole(text(refusal.status, &format!("{refusal}\n"))),
            Answer::Tunnel,
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
            .filter(|one| one.metadata.uid.as_ref() == Some(&pod.uid));
        let once = own
            .filter_map(|pod| pod.spec.as_ref())
            .flat_map(|spec| [Some(&spec.containers), spec.init_containers.as_ref()])
            .flatten()
            .flatten()
            .filter(|one| one.name == container)
            .any(|one| one.stdin_once == Some(true) && one.tty != Some(true));
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
                    && let Some(text) = reader.next()?
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

fn empty() -> Body {
    Full::new(Bytes::new())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

fn text(status: StatusCode, message: &str) -> Response<Body> {
    answer(
        status,
        "text/plain",
        Bytes::copy_from_slice(message.as_bytes()),
    )
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(
        Full::new(body)
            .map_err(|never: Infallible| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static(kind),
    );
    response
}

#[cfg(test)]
mod tests;
