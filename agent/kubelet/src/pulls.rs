//! Turns to pull images, of which neither one registry nor the pods of one namespace have all.
//!
//! A registry may send as slowly as it likes, and one host has as many names as its owner wants.
//! So a registry has a part of the turns, and of all turns and of each registry's the last ones go
//! only to namespaces that have none of them ([`Places`]).

use agent_runtime::PULLS_OF_A_REGISTRY;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One place in `PART`, and one at least, is kept for namespaces that have none.
const PART: usize = 4;

/// Places at something that namespaces share (pure).
#[derive(Debug, Clone, Copy)]
struct Places {
    most: usize,
}

impl Places {
    /// Those that only a namespace without a place may take; none where there is one place.
    fn kept(self) -> usize {
        (self.most / PART).max(1).min(self.most.saturating_sub(1))
    }

    /// Whether a namespace that has `own` of the `taken` places may take another.
    fn allow(self, taken: usize, own: usize) -> bool {
        let kept = if own == 0 { 0 } else { self.kept() };
        taken + kept < self.most
    }

    /// The places at one registry: these leave one that is not kept, so that a namespace whose
    /// pulls from it hang may pull from another. No registry has more than the engine pulls from
    /// it: what waits there would hold turns meanwhile.
    fn of_a_registry(self) -> Self {
        let most = self.most.saturating_sub(self.kept() + 1);
        Self {
            most: most.clamp(1, PULLS_OF_A_REGISTRY),
        }
    }
}

/// Whose pull it is, and where from.
#[derive(Debug)]
struct Pull {
    namespace: String,
    registry: String,
}

/// The node's turns to pull images. Who waits gets one in the order of asking; who may not have
/// one yet holds up nobody behind.
#[derive(Debug)]
pub(crate) struct Pulls {
    turns: Places,
    queue: Mutex<Queue>,
    changed: Notify,
}

/// Pulls by the number of their asking. At most one of each container of the node waits.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: BTreeMap<u64, Pull>,
    running: BTreeMap<u64, Pull>,
}

/// A turn, or a place among those who wait for one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pulls: &'a Pulls,
    number: u64,
}

impl Pulls {
    /// As many turns, and one at least.
    pub(crate) fn new(turns: usize) -> Self {
        Self {
            turns: Places { most: turns.max(1) },
            queue: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits for a turn of a pod of this namespace at this registry.
    ///
    /// Cancel-safe: who doesn't wait any more has no turn.
    pub(crate) async fn turn(&self, namespace: &str, registry: &str) -> Turn<'_> {
        let turn = self.ask(Pull {
            namespace: namespace.to_owned(),
            registry: registry.to_owned(),
        });
        loop {
            // Made before the look, so that no change is missed.
            let changed = self.changed.notified();
            if self.begin(turn.number) {
                return turn;
            }
            changed.await;
        }
    }

    fn ask(&self, pull: Pull) -> Turn<'_> {
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;
        queue.waiting.insert(number, pull);
        Turn {
            pulls: self,
            number,
        }
    }

    /// Whether this pull runs from now on: it is the first of those that may.
    fn begin(&self, number: u64) -> bool {
        let mut queue = self.lock();
        let mut may = queue.waiting.iter();
        let first = may.find(|(_, pull)| queue.allows(self.turns, pull));
        if first.is_none_or(|(first, _)| *first != number) {
            return false;
        }
        let pull = queue.waiting.remove(&number);
        queue.running.extend(pull.map(|pull| (number, pull)));
        drop(queue);
        // Another one may be the first now.
        self.changed.notify_waiters();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many turns nobody has.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.turns.most - self.lock().running.len()
    }
}

