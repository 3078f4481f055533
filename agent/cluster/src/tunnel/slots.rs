//! Decides which of the two links leads to which peer, and when a link gets a new key (pure).
//!
//! A link has one key, and a range of addresses belongs to one peer of a link, so that a link can't
//! change its key without a gap. Two links can: packets use one of them while the other's key is
//! new. Time is divided into epochs; all nodes prefer one link in one epoch, and the other link in
//! the next. In the second half of an epoch a node gives its other link a new key.
//!
//! Guarantees, however far the clocks of both nodes differ:
//! - **Packets use a link only if the kernel's last session there was agreed with the present keys
//!   of both ends, not long ago** ([`Contact::Proven`]), if there is such a link. If neither link
//!   is proven, packets stay where they are.
//! - **A session outlives the key that it was agreed with**: its receiver accepts its packets until
//!   it is 180 s old, and a sender leaves it when it is [`FRESH`] old. So a peer that does not know
//!   a new key yet, because its watch is late, moves to the other link before a packet is lost.
//! - **The other link works meanwhile**: a link gets a new key only when the preferred one has been
//!   proven for [`SETTLED`] with every peer that has a live session at all.
//! - A link's peer is not given another key while packets use the link, if they could use the
//!   other: they move first, and packets under way arrive ([`Plan::moving`]).
//! - **No peer can delay a renewal for longer than four periods**: after that a link gets its new
//!   key even if a peer is reached only by this link, and loses packets until it knows the key.
//!
//! Assumption: if a node's clock differs from another's by half an epoch (give or take four
//! minutes), both may renew different links at once. Then packets are lost if, in addition, the
//! watches of both are late by more than 25 s.

use super::plan::{Member, Members, Peer, set};
use agent_sys::netlink::wireguard::{Key, Range, Tunnel};
use std::collections::BTreeMap;
use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

/// Seconds between packets on a link without traffic: they show whether the peer has its key.
pub(crate) const KEEPALIVE: u16 = 25;
/// Age of a session, in seconds, from which its next packet starts a new handshake
/// (`REKEY_AFTER_TIME`).
const AGREED_ANEW: u64 = 120;
/// Age from which a session is no longer used: 30 s before its receiver ends it
/// (`REJECT_AFTER_TIME`).
const FRESH: u64 = 150;
/// Age after which no session lives, at either end.
const DEAD: u64 = 200;
/// Seconds after a renewal in which a session may still be one of the previous key: it was agreed,
/// but the packet that confirms it was lost. Four such packets may be lost; and it is less than
/// [`AGREED_ANEW`], so that the second session counts.
const DOUBT: u64 = 100;
/// How long, in seconds, the preferred link has to be proven before the other gets a new key:
/// longer than it takes until the peer has its own proof, after [`DOUBT`].
const SETTLED: u64 = 180;

/// Periods after which a key is renewed whatever peers do, so that no peer can keep others at an
/// old key.
const MAX_PERIODS: u64 = 4;

/// One of a node's two links, and the same one of every other node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    First,
    Second,
}

impl Slot {
    /// Both links.
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The other link.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// The element of a pair for this link.
    pub(crate) fn of<T>(self, [first, second]: &[T; 2]) -> &T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }

    /// The mutable element of a pair for this link.
    pub(crate) fn of_mut<T>(self, [first, second]: &mut [T; 2]) -> &mut T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }
}

/// When a link's key was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Birth {
    /// Unix seconds.
    pub(crate) at: u64,
    /// It is the link's first key: there are no sessions of an older one.
    pub(crate) first: bool,
}

/// A link as it is in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// When its key was made.
    pub(crate) birth: Birth,
    /// Its key, and its peers.
    pub(crate) tunnel: Tunnel,
}

/// What the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Both links.
    pub(crate) links: [Link; 2],
    /// The ranges that are routed into the tunnel, and by which link.
    pub(crate) routes: BTreeMap<Range, Slot>,
}

impl Seen {
    /// The keys of both links.
    pub(crate) fn keys(&self) -> Option<[Key; 2]> {
        let [first, second] = &self.links;
        Some([first.tunnel.key?, second.tunnel.key?])
    }
}

