//! Chooses the node to scrape next; pure.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

/// How many nodes are scraped at once, and how many that did not answer the last time. These have
/// separate slots, because each may hold its slot until its time is up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) good: usize,
    pub(crate) silent: usize,
}

/// A node's place in the order.
#[derive(Debug, Clone, Copy)]
struct Turn {
    due: Instant,
    /// The pause before that.
    pause: Duration,
    /// When it was asked last.
    last: Option<Instant>,
    silent: bool,
    asked: bool,
}

/// A node's own part of a time, so that not all are scraped at once.
fn part(node: &str, of: Duration) -> Duration {
    let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(node);
    of * u32::try_from(hash % 1024).unwrap_or_default() / 1024
}

/// The nodes, and when each is due.
#[derive(Debug)]
pub(crate) struct Rota {
    first: Duration,
    places: Places,
    turns: HashMap<String, Turn>,
    /// Nodes that wait: those that answered the last time, and those that did not.
    waiting: [BTreeSet<(Instant, String)>; 2],
    asked: [usize; 2],
}

impl Rota {
    /// New nodes are scraped within `first`.
    pub(crate) fn new(first: Duration, places: Places) -> Self {
        Self {
            first,
            places,
            turns: HashMap::new(),
            waiting: Default::default(),
            asked: [0; 2],
        }
    }

    /// Adds a node, if it is new.
    pub(crate) fn add(&mut self, node: &str, now: Instant) {
        if self.turns.contains_key(node) {
            return;
        }
        let due = now + part(node, self.first);
        let turn = Turn {
            due,
            pause: self.first,
            last: None,
            silent: false,
            asked: false,
        };
        self.turns.insert(node.to_owned(), turn);
        self.waiting[0].insert((due, node.to_owned()));
    }

    /// A node that is gone.
    pub(crate) fn remove(&mut self, node: &str) {
        let Some(turn) = self.turns.remove(node) else {
            return;
        };
        let pool = usize::from(turn.silent);
        if turn.asked {
            self.asked[pool] -= 1;
        } else {
            self.waiting[pool].remove(&(turn.due, node.to_owned()));
        }
    }

