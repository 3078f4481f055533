//! Namespace lifecycle: deletes the content of a deleted namespace, of every kind, then the
//! namespace.

use config_kube::k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use futures_util::stream::{self, StreamExt};
use jiff::Timestamp;
use master_client::{
    ApiError, Client, DeleteParams, Key, ListParams, Meta, Patch, Resource, Store,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::namespace::{FINALIZER, NamespaceView};
use master_control::writer::Writer;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause between two rounds while something is left.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often the pause is doubled while rounds list pages of objects and delete none, because
/// finalizers hold them.
const MAX_BACKOFF_DOUBLINGS: u32 = 4;
/// Objects of a kind that are listed at once.
const PAGE_SIZE: u32 = 500;
/// Pages of a kind in one round, so that no namespace holds up another for long.
const MAX_PAGES: u32 = 40;
/// Objects that are deleted at once.
const MAX_CONCURRENT_DELETES: usize = 16;
/// How many failures the condition lists.
const MAX_REPORTED_FAILURES: usize = 10;

/// Pods, as conditions name them.
const PODS: &str = "pods.";

/// The controller. Its keys are namespaces.
#[derive(Debug)]
pub struct Namespaces {
    namespaces: Store<NamespaceView>,
    /// UIDs of namespaces, by name, whose last rounds deleted nothing, and the number of these
    /// rounds.
    unproductive: Mutex<HashMap<String, (String, u32)>>,
}

impl Namespaces {
    fn unproductive(&self) -> MutexGuard<'_, HashMap<String, (String, u32)>> {
        self.unproductive
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A namespace and what is known of it.
#[derive(Debug)]
pub struct Facts {
    name: String,
    namespace: Arc<NamespaceView>,
    /// The number of rounds before this one that deleted nothing.
    unproductive: u32,
}

/// One round: deletes the content, and the namespace once it is empty.
#[derive(Debug, PartialEq, Eq)]
pub struct DeleteContent {
    /// The object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Controller for Namespaces {
    const NAME: &'static str = "namespace-controller";
    const RIGHTS: &'static [Right] = &[
        right("*", "*", &["get", "list", "delete"]),
        right("", "namespaces", &["list", "watch"]),
        right("", "namespaces/finalize", &["update"]),
        right("", "namespaces/status", &["patch"]),
    ];
    type Facts = Facts;
    type Action = DeleteContent;

    fn new(setup: &mut Setup<'_>) -> Self {
        let namespaces = setup.follow_keys();
        let unproductive = Mutex::default();
        Self {
            namespaces,
            unproductive,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let Some(namespace) = self.namespaces.get(key) else {
            // Also one that another client has finalized.
            self.unproductive().remove(&key.name);
            return None;
        };
        let unproductive = match self.unproductive().get(&key.name) {
            Some((uid, rounds)) if *uid == namespace.uid => *rounds,
            _ => 0,
        };
        Some(Facts {
            name: key.name.clone(),
            unproductive,
            namespace,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<DeleteContent> {
        if !(facts.namespace.terminating && facts.namespace.unfinished) {
            return Plan::nothing();
        }
        let mut plan = Plan::act(DeleteContent {
            name: facts.name.clone(),
            uid: facts.namespace.uid.clone(),
        });
        plan.requeue_in(RETRY_INTERVAL * 2_u32.pow(facts.unproductive.min(MAX_BACKOFF_DOUBLINGS)));
        plan
    }

    async fn carry_out(&self, namespace: DeleteContent, writer: &Writer) -> Result<(), ApiError> {
        let round = delete_content(writer, &namespace.name, &namespace.uid).await;
        let mut unproductive = self.unproductive();
        if round
            .as_ref()
            .is_ok_and(|round| *round == Round::Unproductive)
        {
            let (uid, rounds) = unproductive.entry(namespace.name).or_default();
            if *uid != namespace.uid {
                (*uid, *rounds) = (namespace.uid, 0);
            }
            *rounds += 1;
        } else {
            unproductive.remove(&namespace.name);
        }
        round.map(drop)
    }
}

/// What a round achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Something was deleted, or little was looked at.
    Productive,
    /// More than a page of a kind was looked at, and there was nothing to delete.
    Unproductive,
}

/// The remaining content of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Remaining {
    /// Objects by resource and group.
    resources: BTreeMap<String, usize>,
    /// Objects by finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Failed deletions, with reasons.
    failures: Vec<String>,
    /// How many objects this round deleted, or tried to.
    deleted: usize,
    /// Whether there is a kind of which it looked at more than a page.
    many: bool,
    /// Whether the pods could not be listed.
    pods_unknown: bool,
}

impl Remaining {
    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.failures.is_empty()
    }

    fn round(&self) -> Round {
        if self.many && self.deleted == 0 {
            Round::Unproductive
        } else {
            Round::Productive
        }
    }

    fn may_have_pods(&self) -> bool {
        self.pods_unknown || self.resources.contains_key(PODS)
    }

    fn count(&mut self, resource: &Resource, objects: &[Meta]) {
        if !objects.is_empty() {
            let name = named(resource);
            *self.resources.entry(name).or_default() += objects.len();
        }
        for finalizer in objects.iter().flat_map(|object| &object.finalizers) {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    fn fail(&mut self, resource: &Resource, error: &ApiError) {
        if self.failures.len() < MAX_REPORTED_FAILURES {
            self.failures.push(format!("{}: {error}", resource.plural));
        }
    }

    /// The objects of a kind could not be listed.
    fn unlisted(&mut self, resource: &Resource, error: &ApiError) {
        self.fail(resource, error);
        self.pods_unknown |= is_pods(resource);
    }

    /// Conditions in upstream's words.
    fn conditions(&self, now: Timestamp) -> Vec<NamespaceCondition> {
        let condition = |kind: &str, list: Vec<String>, reasons: [&str; 2], words: [&str; 2]| {
            let bad = !list.is_empty();
            let message = if bad {
                format!("{}{}", words[0], list.join(", "))
            } else {
                words[1].to_owned()
            };
            NamespaceCondition {
                type_: kind.to_owned(),
                status: if bad { "True" } else { "False" }.to_owned(),
                reason: Some(reasons[usize::from(!bad)].to_owned()),
                message: Some(message),
                last_transition_time: Some(Time(now)),
            }
        };
        let resources = self
            .resources
            .iter()
            .map(|(name, count)| format!("{name} has {count} resource instances"));
        let finalizers = self
            .finalizers
            .iter()
            .map(|(name, count)| format!("{name} in {count} resource instances"));
        vec![
            // The kinds are known without a request, so these two never fail.
            condition(
                "NamespaceDeletionDiscoveryFailure",
                Vec::new(),
                ["DiscoveryFailed", "ResourcesDiscovered"],
                ["", "All resources successfully discovered"],
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                Vec::new(),
                ["GroupVersionParsingFailed", "ParsedGroupVersions"],
                ["", "All legacy kube types successfully parsed"],
            ),
            condition(
                "NamespaceDeletionContentFailure",
                self.failures.clone(),
                ["ContentDeletionFailed", "ContentDeleted"],
                [
                    "Failed to delete all resource types, errors: ",
                    "All content successfully deleted, may be waiting on finalization",
                ],
            ),
            condition(
                "NamespaceContentRemaining",
                resources.collect(),
                ["SomeResourcesRemain", "ContentRemoved"],
                [
                    "Some resources are remaining: ",
                    "All content successfully removed",
                ],
            ),
            condition(
                "NamespaceFinalizersRemaining",
                finalizers.collect(),
                ["SomeFinalizersRemain", "ContentHasNoFinalizers"],
                [
                    "Some content in the namespace has finalizers remaining: ",
                    "All content-preserving finalizers finished",
                ],
            ),
        ]
    }
}

/// One round: deletes the content; once the namespace is empty, removes its finalizer.
async fn delete_content(writer: &Writer, name: &str, uid: &str) -> Result<Round, ApiError> {
    let client = writer.client();
    let namespace: Namespace = client.get(None, name).await?;
    if namespace.metadata.uid.as_deref() != Some(uid)
        || namespace.metadata.deletion_timestamp.is_none()
    {
        return Ok(Round::Productive);
    }
    let mut left = Remaining::default();
    for resource in in_order(client.resources()) {
        // Nothing that pods depend on is deleted before they are gone, such as the network policies
        // that protect them (KEP-5080).
        if !is_pods(&resource) && left.may_have_pods() {
            break;
        }
        if let Err(error) = clear(client, &resource, name, &mut left).await {
            left.unlisted(&resource, &error);
        }
    }
    if left.is_empty() {
        finalize(writer, namespace).await?;
    } else {
        update_conditions(writer, &namespace, &left).await?;
    }
    Ok(left.round())
}

/// A resource as conditions name it.
fn named(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

fn is_pods(resource: &Resource) -> bool {
    named(resource) == PODS
}

/// Kinds whose objects are in namespaces. Pods first, and nothing else while there are any. Events
/// last: the deletions cause some.
fn in_order(resources: Vec<Resource>) -> Vec<Resource> {
    let mut resources: Vec<Resource> = resources
        .into_iter()
        .filter(|resource| resource.namespaced)
        .collect();
    resources.sort_by_key(|resource| match resource.plural.as_str() {
        "pods" => 0,
        "events" => 2,
        _ => 1,
    });
    resources
}

/// Deletes the objects of a kind, and counts those that remain, such as objects with finalizers.
async fn clear(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    left: &mut Remaining,
) -> Result<(), ApiError> {
    let first = ListParams {
        limit: Some(PAGE_SIZE),
        ..ListParams::default()
    };
    let mut params = first.clone();
    for _ in 0..MAX_PAGES {
        let page = client.partials(resource, namespace, &params).await?;
        let objects = page.items.into_iter().map(|object| object.metadata);
        let waiting: Vec<Meta> = objects
            .filter(|meta| meta.deletion_timestamp.is_none())
            .collect();
        // What was deleted is gone from the first page; what is only ending stays there, and is
        // passed by.
        params = first.clone();
        if waiting.is_empty() {
            params.continue_token = Some(page.continue_token.clone());
        }
        left.deleted += waiting.len();
        delete(client, resource, namespace, waiting, left).await;
        left.many |= !page.continue_token.is_empty();
        if page.continue_token.is_empty() {
            break;
        }
    }
    let there = client.partials(resource, namespace, &first).await?.items;
    let there: Vec<Meta> = there.into_iter().map(|object| object.metadata).collect();
    left.count(resource, &there);
    Ok(())
}

/// Deletes objects, and notes what can't be deleted.
async fn delete(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    objects: Vec<Meta>,
    left: &mut Remaining,
) {
    let delete = |meta: Meta| async move {
        let params = DeleteParams {
            uid: Some(meta.uid),
            propagation: Some("Background"),
            ..DeleteParams::default()
        };
        client
            .remove(resource, namespace, &meta.name, &params)
            .await
    };
    let answers: Vec<_> = stream::iter(objects)
        .map(delete)
        .buffer_unordered(MAX_CONCURRENT_DELETES)
        .collect()
        .await;
    for answer in answers {
        match answer {
            Ok(()) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => left.fail(resource, &error),
        }
    }
}

async fn finalize(writer: &Writer, mut namespace: Namespace) -> Result<(), ApiError> {
    if let Some(finalizers) = namespace
        .spec
        .as_mut()
        .and_then(|spec| spec.finalizers.as_mut())
    {
        finalizers.retain(|name| name != FINALIZER);
    }
    writer
        .update_subresource(&namespace, "finalize")
        .await
        .map(drop)
}

/// Writes what is left into the namespace's conditions, where it isn't there already.
async fn update_conditions(
    writer: &Writer,
    namespace: &Namespace,
    left: &Remaining,
) -> Result<(), ApiError> {
    let known = namespace
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let conditions = left.conditions(writer.now().wall);
    let news = |condition: &NamespaceCondition| {
        let same = |other: &NamespaceCondition| {
            other.type_ == condition.type_ && other.message == condition.message
        };
        !known.iter().any(same)
    };
    if !conditions.iter().any(news) {
        return Ok(());
    }
    // Another namespace of this name is left alone.
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": namespace.metadata.uid}, "status": {"conditions": conditions},
    }));
    writer
        .patch_status::<Namespace>(&Key::of(&namespace.metadata), &patch)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_client::Reason;

    #[test]
    fn conditions_are_in_upstreams_words() {
        let mut left = Remaining::default();
        let resource = |group: &str, plural: &str| Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: String::new(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        let held = Meta {
            finalizers: vec!["a/b".to_owned()],
            ..Meta::default()
        };
        left.count(&resource("", "pods"), &[held, Meta::default()]);
        left.count(&resource("apps", "deployments"), &[Meta::default()]);
        let messages: Vec<String> = left
            .conditions(Timestamp::UNIX_EPOCH)
            .into_iter()
            .filter_map(|c| c.message)
            .collect();
        assert_eq!(
            messages[3],
            "Some resources are remaining: deployments.apps has 1 resource instances, pods. has 2 resource instances"
        );
        assert_eq!(
            messages[4],
            "Some content in the namespace has finalizers remaining: a/b in 1 resource instances"
        );
        assert_eq!(messages[0], "All resources successfully discovered");
    }

    #[test]
    fn pods_that_cannot_be_listed_keep_all_else() {
        let resource = |plural: &str| Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: String::new(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        let error = ApiError::new(Reason::ServerTimeout, "the store is busy");
        let mut left = Remaining::default();
        left.unlisted(&resource("secrets"), &error);
        assert!(!left.may_have_pods());
        left.unlisted(&resource("pods"), &error);
        assert!(left.may_have_pods() && !left.is_empty());
    }

    #[test]
    fn pods_go_first_and_events_last() {
        let resource = |plural: &str, namespaced: bool| Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: String::new(),
            plural: plural.to_owned(),
            namespaced,
        };
        let all = vec![
            resource("events", true),
            resource("nodes", false),
            resource("secrets", true),
            resource("pods", true),
        ];
        let order: Vec<String> = in_order(all)
            .into_iter()
            .map(|resource| resource.plural)
            .collect();
        assert_eq!(order, ["pods", "secrets", "events"]);
    }
}
