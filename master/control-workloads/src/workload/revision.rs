//! ControllerRevisions: the templates that a DaemonSet or StatefulSet has had, numbered in the order in which they were
//! current.

use super::hash::of_patch;
use super::kept::{Kept, Labels};
use super::make::labels_of;
use config_kube::k8s_openapi::api::apps::v1::ControllerRevision;
use config_kube::k8s_openapi::api::core::v1::PodTemplateSpec;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use config_kube::k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use config_kube::{FromJson as _, ToJson as _};
use master_client::{ApiError, DeleteParams, Entries, Key, Object, Patch};
use master_control::writer::Writer;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The label of pods, and of the revisions of DaemonSets, that tells a template.
pub const HASH: &str = "controller-revision-hash";

/// Something that is done to revisions.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One is made.
    Create(Box<ControllerRevision>),
    /// One with this name and UID is current again, under this number.
    Renumber(String, String, i64),
    /// One with this name and UID goes.
    Delete(String, String),
}

/// A template as a revision keeps it: a patch that replaces it (upstream's form, which `kubectl rollout undo` applies).
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = template.to_tree().unwrap_or_default();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// The patch as Go's types write it: each container has resources, if only empty ones.
fn as_go_writes(mut patch: Value) -> Value {
    for list in ["containers", "initContainers"] {
        let all = patch.pointer_mut(&format!("/spec/template/spec/{list}"));
        let all = all.and_then(Value::as_array_mut).into_iter().flatten();
        for container in all.filter_map(Value::as_object_mut) {
            container.entry("resources").or_insert_with(|| json!({}));
        }
    }
    patch
}

/// The owner's revision of its template.
#[derive(Debug, Clone, PartialEq)]
pub struct Current {
    /// Its name.
    pub name: String,
    /// Its hash.
    pub hash: String,
    /// What is to be done before anything else.
    pub step: Option<Step>,
}

/// The revision of a template: the one with this content, under the highest number, or a new one.
pub fn current(
    owner: &OwnerReference,
    namespace: &str,
    template: &PodTemplateSpec,
    collisions: Option<i32>,
    known: &Entries<Kept<ControllerRevision>>,
) -> Current {
    let data = data(template);
    let last = known.iter().map(|(_, one)| one.revision).max();
    let next = last.unwrap_or_default().saturating_add(1);
    let mut equal: Vec<_> = known
        .iter()
        .filter(|(_, one)| content(one) == Some(&data))
        .collect();
    equal.sort_by_key(|(_, one)| one.revision);
    if let Some((key, found)) = equal.last() {
        let labels = found.metadata.labels.clone().unwrap_or_default();
        let uid = found.metadata.uid.clone().unwrap_or_default();
        let again =
            (Some(found.revision) != last).then(|| Step::Renumber(key.name.clone(), uid, next));
        return Current {
            name: key.name.clone(),
            hash: labels.get(HASH).cloned().unwrap_or_default(),
            step: again,
        };
    }
    let hash = of_patch(&as_go_writes(data.clone()), collisions);
    let name = format!("{}-{hash}", owner.name);
    let mut labels: Labels = labels_of(template);
    labels.insert(HASH.to_owned(), hash.clone());
    let new = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: next,
    };
    Current {
        name,
        hash,
        step: Some(Step::Create(Box::new(new))),
    }
}

fn content(revision: &ControllerRevision) -> Option<&Value> {
    revision.data.as_ref().map(|data| &data.0)
}

/// The template of a revision.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = content(revision)?.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    PodTemplateSpec::from_tree(&template).ok()
}

/// Revisions beyond the limit of history that nothing uses, the oldest first.
pub fn beyond(
    known: &Entries<Kept<ControllerRevision>>,
    used: &BTreeSet<&str>,
    limit: Option<i32>,
) -> Vec<Step> {
    let is_used = |one: &Kept<ControllerRevision>, name: &str| {
        let labels = one.metadata.labels.as_ref();
        let hash = labels.and_then(|labels| labels.get(HASH));
        used.contains(name) || hash.is_some_and(|hash| used.contains(hash.as_str()))
    };
    let mut spare: Vec<_> = known
        .iter()
        .filter(|(key, one)| !is_used(one, &key.name))
        .collect();
    spare.sort_by_key(|(_, one)| one.revision);
    let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or_default();
    let gone = spare.len().saturating_sub(limit);
    let step = |(key, one): &&(
        std::sync::Arc<Key>,
        std::sync::Arc<Kept<ControllerRevision>>,
    )| {
        Step::Delete(
            key.name.clone(),
            one.metadata.uid.clone().unwrap_or_default(),
        )
    };
    spare[..gone].iter().map(step).collect()
}

/// Carries a step out.
///
/// # Errors
/// As the API answers. "Already exists" where a revision of this name has other content: the owner's status then counts
/// a collision more than `collisions`, so that the next plan chooses another name.
pub async fn carry_out<K: Object>(
    writer: &Writer,
    owner: &Key,
    uid: &str,
    collisions: Option<i32>,
    step: Step,
) -> Result<(), ApiError> {
    let result = write(writer, &owner.namespace, step).await;
    if result.as_ref().is_err_and(ApiError::is_already_exists) {
        let count = collisions.unwrap_or_default().saturating_add(1);
        let patch = json!({"metadata": {"uid": uid}, "status": {"collisionCount": count}});
        let patch = Patch::Merge(patch);
        writer.patch_status::<K>(owner, &patch).await?;
    }
    result
}

async fn write(writer: &Writer, namespace: &str, step: Step) -> Result<(), ApiError> {
    match step {
        Step::Create(revision) => writer.create(&*revision).await.map(drop),
        Step::Renumber(name, uid, number) => {
            let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "revision": number}));
            let key = Key::new(namespace, &name);
            writer
                .patch::<ControllerRevision>(&key, &patch)
                .await
                .map(drop)
        }
        Step::Delete(name, uid) => {
            let key = Key::new(namespace, &name);
            let params = DeleteParams::of(uid);
            match writer.delete::<ControllerRevision>(&key, &params).await {
                Err(error) if error.is_not_found() => Ok(()),
                other => other,
            }
        }
    }
}
