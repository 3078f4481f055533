//! Tests of the state in memory: watches return every change of their keys once and in order.

use super::*;
use crate::history::HistoryLimits;
use crate::model::Entry;
use bytes::Bytes;
use proptest::prelude::*;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Wake, Waker};

const KEYS: [&str; 5] = ["a/n/x", "a/n/xy", "a/m/x", "a/\u{e4}", "b/x"];
const PREFIXES: [Option<&str>; 9] = [
    None,
    Some("a/"),
    Some("a/n/"),
    Some("a/n/x"),
    Some("a/n/xy"),
    Some("a/m/x"),
    Some("a/\u{e4}"),
    Some("b/"),
    Some("c/"),
];

fn memory(events: usize) -> Arc<Memory> {
    let limits = HistoryLimits {
        events,
        bytes: 1 << 20,
        unpacked: 1 << 20,
    };
    Arc::new(Memory::new(Published::new(1, limits)))
}

/// The change of a key at a revision.
fn event(key: &str, revision: Revision) -> Event {
    let key: Arc<str> = key.into();
    let now = Entry {
        key: Arc::clone(&key),
        value: Bytes::from_static(b"x").into(),
        created: revision,
        modified: revision,
    };
    Event::new(revision, key, Some(now), None)
}

/// The answer of a future that does not wait.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_write_wakes_the_watchers_of_its_key_alone() {
    let memory = memory(100);
    let mut streams: Vec<_> = PREFIXES
        .map(|prefix| memory.watch(prefix, 1).unwrap())
        .into();
    let counts: Vec<Arc<Count>> = PREFIXES.iter().map(|_| Arc::default()).collect();
    let mut waiting: Vec<_> = streams.iter_mut().map(|stream| stream.next()).collect();
    let poll = |waiting: &mut BoxFuture<'_, _>, count: &Arc<Count>| {
        let waker = Waker::from(Arc::clone(count));
        waiting.as_mut().poll(&mut Context::from_waker(&waker))
    };
    for (waiting, count) in waiting.iter_mut().zip(&counts) {
        assert!(poll(waiting, count).is_pending());
    }
    memory.publish(2, [event("a/n/xy", 2)]);
    for ((prefix, waiting), count) in PREFIXES.iter().zip(&mut waiting).zip(&counts) {
        let concerned = prefix.is_none_or(|prefix| "a/n/xy".starts_with(prefix));
        let woken = count.0.load(Ordering::Relaxed);
        assert_eq!(woken, usize::from(concerned), "{prefix:?}");
        assert_eq!(poll(waiting, count).is_ready(), concerned, "{prefix:?}");
    }
}

#[test]
fn a_watcher_of_a_quiet_key_does_not_fall_behind_a_busy_table() {
    let memory = memory(10);
    let mut quiet = memory.watch(Some("a/n/x"), 1).unwrap();
    let mut busy = memory.watch(Some("a/m/"), 1).unwrap();
    for revision in 2..102 {
        memory.publish(revision, [event("a/m/x", revision)]);
    }
    assert_eq!((quiet.progress(), busy.progress()), (101, 1));
    let lost = ready(busy.next()).unwrap();
    assert!(
        matches!(lost, Err(StoreError::Compacted { .. })),
        "{lost:?}"
    );
    memory.publish(102, [event("a/n/x", 102)]);
    let batch = ready(quiet.next()).unwrap().unwrap();
    assert_eq!((batch.events[0].revision, batch.progress), (102, 102));
}

