//! A capacity that users share: no user holds more than a part of it, nor do all users of one host,
//! and another part is reserved for some, such as nodes.
//!
//! Unlike [`crate::SlotTable`] this evicts nothing: a user for whom nothing is left is refused, and
//! tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The capacity: a number of requests, of connections, or of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// What all users together may hold.
    pub total: usize,
    /// What one user may hold. One that the reserved part is kept for may hold an eighth of that
    /// part, so that a few of them leave it to the others.
    pub part: usize,
    /// The part of the total that only [`Taker::kept_for`] users may hold.
    pub kept: usize,
}

/// The user that takes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taker<'a> {
    /// Its name.
    pub user: &'a str,
    /// Where it asks from. All users there together hold no more than half of what is not reserved,
    /// and this one no more than three quarters of its part: a machine that is taken over has the
    /// tokens of many users, and others have those, too. Without a name nobody counts that.
    pub host: Option<&'a str>,
    /// Whether it may use the reserved part.
    pub kept_for: bool,
}

#[derive(Debug, Default)]
struct Usage {
    all: usize,
    /// The part of this held by users without a reservation.
    others: usize,
    /// Users who hold something.
    users: HashMap<String, usize>,
    /// Hosts whose users hold something, and users at hosts.
    hosts: HashMap<String, usize>,
}

/// The name of a user at a host, among those of hosts: no host's has a line break.
fn user_at(user: &str, host: &str) -> String {
    format!("{host}\n{user}")
}

/// The capacity, and how much of it each user holds.
#[derive(Debug)]
pub struct Shares {
    capacity: Capacity,
    usage: Mutex<Usage>,
}

/// What one user holds; returned when this is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    user: String,
    host: Option<String>,
    kept_for: bool,
    count: usize,
    /// What the user may hold for this to grow.
    most: usize,
}

impl Capacity {
    /// A capacity of which a user may hold a quarter, and a quarter is reserved.
    pub fn of_quarters(total: usize) -> Self {
        Self {
            total,
            part: total.div_ceil(4),
            kept: total / 4,
        }
    }

    /// What a user may hold where it is.
    pub fn part_of(&self, taker: Taker<'_>) -> usize {
        match taker.host {
            Some(_) => at_host(self.whole_part_of(taker)).min(self.of_host()),
            None => self.whole_part_of(taker),
        }
    }

    /// What a user may hold at all hosts together.
    fn whole_part_of(&self, taker: Taker<'_>) -> usize {
        if taker.kept_for && self.kept > 0 {
            self.kept.div_ceil(8)
        } else {
            self.part
        }
    }

    /// What all users of a host may hold.
    fn of_host(&self) -> usize {
        self.total.saturating_sub(self.kept).div_ceil(2)
    }
}

/// What a user may hold at one host, of its part.
fn at_host(part: usize) -> usize {
    part - part / 4
}

impl Shares {
    /// A capacity of which nothing is taken.
    pub fn new(capacity: Capacity) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            usage: Mutex::default(),
        })
    }

    /// Takes an amount; `None` if the user, or all users together, would hold more than they may.
    pub fn take(self: &Arc<Self>, taker: Taker<'_>, count: usize) -> Option<Share> {
        self.take_up_to(taker, count, self.capacity.whole_part_of(taker))
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
            host: taker.host.map(str::to_owned),
            kept_for: taker.kept_for,
            count: 0,
            most,
        };
        share.grow(count).then_some(share)
    }

    /// What all users together hold.
    pub fn taken(&self) -> usize {
        self.usage().all
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes an additional amount, or nothing; returns whether it was available.
    pub fn grow(&mut self, count: usize) -> bool {
        let Capacity { total, kept, .. } = self.shares.capacity;
        let shares = Arc::clone(&self.shares);
        let mut usage = shares.usage();
        let own = usage.users.get(&self.user).copied().unwrap_or_default();
        let fits = |now: usize, most: usize| now.checked_add(count).is_some_and(|sum| sum <= most);
        let open = self.kept_for || fits(usage.others, total.saturating_sub(kept));
        let of = |name: &str| usage.hosts.get(name).copied().unwrap_or_default();
        let host = self.host.as_ref().is_none_or(|host| {
            fits(of(host), self.shares.capacity.of_host())
                && fits(of(&user_at(&self.user, host)), at_host(self.most))
        });
        if !(open && host && fits(usage.all, total) && fits(own, self.most)) {
            return false;
        }
        self.count_in(&mut usage, count);
        true
    }

    /// Takes an additional amount, whatever the user or all users hold: for what is there already
    /// and cannot be refused.
    pub fn add(&mut self, count: usize) {
        let shares = Arc::clone(&self.shares);
        self.count_in(&mut shares.usage(), count);
    }

    fn count_in(&mut self, usage: &mut Usage, count: usize) {
        usage.all = usage.all.saturating_add(count);
        if !self.kept_for {
            usage.others = usage.others.saturating_add(count);
        }
        if count > 0 {
            let own = usage.users.entry(self.user.clone()).or_default();
            *own = own.saturating_add(count);
            if let Some(host) = &self.host {
                for name in [host.clone(), user_at(&self.user, host)] {
                    let here = usage.hosts.entry(name).or_default();
                    *here = here.saturating_add(count);
                }
            }
        }
        self.count = self.count.saturating_add(count);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut usage = self.shares.usage();
        usage.all -= self.count;
        if !self.kept_for {
            usage.others -= self.count;
        }
        give_back(&mut usage.users, &self.user, self.count);
        if let Some(host) = &self.host {
            give_back(&mut usage.hosts, host, self.count);
            give_back(&mut usage.hosts, &user_at(&self.user, host), self.count);
        }
    }
}

