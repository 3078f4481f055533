//! A store of all objects of a kind, by key and by index.
//!
//! A follower's changes are applied to a [`Store`] by one writer; any number of readers hold clones
//! of it. Each change of a kept value becomes a [`Delta`] with the value before and after, so that
//! readers need not compare.

use crate::client::{ListParams, Object};
use crate::follow::{Change, Follower};
use crate::key::Key;
use crate::{Client, Versioned};
use config_kube::k8s_openapi::Metadata;
use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Which objects of a kind are followed.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The namespace; `None` for all.
    pub namespace: Option<&'static str>,
    /// Field selector in text form.
    pub fields: Option<String>,
}

/// The parts of an object that are kept: only what its readers need, so that memory stays small in
/// a large cluster.
pub trait View: PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The kind.
    type Object: Object;

    /// Which objects are followed; all unless the view says otherwise.
    fn scope() -> Scope {
        Scope::default()
    }

    /// What is kept of an object.
    fn read(object: Self::Object) -> Self;
}

/// A way to find objects, such as by owner, label or node. The function returns the values under
/// which an object is found.
#[derive(Debug)]
pub struct Index<V> {
    name: &'static str,
    values: fn(&Key, &V) -> Vec<String>,
}

impl<V> Index<V> {
    /// An index. A store has one index of each name.
    pub const fn new(name: &'static str, values: fn(&Key, &V) -> Vec<String>) -> Self {
        Self { name, values }
    }
}

/// An object as a follower read it.
#[derive(Debug)]
pub struct Item<V> {
    key: Key,
    revision: u64,
    value: V,
}

impl<V: View> Item<V> {
    /// What is kept of an object.
    pub fn read(object: V::Object) -> Self {
        Self {
            key: Key::of(object.metadata()),
            revision: object.resource_version().parse().unwrap_or_default(),
            value: V::read(object),
        }
    }
}

/// A change of one object's kept value. At least one of the two values exists, and they differ.
#[derive(Debug)]
pub struct Delta<V> {
    /// The object.
    pub key: Arc<Key>,
    /// The value before; `None` if the object is new.
    pub before: Option<Arc<V>>,
    /// The value now; `None` if the object was deleted.
    pub after: Option<Arc<V>>,
}

impl<V> Delta<V> {
    /// Whether an aspect of the object differs; creation and deletion count.
    pub fn differs<F: PartialEq>(&self, of: impl Fn(&V) -> F) -> bool {
        self.before.as_deref().map(&of) != self.after.as_deref().map(&of)
    }
}

/// Keys and values, as a reader gets them.
pub type Entries<V> = Vec<(Arc<Key>, Arc<V>)>;

struct Entry<V> {
    revision: u64,
    value: Arc<V>,
}

struct Indexing<V> {
    name: &'static str,
    values: fn(&Key, &V) -> Vec<String>,
    keys: HashMap<String, BTreeSet<Arc<Key>>>,
}

impl<V> Indexing<V> {
    fn insert(&mut self, key: &Arc<Key>, value: &V) {
        for found in (self.values)(key, value) {
            self.keys.entry(found).or_default().insert(Arc::clone(key));
        }
    }

    fn remove(&mut self, key: &Arc<Key>, value: &V) {
        for found in (self.values)(key, value) {
            if let Some(keys) = self.keys.get_mut(&found) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&found);
                }
            }
        }
    }
}

struct Inner<V> {
    objects: BTreeMap<Arc<Key>, Entry<V>>,
    indexes: Vec<Indexing<V>>,
    /// The resource version up to which every change is known.
    reached: u64,
}

impl<V: PartialEq> Inner<V> {
    fn set(&mut self, key: Key, revision: u64, value: V) -> Option<Delta<V>> {
        self.reached = self.reached.max(revision);
        if let Some(entry) = self.objects.get_mut(&key)
            && *entry.value == value
        {
            entry.revision = revision;
            return None;
        }
        let before = self.take(&key);
        let key = before
            .as_ref()
            .map_or_else(|| Arc::new(key), |(known, _)| Arc::clone(known));
        let value = Arc::new(value);
        for index in &mut self.indexes {
            index.insert(&key, &value);
        }
        let entry = Entry {
            revision,
            value: Arc::clone(&value),
        };
        self.objects.insert(Arc::clone(&key), entry);
        Some(Delta {
            key,
            before: before.map(|(_, value)| value),
            after: Some(value),
        })
    }

