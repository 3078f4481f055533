//! Addresses that are being given out: from the look at who holds them to the record of who got them, they are one machine's.
//!
//! Who holds what is in the Machines (`status.servingNames`); this only keeps two exchanges from looking at once.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Addresses that exchanges claim which are not recorded yet. At most a few for each exchange that is being concluded.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    taken: Mutex<HashSet<IpAddr>>,
}

/// Addresses that are one exchange's until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    from: &'a Addresses,
    addresses: Vec<IpAddr>,
}

impl Addresses {
    /// Takes all of these addresses, or none where another exchange has one of them.
    pub(crate) fn reserve(&self, mut addresses: Vec<IpAddr>) -> Option<Reserved<'_>> {
        addresses.sort_unstable();
        addresses.dedup();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.iter().any(|address| taken.contains(address)) {
            return None;
        }
        taken.extend(&addresses);
        Some(Reserved {
            from: self,
            addresses,
        })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut taken = self
            .from
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for address in &self.addresses {
            taken.remove(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_exchanges_until_it_is_over() {
        let all = Addresses::default();
        let of = |last: &[u8]| {
            last.iter()
                .map(|last| IpAddr::from([10, 0, 0, *last]))
                .collect::<Vec<_>>()
        };
        let first = all.reserve(of(&[1, 2, 2])).unwrap();
        assert!(all.reserve(of(&[3, 2])).is_none());
        let beside = all.reserve(of(&[3])).unwrap();
        drop(first);
        assert!(all.reserve(of(&[1, 2])).is_some());
        assert!(
            all.reserve(of(&[3])).is_none(),
            "what was refused took nothing, and gave nothing back"
        );
        drop(beside);
        assert!(all.taken.lock().unwrap().is_empty());
    }
}
