//! The work queue against a model: for any changes in any order, no key runs twice at once, no
//! change is lost, and waits are bounded.

use master_client::Key;
use master_control::queue::{
    BACKOFF_FIRST, BACKOFF_LAST, EXPECTATION_TIMEOUT, Expectation, FAILURE_PAUSE,
    MAX_PER_NAMESPACE, Outcome, WorkQueue,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What happens to the queue.
#[derive(Debug, Clone)]
enum Step {
    /// A key changes.
    Change(usize),
    /// The next key is taken.
    Take,
    /// The longest run ends: well, with a time after which it is due again, or with a failure.
    Finish(Ending),
    /// Time passes, in milliseconds.
    Pass(u64),
    /// What was written is seen.
    See,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Well,
    Again(u64),
    Writing,
    Failing,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        Just(Ending::Well),
        (1_u64..5_000).prop_map(Ending::Again),
        Just(Ending::Writing),
        Just(Ending::Failing),
    ];
    prop_oneof![
        3 => (0_usize..4).prop_map(Step::Change),
        3 => Just(Step::Take),
        3 => ending.prop_map(Step::Finish),
        2 => (0_u64..2_000).prop_map(Step::Pass),
        1 => Just(Step::See),
    ]
}

fn key(number: usize) -> Arc<Key> {
    Arc::new(Key::new("a", &number.to_string()))
}

/// What the model knows: when a key last changed and when its last run began, by the steps'
/// numbers.
#[derive(Debug, Default)]
struct Model {
    changed: BTreeMap<Arc<Key>, usize>,
    began: BTreeMap<Arc<Key>, usize>,
    running: Vec<Arc<Key>>,
    /// Until when a key rests after its failure, whatever changes.
    rests: BTreeMap<Arc<Key>, Instant>,
    seen: Vec<Arc<AtomicBool>>,
}

impl Model {
    fn take(&mut self, queue: &mut WorkQueue, at: usize, now: Instant) {
        let Some(taken) = queue.take(now) else { return };
        assert!(
            !self.running.contains(&taken.key),
            "{} runs twice at once",
            taken.key
        );
        if let Some(rests) = self.rests.get(&taken.key) {
            assert!(now >= *rests, "too soon after a failure");
        }
        self.began.insert(Arc::clone(&taken.key), at);
        self.running.push(taken.key);
    }

    fn finish(&mut self, queue: &mut WorkQueue, ending: Ending, now: Instant) {
        if self.running.is_empty() {
            return;
        }
        let key = self.running.remove(0);
        let done = |requeue, expectations| Outcome::Done {
            requeue,
            expectations,
        };
        self.rests.remove(&key);
        let outcome = match ending {
            Ending::Well => done(None, Vec::new()),
            Ending::Again(time) => done(Some(Duration::from_millis(time)), Vec::new()),
            Ending::Writing => {
                let seen = Arc::new(AtomicBool::new(false));
                self.seen.push(Arc::clone(&seen));
                let expectation: Expectation = Box::new(move || seen.load(Ordering::Relaxed));
                done(None, vec![expectation])
            }
            Ending::Failing => retry(),
        };
        if let Some(wait) = queue.finish(&key, outcome, now) {
            assert!((BACKOFF_FIRST..=BACKOFF_LAST).contains(&wait), "{wait:?}");
            self.rests.insert(key, now + wait.min(FAILURE_PAUSE));
        }
    }
}

fn retry() -> Outcome {
    let expectations = Vec::new();
    Outcome::Retry { expectations }
}

fn well() -> Outcome {
    Outcome::Done {
        requeue: None,
        expectations: Vec::new(),
    }
}

const NAMESPACES: [&str; 4] = ["", "a", "b", "c"];

