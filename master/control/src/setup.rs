//! What controllers follow: one follower and one store per view, however many controllers read it.

use crate::controller::{Controller, Now, Plan};
use crate::driver::carry_out;
use crate::every_kind::{EveryKind, Kinds, Listener};
use crate::options::Options;
use crate::queue::Outcome;
use crate::rights;
use crate::writer::{Stores, Writer};
use config_kube::k8s_openapi::Metadata;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use master_client::{
    Change, Client, Delta, Follower, Gone, Item, Key, Object, PartialObject, Progress, Recorder,
    Resource, Store, View,
};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Which keys a change concerns.
type Keys<V> = Box<dyn Fn(&Delta<V>, &mut Vec<Key>) + Send>;
/// The listeners of a view, by the controllers' numbers.
type Listeners<V> = Vec<(usize, Keys<V>)>;
/// Keys by the number of their controller.
pub(crate) type Concerned = Vec<(usize, Key)>;

/// A change from a source.
#[derive(Debug)]
pub(crate) struct Changed {
    /// The number of the source.
    pub(crate) source: usize,
    /// Whether everything of this source is known.
    pub(crate) whole: bool,
    /// The keys that it concerns.
    pub(crate) keys: Concerned,
}

/// A source of changes that was declared and does not run yet.
trait Declared: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    fn start(self: Box<Self>, source: usize, client: &Client) -> BoxStream<'static, Changed>;
}

/// A view with its listeners. Clones share both.
struct Followed<V> {
    store: Store<V>,
    listeners: Arc<Mutex<Listeners<V>>>,
}

impl<V> Clone for Followed<V> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            listeners: Arc::clone(&self.listeners),
        }
    }
}

impl<V: View> Followed<V> {
    fn listeners(&self) -> MutexGuard<'_, Listeners<V>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn concerned(&self, deltas: &[Delta<V>]) -> Concerned {
        let mut all = Vec::new();
        let mut keys = Vec::new();
        for (controller, listener) in &*self.listeners() {
            for delta in deltas {
                listener(delta, &mut keys);
            }
            all.extend(keys.drain(..).map(|key| (*controller, key)));
        }
        all
    }
}

impl<V: View> Declared for Followed<V> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn start(self: Box<Self>, source: usize, client: &Client) -> BoxStream<'static, Changed> {
        let follower = Store::<V>::follower(client.clone());
        let next = move |(mut follower, followed): (Follower<V::Object, Item<V>>, Box<Self>)| async move {
            let change = follower.next().await;
            let deltas = followed.store.apply(change, follower.reached());
            let changed = Changed {
                source,
                whole: true,
                keys: followed.concerned(&deltas),
            };
            Some((changed, (follower, followed)))
        };
        stream::unfold((follower, self), next).boxed()
    }
}

/// A value whose changes concern keys.
struct Watched {
    value: watch::Receiver<String>,
    controller: usize,
    keys: Box<dyn Fn() -> Vec<Key> + Send>,
}

impl Declared for Watched {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn start(self: Box<Self>, source: usize, _: &Client) -> BoxStream<'static, Changed> {
        let next = move |mut watched: Box<Self>| async move {
            // Without a sender the value stays as it is.
            watched.value.changed().await.ok()?;
            let keys = (watched.keys)();
            let keys = keys.into_iter().map(|key| (watched.controller, key));
            let changed = Changed {
                source,
                whole: true,
                keys: keys.collect(),
            };
            Some((changed, watched))
        };
        stream::unfold(self, next).boxed()
    }
}

/// Everything that is followed.
#[derive(Default)]
pub(crate) struct Sources {
    declared: Vec<Box<dyn Declared>>,
    every_kind: EveryKind,
}

/// The number of the source that follows every kind, beside those that are declared one by one.
const EVERY_KIND: usize = usize::MAX;

impl Sources {
    /// Starts to follow everything declared. No request is made before the stream is polled.
    pub(crate) fn start(self, client: &Client) -> SelectAll<BoxStream<'static, Changed>> {
        let declared = self.declared.into_iter().enumerate();
        let mut all: SelectAll<_> = declared
            .map(|(source, declared)| declared.start(source, client))
            .collect();
        if self.every_kind.is_listened_to() {
            let stream = self.every_kind.start(client);
            let changed = |(whole, keys)| Changed {
                source: EVERY_KIND,
                whole,
                keys,
            };
            all.push(stream.map(changed).boxed());
        }
        all
    }
}

