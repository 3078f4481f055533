//! The client for callers inside the process: the same request path without a socket.

use crate::body::{Body, body, broken, undecodable};
use crate::managed_fields::without_managed_fields;
use crate::resources::{Resource as Served, Versioned};
use crate::transport::Transport;
use crate::user::UserInfo;
use crate::watch::{Watcher, readable};
use bytes::Bytes;
use config_http::percent;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use config_kube::k8s_openapi::{Metadata, Resource};
use config_kube::{FromJson, ToJson};
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use master_schema::error::{ApiError, Reason};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The traits that a kind needs for this client: every kind of `k8s-openapi` and `config-kube` has
/// them.
pub trait Object:
    Resource + Metadata<Ty = ObjectMeta> + FromJson + ToJson + Send + 'static
{
}
impl<T: Resource + Metadata<Ty = ObjectMeta> + FromJson + ToJson + Send + 'static> Object for T {}

/// A client with one user's identity.
#[derive(Debug, Clone)]
pub struct Client {
    api: Arc<dyn Transport>,
    user: UserInfo,
}

/// What to list or watch.
#[derive(Debug, Clone, Default)]
pub struct ListParams {
    /// Label selector in text form.
    pub labels: Option<String>,
    /// Field selector in text form.
    pub fields: Option<String>,
    /// Page size; `None`: everything.
    pub limit: Option<u32>,
    /// Continue token of the previous page.
    pub continue_token: Option<String>,
}

/// How to delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteParams {
    /// Grace period in seconds; 0 deletes at once.
    pub grace_period_seconds: Option<i64>,
    /// Precondition: the object has this UID.
    pub uid: Option<String>,
    /// Precondition: the object is at this resource version.
    pub resource_version: Option<String>,
    /// What happens to dependents: `Background`, `Foreground`, `Orphan`; `None` for the kind's
    /// default.
    pub propagation: Option<&'static str>,
}

impl DeleteParams {
    /// Only the object with this UID, in the kind's usual way.
    pub fn of(uid: String) -> Self {
        Self {
            uid: Some(uid),
            ..Self::default()
        }
    }
}

/// A page of objects.
#[derive(Debug, Clone)]
pub struct ObjectList<T> {
    /// The number of objects after this page, if the server knows it.
    pub remaining: u64,
    /// The objects.
    pub items: Vec<T>,
    /// The list's resource version, from which to watch.
    pub resource_version: String,
    /// Token of the next page; empty on the last page.
    pub continue_token: String,
}

/// A list as the server sends it, with its objects undecoded.
#[derive(Deserialize)]
struct RawList<'a> {
    metadata: ListMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

impl<'a> RawList<'a> {
    fn read(answer: &'a [u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(answer).map_err(|e| undecodable(&e))
    }
}

/// A patch.
#[derive(Debug, Clone)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// Strategic merge.
    Strategic(Value),
    /// RFC 6902.
    Json(Value),
}

impl Client {
    /// A client of `api` with the identity of `user`.
    pub fn new(api: Arc<dyn Transport>, user: UserInfo) -> Self {
        Self { api, user }
    }

    /// The same API as another user: for parts of this process that have their own users.
    #[must_use]
    pub fn acting_as(&self, user: UserInfo) -> Self {
        Self {
            api: Arc::clone(&self.api),
            user,
        }
    }

    /// Sends a request whose answer comes from elsewhere, such as a node: the answer is passed
    /// through unread, also a refusal.
    pub async fn call(&self, request: Request<Body>) -> Response<Body> {
        self.api.call(request, self.user.clone()).await
    }

    /// The time by the clock that gives objects their times.
    pub fn now(&self) -> Timestamp {
        self.api.now()
    }

    /// The kinds that are served and stored, each once however many versions and groups serve it.
    pub fn resources(&self) -> Vec<Served> {
        self.api.resources()
    }

    /// The identity of the client.
    pub fn user(&self) -> &UserInfo {
        &self.user
    }

    /// Reads one object. `namespace` is `None` for cluster-scoped kinds.
    ///
    /// # Errors
    /// As the API answers: not found, forbidden, unavailable.
    pub async fn get<T: Object>(&self, namespace: Option<&str>, name: &str) -> Result<T, ApiError> {
        self.send(
            Method::GET,
            &path::<T>(namespace, Some(name), None),
            None,
            Bytes::new(),
        )
        .await
    }

