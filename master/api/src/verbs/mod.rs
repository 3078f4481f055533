//! The verbs: what each does with a kind's descriptor and the store.

mod answer;
mod body;
mod create;
mod delete;
mod frames;
mod log;
mod options;
mod page;
mod read;
mod review;
mod subresource;
mod update;
mod watch;

use crate::error::{ApiError, Cause, Reason};
use crate::metrics::About;
use crate::path::{Query, Target, Verb, not_allowed};
use crate::peer::Peer;
use crate::registry::{Kind, Subresource};
use crate::server::{ApiServer, Body};
use crate::user::UserInfo;
use http::{HeaderMap, Response};
use master_store::{Entry, StoreError};
use std::sync::Arc;

pub(crate) use answer::{json_bytes, value_answer};

/// A request for a resource, authorized.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) api: ApiServer,
    pub(crate) user: UserInfo,
    pub(crate) peer: Peer,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) kind: Arc<Kind>,
    /// How it is counted.
    pub(crate) about: About,
}

/// Answers a request.
pub(crate) async fn run(call: Call, content: Body) -> Result<Response<Body>, ApiError> {
    let subresource = match call.target.subresource.as_str() {
        "" => None,
        name => Some(call.kind.subresource(name).ok_or_else(no_resource)?),
    };
    let placed = !call.target.namespace.is_empty();
    if call.kind.namespaced != placed && needs_namespace(&call) {
        // The collection over all namespaces is there, for reading.
        let elsewhere = call.kind.namespaced && call.target.name.is_empty();
        return Err(if elsewhere { not_allowed() } else { no_resource() });
    }
    call.check_write_options()?;
    if let Some(review) = call.kind.review {
        return review::run(&call, review, content).await;
    }
    match (call.target.verb, subresource) {
        (Verb::Get, None | Some(Subresource::Status | Subresource::Approval)) => read::get(&call).await,
        (Verb::Get, Some(Subresource::Log)) => log::read(&call).await,
        (Verb::List, None) => read::list(&call).await,
        (Verb::Watch, None) => watch::watch(call).await,
        (Verb::Create, None) if call.target.name.is_empty() => create::create(&call, content).await,
        (Verb::Create, Some(Subresource::Binding)) => subresource::bind(&call, content).await,
        (Verb::Create, Some(Subresource::Eviction)) => subresource::evict(&call, content).await,
        (Verb::Update, None | Some(Subresource::Status | Subresource::Approval | Subresource::Finalize)) => {
            update::update(&call, subresource, content).await
        }
        (Verb::Patch, None | Some(Subresource::Status | Subresource::Approval)) => {
            update::patch(&call, subresource, content).await
        }
        (Verb::Delete, None) => delete::delete(&call, content).await,
        (Verb::DeleteCollection, None) => delete::collection(&call, content).await,
        (
            Verb::Get
            | Verb::List
            | Verb::Watch
            | Verb::Create
            | Verb::Update
            | Verb::Patch
            | Verb::Delete
            | Verb::DeleteCollection,
            _,
        ) => Err(not_allowed()),
    }
}

/// Lists, watches and collections of namespaced kinds may go over all namespaces; nothing else may.
fn needs_namespace(call: &Call) -> bool {
    !(call.kind.namespaced && matches!(call.target.verb, Verb::List | Verb::Watch))
}

/// Upstream's refusal of a path that names nothing.
pub(crate) fn no_resource() -> ApiError {
    ApiError::new(Reason::NotFound, "the server could not find the requested resource")
}

/// A store's refusal where no kind's own word for it applies.
pub(crate) fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Busy => {
            ApiError::new(Reason::TooManyRequests, "too many writes are waiting, try again").retry_after(1)
        }
        StoreError::Compacted { asked, floor } => ApiError::new(
            Reason::Expired,
            format!("The resourceVersion for the provided list or watch is too old: {asked} ({floor})"),
        ),
        StoreError::Future { asked, head } => {
            let text = format!("Too large resource version: {asked}, current: {head}");
            let mut error = ApiError::new(Reason::Timeout, text).retry_after(1);
            error.details.causes = vec![Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }];
            error
        }
        StoreError::Invalid(text) => ApiError::new(Reason::RequestEntityTooLarge, text),
        StoreError::Closed => ApiError::new(Reason::ServiceUnavailable, "the server is shutting down"),
        StoreError::Full(why) => ApiError::new(Reason::InternalError, format!("the store takes no more writes: {why}")),
        other @ (StoreError::Conflict { .. }
        | StoreError::Folder(_)
        | StoreError::Locked(_)
        | StoreError::File { .. }
        | StoreError::Corrupt(_)) => {
            tracing::error!(error = ?other, "the store failed");
            ApiError::new(Reason::InternalError, format!("the store failed: {other}"))
        }
    }
}

impl Call {
    /// The key of the object that the path names.
    fn key(&self) -> String {
        self.kind.key(&self.target.namespace, &self.target.name)
    }

    /// The stored object that the path names.
    async fn entry(&self) -> Result<Entry, ApiError> {
        let fetched = self.api.inner.store.get(&self.key()).await.map_err(store_error)?;
        fetched.entry.ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> ApiError {
        let (plural, name) = (self.kind.qualified(), &self.target.name);
        ApiError::new(Reason::NotFound, format!("{plural} {name:?} not found")).about(
            &self.kind.group,
            &self.kind.plural,
            name,
        )
    }

    /// The object changed meanwhile.
    fn conflict(&self, why: &str) -> ApiError {
        let (plural, name) = (self.kind.qualified(), &self.target.name);
        ApiError::new(Reason::Conflict, format!("Operation cannot be fulfilled on {plural} {name:?}: {why}")).about(
            &self.kind.group,
            &self.kind.plural,
            name,
        )
    }

    /// The request is understood and refused.
    pub(crate) fn forbidden(&self, name: &str, why: &str) -> ApiError {
        let plural = self.kind.qualified();
        ApiError::new(Reason::Forbidden, format!("{plural} {name:?} is forbidden: {why}")).about(
            &self.kind.group,
            &self.kind.plural,
            name,
        )
    }
}
