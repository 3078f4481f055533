//! ControllerRevisions: the present and former templates of a DaemonSet or StatefulSet, numbered in
//! the order in which they were current.

use super::claim::OwnerChange;
use super::hash::of_patch;
use super::kept::{
    Kept, Labels, Selects, by_controller, by_namespace, concerned, controller, orphans_of,
};
use super::make::labels_of;
use config_kube::k8s_openapi::api::apps::v1::ControllerRevision;
use config_kube::k8s_openapi::api::core::v1::PodTemplateSpec;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use config_kube::k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use config_kube::{FromJson as _, ToJson as _};
use master_client::{ApiError, DeleteParams, Entries, Key, Lookup, Object, Patch, Store};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Debug;

/// The label of pods, and of the revisions of DaemonSets, that identifies a template.
pub const HASH: &str = "controller-revision-hash";
/// The label of the revisions of StatefulSets that identifies a template.
const STATEFUL_HASH: &str = "controller.kubernetes.io/hash";

/// A write of revisions.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Adopts or releases a revision.
    Own(OwnerChange),
    /// Creates a revision.
    Create(Box<ControllerRevision>),
    /// Makes a revision with this name and UID the current one, under this number.
    Renumber(String, String, i64),
    /// Deletes a revision with this name and UID.
    Delete(String, String),
}

/// All revisions, with an index by controller.
#[derive(Debug)]
pub struct Revisions(Lookup<Kept<ControllerRevision>>);

impl Revisions {
    /// Follows all revisions. A changed revision concerns its controller, or if it has none, those
    /// of `owners` whose selector matches.
    pub fn follow<T>(setup: &mut Setup<'_>, owners: &Store<Kept<T>>) -> Self
    where
        T: Object + Selects + PartialEq + Debug + Sync,
    {
        let near = owners.index(&by_namespace());
        let all: Store<Kept<ControllerRevision>> =
            setup.follow(move |delta, keys| concerned(&near, delta, keys));
        Self(all.index(&by_controller()))
    }

    /// The revisions that the owner with this UID controls.
    pub fn of(&self, uid: &str) -> Entries<Kept<ControllerRevision>> {
        self.0.get(uid)
    }

    /// Adoptions and releases: of these revisions of an owner, and of the orphans in its namespace.
    /// So an owner that was deleted with `--cascade=orphan` and is created again adopts its
    /// revisions like its pods, and the template of each pod is known.
    pub fn owner_changes<T: Object + Selects>(
        &self,
        owner: &T,
        own: &Entries<Kept<ControllerRevision>>,
    ) -> Vec<OwnerChange> {
        let namespace = owner.metadata().namespace.as_deref();
        let orphans = self.0.get(&orphans_of(namespace.unwrap_or_default()));
        let all = own.iter().chain(&orphans);
        all.filter_map(|(key, one)| OwnerChange::of_kept(owner, key, one))
            .collect()
    }
}

/// A template as a revision keeps it: a patch that replaces it (upstream's form, which
/// `kubectl rollout undo` applies), byte for byte as upstream writes it. Its clients compare a
/// DaemonSet with its revisions by these bytes.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = template.to_tree().unwrap_or_default();
    template["$patch"] = "replace".into();
    as_go_writes(json!({"spec": {"template": template}}))
}

/// A patch as the Go types of Kubernetes 1.34 and later write it. Fields that are structs there,
/// and not pointers, are always written, even if empty. Before 1.34, an unset creation time was
/// written as `null`.
fn as_go_writes(mut patch: Value) -> Value {
    let Some(template) = patch.pointer_mut("/spec/template") else {
        return patch;
    };
    written(Some(template), "metadata", json!({}));
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.retain(|key, value| key != "creationTimestamp" || !value.is_null());
    }
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in elements(template, list) {
            for variable in elements(container, "/env") {
                amount(variable.get_mut("valueFrom"));
            }
            written(Some(container), "resources", json!({}));
        }
    }
    for volume in elements(template, "/spec/volumes") {
        let claim = "/ephemeral/volumeClaimTemplate";
        written(volume.pointer_mut(claim), "metadata", json!({}));
        let claim = volume.pointer_mut(&format!("{claim}/spec"));
        written(claim, "resources", json!({}));
        for item in elements(volume, "/downwardAPI/items") {
            amount(Some(item));
        }
        for source in elements(volume, "/projected/sources") {
            for item in elements(source, "/downwardAPI/items") {
                amount(Some(item));
            }
        }
    }
    patch
}

