//! Tests which requests get a turn, and which are woken.

use super::*;
use proptest::prelude::*;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

type Waiting<'a> = Pin<Box<dyn Future<Output = Turn> + 'a>>;

fn now(wait: Pin<&mut (impl Future<Output = Turn> + ?Sized)>) -> Option<Turn> {
    match wait.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

/// All turns that a name can get, at many places.
fn all_of(turns: &NamedTurns, name: &str) -> Vec<Turn> {
    let places = (0..100).map(|number| format!("r{}.{name}.example", number / 2));
    let turns = places.map(|place| now(pin!(turns.turn_at(name, &place))));
    turns.flatten().collect()
}

#[test]
fn many_of_one_name_leave_turns_to_another() {
    let turns = NamedTurns::new(8, 2);
    let asked: Vec<_> = (0..9).map(|_| Box::pin(turns.turn("a"))).collect();
    let asked = asked
        .into_iter()
        .map(|mut turn| now(turn.as_mut()).ok_or(turn));
    let (had, waiting): (Vec<_>, Vec<_>) = asked.partition(Result::is_ok);
    assert_eq!((had.len(), waiting.len()), (2, 7));
    let other = now(pin!(turns.turn("b")));
    assert!(other.is_some());
    assert_eq!(turns.free(), 5);
    drop(had);
    let got = waiting.into_iter().filter_map(Result::err);
    let got: Vec<_> = got.map(|mut turn| now(turn.as_mut())).collect();
    assert_eq!(got.iter().flatten().count(), 2);
    drop((got, other));
    assert_eq!(turns.free(), 8);
}

#[test]
fn there_is_a_turn_for_everybody_at_least() {
    let turns = NamedTurns::new(0, 0);
    let turn = now(pin!(turns.turn("a")));
    assert!(turn.is_some() && now(pin!(turns.turn("b"))).is_none());
}

#[test]
fn the_last_turns_go_to_names_that_have_none() {
    let turns = NamedTurns::with_reserve(8, 3);
    let [first, second, third] = ["a", "b", "c"].map(|name| all_of(&turns, name));
    assert_eq!((first.len(), second.len(), third.len()), (3, 3, 1));
    let last = now(pin!(turns.turn("d")));
    assert!(last.is_some());
    assert!(now(pin!(turns.turn("e"))).is_none());
}

#[test]
fn many_places_of_one_name_leave_turns_to_others() {
    let turns = NamedTurns::with_own_places(8, 2);
    let turn = |name: &str, place: &str| now(pin!(turns.turn_at(name, place)));
    let at_one: Vec<_> = (0..8).filter_map(|_| turn("a", "pod")).collect();
    assert_eq!(at_one.len(), 2);
    drop(at_one);
    let held = all_of(&turns, "a");
    assert_eq!(held.len(), 6);
    for name in ["b", "c"] {
        assert!(turn(name, name).is_some(), "{name}");
    }
}

#[test]
fn a_namespace_with_many_registries_leaves_turns_to_the_pods_of_others() {
    for (all, most) in [(1, 1), (2, 1), (3, 2), (5, 4), (8, 6), (100, 75)] {
        let turns = NamedTurns::with_places(all, 4);
        let mut held = all_of(&turns, "hostile");
        assert_eq!(held.len(), most, "of {all}");
        for number in most..all {
            let (other, place) = (format!("other{number}"), format!("{number}.example"));
            let turn = now(pin!(turns.turn_at(&other, &place)));
            held.push(turn.expect("one is left for each"));
        }
    }
}

#[test]
fn many_namespaces_share_what_is_kept() {
    let turns = NamedTurns::with_places(8, 4);
    let [first, second] = ["a", "b"].map(|name| all_of(&turns, name));
    assert_eq!((first.len(), second.len()), (6, 1));
    assert!(now(pin!(turns.turn_at("c", "quick.example"))).is_some());
}

#[test]
fn a_registry_leaves_turns_to_others_and_one_of_its_own_to_other_namespaces() {
    let turns = NamedTurns::with_places(5, 4);
    let turn = |name: &str, place: &str| now(pin!(turns.turn_at(name, place)));
    let own: Vec<_> = (0..5).filter_map(|_| turn("a", "slow.example")).collect();
    assert_eq!(own.len(), 2);
    let other = turn("b", "slow.example");
    assert!(other.is_some());
    assert!(turn("c", "slow.example").is_none(), "it has its part");
    for name in ["a", "b", "c"] {
        assert!(turn(name, "quick.example").is_some(), "{name}");
    }
}

#[test]
fn a_request_without_a_turn_delays_no_other_and_turns_are_given_in_order() {
    let turns = NamedTurns::with_places(5, 4);
    let mut held = all_of(&turns, "a");
    let places = ["x.example", "y.example"];
    let [mut own, mut later] = places.map(|at| Box::pin(turns.turn_at("a", at)));
    assert!(now(own.as_mut()).is_none() && now(later.as_mut()).is_none());
    let other = now(pin!(turns.turn_at("b", "x.example")));
    assert!(other.is_some(), "it is not behind them");
    drop((held.pop(), held.pop()));
    assert!(now(later.as_mut()).is_none(), "the first one goes first");
    let own = now(own.as_mut());
    assert!(own.is_some() && now(later.as_mut()).is_none());
    drop((own, other));
    assert!(now(later.as_mut()).is_some());
}

/// How often waiting requests were woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_change_wakes_only_those_to_whom_it_gives_a_turn() {
    let turns = NamedTurns::with_places(5, 4);
    let mut held = all_of(&turns, "crowd");
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(woken.clone());
    let places: Vec<_> = (0..1000)
        .map(|number| format!("{number}.example"))
        .collect();
    let mut crowd: Vec<Waiting<'_>> = Vec::new();
    for place in &places {
        let mut wait: Waiting<'_> = Box::pin(turns.turn_at("crowd", place));
        let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        crowd.push(wait);
    }
    let count = || woken.0.load(Ordering::Relaxed);
    for _ in 0..10 {
        assert!(now(pin!(turns.turn_at("other", "x.example"))).is_some());
    }
    assert_eq!(count(), 0, "another name's turns begin and end");
    drop(crowd.split_off(500));
    assert_eq!(count(), 0, "others don't wait any more");
    held.pop();
    assert_eq!(count(), 1);
    assert!(now(crowd[0].as_mut()).is_some(), "the first one");
}

