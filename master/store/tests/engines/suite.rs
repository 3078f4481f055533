//! Tests for any engine behind the trait.

use bytes::Bytes;
use master_store::{Action, Entry, Expect, ListQuery, Op, Revision, Store, StoreError};
use std::collections::BTreeMap;

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn under(prefix: &str) -> ListQuery {
    ListQuery {
        prefix: prefix.to_owned(),
        ..ListQuery::default()
    }
}

async fn keys(store: &dyn Store, query: ListQuery) -> Vec<String> {
    store
        .list(query)
        .await
        .unwrap()
        .entries
        .iter()
        .map(|entry| entry.key.to_string())
        .collect()
}

/// Preconditions hold or nothing is written.
pub(crate) async fn expectations(store: &dyn Store) {
    let first = store
        .commit(vec![Op::create("a/1", value("x"))])
        .await
        .unwrap()
        .revision;
    assert!(matches!(
        store.commit(vec![Op::create("a/1", value("y"))]).await,
        Err(StoreError::Conflict { found: Some(found), .. }) if found == first
    ));
    let second = store
        .commit(vec![Op::update("a/1", first, value("y"))])
        .await
        .unwrap()
        .revision;
    assert!(second > first, "revisions grow");
    assert!(
        store
            .commit(vec![Op::update("a/1", first, value("z"))])
            .await
            .is_err(),
        "the revision is old"
    );
    let both = vec![
        Op::create("a/2", value("n")),
        Op::update("a/1", first, value("z")),
    ];
    assert!(store.commit(both).await.is_err());
    assert_eq!(
        store.get("a/2").await.unwrap().entry,
        None,
        "all or nothing"
    );
    let check = Op {
        key: "a/1".into(),
        expect: Expect::Revision(second),
        action: Action::Check,
    };
    let done = store.commit(vec![check.clone()]).await.unwrap();
    assert_eq!(done.revision, second, "a check writes nothing");
    store
        .commit(vec![Op::create("a/2", value("n")), check])
        .await
        .unwrap();
    let entry = store.get("a/1").await.unwrap().entry.unwrap();
    assert_eq!(
        (entry.created, entry.modified, &entry.value.bytes()[..]),
        (first, second, &b"y"[..])
    );
    store.commit(vec![Op::delete("a/1", second)]).await.unwrap();
    assert_eq!(store.get("a/1").await.unwrap().entry, None);
}

/// The pages of a list show one revision, whatever is written between them.
pub(crate) async fn consistent_pages(store: &dyn Store) {
    for number in 0..10 {
        store
            .commit(vec![Op::create(&format!("l/{number}"), value("x"))])
            .await
            .unwrap();
    }
    let first = store
        .list(ListQuery {
            limit: 4,
            ..under("l/")
        })
        .await
        .unwrap();
    assert_eq!((first.entries.len(), first.remaining), (4, 6));
    let gone = store.get("l/7").await.unwrap().entry.unwrap().modified;
    store.commit(vec![Op::delete("l/7", gone)]).await.unwrap();
    store
        .commit(vec![Op::create("l/55", value("new"))])
        .await
        .unwrap();
    let changed = store.get("l/8").await.unwrap().entry.unwrap().modified;
    store
        .commit(vec![Op::update("l/8", changed, value("changed"))])
        .await
        .unwrap();
    let rest = ListQuery {
        revision: Some(first.revision),
        after: Some("l/3".to_owned()),
        ..under("l/")
    };
    let rest = store.list(rest).await.unwrap();
    let names: Vec<_> = rest
        .entries
        .iter()
        .map(|entry| entry.key.to_string())
        .collect();
    assert_eq!(names, ["l/4", "l/5", "l/6", "l/7", "l/8", "l/9"]);
    assert!(
        rest.entries.iter().all(|entry| entry.value == "x"),
        "as they were"
    );
    assert_eq!(
        keys(store, under("l/5")).await,
        ["l/5", "l/55"],
        "prefixes are of text"
    );
}

