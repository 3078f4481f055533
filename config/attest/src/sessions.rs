//! The session table: exchanges between challenge (step 2) and evidence (step 3), each answered
//! once.
//!
//! Renewals, joins with an endorsement key of the inventory, and joins of strangers have separate
//! tables of bounded size, so that none takes the room of another. Each endorsement key has a bound
//! for each network: an attacker who knows a machine's EK, which is public, can fill that bound
//! from his own network only, and the machine still joins from another and renews with its
//! certificate. Ended sessions are remembered only while there is room.
//!
//! A full table turns nobody away: the new session evicts another one, by the rules of
//! [`SlotTable`]. A stranger's is evicted when its network has its share, or of the network that
//! has most. A renewal, or a join with a listed key, is evicted of the key that has most: of many
//! stolen keys each has several sessions, an honest machine's own has one, which stays as long as
//! fewer keys have sessions than the table has places.
//!
//! Time is an argument, in seconds of a monotonic clock.

use crate::verdict::Refusal;
use crate::verifier::Pending;
use config_limits::{Network, SlotId, SlotTable, Width, networks};
use config_protocol::wire::{SESSION_SECONDS, SessionId};
use config_protocol::{Code, Purpose};
use config_tpm::Digest;
use config_tpm::Entropy;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// How long the end of a session is remembered, in seconds, so that the code for a late or second
/// answer says which of the two it is.
const REMEMBER_SECONDS: u64 = 2 * SESSION_SECONDS;
/// Blocks of networks from which joins of one endorsement key may be open at once, each with the
/// share of [`HOSTS`] hosts.
const BLOCKS: usize = 16;
/// Hosts of one block from which joins of one endorsement key may be open at once.
const HOSTS: usize = 4;
/// The shares of the strangers' joins for one host, and for one site or block.
const HOST_PART: usize = 8;
const BLOCK_PART: usize = 4;

/// Bounds of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open joins with listed keys, and as many of strangers, and as many renewals.
    pub total: usize,
    /// Open joins for each endorsement key from one host (an IPv4 address, a /64 of IPv6), and as
    /// many renewals. From one site or block (a /24 of IPv4, a /48 of IPv6) it may have four times
    /// as many, from everywhere sixteen times that.
    pub per_ek: usize,
}

impl Default for Limits {
    /// A session holds about 4 KiB, so 4096 are 16 MiB; a node needs one at a time, and a few after
    /// lost connections.
    fn default() -> Self {
        Self {
            total: 4096,
            per_ek: 4,
        }
    }
}

/// A checked hello, for which a session is opened.
pub trait Opening {
    /// What the session holds until the evidence comes.
    type Pending: HalfOpen;
    /// The challenge for the caller.
    type Challenge;

    /// What the exchange is for.
    fn purpose(&self) -> Purpose;

    /// The key whose share of the table it takes: the endorsement key or, without a TPM, the node
    /// key.
    fn party(&self) -> Digest;

    /// Whether the inventory lists the key that it showed.
    fn is_listed(&self) -> bool {
        false
    }

    /// Makes the challenge.
    ///
    /// # Errors
    /// A refusal where the key that was shown cannot take one.
    fn challenge(
        self,
        rng: &mut impl Entropy,
    ) -> Result<(Self::Pending, Self::Challenge), Box<Refusal>>;
}

/// An open session's content: an exchange that waits for evidence.
pub trait HalfOpen {
    /// The session's name.
    fn session(&self) -> &SessionId;

    /// The key whose share of the table it takes.
    fn party(&self) -> Digest;
}

/// A session that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSession {
    /// Seconds until it expires.
    pub seconds_left: u64,
    /// The endorsement key that it was opened with, if the inventory lists it.
    pub listed: Option<Digest>,
}

/// How many sessions a table has, with ended ones that are still remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Joins.
    pub joins: usize,
    /// Renewals.
    pub renewals: usize,
}

#[derive(Debug)]
enum Slot<P> {
    Open(Box<P>),
    Used,
}

#[derive(Debug)]
struct SessionEntry<P> {
    opened: u64,
    class: Class,
    /// Its place among the open sessions of its class.
    share: Option<SlotId>,
    slot: Slot<P>,
}

/// The classes of sessions, each with a table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Joins with a key that the inventory does not list: anyone can open these.
    Stranger,
    /// Joins with an endorsement key of the inventory: anyone who knows the key can open these.
    Listed,
    /// Renewals: only a node with a certificate can open these.
    Renewal,
}

impl Class {
    const ALL: [Self; 3] = [Self::Stranger, Self::Listed, Self::Renewal];

    fn of(admitted: &impl Opening) -> Self {
        match admitted.purpose() {
            Purpose::Renew => Self::Renewal,
            Purpose::Join | Purpose::Bootstrap if admitted.is_listed() => Self::Listed,
            Purpose::Join | Purpose::Bootstrap => Self::Stranger,
        }
    }
}

/// An open session of an endorsement key, with the networks of the address that opened it.
#[derive(Debug)]
struct Open {
    opened: u64,
    session: SessionId,
    networks: Vec<Network>,
}