/// The elements of the list at a pointer; none if there is no such list.
fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = object.pointer_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// Writes a field of an object that lacks it.
fn written(object: Option<&mut Value>, field: &str, empty: Value) {
    if let Some(object) = object.and_then(Value::as_object_mut) {
        object.entry(field).or_insert(empty);
    }
}

/// Writes the divisor of a `resourceFieldRef`.
fn amount(source: Option<&mut Value>) {
    let amount = source.and_then(|source| source.get_mut("resourceFieldRef"));
    written(amount, "divisor", "0".into());
}

/// The revision of an owner's present template.
#[derive(Debug, Clone, PartialEq)]
pub struct Current {
    /// Its name.
    pub name: String,
    /// Its hash.
    pub hash: String,
    /// The hash with which a revision of this template is created. Pods with it are of this
    /// template, too, even if their revision was deleted and a copy is used in its place.
    pub content_hash: String,
    /// A write that must come first.
    pub step: Option<Step>,
}

/// The revision of an owner's template: of those with this content, one that pods use (`used`, by
/// its hash), else the one with the highest number, else a new one. It has the owner's annotations,
/// as people write the reason of a change there.
pub fn current(
    owner: &OwnerReference,
    meta: &ObjectMeta,
    template: &PodTemplateSpec,
    collisions: Option<i32>,
    known: &Entries<Kept<ControllerRevision>>,
    used: &BTreeSet<&str>,
) -> Current {
    let data = data(template);
    let last = known.iter().map(|(_, one)| one.revision).max();
    let next = last.unwrap_or_default().saturating_add(1);
    let mut equal: Vec<_> = known
        .iter()
        .filter(|(_, one)| content(one).is_some_and(|known| is_alike(known, &data)))
        .collect();
    equal.sort_by_key(|(_, one)| one.revision);
    // Any client may copy a revision; pods must not restart because of a copy. If a client deletes
    // a revision, the newest copy is used in its place, so that the deleted one is not created
    // again.
    let newest_first = || equal.iter().rev();
    let hash = of_patch(&data, collisions);
    let found = newest_first()
        .find(|(key, one)| used.contains(hash_of(key, one)))
        .or_else(|| newest_first().next());
    if let Some((key, found)) = found {
        let uid = found.metadata.uid.clone().unwrap_or_default();
        let again =
            (Some(found.revision) != last).then(|| Step::Renumber(key.name.clone(), uid, next));
        return Current {
            name: key.name.clone(),
            hash: hash_of(key, found).to_owned(),
            content_hash: hash,
            step: again,
        };
    }
    let name = format!("{}-{hash}", owner.name);
    let mut labels: Labels = labels_of(template);
    let label = if owner.kind == "StatefulSet" {
        STATEFUL_HASH
    } else {
        HASH
    };
    labels.insert(label.to_owned(), hash.clone());
    let new = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations.clone(),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: next,
    };
    Current {
        name,
        content_hash: hash.clone(),
        hash,
        step: Some(Step::Create(Box::new(new))),
    }
}

/// The hash in the label of a revision's pods; the revision's name if it has none, as upstream.
fn hash_of<'a>(key: &'a Key, revision: &'a Kept<ControllerRevision>) -> &'a str {
    let labels = revision.metadata.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get(HASH));
    hash.map_or(key.name.as_str(), String::as_str)
}

