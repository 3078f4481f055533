//! A capacity that users share: no user holds more than a part of it, and another part is reserved
//! for some, such as nodes.
//!
//! Unlike [`crate::Places`] this evicts nothing: a user for whom nothing is left is refused, and
//! tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The capacity: a number of requests, of connections, or of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What all users together may hold.
    pub total: usize,
    /// What one user may hold.
    pub part: usize,
    /// The part of the total that only [`Taker::kept_for`] users may hold.
    pub kept: usize,
}

/// The user that takes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taker<'a> {
    /// Its name.
    pub user: &'a str,
    /// Whether it may use the reserved part.
    pub kept_for: bool,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// The part of this held by users without a reservation.
    others: usize,
    /// Users who hold something.
    users: HashMap<String, usize>,
}

/// The capacity, and how much of it each user holds.
#[derive(Debug)]
pub struct Shares {
    room: Room,
    held: Mutex<Held>,
}

/// What one user holds; returned when this is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    user: String,
    kept_for: bool,
    count: usize,
    /// What the user may hold for this to grow.
    most: usize,
}

impl Room {
    /// A capacity of which a user may hold a quarter, and a quarter is reserved.
    pub fn of_quarters(total: usize) -> Self {
        Self {
            total,
            part: total.div_ceil(4),
            kept: total / 4,
        }
    }
}

impl Shares {
    /// A capacity of which nothing is taken.
    pub fn new(room: Room) -> Arc<Self> {
        Arc::new(Self {
            room,
            held: Mutex::default(),
        })
    }

    /// Takes an amount; `None` if the user, or all users together, would hold more than they may.
    pub fn take(self: &Arc<Self>, taker: Taker<'_>, count: usize) -> Option<Share> {
        self.take_up_to(taker, count, self.room.part)
    }

    /// The same for a user that may hold `most`, whatever others may.
    pub fn take_up_to(
        self: &Arc<Self>,
        taker: Taker<'_>,
        count: usize,
        most: usize,
    ) -> Option<Share> {
        let mut share = Share {
            shares: Arc::clone(self),
            user: taker.user.to_owned(),
            kept_for: taker.kept_for,
            count: 0,
            most,
        };
        share.grow(count).then_some(share)
    }

    /// What all users together hold.
    pub fn taken(&self) -> usize {
        self.held().all
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes an additional amount, or nothing; returns whether it was available.
    pub fn grow(&mut self, count: usize) -> bool {
        let Room { total, kept, .. } = self.shares.room;
        let mut held = self.shares.held();
        let own = held.users.get(&self.user).copied().unwrap_or_default();
        let fits = |now: usize, most: usize| now.checked_add(count).is_some_and(|sum| sum <= most);
        let open = self.kept_for || fits(held.others, total.saturating_sub(kept));
        if !(open && fits(held.all, total) && fits(own, self.most)) {
            return false;
        }
        held.all += count;
        if !self.kept_for {
            held.others += count;
        }
        if own + count > 0 {
            held.users.insert(self.user.clone(), own + count);
        }
        self.count += count;
        true
    }
}

impl Share {
    /// Takes an additional amount, whatever the user or all users hold: for what is there already
    /// and cannot be refused.
    pub fn add(&mut self, count: usize) {
        let mut held = self.shares.held();
        held.all = held.all.saturating_add(count);
        if !self.kept_for {
            held.others = held.others.saturating_add(count);
        }
        if count > 0 {
            let own = held.users.entry(self.user.clone()).or_default();
            *own = own.saturating_add(count);
        }
        self.count = self.count.saturating_add(count);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held();
        held.all -= self.count;
        if !self.kept_for {
            held.others -= self.count;
        }
        let left = held.users.get_mut(&self.user).map(|own| {
            *own -= self.count;
            *own
        });
        if left == Some(0) {
            held.users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn user(user: &str) -> Taker<'_> {
        Taker {
            user,
            kept_for: false,
        }
    }

    const fn node(user: &str) -> Taker<'_> {
        Taker {
            user,
            kept_for: true,
        }
    }