/// What the places of a full table are divided between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Sharer {
    /// Of strangers, who may show any number of keys: a network.
    Network(Network),
    /// Of nodes and listed keys, whose number the inventory bounds: a key.
    Key(Digest),
}

/// The sessions of one class, oldest first.
#[derive(Debug)]
struct Table {
    all: BTreeSet<(u64, SessionId)>,
    used: BTreeSet<(u64, SessionId)>,
    open_by_ek: HashMap<Digest, Vec<Open>>,
    /// The places of the open sessions. Each has a number of its own: a place is taken before the
    /// session has its id.
    shares: SlotTable<Sharer>,
}

impl Table {
    fn new(total: usize) -> Self {
        Self {
            all: BTreeSet::new(),
            used: BTreeSet::new(),
            open_by_ek: HashMap::new(),
            shares: SlotTable::new(total),
        }
    }

    fn close(&mut self, ek: &Digest, session: &SessionId) {
        if let Some(open) = self.open_by_ek.get_mut(ek) {
            open.retain(|one| one.session != *session);
            if open.is_empty() {
                self.open_by_ek.remove(ek);
            }
        }
    }

    /// Whether an endorsement key has its share already.
    fn is_full(&self, ek: &Digest, from: &[Network], per_ek: usize, now: u64) -> bool {
        let open = self
            .open_by_ek
            .get(ek)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let live = || open.iter().filter(|one| !over(one.opened, now));
        let full = |network: &Network| {
            let most = match network.width() {
                Width::Host => per_ek,
                Width::Site | Width::Block => per_ek.saturating_mul(HOSTS),
            };
            live().filter(|one| one.networks.contains(network)).count() >= most
        };
        // The bound of the whole is the product of the others: it is only reached from many
        // networks.
        from.iter().any(full) || live().count() >= per_ek.saturating_mul(HOSTS * BLOCKS)
    }

    /// An ended session to remove for a new one: an answered one, else an expired one.
    fn forgettable(&self, now: u64) -> Option<SessionId> {
        let oldest = self.all.first().filter(|(opened, _)| over(*opened, now));
        self.used.first().or(oldest).map(|(_, id)| *id)
    }
}

/// Whether a session's time is over.
fn over(opened: u64, now: u64) -> bool {
    now.saturating_sub(opened) >= SESSION_SECONDS
}

/// The session table of one protocol: no session of one protocol can be answered by the other.
#[derive(Debug)]
pub struct Sessions<P = Pending> {
    limits: Limits,
    entries: HashMap<SessionId, SessionEntry<P>>,
    strangers: Table,
    listed: Table,
    renewals: Table,
    /// The sessions by the numbers of their places in any table.
    numbers: HashMap<SlotId, SessionId>,
    last_share: SlotId,
}

impl<P> Default for Sessions<P> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<P> Sessions<P> {
    /// An empty table, of at least one place for each class.
    pub fn new(limits: Limits) -> Self {
        let total = limits.total.max(1);
        Self {
            limits: Limits { total, ..limits },
            entries: HashMap::new(),
            strangers: Table::new(total),
            listed: Table::new(total),
            renewals: Table::new(total),
            numbers: HashMap::new(),
            last_share: 0,
        }
    }
}

impl<P: HalfOpen> Sessions<P> {
    /// Numbers of joins and of renewals in the table, with ended ones that are still remembered.
    pub fn counts(&self) -> SessionCounts {
        SessionCounts {
            joins: self.strangers.all.len() + self.listed.all.len(),
            renewals: self.renewals.all.len(),
        }
    }

    fn table(&mut self, class: Class) -> &mut Table {
        match class {
            Class::Stranger => &mut self.strangers,
            Class::Listed => &mut self.listed,
            Class::Renewal => &mut self.renewals,
        }
    }

    /// [`Sessions::open_from`] for tests in which all callers share one address.
    ///
    /// # Errors
    /// As [`Sessions::open_from`].
    pub fn open<A: Opening<Pending = P>>(
        &mut self,
        admitted: A,
        now: u64,
        rng: &mut impl Entropy,
    ) -> Result<A::Challenge, Box<Refusal>> {
        self.open_from(Ipv4Addr::UNSPECIFIED.into(), admitted, now, rng)
    }

