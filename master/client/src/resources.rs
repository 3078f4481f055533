//! Calls for objects of any served kind, for components that do not know the kinds at compile time.

use crate::client::{
    Client, DeleteParams, ListParams, Object, ObjectList, Patch, encode, path_to, query,
};
use crate::watch::Watcher;
use bytes::Bytes;
use config_errors::chain;
use config_kube::{FromJson, ToJson};
use http::Method;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A served kind: the parts of it that paths need.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Path segment.
    pub plural: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
}

impl Resource {
    /// The resource of a descriptor.
    pub fn of(kind: &Kind) -> Self {
        Self {
            group: kind.group.clone(),
            version: kind.version.clone(),
            kind: kind.kind.clone(),
            plural: kind.plural.clone(),
            namespaced: kind.namespaced,
        }
    }

    /// `group/version`, or the version alone for core.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    fn path(&self, namespace: &str, name: Option<&str>, subresource: Option<&str>) -> String {
        let namespace =
            Some(namespace).filter(|namespace| self.namespaced && !namespace.is_empty());
        path_to(
            &self.api_version(),
            &self.plural,
            namespace,
            name,
            subresource,
        )
    }

    fn path_of(&self, at: ObjectPath<'_>) -> String {
        self.path(at.namespace, Some(at.name), at.subresource)
    }
}

/// The target of a call for one object: the object, or a subresource of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectPath<'a> {
    /// The namespace; ignored for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The object's name.
    pub name: &'a str,
    /// `status`, `scale` or another one; none for the object itself.
    pub subresource: Option<&'a str>,
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerRef {
    /// `group/version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(rename = "blockOwnerDeletion")]
    pub block: bool,
}

/// The part of an object's metadata that concerns its lifetime.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: String,
    /// Namespace; empty if cluster-scoped.
    pub namespace: String,
    /// UID.
    pub uid: String,
    /// Resource version.
    pub resource_version: String,
    /// When its deletion began.
    pub deletion_timestamp: Option<String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owner_references: Vec<OwnerRef>,
}

/// An object of any kind, with metadata only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PartialObject {
    /// Its metadata.
    #[serde(default)]
    pub metadata: Meta,
}

/// A whole object of any kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DynamicObject(pub Map<String, Value>);

impl FromJson for PartialObject {
    fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl FromJson for DynamicObject {
    fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl ToJson for DynamicObject {
    fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

/// Objects with a resource version, by which they can be followed.
pub trait Versioned: FromJson + Send + 'static {
    /// Its resource version.
    fn resource_version(&self) -> &str;
}

impl<T: Object> Versioned for T {
    fn resource_version(&self) -> &str {
        self.metadata()
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }
}

impl Versioned for PartialObject {
    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Versioned for DynamicObject {
    fn resource_version(&self) -> &str {
        meta_text(&self.0, "resourceVersion")
    }
}

/// PartialObjectMetadataList.
const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// PartialObjectMetadata.
const METADATA_OF_ONE: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

impl Client {
    /// The metadata of one object; `None` if it does not exist.
    ///
    /// # Errors
    /// As the API answers, except that the object does not exist.
    pub async fn partial(
        &self,
        of: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Meta>, ApiError> {
        let path = of.path(namespace, Some(name), None);
        match self
            .send_as::<PartialObject>(METADATA_OF_ONE, Method::GET, &path, None, Bytes::new())
            .await
        {
            Ok(found) => Ok(Some(found.metadata)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the metadata of objects; in all namespaces if `namespace` is empty.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn partials(
        &self,
        of: &Resource,
        namespace: &str,
        params: &ListParams,
    ) -> Result<ObjectList<PartialObject>, ApiError> {
        self.list_at(
            METADATA,
            &(of.path(namespace, None, None) + &query(params, &[])),
        )
        .await
    }

    /// Lists whole objects; in all namespaces if `namespace` is empty.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn wholes(
        &self,
        of: &Resource,
        namespace: &str,
        params: &ListParams,
    ) -> Result<ObjectList<DynamicObject>, ApiError> {
        self.list_at(
            "application/json",
            &(of.path(namespace, None, None) + &query(params, &[])),
        )
        .await
    }

    /// Reads one whole object.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn whole(
        &self,
        of: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<DynamicObject, ApiError> {
        self.send_as(
            "application/json",
            Method::GET,
            &of.path(namespace, Some(name), None),
            None,
            Bytes::new(),
        )
        .await
    }

    /// Reads a subresource of an object of any kind.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn part(&self, of: &Resource, at: ObjectPath<'_>) -> Result<DynamicObject, ApiError> {
        let path = of.path_of(at);
        self.send_as("application/json", Method::GET, &path, None, Bytes::new())
            .await
    }

    /// Replaces an object of any kind, or a subresource of it; its resource version must be the
    /// current one.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn replace(
        &self,
        of: &Resource,
        at: ObjectPath<'_>,
        object: &DynamicObject,
    ) -> Result<DynamicObject, ApiError> {
        let path = of.path_of(at);
        self.send_as(
            "application/json",
            Method::PUT,
            &path,
            Some("application/json"),
            encode(object)?,
        )
        .await
    }

    /// Deletes an object of any kind.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn remove(
        &self,
        of: &Resource,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), ApiError> {
        self.delete_at(&of.path(namespace, Some(name), None), params)
            .await
    }

    /// Patches an object of any kind, or a subresource of it.
    ///
    /// # Errors
    /// As [`Client::patch`].
    pub async fn change(
        &self,
        of: &Resource,
        at: ObjectPath<'_>,
        patch: &Patch,
    ) -> Result<DynamicObject, ApiError> {
        self.patch_at(&of.path_of(at), patch).await
    }
}

/// The requests of a follower.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Media types of lists and of single objects.
    accept: [&'static str; 2],
    path: String,
    params: ListParams,
}

impl Source {
    /// Objects of a type that is known at compile time.
    pub(crate) fn typed<T: Object>(namespace: Option<&str>, params: ListParams) -> Self {
        let path = path_to(T::API_VERSION, T::URL_PATH_SEGMENT, namespace, None, None);
        Self {
            accept: ["application/json"; 2],
            path,
            params,
        }
    }

    /// The metadata of all objects of a kind.
    pub(crate) fn metadata(of: &Resource) -> Self {
        let accept = [METADATA, METADATA_OF_ONE];
        Self {
            accept,
            path: of.path("", None, None),
            params: ListParams::default(),
        }
    }

    pub(crate) fn log_failure(&self, failures: u32, error: &ApiError) {
        tracing::debug!(source = ?self, failures, error = chain(error), "list or watch failed; trying again");
    }

    pub(crate) async fn page<T: Versioned>(
        &self,
        client: &Client,
        limit: u32,
        continue_token: Option<String>,
    ) -> Result<ObjectList<T>, ApiError> {
        let params = ListParams {
            limit: Some(limit),
            continue_token,
            ..self.params.clone()
        };
        client
            .list_at(self.accept[0], &(self.path.clone() + &query(&params, &[])))
            .await
    }

    pub(crate) async fn watch<T: Versioned>(
        self: Arc<Self>,
        client: Client,
        from: String,
    ) -> Result<Watcher<T>, ApiError> {
        client
            .watch_at(self.accept[1], &self.path, &self.params, &from)
            .await
    }
}
