//! What any engine behind the trait must do.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use master_store::{Action, Expect, ListQuery, Op, Store, StoreError};

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn under(prefix: &str) -> ListQuery {
    ListQuery { prefix: prefix.to_owned(), ..ListQuery::default() }
}

async fn keys(store: &dyn Store, query: ListQuery) -> Vec<String> {
    store.list(query).await.unwrap().entries.iter().map(|entry| entry.key.to_string()).collect()
}

/// Expectations are met or nothing is written.
pub(crate) async fn expectations(store: &dyn Store) {
    let first = store.commit(vec![Op::create("a/1", value("x"))]).await.unwrap().revision;
    assert!(matches!(
        store.commit(vec![Op::create("a/1", value("y"))]).await,
        Err(StoreError::Conflict { found: Some(found), .. }) if found == first
    ));
    let second = store.commit(vec![Op::update("a/1", first, value("y"))]).await.unwrap().revision;
    assert!(second > first, "revisions grow");
    assert!(store.commit(vec![Op::update("a/1", first, value("z"))]).await.is_err(), "the revision is old");
    let both = vec![Op::create("a/2", value("n")), Op::update("a/1", first, value("z"))];
    assert!(store.commit(both).await.is_err());
    assert_eq!(store.get("a/2").await.unwrap().entry, None, "all or nothing");
    let check = Op { key: "a/1".into(), expect: Expect::Revision(second), action: Action::Check };
    let done = store.commit(vec![check.clone()]).await.unwrap();
    assert_eq!(done.revision, second, "a check writes nothing");
    store.commit(vec![Op::create("a/2", value("n")), check]).await.unwrap();
    let entry = store.get("a/1").await.unwrap().entry.unwrap();
    assert_eq!((entry.created, entry.modified, &entry.value[..]), (first, second, &b"y"[..]));
    store.commit(vec![Op::delete("a/1", second)]).await.unwrap();
    assert_eq!(store.get("a/1").await.unwrap().entry, None);
}

/// Pages of a list show one revision, whatever is written between them.
pub(crate) async fn consistent_pages(store: &dyn Store) {
    for number in 0..10 {
        store.commit(vec![Op::create(&format!("l/{number}"), value("x"))]).await.unwrap();
    }
    let first = store.list(ListQuery { limit: 4, ..under("l/") }).await.unwrap();
    assert_eq!((first.entries.len(), first.remaining), (4, 6));
    let gone = store.get("l/7").await.unwrap().entry.unwrap().modified;
    store.commit(vec![Op::delete("l/7", gone)]).await.unwrap();
    store.commit(vec![Op::create("l/55", value("new"))]).await.unwrap();
    let changed = store.get("l/8").await.unwrap().entry.unwrap().modified;
    store.commit(vec![Op::update("l/8", changed, value("changed"))]).await.unwrap();
    let rest = ListQuery { revision: Some(first.revision), after: Some("l/3".to_owned()), ..under("l/") };
    let rest = store.list(rest).await.unwrap();
    let names: Vec<_> = rest.entries.iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(names, ["l/4", "l/5", "l/6", "l/7", "l/8", "l/9"]);
    assert!(rest.entries.iter().all(|entry| entry.value == "x"), "as they were");
    assert_eq!(keys(store, under("l/5")).await, ["l/5", "l/55"], "prefixes are of text");
}

/// A watch tells every change after its revision, in order, once.
pub(crate) async fn watch_misses_nothing(store: &dyn Store) {
    let start = store.commit(vec![Op::create("w/a", value("1"))]).await.unwrap().revision;
    let second = store.commit(vec![Op::update("w/a", start, value("2"))]).await.unwrap().revision;
    let mut watch = store.watch("w/", start).await.unwrap();
    store.commit(vec![Op::create("other/b", value("1"))]).await.unwrap();
    store.commit(vec![Op::delete("w/a", second)]).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(watch.next().await.unwrap().events);
    }
    assert_eq!(seen[0].now.as_ref().unwrap().value, "2");
    assert_eq!(seen[0].before.as_ref().unwrap().value, "1");
    assert!(seen[1].now.is_none());
    assert_eq!(seen[1].before.as_ref().unwrap().value, "2");
    assert_eq!(watch.progress(), store.revision().await.unwrap());
    assert!(matches!(store.watch("w/", u64::MAX).await, Err(StoreError::Future { .. })));
}

/// What compaction took is said to be gone; what it left is there.
pub(crate) async fn compaction(store: &dyn Store) {
    let first = store.commit(vec![Op::create("c/a", value("1"))]).await.unwrap().revision;
    let second = store.commit(vec![Op::update("c/a", first, value("2"))]).await.unwrap().revision;
    let third = store.commit(vec![Op::create("c/b", value("1"))]).await.unwrap().revision;
    let mut behind = store.watch("c/", first - 1).await.unwrap();
    store.compact(second).await.unwrap();
    assert!(matches!(behind.next().await, Err(StoreError::Compacted { .. })), "the watcher is told");
    assert!(matches!(store.watch("c/", first).await, Err(StoreError::Compacted { .. })));
    assert!(matches!(
        store.list(ListQuery { revision: Some(first), ..under("c/") }).await,
        Err(StoreError::Compacted { .. })
    ));
    assert_eq!(keys(store, ListQuery { revision: Some(second), ..under("c/") }).await, ["c/a"]);
    let mut watch = store.watch("c/", second).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].revision, third);
    assert_eq!(store.get("c/a").await.unwrap().entry.unwrap().value, "2");
}

/// What is no key or value is refused.
pub(crate) async fn limits(store: &dyn Store) {
    for bad in ["", "a", "/a"] {
        assert!(matches!(store.commit(vec![Op::create(bad, value(""))]).await, Err(StoreError::Invalid(_))), "{bad}");
    }
    let large = Op::create("a/large", Bytes::from(vec![0; 64 << 20]));
    assert!(matches!(store.commit(vec![large]).await, Err(StoreError::Invalid(_))));
}

/// The whole suite.
pub(crate) async fn all(store: &dyn Store) {
    expectations(store).await;
    consistent_pages(store).await;
    watch_misses_nothing(store).await;
    compaction(store).await;
    limits(store).await;
}