    /// Reads one object, or `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Client::get`], except that the object does not exist.
    pub async fn get_opt<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        match self.get(namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists objects; in all namespaces if `namespace` is `None`.
    ///
    /// # Errors
    /// As the API answers; [`ApiError::is_expired`] if the continue token is too old.
    pub async fn list<T: Object>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList<T>, ApiError> {
        self.list_at(
            JSON,
            &(path::<T>(namespace, None, None) + &query(params, &[])),
        )
        .await
    }

    pub(crate) async fn list_at<T: Versioned>(
        &self,
        accept: &str,
        path: &str,
    ) -> Result<ObjectList<T>, ApiError> {
        let answer = self
            .exchange(accept, Method::GET, path, None, Bytes::new())
            .await?;
        let RawList { metadata, items } = RawList::read(&answer)?;
        let items = items
            .into_iter()
            .filter_map(|item| readable(item.get()))
            .collect();
        Ok(ObjectList {
            remaining: metadata
                .remaining_item_count
                .and_then(|count| u64::try_from(count).ok())
                .unwrap_or_default(),
            items,
            resource_version: metadata.resource_version.unwrap_or_default(),
            continue_token: metadata.continue_.unwrap_or_default(),
        })
    }

    /// Watches from a resource version (a list's), with bookmarks.
    ///
    /// # Errors
    /// As the API answers; [`ApiError::is_expired`] if the resource version is too old.
    pub async fn watch<T: Object>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<Watcher<T>, ApiError> {
        self.watch_at(
            JSON,
            &path::<T>(namespace, None, None),
            params,
            resource_version,
        )
        .await
    }

    pub(crate) async fn watch_at<T: Versioned>(
        &self,
        accept: &str,
        path: &str,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<Watcher<T>, ApiError> {
        let more = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
        ];
        let path = path.to_owned() + &query(params, &more);
        let response = self
            .request(accept, Method::GET, &path, None, Bytes::new())
            .await?;
        Ok(Watcher::new(response))
    }

    /// Creates an object in its own namespace.
    ///
    /// # Errors
    /// As the API answers: already exists, invalid, forbidden.
    pub async fn create<T: Object>(&self, object: &T) -> Result<T, ApiError> {
        let path = path::<T>(object.metadata().namespace.as_deref(), None, None);
        self.send(Method::POST, &path, Some(JSON), encode(object)?)
            .await
    }

    /// Creates an object that the caller need not read: the answer is not decoded.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub async fn add<T: Object>(&self, object: &T) -> Result<(), ApiError> {
        let path = path::<T>(object.metadata().namespace.as_deref(), None, None);
        self.exchange(JSON, Method::POST, &path, Some(JSON), encode(object)?)
            .await
            .map(drop)
    }

    /// Replaces an object; its resource version must be the current one.
    ///
    /// # Errors
    /// As the API answers; [`ApiError::is_conflict`] if the object has changed.
    pub async fn update<T: Object>(&self, object: &T) -> Result<T, ApiError> {
        self.put(object, None).await
    }

