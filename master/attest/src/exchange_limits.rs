//! The limits of an exchange: rate, evidence bodies, one at a time for a Machine and for an
//! address.

use crate::addresses::{AddressReservations, Reserved};
use crate::answer::ServiceAnswer;
use crate::body_rooms::{BodyRoom, BodyRooms};
use crate::caller::{address, renewing_peer};
use crate::limit::{CallerClass, Limiter};
use crate::locks::{MachineLock, MachineLocks};
use config_attest::verifier::RenewingPeer;
use config_protocol::Code;
use config_tpm::Digest;
use master_listener::Peer;
use std::net::IpAddr;

/// Rate limiter, slots for bodies, machine locks and address reservations.
#[derive(Debug)]
pub(crate) struct ExchangeLimits {
    limiter: Limiter,
    bodies: BodyRooms,
    locks: MachineLocks,
    addresses: AddressReservations,
}

impl ExchangeLimits {
    pub(crate) fn new() -> Self {
        Self {
            limiter: Limiter::new(),
            bodies: BodyRooms::default(),
            locks: MachineLocks::default(),
            addresses: AddressReservations::default(),
        }
    }

    /// Counts a request: of a node by its certificate, of a machine by its endorsement key if the
    /// inventory lists it, of any other caller by its network.
    ///
    /// # Errors
    /// The answer `RATE_LIMITED` ([`Code::RateLimited`]): the caller, or its network, has sent too
    /// many requests of late.
    pub(crate) fn count_request(
        &self,
        peer: &Peer,
        listed: Option<Digest>,
    ) -> Result<(), ServiceAnswer> {
        let node = renewing_peer(peer);
        if self
            .limiter
            .admit(class_of(node.as_ref(), listed), address(peer))
        {
            return Ok(());
        }
        Err(ServiceAnswer::problem(
            Code::RateLimited,
            Code::RateLimited.meaning(),
        ))
    }

    /// A slot for one evidence body; `None` if none is free now. `listed` as for
    /// [`ExchangeLimits::count_request`].
    pub(crate) fn body_room(&self, peer: &Peer, listed: Option<Digest>) -> Option<BodyRoom<'_>> {
        let node = renewing_peer(peer);
        self.bodies
            .enter(class_of(node.as_ref(), listed), address(peer))
    }

    /// Waits until no other exchange of this Machine or endorsement key is being concluded.
    pub(crate) async fn lock_machine(&self, machine: &str, ek: &str) -> MachineLock<'_> {
        self.locks.lock(machine, ek).await
    }

    /// Reserves addresses until the result is dropped; `None` where another exchange has one of
    /// them.
    pub(crate) fn reserve(&self, addresses: Vec<IpAddr>) -> Option<Reserved<'_>> {
        self.addresses.reserve(addresses)
    }
}

fn class_of(node: Option<&RenewingPeer>, listed: Option<Digest>) -> CallerClass<'_> {
    match (node, listed) {
        (Some(node), _) => CallerClass::Node(&node.machine_uid),
        (None, Some(key)) => CallerClass::Listed(key),
        (None, None) => CallerClass::Stranger,
    }
}
