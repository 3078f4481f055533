//! Reads through a replica: the common suite, an engine whose watch fails in each way, and which of
//! the two answers.

use crate::suite;
use bytes::Bytes;
use master_store::{
    Action, Batch, BoxFuture, Committed, EmbeddedStore, Expect, Fetched, ListQuery, Listing, Op,
    Reader as _, Replica, Revision, Store, StoreError, WatchStream,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

/// Faults of an engine's watch of all changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It fails once.
    Fails,
    /// Once, the requested history is compacted.
    Forgets,
    /// It returns nothing more, nor do later watches.
    Silent,
}

/// A remote engine whose watch can fail, and which counts its reads.
#[derive(Debug)]
struct Engine {
    store: EmbeddedStore,
    fault: Arc<Mutex<Fault>>,
    reads: AtomicUsize,
}

impl Engine {
    fn answers<'a, T>(&'a self, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        answer
    }

    fn befall(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }
}

#[derive(Debug)]
struct Changes {
    stream: Box<dyn WatchStream>,
    fault: Arc<Mutex<Fault>>,
}

impl WatchStream for Changes {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            let batch = self.stream.next().await?;
            let fault = {
                let mut fault = self.fault.lock().unwrap();
                let now = *fault;
                if now != Fault::Silent {
                    *fault = Fault::None;
                }
                now
            };
            match fault {
                Fault::None => Ok(batch),
                Fault::Fails => Err(StoreError::Busy),
                Fault::Forgets => Err(StoreError::Compacted { asked: 0, floor: 1 }),
                Fault::Silent => std::future::pending().await,
            }
        })
    }

    fn progress(&self) -> Revision {
        self.stream.progress()
    }
}

impl Store for Engine {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.store.revision()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        self.answers(self.store.get(key))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.answers(self.store.list(query))
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.store.commit(ops)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        self.answers(self.store.watch(prefix, after))
    }

    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>> {
        Box::pin(async move {
            let (stream, fault) = (self.store.changes(after).await?, self.fault.clone());
            Ok(Box::new(Changes { stream, fault }) as Box<dyn WatchStream>)
        })
    }

    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.store.everything()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(revision)
    }
}

/// Writes to an engine, and reads through a replica of it.
#[derive(Debug)]
struct Scene {
    engine: Arc<Engine>,
    replica: Replica,
    _following: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn begin() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Arc::new(Engine {
            store: EmbeddedStore::open(folder.path()).unwrap(),
            fault: Arc::new(Mutex::new(Fault::None)),
            reads: AtomicUsize::new(0),
        });
        let store: Arc<dyn Store> = engine.clone();
        let (replica, follow) = Replica::of(store).await.unwrap();
        let mut following = JoinSet::new();
        following.spawn(follow);
        Self {
            engine,
            replica,
            _following: following,
            _folder: folder,
        }
    }

    async fn write(&self, key: u8, action: Action) -> Revision {
        let op = Op {
            key: format!("t{}/{key}", key % 2).as_str().into(),
            expect: Expect::Any,
            action,
        };
        self.engine.commit(vec![op]).await.unwrap().revision
    }

    fn reads_of_the_engine(&self) -> usize {
        self.engine.reads.load(Ordering::SeqCst)
    }
}

fn put(value: u8) -> Action {
    Action::Put(Bytes::from(vec![value]))
}

fn under(prefix: &str, revision: Option<Revision>) -> ListQuery {
    ListQuery {
        prefix: prefix.to_owned(),
        revision,
        ..ListQuery::default()
    }
}

impl Store for Scene {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.replica.revision()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        self.replica.get(key)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.replica.list(query)
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.engine.commit(ops)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        self.replica.watch(prefix, after)
    }

    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>> {
        self.engine.changes(after)
    }

    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.engine.everything()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.engine.compact(revision)
    }
}

#[tokio::test]
async fn reads_through_a_replica_pass_the_suite() {
    suite::but_compaction(&Scene::begin().await).await;
}

#[tokio::test]
async fn memory_answers_and_the_engine_only_what_memory_lacks() {
    let scene = Scene::begin().await;
    let first = scene.write(0, put(1)).await;
    let second = scene.write(0, put(2)).await;
    let read = scene.replica.get("t0/0").await.unwrap();
    assert_eq!(read.entry.unwrap().value.bytes()[..], [2]);
    let listed = scene.replica.list(under("t0/", None)).await.unwrap();
    assert_eq!((listed.revision, listed.entries.len()), (second, 1));
    let past = scene.replica.list(under("t0/", Some(first))).await.unwrap();
    assert_eq!(past.entries[0].value.bytes()[..], [1]);
    let mut watch = scene.replica.watch("t0/", first).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].revision, second);
    assert_eq!(scene.reads_of_the_engine(), 0);
    let ahead = scene.replica.list(under("t0/", Some(second + 1))).await;
    assert!(matches!(ahead, Err(StoreError::Future { .. })));

    // A replica that begins now has no history; the engine still has one.
    let store: Arc<dyn Store> = scene.engine.clone();
    let (late, _following) = Replica::of(store).await.unwrap();
    let past = late.list(under("t0/", Some(first))).await.unwrap();
    assert_eq!(past.entries[0].value.bytes()[..], [1]);
    let mut watch = late.watch("t0/", first).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].revision, second);
    assert_eq!(scene.reads_of_the_engine(), 2);
}

