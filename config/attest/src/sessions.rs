//! Half-open exchanges: bounded in all and for each endorsement key; a new one never evicts an old one; each is answered once.
//!
//! Joins and renewals are counted apart. Whoever knows a machine's EK, which is no secret, can open joins in its name up to
//! the bound; a node that comes with its certificate renews beside that.
//!
//! Time is the caller's, in Unix seconds; it may not go back by more than a session's life.

use crate::code::Code;
use crate::digest::Digest;
use crate::question::Purpose;
use crate::tpm::Entropy;
use crate::verdict::Refusal;
use crate::verifier::Pending;
use crate::wire::{SESSION_SECONDS, SessionId};
use std::collections::{BTreeSet, HashMap};

/// How long the end of a session is remembered, so that a late or second answer is named for what it is, in seconds.
const REMEMBER_SECONDS: u64 = 2 * SESSION_SECONDS;

/// Bounds of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Joins in all, and as many renewals, remembered ends included.
    pub total: usize,
    /// Open joins for each endorsement key, and as many renewals.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// The table. Each protocol has one of its own, so that no session of one can be answered by the other.
#[derive(Debug)]
pub struct Sessions<P = Pending> {
    limits: Limits,
    entries: HashMap<SessionId, Entry<P>>,
    ends: BTreeSet<(u64, SessionId)>,
    open_by_ek: HashMap<(Class, Digest), Vec<(u64, SessionId)>>,
    /// Entries of each class.
    held: HashMap<Class, usize>,
}

impl<P> Default for Sessions<P> {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            entries: HashMap::new(),
            ends: BTreeSet::new(),
            open_by_ek: HashMap::new(),
            held: HashMap::new(),
        }
    }
}

impl<P: HalfOpen> Sessions<P> {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Joins and renewals that are held, those included whose end is still remembered.
    pub fn held(&self) -> (usize, usize) {
        let of = |class| self.held.get(&class).copied().unwrap_or_default();
        (of(Class::Join), of(Class::Renewal))
    }

    /// Opens a session and makes its challenge. Refused when the table or the EK's share is full.
    pub fn open<A: Opening<Pending = P>>(
        &mut self,
        admitted: A,
        now: u64,
        rng: &mut impl Entropy,
    ) -> Result<A::Challenge, Box<Refusal>> {
        self.forget(now);
        let class = Class::of(admitted.purpose());
        let key = (class, admitted.party());
        let live = self.open_by_ek.get(&key).map_or(0, |sessions| {
            sessions.iter().filter(|(opened, _)| now.saturating_sub(*opened) < SESSION_SECONDS).count()
        });
        if live >= self.limits.per_ek {
            return Err(Box::new(Refusal::anonymous(Code::SessionsFullForEk)));
        }
        if self.held.get(&class).is_some_and(|held| *held >= self.limits.total) {
            return Err(Box::new(Refusal::anonymous(Code::SessionsFull)));
        }
        let (pending, challenge) = admitted.challenge(rng)?;
        let id = *pending.session();
        self.entries.insert(id, Entry { opened: now, class, slot: Slot::Open(Box::new(pending)) });
        *self.held.entry(class).or_default() += 1;
        self.ends.insert((now, id));
        self.open_by_ek.entry(key).or_default().push((now, id));
        Ok(challenge)
    }

    /// Takes a session for its one answer.
    pub fn take(&mut self, session: &SessionId, now: u64) -> Result<P, Code> {
        let Some(entry) = self.entries.get_mut(session) else { return Err(Code::SessionUnknown) };
        let expired = now.saturating_sub(entry.opened) >= SESSION_SECONDS;
        match std::mem::replace(&mut entry.slot, Slot::Used) {
            Slot::Used => Err(Code::SessionUsed),
            Slot::Open(pending) if expired => {
                // Stays open in the table, so that the next late answer is named expired too.
                entry.slot = Slot::Open(pending);
                Err(Code::SessionExpired)
            }
            Slot::Open(pending) => {
                let key = (entry.class, pending.party());
                self.close(key, session);
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

    fn close(&mut self, key: (Class, Digest), session: &SessionId) {
        if let Some(open) = self.open_by_ek.get_mut(&key) {
            open.retain(|(_, id)| id != session);
            if open.is_empty() {
                self.open_by_ek.remove(&key);
            }
        }
    }

    /// Drops what ended long enough ago. Work is proportional to what is dropped.
    fn forget(&mut self, now: u64) {
        while let Some((opened, id)) = self.ends.first().copied() {
            if now.saturating_sub(opened) < REMEMBER_SECONDS {
                break;
            }
            self.ends.remove(&(opened, id));
            let Some(entry) = self.entries.remove(&id) else { continue };
            if let Some(held) = self.held.get_mut(&entry.class) {
                *held = held.saturating_sub(1);
            }
            if let Slot::Open(pending) = entry.slot {
                self.close((entry.class, pending.party()), &id);
            }
        }
    }
}