    #[test]
    fn users_hold_no_more_than_their_part_and_leave_the_reserved_part() {
        let shares = Shares::new(Room::of_quarters(8));
        let take = |taker| shares.take(taker, 1);
        let one: Vec<_> = (0..9).filter_map(|_| take(user("one"))).collect();
        assert_eq!(one.len(), 2, "a quarter");
        let others: Vec<_> = ["two", "three", "four", "five"]
            .iter()
            .flat_map(|name| [take(user(name)), take(user(name))])
            .flatten()
            .collect();
        assert_eq!(others.len(), 4, "together they leave a quarter");
        let nodes: Vec<_> = (0..9).filter_map(|_| take(node("n1"))).collect();
        assert_eq!(nodes.len(), 2);
        assert!(take(node("n2")).is_none(), "the room is full");
        drop(one);
        assert!(take(node("n2")).is_some());
        drop((others, nodes));
        assert_eq!(shares.taken(), 0);
        assert!(shares.held().users.is_empty());
    }

    #[test]
    fn what_cannot_be_refused_counts_beyond_the_bounds() {
        let shares = Shares::new(Room {
            total: 10,
            part: 5,
            kept: 2,
        });
        let mut written = shares.take(user("one"), 1).unwrap();
        written.add(20);
        assert_eq!(shares.taken(), 21);
        assert!(shares.take(user("two"), 1).is_none());
        assert!(shares.take(node("n"), 1).is_none());
        drop(written);
        assert!(shares.take(user("one"), 5).is_some());
        assert!(shares.held().users.is_empty());
    }

    #[test]
    fn nodes_use_the_shared_part_after_the_reserved_one() {
        let shares = Shares::new(Room {
            total: 8,
            part: 8,
            kept: 2,
        });
        let nodes = shares.take(node("n"), 8);
        assert!(nodes.is_some() && shares.take(user("one"), 1).is_none());
        drop(nodes);
        let one = shares.take(user("one"), 6).unwrap();
        assert!(shares.take(user("two"), 1).is_none());
        assert!(shares.take(node("n"), 2).is_some());
        drop(one);
    }

    #[test]
    fn a_user_may_have_another_part_than_others() {
        let shares = Shares::new(Room::of_quarters(8));
        let held: Vec<_> = (0..9)
            .filter_map(|_| shares.take_up_to(user("one"), 1, 5))
            .collect();
        assert_eq!(held.len(), 5);
        assert!(shares.take(user("one"), 1).is_none());
        assert!(shares.take(user("two"), 1).is_some());
    }

    #[test]
    fn small_capacities_can_be_used_up() {
        for total in [0, 1, 2, 3] {
            let shares = Shares::new(Room::of_quarters(total));
            let names: Vec<String> = (0..8).map(|name| name.to_string()).collect();
            let held: Vec<_> = names
                .iter()
                .filter_map(|name| shares.take(user(name), 1))
                .collect();
            assert_eq!(held.len(), total, "nothing is kept of so few");
        }
    }

    proptest! {
        /// No sequence of takes, growths and returns crosses a bound or loses capacity.
        #[test]
        fn no_bound_is_crossed(steps in prop::collection::vec((0..5_usize, any::<bool>(), 0..7_usize, any::<bool>()), 1..200)) {
            let room = Room { total: 20, part: 6, kept: 5 };
            let shares = Shares::new(room);
            let mut held: Vec<(String, bool, Share)> = Vec::new();
            for (name, kept_for, count, give) in steps {
                let user = format!("{name}{kept_for}");
                if give && !held.is_empty() {
                    drop(held.swap_remove(name % held.len()));
                } else if let Some((_, _, share)) = held.iter_mut().find(|(of, ..)| *of == user) {
                    share.grow(count);
                } else if let Some(share) = shares.take(Taker { user: &user, kept_for }, count) {
                    held.push((user, kept_for, share));
                }
                let sum = |of: &dyn Fn(&str, bool) -> bool| -> usize {
                    held.iter().filter(|(user, kept_for, _)| of(user, *kept_for)).map(|(_, _, share)| share.count).sum()
                };
                prop_assert_eq!(shares.taken(), sum(&|_, _| true));
                prop_assert!(shares.taken() <= room.total);
                prop_assert!(sum(&|_, kept_for| !kept_for) <= room.total - room.kept);
                for (user, ..) in &held {
                    prop_assert!(sum(&|of, _| of == user) <= room.part);
                }
            }
            held.clear();
            prop_assert_eq!(shares.taken(), 0);
            prop_assert!(shares.held().users.is_empty());
        }
    }
}
