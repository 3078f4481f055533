//! The embedded engine: the common suite, a model, and recovery.

use crate::suite;
use bytes::Bytes;
use master_store::{Action, EmbeddedStore, Expect, ListQuery, Op, Options, Store, StoreError};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[tokio::test]
async fn the_embedded_engine_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    suite::all(&EmbeddedStore::open(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn history_and_state_survive_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (start, head) = {
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let start = store
            .commit(vec![Op::create("t/a", Bytes::from("1"))])
            .await
            .unwrap()
            .revision;
        let second = store
            .commit(vec![Op::update("t/a", start, Bytes::from("2"))])
            .await
            .unwrap()
            .revision;
        store
            .commit(vec![Op::create("t/b", Bytes::from("b"))])
            .await
            .unwrap();
        let last = store
            .commit(vec![Op::delete("t/a", second)])
            .await
            .unwrap()
            .revision;
        (start, last)
    };
    let store = EmbeddedStore::open(folder.path()).unwrap();
    assert_eq!(store.revision().await.unwrap(), head);
    let mut watch = store.watch("t/", start).await.unwrap();
    let events = watch.next().await.unwrap().events;
    let seen: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event.now.as_ref().map(|e| e.value.bytes()),
                event.before.as_ref().map(|e| e.value.bytes()),
            )
        })
        .collect();
    let text = |text: &'static str| Some(Bytes::from(text));
    assert_eq!(
        seen,
        [(text("2"), text("1")), (text("b"), None), (None, text("2"))]
    );
    let then = ListQuery {
        prefix: "t/".to_owned(),
        revision: Some(start),
        ..ListQuery::default()
    };
    assert_eq!(store.list(then).await.unwrap().entries[0].value, "1");
}

#[tokio::test]
async fn a_full_history_drops_the_oldest_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        history_events: 10,
        ..Options::default()
    };
    let store = EmbeddedStore::open_with(folder.path(), &options).unwrap();
    let quiet = store
        .commit(vec![Op::create("quiet/a", Bytes::from("1"))])
        .await
        .unwrap()
        .revision;
    let mut behind = store.watch("busy/", quiet).await.unwrap();
    for number in 0..20 {
        store
            .commit(vec![Op::create(
                &format!("busy/{number}"),
                Bytes::from("1"),
            )])
            .await
            .unwrap();
    }
    assert!(matches!(
        behind.next().await,
        Err(StoreError::Compacted { .. })
    ));
    assert!(
        store.watch("quiet/", quiet - 1).await.is_ok(),
        "a busy table does not push out a quiet one's history"
    );
}

#[tokio::test]
async fn concurrent_writers_get_distinct_revisions() {
    let folder = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut revisions = Vec::new();
            for number in 0..20 {
                let key = format!("p/{task}-{number}");
                revisions.push(
                    store
                        .commit(vec![Op::create(&key, Bytes::from("x"))])
                        .await
                        .unwrap()
                        .revision,
                );
            }
            revisions
        });
    }
    let mut all: Vec<u64> = tasks.join_all().await.into_iter().flatten().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 320, "each transaction has a revision of its own");
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    ListPast(u8),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..6, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => (0u8..6).prop_map(Step::Delete),
        2 => any::<u8>().prop_map(Step::ListPast),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

type Model = BTreeMap<String, Vec<u8>>;

async fn state(store: &EmbeddedStore, revision: Option<u64>) -> Model {
    let query = ListQuery {
        prefix: "m/".to_owned(),
        revision,
        ..ListQuery::default()
    };
    let entries = store.list(query).await.unwrap().entries;
    entries
        .iter()
        .map(|entry| (entry.key.to_string(), entry.value.bytes().to_vec()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every past revision lists what the model had then, also after reopening; replaying a watch
    /// from the beginning gives the current state.
    #[test]
    fn any_history_is_kept_as_the_model_has_it(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let mut store = EmbeddedStore::open(folder.path()).unwrap();
            let mut model = Model::new();
            let mut past = vec![(store.revision().await.unwrap(), model.clone())];
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        let key = format!("m/{key}");
                        let action = Action::Put(Bytes::from(vec![value]));
                        let op = Op { key: key.as_str().into(), expect: Expect::Any, action };
                        let done = store.commit(vec![op]).await.unwrap();
                        model.insert(key, vec![value]);
                        past.push((done.revision, model.clone()));
                    }
                    Step::Delete(key) => {
                        let key = format!("m/{key}");
                        let op = Op { key: key.as_str().into(), expect: Expect::Any, action: Action::Delete };
                        let done = store.commit(vec![op]).await.unwrap();
                        model.remove(&key);
                        past.push((done.revision, model.clone()));
                    }
                    Step::ListPast(which) => {
                        let (revision, then) = &past[usize::from(which) % past.len()];
                        prop_assert_eq!(&state(&store, Some(*revision)).await, then);
                    }
                    Step::Reopen => {
                        drop(store);
                        store = EmbeddedStore::open(folder.path()).unwrap();
                    }
                }
                prop_assert_eq!(&state(&store, None).await, &model);
            }
            let mut replayed = Model::new();
            let start = past[0].0;
            if store.revision().await.unwrap() > start {
                let mut watch = store.watch("m/", start).await.unwrap();
                for event in watch.next().await.unwrap().events {
                    match &event.now {
                        Some(entry) => replayed.insert(event.key.to_string(), entry.value.bytes().to_vec()),
                        None => replayed.remove(&*event.key),
                    };
                }
            }
            prop_assert_eq!(replayed, model);
            Ok(())
        })?;
    }
}