impl Queue {
    fn allows(&self, turns: Places, pull: &Pull) -> bool {
        let running = || self.running.values();
        let at = || running().filter(|one| one.registry == pull.registry);
        let is_own = |one: &&Pull| one.namespace == pull.namespace;
        turns.allow(self.running.len(), running().filter(is_own).count())
            && turns
                .of_a_registry()
                .allow(at().count(), at().filter(is_own).count())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.pulls.lock();
        queue.waiting.remove(&self.number);
        queue.running.remove(&self.number);
        drop(queue);
        self.pulls.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    type Waiting<'a> = Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>;

    fn now<'a>(wait: Pin<&mut (impl Future<Output = Turn<'a>> + ?Sized)>) -> Option<Turn<'a>> {
        match wait.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// As many turns as a namespace gets, from registries with as many names as it likes.
    fn all_of<'a>(pulls: &'a Pulls, namespace: &str) -> Vec<Turn<'a>> {
        let names = (0..100).map(|number| format!("r{}.{namespace}.example", number / 2));
        let turns = names.map(|registry| now(pin!(pulls.turn(namespace, &registry))));
        turns.flatten().collect()
    }

    #[test]
    fn a_namespace_with_many_registries_leaves_turns_to_the_pods_of_others() {
        for (turns, most) in [(1, 1), (2, 1), (3, 2), (5, 4), (8, 6), (100, 75)] {
            let pulls = Pulls::new(turns);
            let mut held = all_of(&pulls, "hostile");
            assert_eq!(held.len(), most, "of {turns}");
            for number in most..turns {
                let (other, registry) = (format!("other{number}"), format!("{number}.example"));
                let turn = now(pin!(pulls.turn(&other, &registry)));
                held.push(turn.expect("one is left for each"));
            }
        }
    }

    #[test]
    fn many_namespaces_share_what_is_kept() {
        let pulls = Pulls::new(8);
        let [first, second] = ["a", "b"].map(|name| all_of(&pulls, name));
        assert_eq!((first.len(), second.len()), (6, 1));
        assert!(now(pin!(pulls.turn("c", "quick.example"))).is_some());
    }

    #[test]
    fn a_registry_leaves_turns_to_others_and_one_of_its_own_to_other_namespaces() {
        let pulls = Pulls::new(5);
        let pull = |namespace: &str, registry: &str| now(pin!(pulls.turn(namespace, registry)));
        let own: Vec<_> = (0..5).filter_map(|_| pull("a", "slow.example")).collect();
        assert_eq!(own.len(), 2);
        let other = pull("b", "slow.example");
        assert!(other.is_some());
        assert!(pull("c", "slow.example").is_none(), "it has its part");
        for namespace in ["a", "b", "c"] {
            assert!(pull(namespace, "quick.example").is_some(), "{namespace}");
        }
    }

    #[test]
    fn who_may_have_no_turn_holds_up_nobody_and_those_who_may_go_in_their_order() {
        let pulls = Pulls::new(5);
        let mut held = all_of(&pulls, "a");
        let registries = ["x.example", "y.example"];
        let [mut own, mut later] = registries.map(|at| Box::pin(pulls.turn("a", at)));
        assert!(now(own.as_mut()).is_none() && now(later.as_mut()).is_none());
        let other = now(pin!(pulls.turn("b", "x.example")));
        assert!(other.is_some(), "it is not behind them");
        drop((held.pop(), held.pop()));
        assert_eq!(pulls.free(), 2);
        assert!(now(later.as_mut()).is_none(), "the first one goes first");
        let own = now(own.as_mut());
        assert!(own.is_some() && now(later.as_mut()).is_none());
        drop((own, other));
        assert!(now(later.as_mut()).is_some());
    }

    proptest! {
        #[test]
        fn no_turn_is_lost_or_given_twice(
            turns in 1_usize..12,
            steps in proptest::collection::vec((0_u8..4, 0_u8..3, 0_u8..3), 0..120),
        ) {
            let pulls = Pulls::new(turns);
            let mut held: Vec<(u8, Turn<'_>)> = Vec::new();
            let mut waiting: Vec<(u8, Waiting<'_>)> = Vec::new();
            for (namespace, registry, step) in steps {
                match step {
                    0 if !held.is_empty() => drop(held.remove(0)),
                    1 if !waiting.is_empty() => drop(waiting.remove(0)),
                    _ => {
                        let pulls = &pulls;
                        waiting.push((namespace, Box::pin(async move {
                            pulls.turn(&namespace.to_string(), &registry.to_string()).await
                        })));
                    }
                }
                // Until nothing changes any more: each start may let another one start.
                loop {
                    let before = held.len();
                    waiting.retain_mut(|(namespace, wait)| {
                        let turn = now(wait.as_mut());
                        let waits = turn.is_none();
                        held.extend(turn.map(|turn| (*namespace, turn)));
                        waits
                    });
                    if held.len() == before {
                        break;
                    }
                }
                prop_assert!(held.len() <= turns);
                let own = |of: u8| held.iter().filter(|(namespace, _)| *namespace == of).count();
                for namespace in 0..4 {
                    prop_assert!(turns == 1 || own(namespace) < turns);
                }
                let queue = pulls.lock();
                prop_assert_eq!((queue.running.len(), queue.waiting.len()), (held.len(), waiting.len()));
                prop_assert!(!queue.waiting.values().any(|pull| queue.allows(pulls.turns, pull)));
            }
            drop((held, waiting));
            let queue = pulls.lock();
            prop_assert!(queue.running.is_empty() && queue.waiting.is_empty());
        }
    }
}
