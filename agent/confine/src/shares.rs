//! A fair semaphore: limits how many times the machine does something at once, and lets no single
//! name (a namespace, say) take all turns.
//!
//! Turns are given in the order of the requests. A request whose name has its share already does
//! not block those after it. However many wait, a change wakes only those that get a turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// One turn in `PART`, and at least one, is reserved for names that have no turn.
const PART: usize = 4;

/// How many turns there are, and how many of them a name may have (pure).
#[derive(Debug, Clone, Copy)]
struct Share {
    all: usize,
    each: usize,
    /// Those that only a name without a turn may take.
    kept: usize,
}

impl Share {
    fn new(all: usize, each: usize) -> Self {
        let (all, each, kept) = (all.max(1), each.max(1), 0);
        Self { all, each, kept }
    }

    /// Reserves turns, unless there is only one.
    fn with_reserve(self) -> Self {
        let kept = (self.all / PART).max(1).min(self.all - 1);
        Self { kept, ..self }
    }

    /// The turns at one place: `most`, or fewer, so that at least one unreserved turn is left for
    /// other places. A name whose turns at a place never end may then still have one elsewhere.
    fn of_a_place(self, most: usize) -> Self {
        let all = self.all.saturating_sub(self.kept + 1);
        let all = all.clamp(1, most.max(1));
        Self::new(all, all).with_reserve()
    }

    /// Whether a name that has `own` of the `taken` turns may have another.
    fn allows(self, taken: usize, own: usize) -> bool {
        let kept = if own == 0 { 0 } else { self.kept };
        own < self.each && taken + kept < self.all
    }
}

/// Turns, and how many of them one name may have at the same time.
#[derive(Debug)]
pub struct NamedTurns(Arc<Table>);

#[derive(Debug)]
struct Table {
    share: Share,
    /// The share of each place.
    at_a_place: Option<Share>,
    queue: Mutex<Queue>,
}

/// Requests by their number, which is their order. None of those that wait could get a turn now.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: BTreeMap<u64, (Asked, oneshot::Sender<()>)>,
    running: BTreeMap<u64, Asked>,
}

/// The name and the place of a request.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    name: String,
    place: String,
}

/// A turn, or a place in the queue for one, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Table>,
    number: u64,
}

impl NamedTurns {
    /// `all` turns, of which each name may have `each`; at least one of both.
    pub fn new(all: usize, each: usize) -> Self {
        Self::of(Share::new(all, each), None)
    }

    /// The same; the last quarter of the turns, at least one, is only for names that have none.
    pub fn with_reserve(all: usize, each: usize) -> Self {
        Self::of(Share::new(all, each).with_reserve(), None)
    }

    /// `all` turns at places. Each place has `of_a_place` of them, or fewer if these would be
    /// nearly all. Of all turns, and of those of each place, the last quarter, at least one, is
    /// only for names that have none of them.
    pub fn with_places(all: usize, of_a_place: usize) -> Self {
        let share = Share::new(all, all).with_reserve();
        Self::of(share, Some(share.of_a_place(of_a_place)))
    }

    /// `all` turns at places that each belong to one name and have `of_a_place` turns. Of all
    /// turns, the last quarter, at least one, is only for names that have none.
    pub fn with_own_places(all: usize, of_a_place: usize) -> Self {
        let share = Share::new(all, all).with_reserve();
        Self::of(share, Some(Share::new(of_a_place, of_a_place)))
    }

    fn of(share: Share, at_a_place: Option<Share>) -> Self {
        let queue = Mutex::default();
        Self(Arc::new(Table {
            share,
            at_a_place,
            queue,
        }))
    }

    /// Waits for one of the name's turns.
    ///
    /// Cancel-safe: a dropped future takes no turn.
    pub async fn turn(&self, name: &str) -> Turn {
        self.turn_at(name, "").await
    }

    /// Waits for one of the name's turns at a place.
    ///
    /// Cancel-safe: a dropped future takes no turn.
    pub async fn turn_at(&self, name: &str, place: &str) -> Turn {
        let (name, place) = (name.to_owned(), place.to_owned());
        let (turn, called) = self.ask(Asked { name, place });
        if let Some(called) = called {
            // The sender is dropped only together with this turn, so a message always comes.
            called.await.ok();
        }
        turn
    }

    fn ask(&self, asked: Asked) -> (Turn, Option<oneshot::Receiver<()>>) {
        let mut queue = self.0.lock();
        let number = queue.next;
        queue.next += 1;
        let turns = self.0.clone();
        let turn = Turn { turns, number };
        let running: Vec<_> = queue.running.values().collect();
        if self.0.refusal(&running, &asked).is_none() {
            queue.running.insert(number, asked);
            return (turn, None);
        }
        let (call, called) = oneshot::channel();
        queue.waiting.insert(number, (asked, call));
        (turn, Some(called))
    }

    /// How many turns are free.
    pub fn free(&self) -> usize {
        self.0.share.all - self.0.lock().running.len()
    }
}

/// Why a request gets no turn: what has none left for it.
enum Refusal {
    /// All turns together.
    All,
    /// Those of the place.
    Place,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self, running: &[&Asked], asked: &Asked) -> Option<Refusal> {
        let is_own = |one: &&&Asked| one.name == asked.name;
        let own = running.iter().filter(is_own).count();
        if !self.share.allows(running.len(), own) {
            return Some(Refusal::All);
        }
        let there = running.iter().filter(|one| one.place == asked.place);
        let own = there.clone().filter(is_own).count();
        let refuses = |share: &Share| !share.allows(there.count(), own);
        self.at_a_place.filter(refuses).map(|_share| Refusal::Place)
    }

    /// Gives turns to waiting requests that may have one now. Checks each at most once: a turn that
    /// is given leaves less for the others, so a refused request stays refused, and with it all
    /// requests for the same.
    fn call(&self, queue: &mut Queue) {
        let mut running: Vec<_> = queue.running.values().collect();
        let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
        let mut called = Vec::new();
        for (number, (asked, _)) in &queue.waiting {
            if running.len() >= self.share.all {
                break;
            }
            if names.contains(&asked.name) || places.contains(asked) {
                continue;
            }
            match self.refusal(&running, asked) {
                Some(Refusal::All) => {
                    names.insert(&asked.name);
                }
                Some(Refusal::Place) => {
                    places.insert(asked);
                }
                None => {
                    running.push(asked);
                    called.push(*number);
                }
            }
        }
        for number in called {
            if let Some((asked, call)) = queue.waiting.remove(&number) {
                queue.running.insert(number, asked);
                // A request that no longer waits gives the turn back.
                call.send(()).ok();
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        queue.waiting.remove(&self.number);
        if queue.running.remove(&self.number).is_some() {
            self.turns.call(&mut queue);
        }
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