/// A watch returns every change after its revision, in order, once.
pub(crate) async fn watch_misses_nothing(store: &dyn Store) {
    let start = store
        .commit(vec![Op::create("w/a", value("1"))])
        .await
        .unwrap()
        .revision;
    let second = store
        .commit(vec![Op::update("w/a", start, value("2"))])
        .await
        .unwrap()
        .revision;
    let mut watch = store.watch("w/", start).await.unwrap();
    store
        .commit(vec![Op::create("other/b", value("1"))])
        .await
        .unwrap();
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
    assert!(matches!(
        store.watch("w/", u64::MAX).await,
        Err(StoreError::Future { .. })
    ));
}

/// Compacted history is reported as such; the rest stays readable.
pub(crate) async fn compaction(store: &dyn Store) {
    let first = store
        .commit(vec![Op::create("c/a", value("1"))])
        .await
        .unwrap()
        .revision;
    let second = store
        .commit(vec![Op::update("c/a", first, value("2"))])
        .await
        .unwrap()
        .revision;
    let third = store
        .commit(vec![Op::create("c/b", value("1"))])
        .await
        .unwrap()
        .revision;
    let mut behind = store.watch("c/", first - 1).await.unwrap();
    store.compact(second).await.unwrap();
    assert!(
        matches!(behind.next().await, Err(StoreError::Compacted { .. })),
        "the watcher has the event"
    );
    assert!(matches!(
        store.watch("c/", first).await,
        Err(StoreError::Compacted { .. })
    ));
    assert!(matches!(
        store
            .list(ListQuery {
                revision: Some(first),
                ..under("c/")
            })
            .await,
        Err(StoreError::Compacted { .. })
    ));
    assert_eq!(
        keys(
            store,
            ListQuery {
                revision: Some(second),
                ..under("c/")
            }
        )
        .await,
        ["c/a"]
    );
    let mut watch = store.watch("c/", second).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].revision, third);
    assert_eq!(store.get("c/a").await.unwrap().entry.unwrap().value, "2");
}

/// The operations of a transaction share one revision, also over several tables; a key occurs once.
pub(crate) async fn transactions(store: &dyn Store) {
    let start = store.revision().await.unwrap();
    let many: Vec<Op> = (0..20)
        .map(|n| Op::create(&format!("t{}/{n}", n % 3), value("x")))
        .collect();
    let done = store.commit(many).await.unwrap().revision;
    assert_eq!(store.revision().await.unwrap(), done);
    for table in ["t0/", "t1/", "t2/"] {
        let entries = store.list(under(table)).await.unwrap().entries;
        assert!(
            entries.len() >= 6
                && entries
                    .iter()
                    .all(|entry| (entry.created, entry.modified) == (done, done))
        );
        let batch = store
            .watch(table, start)
            .await
            .unwrap()
            .next()
            .await
            .unwrap();
        assert!(batch.events.iter().all(|event| event.revision == done));
        assert_eq!(
            batch.events.len(),
            entries.len(),
            "a transaction is returned whole"
        );
    }
    let second = mixed_operations_are_one_write(store, done).await;
    contradictory_and_empty_transactions_write_nothing(store, second).await;
}

async fn mixed_operations_are_one_write(store: &dyn Store, done: Revision) -> Revision {
    let mixed = vec![
        Op::delete("t0/0", done),
        Op::update("t1/1", done, value("y")),
        Op::create("t2/new", value("z")),
        Op {
            key: "t2/none".into(),
            expect: Expect::Absent,
            action: Action::Check,
        },
        Op {
            key: "t2/none".into(),
            expect: Expect::Any,
            action: Action::Delete,
        },
    ];
    let second = store.commit(mixed).await.unwrap().revision;
    assert!(second > done);
    assert_eq!(store.get("t0/0").await.unwrap().entry, None);
    assert_eq!(
        store.get("t1/1").await.unwrap().entry.unwrap().modified,
        second
    );
    assert_eq!(store.get("t2/none").await.unwrap().entry, None);
    second
}

