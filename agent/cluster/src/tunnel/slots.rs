//! Which of the two links leads to which peer, and when a link gets a new key (pure).
//!
//! A link has one key, and a range of addresses belongs to one peer of a link, so that a link can't
//! go over from one key to another without a gap. Two links can: packets go by one of them while
//! the other's key is new. Time is cut into epochs, and in each of them one link is preferred by
//! all nodes, the other one in the next. In the second half of an epoch a node gives its other link
//! a new key.
//!
//! Guarantees, with the clocks of both nodes wherever they are:
//! - **Packets go by a link only where the kernel's last session there was agreed with the present
//!   keys of both ends, not long ago** ([`Contact::Proven`]), if there is such a link. What is not
//!   proven is chosen only where neither is: packets stay where they are.
//! - **A session outlives the key that it was agreed with**: its receiver goes on to take packets
//!   that come by it until it is 180 s old, and a sender leaves it when it is [`FRESH`] old. So a
//!   peer that does not know a new key yet, because its watch is late, moves to the other link
//!   before anything is lost.
//! - **The other link is sound meanwhile**: a link gets a new key only when the preferred one has
//!   been proven for [`SETTLED`] with every peer that is seen at all.
//! - A link's peer is not given another key while packets go by it, if they could go by the other
//!   link: they move first, and what is under way arrives ([`Plan::moving`]).
//! - **No peer can delay a renewal for longer than four periods**: after that a link gets its new
//!   key even if a peer is reached by this link alone, which loses packets until that peer knows
//!   the key.
//!
//! Assumption: where a node's clock differs from another's by half an epoch (within four minutes),
//! both may renew different links at once. Then packets are lost if, in addition, the watches of
//! both are late by more than 25 s.

use super::plan::{Member, Members, Peer, set};
use agent_sys::netlink::wireguard::{Key, Range, Tunnel};
use std::collections::BTreeMap;
use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

/// Seconds between packets on a link without traffic: it shows whether the peer is there with its
/// key.
pub(crate) const KEEPALIVE: u16 = 25;
/// Age of a session, in seconds, at which it is agreed anew by its first packet
/// (`REKEY_AFTER_TIME`).
const AGREED_ANEW: u64 = 120;
/// Age at which a session is not relied on any more: 30 s before its receiver ends it
/// (`REJECT_AFTER_TIME`).
const FRESH: u64 = 150;
/// Age after which no session lives, at either end.
const DEAD: u64 = 200;
/// Seconds after a renewal within which a session may still be one of the key before: it was agreed
/// on, and the packet that confirms it was lost. Four of these may be lost; and it is less than
/// [`AGREED_ANEW`], so that the second session counts.
const DOUBT: u64 = 100;
/// How long, in seconds, the preferred link has to be proven before the other gets a new key:
/// longer than it takes until the peer has its own proof, after [`DOUBT`].
const SETTLED: u64 = 180;

/// Periods after which a key is renewed whatever peers do: none can keep others at an old key.
const MAX_PERIODS: u64 = 4;

/// One of a node's two links, and the same one of every other node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    First,
    Second,
}

impl Slot {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// What a pair holds for it.
    pub(crate) fn of<T>(self, [first, second]: &[T; 2]) -> &T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }

    /// The same, to be changed.
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
    /// It is the link's first: there are no sessions of an older one.
    pub(crate) first: bool,
}

/// A link as it is in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Of its key.
    pub(crate) birth: Birth,
    /// Its key, and its peers.
    pub(crate) tunnel: Tunnel,
}

/// What the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Both links.
    pub(crate) links: [Link; 2],
    /// Where ranges of addresses lead, of those that lead into the tunnel.
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
    /// Seconds of an epoch; none where keys last as long as the boot.
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
    /// The link by which packets go where both could be taken.
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

/// What is known between looks: since when, in Unix seconds, each peer's key is proven on the
/// preferred link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory(BTreeMap<String, (Slot, Key, u64)>);

/// How a link stands with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// The peer has published no key for it.
    NoKey,
    /// No session lives, at either end.
    Silent,
    /// There is a session; but it is old, or perhaps not one of the present keys.
    Doubtful,
    /// The last session is one of both ends' present keys, and not old.
    Proven,
}

/// Whether a link gets a new key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It is not time for it.
    #[default]
    NotDue,
    /// It would be time, but this peer is not proven on the preferred link, or not for long enough.
    Waits(String),
    /// This one does.
    Due(Slot),
}

/// What the kernel should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Peers of both links, by their keys.
    pub(crate) peers: [BTreeMap<Key, Peer>; 2],
    /// Where ranges lead, those of nodes that are no peers as well.
    pub(crate) routes: BTreeMap<Range, Slot>,
    /// Peers that are sent an empty packet, so that an old session is agreed anew.
    pub(crate) wake: [Vec<Key>; 2],
    /// Packets leave a link whose peer has another key by now: plan again when what is under way
    /// has arrived.
    pub(crate) moving: bool,
    /// Which link gets a new key.
    pub(crate) renewal: Renewal,
}

/// What the kernel should hold for these nodes, by what it holds now and at this time.
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
        // Of two families one may have moved alone, where an agent ended meanwhile.
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

/// Seconds since the last session with a peer; none where there never was one.
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

/// The link by which packets for a peer go. Where none is proven, they stay.
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

/// The key that a link's peer has in the kernel, where the node has published another one since.
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
