//! Garbage collection: deletes objects whose owners are gone, and finishes the deletion of owners
//! that wait for their dependents.
//!
//! Upstream's rules: an object with owners is deleted once all of them are gone; references to
//! missing owners are removed while others exist; foreground deletion waits for blocking
//! dependents; orphans lose their references; a cluster-scoped object that names an owner of a
//! namespaced kind stays, as that reference can't be resolved.

mod graph;

pub use graph::{Action, Graph, Id};

use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use master_client::{
    ApiError, Change, Client, DeleteParams, Key, ListParams, Meta, NewEvent, ObjectPath, OwnerRef,
    PartialObject, Patch, Reason, Recorder, Resource, Severity,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::every_kind::{Kinds, ResourceId};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attempts at a write that conflicts with other writers'.
const MAX_TRIES: usize = 8;

/// Objects that are listed at once.
const PAGE_SIZE: u32 = 500;

/// Kinds that nobody serves and that are logged: their names come from users.
const LOGGED_KINDS: usize = 100;
/// Characters of such a name in the log.
const LOGGED_CHARACTERS: usize = 100;

/// The graph, which the follower writes and plans read.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Graph>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Graph> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The controller. Its keys are UIDs of objects of any kind, in the objects' namespaces.
#[derive(Debug)]
pub struct Garbage {
    graph: Shared,
    kinds: Kinds,
    /// Kinds of owners that nobody serves, and that the log has.
    logged: Mutex<BTreeSet<String>>,
}

impl Garbage {
    /// Lets an object wait for further kinds, as one of its owners is of a kind that nobody serves.
    /// `false` if more than the `known` kinds are served meanwhile.
    fn hold(&self, object: &Id, unserved: &str, known: usize) -> bool {
        // The graph takes a kind's list after the kind is known: with the lock, none is missed.
        let mut graph = self.graph.lock();
        if self.kinds.all().len() != known {
            return false;
        }
        graph.hold(object);
        drop(graph);
        let kind: String = unserved.chars().take(LOGGED_CHARACTERS).collect();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < LOGGED_KINDS && logged.insert(kind.clone()) {
            tracing::warn!(
                kind,
                "objects are not collected: the kind of one of their owners is not served; correct their ownerReferences"
            );
        }
        true
    }
}

/// Why an action was not carried out.
enum Obstacle {
    Api(ApiError),
    /// Nobody serves this kind, which is an owner's.
    Unserved(String),
    /// The object has no namespace, and the kind of this owner has objects in namespaces alone.
    Unresolvable(OwnerRef),
}

impl From<ApiError> for Obstacle {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

/// The action for an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    key: Key,
    action: Box<Action>,
    /// Absent owners whose UID exists in another namespace, where they can't own the object.
    foreign: Vec<OwnerRef>,
}

impl Controller for Garbage {
    const NAME: &'static str = "garbage-collector";
    const RIGHTS: &'static [Right] = &[right(
        "*",
        "*",
        &["get", "list", "watch", "patch", "update", "delete"],
    )];
    type Facts = Task;
    type Action = Task;

    fn new(setup: &mut Setup<'_>) -> Self {
        let graph = Shared::default();
        let fed = graph.clone();
        let kinds = setup.follow_every_kind(
            move |(number, _): (ResourceId, &Resource),
                  change: &Change<PartialObject>,
                  keys: &mut Vec<Key>| {
                let mut graph = fed.lock();
                match change {
                    Change::Listed(all) => {
                        let all: Vec<Meta> =
                            all.iter().map(|object| object.metadata.clone()).collect();
                        graph.listed(number, &all);
                    }
                    Change::Set(object) => graph.set(number, &object.metadata),
                    Change::Deleted(gone) => graph.gone(&gone.uid),
                }
                keys.extend(graph.touched());
            },
        );
        Self {
            graph,
            kinds,
            logged: Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Task> {
        let graph = self.graph.lock();
        let action = graph.action(key)?;
        let absent = match &action {
            Action::Collect { absent, .. } | Action::Release { absent, .. } => absent.as_slice(),
            Action::Unblock { .. } | Action::Finish { .. } | Action::Orphan { .. } => &[],
        };
        let namespace = &action.object().namespace;
        // An object without a namespace is reported when it is given up; one whose reference names
        // a cluster-scoped kind for a namespaced owner is collected without an event.
        let foreign = absent
            .iter()
            .filter(|owner| !namespace.is_empty() && graph.elsewhere(owner, namespace));
        Some(Task {
            key: key.clone(),
            foreign: foreign.cloned().collect(),
            action: Box::new(action),
        })
    }

    fn plan(facts: &Task, _: Now) -> Plan<Task> {
        Plan::act(facts.clone())
    }

    async fn carry_out(&self, task: Task, writer: &Writer) -> Result<(), ApiError> {
        let resources = self.kinds.all();
        let collector = Collector {
            client: writer.client(),
            recorder: writer.recorder(),
            resources: &resources,
        };
        match collector.carry_out(&task.action, &task.foreign).await {
            Ok(()) => {}
            Err(Obstacle::Api(error)) => return Err(error),
            Err(Obstacle::Unserved(kind)) => {
                if self.hold(task.action.object(), &kind, resources.len()) {
                    return Ok(());
                }
                let text = "further kinds are served".to_owned();
                return Err(ApiError::new(Reason::Conflict, text));
            }
            Err(Obstacle::Unresolvable(owner)) => {
                let given_up = self.graph.lock().give_up(&task.key, &task.action);
                if given_up {
                    let object = task.action.object();
                    collector.report_foreign(object, &[owner]).await?;
                }
                return Ok(());
            }
        }
        // Done once the graph shows the result: the object then needs another action, or none.
        let graph = self.graph.clone();
        writer.expect(move || graph.lock().action(&task.key).as_ref() != Some(&*task.action));
        Ok(())
    }
}

fn unblock(owners: &mut Vec<Value>) {
    for owner in owners {
        owner["blockOwnerDeletion"] = false.into();
    }
}

struct Collector<'a> {
    client: &'a Client,
    recorder: &'a Recorder,
    resources: &'a [Resource],
}