/// The time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Unix seconds.
    pub(crate) now: u64,
    /// Seconds of an epoch; `None` if keys last until the reboot.
    pub(crate) period: Option<u64>,
    /// How many seconds after the middle of an epoch this node's renewal is due ([`delay`]).
    pub(crate) delay: u64,
}

/// A node's delay: up to a quarter of a period, by its name. If all nodes published at once, the
/// master would send each of them all keys at once.
pub(crate) fn delay(node: &str, period: u64) -> u64 {
    let hash = Sha256::digest(node.as_bytes());
    let number = hash.first_chunk().copied().map_or(0, u64::from_be_bytes);
    number.checked_rem(period / 4 + 1).unwrap_or_default()
}

impl Clock {
    /// The link that packets use if both could be used.
    pub(crate) fn preferred(self) -> Slot {
        let epoch = self
            .period
            .and_then(|period| self.now.checked_div(period))
            .unwrap_or_default();
        if epoch.is_multiple_of(2) {
            Slot::First
        } else {
            Slot::Second
        }
    }

    /// When a renewal is due in the present epoch.
    fn due(self) -> Option<u64> {
        let period = self.period?;
        let epoch = self.now.checked_div(period)?;
        Some(epoch * period + period / 2 + self.delay)
    }
}

/// What is kept between plans: since when, in Unix seconds, each peer's key is proven on the
/// preferred link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory(BTreeMap<String, (Slot, Key, u64)>);

/// The state of a link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// The peer has published no key for it.
    NoKey,
    /// Neither end has a live session.
    Silent,
    /// There is a session, but it is old, or possibly not of the present keys.
    Doubtful,
    /// The last session is of both ends' present keys, and not old.
    Proven,
}

/// Whether a link gets a new key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A renewal is not due.
    #[default]
    NotDue,
    /// A renewal is due, but this peer is not proven on the preferred link, or not for long enough.
    Waits(String),
    /// This link gets a new key.
    Due(Slot),
}

/// What the kernel should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Peers of both links, by their keys.
    pub(crate) peers: [BTreeMap<Key, Peer>; 2],
    /// By which link ranges are routed, including those of nodes that are no peers.
    pub(crate) routes: BTreeMap<Range, Slot>,
    /// Peers to which an empty packet is sent, so that a new session replaces an old one.
    pub(crate) wake: [Vec<Key>; 2],
    /// Packets leave a link whose peer has another key by now: plan again when what is under way
    /// has arrived.
    pub(crate) moving: bool,
    /// Which link gets a new key.
    pub(crate) renewal: Renewal,
}

/// Plans the kernel's peers and routes for these nodes, from its present state and the time.
pub(crate) fn plan(members: &Members, seen: &Seen, clock: Clock, memory: &mut Memory) -> Plan {
    let preferred = clock.preferred();
    memory.0.retain(|name, _| members.peers.contains_key(name));
    let nowhere = |range: &Range| seen.routes.get(range).copied().unwrap_or(Slot::First);
    let mut plan = Plan {
        routes: members
            .routes
            .iter()
            .map(|range| (*range, nowhere(range)))
            .collect(),
        ..Plan::default()
    };
    let mut waits = None;
    for (name, member) in &members.peers {
        let contacts = Slot::ALL.map(|slot| contact(member, slot, seen, clock.now));
        let ranges = member.ranges.iter();
        // Only one of two families may have moved, if an agent ended in between.
        let present: Vec<Slot> = ranges
            .filter_map(|range| seen.routes.get(range).copied())
            .collect();
        let chosen = choose(preferred, present.first().copied(), member, contacts);
        for range in &member.ranges {
            plan.routes.insert(*range, chosen);
        }
        for slot in Slot::ALL {
            let leaves = present.contains(&slot) && chosen != slot;
            let before = leaves.then(|| key_before(member, slot, members, seen));
            let before = before.flatten();
            plan.moving |= before.is_some();
            if let Some(key) = before.or(*slot.of(&member.keys)) {
                let peer = Peer {
                    endpoint: SocketAddr::new(member.address, *slot.of(&super::PORTS)),
                    ranges: member.ranges.clone(),
                };
                slot.of_mut(&mut plan.peers).insert(key, peer);
            }
            let key = slot.of(&member.keys);
            let age = key.and_then(|key| age(&key, slot, seen, clock.now));
            if age.is_some_and(|age| (AGREED_ANEW..FRESH).contains(&age)) {
                slot.of_mut(&mut plan.wake).extend(*key);
            }
        }
        let other = preferred.other();
        let away = chosen != other && !present.contains(&other);
        let settled = is_settled(name, member, preferred, contacts, clock.now, memory);
        let gone = |contact: &Contact| matches!(contact, Contact::NoKey | Contact::Silent);
        if !(settled && away || contacts.iter().all(gone)) && waits.is_none() {
            waits = Some(name.clone());
        }
    }
    plan.renewal = renewal(waits, plan.moving, seen, clock);
    plan
}

