//! The server: what it is made of, and the way of a request through it.

use crate::accept::Accept;
use crate::admit::{Admission, Chain};
use crate::authorize::{self, Question};
use crate::client::Client;
use crate::discovery;
use crate::error::{ApiError, Reason};
use crate::hooks::{DenyList, Extensions, NodeDialer};
use crate::kinds;
use crate::metrics::Metrics;
use crate::openapi::Documents;
use crate::path::{Query, Target, Verb};
use crate::peer::Peer;
use crate::registry::Registry;
use crate::selector::Selector;
use crate::user::UserInfo;
use crate::verbs::{self, Call};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use master_store::{Op, Store, StoreError};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Why a body broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A request's or answer's body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body of bytes that are there.
pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// Limits of the server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that a request's body may have (upstream: 3 MiB).
    pub body_bytes: usize,
    /// Requests that may be worked on at once, watches aside; more get 429.
    pub in_flight: usize,
    /// Watches that may be open at once; more get 429.
    pub watches: usize,
    /// Which admission plugins are on.
    pub admission: Admission,
}

impl Default for Options {
    fn default() -> Self {
        Self { body_bytes: 3 << 20, in_flight: 600, watches: 20_000, admission: Admission::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) admission: Chain,
    documents: Documents,
    metrics: Metrics,
    in_flight: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    prepared: AtomicBool,
    extensions: OnceLock<Arc<dyn Extensions>>,
    deny_list: OnceLock<Arc<dyn DenyList>>,
    node_dialer: OnceLock<Arc<dyn NodeDialer>>,
    draining: CancellationToken,
}

/// Namespaces that always are.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The API server. Cheap to clone; all clones are one server.
#[derive(Debug, Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

impl ApiServer {
    /// A server over a store. It is ready after [`ApiServer::prepare`].
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let inner = Inner {
            store,
            registry: Registry::new(kinds::all()),
            admission: Chain::new(&options.admission),
            documents: Documents::default(),
            metrics: Metrics::default(),
            in_flight: Arc::new(Semaphore::new(options.in_flight)),
            watches: Arc::new(Semaphore::new(options.watches)),
            options,
            prepared: AtomicBool::new(false),
            extensions: OnceLock::new(),
            deny_list: OnceLock::new(),
            node_dialer: OnceLock::new(),
            draining: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Makes the namespaces that always are. `/readyz` fails before it is done.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        let client = self.client(UserInfo::admin("system:apiserver"));
        for name in NAMESPACES {
            let mut namespace = config_kube::k8s_openapi::api::core::v1::Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            match client.create(&namespace).await {
                Ok(_) => {}
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
            }
        }
        self.inner.prepared.store(true, Ordering::Release);
        Ok(())
    }

    /// Hangs in further paths, once; whether it was the first.
    pub fn set_extensions(&self, extensions: Arc<dyn Extensions>) -> bool {
        self.inner.extensions.set(extensions).is_ok()
    }

    /// Hangs in the deny list, once; whether it was the first.
    pub fn set_deny_list(&self, deny_list: Arc<dyn DenyList>) -> bool {
        self.inner.deny_list.set(deny_list).is_ok()
    }

    /// Hangs in the way to nodes, once; whether it was the first.
    pub fn set_node_dialer(&self, dialer: Arc<dyn NodeDialer>) -> bool {
        self.inner.node_dialer.set(dialer).is_ok()
    }

    /// Ends open watches; `/readyz` fails from now on. [`crate::serve`] calls it at shutdown.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }

    pub(crate) fn draining(&self) -> CancellationToken {
        self.inner.draining.clone()
    }

    pub(crate) fn deny_list(&self) -> Option<&Arc<dyn DenyList>> {
        self.inner.deny_list.get()
    }

    pub(crate) fn node_dialer(&self) -> Option<&Arc<dyn NodeDialer>> {
        self.inner.node_dialer.get()
    }

    /// Why a caller is shut out, if it is.
    pub(crate) fn denial(&self, user: &UserInfo, peer: &Peer) -> Option<String> {
        self.deny_list()?.denied(user, peer)
    }

    /// Room for one more watch; callers inside the process are not counted.
    pub(crate) fn watch_permit(&self, peer: &Peer) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if peer.remote.is_none() {
            return Ok(None);
        }
        self.inner.watches.clone().try_acquire_owned().map(Some).map_err(|_full| too_many())
    }