impl Collector<'_> {
    async fn carry_out(&self, action: &Action, foreign: &[OwnerRef]) -> Result<(), Obstacle> {
        match action {
            Action::Collect {
                object,
                policy,
                absent,
            } => {
                self.report_foreign(object, foreign).await?;
                self.collect(object, policy, absent).await?;
            }
            Action::Release {
                object,
                owners,
                absent,
            } => {
                self.report_foreign(object, foreign).await?;
                if self.are_gone(object, absent).await? {
                    self.release(object, owners).await?;
                }
            }
            Action::Unblock { object } => self.edit(object, "ownerReferences", unblock).await?,
            Action::Finish { object, finalizer } => self.finish(object, finalizer).await?,
            Action::Orphan { object } => {
                self.orphan_dependents(object).await?;
                self.finish(object, graph::ORPHAN).await?;
            }
        }
        Ok(())
    }

    fn resource(&self, id: &Id) -> Result<&Resource, ApiError> {
        self.resources.get(usize::from(id.resource)).ok_or_else(|| {
            ApiError::new(
                Reason::InternalError,
                format!("the kind of {} is not served any more", id.name),
            )
        })
    }

    /// Deletes an object whose owners are `absent`, after reads of the object and its owners past
    /// all caches: the graph is behind, and a deletion can't be undone.
    async fn collect(
        &self,
        object: &Id,
        policy: &'static str,
        absent: &[OwnerRef],
    ) -> Result<(), Obstacle> {
        let resource = self.resource(object)?;
        let Some(live) = self
            .client
            .partial(resource, &object.namespace, &object.name)
            .await?
        else {
            return Ok(());
        };
        let known = |owner: &OwnerRef| absent.iter().any(|absent| absent.uid == owner.uid);
        if live.uid != object.uid
            || live.deletion_timestamp.is_some()
            || live.owner_references.is_empty()
        {
            return Ok(());
        }
        // An owner that still exists must be waiting for this object (foreground deletion). Any
        // other was added meanwhile, and keeps the object.
        for owner in live.owner_references.iter().filter(|owner| !known(owner)) {
            let waits = self
                .owner(object, owner)
                .await?
                .is_some_and(|owner| waits(&owner));
            if !waits {
                return Ok(());
            }
        }
        if !self.are_gone(object, absent).await? {
            return Ok(());
        }
        let params = DeleteParams {
            uid: Some(live.uid),
            resource_version: Some(live.resource_version),
            propagation: Some(policy),
            ..DeleteParams::default()
        };
        self.client
            .remove(resource, &object.namespace, &object.name, &params)
            .await?;
        Ok(())
    }

    /// Whether all these owners are gone, by reads past all caches.
    async fn are_gone(&self, object: &Id, absent: &[OwnerRef]) -> Result<bool, Obstacle> {
        for owner in absent {
            if self.owner(object, owner).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads an owner from the API: in the object's namespace, and with the UID of the reference.
    async fn owner(&self, object: &Id, owner: &OwnerRef) -> Result<Option<Meta>, Obstacle> {
        let group = owner
            .api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group);
        // What is served now comes first: a kind may have been followed in another version or
        // scope, whose path would say by a 404 that the owner is gone.
        let is_kind = |known: &&Resource| known.group == group && known.kind == owner.kind;
        let served = self.client.resources();
        let mut all = served.iter().chain(self.resources.iter().rev());
        let kind = all.find(is_kind);
        let Some(kind) = kind else {
            let unserved = format!("{} of {}", owner.kind, owner.api_version);
            return Err(Obstacle::Unserved(unserved));
        };
        if kind.namespaced && object.namespace.is_empty() {
            return Err(Obstacle::Unresolvable(owner.clone()));
        }
        let found = self
            .client
            .partial(kind, &object.namespace, &owner.name)
            .await?;
        Ok(found.filter(|found| found.uid == owner.uid))
    }

    async fn release(&self, object: &Id, owners: &[String]) -> Result<(), ApiError> {
        let keep = |all: &mut Vec<Value>| {
            all.retain(|owner| {
                !owners
                    .iter()
                    .any(|uid| owner.get("uid").is_some_and(|own| own == uid.as_str()))
            });
        };
        self.edit(object, "ownerReferences", keep).await
    }

    /// Removes the references to an object from all that name it as an owner, by lists past all
    /// caches: each kind comes to the graph by a watch of its own, so that the deletion of the
    /// owner can be there before a dependent is, which would be deleted as one without an owner.
    async fn orphan_dependents(&self, object: &Id) -> Result<(), ApiError> {
        for (resource, number) in self.resources.iter().zip(0..) {
            if !object.namespace.is_empty() && !resource.namespaced {
                continue;
            }
            let mut params = ListParams {
                limit: Some(PAGE_SIZE),
                ..ListParams::default()
            };
            loop {
                let listed = self
                    .client
                    .partials(resource, &object.namespace, &params)
                    .await;
                let page = match listed {
                    Ok(page) => page,
                    // The kind is not served any more.
                    Err(error) if error.is_not_found() => break,
                    Err(error) => return Err(error),
                };
                for PartialObject { metadata, .. } in page.items {
                    let names = |owner: &OwnerRef| owner.uid == object.uid;
                    if metadata.owner_references.iter().any(names) {
                        let dependent = Id {
                            resource: number,
                            namespace: metadata.namespace,
                            name: metadata.name,
                            uid: metadata.uid,
                        };
                        self.release(&dependent, std::slice::from_ref(&object.uid))
                            .await?;
                    }
                }
                if page.continue_token.is_empty() {
                    break;
                }
                params.continue_token = Some(page.continue_token);
            }
        }
        Ok(())
    }

    async fn finish(&self, object: &Id, finalizer: &str) -> Result<(), ApiError> {
        self.edit(object, "finalizers", |all: &mut Vec<Value>| {
            all.retain(|own| own != finalizer);
        })
        .await
    }

    /// Changes a list in an object's metadata, against conflicting writers. A missing object is no
    /// error.
    async fn edit(
        &self,
        object: &Id,
        list: &str,
        change: impl Fn(&mut Vec<Value>),
    ) -> Result<(), ApiError> {
        let resource = self.resource(object)?;
        let at = ObjectPath {
            namespace: &object.namespace,
            name: &object.name,
            subresource: None,
        };
        for _ in 0..MAX_TRIES {
            let live = match self
                .client
                .whole(resource, &object.namespace, &object.name)
                .await
            {
                Ok(live) => live.0,
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error),
            };
            let empty = Map::new();
            let metadata = live
                .get("metadata")
                .and_then(Value::as_object)
                .unwrap_or(&empty);
            if metadata
                .get("uid")
                .is_none_or(|uid| uid != object.uid.as_str())
            {
                return Ok(());
            }
            let before = metadata
                .get(list)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let mut after = before.clone();
            change(&mut after);
            if after == before {
                return Ok(());
            }
            let after = if after.is_empty() {
                Value::Null
            } else {
                Value::Array(after)
            };
            let patch = json!({"metadata": {
                "uid": object.uid, "resourceVersion": metadata.get("resourceVersion"), list: after,
            }});
            match self.client.change(resource, at, &Patch::Merge(patch)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(ApiError::new(
            Reason::ServerTimeout,
            format!("{} changes faster than it can be written", object.name),
        ))
    }

    /// Writes the event that an owner is in another namespace, where it can't own the object.
    async fn report_foreign(&self, object: &Id, foreign: &[OwnerRef]) -> Result<(), ApiError> {
        let resource = self.resource(object)?;
        for owner in foreign {
            let about = ObjectReference {
                api_version: Some(resource.api_version()),
                kind: Some(resource.kind.clone()),
                name: Some(object.name.clone()),
                namespace: Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                uid: Some(object.uid.clone()),
                ..ObjectReference::default()
            };
            let message = format!(
                "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
                owner.api_version,
                owner.kind,
                object.namespace,
                owner.name,
                owner.uid,
                object.namespace
            );
            let (severity, reason, action) =
                (Severity::Warning, "OwnerRefInvalidNamespace", "Collecting");
            self.recorder
                .record_of(
                    about,
                    &NewEvent {
                        severity,
                        reason,
                        action,
                        message,
                    },
                )
                .await;
        }
        Ok(())
    }
}

/// Whether an owner is being deleted in the foreground, so that it waits for its dependents.
fn waits(owner: &Meta) -> bool {
    owner.deletion_timestamp.is_some()
        && owner
            .finalizers
            .iter()
            .any(|finalizer| finalizer == graph::FOREGROUND)
}
