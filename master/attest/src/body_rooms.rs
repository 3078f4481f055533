//! Limits of the evidence bodies that are read into memory at once, each of at most 512 KiB.
//!
//! Nodes, endorsement keys of the inventory, and strangers have separate limits, so that none takes
//! the slots of another. Each node, key and network has a share: a deliberately slow sender takes
//! its own share, and no more. For nodes there are no shares by network, because a certificate
//! identifies the sender. Endorsement keys are public, so that an attacker may know many: half of
//! their slots are for keys that hold none, as an honest machine sends one body at a time.

use crate::limit::CallerClass;
use config_limits::{Network, Width, networks};
use config_tpm::Digest;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bodies of strangers, of one host of theirs, and of one site or block.
const STRANGERS: usize = 64;
const STRANGERS_OF_HOST: usize = 8;
const STRANGERS_OF_BLOCK: usize = 16;
/// Bodies for endorsement keys of the inventory, from one host, and from one site or block. One NAT
/// address may have a rack of machines behind it.
const KEYS: usize = 96;
const KEYS_OF_HOST: usize = 32;
const KEYS_OF_BLOCK: usize = 48;
/// Of [`KEYS`], the slots that are open to a key which holds one already. To keep a machine out, an
/// attacker needs three keys that fill this part, and one more for each slot of the rest: 51.
const KEYS_SHARED: usize = 48;
/// Bodies for one endorsement key, from everywhere, from one host, and from one site or block.
const KEY: usize = 16;
const KEY_OF_HOST: usize = 2;
const KEY_OF_BLOCK: usize = 4;
/// Bodies of nodes, and of one node: one, and a second one after a lost connection.
const NODES: usize = 96;
const NODE: usize = 2;

/// A share of the slots: a class of callers, or one node, key or network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Share {
    Strangers,
    StrangersOf(Network),
    Keys,
    KeysOf(Network),
    Key(Digest),
    KeyOf(Digest, Network),
    Nodes,
    /// SHA-256 of the Machine's uid.
    Node(Digest),
}

/// The held slots, counted by share.
#[derive(Debug, Default)]
pub(crate) struct BodyRooms {
    taken: Mutex<HashMap<Share, usize>>,
}

/// A slot for one body, freed when it is dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom<'a> {
    rooms: &'a BodyRooms,
    shares: Vec<Share>,
}