async fn contradictory_and_empty_transactions_write_nothing(store: &dyn Store, second: Revision) {
    let twice = vec![
        Op::create("t0/twice", value("1")),
        Op::delete("t0/twice", second),
    ];
    assert!(matches!(
        store.commit(twice).await,
        Err(StoreError::Invalid(_))
    ));
    let nothing = vec![Op {
        key: "t2/none".into(),
        expect: Expect::Any,
        action: Action::Delete,
    }];
    assert_eq!(
        store.commit(nothing).await.unwrap().revision,
        second,
        "deleting nothing is no write"
    );
    assert_eq!(store.commit(Vec::new()).await.unwrap().revision, second);
    let again = store
        .commit(vec![Op::create("t0/0", value("again"))])
        .await
        .unwrap()
        .revision;
    assert_eq!(
        store.get("t0/0").await.unwrap().entry.unwrap().created,
        again,
        "a new life, a new creation"
    );
}

/// Pages of any size add up to the list, also if a page starts after a key that does not exist.
pub(crate) async fn pages_of_any_size(store: &dyn Store) {
    for number in 0..13 {
        store
            .commit(vec![Op::create(&format!("page/{number:02}"), value("x"))])
            .await
            .unwrap();
    }
    let whole = keys(store, under("page/")).await;
    for limit in 1..15 {
        let (mut seen, mut after, mut revision) = (Vec::new(), None, None);
        loop {
            let page = store
                .list(ListQuery {
                    limit,
                    after,
                    revision,
                    ..under("page/")
                })
                .await
                .unwrap();
            assert!(page.entries.len() <= limit);
            seen.extend(page.entries.iter().map(|entry| entry.key.to_string()));
            assert_eq!(page.remaining, whole.len() - seen.len());
            if page.remaining == 0 {
                break;
            }
            (after, revision) = (seen.last().cloned(), Some(page.revision));
        }
        assert_eq!(seen, whole, "pages of {limit}");
    }
    assert_eq!(
        keys(
            store,
            ListQuery {
                after: Some("page/055".to_owned()),
                ..under("page/")
            }
        )
        .await,
        whole[6..]
    );
    assert!(
        keys(
            store,
            ListQuery {
                after: Some("page/99".to_owned()),
                ..under("page/")
            }
        )
        .await
        .is_empty()
    );
    assert_eq!(
        keys(
            store,
            ListQuery {
                after: Some("a/0".to_owned()),
                ..under("page/")
            }
        )
        .await,
        whole
    );
}

/// Prefixes are text, tables are separate, and keys may contain any character.
pub(crate) async fn prefixes(store: &dyn Store) {
    let odd = [
        "pre/a",
        "pre/a/b",
        "pre/a0",
        "pre/\u{10ffff}x",
        "pre/ü",
        "pre0/a",
        "pre./a",
    ];
    for key in odd {
        store
            .commit(vec![Op::create(key, value(""))])
            .await
            .unwrap();
    }
    assert_eq!(
        keys(store, under("pre/")).await,
        ["pre/a", "pre/a/b", "pre/a0", "pre/ü", "pre/\u{10ffff}x"]
    );
    assert_eq!(keys(store, under("pre/a/")).await, ["pre/a/b"]);
    assert_eq!(
        keys(store, under("pre/\u{10ffff}")).await,
        ["pre/\u{10ffff}x"]
    );
    assert!(keys(store, under("pre/none")).await.is_empty());
    assert!(keys(store, under("no-such-table/")).await.is_empty());
    assert_eq!(
        store.get("pre/ü").await.unwrap().entry.unwrap().value,
        "",
        "an empty value is one"
    );
    assert!(
        matches!(store.list(under("pre")).await, Err(StoreError::Invalid(_))),
        "a prefix names a table"
    );
    let mut watch = store
        .watch("pre/a/", store.revision().await.unwrap())
        .await
        .unwrap();
    store
        .commit(vec![Op::create("pre/a1", value("1"))])
        .await
        .unwrap();
    let inside = store
        .commit(vec![Op::create("pre/a/c", value("1"))])
        .await
        .unwrap()
        .revision;
    assert_eq!(watch.next().await.unwrap().events[0].revision, inside);
}

