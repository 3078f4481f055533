//! Creates and deletes pods for their owners, and records events about it.

use super::kept::Labels;
use super::pod::PodId;
use config_kube::k8s_openapi::api::core::v1::{ObjectReference, Pod, PodTemplateSpec};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use futures_util::future::join_all;
use master_client::{ApiError, DeleteParams, Key, NewEvent, Severity};
use master_control::writer::Writer;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most pods that one run creates or deletes (upstream: `BurstReplicas`).
pub const BURST: usize = 500;
/// Most concurrent writes. A run starts with one: if the API refuses that, it would refuse the rest
/// as well.
const AT_ONCE: usize = 32;
/// Longest prefix of a generated name; the API adds five characters.
const LONGEST_PREFIX: usize = 58;

/// A pod from a template, controlled by an owner. Its name is generated.
pub fn pod_of(template: &PodTemplateSpec, owner: &OwnerReference, namespace: &str) -> Pod {
    let given = template.metadata.clone().unwrap_or_default();
    let prefix: String = format!("{}-", owner.name)
        .chars()
        .take(LONGEST_PREFIX)
        .collect();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix),
            namespace: Some(namespace.to_owned()),
            labels: given.labels,
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A reference to the owner, for events.
pub fn reference(owner: &OwnerReference, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: Some(namespace.to_owned()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Records an event about an owner.
pub async fn record_event(
    writer: &Writer,
    about: &ObjectReference,
    severity: Severity,
    reason: &str,
    message: String,
) {
    let event = NewEvent {
        severity,
        reason,
        action: reason,
        message,
    };
    writer.recorder().record_of(about.clone(), &event).await;
}

/// Whether the namespace is being deleted: then a failed creation needs no event.
pub fn is_ending(error: &ApiError) -> bool {
    let causes = &error.details.causes;
    causes
        .iter()
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// Creates pods, in batches that double.
///
/// # Errors
/// The first refusal; the batches after it are not tried.
pub async fn create(
    writer: &Writer,
    about: &ObjectReference,
    pods: Vec<Pod>,
) -> Result<(), ApiError> {
    let mut rest = pods.into_iter();
    let mut batch = 1;
    loop {
        let next: Vec<Pod> = rest.by_ref().take(batch).collect();
        if next.is_empty() {
            return Ok(());
        }
        let made = join_all(next.iter().map(|pod| create_one(writer, about, pod))).await;
        made.into_iter().collect::<Result<Vec<()>, _>>()?;
        batch = (batch * 2).min(AT_ONCE);
    }
}

async fn create_one(writer: &Writer, about: &ObjectReference, pod: &Pod) -> Result<(), ApiError> {
    let (severity, reason, message, result) = match writer.create(pod).await {
        Ok(made) => {
            let name = made.metadata.name.unwrap_or_default();
            let message = format!("Created pod: {name}");
            (Severity::Normal, "SuccessfulCreate", message, Ok(()))
        }
        Err(error) if is_ending(&error) => return Err(error),
        Err(error) => {
            let message = format!("Error creating: {error}");
            (Severity::Warning, "FailedCreate", message, Err(error))
        }
    };
    record_event(writer, about, severity, reason, message).await;
    result
}

/// Deletes pods, each only if it still has its UID.
///
/// # Errors
/// The first refusal, after all pods of a batch were tried. A missing pod is no error.
pub async fn delete(
    writer: &Writer,
    about: &ObjectReference,
    pods: &[PodId],
) -> Result<(), ApiError> {
    for batch in pods.chunks(AT_ONCE) {
        let ended = join_all(batch.iter().map(|pod| delete_one(writer, about, pod)));
        ended.await.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    Ok(())
}

async fn delete_one(writer: &Writer, about: &ObjectReference, pod: &PodId) -> Result<(), ApiError> {
    let params = DeleteParams::of(pod.uid.clone());
    match writer.delete::<Pod>(&pod.key, &params).await {
        Ok(()) => {
            let message = format!("Deleted pod: {}", pod.key.name);
            record_event(writer, about, Severity::Normal, "SuccessfulDelete", message).await;
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => {
            let message = format!("Error deleting: {error}");
            record_event(writer, about, Severity::Warning, "FailedDelete", message).await;
            Err(error)
        }
    }
}

/// Why an owner's pods could not be created or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// The API's error message.
    pub message: String,
}

/// The last failure of each owner, until the owner succeeds or is deleted.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<Key, Failure>>);

impl Failures {
    /// The last failure of an owner.
    pub fn of(&self, owner: &Key) -> Option<Failure> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(owner).cloned()
    }

    /// Forgets an owner.
    pub fn forget(&self, owner: &Key) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(owner);
    }

    /// Remembers whether creating or deleting pods failed, and returns the result unchanged.
    ///
    /// # Errors
    /// What `result` holds.
    pub fn note(
        &self,
        owner: &Key,
        reason: &'static str,
        result: Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        match &result {
            Ok(()) => self.forget(owner),
            Err(error) => {
                let failure = Failure {
                    reason,
                    message: error.to_string(),
                };
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(owner.clone(), failure);
            }
        }
        result
    }
}

/// Labels of a template.
pub fn labels_of(template: &PodTemplateSpec) -> Labels {
    let metadata = template.metadata.as_ref();
    metadata
        .and_then(|metadata| metadata.labels.clone())
        .unwrap_or_default()
}