#[tokio::test]
async fn a_copy_that_stays_behind_is_not_read() {
    let scene = Scene::begin().await;
    scene.write(0, put(1)).await;
    scene.replica.get("t0/0").await.unwrap();
    scene.engine.befall(Fault::Silent);
    scene.write(0, put(2)).await;
    let read = scene.replica.get("t0/0").await.unwrap();
    assert_eq!(read.entry.unwrap().value.bytes()[..], [2]);
    assert!(scene.reads_of_the_engine() > 0);
    let revision = scene.replica.revision().await;
    assert!(
        matches!(revision, Err(StoreError::Behind { .. })),
        "{revision:?}"
    );
}

#[tokio::test]
async fn watchers_of_a_rebuilt_copy_are_notified() {
    let scene = Scene::begin().await;
    let first = scene.write(0, put(1)).await;
    scene.replica.get("t0/0").await.unwrap();
    let mut watch = scene.replica.watch("t0/", first).await.unwrap();
    scene.engine.befall(Fault::Forgets);
    scene.write(0, put(2)).await;
    assert!(matches!(
        watch.next().await,
        Err(StoreError::Compacted { .. })
    ));
    let read = scene.replica.get("t0/0").await.unwrap();
    assert_eq!(read.entry.unwrap().value.bytes()[..], [2]);
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Befall(Fault),
    Compact,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fault = prop_oneof![Just(Fault::Fails), Just(Fault::Forgets)];
    let step = prop_oneof![
        6 => (0u8..6, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0u8..6).prop_map(Step::Delete),
        2 => fault.prop_map(Step::Befall),
        1 => Just(Step::Compact),
    ];
    prop::collection::vec(step, 1..30)
}

/// Follows a table through the replica until it equals the engine's; lists again if history is
/// lost.
async fn replayed(scene: &Scene, table: &str, from: Revision) -> BTreeMap<String, Bytes> {
    let head = scene.engine.revision().await.unwrap();
    let mut all = BTreeMap::new();
    let mut reached = from;
    while reached < head {
        let mut watch = match scene.replica.watch(table, reached).await {
            Ok(watch) => watch,
            Err(StoreError::Compacted { .. }) => {
                let listing = scene.replica.list(under(table, None)).await.unwrap();
                let entries = listing.entries.into_iter();
                all = entries
                    .map(|one| (one.key.to_string(), one.value.bytes()))
                    .collect();
                reached = listing.revision;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if watch.progress() >= head {
            break;
        }
        let Ok(batch) = watch.next().await else {
            continue;
        };
        reached = batch.progress;
        for event in batch.events {
            match &event.now {
                Some(entry) => all.insert(event.key.to_string(), entry.value.bytes()),
                None => all.remove(&*event.key),
            };
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// For any fault of the engine's watch: each read sees earlier writes, and a watcher that lists
    /// again when necessary ends with the engine's state.
    #[test]
    fn a_replica_answers_as_its_engine(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let scene = Scene::begin().await;
            let start = scene.engine.revision().await.unwrap();
            for step in steps {
                match step {
                    Step::Put(key, value) => drop(scene.write(key, put(value)).await),
                    Step::Delete(key) => drop(scene.write(key, Action::Delete).await),
                    Step::Befall(fault) => scene.engine.befall(fault),
                    Step::Compact => {
                        let head = scene.engine.revision().await.unwrap();
                        scene.engine.compact(head).await.unwrap();
                    }
                }
                for table in ["t0/", "t1/"] {
                    let known = scene.replica.list(under(table, None)).await.unwrap();
                    prop_assert_eq!(known, scene.engine.store.list(under(table, None)).await.unwrap());
                }
            }
            for table in ["t0/", "t1/"] {
                let listing = scene.engine.store.list(under(table, None)).await.unwrap();
                let entries = listing.entries.into_iter();
                let expected: BTreeMap<_, _> = entries.map(|one| (one.key.to_string(), one.value.bytes())).collect();
                prop_assert_eq!(replayed(&scene, table, start).await, expected);
            }
            Ok(())
        })?;
    }
}