/// A value that differs from others in few places, like a pod of one template: such values are
/// packed once they are no longer recent.
fn replica(number: usize) -> Bytes {
    let fields: Vec<String> = (0..30).map(|field| format!("\"f:{field}\":{{}}")).collect();
    let fields = fields.join(",");
    value(&format!(
        "{{\"name\":\"{number}\",{fields},\"node\":\"n{}\"}}",
        number % 9
    ))
}

/// Replaying any watch from any revision gives the listed state; lists of past revisions show the
/// past.
pub(crate) async fn replays_give_the_listed_state(store: &dyn Store) {
    type State = BTreeMap<String, (Bytes, u64, u64)>;
    let state = |entries: &[Entry]| -> State {
        entries
            .iter()
            .map(|e| (e.key.to_string(), (e.value.bytes(), e.created, e.modified)))
            .collect()
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut past: Vec<(u64, State)> = vec![(store.revision().await.unwrap(), State::new())];
    for step in 0..120 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let key = |of: u64| format!("r/{}", of % 7);
        let put = |of: u64| Op {
            key: key(of).as_str().into(),
            expect: Expect::Any,
            action: Action::Put(replica(step)),
        };
        let drop = |of: u64| Op {
            key: key(of).as_str().into(),
            expect: Expect::Any,
            action: Action::Delete,
        };
        let (one, other) = (random >> 33, (random >> 33) + 1);
        let ops = match (random >> 59) % 5 {
            0 | 1 => vec![put(one)],
            2 => vec![drop(one)],
            3 => vec![put(one), drop(other)],
            _ => vec![put(one), put(other)],
        };
        let done = store.commit(ops).await.unwrap().revision;
        let listing = store.list(under("r/")).await.unwrap();
        assert_eq!(listing.revision, done);
        if done > past[past.len() - 1].0 {
            past.push((done, state(&listing.entries)));
        }
    }
    let (head, now) = past[past.len() - 1].clone();
    for (revision, then) in &past {
        let listing = store
            .list(ListQuery {
                revision: Some(*revision),
                ..under("r/")
            })
            .await
            .unwrap();
        assert_eq!(&state(&listing.entries), then, "the list of the past");
        let mut replayed = then.clone();
        let mut watch = store.watch("r/", *revision).await.unwrap();
        while watch.progress() < head {
            for event in watch.next().await.unwrap().events {
                assert!(event.revision > *revision);
                let before = replayed.get(&*event.key).map(|(value, _, _)| value.clone());
                assert_eq!(
                    event.before.as_ref().map(|entry| entry.value.bytes()),
                    before
                );
                match &event.now {
                    Some(e) => {
                        replayed.insert(e.key.to_string(), (e.value.bytes(), e.created, e.modified))
                    }
                    None => replayed.remove(&*event.key),
                };
            }
        }
        assert_eq!(replayed, now, "replayed from {revision}");
    }
}

/// Dropping a call to a watch loses nothing; two watchers see the same.
pub(crate) async fn watches_are_cancel_safe(store: &dyn Store) {
    let start = store
        .commit(vec![Op::create("cancel/0", value("x"))])
        .await
        .unwrap()
        .revision;
    let mut watch = store.watch("cancel/", start).await.unwrap();
    let mut other = store.watch("cancel/", start).await.unwrap();
    for number in 1..6 {
        // Dropped before anything can arrive.
        drop(watch.next());
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, watch.next())
                .await
                .is_err()
        );
        let done = store
            .commit(vec![Op::create(&format!("cancel/{number}"), value("x"))])
            .await
            .unwrap()
            .revision;
        for watch in [&mut watch, &mut other] {
            let batch = watch.next().await.unwrap();
            assert_eq!(
                (batch.events.len(), batch.events[0].revision, batch.progress),
                (1, done, done)
            );
        }
    }
}

