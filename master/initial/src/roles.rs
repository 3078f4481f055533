//! Brings the default roles and bindings up to date at start; keeps what an admin added.

use config_kube::k8s_openapi::api::rbac::v1::{self, ClusterRole, ClusterRoleBinding, RoleBinding};
use futures_util::future::join_all;
use master_client::{Client, DeleteParams, ListParams, Object};
use master_rbac::reconcile::{self, Step};
use master_rbac::{Binding, ComponentRole, Role, defaults};
use master_schema::error::{ApiError, Reason};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;

/// Attempts, as another writer may change the same object.
const TRIES: usize = 5;

/// Writes what is missing of the default roles and of those of the master's parts; returns the
/// first error.
pub(crate) async fn reconcile(client: &Client, parts: &[ComponentRole]) -> Result<(), ApiError> {
    let mut roles = defaults::cluster_roles();
    roles.extend(parts.iter().map(|part| part.role.clone()));
    let mut bindings = defaults::cluster_role_bindings();
    bindings.extend(parts.iter().map(|part| part.binding.clone()));
    settle::<ClusterRole, _>(client, roles, reconcile::role).await?;
    settle::<ClusterRoleBinding, _>(client, bindings, reconcile::binding).await?;
    settle::<v1::Role, _>(client, defaults::roles(), reconcile::role).await?;
    settle::<RoleBinding, _>(client, defaults::role_bindings(), reconcile::binding).await
}

/// The common interface of roles and bindings.
trait Seeded: Serialize + DeserializeOwned {
    fn place(&self) -> (&str, &str);
}

impl Seeded for Role {
    fn place(&self) -> (&str, &str) {
        (&self.metadata.namespace, &self.metadata.name)
    }
}

impl Seeded for Binding {
    fn place(&self) -> (&str, &str) {
        (&self.metadata.namespace, &self.metadata.name)
    }
}

async fn settle<T: Object, D: Seeded>(
    client: &Client,
    wanted: Vec<D>,
    compare: fn(&D, &D) -> Step<D>,
) -> Result<(), ApiError> {
    let list = client.list::<T>(None, &ListParams::default()).await?;
    let mut existing: HashMap<(String, String), T> = HashMap::new();
    for object in list.items {
        let meta = object.metadata();
        let key = (
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        );
        existing.insert(key, object);
    }
    let each = wanted.iter().map(|wanted| {
        let (namespace, name) = wanted.place();
        let found = existing.remove(&(namespace.to_owned(), name.to_owned()));
        one::<T, D>(client, found, wanted, compare)
    });
    // Concurrently, so that the store commits them together.
    join_all(each).await.into_iter().collect()
}

async fn one<T: Object, D: Seeded>(
    client: &Client,
    found: Option<T>,
    wanted: &D,
    compare: fn(&D, &D) -> Step<D>,
) -> Result<(), ApiError> {
    let (namespace, name) = wanted.place();
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    let mut found = found;
    for _ in 0..TRIES {
        let written = match &found {
            None => client.create(&cast::<T>(wanted)?).await.map(drop),
            Some(object) => match compare(&seeded(object)?, wanted) {
                Step::Nothing => return Ok(()),
                Step::Update(new) => client.update(&overlay(object, &new)?).await.map(drop),
                Step::Replace(new) => {
                    client
                        .delete::<T>(namespace, name, &DeleteParams::default())
                        .await?;
                    client.create(&cast::<T>(&new)?).await.map(drop)
                }
            },
        };
        match written {
            Err(error) if error.is_conflict() || error.is_already_exists() => {
                found = client.get_opt::<T>(namespace, name).await?;
            }
            other => return other,
        }
    }
    let text = format!(
        "the default role or binding {name:?} changes faster than it can be brought up to date"
    );
    Err(ApiError::new(Reason::Conflict, text))
}

fn cast<T: Object>(object: &impl Serialize) -> Result<T, ApiError> {
    serde_json::to_value(object)
        .and_then(|tree| T::from_tree(&tree))
        .map_err(|error| unreadable(&error))
}

fn seeded<D: Seeded>(object: &impl Object) -> Result<D, ApiError> {
    object
        .to_tree()
        .and_then(serde_json::from_value)
        .map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("a role or binding cannot be read as its own kind: {error}"),
    )
}

/// The stored object with new content and the rest of its metadata unchanged.
fn overlay<T: Object>(object: &T, new: &impl Serialize) -> Result<T, ApiError> {
    let mut value = object.to_tree().map_err(|error| unreadable(&error))?;
    let new = serde_json::to_value(new).map_err(|error| unreadable(&error))?;
    if let (Value::Object(value), Value::Object(new)) = (&mut value, new) {
        for (key, field) in new {
            match (value.get_mut(&key), field) {
                (Some(Value::Object(own)), Value::Object(field)) if key == "metadata" => {
                    own.extend(field);
                }
                (_, field) => drop(value.insert(key, field)),
            }
        }
    }
    T::from_tree(&value).map_err(|error| unreadable(&error))
}