    fn remove(&mut self, key: &Key) -> Option<Delta<V>> {
        let (key, before) = self.take(key)?;
        Some(Delta {
            key,
            before: Some(before),
            after: None,
        })
    }

    fn take(&mut self, key: &Key) -> Option<(Arc<Key>, Arc<V>)> {
        let (key, entry) = self.objects.remove_entry(key)?;
        for index in &mut self.indexes {
            index.remove(&key, &entry.value);
        }
        Some((key, entry.value))
    }
}

/// What is kept of all objects of a kind. Clones share it.
pub struct Store<V>(Arc<RwLock<Inner<V>>>);

impl<V> Clone for Store<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> fmt::Debug for Store<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("objects", &self.inner().objects.len())
            .finish_non_exhaustive()
    }
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(Inner {
            objects: BTreeMap::new(),
            indexes: Vec::new(),
            reached: 0,
        })))
    }
}

impl<V> Store<V> {
    fn inner(&self) -> RwLockReadGuard<'_, Inner<V>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner_mut(&self) -> RwLockWriteGuard<'_, Inner<V>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept of an object.
    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        let inner = self.inner();
        inner.objects.get(key).map(|entry| Arc::clone(&entry.value))
    }

    /// All keys. It walks the whole store: for changes that concern every object, never for the
    /// plan of one.
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.inner().objects.keys().cloned().collect()
    }

    /// All objects. It walks the whole store: for kinds with few objects.
    pub fn all(&self) -> Entries<V> {
        let entry =
            |(key, entry): (&Arc<Key>, &Entry<V>)| (Arc::clone(key), Arc::clone(&entry.value));
        self.inner().objects.iter().map(entry).collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.inner().objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The handle of an index, which is made if the store has none of its name. Holding it proves
    /// that the index is maintained.
    pub fn index(&self, index: &Index<V>) -> Lookup<V> {
        let mut inner = self.inner_mut();
        let known = inner
            .indexes
            .iter()
            .position(|known| known.name == index.name);
        let at = known.unwrap_or_else(|| {
            let mut made = Indexing {
                name: index.name,
                values: index.values,
                keys: HashMap::new(),
            };
            for (key, entry) in &inner.objects {
                made.insert(key, &entry.value);
            }
            inner.indexes.push(made);
            inner.indexes.len() - 1
        });
        Lookup {
            store: self.clone(),
            at,
        }
    }
}

impl<V: PartialEq> Store<V> {
    /// Sets an object's value; `None` if nothing differs.
    pub fn set(&self, key: Key, value: V) -> Option<Delta<V>> {
        self.inner_mut().set(key, 0, value)
    }

    /// Removes an object; `None` if it was not there.
    pub fn remove(&self, key: &Key) -> Option<Delta<V>> {
        self.inner_mut().remove(key)
    }

    /// Applies a follower's change, with the resource version up to which everything is known.
    /// Returns the differences.
    pub fn apply(&self, change: Change<Item<V>>, reached: u64) -> Vec<Delta<V>> {
        let mut inner = self.inner_mut();
        let deltas = match change {
            Change::Set(item) => inner
                .set(item.key, item.revision, item.value)
                .into_iter()
                .collect(),
            Change::Deleted(gone) => inner.remove(&gone.key).into_iter().collect(),
            Change::Listed(items) => {
                let there: BTreeSet<&Key> = items.iter().map(|item| &item.key).collect();
                let gone = inner.objects.keys().filter(|key| !there.contains(&***key));
                let gone: Vec<Arc<Key>> = gone.cloned().collect();
                let mut deltas: Vec<Delta<V>> =
                    gone.iter().filter_map(|key| inner.remove(key)).collect();
                deltas.extend(
                    items
                        .into_iter()
                        .filter_map(|item| inner.set(item.key, item.revision, item.value)),
                );
                deltas
            }
        };
        inner.reached = inner.reached.max(reached);
        deltas
    }
}