/// Future revisions are refused, and compacted ones stay so, also if all history was compacted.
pub(crate) async fn past_and_future(store: &dyn Store) {
    let head = store
        .commit(vec![Op::create("pf/a", value("1"))])
        .await
        .unwrap()
        .revision;
    for ahead in [head + 1, u64::MAX] {
        let query = ListQuery {
            revision: Some(ahead),
            ..under("pf/")
        };
        assert!(
            matches!(store.list(query).await, Err(StoreError::Future { asked, .. }) if asked == ahead)
        );
        assert!(matches!(
            store.watch("pf/", ahead).await,
            Err(StoreError::Future { .. })
        ));
    }
    store.compact(u64::MAX).await.unwrap();
    store.compact(1).await.unwrap();
    assert!(matches!(
        store.watch("pf/", head - 1).await,
        Err(StoreError::Compacted { .. })
    ));
    assert!(matches!(
        store.watch("never-written/", head - 1).await,
        Err(StoreError::Compacted { .. })
    ));
    let mut watch = store.watch("pf/", head).await.unwrap();
    assert_eq!(
        keys(store, under("pf/")).await,
        ["pf/a"],
        "current values stay"
    );
    let next = store
        .commit(vec![Op::update("pf/a", head, value("2"))])
        .await
        .unwrap()
        .revision;
    assert_eq!(
        watch.next().await.unwrap().events[0]
            .before
            .as_ref()
            .unwrap()
            .value,
        "1"
    );
    assert!(next > head);
}

/// The content of a snapshot: every table at one revision.
pub(crate) async fn everything(store: &dyn Store) {
    store
        .commit(vec![
            Op::create("every/1", value("1")),
            Op::create("every2/1", value("2")),
        ])
        .await
        .unwrap();
    let all = store.everything().await.unwrap();
    assert_eq!(
        (all.revision, all.remaining),
        (store.revision().await.unwrap(), 0)
    );
    for table in ["every/", "every2/", "r/", "page/"] {
        let listed = store.list(under(table)).await.unwrap().entries;
        let held: Vec<_> = all
            .entries
            .iter()
            .filter(|entry| entry.key.starts_with(table))
            .cloned()
            .collect();
        assert_eq!(held, listed);
    }
}

/// Invalid keys and values are refused; large valid ones are returned unchanged.
pub(crate) async fn limits(store: &dyn Store) {
    for bad in ["", "a", "/a"] {
        assert!(
            matches!(
                store.commit(vec![Op::create(bad, value(""))]).await,
                Err(StoreError::Invalid(_))
            ),
            "{bad}"
        );
    }
    let large = Op::create("a/large", Bytes::from(vec![0; 64 << 20]));
    assert!(matches!(
        store.commit(vec![large]).await,
        Err(StoreError::Invalid(_))
    ));
    // Upstream's objects have at most 1.5 MiB.
    let big = Bytes::from(
        (0..3 << 19)
            .map(|at: u32| at.to_le_bytes()[1])
            .collect::<Vec<_>>(),
    );
    for number in 0..4 {
        store
            .commit(vec![Op::create(&format!("big/{number}"), big.clone())])
            .await
            .unwrap();
        assert_eq!(
            store
                .get(&format!("big/{number}"))
                .await
                .unwrap()
                .entry
                .unwrap()
                .value,
            big
        );
    }
}

/// The whole suite.
pub(crate) async fn all(store: &dyn Store) {
    but_compaction(store).await;
    compaction(store).await;
    past_and_future(store).await;
}

/// The part of the suite for reads of a replica, which has its own history.
pub(crate) async fn but_compaction(store: &dyn Store) {
    expectations(store).await;
    consistent_pages(store).await;
    watch_misses_nothing(store).await;
    transactions(store).await;
    pages_of_any_size(store).await;
    prefixes(store).await;
    replays_give_the_listed_state(store).await;
    watches_are_cancel_safe(store).await;
    everything(store).await;
    limits(store).await;
}