    /// Only these nodes are there.
    pub(crate) fn set(&mut self, nodes: &BTreeSet<String>, now: Instant) {
        let gone: Vec<String> = self
            .turns
            .keys()
            .filter(|node| !nodes.contains(*node))
            .cloned()
            .collect();
        for node in gone {
            self.remove(&node);
        }
        for node in nodes {
            self.add(node, now);
        }
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    fn room(&self, pool: usize) -> bool {
        self.asked[pool] < [self.places.good, self.places.silent][pool]
    }

    /// A node that is due, if there is a slot for it; it is being scraped from then on.
    pub(crate) fn next(&mut self, now: Instant) -> Option<String> {
        for pool in [0, 1] {
            let first = self.waiting[pool].first();
            if !self.room(pool) || first.is_none_or(|(due, _)| *due > now) {
                continue;
            }
            let (_, node) = self.waiting[pool].pop_first()?;
            if let Some(turn) = self.turns.get_mut(&node) {
                turn.asked = true;
                self.asked[pool] += 1;
                return Some(node);
            }
        }
        None
    }

    /// When a node will be due for which there is a place.
    pub(crate) fn wake(&self) -> Option<Instant> {
        let pools = [0, 1].into_iter().filter(|pool| self.room(*pool));
        let first = |pool: usize| self.waiting[pool].first().map(|(due, _)| *due);
        pools.filter_map(first).min()
    }

    /// A node that waits is due a pause after it was asked last, if that is sooner.
    pub(crate) fn hasten(&mut self, node: &str, now: Instant, pause: Duration) {
        let Some(turn) = self.turns.get_mut(node).filter(|turn| !turn.asked) else {
            return;
        };
        let due = turn.last.map_or(now, |last| now.max(last + pause));
        if due < turn.due {
            let waiting = &mut self.waiting[usize::from(turn.silent)];
            waiting.remove(&(turn.due, node.to_owned()));
            waiting.insert((due, node.to_owned()));
            (turn.due, turn.pause) = (due, pause);
        }
    }

    /// Whether a node is being scraped; false where it went meanwhile.
    pub(crate) fn is_asked(&self, node: &str) -> bool {
        self.turns.get(node).is_some_and(|turn| turn.asked)
    }

    /// A scrape ended. Its node, if it still exists, is due again a pause after its last due time,
    /// or after now if that has passed. Where the pause becomes longer, the first one is the node's
    /// own part of the difference longer, so that nodes that began together are scraped apart.
    pub(crate) fn asked(&mut self, node: &str, answered: bool, now: Instant, pause: Duration) {
        let Some(turn) = self.turns.get_mut(node).filter(|turn| turn.asked) else {
            return;
        };
        self.asked[usize::from(turn.silent)] -= 1;
        let wait = pause.min(turn.pause) + part(node, pause.saturating_sub(turn.pause));
        (turn.pause, turn.last) = (pause, Some(now));
        let next = turn.due + wait;
        turn.due = if next > now { next } else { now + wait };
        turn.silent = !answered;
        turn.asked = false;
        self.waiting[usize::from(turn.silent)].insert((turn.due, node.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_secs(15);
    const PLACES: Places = Places { good: 3, silent: 1 };

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_node_is_asked_once_in_a_period() {
        let begin = Instant::now();
        let mut rota = Rota::new(PERIOD, PLACES);
        rota.set(&nodes(&["a", "b"]), begin);
        assert!(rota.wake().unwrap() < begin + PERIOD);
        let mut now = begin;
        let mut asked = Vec::new();
        while now < begin + PERIOD * 3 {
            while let Some(node) = rota.next(now) {
                asked.push(node.clone());
                rota.asked(&node, true, now, PERIOD);
            }
            now += Duration::from_millis(100);
        }
        asked.sort();
        assert_eq!(asked, ["a", "a", "a", "b", "b", "b"]);
    }

    #[test]
    fn nodes_whose_pause_becomes_longer_spread_over_it() {
        let begin = Instant::now();
        let mut rota = Rota::new(
            PERIOD,
            Places {
                good: 100,
                ..PLACES
            },
        );
        let all: BTreeSet<String> = (0..100).map(|number| format!("n{number}")).collect();
        rota.set(&all, begin);
        let (pause, mut now) = (PERIOD * 4, begin);
        let mut asked = [0; 12];
        while now < begin + PERIOD * 12 {
            while let Some(node) = rota.next(now) {
                let at = (now - begin).as_secs() / PERIOD.as_secs();
                asked[usize::try_from(at).unwrap()] += 1;
                rota.asked(&node, true, now, pause);
            }
            now += Duration::from_millis(100);
        }
        assert_eq!(asked[0], 100, "all of them in the first time");
        assert_eq!(asked[5..9].iter().sum::<u32>(), 100, "each once in a pause");
        let evenly = asked[5..9].iter().filter(|many| **many > 15).count();
        assert!(evenly >= 3, "{asked:?}");
    }

    #[test]
    fn a_node_whose_figures_are_wanted_is_asked_at_once_unless_it_was_just_asked() {
        let begin = Instant::now();
        let mut rota = Rota::new(PERIOD, PLACES);
        rota.set(&nodes(&["a"]), begin);
        let (mut now, long) = (begin + PERIOD, PERIOD * 20);
        let ask = |rota: &mut Rota, now| {
            assert_eq!(rota.next(now).as_deref(), Some("a"));
            rota.asked("a", true, now, long);
        };
        ask(&mut rota, now);
        rota.hasten("a", now, PERIOD);
        assert_eq!(rota.wake(), Some(now + PERIOD), "it was just asked");
        now += PERIOD;
        ask(&mut rota, now);
        assert!(rota.wake() > Some(now + PERIOD * 2));
        now += PERIOD * 2;
        rota.hasten("a", now, PERIOD);
        ask(&mut rota, now);
    }

    #[test]
    fn nodes_that_do_not_answer_delay_no_other() {
        let begin = Instant::now();
        let mut rota = Rota::new(PERIOD, PLACES);
        rota.set(&nodes(&["bad1", "bad2", "bad3"]), begin);
        let now = begin + PERIOD;
        for _ in 0..3 {
            let bad = rota.next(now).unwrap();
            rota.asked(&bad, false, now, PERIOD);
        }
        rota.add("good", now);
        let now = now + PERIOD;
        let first = [rota.next(now), rota.next(now)];
        assert!(first.contains(&Some("good".to_owned())), "{first:?}");
        let one_silent = first.iter().flatten().any(|node| node.starts_with("bad"));
        assert!(one_silent, "{first:?}");
        assert_eq!(rota.next(now), None, "the place of the silent is taken");
        assert_eq!(rota.wake(), None);
    }

    #[test]
    fn a_node_removed_during_a_scrape_frees_its_slot() {
        let begin = Instant::now();
        let mut rota = Rota::new(PERIOD, Places { good: 1, silent: 1 });
        rota.set(&nodes(&["a", "b"]), begin);
        let now = begin + PERIOD;
        let first = rota.next(now).unwrap();
        assert_eq!(rota.next(now), None);
        rota.remove(&first);
        assert!(!rota.is_asked(&first));
        rota.asked(&first, true, now, PERIOD);
        assert!(rota.next(now).is_some_and(|second| second != first));
    }

    proptest! {
        #[test]
        fn places_are_never_exceeded_nor_lost(steps in proptest::collection::vec((0..6_u8, 0..6_u8), 0..200)) {
            let begin = Instant::now();
            let mut now = begin;
            let mut rota = Rota::new(PERIOD, PLACES);
            let mut open: Vec<String> = Vec::new();
            for (what, which) in steps {
                let node = format!("n{which}");
                match what {
                    0 => rota.add(&node, now),
                    1 => {
                        rota.remove(&node);
                        // The result of its running scrape is dropped.
                        open.retain(|other| *other != node);
                    }
                    2 => if let Some(next) = rota.next(now) {
                        prop_assert!(!open.contains(&next), "asked twice at once");
                        open.push(next);
                    },
                    3 => if let Some(node) = open.pop() {
                        rota.asked(&node, which % 2 == 0, now, PERIOD * u32::from(which));
                    },
                    4 => rota.hasten(&node, now, PERIOD),
                    _ => now += PERIOD / 2,
                }
                prop_assert_eq!(open.len(), rota.asked.iter().sum::<usize>());
                prop_assert!(rota.asked[0] <= PLACES.good && rota.asked[1] <= PLACES.silent);
                let waiting: usize = rota.waiting.iter().map(BTreeSet::len).sum();
                prop_assert_eq!(waiting + open.len(), rota.turns.len());
            }
        }
    }
}