/// Collects a controller's declarations.
pub struct Setup<'a> {
    sources: &'a mut Sources,
    options: &'a Options,
    controller: usize,
    declared: Declaration,
}

/// A controller's declarations.
#[derive(Default)]
pub(crate) struct Declaration {
    /// Numbers of the sources that must be whole before anything is planned.
    pub(crate) sources: Vec<usize>,
    /// Keys that are there without any object.
    pub(crate) keys: Vec<Key>,
    stores: Vec<Arc<dyn Progress>>,
}

impl Declaration {
    pub(crate) fn stores(&self) -> Stores {
        Arc::new(self.stores.clone())
    }
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("controller", &self.controller)
            .finish_non_exhaustive()
    }
}

impl Setup<'_> {
    /// Makes a controller with a number, and what it declared.
    pub(crate) fn make<C: Controller>(
        sources: &mut Sources,
        options: &Options,
        number: usize,
        build: impl FnOnce(&mut Setup<'_>) -> C,
    ) -> (C, Declaration) {
        let mut setup = Setup {
            sources,
            options,
            controller: number,
            declared: Declaration::default(),
        };
        let controller = build(&mut setup);
        (controller, setup.declared)
    }

    /// A controller alone with its stores, for tests of facts and plans: nothing is followed.
    pub fn for_test<C: Controller>(options: &Options) -> (C, TestStores) {
        let mut sources = Sources::default();
        let (controller, declared) = Self::make(&mut sources, options, 0, C::new);
        let stores = declared.stores();
        (controller, TestStores { sources, stores })
    }

    /// Settings of the controllers.
    pub fn options(&self) -> &Options {
        self.options
    }

    /// Follows a view; `keys` gives the keys that a change concerns. The store is shared with
    /// everybody who follows the view.
    pub fn follow<V: View>(
        &mut self,
        keys: impl Fn(&Delta<V>, &mut Vec<Key>) + Send + 'static,
    ) -> Store<V> {
        let controller = self.controller;
        let (source, followed) = self.sources.followed::<V>();
        followed.listeners().push((controller, Box::new(keys)));
        self.depend(source, &followed.store);
        followed.store
    }

    /// Follows a view whose objects are the controller's keys.
    pub fn follow_keys<V: View>(&mut self) -> Store<V> {
        self.follow(|delta, keys| keys.push((*delta.key).clone()))
    }

    /// Reads a view whose changes concern no key.
    pub fn read<V: View>(&mut self) -> Store<V> {
        let (source, followed) = self.sources.followed::<V>();
        self.depend(source, &followed.store);
        followed.store
    }

    fn depend<V: View>(&mut self, source: usize, store: &Store<V>) {
        if !self.declared.sources.contains(&source) {
            self.declared.sources.push(source);
            self.declared.stores.push(Arc::new(store.clone()));
        }
    }

    /// Follows the metadata of the objects of every kind that is served, events aside.
    pub fn follow_every_kind(&mut self, listener: impl Listener) -> Kinds {
        self.declared.sources.push(EVERY_KIND);
        self.sources.every_kind.listen(self.controller, listener)
    }

    /// Keys to plan once at the start, for which no object exists.
    pub fn always(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.declared.keys.extend(keys);
    }

    /// Keys that a changed value concerns.
    pub fn watch(
        &mut self,
        value: watch::Receiver<String>,
        keys: impl Fn() -> Vec<Key> + Send + 'static,
    ) {
        self.sources.declared.push(Box::new(Watched {
            value,
            controller: self.controller,
            keys: Box::new(keys),
        }));
    }
}

impl Sources {
    /// The view's number and what is declared of it.
    fn known<V: View>(&mut self) -> Option<(usize, Followed<V>)> {
        let mut known = self.declared.iter_mut().enumerate();
        known.find_map(|(source, declared)| {
            let found = declared.as_any().downcast_ref::<Followed<V>>()?;
            Some((source, found.clone()))
        })
    }

    /// As [`Sources::known`]; declares the view if no controller has.
    fn followed<V: View>(&mut self) -> (usize, Followed<V>) {
        self.known().unwrap_or_else(|| {
            let new = Followed::<V> {
                store: Store::default(),
                listeners: Arc::default(),
            };
            self.declared.push(Box::new(new.clone()));
            (self.declared.len() - 1, new)
        })
    }
}