/// Seconds since the last session with a peer was agreed; `None` if there never was one.
fn age(key: &Key, slot: Slot, seen: &Seen, now: u64) -> Option<u64> {
    let peer = slot.of(&seen.links).tunnel.peers.get(key)?;
    (peer.handshake > 0).then(|| now.saturating_sub(peer.handshake))
}

fn contact(member: &Member, slot: Slot, seen: &Seen, now: u64) -> Contact {
    let Some(key) = slot.of(&member.keys) else {
        return Contact::NoKey;
    };
    let birth = slot.of(&seen.links).birth;
    let age = match age(key, slot, seen, now) {
        Some(age) if age < DEAD => age,
        Some(_) | None => return Contact::Silent,
    };
    let since = if birth.first { 0 } else { birth.at + DOUBT };
    if age < FRESH && now - age > since {
        Contact::Proven
    } else {
        Contact::Doubtful
    }
}

/// The link that packets to a peer use. If none is proven, they stay.
fn choose(preferred: Slot, present: Option<Slot>, member: &Member, contacts: [Contact; 2]) -> Slot {
    let order = [preferred, preferred.other()];
    let proven = |slot: &Slot| *slot.of(&contacts) == Contact::Proven;
    let has_key = |slot: &Slot| slot.of(&member.keys).is_some();
    let chosen = order.into_iter().find(proven);
    chosen
        .or(present.filter(has_key))
        .or_else(|| order.into_iter().find(has_key))
        .unwrap_or(preferred)
}

/// The key that a link's peer has in the kernel, if the node has published another one since.
fn key_before(member: &Member, slot: Slot, members: &Members, seen: &Seen) -> Option<Key> {
    let published = |key: &Key| {
        let mut keys = members.peers.values().flat_map(|member| &member.keys);
        keys.any(|own| own.as_ref() == Some(key))
    };
    let mut peers = slot.of(&seen.links).tunnel.peers.iter();
    let found =
        peers.find(|(key, peer)| set(&peer.ranges) == set(&member.ranges) && !published(key));
    found.map(|(key, _)| *key)
}

/// Whether a peer has been proven on the preferred link for long enough.
fn is_settled(
    name: &str,
    member: &Member,
    preferred: Slot,
    contacts: [Contact; 2],
    now: u64,
    memory: &mut Memory,
) -> bool {
    let proven = *preferred.of(&contacts) == Contact::Proven;
    let Some(key) = preferred.of(&member.keys).filter(|_| proven) else {
        memory.0.remove(name);
        return false;
    };
    let began = memory.0.get(name).copied();
    let began = began.filter(|(slot, of, at)| (*slot, *of) == (preferred, key) && *at <= now);
    let at = began.map_or(now, |(_, _, at)| at);
    memory.0.insert(name.to_owned(), (preferred, key, at));
    now - at >= SETTLED
}

fn renewal(waits: Option<String>, moving: bool, seen: &Seen, clock: Clock) -> Renewal {
    let slot = clock.preferred().other();
    let born = slot.of(&seen.links).birth.at;
    let due = clock.due().is_some_and(|at| clock.now >= at && born < at);
    let end = clock.period.map(|period| born + MAX_PERIODS * period);
    let waits = waits.filter(|_| end.is_none_or(|end| clock.now < end));
    match waits {
        _ if !due || moving => Renewal::NotDue,
        Some(name) => Renewal::Waits(name),
        None => Renewal::Due(slot),
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
