//! When each node is scraped: chooses the next one (pure).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

/// How many nodes are scraped at once, and how many that did not answer the last time. These have
/// separate slots, because each may hold its slot until its time is up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScrapeSlots {
    pub(crate) good: usize,
    pub(crate) silent: usize,
}

/// When a node is due, and how its last scrape ended.
#[derive(Debug, Clone, Copy)]
struct ScheduledNode {
    due: Instant,
    /// The pause before that.
    pause: Duration,
    /// When it was scraped last.
    last: Option<Instant>,
    silent: bool,
    scraping: bool,
}

/// A node's own part of a time, so that not all are scraped at once.
fn part(node: &str, of: Duration) -> Duration {
    let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(node);
    of * u32::try_from(hash % 1024).unwrap_or_default() / 1024
}

/// The nodes, and when each is due.
#[derive(Debug)]
pub(crate) struct ScrapeSchedule {
    first: Duration,
    slots: ScrapeSlots,
    nodes: HashMap<String, ScheduledNode>,
    /// Nodes that wait: those that answered the last time, and those that did not.
    waiting: [BTreeSet<(Instant, String)>; 2],
    scraping: [usize; 2],
}

impl ScrapeSchedule {
    /// New nodes are scraped within `first`.
    pub(crate) fn new(first: Duration, slots: ScrapeSlots) -> Self {
        Self {
            first,
            slots,
            nodes: HashMap::new(),
            waiting: Default::default(),
            scraping: [0; 2],
        }
    }

    /// Adds a node, if it is new.
    pub(crate) fn add(&mut self, node: &str, now: Instant) {
        if self.nodes.contains_key(node) {
            return;
        }
        let due = now + part(node, self.first);
        let entry = ScheduledNode {
            due,
            pause: self.first,
            last: None,
            silent: false,
            scraping: false,
        };
        self.nodes.insert(node.to_owned(), entry);
        self.waiting[0].insert((due, node.to_owned()));
    }

    /// A node that is gone.
    pub(crate) fn remove(&mut self, node: &str) {
        let Some(entry) = self.nodes.remove(node) else {
            return;
        };
        let pool = usize::from(entry.silent);
        if entry.scraping {
            self.scraping[pool] -= 1;
        } else {
            self.waiting[pool].remove(&(entry.due, node.to_owned()));
        }
    }

    /// Only these nodes are there.
    pub(crate) fn set(&mut self, nodes: &BTreeSet<String>, now: Instant) {
        let gone: Vec<String> = self
            .nodes
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
        self.nodes.len()
    }

    fn room(&self, pool: usize) -> bool {
        self.scraping[pool] < [self.slots.good, self.slots.silent][pool]
    }

    /// A node that is due, if there is a slot for it; it is being scraped from then on.
    pub(crate) fn next(&mut self, now: Instant) -> Option<String> {
        for pool in [0, 1] {
            let first = self.waiting[pool].first();
            if !self.room(pool) || first.is_none_or(|(due, _)| *due > now) {
                continue;
            }
            let (_, node) = self.waiting[pool].pop_first()?;
            if let Some(entry) = self.nodes.get_mut(&node) {
                entry.scraping = true;
                self.scraping[pool] += 1;
                return Some(node);
            }
        }
        None
    }

    /// When a node will be due for which there is a slot.
    pub(crate) fn wake(&self) -> Option<Instant> {
        let pools = [0, 1].into_iter().filter(|pool| self.room(*pool));
        let first = |pool: usize| self.waiting[pool].first().map(|(due, _)| *due);
        pools.filter_map(first).min()
    }

    /// A node that waits is due a pause after it was scraped last, if that is sooner.
    pub(crate) fn scrape_sooner(&mut self, node: &str, now: Instant, pause: Duration) {
        let Some(entry) = self.nodes.get_mut(node).filter(|entry| !entry.scraping) else {
            return;
        };
        let due = entry.last.map_or(now, |last| now.max(last + pause));
        if due < entry.due {
            let waiting = &mut self.waiting[usize::from(entry.silent)];
            waiting.remove(&(entry.due, node.to_owned()));
            waiting.insert((due, node.to_owned()));
            (entry.due, entry.pause) = (due, pause);
        }
    }

