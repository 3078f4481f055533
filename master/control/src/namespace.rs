//! Namespace lifecycle: what is in a deleted namespace goes, then the namespace.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Key, Kind, Observed};
use crate::write::Write;
use config_kube::k8s_openapi::Resource;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, NamespaceCondition, Pod, Secret, ServiceAccount,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use futures_util::stream::{self, StreamExt};
use jiff::Timestamp;
use master_api::client::Object;
use master_api::{ApiError, Client, DeleteParams, ListParams, Patch};
use serde_json::json;
use std::collections::BTreeMap;

/// What holds a namespace until its content is gone.
pub(crate) const FINALIZER: &str = "kubernetes";
/// Objects of a kind that are looked at in one round.
const PAGE: u32 = 500;
/// Objects that are deleted at once.
const AT_ONCE: usize = 16;

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct Namespaces;

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Namespace, Kind::Pod]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let terminating =
            observed.namespaces.iter().filter(|(_, namespace)| namespace.terminating && namespace.unfinished);
        let writes =
            terminating.map(|(name, facts)| Write::EmptyNamespace { name: name.clone(), uid: facts.uid.clone() });
        let writes: Vec<Write> = writes.collect();
        let again = (!writes.is_empty()).then_some(std::time::Duration::from_secs(1));
        Plan { writes, again }
    }
}

/// What is left in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Remaining {
    /// Objects by resource.
    resources: BTreeMap<&'static str, usize>,
    /// Objects by finalizer.
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    fn count<T: Object>(&mut self, objects: &[T]) {
        if !objects.is_empty() {
            *self.resources.entry(T::URL_PATH_SEGMENT).or_default() += objects.len();
        }
        for finalizer in objects.iter().flat_map(|object| object.metadata().finalizers.iter().flatten()) {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    /// Conditions in upstream's words.
    fn conditions(&self, now: Timestamp) -> Vec<NamespaceCondition> {
        let condition = |kind: &str, list: Vec<String>, reasons: [&str; 2], words: [&str; 2]| {
            let bad = !list.is_empty();
            let message = if bad { format!("{}: {}", words[0], list.join(", ")) } else { words[1].to_owned() };
            NamespaceCondition {
                type_: kind.to_owned(),
                status: if bad { "True" } else { "False" }.to_owned(),
                reason: Some(reasons[usize::from(!bad)].to_owned()),
                message: Some(message),
                last_transition_time: Some(Time(now)),
            }
        };
        let resources = self.resources.iter().map(|(name, count)| format!("{name}. has {count} resource instances"));
        let finalizers = self.finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances"));
        vec![
            condition(
                "NamespaceContentRemaining",
                resources.collect(),
                ["SomeResourcesRemain", "ContentRemoved"],
                ["Some resources are remaining", "All content successfully removed"],
            ),
            condition(
                "NamespaceFinalizersRemaining",
                finalizers.collect(),
                ["SomeFinalizersRemain", "ContentHasNoFinalizers"],
                [
                    "Some content in the namespace has finalizers remaining",
                    "All content-preserving finalizers finished",
                ],
            ),
        ]
    }
}

/// One round: deletes what is there; once nothing is, lets the namespace go.
pub(crate) async fn empty(client: &Client, name: &str, uid: &str) -> Result<(), ApiError> {
    let namespace: Namespace = client.get(None, name).await?;
    if namespace.metadata.uid.as_deref() != Some(uid) || namespace.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    let mut left = Remaining::default();
    clear_all(client, name, &mut left).await?;
    if left.is_empty() {
        return finalize(client, namespace).await;
    }
    tell(client, &namespace, &left).await
}

/// The kinds whose objects are in namespaces, in the order of their deletion.
macro_rules! kinds {
    ($($kind:ty),* $(,)?) => {
        async fn clear_all(client: &Client, namespace: &str, left: &mut Remaining) -> Result<(), ApiError> {
            $(clear::<$kind>(client, namespace, left).await?;)*
            Ok(())
        }

        /// Resources that are deleted with their namespace: a kind that the API serves and is not here would be left over.
        pub fn cleared() -> Vec<&'static str> {
            vec![$(<$kind as Resource>::URL_PATH_SEGMENT),*]
        }
    };
}

// Pods first: others may be mounted in them. Events last: the deletions cause some.
kinds!(Pod, ConfigMap, Secret, ServiceAccount, Lease, Event);

/// Deletes the objects of a kind, and counts those that stay for now.
async fn clear<T: Object>(client: &Client, namespace: &str, left: &mut Remaining) -> Result<(), ApiError> {
    let params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    let objects = client.list::<T>(Some(namespace), &params).await?.items;
    let waiting = objects.iter().filter(|object| object.metadata().deletion_timestamp.is_none());
    let keys: Vec<(Key, DeleteParams)> = waiting
        .map(|object| {
            let meta = object.metadata();
            (Key::of(meta), DeleteParams { uid: meta.uid.clone(), ..DeleteParams::default() })
        })
        .collect();
    let delete = |(key, params): (Key, DeleteParams)| async move {
        client.delete::<T>(Some(namespace), &key.name, &params).await
    };
    let answers: Vec<_> = stream::iter(keys).map(delete).buffer_unordered(AT_ONCE).collect().await;
    for answer in answers {
        match answer {
            Ok(()) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    left.count(&client.list::<T>(Some(namespace), &params).await?.items);
    Ok(())
}

async fn finalize(client: &Client, mut namespace: Namespace) -> Result<(), ApiError> {
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|name| name != FINALIZER);
    }
    client.update_subresource(&namespace, "finalize").await.map(drop)
}

/// Writes what is left into the namespace's conditions, where it isn't there already.
async fn tell(client: &Client, namespace: &Namespace, left: &Remaining) -> Result<(), ApiError> {
    let known = namespace.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let conditions = left.conditions(Timestamp::now());
    let news = |condition: &NamespaceCondition| {
        let same = |other: &NamespaceCondition| other.type_ == condition.type_ && other.message == condition.message;
        !known.iter().any(same)
    };
    if !conditions.iter().any(news) {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    client.patch_status::<Namespace>(None, name, &patch).await.map(drop)
}