    /// Replaces an object's status.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn update_status<T: Object>(&self, object: &T) -> Result<T, ApiError> {
        self.put(object, Some("status")).await
    }

    /// Replaces a subresource that has the object's own form (`status`, `approval`).
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn update_subresource<T: Object>(
        &self,
        object: &T,
        subresource: &str,
    ) -> Result<T, ApiError> {
        self.put(object, Some(subresource)).await
    }

    async fn put<T: Object>(&self, object: &T, subresource: Option<&str>) -> Result<T, ApiError> {
        let meta = object.metadata();
        let name = meta.name.as_deref().unwrap_or_default();
        let path = path::<T>(meta.namespace.as_deref(), Some(name), subresource);
        self.send(Method::PUT, &path, Some(JSON), encode(object)?)
            .await
    }

    /// Patches an object.
    ///
    /// # Errors
    /// As the API answers: not found, invalid, conflict.
    pub async fn patch<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<T, ApiError> {
        self.patch_at(&path::<T>(namespace, Some(name), None), patch)
            .await
    }

    /// Patches an object's status.
    ///
    /// # Errors
    /// As [`Client::patch`].
    pub async fn patch_status<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<T, ApiError> {
        self.patch_at(&path::<T>(namespace, Some(name), Some("status")), patch)
            .await
    }

    pub(crate) async fn patch_at<T: FromJson>(
        &self,
        at: &str,
        patch: &Patch,
    ) -> Result<T, ApiError> {
        let (kind, value) = match patch {
            Patch::Merge(value) => ("application/merge-patch+json", value),
            Patch::Strategic(value) => ("application/strategic-merge-patch+json", value),
            Patch::Json(value) => ("application/json-patch+json", value),
        };
        self.send(Method::PATCH, at, Some(kind), encode(value)?)
            .await
    }

    /// Deletes an object. It may exist until its finalizers or its kubelet are done.
    ///
    /// # Errors
    /// As the API answers; [`ApiError::is_conflict`] if a precondition does not hold.
    pub async fn delete<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), ApiError> {
        self.delete_at(&path::<T>(namespace, Some(name), None), params)
            .await
    }

    pub(crate) async fn delete_at(
        &self,
        path: &str,
        params: &DeleteParams,
    ) -> Result<(), ApiError> {
        let mut preconditions = serde_json::Map::new();
        for (key, value) in [
            ("uid", &params.uid),
            ("resourceVersion", &params.resource_version),
        ] {
            if let Some(value) = value {
                preconditions.insert(key.to_owned(), Value::String(value.clone()));
            }
        }
        let mut options = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = params.grace_period_seconds {
            options["gracePeriodSeconds"] = seconds.into();
        }
        if !preconditions.is_empty() {
            options["preconditions"] = Value::Object(preconditions);
        }
        if let Some(propagation) = params.propagation {
            options["propagationPolicy"] = propagation.into();
        }
        self.exchange(JSON, Method::DELETE, path, Some(JSON), encode(&options)?)
            .await
            .map(drop)
    }

    /// Posts to a subresource of an object, such as a Binding to a pod's `binding`.
    ///
    /// # Errors
    /// As the API answers: not found, conflict, forbidden.
    pub async fn create_subresource<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        object: &impl ToJson,
    ) -> Result<Value, ApiError> {
        let path = path::<T>(namespace, Some(name), Some(subresource));
        self.send(Method::POST, &path, Some(JSON), encode(object)?)
            .await
    }

    /// As [`Client::create_subresource`], for callers that need not read the answer: it is not
    /// decoded.
    ///
    /// # Errors
    /// As [`Client::create_subresource`].
    pub async fn add_subresource<T: Object>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        object: &impl ToJson,
    ) -> Result<(), ApiError> {
        let path = path::<T>(namespace, Some(name), Some(subresource));
        self.exchange(JSON, Method::POST, &path, Some(JSON), encode(object)?)
            .await
            .map(drop)
    }

    async fn send<R: FromJson>(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        content: Bytes,
    ) -> Result<R, ApiError> {
        self.send_as(JSON, method, path, content_type, content)
            .await
    }

    pub(crate) async fn send_as<R: FromJson>(
        &self,
        accept: &str,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        content: Bytes,
    ) -> Result<R, ApiError> {
        let answer = self
            .exchange(accept, method, path, content_type, content)
            .await?;
        let read = match std::str::from_utf8(&answer) {
            Ok(text) => R::from_json(without_managed_fields(text).as_bytes()),
            Err(_no_text) => R::from_json(&answer),
        };
        read.map_err(|e| undecodable(&e))
    }

    /// A request and the whole body of its answer.
    async fn exchange(
        &self,
        accept: &str,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        content: Bytes,
    ) -> Result<Bytes, ApiError> {
        let answer = self
            .request(accept, method, path, content_type, content)
            .await?;
        Ok(answer.collect().await.map_err(|e| broken(&*e))?.to_bytes())
    }

    async fn request(
        &self,
        accept: &str,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        content: Bytes,
    ) -> Result<Body, ApiError> {
        // The name under which it owns the fields that it writes, as upstream's components do.
        let agent = self.user.name.rsplit(':').next().unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, accept)
            .header(header::USER_AGENT, agent);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request
            .body(body(content))
            .map_err(|e| ApiError::new(Reason::BadRequest, format!("not a request path: {e}")))?;
        let response = self.api.call(request, self.user.clone()).await;
        let code = response.status().as_u16();
        let answer = response.into_body();
        if code < 300 {
            return Ok(answer);
        }
        let status = answer.collect().await.map_err(|e| broken(&*e))?.to_bytes();
        let status = serde_json::from_slice(&status).unwrap_or_default();
        Err(ApiError::from_status(code, &status))
    }
}

const JSON: &str = "application/json";

pub(crate) fn encode(object: &impl ToJson) -> Result<Bytes, ApiError> {
    let bytes = object.to_json().map_err(|e| {
        ApiError::new(
            Reason::BadRequest,
            format!("the object cannot be written as JSON: {e}"),
        )
    })?;
    Ok(bytes.into())
}

fn path<T: Resource>(
    namespace: Option<&str>,
    name: Option<&str>,
    subresource: Option<&str>,
) -> String {
    path_to(
        T::API_VERSION,
        T::URL_PATH_SEGMENT,
        namespace,
        name,
        subresource,
    )
}

/// The path of a collection, an object or a subresource.
pub(crate) fn path_to(
    api_version: &str,
    plural: &str,
    namespace: Option<&str>,
    name: Option<&str>,
    subresource: Option<&str>,
) -> String {
    let mut path = if api_version.contains('/') {
        "/apis/".to_owned()
    } else {
        "/api/".to_owned()
    };
    path.push_str(api_version);
    let namespace = namespace.map(|namespace| ("namespaces", namespace));
    for (key, value) in namespace.into_iter().chain([(plural, "")]) {
        path.push('/');
        path.push_str(key);
        if !value.is_empty() {
            path.push('/');
            path.push_str(&percent::encode(value));
        }
    }
    for segment in [name, subresource].into_iter().flatten() {
        path.push('/');
        path.push_str(&percent::encode(segment));
    }
    path
}

pub(crate) fn query(params: &ListParams, more: &[(&str, &str)]) -> String {
    let limit = params.limit.map(|limit| limit.to_string());
    let own = [
        ("labelSelector", params.labels.as_deref()),
        ("fieldSelector", params.fields.as_deref()),
        ("limit", limit.as_deref()),
        ("continue", params.continue_token.as_deref()),
    ];
    let own = own
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| (key, value)));
    let mut text = String::new();
    for (key, value) in own.chain(more.iter().copied()) {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        text.push_str(&percent::encode(value));
    }
    text
}
