//! How many connections without a client certificate one network holds: a single host must not take all the room there is
//! from those that are known.

use crate::peer::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of strangers, by where they come from.
#[derive(Debug)]
pub(crate) struct Strangers {
    most: usize,
    from: Mutex<HashMap<IpAddr, usize>>,
}

/// The place of one stranger's connection; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    strangers: Arc<Strangers>,
    network: IpAddr,
}

impl Strangers {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, from: Mutex::default() })
    }

    /// A place for one more connection from an address; none where its network has all that it may have.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let network = network(address);
        let mut from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let held = from.entry(network).or_default();
        if *held >= self.most {
            return None;
        }
        *held += 1;
        Some(Place { strangers: Arc::clone(self), network })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut from = self.strangers.from.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = from.get_mut(&self.network) {
            *held -= 1;
            if *held == 0 {
                from.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_holds_so_many_and_gives_them_back() {
        let strangers = Strangers::new(2);
        let at = |text: &str| strangers.admit(text.parse().unwrap());
        let held = [at("192.0.2.1"), at("::ffff:192.0.2.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(at("192.0.2.1").is_none());
        let others = [at("192.0.2.2"), at("2001:db8::1"), at("2001:db8::2")];
        assert!(others.iter().all(Option::is_some));
        assert!(at("2001:db8::3").is_none());
        drop(held);
        assert!(at("192.0.2.1").is_some());
        drop(others);
        assert_eq!(strangers.from.lock().unwrap().len(), 0);
    }
}
