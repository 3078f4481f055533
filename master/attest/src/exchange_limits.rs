//! The limits that an exchange passes: rate, room for bodies, one at a time for a Machine and for an address.

use crate::addresses::{AddressReservations, Reserved};
use crate::answer::Answer;
use crate::caller::{address, renewing_peer};
use crate::limit::{CallerClass, Limiter};
use crate::locks::{MachineLock, MachineLocks};
use config_protocol::Code;
use config_tpm::Digest;
use master_listener::Peer;
use std::net::IpAddr;
use tokio::sync::SemaphorePermit;

/// Rate limiter, machine locks and address reservations.
#[derive(Debug)]
pub(crate) struct ExchangeLimits {
    limiter: Limiter,
    locks: MachineLocks,
    addresses: AddressReservations,
}

impl ExchangeLimits {
    pub(crate) fn new() -> Self {
        Self {
            limiter: Limiter::new(),
            locks: MachineLocks::default(),
            addresses: AddressReservations::default(),
        }
    }

    /// Counts a request: of a node by its certificate, of a machine by its endorsement key if the inventory lists it, of any other
    /// caller by its network.
    ///
    /// # Errors
    /// The answer `RATE_LIMITED`.
    pub(crate) fn count_request(&self, peer: &Peer, listed: Option<Digest>) -> Result<(), Answer> {
        let node = renewing_peer(peer);
        let caller = match (&node, listed) {
            (Some(node), _) => CallerClass::Node(&node.machine_uid),
            (None, Some(key)) => CallerClass::Listed(key),
            (None, None) => CallerClass::Stranger,
        };
        if self.limiter.admit(caller, address(peer)) {
            return Ok(());
        }
        Err(Answer::problem(
            Code::RateLimited,
            Code::RateLimited.meaning(),
        ))
    }

    /// Room to read one evidence body; `None` where there is no room now. `known`: of a node or of an endorsement key of the
    /// inventory.
    pub(crate) fn body_room(&self, known: bool) -> Option<SemaphorePermit<'_>> {
        self.limiter.body(known)
    }

    /// Waits until no other exchange of this Machine or endorsement key is being concluded.
    pub(crate) async fn lock_machine(&self, machine: &str, ek: &str) -> MachineLock<'_> {
        self.locks.lock(machine, ek).await
    }

    /// Reserves addresses until the result is dropped; `None` where another exchange has one of them.
    pub(crate) fn reserve(&self, addresses: Vec<IpAddr>) -> Option<Reserved<'_>> {
        self.addresses.reserve(addresses)
    }
}
