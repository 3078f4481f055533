//! How clients share the questions and connections that are served at once (pure).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// One slot in `PART` is reserved for clients that hold none. Of the free slots beyond these, a
/// client may hold at most one in `PART`.
const PART: usize = 4;

/// The slots for questions and connections. One client that takes all it can leaves most slots
/// free, and many such clients leave one for each other client.
#[derive(Debug)]
pub(super) struct Shares {
    whole: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// A client's slot, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    shares: Arc<Shares>,
    client: IpAddr,
}

impl Shares {
    pub(super) fn new(whole: usize) -> Arc<Self> {
        Arc::new(Self {
            whole,
            taken: Mutex::default(),
        })
    }

    /// A slot for this client; `None` if it has its share, or if all slots are taken.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Slot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.of.get(&client).copied().unwrap_or_default();
        let free = self.whole.saturating_sub(taken.all);
        // The share shrinks as slots fill up, so that it never reaches the reserve.
        let more = free.saturating_sub(self.whole / PART) / PART;
        if free == 0 || (own > 0 && own >= more) {
            return None;
        }
        taken.all += 1;
        taken.of.insert(client, own + 1);
        let shares = Arc::clone(self);
        Some(Slot { shares, client })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let taken = self.shares.taken.lock();
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        let left = taken.of.get(&self.client).map(|own| own.saturating_sub(1));
        match left {
            Some(left) if left > 0 => drop(taken.of.insert(self.client, left)),
            Some(_) | None => drop(taken.of.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 1, 0, number).into()
    }

    #[test]
    fn clients_that_take_all_they_can_leave_a_place_for_each_other_one() {
        let shares = Shares::new(1024);
        let mut held = Vec::new();
        for greedy in 0..110 {
            while let Some(place) = shares.enter(client(greedy)) {
                held.push(place);
            }
        }
        assert!(held.len() > 768, "most are in use: {}", held.len());
        for other in 110..250 {
            held.push(shares.enter(client(other)).expect("one is left"));
        }
    }

    proptest! {
        #[test]
        fn places_are_counted_and_come_back(steps in proptest::collection::vec((0_u8..4, any::<bool>()), 0..200)) {
            let shares = Shares::new(40);
            let mut held: Vec<(u8, Slot)> = Vec::new();
            for (number, enters) in steps {
                if enters {
                    let own = held.iter().filter(|(of, _)| *of == number).count();
                    let place = shares.enter(client(number));
                    let free = 40 - held.len();
                    let more = own < free.saturating_sub(10) / PART;
                    prop_assert_eq!(place.is_some(), free > 0 && (own == 0 || more));
                    held.extend(place.map(|place| (number, place)));
                } else if let Some(at) = held.iter().position(|(of, _)| *of == number) {
                    drop(held.swap_remove(at));
                }
            }
            held.clear();
            let taken = shares.taken.lock().unwrap();
            prop_assert_eq!((taken.all, taken.of.len()), (0, 0));
        }
    }
}
