//! Reservations of addresses while exchanges are concluded.
//!
//! An exchange checks that no other machine holds its addresses (`status.servingNames` of the
//! Machines), and records its own later. In between they are reserved, so that two exchanges cannot
//! both pass the check.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The reserved addresses: at most sixteen for each exchange that is being concluded.
#[derive(Debug, Default)]
pub(crate) struct AddressReservations {
    taken: Mutex<HashSet<IpAddr>>,
}

/// The addresses of one exchange, reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    from: &'a AddressReservations,
    addresses: Vec<IpAddr>,
}

impl AddressReservations {
    /// Reserves all of these addresses; `None`, and no reservation, where another exchange has one
    /// of them.
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
    fn an_address_is_reserved_for_one_exchange_at_a_time() {
        let all = AddressReservations::default();
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
            "a refused reservation takes and releases nothing"
        );
        drop(beside);
        assert!(all.taken.lock().unwrap().is_empty());
    }
}