    /// A client for callers inside the process.
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(self.clone(), user)
    }

    /// Answers a request that came over a connection.
    pub async fn handle(&self, request: Request<Body>, peer: Peer) -> Response<Body> {
        match UserInfo::of_peer(&peer) {
            Some(user) => self.handle_as(request, user, peer).await,
            None => respond(&ApiError::new(Reason::Unauthorized, "Unauthorized")),
        }
    }

    /// Answers a request of a known caller.
    pub async fn handle_as(&self, request: Request<Body>, user: UserInfo, peer: Peer) -> Response<Body> {
        let began = Instant::now();
        if let Some(why) = self.denial(&user, &peer) {
            return respond(&ApiError::new(Reason::Unauthorized, format!("Unauthorized: {why}")));
        }
        if let Some(extensions) = self.inner.extensions.get()
            && extensions.claims(request.uri().path())
        {
            let limit = self.inner.options.body_bytes;
            let request = request.map(|content| Limited::new(content, limit).boxed_unsync());
            return extensions.handle(request, peer, user).await;
        }
        let head = request.method() == Method::HEAD;
        let (verb, answer) = self.route(request, user, peer).await;
        let mut response = answer.unwrap_or_else(|error| respond(&error));
        self.inner.metrics.count(verb, response.status().as_u16(), began.elapsed());
        if head {
            *response.body_mut() = body(Bytes::new());
        }
        response
    }

    /// The answer, and the verb for the metrics.
    async fn route(
        &self,
        request: Request<Body>,
        user: UserInfo,
        peer: Peer,
    ) -> (&'static str, Result<Response<Body>, ApiError>) {
        let (parts, content) = request.into_parts();
        let query = match Query::parse(parts.uri.query().unwrap_or_default()) {
            Ok(query) => query,
            Err(error) => return ("unknown", Err(error)),
        };
        let path = parts.uri.path();
        let target = match Target::parse(&parts.method, path, &query) {
            Ok(Some(target)) => target,
            Ok(None) => return ("get", self.other(&user, &parts, path).await),
            Err(error) => return ("unknown", Err(error)),
        };
        let verb = target.verb;
        let answer = self.resource(target, query, parts.headers, user, peer, content).await;
        (verb.as_str(), answer)
    }

    async fn resource(
        &self,
        target: Target,
        query: Query,
        headers: http::HeaderMap,
        user: UserInfo,
        peer: Peer,
        content: Body,
    ) -> Result<Response<Body>, ApiError> {
        let kind = self.inner.registry.find(&target.group, &target.version, &target.plural).cloned();
        let selector = match (&kind, target.verb) {
            (Some(kind), Verb::List | Verb::Watch | Verb::DeleteCollection) => {
                Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))?
            }
            _ => Selector::default(),
        };
        let question = Question { user: &user, target: &target, selector: &selector };
        authorize::resource(self, &question).await?;
        let kind = kind.ok_or_else(verbs::no_resource)?;
        // Held until the answer is made; a watch's body has a permit of its own.
        let _permit = match peer.remote {
            None => None,
            Some(_) => Some(self.inner.in_flight.try_acquire().map_err(|_full| too_many())?),
        };
        let call = Call { api: self.clone(), user, peer, target, query, headers, kind };
        verbs::run(call, content).await
    }

    /// Paths that are no resources.
    async fn other(
        &self,
        user: &UserInfo,
        parts: &http::request::Parts,
        path: &str,
    ) -> Result<Response<Body>, ApiError> {
        let verb = parts.method.as_str().to_lowercase();
        authorize::path(user, &verb, path)?;
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(crate::path::not_allowed());
        }
        let registry = &self.inner.registry;
        let trimmed = path.trim_end_matches('/');
        match trimmed {
            "/healthz" | "/livez" | "/readyz" => self.health(trimmed, parts.uri.query().unwrap_or_default()).await,
            "/metrics" => {
                let revision = self.inner.store.revision().await.unwrap_or_default();
                let watches = self.inner.options.watches - self.inner.watches.available_permits();
                let in_flight = self.inner.options.in_flight - self.inner.in_flight.available_permits();
                Ok(text(StatusCode::OK, self.inner.metrics.text(in_flight, watches, revision)))
            }
            "/version" => verbs::value_answer(StatusCode::OK, &discovery::version(), Accept::JSON),
            "/openapi/v3" => Ok(verbs::json_bytes(StatusCode::OK, self.inner.documents.index(registry).to_vec())),
            "/openapi/v2" => {
                let message = "OpenAPI v2 is not served: use /openapi/v3";
                Err(ApiError::new(Reason::NotFound, message))
            }
            _ if trimmed.starts_with("/openapi/v3/") => {
                let path = trimmed.trim_start_matches("/openapi/v3/");
                Ok(verbs::json_bytes(StatusCode::OK, self.inner.documents.document(registry, path)?.to_vec()))
            }
            _ if trimmed.starts_with("/api") => self.discover(parts, trimmed),
            _ => Err(verbs::no_resource()),
        }
    }

    fn discover(&self, parts: &http::request::Parts, path: &str) -> Result<Response<Body>, ApiError> {
        let aggregated = Accept::discovery(&parts.headers).filter(|_| matches!(path, "/api" | "/apis"));
        let value = discovery::answer(&self.inner.registry, path, aggregated)?;
        let mut response = verbs::value_answer(StatusCode::OK, &value, Accept::JSON)?;
        let kind = match aggregated {
            Some("v2") => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Some(_) => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            None => "application/json",
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        Ok(response)
    }

    /// Health by named checks. `livez` fails when the store's writer died, `readyz` also before preparation and
    /// while draining.
    async fn health(&self, path: &str, query: &str) -> Result<Response<Body>, ApiError> {
        let writes = self.inner.store.commit(vec![Op {
            key: "health/check".into(),
            expect: master_store::Expect::Any,
            action: master_store::Action::Check,
        }]);
        let mut checks = vec![("ping", true), ("store", !matches!(writes.await, Err(StoreError::Closed)))];
        if path != "/livez" {
            checks.push(("namespaces", self.inner.prepared.load(Ordering::Acquire)));
            checks.push(("shutdown", !self.inner.draining.is_cancelled()));
        }
        let healthy = checks.iter().all(|(_, good)| *good);
        let name = path.trim_start_matches('/');
        let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let verbose = query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="));
        if healthy && !verbose {
            return Ok(text(status, "ok".to_owned()));
        }
        let mut lines = String::new();
        for (check, good) in checks {
            let (sign, word) = if good { ('+', "ok") } else { ('-', "failed") };
            lines = format!("{lines}[{sign}]{check} {word}\n");
        }
        lines = format!("{lines}{name} check {}\n", if healthy { "passed" } else { "failed" });
        Ok(text(status, lines))
    }
}

fn too_many() -> ApiError {
    ApiError::new(Reason::TooManyRequests, "too many requests, please try again later").retry_after(1)
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(body(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A refusal as an answer.
pub(crate) fn respond(error: &ApiError) -> Response<Body> {
    let mut response = Response::new(body(error.to_status().to_string()));
    *response.status_mut() = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = error.details.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
