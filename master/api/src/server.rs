//! The path of a request through the server: who the caller is, what it may do, which
//! verb answers.

use crate::health::Hook;
use crate::paths::counted;
use crate::state::{ApiServer, Inner};
use bytes::Bytes;
use config_kube::identity;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use master_admission::services;
use master_auth::impersonate;
use master_client::{Body, BoxFuture, Client, ObjectEvent, Resource, Transport, UserInfo, body};
use master_gateway::check_origin;
use master_listener::{Access, Caller, Flow, FlowTarget, Peer, RequestSlot, Service};
use master_metrics::About;
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::registry::{Kind, Registry, Word};
use master_schema::selector::Selector;
use master_verbs::{Answer, Call, OwnTransport, authorize, run, warned};
use master_wire::Encoding;
use master_wire::path::{Query, Target, Verb};
use master_wire::respond::{out_of_time, respond};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

impl Service for ApiServer {
    fn handle(&self, request: Request<Body>, peer: Peer) -> BoxFuture<'static, Response<Body>> {
        let api = self.clone();
        Box::pin(async move { Self::handle(&api, request, peer).await })
    }

    fn limits_itself(&self, method: &Method, path: &str) -> bool {
        (self.extensions()).is_some_and(|own| own.limits_itself(method, path))
    }

    fn is_denied(&self, user: &UserInfo, peer: &Peer) -> bool {
        let denials = &self.inner.denials;
        denials.reason(|list| list.denied(user, peer)).is_some()
    }

    fn until_denied<'a>(&'a self, user: &'a UserInfo, peer: &'a Peer) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let denials = &self.inner.denials;
            let _why = denials.until(|list| list.denied(user, peer)).await;
        })
    }

    fn draining(&self) -> CancellationToken {
        self.inner.draining.clone()
    }

    fn drain(&self) {
        Self::drain(self);
    }
}

impl OwnTransport for ApiServer {
    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }
}

impl Transport for ApiServer {
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(self.handle_as(request, user, Peer::default()))
    }

    fn now(&self) -> jiff::Timestamp {
        self.inner.options.clock.now()
    }

    fn resources(&self) -> Vec<Resource> {
        let mut tables: Vec<&str> = Vec::new();
        let mut found = Vec::new();
        let registry = self.registry();
        for kind in registry.kinds().iter().filter(|kind| kind.review.is_none()) {
            if !tables.contains(&kind.table.as_str()) {
                tables.push(&kind.table);
                found.push(Resource::of(kind));
            }
        }
        found
    }
}