/// Whether a revision, written by any version of Kubernetes, has the content of a template.
fn is_alike(known: &Value, data: &Value) -> bool {
    known == data || as_go_writes(known.clone()) == *data
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

/// Deletes unused revisions beyond the history limit, the oldest first.
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
    let gone = spare[..gone].iter().map(|(key, one)| {
        let uid = one.metadata.uid.clone().unwrap_or_default();
        Step::Delete(key.name.clone(), uid)
    });
    gone.collect()
}

/// Carries out a step for an owner in a namespace.
///
/// # Errors
/// As the API answers. "Already exists" if there is a revision of this name: if it has other
/// content or another controller, `status.collisionCount` of the owner is raised above
/// `collisions`, so that the next plan chooses another name; if not, the stores do not show it yet.
pub async fn carry_out<K: Object>(
    writer: &Writer,
    owner: &OwnerReference,
    namespace: &str,
    collisions: Option<i32>,
    step: Step,
) -> Result<(), ApiError> {
    let made = match &step {
        Step::Create(new) => Some(new.clone()),
        Step::Own(_) | Step::Renumber(..) | Step::Delete(..) => None,
    };
    let result = write::<K>(writer, owner, namespace, step).await;
    let exists = result.as_ref().is_err_and(ApiError::is_already_exists);
    let Some(new) = made.filter(|_| exists) else {
        return result;
    };
    let name = new.metadata.name.as_deref().unwrap_or_default();
    let known: Option<ControllerRevision> = writer.client().get_opt(Some(namespace), name).await?;
    if known.is_some_and(|known| !is_free(&known, &new, owner)) {
        let count = collisions.unwrap_or_default().saturating_add(1);
        let patch = json!({"metadata": {"uid": owner.uid}, "status": {"collisionCount": count}});
        let owner = Key::new(namespace, &owner.name);
        let patch = Patch::Merge(patch);
        writer.patch_status::<K>(&owner, &patch).await?;
    }
    result
}

/// Whether an existing revision has the wanted content, and belongs to the owner or is an orphan.
fn is_free(known: &ControllerRevision, new: &ControllerRevision, owner: &OwnerReference) -> bool {
    let same = content(known).zip(content(new));
    let labels = known.metadata.labels.as_ref();
    let has = |key: &str, value: &String| labels.and_then(|all| all.get(key)) == Some(value);
    let mut wanted = new.metadata.labels.iter().flatten();
    same.is_some_and(|(known, new)| is_alike(known, new))
        && match controller(&known.metadata) {
            Some(one) => one.uid == owner.uid,
            None => wanted.all(|(key, value)| {
                has(key, value) || [HASH, STATEFUL_HASH].contains(&key.as_str())
            }),
        }
}

