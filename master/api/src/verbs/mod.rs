//! The verbs: what each does with a kind's descriptor and the store.

mod body;
mod create;
mod delete;
mod log;
mod read;
mod review;
mod subresource;
mod update;
mod watch;

use crate::accept::{Accept, Form};
use crate::error::{ApiError, Reason};
use crate::object;
use crate::path::{Query, Target, Verb, not_allowed};
use crate::peer::Peer;
use crate::registry::{Kind, Subresource};
use crate::server::{ApiServer, Body};
use crate::table;
use crate::user::UserInfo;
use crate::validate::Fields;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use master_store::{Entry, StoreError};
use serde_json::{Value, json};
use std::sync::Arc;

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
}

/// Answers a request.
pub(crate) async fn run(call: Call, content: Body) -> Result<Response<Body>, ApiError> {
    let subresource = match call.target.subresource.as_str() {
        "" => None,
        name => Some(call.kind.subresource(name).ok_or_else(no_resource)?),
    };
    let placed = !call.target.namespace.is_empty();
    if call.kind.namespaced != placed && needs_namespace(&call) {
        return Err(no_resource());
    }
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
    !(call.kind.namespaced && matches!(call.target.verb, Verb::List | Verb::Watch) && call.target.name.is_empty())
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
            ApiError::new(Reason::Timeout, format!("Too large resource version: {asked}, current: {head}"))
                .retry_after(1)
        }
        StoreError::Invalid(text) => ApiError::new(Reason::RequestEntityTooLarge, text),
        StoreError::Closed => ApiError::new(Reason::ServiceUnavailable, "the server is shutting down"),
        other @ (StoreError::Conflict { .. }
        | StoreError::Folder(_)
        | StoreError::Engine(..)
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

    /// Whether nothing is to be written.
    fn dry_run(&self) -> Result<bool, ApiError> {
        match self.query.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(ApiError::new(
                Reason::BadRequest,
                format!("dryRun: Unsupported value: {other:?}: supported values: \"All\""),
            )),
        }
    }

    fn accept(&self) -> Result<Accept, ApiError> {
        Accept::parse(&self.headers)
    }

    /// An answer with one stored object.
    fn object_answer(&self, status: StatusCode, entry: &Entry) -> Result<Response<Body>, ApiError> {
        let accept = self.accept()?;
        match accept.form {
            Form::Object if !accept.yaml => {
                let (mut bytes, kept) = object::parts(&self.kind, entry)?;
                bytes.extend_from_slice(&kept);
                Ok(json_bytes(status, bytes))
            }
            Form::Object => value_answer(status, &Value::Object(object::decode(&self.kind, entry)?), accept),
            Form::Partial => value_answer(status, &table::partial(&object::decode(&self.kind, entry)?), accept),
            Form::Table => {
                let metadata = json!({"resourceVersion": entry.modified.to_string()});
                let table = table::table(&self.kind, std::slice::from_ref(entry), &metadata, &self.query)?;
                value_answer(status, &table, accept)
            }
        }
    }

    /// An answer with an object that is not stored (dry run).
    fn fields_answer(&self, status: StatusCode, mut fields: Fields) -> Result<Response<Body>, ApiError> {
        fields.insert("kind".to_owned(), self.kind.kind.as_str().into());
        fields.insert("apiVersion".to_owned(), self.kind.api_version().into());
        value_answer(status, &Value::Object(fields), Accept { form: Form::Object, ..self.accept()? })
    }
}

/// An answer with a value, in JSON or YAML.
pub(crate) fn value_answer(status: StatusCode, value: &Value, accept: Accept) -> Result<Response<Body>, ApiError> {
    if !accept.yaml {
        return Ok(json_bytes(status, value.to_string().into_bytes()));
    }
    let text = serde_yaml_ng::to_string(value).map_err(|error| {
        ApiError::new(Reason::InternalError, format!("the answer cannot be written as YAML: {error}"))
    })?;
    let mut response = json_bytes(status, text.into_bytes());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    Ok(response)
}

/// An answer with JSON bytes.
pub(crate) fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(crate::server::body(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