fn revision<T: Object>(object: &T) -> u64 {
    let version = object.metadata().resource_version.as_deref();
    version
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// The stores of one controller, which a test fills in the place of followers.
pub struct TestStores {
    sources: Sources,
    stores: Stores,
}

impl std::fmt::Debug for TestStores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestStores").finish_non_exhaustive()
    }
}

impl TestStores {
    /// The object came or changed; the keys that this concerns.
    pub fn set<V: View>(&mut self, key: Key, value: V) -> Vec<Key> {
        let (_, followed) = self.sources.followed::<V>();
        let delta = followed.store.set(key, value);
        Self::keys(&followed, delta)
    }

    /// The object went; the keys that this concerns.
    pub fn remove<V: View>(&mut self, key: &Key) -> Vec<Key> {
        let (_, followed) = self.sources.followed::<V>();
        let delta = followed.store.remove(key);
        Self::keys(&followed, delta)
    }

    /// Whether the controller follows a view.
    pub fn follows<V: View>(&mut self) -> bool {
        self.sources.known::<V>().is_some()
    }

    /// The object came or changed, as a watch shows it; the keys that this concerns.
    pub fn see<V: View>(&mut self, object: V::Object) -> Vec<Key> {
        let revision = revision(&object);
        self.apply(Change::Set(Item::<V>::read(object)), revision)
    }

    /// The object went at a resource version, as a watch shows it; the keys that this concerns.
    pub fn miss<V: View>(&mut self, object: &V::Object, revision: u64) -> Vec<Key> {
        self.apply::<V>(Change::Deleted(Gone::of(object.metadata())), revision)
    }

    /// All objects of the kind at a resource version, as a follower lists them that has lost its
    /// watch; the keys that this concerns.
    pub fn list<V: View>(&mut self, objects: Vec<V::Object>, revision: u64) -> Vec<Key> {
        let items = objects.into_iter().map(Item::<V>::read).collect();
        self.apply(Change::Listed(items), revision)
    }

    fn apply<V: View>(&mut self, change: Change<Item<V>>, revision: u64) -> Vec<Key> {
        let (_, followed) = self.sources.followed::<V>();
        let deltas = followed.store.apply(change, revision);
        without_numbers(followed.concerned(&deltas))
    }

    /// Whether the controller follows every kind.
    pub fn follows_every_kind(&self) -> bool {
        self.sources.every_kind.is_listened_to()
    }

    /// Further kinds are served, to a controller that follows every kind.
    pub fn serve(&mut self, served: &[Resource]) {
        self.sources.every_kind.serve(served);
    }

    /// A change of objects of a served kind, to a controller that follows every kind; the keys that
    /// this concerns.
    pub fn meet(&mut self, group: &str, kind: &str, change: &Change<PartialObject>) -> Vec<Key> {
        let every = &mut self.sources.every_kind;
        let number = every.number(group, kind);
        let keys = number.map(|number| every.concerned(number, change));
        without_numbers(keys.unwrap_or_default())
    }

    /// Plans a key and carries the plan out at an API, as the driver does; what was written is
    /// expected in these stores.
    pub async fn run<C: Controller>(
        &self,
        controller: &C,
        key: &Key,
        now: Now,
        api: &Client,
    ) -> Outcome {
        let facts = controller.facts(key, now);
        let plan = facts.map_or_else(Plan::nothing, |facts| C::plan(&facts, now));
        let client = api.acting_as(rights::user(C::NAME));
        let recorder = Arc::new(Recorder::new(client.clone(), C::COMPONENT));
        let writer = Writer::new(client, recorder, Arc::clone(&self.stores), now);
        let (_, outcome) = carry_out(controller, key, plan, writer).await;
        outcome
    }

    fn keys<V: View>(followed: &Followed<V>, delta: Option<Delta<V>>) -> Vec<Key> {
        let deltas: Vec<_> = delta.into_iter().collect();
        without_numbers(followed.concerned(&deltas))
    }
}

/// The keys alone: a test has one controller.
fn without_numbers(concerned: Concerned) -> Vec<Key> {
    concerned.into_iter().map(|(_, key)| key).collect()
}