impl BodyRooms {
    /// Takes a slot for one body of a caller at an address; `None` if its class or one of its
    /// shares is full.
    pub(crate) fn enter(&self, caller: CallerClass<'_>, from: IpAddr) -> Option<BodyRoom<'_>> {
        let mut taken = self.lock();
        let shares = shares_of(caller, from, &taken);
        let full = |(share, most): &(Share, usize)| taken.get(share).is_some_and(|n| n >= most);
        if shares.iter().any(full) {
            return None;
        }
        let shares: Vec<Share> = shares.into_iter().map(|(share, _)| share).collect();
        for share in &shares {
            *taken.entry(*share).or_default() += 1;
        }
        Some(BodyRoom {
            rooms: self,
            shares,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Share, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BodyRoom<'_> {
    fn drop(&mut self) {
        let mut taken = self.rooms.lock();
        for share in &self.shares {
            if let Some(number) = taken.get_mut(share) {
                *number = number.saturating_sub(1);
            }
        }
        taken.retain(|_, number| *number > 0);
    }
}

/// The shares that a body counts against, each with its size. `taken`: the slots that are held.
fn shares_of(
    caller: CallerClass<'_>,
    from: IpAddr,
    taken: &HashMap<Share, usize>,
) -> Vec<(Share, usize)> {
    let sized = |network: &Network, host: usize, block: usize| match network.width() {
        Width::Host => host,
        Width::Site | Width::Block => block,
    };
    let networks = networks(from);
    match caller {
        CallerClass::Stranger => networks
            .iter()
            .map(|one| {
                let most = sized(one, STRANGERS_OF_HOST, STRANGERS_OF_BLOCK);
                (Share::StrangersOf(*one), most)
            })
            .chain([(Share::Strangers, STRANGERS)])
            .collect(),
        CallerClass::Listed(key) => {
            // The table has no entry for a key without slots.
            let holds_one = taken.contains_key(&Share::Key(key));
            let keys = if holds_one { KEYS_SHARED } else { KEYS };
            networks
                .iter()
                .flat_map(|one| {
                    let own = sized(one, KEY_OF_HOST, KEY_OF_BLOCK);
                    let all = sized(one, KEYS_OF_HOST, KEYS_OF_BLOCK);
                    [(Share::KeyOf(key, *one), own), (Share::KeysOf(*one), all)]
                })
                .chain([(Share::Key(key), KEY), (Share::Keys, keys)])
                .collect()
        }
        CallerClass::Node(uid) => vec![
            (Share::Node(Digest::of(uid.as_bytes())), NODE),
            (Share::Nodes, NODES),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    fn block(number: u32) -> IpAddr {
        host(number << 8)
    }

    /// How many of these bodies get a slot if none is freed.
    fn held<'a, 'c>(
        rooms: &'a BodyRooms,
        crowd: impl Iterator<Item = (CallerClass<'c>, IpAddr)>,
    ) -> Vec<BodyRoom<'a>> {
        crowd
            .filter_map(|(caller, from)| rooms.enter(caller, from))
            .collect()
    }

    /// One node with a good certificate and as many connections as it likes, also from many
    /// addresses.
    #[test]
    fn a_node_with_endless_bodies_does_not_block_other_renewals() {
        let rooms = BodyRooms::default();
        let slow = held(
            &rooms,
            (0..192).map(|n| (CallerClass::Node("bad"), block(n))),
        );
        assert_eq!(slow.len(), NODE);
        let names: Vec<String> = (0..NODES - NODE).map(|n| n.to_string()).collect();
        let others = names.iter().map(|uid| (CallerClass::Node(uid), host(1)));
        assert_eq!(held(&rooms, others).len(), NODES - NODE);
    }

    /// Endorsement keys are public: an attacker with a key takes only the key's share of one
    /// network, and the machine joins from another.
    #[test]
    fn a_known_key_uses_up_only_the_share_of_one_network() {
        let rooms = BodyRooms::default();
        let key = Digest::of(b"a key that is no secret");
        let from_host = held(
            &rooms,
            (0..120).map(|_| (CallerClass::Listed(key), host(1))),
        );
        assert_eq!(from_host.len(), KEY_OF_HOST);
        let from_block = held(
            &rooms,
            (0..120).map(|n| (CallerClass::Listed(key), host(n % 256))),
        );
        assert_eq!(from_host.len() + from_block.len(), KEY_OF_BLOCK);
        assert!(
            rooms.enter(CallerClass::Listed(key), block(7)).is_some(),
            "the machine"
        );
        let everywhere = held(
            &rooms,
            (0..1000).map(|n| (CallerClass::Listed(key), block(n))),
        );
        assert!(from_block.len() + everywhere.len() < KEY + KEY_OF_BLOCK);
        let another = CallerClass::Listed(Digest::of(b"another"));
        assert!(rooms.enter(another, host(1)).is_some());
    }

    /// Twenty stolen public keys from more networks than there are slots. Nothing is freed.
    #[test]
    fn twenty_known_keys_leave_slots_to_a_key_that_holds_none() {
        let rooms = BodyRooms::default();
        let key = |n: u32| CallerClass::Listed(Digest::of(&n.to_be_bytes()));
        let stolen = |keys: std::ops::Range<u32>| {
            let tries = keys.flat_map(|n| (0..64).map(move |network| (n, n * 64 + network)));
            held(&rooms, tries.map(|(n, network)| (key(n), block(network))))
        };
        let (one, two, three) = (KEY, KEY, KEYS_SHARED - 2 * KEY);
        let mut slow = stolen(0..20);
        assert_eq!(slow.len(), one + two + three + 17);
        drop(rooms.enter(key(1000), host(1)).expect("an honest machine"));
        // The number of keys that WIRE.md states.
        slow.extend(stolen(20..50));
        drop(rooms.enter(key(1000), host(1)).expect("against 50 keys"));
        slow.extend(stolen(50..51));
        assert!(slow.len() == KEYS && rooms.enter(key(1000), host(1)).is_none());
    }

    /// One address with many keys, and the rooms of the other classes.
    #[test]
    fn an_address_takes_its_share_and_classes_do_not_affect_each_other() {
        let rooms = BodyRooms::default();
        let stranger = |n: u32| (CallerClass::Stranger, host(n));
        assert_eq!(
            held(&rooms, (0..64).map(|_| stranger(1))).len(),
            STRANGERS_OF_HOST
        );
        let block_of = held(&rooms, (0..256).map(stranger));
        assert_eq!(block_of.len(), STRANGERS_OF_BLOCK);
        let strangers = held(&rooms, (1..1000).map(|n| (CallerClass::Stranger, block(n))));
        assert_eq!(block_of.len() + strangers.len(), STRANGERS);
        let key = |n: u32| CallerClass::Listed(Digest::of(&n.to_be_bytes()));
        let keys = held(&rooms, (0..500).map(|n| (key(n), host(1))));
        assert_eq!(keys.len(), KEYS_OF_HOST);
        assert!(rooms.enter(key(501), block(9)).is_some());
        let more = held(&rooms, (0..500).map(|n| (key(n), block(n))));
        assert_eq!(keys.len() + more.len(), KEYS);
        assert!(rooms.enter(CallerClass::Node("a"), host(1)).is_some());
    }

    #[test]
    fn a_dropped_slot_is_free_again_and_leaves_no_state() {
        let rooms = BodyRooms::default();
        for _ in 0..1000 {
            assert!(rooms.enter(CallerClass::Stranger, host(1)).is_some());
            assert!(rooms.enter(CallerClass::Node("a"), host(1)).is_some());
        }
        assert!(rooms.lock().is_empty());
    }
}
