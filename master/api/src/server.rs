//! The server: its parts, and the path of a request through it.

use crate::admit::Chain;
use crate::allocate;
use crate::authenticate::{self, TokenIssuer, impersonate};
use crate::authorize::{self, Authorizer};
use crate::encoding::{self, Encoding};
use crate::guard::Caller;
use crate::hooks::{DenyList, Extensions, NodeDialer};
use crate::metrics::{About, Metrics};
use crate::openapi::Documents;
use crate::options::Options;
use crate::path::{Query, Target, Verb};
use crate::paths::counted;
use crate::peer::Peer;
use crate::verbs::{self, Call};
use bytes::Bytes;
use config_kube::identity::{self, MASTERS_GROUP};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use master_client::{Body, BoxFuture, Client, Resource, Transport, UserInfo, body};
use master_kinds::builtin as kinds;
use master_schema::error::{ApiError, Reason};
use master_schema::registry::{Kind, Registry};
use master_schema::selector::Selector;
use master_store::Store;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

/// Interval between two repairs of service addresses and node ports (upstream's).
const REPAIR_PERIOD: Duration = Duration::from_secs(180);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) admission: Chain,
    pub(crate) authorizer: Authorizer,
    pub(crate) issuer: Option<Arc<TokenIssuer>>,
    pub(crate) documents: Documents,
    pub(crate) metrics: Metrics,
    reads: Semaphore,
    writes: Semaphore,
    watches: Arc<Semaphore>,
    pub(crate) snapshots: Arc<Semaphore>,
    pub(crate) node_calls: Arc<verbs::NodeCalls>,
    prepared: AtomicBool,
    pub(crate) extensions: OnceLock<Arc<dyn Extensions>>,
    deny_list: OnceLock<Arc<dyn DenyList>>,
    node_dialer: OnceLock<Arc<dyn NodeDialer>>,
    draining: CancellationToken,
}

/// The API server. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

impl Transport for ApiServer {
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(self.handle_as(request, user, Peer::default()))
    }

    fn resources(&self) -> Vec<Resource> {
        let mut tables: Vec<&str> = Vec::new();
        let mut found = Vec::new();
        for kind in self
            .inner
            .registry
            .kinds()
            .iter()
            .filter(|kind| kind.review.is_none())
        {
            if !tables.contains(&kind.table.as_str()) {
                tables.push(&kind.table);
                found.push(Resource::of(kind));
            }
        }
        found
    }
}

impl ApiServer {
    /// A server over a store. It is ready after [`ApiServer::prepare`].
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let inner = Inner {
            store,
            registry: Registry::new(kinds::all()),
            admission: Chain::new(&options.admission),
            authorizer: Authorizer::new(&options.authorization),
            issuer: options
                .issuer
                .clone()
                .or_else(|| TokenIssuer::ephemeral().map(Arc::new)),
            documents: Documents::default(),
            metrics: Metrics::default(),
            reads: Semaphore::new(options.in_flight),
            writes: Semaphore::new(options.in_flight_mutating),
            watches: Arc::new(Semaphore::new(options.watches)),
            snapshots: crate::snapshot::room(),
            node_calls: verbs::NodeCalls::new(&options.nodes),
            options,
            prepared: AtomicBool::new(false),
            extensions: OnceLock::new(),
            deny_list: OnceLock::new(),
            node_dialer: OnceLock::new(),
            draining: CancellationToken::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Creates what every cluster has from the start. `/readyz` fails until it is done.
    ///
    /// # Errors
    /// The store or the API refuses one of the writes; a later call creates what is missing.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        let client = self.client(UserInfo::admin("system:apiserver"));
        crate::prepare::prepare(&client).await?;
        let roles = authorize::bootstrap::reconcile(&client, &self.inner.options.roles);
        futures_util::future::try_join(roles, crate::fairness::reconcile(&client)).await?;
        allocate::prepare(self, &client).await?;
        self.inner.prepared.store(true, Ordering::Release);
        Ok(())
    }

