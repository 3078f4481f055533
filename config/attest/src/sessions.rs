//! Half-open exchanges: bounded in all and for each endorsement key; a new one never evicts an old one; each is answered once.
//!
//! Joins and renewals are counted apart. Whoever knows a machine's EK, which is no secret, can open joins in its name up to
//! the bound; a node that comes with its certificate renews beside that, and a machine joins beside it from another network.
//! What ended is remembered only while there is room: it never keeps a new exchange out.
//!
//! Time is the caller's, in seconds of a clock that never goes back.

use crate::code::Code;
use crate::digest::Digest;
use crate::question::Purpose;
use crate::tpm::Entropy;
use crate::verdict::Refusal;
use crate::verifier::Pending;
use crate::wire::{SESSION_SECONDS, SessionId};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// How long the end of a session is remembered, so that a late or second answer is named for what it is, in seconds.
const REMEMBER_SECONDS: u64 = 2 * SESSION_SECONDS;
/// Networks from which joins of one endorsement key may be open at once.
const NETWORKS: usize = 16;

/// Bounds of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open joins in all, and as many renewals.
    pub total: usize,
    /// Open joins for each endorsement key from one network, and as many renewals. From all networks together it may have
    /// sixteen times as many.
    pub per_ek: usize,
}

impl Default for Limits {
    /// A session holds about 4 KiB, so 4096 are 16 MiB; a node needs one at a time, and a few after lost connections.
    fn default() -> Self {
        Self { total: 4096, per_ek: 4 }
    }
}

/// A caller that was admitted and is to be given a challenge.
pub trait Opening {
    /// What the session holds.
    type Pending: HalfOpen;
    /// What the caller gets.
    type Challenge;

    /// What the exchange is for.
    fn purpose(&self) -> Purpose;

    /// Whose share of the table it takes: the endorsement key or, of a machine without a TPM, its node key.
    fn party(&self) -> Digest;

    /// Makes the challenge.
    fn challenge(self, rng: &mut impl Entropy) -> Result<(Self::Pending, Self::Challenge), Box<Refusal>>;
}

/// An exchange whose answer is awaited.
pub trait HalfOpen {
    /// The session's name.
    fn session(&self) -> &SessionId;

    /// Whose share of the table it takes.
    fn party(&self) -> Digest;
}

#[derive(Debug)]
enum Slot<P> {
    Open(Box<P>),
    Used,
}

#[derive(Debug)]
struct Entry<P> {
    opened: u64,
    class: Class,
    slot: Slot<P>,
}

/// What is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Anybody can open these.
    Join,
    /// These come with a certificate.
    Renewal,
}

impl Class {
    fn of(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Renew => Self::Renewal,
            Purpose::Join | Purpose::Bootstrap => Self::Join,
        }
    }
}

/// An open session of an endorsement key, and whose it is.
#[derive(Debug)]
struct Open {
    opened: u64,
    session: SessionId,
    network: IpAddr,
}

/// The sessions of one class, oldest first.
#[derive(Debug, Default)]
struct Table {
    all: BTreeSet<(u64, SessionId)>,
    used: BTreeSet<(u64, SessionId)>,
    open_by_ek: HashMap<Digest, Vec<Open>>,
}

impl Table {
    fn close(&mut self, ek: &Digest, session: &SessionId) {
        if let Some(open) = self.open_by_ek.get_mut(ek) {
            open.retain(|one| one.session != *session);
            if open.is_empty() {
                self.open_by_ek.remove(ek);
            }
        }
    }

    /// Whether an endorsement key has its share already.
    fn is_full(&self, ek: &Digest, network: IpAddr, per_ek: usize, now: u64) -> bool {
        let open = self.open_by_ek.get(ek).map(Vec::as_slice).unwrap_or_default();
        let live = || open.iter().filter(|one| !over(one.opened, now));
        live().filter(|one| one.network == network).count() >= per_ek
            || live().count() >= per_ek.saturating_mul(NETWORKS)
    }

    /// What can be forgotten for a new one: what was answered, then what nobody can answer any more.
    fn forgettable(&self, now: u64) -> Option<SessionId> {
        let oldest = self.all.first().filter(|(opened, _)| over(*opened, now));
        self.used.first().or(oldest).map(|(_, id)| *id)
    }
}

/// Whether a session's time is over.
fn over(opened: u64, now: u64) -> bool {
    now.saturating_sub(opened) >= SESSION_SECONDS
}