impl ApiServer {
    /// Creates what every cluster has from the start. `/readyz` fails until it is done.
    ///
    /// # Errors
    /// The store or the API refuses one of the writes; a later call creates what is missing. A
    /// refused write of the services is no error: it is logged, and [`Self::keep_services`] repeats
    /// it.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        let client = self.client(UserInfo::admin("system:apiserver"));
        let Inner {
            options, prepared, ..
        } = &*self.inner;
        let made = |part| prepared.is(part);
        master_initial::create(&client, &options.roles, |part| made(Hook::of(part))).await?;
        services::prepare(&options.ranges, &client).await;
        made(Hook::Service);
        Ok(())
    }

    /// Keeps the services that every cluster has, and the endpoints of the API's, until it is
    /// dropped: looks after them at once and then with this pause.
    pub async fn keep_services(&self, pause: Duration) {
        let client = self.client(UserInfo::admin("system:apiserver"));
        services::keep(&self.inner.options.ranges, &client, pause).await;
    }

    /// Checks once that all service addresses and node ports are allocated to their services,
    /// repairs the allocations, and returns what was wrong, to be recorded as events.
    ///
    /// # Errors
    /// The store cannot be read, or refuses a repair for another reason than a concurrent change.
    pub async fn repair_allocations(&self) -> Result<Vec<ObjectEvent>, ApiError> {
        let inner = &self.inner;
        services::repair(&*inner.store, &inner.kinds, &inner.options.ranges).await
    }

    /// Serves other kinds from now on. Requests under way, watches included, end with the kinds
    /// with which they began; discovery and OpenAPI describe the new ones at once. Stored objects
    /// of a kind that is no longer served stay in the store.
    pub fn serve_kinds(&self, kinds: Vec<Kind>) {
        self.inner.kinds.replace(Registry::new(kinds));
    }

    /// A client for callers inside the process.
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(Arc::new(self.clone()), user)
    }

    /// Answers a request that came over a connection.
    pub async fn handle(&self, request: Request<Body>, peer: Peer) -> Response<Body> {
        let mut request = request;
        let certificate = peer.certificate();
        let (authenticator, authorizer) = (&self.inner.authenticator, &self.inner.authorizer);
        match authenticator
            .caller(request.headers_mut(), certificate)
            .await
        {
            Ok(user) if authorizer.shuts_out(&user, request.uri().path()) => denied("Unauthorized"),
            Ok(user) => self.handle_as(request, user, peer).await,
            Err(error) => refusal(request.headers(), &error),
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
        let denials = &self.inner.denials;
        if let Some(why) = denials.reason(|list| list.denied(&user, &peer)) {
            peer.forget();
            return denied(&why);
        }
        if !user.in_group(identity::UNAUTHENTICATED_GROUP) {
            peer.identify(&user);
        }
        let Some(caller) = Caller::of(&user, &peer) else {
            return self.answer(request, user, peer, None).await;
        };
        // Subscribed before the last check, so that no change is missed between the two.
        let response = self.answer(request, user, peer, Some(caller.clone())).await;
        let guarded = caller.clone().guard(denials, response);
        match denials.reason(|list| caller.denied(list)) {
            Some(why) => denied(&why),
            None => guarded,
        }
    }

    /// Answers a caller that is not denied.
    async fn answer(
        &self,
        request: Request<Body>,
        user: UserInfo,
        peer: Peer,
        caller: Option<Caller>,
    ) -> Response<Body> {
        let began = Instant::now();
        // Before anything else: what is beside the API acts with an admin's rights, too.
        if let Err(error) = check_origin(request.method(), request.headers()) {
            let (about, took) = (About::path("", ""), began.elapsed());
            self.inner.metrics.count(&about, error.code, took);
            return refusal(request.headers(), &error);
        }
        let mut request = request;
        let user = match impersonate(&self.inner.authorizer, user, request.headers_mut()).await {
            Ok(user) => user,
            Err(error) => return refusal(request.headers(), &error),
        };
        if let Some(extensions) = self.extensions()
            && extensions.claims(request.uri().path())
        {
            let limit = self.inner.options.body_bytes;
            let request = request.map(|content| Limited::new(content, limit).boxed_unsync());
            return extensions.handle(request, peer, user).await;
        }
        let head = request.method() == Method::HEAD;
        let (parts, content) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let (routed, encoding) = match query.and_then(|query| query.timeout().map(|_| query)) {
            Ok(query) => {
                let encoding = Encoding::of(&parts.headers, query.get("pretty"));
                let routed = self.route(parts, query, content, user, peer, caller).await;
                (routed, encoding)
            }
            Err(error) => (
                Routed::refused(error),
                Encoding::of(&parts.headers, "false"),
            ),
        };
        let Routed {
            about,
            flow,
            answer,
        } = routed;
        let mut response = answer.unwrap_or_else(|error| respond(&error));
        if let Some(flow) = flow {
            flow.write_headers(response.headers_mut());
        }
        self.inner
            .metrics
            .count(&about, response.status().as_u16(), began.elapsed());
        let mut response = master_wire::finish(response, encoding);
        if head {
            if let Some(size) = response.body().size_hint().exact() {
                // A program behind the proxy may have set its own.
                let headers = response.headers_mut();
                headers
                    .entry(header::CONTENT_LENGTH)
                    .or_insert_with(|| HeaderValue::from(size));
            }
            *response.body_mut() = body(Bytes::new());
        }
        response
    }

    /// The answer, what the request was about (for metrics), and its flow.
    async fn route(
        &self,
        parts: Parts,
        query: Query,
        content: Body,
        user: UserInfo,
        peer: Peer,
        caller: Option<Caller>,
    ) -> Routed {
        let target = match Target::parse(&parts.method, parts.uri.path(), &query) {
            Ok(Some(target)) => target,
            Ok(None) => return self.route_path(&parts, &query, content, &user, &peer).await,
            Err(error) => return Routed::refused(error),
        };
        let flow_target = crate::flows::flow_target(&target);
        let flow = self.flow(&user, target.verb.as_str(), flow_target).await;
        let registry = self.registry();
        let kind = registry
            .find(&target.group, &target.version, &target.plural)
            .cloned();
        let about = About::resource(&target, kind.as_ref(), query.has("dryRun"));
        let limit = query.timeout().ok().flatten();
        let limit = limit.filter(|_| !target.is_stream());
        let Some(kind) = kind else {
            let authorizer = &self.inner.authorizer;
            let every = Selector::default();
            let allowed = authorize::resource(authorizer, &user, &target, &every).await;
            let answer = allowed.and_then(|()| Err(no_resource()));
            return Routed {
                about,
                flow,
                answer,
            };
        };
        let call = Call {
            user,
            peer,
            target,
            query,
            headers: parts.headers,
            kind,
            registry,
            about: about.clone(),
            method: parts.method,
            uri: parts.uri,
            upgrade: parts.extensions.get().cloned(),
            caller,
            clock: self.inner.options.clock.clone(),
        };
        let answer = self.resource(call, content);
        let answer = match limit {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, Box::pin(answer))
                .await
                .unwrap_or_else(|_elapsed| Err(out_of_time())),
        };
        Routed {
            about,
            flow,
            answer,
        }
    }

    /// [`Self::route`] of a path that is no resource.
    async fn route_path(
        &self,
        parts: &Parts,
        query: &Query,
        content: Body,
        user: &UserInfo,
        peer: &Peer,
    ) -> Routed {
        let path = parts.uri.path();
        let is_head = parts.method == Method::HEAD;
        let about = About::path(if is_head { "HEAD" } else { "GET" }, counted(path));
        let verb = parts.method.as_str().to_lowercase();
        let flow = self.flow(user, &verb, FlowTarget::Path(path)).await;
        let answer = match authorize::path(&self.inner.authorizer, user, &verb, path).await {
            Ok(()) => self.path(parts, query, content, user, peer).await,
            Err(error) => Err(error),
        };
        Routed {
            about,
            flow,
            answer,
        }
    }

    /// Answers a request for a kind that is served.
    async fn resource(&self, call: Call, content: Body) -> Answer {
        let (target, query) = (&call.target, &call.query);
        let of_many = [Verb::List, Verb::Watch, Verb::DeleteCollection];
        let selector = if of_many.contains(&target.verb) {
            let (labels, fields) = (query.get("labelSelector"), query.get("fieldSelector"));
            Selector::parse(&call.kind, labels, fields)?
        } else {
            Selector::default()
        };
        authorize::resource(&self.inner.authorizer, &call.user, target, &selector).await?;
        // What is handed on to a node has its places there (`master/gateway`).
        let (content, held) = if target.is_stream() && target.verb != Verb::Watch {
            (content, None)
        } else {
            let reads = target.verb.reads();
            let access = if reads { Access::Read } else { Access::Write };
            let entered = self.enter(access, content, &call.user, &call.peer);
            let (content, held) = entered.await?;
            (content, Some(held))
        };
        let caller = call.caller.as_ref();
        let writes = caller.is_some_and(Caller::is_of_a_node) && target.stores();
        let under_way = writes.then(|| self.inner.writes.begin());
        // The body may have taken a while: a caller that was denied meanwhile gets nothing.
        let denial = |caller: &Caller| self.inner.denials.reason(|list| caller.denied(list));
        if let Some(why) = caller.and_then(denial) {
            return Err(unauthorized(&why));
        }
        let own = target.group == identity::GROUP && call.peer.remote.is_some();
        // As the verbs read it: an empty value asks for none.
        let is_dry = query.all("dryRun").any(|value| !value.is_empty());
        let written = own && !target.verb.reads() && !is_dry;
        let after = AfterAnswer {
            written: written.then(|| (target.plural.clone(), target.name.clone())),
            // A watch's body has a place of its own.
            held_on: target.verb != Verb::Watch,
            held,
            deprecated: call.kind.deprecated.clone(),
        };
        // Boxed, as what verbs keep is most of what a request keeps: it is not copied through each
        // function above.
        let answer = Box::pin(run(&self.parts(), call, content)).await;
        drop(under_way);
        self.finish(answer, after).await
    }

    /// Sends what a verb answered: after a write of the project's own kinds is in force, with the
    /// place held while the body is sent, and with the warning of a deprecated version.
    async fn finish(&self, answer: Answer, after: AfterAnswer) -> Answer {
        let answer = match (answer, after.written) {
            (Ok(response), Some((plural, name))) if response.status().is_success() => {
                self.acknowledged(response, &plural, name).await
            }
            (answer, _) => answer,
        };
        let answer = match (answer, after.held) {
            (Ok(response), Some(held)) if after.held_on => held.hold(response),
            (answer, _) => answer,
        };
        match after.deprecated {
            // A refusal carries the warning too.
            Some(words) => Ok(warned(
                answer.unwrap_or_else(|error| respond(&error)),
                &[words.into_owned()],
            )),
            None => answer,
        }
    }

    /// Answers a path that is no resource, to a caller that may ask. Health and version take no
    /// place: they are small, and anyone may ask for them. A snapshot has places of its own.
    async fn path(
        &self,
        parts: &Parts,
        query: &Query,
        content: Body,
        user: &UserInfo,
        peer: &Peer,
    ) -> Answer {
        let free = ["/healthz", "/livez", "/readyz", "/version", "/snapshot"];
        if free.contains(&counted(parts.uri.path())) {
            return self.other(parts, query, user).await;
        }
        let (_, held) = self.enter(Access::Read, content, user, peer).await?;
        held.hold(self.other(parts, query, user).await?)
    }

    /// Takes one of the slots for requests of this caller, and reads the body within its limits.
    /// The slot is held until the client has read the answer; a watch has a slot of its own, and
    /// a request that is passed on to a node has one there (`master/gateway`).
    async fn enter(
        &self,
        access: Access,
        content: Body,
        user: &UserInfo,
        peer: &Peer,
    ) -> Result<(Body, RequestSlot), ApiError> {
        let slots = &self.inner.request_slots;
        let slot = slots.acquire(access, content, user, peer).await;
        slot.inspect_err(|error| {
            if error.code == StatusCode::TOO_MANY_REQUESTS.as_u16() {
                self.inner.metrics.refuse(access == Access::Write);
            }
        })
    }
}