    /// Checks once that all service addresses and node ports are allocated to their services,
    /// repairs the allocations, and returns how many were wrong.
    ///
    /// # Errors
    /// The store cannot be read, or refuses a repair for another reason than a concurrent change.
    pub async fn repair_allocations(&self) -> Result<usize, ApiError> {
        allocate::repair(self, &self.client(UserInfo::admin("system:apiserver"))).await
    }

    /// Repairs allocations at once and then periodically; never returns.
    pub async fn keep_allocations(&self) {
        loop {
            if let Err(error) = self.repair_allocations().await {
                tracing::warn!(%error, "the addresses and node ports of services cannot be checked");
            }
            tokio::time::sleep(REPAIR_PERIOD).await;
        }
    }

    /// Registers the handler of further paths, once; returns whether it was the first.
    pub fn set_extensions(&self, extensions: Arc<dyn Extensions>) -> bool {
        self.inner.extensions.set(extensions).is_ok()
    }

    /// Registers the deny list, once; returns whether it was the first.
    pub fn set_deny_list(&self, deny_list: Arc<dyn DenyList>) -> bool {
        self.inner.deny_list.set(deny_list).is_ok()
    }

    /// Registers the dialer for nodes, once; returns whether it was the first.
    pub fn set_node_dialer(&self, dialer: Arc<dyn NodeDialer>) -> bool {
        self.inner.node_dialer.set(dialer).is_ok()
    }

    pub(crate) fn prepared(&self) -> bool {
        self.inner.prepared.load(Ordering::Acquire)
    }