async fn write<K: Object>(
    writer: &Writer,
    owner: &OwnerReference,
    namespace: &str,
    step: Step,
) -> Result<(), ApiError> {
    match step {
        Step::Own(change) => {
            change
                .carry_out::<K, ControllerRevision>(writer, owner)
                .await
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As a client of Kubernetes 1.36 writes the patch of a DaemonSet with this template
    /// (`encoding/json` over the types of `k8s.io/api`, keys in order).
    const WRITTEN: &str = concat!(
        r#"{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"#,
        r#""env":[{"name":"A","valueFrom":{"resourceFieldRef":{"divisor":"0","resource":"limits.cpu"}}}],"#,
        r#""image":"web:1","name":"c","resources":{}}],"#,
        r#""initContainers":[{"name":"i","resources":{"limits":{"cpu":"1"}}}],"volumes":["#,
        r#"{"ephemeral":{"volumeClaimTemplate":{"metadata":{},"spec":{"resources":{}}}},"name":"e"},"#,
        r#"{"downwardAPI":{"items":[{"path":"p","resourceFieldRef":{"divisor":"0","resource":"limits.cpu"}}]},"name":"d"},"#,
        r#"{"name":"p","projected":{"sources":[{"downwardAPI":{"items":[{"path":"p","resourceFieldRef":{"divisor":"1m","resource":"limits.cpu"}}]}}]}}"#,
        "]}}}}"
    );

    #[test]
    fn a_revision_is_written_as_upstreams_types_write_it() {
        let amount = json!({"resource": "limits.cpu"});
        let given = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "c", "image": "web:1",
                "env": [{"name": "A", "valueFrom": {"resourceFieldRef": amount}}]}],
            "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}],
            "volumes": [
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "d", "downwardAPI": {"items": [{"path": "p", "resourceFieldRef": amount}]}},
                {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": [
                    {"path": "p", "resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}]}}]}}]}});
        let template: PodTemplateSpec = serde_json::from_value(given).unwrap();
        let data = data(&template);
        assert_eq!(data.to_string(), WRITTEN);
        let revision = ControllerRevision {
            data: Some(RawExtension(data.clone())),
            ..ControllerRevision::default()
        };
        let restored = super::template(&revision).unwrap();
        assert_eq!(super::data(&restored), data, "what it restores is of it");
    }

    #[test]
    fn a_new_revision_has_its_hash_where_its_owners_kind_has_it_and_says_why_it_came() {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}});
        let template: PodTemplateSpec = serde_json::from_value(template).unwrap();
        let cause = ("kubernetes.io/change-cause".to_owned(), "first".to_owned());
        let meta = ObjectMeta {
            namespace: Some("default".to_owned()),
            annotations: Some([cause].into()),
            ..ObjectMeta::default()
        };
        let hash = of_patch(&data(&template), None);
        for (kind, label) in [
            ("DaemonSet", HASH),
            ("StatefulSet", "controller.kubernetes.io/hash"),
        ] {
            let owner = OwnerReference {
                kind: kind.to_owned(),
                name: "web".to_owned(),
                ..OwnerReference::default()
            };
            let current = current(
                &owner,
                &meta,
                &template,
                None,
                &Vec::new(),
                &BTreeSet::new(),
            );
            assert_eq!(
                (&current.name, &current.hash),
                (&format!("web-{hash}"), &hash)
            );
            let Some(Step::Create(new)) = current.step else {
                unreachable!("it is new")
            };
            let labels = [("app", "web"), (label, &hash)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(new.metadata.labels, Some(labels.into()));
            assert_eq!(new.metadata.annotations, meta.annotations);
            assert_eq!(new.metadata.namespace, meta.namespace);
        }
    }

    #[test]
    fn a_revision_of_an_older_version_is_of_the_same_template() {
        let template = json!({"spec": {"containers": [{"name": "c"}]}});
        let template: PodTemplateSpec = serde_json::from_value(template).unwrap();
        let data = data(&template);
        let older = json!({"spec": {"template": {"$patch": "replace", "metadata": {"creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "resources": {}}]}}}});
        let bare = json!({"spec": {"template": {"$patch": "replace", "spec": {"containers": [{"name": "c"}]}}}});
        let other = json!({"spec": {"template": {"$patch": "replace", "spec": {"containers": [{"name": "d"}]}}}});
        let alike = [&older, &bare, &other].map(|known| is_alike(known, &data));
        assert_eq!(alike, [true, true, false]);
    }

    #[test]
    fn a_revision_of_the_same_content_collides_only_where_another_controls_it() {
        let revision = |image: &str, app: &str, controller: Option<&str>| ControllerRevision {
            metadata: ObjectMeta {
                labels: Some([("app".to_owned(), app.to_owned())].into()),
                owner_references: controller.map(|uid| vec![owner(uid)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(
                json!({"spec": {"template": {"$patch": image}}}),
            )),
            revision: 1,
        };
        let mut new = revision("one", "web", Some("me"));
        let labels = new.metadata.labels.as_mut().unwrap();
        labels.insert(HASH.to_owned(), "hash".to_owned());
        for (image, app, controller, free) in [
            ("one", "web", Some("me"), true),
            ("one", "web", None, true),
            ("one", "other", None, false),
            ("one", "web", Some("other"), false),
            ("two", "web", None, false),
        ] {
            let known = revision(image, app, controller);
            assert_eq!(
                is_free(&known, &new, &owner("me")),
                free,
                "{image} {app} {controller:?}"
            );
        }
    }

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }
}