proptest! {
    /// Named invariants: a key never runs twice at once; each change is followed by a run that
    /// began after it, within the longest wait; a key that failed rests; at the end nothing is left
    /// in memory.
    #[test]
    fn no_change_is_lost_and_no_key_runs_twice_at_once(steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = WorkQueue::default();
        let mut model = Model::default();
        let mut now = Instant::now();
        let count = steps.len();
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Change(number) => {
                    queue.add(key(number), now);
                    model.changed.insert(key(number), at);
                }
                Step::Take => model.take(&mut queue, at, now),
                Step::Finish(ending) => model.finish(&mut queue, ending, now),
                Step::Pass(time) => now += Duration::from_millis(time),
                Step::See => {
                    model.seen.drain(..).for_each(|seen| seen.store(true, Ordering::Relaxed));
                    queue.observe(now);
                }
            }
        }
        // From here all goes well, and nothing more is written or seen.
        let end = now + BACKOFF_LAST.max(EXPECTATION_TIMEOUT);
        while !model.running.is_empty() {
            model.finish(&mut queue, Ending::Well, now);
        }
        while let Some(wake) = queue.wake(now).filter(|wake| *wake <= end) {
            now = now.max(wake);
            model.take(&mut queue, count, now);
            model.finish(&mut queue, Ending::Well, now);
        }
        for (key, changed) in &model.changed {
            prop_assert!(model.began.get(key).is_some_and(|began| began >= changed), "the change of {} is lost", key);
        }
        prop_assert!(queue.is_empty(), "{:?}", queue);
    }

    /// Named invariants: every key is taken once; those of a namespace in the order in which they
    /// came due; while a key waits, no other namespace is served more often than its own, by more
    /// than one.
    #[test]
    fn namespaces_take_turns(added in prop::collection::vec((0_usize..4, 0_usize..6), 1..60)) {
        let (mut queue, now) = (WorkQueue::default(), Instant::now());
        let mut due: BTreeMap<String, Vec<Arc<Key>>> = BTreeMap::new();
        for (namespace, name) in added {
            // One of the namespaces is that of cluster-scoped kinds.
            let namespace = NAMESPACES[namespace];
            let key = Arc::new(Key::new(namespace, &name.to_string()));
            queue.add(Arc::clone(&key), now);
            let line = due.entry(namespace.to_owned()).or_default();
            if !line.contains(&key) {
                line.push(key);
            }
        }
        let mut served: BTreeMap<String, usize> = BTreeMap::new();
        let mut left: usize = due.values().map(Vec::len).sum();
        while let Some(taken) = queue.take(now) {
            left -= 1;
            prop_assert_eq!(queue.depth(), left);
            let namespace = &taken.key.namespace;
            let count = served.entry(namespace.clone()).or_default();
            prop_assert_eq!(&taken.key, &due[namespace][*count]);
            *count += 1;
            let count = *count;
            for (other, line) in &due {
                let waiting = served.get(other).copied().unwrap_or_default();
                prop_assert!(waiting == line.len() || waiting + 1 >= count, "{} waits", other);
            }
            queue.finish(&taken.key, well(), now);
        }
        prop_assert_eq!(left, 0);
        prop_assert!(queue.is_empty(), "{:?}", queue);
    }

    /// Named invariant: whatever the order of changes, the same keys run as often as their changes
    /// ask for, and no others.
    #[test]
    fn keys_that_change_while_they_wait_run_once(numbers in prop::collection::vec(0_usize..8, 1..50)) {
        let mut queue = WorkQueue::default();
        let now = Instant::now();
        for number in &numbers {
            queue.add(key(*number), now);
        }
        let mut taken = Vec::new();
        while let Some(next) = queue.take(now) {
            taken.push(Arc::clone(&next.key));
            queue.finish(&next.key, Outcome::Done { requeue: None, expectations: Vec::new() }, now);
        }
        let mut first = BTreeSet::new();
        let order: Vec<Arc<Key>> = numbers.iter().filter(|number| first.insert(**number)).map(|number| key(*number)).collect();
        prop_assert_eq!(taken, order, "in the order in which they came due");
        prop_assert_eq!(queue.len(), 0);
    }
}

#[test]
fn the_wait_doubles_up_to_a_minute_and_begins_anew_after_a_success() {
    let (mut queue, mut now) = (WorkQueue::default(), Instant::now());
    queue.add(key(0), now);
    let mut waits = Vec::new();
    for _ in 0..18 {
        let taken = queue.take(now).expect("it is due");
        let wait = queue.finish(&taken.key, retry(), now).expect("it waits");
        let before = wait.saturating_sub(Duration::from_millis(1));
        assert!(queue.take(now + before).is_none());
        waits.push(wait.as_millis());
        now += wait;
    }
    assert_eq!(waits[..4], [5, 10, 20, 40]);
    assert_eq!(waits[14..], [60_000; 4]);
    let taken = queue.take(now).expect("it is due");
    let done = Outcome::Done {
        requeue: None,
        expectations: Vec::new(),
    };
    queue.finish(&taken.key, done, now);
    queue.add(key(0), now);
    let taken = queue.take(now).expect("it is due");
    assert_eq!(queue.finish(&taken.key, retry(), now), Some(BACKOFF_FIRST));
}

#[test]
fn a_change_ends_the_wait_after_many_failures_but_not_its_first_half_second() {
    let (mut queue, mut now) = (WorkQueue::default(), Instant::now());
    queue.add(key(0), now);
    for _ in 0..12 {
        let taken = queue.take(now).expect("it is due");
        now += queue.finish(&taken.key, retry(), now).expect("it waits");
    }
    let taken = queue.take(now).expect("it is due");
    queue.finish(&taken.key, retry(), now);
    queue.add(key(0), now);
    let before = FAILURE_PAUSE.saturating_sub(Duration::from_millis(1));
    assert!(queue.take(now + before).is_none());
    assert!(queue.take(now + FAILURE_PAUSE).is_some());
}