    /// Requests in flight, under upstream's names of their kinds.
    pub(crate) fn running(&self) -> [(&'static str, usize); 2] {
        let (inner, options) = (&self.inner, &self.inner.options);
        [
            (
                "readOnly",
                options.in_flight - inner.reads.available_permits(),
            ),
            (
                "mutating",
                options.in_flight_mutating - inner.writes.available_permits(),
            ),
        ]
    }

    /// A permit to work on a request. Callers inside the process and members of `system:masters`
    /// need none, so that an admin can act on an overloaded server (upstream exempts them too).
    fn permit(
        &self,
        verb: Verb,
        user: &UserInfo,
        peer: &Peer,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        if peer.remote.is_none() || user.in_group(MASTERS_GROUP) {
            return Ok(None);
        }
        let mutating = !reads(verb);
        let room = if mutating {
            &self.inner.writes
        } else {
            &self.inner.reads
        };
        room.try_acquire().map(Some).map_err(|_full| {
            self.inner.metrics.refuse(mutating);
            too_many()
        })
    }

    /// Ends open watches and makes `/readyz` fail. [`crate::serve`] calls it at shutdown.
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

    /// The reason why a caller is denied, if it is.
    pub(crate) fn denial(&self, user: &UserInfo, peer: &Peer) -> Option<String> {
        self.deny_list()?.denied(user, peer)
    }

    /// The reason why a node is denied, if it is.
    pub(crate) fn node_denial(&self, node: &str) -> Option<String> {
        self.deny_list()?.node_denied(node)
    }

    /// Waits until `why` finds a reason in the deny list; for ever if there is no deny list.
    pub(crate) async fn until_denied(
        &self,
        why: impl Fn(&dyn DenyList) -> Option<String>,
    ) -> String {
        let Some(list) = self.deny_list() else {
            return std::future::pending().await;
        };
        let mut changed = list.changed();
        loop {
            if let Some(why) = why(list.as_ref()) {
                return why;
            }
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// A permit for one more watch; callers inside the process need none.
    pub(crate) fn watch_permit(
        &self,
        peer: &Peer,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if peer.remote.is_none() {
            return Ok(None);
        }
        self.inner
            .watches
            .clone()
            .try_acquire_owned()
            .map(Some)
            .map_err(|_full| {
                self.inner.metrics.refuse(false);
                too_many()
            })
    }

    /// A client for callers inside the process.
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(Arc::new(self.clone()), user)
    }

    /// Answers a request that came over a connection.
    pub async fn handle(&self, request: Request<Body>, peer: Peer) -> Response<Body> {
        let mut request = request;
        match authenticate::caller(self, request.headers_mut(), &peer).await {
            Ok(user) => {
                if let Some(slot) = &peer.slot
                    && !user.in_group(identity::UNAUTHENTICATED_GROUP)
                {
                    slot.identify(&user.name);
                }
                self.handle_as(request, user, peer).await
            }
            Err(error) => respond(&error),
        }
    }

    /// Answers a request of an authenticated caller.
    ///
    /// Guarantee: if the caller is denied while the answer is being made, the answer is not sent.
    pub async fn handle_as(
        &self,
        request: Request<Body>,
        user: UserInfo,
        peer: Peer,
    ) -> Response<Body> {
        if let Some(why) = self.denial(&user, &peer) {
            return denied(&why);
        }
        let Some(caller) = Caller::of(&user, &peer) else {
            return self.answer(request, user, peer).await;
        };
        // Subscribed before the last check, so that no change is missed between the two.
        let response = self.answer(request, user, peer).await;
        let guarded = caller.clone().guard(self, response);
        match caller.denial(self) {
            Some(why) => denied(&why),
            None => guarded,
        }
    }

    /// Answers a caller that is not denied.
    async fn answer(&self, request: Request<Body>, user: UserInfo, peer: Peer) -> Response<Body> {
        let began = Instant::now();
        let mut request = request;
        let user = match impersonate::apply(self, user, request.headers_mut()).await {
            Ok(user) => user,
            Err(error) => return respond(&error),
        };
        if let Some(extensions) = self.inner.extensions.get()
            && extensions.claims(request.uri().path())
        {
            let limit = self.inner.options.body_bytes;
            let request = request.map(|content| Limited::new(content, limit).boxed_unsync());
            return extensions.handle(request, peer, user).await;
        }
        let head = request.method() == Method::HEAD;
        let (parts, content) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let (about, encoding, answer) = match query.and_then(|query| query.timeout().map(|_| query))
        {
            Ok(query) => {
                let encoding = Encoding::of(&parts.headers, &query);
                let (about, answer) = self.route(parts, query, content, user, peer).await;
                (about, encoding, answer)
            }
            Err(error) => (About::path("", ""), Encoding::default(), Err(error)),
        };
        let response = answer.unwrap_or_else(|error| respond(&error));
        self.inner
            .metrics
            .count(&about, response.status().as_u16(), began.elapsed());
        let mut response = encoding::finish(response, encoding);
        if head {
            if let Some(size) = response.body().size_hint().exact() {
                response
                    .headers_mut()
                    .insert(header::CONTENT_LENGTH, HeaderValue::from(size));
            }
            *response.body_mut() = body(Bytes::new());
        }
        response
    }

    /// The answer, and what the request was about (for metrics).
    async fn route(
        &self,
        parts: Parts,
        query: Query,
        content: Body,
        user: UserInfo,
        peer: Peer,
    ) -> (About, Result<Response<Body>, ApiError>) {
        let path = parts.uri.path();
        let target = match Target::parse(&parts.method, path, &query) {
            Ok(Some(target)) => target,
            Ok(None) => {
                let about = About::path(
                    if parts.method == Method::HEAD {
                        "HEAD"
                    } else {
                        "GET"
                    },
                    counted(path),
                );
                let verb = parts.method.as_str().to_lowercase();
                let answer = match authorize::path(self, &user, &verb, path).await {
                    Ok(()) => self.other(&parts, &query).await,
                    Err(error) => Err(error),
                };
                return (about, answer);
            }
            Err(error) => return (About::path("", ""), Err(error)),
        };
        let kind = self
            .inner
            .registry
            .find(&target.group, &target.version, &target.plural)
            .cloned();
        let about = About::resource(&target, kind.as_ref(), query.has("dryRun"));
        let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
        let limit = query
            .timeout()
            .ok()
            .flatten()
            .filter(|_| !target.is_stream());
        let asked = ResourceRequest {
            target,
            query,
            kind,
            about: about.clone(),
            method,
            uri,
            headers,
        };
        let answer = match limit {
            None => self.resource(asked, user, peer, content).await,
            Some(limit) => {
                tokio::time::timeout(limit, Box::pin(self.resource(asked, user, peer, content)))
                    .await
                    .unwrap_or_else(|_elapsed| Err(out_of_time()))
            }
        };
        (about, answer)
    }

    async fn resource(
        &self,
        asked: ResourceRequest,
        user: UserInfo,
        peer: Peer,
        content: Body,
    ) -> Result<Response<Body>, ApiError> {
        let ResourceRequest {
            target,
            query,
            kind,
            about,
            method,
            uri,
            headers,
        } = asked;
        let selector = match (&kind, target.verb) {
            (Some(kind), Verb::List | Verb::Watch | Verb::DeleteCollection) => {
                Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))?
            }
            _ => Selector::default(),
        };
        authorize::resource(self, &user, &target, &selector).await?;
        let kind = kind.ok_or_else(verbs::no_resource)?;
        // Held until the answer is made; a watch's body has a permit of its own.
        let _permit = self.permit(target.verb, &user, &peer)?;
        let deprecated = kind.deprecated;
        let own = target.group == identity::GROUP && peer.remote.is_some() && !query.has("dryRun");
        let written =
            (own && !reads(target.verb)).then(|| (target.plural.clone(), target.name.clone()));
        let call = Call {
            api: self.clone(),
            user,
            peer,
            target,
            query,
            headers,
            kind,
            about,
            method,
            uri,
        };
        let answer = verbs::run(call, content).await;
        let answer = match (answer, written) {
            (Ok(response), Some((plural, name))) if response.status().is_success() => {
                self.acknowledged(response, &plural, name).await
            }
            (answer, _) => answer,
        };
        match deprecated {
            // A refusal carries the warning too.
            Some(words) => Ok(verbs::warned(
                answer.unwrap_or_else(|error| respond(&error)),
                &[words.to_owned()],
            )),
            None => answer,
        }
    }
}