#[derive(Debug, Clone)]
enum Step {
    /// A watcher of a prefix, from a revision so far back.
    Open(usize, u64),
    /// A transaction that changes these keys.
    Write(Vec<usize>),
    /// More changes of a key than one batch has.
    Many(usize),
    /// A watcher takes what waits, or is dropped.
    Take(usize),
    Drop(usize),
    /// History is compacted to a revision so far back.
    Compact(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = proptest::sample::subsequence((0..KEYS.len()).collect::<Vec<_>>(), 1..3);
    let step = prop_oneof![
        4 => (0..PREFIXES.len(), 0..6_u64).prop_map(|(prefix, back)| Step::Open(prefix, back)),
        8 => keys.prop_map(Step::Write),
        1 => (0..KEYS.len()).prop_map(Step::Many),
        8 => (0..12_usize).prop_map(Step::Take),
        1 => (0..12_usize).prop_map(Step::Drop),
        1 => (0..6_u64).prop_map(Step::Compact),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A watcher, and the revision and key of each change that it has yet to return.
struct Watched {
    prefix: Option<&'static str>,
    stream: Box<dyn WatchStream>,
    due: Vec<(Revision, &'static str)>,
}

/// A state, and what should come of it.
struct Scene {
    memory: Arc<Memory>,
    head: Revision,
    floor: Revision,
    written: Vec<(Revision, &'static str)>,
    watched: Vec<Watched>,
}

impl Scene {
    fn write(&mut self, transactions: &[&[usize]]) {
        let mut fresh = Vec::new();
        for keys in transactions {
            self.head += 1;
            fresh.extend(keys.iter().map(|key| (self.head, KEYS[*key])));
        }
        let events = fresh.iter().map(|(revision, key)| event(key, *revision));
        self.memory.publish(self.head, events);
        for watched in &mut self.watched {
            watched.due.extend(under(watched.prefix, &fresh));
        }
        self.written.extend(fresh);
    }

    fn open(&mut self, prefix: Option<&'static str>, back: u64) {
        let after = self.head.saturating_sub(back).max(self.floor).max(1);
        let mut due = under(prefix, &self.written);
        due.retain(|(revision, _)| *revision > after);
        let stream = self.memory.watch(prefix, after).unwrap();
        self.watched.push(Watched {
            prefix,
            stream,
            due,
        });
    }

    /// A watcher returns what is due until it has to wait; it has failed if some of that is
    /// compacted.
    fn take(&mut self, number: usize) {
        let Some(watched) = self.watched.get_mut(number) else {
            return;
        };
        let due = std::mem::take(&mut watched.due);
        if due.first().is_some_and(|(first, _)| *first <= self.floor) {
            let lost = ready(watched.stream.next()).unwrap();
            assert!(
                matches!(lost, Err(StoreError::Compacted { .. })),
                "{lost:?}"
            );
            self.watched.remove(number);
            return;
        }
        let mut came = Vec::new();
        while let Some(batch) = ready(watched.stream.next()) {
            let batch = batch.unwrap();
            came.extend(batch.events.iter().map(|event| event_of(event)));
            assert_eq!(watched.stream.progress(), batch.progress);
        }
        assert!(came.is_sorted_by_key(|(revision, _)| *revision), "{came:?}");
        assert_eq!(by_table(came), by_table(due), "{:?}", watched.prefix);
        assert_eq!(watched.stream.progress(), self.head);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open(prefix, back) => self.open(PREFIXES[prefix], back),
            Step::Write(keys) => self.write(&[&keys]),
            Step::Many(key) => self.write(&[[key].as_slice(); BATCH.events + 100]),
            Step::Take(number) => self.take(number),
            Step::Drop(number) if number < self.watched.len() => {
                self.watched.remove(number);
            }
            Step::Drop(_) => {}
            Step::Compact(back) => {
                let to = self.head.saturating_sub(back);
                self.memory.compact(to);
                self.floor = self.floor.max(to);
            }
        }
        for watched in &self.watched {
            let before = watched.due.first().map(|(first, _)| first - 1);
            assert_eq!(watched.stream.progress(), before.unwrap_or(self.head));
        }
    }
}

/// Changes of one transaction have an order within each table, and none between tables.
fn by_table(mut changes: Vec<(Revision, &'static str)>) -> Vec<(Revision, &'static str)> {
    changes.sort_by_key(|(revision, key)| (*revision, key.split('/').next()));
    changes
}

fn event_of(event: &Event) -> (Revision, &'static str) {
    let key = KEYS.iter().find(|key| **key == &*event.key);
    (event.revision, key.copied().unwrap_or_default())
}

fn under(prefix: Option<&str>, all: &[(Revision, &'static str)]) -> Vec<(Revision, &'static str)> {
    let concerned = |(_, key): &&(Revision, &str)| key.starts_with(prefix.unwrap_or_default());
    all.iter().filter(concerned).copied().collect()
}

proptest! {
    #[test]
    fn every_watcher_returns_each_change_of_its_keys_once_and_in_order(steps in steps()) {
        let mut scene = Scene {
            memory: memory(100_000),
            head: 1,
            floor: 0,
            written: Vec::new(),
            watched: Vec::new(),
        };
        for step in steps {
            scene.step(step);
        }
        for number in (0..scene.watched.len()).rev() {
            scene.take(number);
        }
    }
}