impl ApiServer {
    /// Delays the answer to a write of the project's own kinds until the service that decides by
    /// them has it, and until writes that were let in before are over: after the answer that a
    /// machine is retired, nothing more is sent to that machine, and nothing written for it.
    async fn acknowledged(&self, response: Response<Body>, plural: &str, name: String) -> Answer {
        let Some(extensions) = self.extensions() else {
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
        let Inner { writes, store, .. } = &*self.inner;
        if extensions.in_force(plural, &name).await && writes.settled(&**store).await {
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

/// The answer to a request that is refused before it is looked at.
fn refusal(headers: &HeaderMap, error: &ApiError) -> Response<Body> {
    let indented = "false";
    master_wire::finish(respond(error), Encoding::of(headers, indented))
}

/// The answer to a denied caller.
fn denied(why: &str) -> Response<Body> {
    respond(&unauthorized(why))
}

fn unauthorized(why: &str) -> ApiError {
    ApiError::new(Reason::Unauthorized, format!("Unauthorized: {why}"))
}

/// The outcome of a request.
struct Routed {
    /// Its labels in metrics.
    about: About,
    /// Its flow; none of what is refused at once.
    flow: Option<Flow>,
    answer: Answer,
}

impl Routed {
    fn refused(error: ApiError) -> Self {
        Self {
            about: About::path("", ""),
            flow: None,
            answer: Err(error),
        }
    }
}

/// What remains to be done once a verb has answered.
struct AfterAnswer {
    /// Plural and name of an object of the project's own kinds that it writes.
    written: Option<(String, String)>,
    /// The request's slot, kept while the body is sent if `held_on`.
    held: Option<RequestSlot>,
    held_on: bool,
    /// The warning of a deprecated version.
    deprecated: Option<Word>,
}