    /// Opens a session for a caller at an address and makes its challenge.
    ///
    /// # Errors
    /// The EK's share is full, or nothing can be encrypted to the key.
    pub fn open_from<A: Opening<Pending = P>>(
        &mut self,
        from: IpAddr,
        admitted: A,
        now: u64,
        rng: &mut impl Entropy,
    ) -> Result<A::Challenge, Box<Refusal>> {
        self.forget(now);
        let Limits { total, per_ek } = self.limits;
        let (class, ek, networks) = (Class::of(&admitted), admitted.party(), networks(from));
        // The key's share first: a caller that has used it up must evict no one.
        if self.table(class).is_full(&ek, &networks, per_ek, now) {
            return Err(Box::new(Refusal::anonymous(Code::SessionsFullForEk)));
        }
        // What has ended makes room before what is open does.
        while self.table(class).all.len() >= total
            && let Some(gone) = self.table(class).forgettable(now)
        {
            self.remove(&gone);
        }
        let share = self.take_share(class, &ek, &networks);
        // Last, as it costs a public-key operation: a caller without a place must not have the
        // master work for it.
        let (pending, challenge) = match admitted.challenge(rng) {
            Ok(both) => both,
            Err(refusal) => {
                self.give_back(class, Some(share));
                return Err(refusal);
            }
        };
        let session = *pending.session();
        self.numbers.insert(share, session);
        self.entries.insert(
            session,
            SessionEntry {
                opened: now,
                class,
                share: Some(share),
                slot: Slot::Open(Box::new(pending)),
            },
        );
        let table = self.table(class);
        table.all.insert((now, session));
        table.open_by_ek.entry(ek).or_default().push(Open {
            opened: now,
            session,
            networks,
        });
        Ok(challenge)
    }

    /// Looks at a session that waits for its answer, and leaves it open.
    ///
    /// # Errors
    /// As [`Sessions::take`].
    pub fn look(&self, session: &SessionId, now: u64) -> Result<OpenSession, Code> {
        let entry = self.entries.get(session).ok_or(Code::SessionUnknown)?;
        let age = now.saturating_sub(entry.opened);
        match &entry.slot {
            _ if age >= REMEMBER_SECONDS => Err(Code::SessionUnknown),
            Slot::Used => Err(Code::SessionUsed),
            Slot::Open(_) if over(entry.opened, now) => Err(Code::SessionExpired),
            Slot::Open(pending) => Ok(OpenSession {
                seconds_left: SESSION_SECONDS.saturating_sub(age),
                listed: (entry.class == Class::Listed).then(|| pending.party()),
            }),
        }
    }

    /// Takes a session for its one answer.
    ///
    /// # Errors
    /// There is no such session, it has expired, or it was answered before.
    pub fn take(&mut self, session: &SessionId, now: u64) -> Result<P, Code> {
        self.forget(now);
        let Some(entry) = self.entries.get_mut(session) else {
            return Err(Code::SessionUnknown);
        };
        let (opened, class) = (entry.opened, entry.class);
        // Marked used before the evidence is looked at: a second answer is refused whatever becomes
        // of the first.
        match std::mem::replace(&mut entry.slot, Slot::Used) {
            Slot::Used => Err(Code::SessionUsed),
            Slot::Open(pending) if over(opened, now) => {
                // Open again, so that the next late answer gets the code "expired", and not "used".
                entry.slot = Slot::Open(pending);
                Err(Code::SessionExpired)
            }
            Slot::Open(pending) => {
                let share = entry.share.take();
                self.give_back(class, share);
                let table = self.table(class);
                table.close(&pending.party(), session);
                table.used.insert((opened, *session));
                Ok(*pending)
            }
        }
    }

    /// Takes a place in the table of a class, and removes the session that it evicts.
    fn take_share(&mut self, class: Class, ek: &Digest, from: &[Network]) -> SlotId {
        let total = self.limits.total;
        let most = |network: &Network| match network.width() {
            Width::Host => total / HOST_PART,
            Width::Site | Width::Block => total / BLOCK_PART,
        };
        let groups: Vec<(Sharer, usize)> = match class {
            Class::Stranger => from
                .iter()
                .map(|network| (Sharer::Network(*network), most(network)))
                .collect(),
            // The key's own bounds were checked: here it only counts which key has most.
            Class::Listed | Class::Renewal => vec![(Sharer::Key(*ek), total)],
        };
        // The number stands for the session until it has its id: the place must be taken before the
        // challenge is made.
        self.last_share += 1;
        let share = self.last_share;
        let out = self.table(class).shares.enter(share, &groups);
        if let Some(session) = out.and_then(|out| self.numbers.remove(&out)) {
            self.remove(&session);
        }
        share
    }

    fn give_back(&mut self, class: Class, share: Option<SlotId>) {
        if let Some(share) = share {
            self.table(class).shares.leave(share);
            self.numbers.remove(&share);
        }
    }

    /// Sessions in the table, with ended ones that are still remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn remove(&mut self, session: &SessionId) {
        let Some(SessionEntry {
            opened,
            class,
            share,
            slot,
        }) = self.entries.remove(session)
        else {
            return;
        };
        self.give_back(class, share);
        let table = self.table(class);
        table.all.remove(&(opened, *session));
        table.used.remove(&(opened, *session));
        if let Slot::Open(pending) = slot {
            table.close(&pending.party(), session);
        }
    }

    /// Drops sessions opened [`REMEMBER_SECONDS`] ago or earlier. Oldest first, so that the work is
    /// proportional to what is dropped and not to the table.
    fn forget(&mut self, now: u64) {
        for class in Class::ALL {
            while let Some((opened, session)) = self.table(class).all.first().copied() {
                if now.saturating_sub(opened) < REMEMBER_SECONDS {
                    break;
                }
                self.remove(&session);
            }
        }
    }
}