impl<V: View> Store<V> {
    /// The follower that feeds this store.
    pub fn follower(client: Client) -> Follower<V::Object, Item<V>> {
        let scope = V::scope();
        let params = ListParams {
            fields: scope.fields,
            ..ListParams::default()
        };
        Follower::reading(client, scope.namespace, params, Item::read)
    }
}

/// An index of a store.
#[derive(Debug)]
pub struct Lookup<V> {
    store: Store<V>,
    at: usize,
}

impl<V> Clone for Lookup<V> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            at: self.at,
        }
    }
}

impl<V> Lookup<V> {
    fn of<T>(&self, value: &str, take: impl Fn(&Inner<V>, &BTreeSet<Arc<Key>>) -> T) -> Option<T> {
        let inner = self.store.inner();
        let keys = inner.indexes.get(self.at)?.keys.get(value)?;
        Some(take(&inner, keys))
    }

    /// Keys of the objects that are found under a value.
    pub fn keys(&self, value: &str) -> Vec<Arc<Key>> {
        self.of(value, |_, keys| keys.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// The objects that are found under a value.
    pub fn get(&self, value: &str) -> Entries<V> {
        let entries = |inner: &Inner<V>, keys: &BTreeSet<Arc<Key>>| {
            let entry = |key: &Arc<Key>| {
                let found = inner.objects.get(key)?;
                Some((Arc::clone(key), Arc::clone(&found.value)))
            };
            keys.iter().filter_map(entry).collect()
        };
        self.of(value, entries).unwrap_or_default()
    }

    /// How many objects are found under a value.
    pub fn count(&self, value: &str) -> usize {
        self.of(value, |_, keys| keys.len()).unwrap_or_default()
    }
}

/// The progress of a store of any type, for expectations.
pub trait Progress: Send + Sync {
    /// The kind, by its type.
    fn kind(&self) -> TypeId;
    /// Whether everything up to a resource version is known.
    fn has_reached(&self, revision: u64) -> bool;
    /// The resource version of an object as it is known.
    fn revision(&self, key: &Key) -> Option<u64>;
}

impl<V: View> Progress for Store<V> {
    fn kind(&self) -> TypeId {
        TypeId::of::<V::Object>()
    }

    fn has_reached(&self, revision: u64) -> bool {
        self.inner().reached >= revision
    }

    fn revision(&self, key: &Key) -> Option<u64> {
        self.inner().objects.get(key).map(|entry| entry.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static BY_NODE: Index<String> = Index::new("node", |_, node| vec![node.clone()]);

    fn item(name: &str, revision: u64, value: &str) -> Item<String> {
        Item {
            key: Key::new("a", name),
            revision,
            value: value.to_owned(),
        }
    }

    fn names(keys: &[Arc<Key>]) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn an_index_follows_every_change_also_if_made_later() {
        let store = Store::default();
        store.set(Key::new("a", "before"), "n1".to_owned());
        let by_node = store.index(&BY_NODE);
        store.apply(Change::Set(item("p", 2, "n1")), 2);
        assert_eq!(names(&by_node.keys("n1")), ["before", "p"]);
        store.apply(Change::Set(item("p", 3, "n2")), 3);
        assert_eq!(
            (names(&by_node.keys("n1")), names(&by_node.keys("n2"))),
            (vec!["before"], vec!["p"])
        );
        store.apply(Change::Listed(vec![item("q", 9, "n2")]), 9);
        assert_eq!(by_node.count("n1"), 0);
        assert_eq!(names(&store.index(&BY_NODE).keys("n2")), ["q"]);
    }

    #[test]
    fn only_differences_become_deltas_also_in_a_list() {
        let store = Store::default();
        assert_eq!(
            store
                .apply(
                    Change::Listed(vec![item("a", 1, "x"), item("b", 1, "x")]),
                    4
                )
                .len(),
            2
        );
        assert!(store.apply(Change::Set(item("a", 5, "x")), 5).is_empty());
        let deltas = store.apply(Change::Listed(vec![item("a", 5, "y")]), 7);
        let seen: Vec<String> = deltas
            .iter()
            .map(|delta| format!("{} {:?} {:?}", delta.key.name, delta.before, delta.after))
            .collect();
        assert_eq!(seen, [r#"b Some("x") None"#, r#"a Some("x") Some("y")"#]);
    }
}