#[test]
fn a_key_waits_until_its_writes_are_seen_or_for_half_a_minute() {
    let now = Instant::now();
    let writing = |seen: &Arc<AtomicBool>| {
        let seen = Arc::clone(seen);
        Outcome::Done {
            requeue: None,
            expectations: vec![Box::new(move || seen.load(Ordering::Relaxed))],
        }
    };
    for (sees, due) in [(true, now), (false, now + EXPECTATION_TIMEOUT)] {
        let (mut queue, seen) = (WorkQueue::default(), Arc::new(AtomicBool::new(false)));
        queue.add(key(0), now);
        let taken = queue.take(now).expect("it is due");
        queue.finish(&taken.key, writing(&seen), now);
        queue.add(key(0), now);
        queue.observe(now);
        assert!(
            queue.take(now).is_none(),
            "an outdated version is not planned with"
        );
        seen.store(sees, Ordering::Relaxed);
        queue.observe(now);
        assert!(queue.take(due).is_some());
    }
}

#[test]
fn writes_of_a_run_that_failed_are_waited_for_as_well() {
    let now = Instant::now();
    let (mut queue, seen) = (WorkQueue::default(), Arc::new(AtomicBool::new(false)));
    queue.add(key(0), now);
    let taken = queue.take(now).expect("it is due");
    let known = Arc::clone(&seen);
    let written: Expectation = Box::new(move || known.load(Ordering::Relaxed));
    let expectations = vec![written];
    queue.finish(&taken.key, Outcome::Retry { expectations }, now);
    queue.add(key(0), now);
    let later = now + FAILURE_PAUSE;
    queue.observe(later);
    assert!(
        queue.take(later).is_none(),
        "an outdated version is not planned with"
    );
    seen.store(true, Ordering::Relaxed);
    queue.observe(later);
    assert!(queue.take(later).is_some());
}

#[test]
fn a_time_beyond_every_clock_never_comes() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    queue.add(key(1), now);
    let taken = queue.take(now).expect("it is due");
    let outcome = Outcome::Done {
        requeue: Some(Duration::MAX),
        expectations: Vec::new(),
    };
    queue.finish(&taken.key, outcome, now);
    assert!(queue.take(now + Duration::from_secs(1 << 30)).is_none());
}

#[test]
fn many_keys_of_a_namespace_delay_those_of_others_by_a_turn() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    for number in 0..10_000 {
        queue.add(Arc::new(Key::new("many", &number.to_string())), now);
    }
    let others = ["", "b", "c"].map(|namespace| Arc::new(Key::new(namespace, "one")));
    for other in &others {
        queue.add(Arc::clone(other), now);
    }
    assert_eq!(queue.depth(), 10_003);
    let first: Vec<Arc<Key>> = (0..=others.len())
        .map(|_| {
            let taken = queue.take(now).expect("it is due");
            queue.finish(&taken.key, well(), now);
            taken.key
        })
        .collect();
    assert!(
        others.iter().all(|other| first.contains(other)),
        "{first:?}"
    );
    assert_eq!((queue.depth(), queue.len()), (9_999, 9_999));
}

#[test]
fn a_namespace_has_its_share_of_the_runs_and_no_more() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    let of = |namespace: &str, number: usize| Arc::new(Key::new(namespace, &number.to_string()));
    for number in 0..=MAX_PER_NAMESPACE {
        queue.add(of("many", number), now);
    }
    for number in 0..MAX_PER_NAMESPACE {
        let taken = queue.take(now).expect("it is due");
        assert_eq!(taken.key, of("many", number));
    }
    assert_eq!(queue.take(now), None, "its share is used up");
    assert_eq!(
        queue.wake(now),
        None,
        "nothing can be taken before a run ends"
    );
    assert_eq!(queue.depth(), 1);

    queue.add(of("few", 0), now);
    assert_eq!(queue.wake(now), Some(now));
    let taken = queue
        .take(now)
        .expect("another namespace has its own share");
    assert_eq!(taken.key, of("few", 0));

    queue.finish(&of("many", 3), well(), now);
    assert_eq!(queue.wake(now), Some(now));
    let taken = queue.take(now).expect("a run ended");
    assert_eq!(taken.key, of("many", MAX_PER_NAMESPACE));

    for number in 0..=MAX_PER_NAMESPACE {
        queue.add(of("", number), now);
        let taken = queue.take(now).expect("no tenant writes these objects");
        assert_eq!(taken.key, of("", number));
    }
}