    /// Whether a node is being scraped; false where it went meanwhile.
    pub(crate) fn is_being_scraped(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|entry| entry.scraping)
    }

    /// A scrape ended. Its node, if it still exists, is due again a pause after its last due time,
    /// or after now if that has passed. Where the pause becomes longer, the first one is the node's
    /// own part of the difference longer, so that nodes that began together are scraped apart.
    pub(crate) fn finish(&mut self, node: &str, answered: bool, now: Instant, pause: Duration) {
        let Some(entry) = self.nodes.get_mut(node).filter(|entry| entry.scraping) else {
            return;
        };
        self.scraping[usize::from(entry.silent)] -= 1;
        let wait = pause.min(entry.pause) + part(node, pause.saturating_sub(entry.pause));
        (entry.pause, entry.last) = (pause, Some(now));
        let next = entry.due + wait;
        entry.due = if next > now { next } else { now + wait };
        entry.silent = !answered;
        entry.scraping = false;
        self.waiting[usize::from(entry.silent)].insert((entry.due, node.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_secs(15);
    const SLOTS: ScrapeSlots = ScrapeSlots { good: 3, silent: 1 };

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_node_is_asked_once_in_a_period() {
        let begin = Instant::now();
        let mut schedule = ScrapeSchedule::new(PERIOD, SLOTS);
        schedule.set(&nodes(&["a", "b"]), begin);
        assert!(schedule.wake().unwrap() < begin + PERIOD);
        let mut now = begin;
        let mut scraped = Vec::new();
        while now < begin + PERIOD * 3 {
            while let Some(node) = schedule.next(now) {
                scraped.push(node.clone());
                schedule.finish(&node, true, now, PERIOD);
            }
            now += Duration::from_millis(100);
        }
        scraped.sort();
        assert_eq!(scraped, ["a", "a", "a", "b", "b", "b"]);
    }

    #[test]
    fn nodes_whose_pause_becomes_longer_spread_over_it() {
        let begin = Instant::now();
        let mut schedule = ScrapeSchedule::new(PERIOD, ScrapeSlots { good: 100, ..SLOTS });
        let all: BTreeSet<String> = (0..100).map(|number| format!("n{number}")).collect();
        schedule.set(&all, begin);
        let (pause, mut now) = (PERIOD * 4, begin);
        let mut scraped = [0; 12];
        while now < begin + PERIOD * 12 {
            while let Some(node) = schedule.next(now) {
                let at = (now - begin).as_secs() / PERIOD.as_secs();
                scraped[usize::try_from(at).unwrap()] += 1;
                schedule.finish(&node, true, now, pause);
            }
            now += Duration::from_millis(100);
        }
        assert_eq!(scraped[0], 100, "all of them in the first time");
        assert_eq!(
            scraped[5..9].iter().sum::<u32>(),
            100,
            "each once in a pause"
        );
        let evenly = scraped[5..9].iter().filter(|many| **many > 15).count();
        assert!(evenly >= 3, "{scraped:?}");
    }

    #[test]
    fn a_node_whose_figures_are_wanted_is_asked_at_once_unless_it_was_just_asked() {
        let begin = Instant::now();
        let mut schedule = ScrapeSchedule::new(PERIOD, SLOTS);
        schedule.set(&nodes(&["a"]), begin);
        let (mut now, long) = (begin + PERIOD, PERIOD * 20);
        let ask = |schedule: &mut ScrapeSchedule, now| {
            assert_eq!(schedule.next(now).as_deref(), Some("a"));
            schedule.finish("a", true, now, long);
        };
        ask(&mut schedule, now);
        schedule.scrape_sooner("a", now, PERIOD);
        assert_eq!(schedule.wake(), Some(now + PERIOD), "it was just scraped");
        now += PERIOD;
        ask(&mut schedule, now);
        assert!(schedule.wake() > Some(now + PERIOD * 2));
        now += PERIOD * 2;
        schedule.scrape_sooner("a", now, PERIOD);
        ask(&mut schedule, now);
    }

    #[test]
    fn nodes_that_do_not_answer_delay_no_other() {
        let begin = Instant::now();
        let mut schedule = ScrapeSchedule::new(PERIOD, SLOTS);
        schedule.set(&nodes(&["bad1", "bad2", "bad3"]), begin);
        let now = begin + PERIOD;
        for _ in 0..3 {
            let bad = schedule.next(now).unwrap();
            schedule.finish(&bad, false, now, PERIOD);
        }
        schedule.add("good", now);
        let now = now + PERIOD;
        let first = [schedule.next(now), schedule.next(now)];
        assert!(first.contains(&Some("good".to_owned())), "{first:?}");
        let one_silent = first.iter().flatten().any(|node| node.starts_with("bad"));
        assert!(one_silent, "{first:?}");
        assert_eq!(schedule.next(now), None, "the place of the silent is taken");
        assert_eq!(schedule.wake(), None);
    }

    #[test]
    fn a_node_removed_during_a_scrape_frees_its_slot() {
        let begin = Instant::now();
        let mut schedule = ScrapeSchedule::new(PERIOD, ScrapeSlots { good: 1, silent: 1 });
        schedule.set(&nodes(&["a", "b"]), begin);
        let now = begin + PERIOD;
        let first = schedule.next(now).unwrap();
        assert_eq!(schedule.next(now), None);
        schedule.remove(&first);
        assert!(!schedule.is_being_scraped(&first));
        schedule.finish(&first, true, now, PERIOD);
        assert!(schedule.next(now).is_some_and(|second| second != first));
    }

    proptest! {
        #[test]
        fn places_are_never_exceeded_nor_lost(steps in proptest::collection::vec((0..6_u8, 0..6_u8), 0..200)) {
            let begin = Instant::now();
            let mut now = begin;
            let mut schedule = ScrapeSchedule::new(PERIOD, SLOTS);
            let mut open: Vec<String> = Vec::new();
            for (what, which) in steps {
                let node = format!("n{which}");
                match what {
                    0 => schedule.add(&node, now),
                    1 => {
                        schedule.remove(&node);
                        // The result of its running scrape is dropped.
                        open.retain(|other| *other != node);
                    }
                    2 => if let Some(next) = schedule.next(now) {
                        prop_assert!(!open.contains(&next), "scraping twice at once");
                        open.push(next);
                    },
                    3 => if let Some(node) = open.pop() {
                        schedule.finish(&node, which % 2 == 0, now, PERIOD * u32::from(which));
                    },
                    4 => schedule.scrape_sooner(&node, now, PERIOD),
                    _ => now += PERIOD / 2,
                }
                prop_assert_eq!(open.len(), schedule.scraping.iter().sum::<usize>());
                prop_assert!(schedule.scraping[0] <= SLOTS.good && schedule.scraping[1] <= SLOTS.silent);
                let waiting: usize = schedule.waiting.iter().map(BTreeSet::len).sum();
                prop_assert_eq!(waiting + open.len(), schedule.nodes.len());
            }
        }
    }
}