fn give_back(holders: &mut HashMap<String, usize>, name: &str, count: usize) {
    let left = holders.get_mut(name).map(|own| {
        *own -= count;
        *own
    });
    if left == Some(0) {
        holders.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn user(user: &str) -> Taker<'_> {
        Taker {
            user,
            host: None,
            kept_for: false,
        }
    }

    const fn node(user: &str) -> Taker<'_> {
        Taker {
            user,
            host: None,
            kept_for: true,
        }
    }

    #[test]
    fn users_hold_no_more_than_their_part_and_leave_the_reserved_part() {
        let shares = Shares::new(Capacity::of_quarters(8));
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
        assert_eq!(nodes.len(), 1, "of what is kept it leaves most to others");
        let another = take(node("n2"));
        assert!(
            another.is_some() && take(node("n3")).is_none(),
            "it is full"
        );
        drop(one);
        assert!(take(node("n3")).is_some());
        drop((others, nodes, another));
        assert_eq!(shares.taken(), 0);
        assert!(shares.usage().users.is_empty());
    }

    #[test]
    fn all_users_of_a_host_leave_half_of_what_is_not_kept() {
        let shares = Shares::new(Capacity::of_quarters(16));
        let take = |user: &'static str, host| {
            let taker = Taker {
                user,
                host,
                kept_for: false,
            };
            (0..9)
                .filter_map(|_| shares.take(taker, 1))
                .collect::<Vec<_>>()
        };
        let [one, two, three, four, more] = [
            take("one", Some("a")),
            take("two", Some("a")),
            take("three", Some("a")),
            take("four", Some("b")),
            take("one", Some("b")),
        ];
        let held = [&one, &two, &three, &four, &more];
        assert_eq!(held.map(Vec::len), [3, 3, 0, 3, 1]);
        drop(one);
        assert_eq!(take("two", Some("a")).len(), 0, "at this host");
        assert_eq!(take("two", Some("b")).len(), 1, "of its part");
        assert_eq!(take("three", Some("a")).len(), 3);
        drop((two, four, more));
        assert_eq!(take("one", None).len(), 4);
    }

    #[test]
    fn what_cannot_be_refused_counts_beyond_the_bounds() {
        let shares = Shares::new(Capacity {
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
        assert!(shares.usage().users.is_empty());
    }

    #[test]
    fn nodes_use_the_shared_part_after_the_reserved_one() {
        let shares = Shares::new(Capacity {
            total: 8,
            part: 8,
            kept: 2,
        });
        let nodes = shares.take_up_to(node("n"), 8, 8);
        assert!(nodes.is_some() && shares.take(user("one"), 1).is_none());
        drop(nodes);
        let one = shares.take(user("one"), 6).unwrap();
        assert!(shares.take(user("two"), 1).is_none());
        assert!(shares.take_up_to(node("n"), 2, 8).is_some());
        drop(one);
    }

    #[test]
    fn a_user_may_have_another_part_than_others() {
        let shares = Shares::new(Capacity::of_quarters(8));
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
            let shares = Shares::new(Capacity::of_quarters(total));
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
            let room = Capacity { total: 40, part: 6, kept: 20 };
            let shares = Shares::new(room);
            let mut held: Vec<(String, bool, Share)> = Vec::new();
            for (name, kept_for, count, give) in steps {
                let user = format!("{name}{kept_for}");
                let host = if name % 2 == 0 { "even" } else { "odd" };
                let host = Some(host).filter(|_| !kept_for);
                if give && !held.is_empty() {
                    drop(held.swap_remove(name % held.len()));
                } else if let Some((_, _, share)) = held.iter_mut().find(|(of, ..)| *of == user) {
                    share.grow(count);
                } else if let Some(share) = shares.take(Taker { user: &user, host, kept_for }, count) {
                    held.push((user, kept_for, share));
                }
                let sum = |of: &dyn Fn(&str, bool) -> bool| -> usize {
                    held.iter().filter(|(user, kept_for, _)| of(user, *kept_for)).map(|(_, _, share)| share.count).sum()
                };
                prop_assert_eq!(shares.taken(), sum(&|_, _| true));
                prop_assert!(shares.taken() <= room.total);
                prop_assert!(sum(&|_, kept_for| !kept_for) <= room.total - room.kept);
                for host in ["even", "odd"] {
                    let of = |one: &Share| one.host.as_deref() == Some(host);
                    let here = held.iter().filter(|(.., share)| of(share)).map(|(.., share)| share.count);
                    prop_assert!(here.sum::<usize>() <= 10);
                }
                for (user, ..) in held.iter().filter(|(.., share)| share.host.is_some()) {
                    prop_assert!(sum(&|of, _| of == user) <= 5);
                }
                for (user, kept_for, _) in &held {
                    let part = if *kept_for { 3 } else { room.part };
                    prop_assert!(sum(&|of, _| of == user) <= part);
                }
            }
            held.clear();
            prop_assert_eq!(shares.taken(), 0);
            prop_assert!(shares.usage().users.is_empty() && shares.usage().hosts.is_empty());
        }
    }
}