proptest! {
    #[test]
    fn no_turn_is_lost_or_given_twice(
        all in 1_usize..12,
        steps in proptest::collection::vec((0_u8..4, 0_u8..3, 0_u8..3), 0..120),
    ) {
        let turns = NamedTurns::with_places(all, 4);
        let mut held: Vec<(u8, Turn)> = Vec::new();
        let mut waiting: Vec<(u8, Waiting<'_>)> = Vec::new();
        for (name, place, step) in steps {
            match step {
                0 if !held.is_empty() => drop(held.remove(0)),
                1 if !waiting.is_empty() => drop(waiting.remove(0)),
                _ => {
                    let turns = &turns;
                    waiting.push((name, Box::pin(async move {
                        turns.turn_at(&name.to_string(), &place.to_string()).await
                    })));
                }
            }
            waiting.retain_mut(|(name, wait)| {
                let turn = now(wait.as_mut());
                let waits = turn.is_none();
                held.extend(turn.map(|turn| (*name, turn)));
                waits
            });
            prop_assert!(held.len() <= all);
            let own = |of: u8| held.iter().filter(|(name, _)| *name == of).count();
            for name in 0..4 {
                prop_assert!(all == 1 || own(name) < all);
            }
            let queue = turns.0.lock();
            prop_assert_eq!((queue.running.len(), queue.waiting.len()), (held.len(), waiting.len()));
            let running: Vec<_> = queue.running.values().collect();
            let may = |asked: &Asked| turns.0.refusal(&running, asked).is_none();
            prop_assert!(!queue.waiting.values().any(|(asked, _)| may(asked)));
        }
        drop((held, waiting));
        let queue = turns.0.lock();
        prop_assert!(queue.running.is_empty() && queue.waiting.is_empty());
    }
}