/// The table. Each protocol has one of its own, so that no session of one can be answered by the other.
#[derive(Debug)]
pub struct Sessions<P = Pending> {
    limits: Limits,
    entries: HashMap<SessionId, Entry<P>>,
    joins: Table,
    renewals: Table,
}

impl<P> Default for Sessions<P> {
    fn default() -> Self {
        Self { limits: Limits::default(), entries: HashMap::new(), joins: Table::default(), renewals: Table::default() }
    }
}

impl<P: HalfOpen> Sessions<P> {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Joins and renewals that are held, those included whose end is still remembered.
    pub fn held(&self) -> (usize, usize) {
        (self.joins.all.len(), self.renewals.all.len())
    }

    fn table(&mut self, class: Class) -> &mut Table {
        match class {
            Class::Join => &mut self.joins,
            Class::Renewal => &mut self.renewals,
        }
    }

    /// [`Sessions::open_from`] where all callers are one.
    pub fn open<A: Opening<Pending = P>>(
        &mut self,
        admitted: A,
        now: u64,
        rng: &mut impl Entropy,
    ) -> Result<A::Challenge, Box<Refusal>> {
        self.open_from(Ipv4Addr::UNSPECIFIED.into(), admitted, now, rng)
    }

    /// Opens a session for a caller of a network and makes its challenge. Refused when the table or the EK's share is full.
    pub fn open_from<A: Opening<Pending = P>>(
        &mut self,
        network: IpAddr,
        admitted: A,
        now: u64,
        rng: &mut impl Entropy,
    ) -> Result<A::Challenge, Box<Refusal>> {
        self.forget(now);
        let Limits { total, per_ek } = self.limits;
        let (class, ek) = (Class::of(admitted.purpose()), admitted.party());
        if self.table(class).is_full(&ek, network, per_ek, now) {
            return Err(Box::new(Refusal::anonymous(Code::SessionsFullForEk)));
        }
        while self.table(class).all.len() >= total {
            match self.table(class).forgettable(now) {
                Some(gone) => self.remove(&gone),
                None => return Err(Box::new(Refusal::anonymous(Code::SessionsFull))),
            }
        }
        let (pending, challenge) = admitted.challenge(rng)?;
        let session = *pending.session();
        self.entries.insert(session, Entry { opened: now, class, slot: Slot::Open(Box::new(pending)) });
        let table = self.table(class);
        table.all.insert((now, session));
        table.open_by_ek.entry(ek).or_default().push(Open { opened: now, session, network });
        Ok(challenge)
    }

    /// Seconds that an open session has left; none where it cannot be answered.
    pub fn left(&self, session: &SessionId, now: u64) -> u64 {
        match self.entries.get(session) {
            Some(Entry { opened, slot: Slot::Open(_), .. }) => {
                SESSION_SECONDS.saturating_sub(now.saturating_sub(*opened))
            }
            Some(_) | None => 0,
        }
    }

    /// Takes a session for its one answer.
    pub fn take(&mut self, session: &SessionId, now: u64) -> Result<P, Code> {
        self.forget(now);
        let Some(entry) = self.entries.get_mut(session) else { return Err(Code::SessionUnknown) };
        let (opened, class) = (entry.opened, entry.class);
        match std::mem::replace(&mut entry.slot, Slot::Used) {
            Slot::Used => Err(Code::SessionUsed),
            Slot::Open(pending) if over(opened, now) => {
                // Stays open in the table, so that the next late answer is named expired too.
                entry.slot = Slot::Open(pending);
                Err(Code::SessionExpired)
            }
            Slot::Open(pending) => {
                let table = self.table(class);
                table.close(&pending.party(), session);
                table.used.insert((opened, *session));
                Ok(*pending)
            }
        }
    }

    /// Sessions in the table, remembered ends included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn remove(&mut self, session: &SessionId) {
        let Some(Entry { opened, class, slot }) = self.entries.remove(session) else { return };
        let table = self.table(class);
        table.all.remove(&(opened, *session));
        table.used.remove(&(opened, *session));
        if let Slot::Open(pending) = slot {
            table.close(&pending.party(), session);
        }
    }

    /// Drops what ended long enough ago. Work is proportional to what is dropped.
    fn forget(&mut self, now: u64) {
        for class in [Class::Join, Class::Renewal] {
            while let Some((opened, session)) = self.table(class).all.first().copied() {
                if now.saturating_sub(opened) < REMEMBER_SECONDS {
                    break;
                }
                self.remove(&session);
            }
        }
    }
}