impl ApiServer {
    /// Delays the answer to a write of the project's own kinds until the service that decides by
    /// them has it: after the answer that a machine is retired, nothing more is sent to that
    /// machine.
    async fn acknowledged(
        &self,
        response: Response<Body>,
        plural: &str,
        name: String,
    ) -> Result<Response<Body>, ApiError> {
        let Some(extensions) = self.inner.extensions.get() else {
            return Ok(response);
        };
        let (parts, content) = response.into_parts();
        // A created object: its name is in the answer.
        let unread = |error| {
            ApiError::new(
                Reason::InternalError,
                format!("the answer cannot be read: {error}"),
            )
        };
        let content = content.collect().await.map_err(unread)?.to_bytes();
        let name = if name.is_empty() {
            name_in(&content).unwrap_or_default()
        } else {
            name
        };
        if extensions.in_force(plural, &name).await {
            return Ok(Response::from_parts(parts, body(content)));
        }
        Err(ApiError::new(
            Reason::Timeout,
            "the write is stored but not in effect everywhere yet: read the object again",
        ))
    }
}

/// The name of the object in an answer.
fn name_in(content: &[u8]) -> Option<String> {
    let object: serde_json::Value = serde_json::from_slice(content).ok()?;
    Some(object.pointer("/metadata/name")?.as_str()?.to_owned())
}

fn reads(verb: Verb) -> bool {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => true,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => false,
    }
}

/// The answer to a denied caller.
fn denied(why: &str) -> Response<Body> {
    respond(&ApiError::new(
        Reason::Unauthorized,
        format!("Unauthorized: {why}"),
    ))
}

/// A request for a resource, before authorization.
struct ResourceRequest {
    target: Target,
    query: Query,
    kind: Option<Arc<Kind>>,
    about: About,
    method: Method,
    uri: Uri,
    headers: http::HeaderMap,
}

fn out_of_time() -> ApiError {
    ApiError::new(
        Reason::Timeout,
        "Timeout: request did not complete within the allotted timeout",
    )
}

fn too_many() -> ApiError {
    ApiError::new(
        Reason::TooManyRequests,
        "too many requests, please try again later",
    )
    .retry_after(1)
}

pub(crate) fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(body(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// An error as an answer.
pub(crate) fn respond(error: &ApiError) -> Response<Body> {
    let mut response = Response::new(body(error.to_status().to_string()));
    *response.status_mut() =
        StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    if let Some(seconds) = error.details.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
