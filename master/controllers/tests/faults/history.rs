//! The API's objects and their history, read from the store's changes: every write is seen at its
//! own revision, also those that no list would show.

use super::api::{Deletion, Faulty};
use super::kinds::{Any, of_table, read};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::Client;
use master_store::{Store, WatchStream};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A change, as a watch shows it.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) object: Any,
    /// The resource version of its deletion.
    pub(crate) gone: Option<u64>,
}

/// The API's objects, and their history.
pub(crate) struct History {
    /// For reads and writes of people, nodes and tests, which never fail.
    pub(crate) admin: Client,
    /// The kinds that take part, by plurals.
    pub(crate) kinds: &'static [&'static str],
    api: Arc<Faulty>,
    store: Arc<dyn Store>,
    changes: Box<dyn WatchStream>,
    /// Changes that were read from the store and are not in the history yet.
    ahead: VecDeque<Arc<master_store::Event>>,
    pub(crate) logs: BTreeMap<&'static str, Vec<Event>>,
    /// The resource version up to which all is known.
    pub(crate) revision: u64,
    /// The objects of each kind in the order of their creation, which does not depend on random
    /// names.
    now: BTreeMap<&'static str, Vec<Any>>,
    /// Deletions by processes since the last check, each with the object's state then.
    pub(crate) deleted: Vec<(Deletion, Any)>,
}

impl History {
    pub(crate) async fn begin(
        admin: Client,
        api: Arc<Faulty>,
        store: Arc<dyn Store>,
        kinds: &'static [&'static str],
    ) -> Self {
        let mut there = store.everything().await.unwrap();
        let changes = store.changes(there.revision).await.unwrap();
        let mut history = Self {
            admin,
            kinds,
            api,
            store,
            changes,
            ahead: VecDeque::new(),
            logs: kinds.iter().map(|kind| (*kind, Vec::new())).collect(),
            revision: there.revision,
            now: kinds.iter().map(|kind| (*kind, Vec::new())).collect(),
            deleted: Vec::new(),
        };
        there.entries.sort_by_key(|entry| entry.modified);
        for entry in there.entries {
            if let Some(kind) = history.kind_of(&entry.key) {
                history.set(kind, read(kind, &entry.value.bytes(), entry.modified));
            }
        }
        history
    }

    fn kind_of(&self, key: &str) -> Option<&'static str> {
        let (table, _) = key.split_once('/')?;
        of_table(table).filter(|kind| self.kinds.contains(kind))
    }

    /// Reads new changes from the store; [`History::advance`] applies them, revision by revision.
    pub(crate) async fn look(&mut self) {
        for deletion in self.api.deletions() {
            let mut all = self.now.get(deletion.kind).into_iter().flatten();
            let known = all.find(|any| any.name() == deletion.name);
            if let Some(object) = known.cloned() {
                self.check_owners(&deletion, &object);
                self.deleted.push((deletion, object));
            }
        }
        let head = self.store.revision().await.unwrap();
        let mut read = Vec::new();
        while self.changes.progress() < head {
            read.extend(self.changes.next().await.unwrap().events);
        }
        read.sort_by_key(|event| event.revision);
        self.ahead.extend(read);
    }

    /// Advances by one revision, and past those that only renewed leases, which no invariant needs;
    /// returns whether there was one.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(first) = self.ahead.pop_front() else {
            return false;
        };
        self.revision = first.revision;
        self.note(&first);
        let is_lease = |event: &master_store::Event| event.key.starts_with("leases.");
        while let Some(more) = self.ahead.front().cloned() {
            if more.revision != self.revision && !is_lease(&more) {
                break;
            }
            self.ahead.pop_front();
            self.revision = more.revision;
            self.note(&more);
        }
        true
    }

    /// The garbage collector deletes no object with an existing owner, unless the owner waits for
    /// the deletion of its dependents.
    fn check_owners(&self, deletion: &Deletion, object: &Any) {
        if deletion.by != "system:controller:garbage-collector" {
            return;
        }
        for owner in object.meta().owner_references.iter().flatten() {
            let mut all = self.now.values().flatten();
            let found = all.find(|any| any.meta().uid.as_ref() == Some(&owner.uid));
            let waits = |meta: &ObjectMeta| {
                let mut finalizers = meta.finalizers.iter().flatten();
                meta.deletion_timestamp.is_some()
                    && finalizers.any(|one| one == "foregroundDeletion")
            };
            assert!(
                found.is_none_or(|owner| waits(owner.meta())),
                "{deletion:?}: it is garbage to the collector, and has its owner"
            );
        }
    }

    fn note(&mut self, event: &master_store::Event) {
        let Some(kind) = self.kind_of(&event.key) else {
            return;
        };
        if let Some(entry) = &event.now {
            return self.set(kind, read(kind, &entry.value.bytes(), event.revision));
        }
        let (_, place) = event.key.split_once('/').unwrap();
        self.lose(kind, place, event.revision);
    }

    fn lose(&mut self, kind: &'static str, place: &str, revision: u64) {
        let now = self.now.get_mut(kind).unwrap();
        let Some(at) = now.iter().position(|any| any.place() == place) else {
            return;
        };
        let gone = Event {
            object: now.remove(at),
            gone: Some(revision),
        };
        self.logs.get_mut(kind).unwrap().push(gone);
    }

    /// Adds a revision that no API made: an object exists in this state.
    pub(crate) fn invent(&mut self, kind: &'static str, object: &Value) {
        self.revision += 1;
        let stored = object.to_string();
        self.set(kind, read(kind, stored.as_bytes(), self.revision));
    }

    /// Adds a revision that no API made: the object of a kind and name is deleted.
    pub(crate) fn invent_end(&mut self, kind: &'static str, name: &str) {
        self.revision += 1;
        let place = self.object(kind, name).unwrap().place();
        self.lose(kind, &place, self.revision);
    }

    fn set(&mut self, kind: &'static str, any: Any) {
        let now = self.now.get_mut(kind).unwrap();
        let known = now.iter().position(|known| known.uid() == any.uid());
        if let Some(known) = known {
            now[known] = any.clone();
        } else {
            now.push(any.clone());
        }
        self.logs.get_mut(kind).unwrap().push(Event {
            object: any,
            gone: None,
        });
    }

    /// Objects of a kind, in the order of their creation.
    pub(crate) fn objects(&self, kind: &'static str) -> &[Any] {
        self.now.get(kind).map_or(&[], Vec::as_slice)
    }

    /// The object of a kind and name.
    pub(crate) fn object(&self, kind: &'static str, name: &str) -> Option<&Any> {
        self.objects(kind).iter().find(|any| any.name() == name)
    }

    pub(crate) fn pods(&self) -> Vec<&Pod> {
        self.each_pod().map(|pod| &**pod).collect()
    }

    /// The present pods, for loops that change them.
    pub(crate) fn pods_now(&self) -> Vec<Arc<Pod>> {
        self.each_pod().cloned().collect()
    }

    fn each_pod(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let all = self.objects("pods").iter();
        all.filter_map(|any| {
            if let Any::Pod(pod) = any {
                Some(pod)
            } else {
                None
            }
        })
    }
}
