//! How fast machines may ask, and how much of what they send is read at once.
//!
//! A request with a node's certificate counts against its Machine, one that shows an endorsement key of the inventory against
//! that key, every other against its network ([`config_limits::networks`]), each kind with a bound of its own for all together. So whatever
//! strangers do, from however many addresses, also from the address of the machine itself, they use up nothing that nodes and
//! machines of the inventory need. Endorsement keys are no secrets: who knows one can use up what that one key has from his own
//! network, and from sixteen blocks of networks what it has from others.

use config_attest::Digest;
use config_limits::{Network, Rate, Rates, Width, networks};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Names in the table: some hundred bytes each.
const NAMES: usize = 32_768;
/// Requests of strangers from one host, where a rack behind one address may reboot at once.
const HOST: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(50),
};
/// The same from one site or block.
const BLOCK: Rate = Rate {
    burst: 400,
    every: Duration::from_millis(25),
};
/// Requests of all strangers. The table of half-open exchanges holds 4,096, so a stranger that begins one has some ten seconds to
/// answer before others could have its place.
const STRANGERS: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(3),
};
/// Requests with one endorsement key of the inventory, from one host.
const KEY_AND_HOST: Rate = Rate {
    burst: 20,
    every: Duration::from_millis(500),
};
/// The same from one site or block.
const KEY_AND_BLOCK: Rate = Rate {
    burst: 40,
    every: Duration::from_millis(250),
};
/// The same from everywhere.
const KEY: Rate = Rate {
    burst: 640,
    every: Duration::from_millis(15),
};
/// Requests of one node that shows its certificate.
const NODE: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(50),
};
/// Requests of all nodes, and of all keys of the inventory: what two cores verify.
const KNOWN: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(1),
};
/// Bodies of evidence that are read at once, for strangers and for the others: 512 KiB each at most.
const BODIES: [usize; 2] = [64, 192];

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Name {
    Strangers,
    Keys,
    Nodes,
    From(Network),
    Key(Digest),
    KeyFrom(Digest, Network),
    Node(Digest),
}

/// Who asks, as far as it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller<'a> {
    /// Anybody.
    Stranger,
    /// One who shows an endorsement key of the inventory.
    Listed(Digest),
    /// A node with its certificate, by its Machine's uid.
    Node(&'a str),
}

/// The limits.
#[derive(Debug)]
pub(crate) struct Limiter {
    since: Instant,
    rates: Mutex<Rates<Name>>,
    bodies: [Semaphore; 2],
}

impl Limiter {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            rates: Mutex::new(Rates::new(NAMES)),
            bodies: BODIES.map(Semaphore::new),
        }
    }

    /// Takes one request; false: too fast.
    pub(crate) fn admit(&self, caller: Caller<'_>, from: IpAddr) -> bool {
        self.admit_at(caller, from, self.since.elapsed())
    }

    fn admit_at(&self, caller: Caller<'_>, from: IpAddr, now: Duration) -> bool {
        let names: Vec<(Name, Rate)> = match caller {
            Caller::Stranger => {
                let each = networks(from)
                    .into_iter()
                    .map(|network| (Name::From(network), width(&network, HOST, BLOCK)));
                each.chain([(Name::Strangers, STRANGERS)]).collect()
            }
            Caller::Listed(key) => {
                let each = networks(from).into_iter().map(|network| {
                    (
                        Name::KeyFrom(key, network),
                        width(&network, KEY_AND_HOST, KEY_AND_BLOCK),
                    )
                });
                each.chain([(Name::Key(key), KEY), (Name::Keys, KNOWN)])
                    .collect()
            }
            Caller::Node(uid) => vec![
                (Name::Node(Digest::of(uid.as_bytes())), NODE),
                (Name::Nodes, KNOWN),
            ],
        };
        self.rates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&names, now)
            .is_ok()
    }

    /// Room to read a large body; none while there are too many.
    pub(crate) fn body(&self, listed: bool) -> Option<SemaphorePermit<'_>> {
        self.bodies[usize::from(listed)].try_acquire().ok()
    }
}

fn width(network: &Network, host: Rate, block: Rate) -> Rate {
    match network.width() {
        Width::Host => host,
        Width::Site | Width::Block => block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn host(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    #[test]
    fn ten_thousand_addresses_use_up_nothing_of_keys_and_nodes() {
        let limiter = Limiter::new();
        let admitted = (0..100_000)
            .filter(|n| limiter.admit_at(Caller::Stranger, host(n % 10_000), NOW))
            .count();
        assert_eq!(admitted, usize::try_from(STRANGERS.burst).unwrap());
        // Also not from an address of theirs.
        for number in 0..500_u32 {
            let key = Digest::of(&number.to_be_bytes());
            assert!(limiter.admit_at(Caller::Listed(key), host(1), NOW));
            assert!(limiter.admit_at(Caller::Node(&number.to_string()), host(1), NOW));
        }
        assert!(!limiter.admit_at(Caller::Stranger, host(20_000), NOW));
        assert!(limiter.admit_at(Caller::Stranger, host(20_000), NOW + STRANGERS.every));
    }

    #[test]
    fn who_knows_a_key_uses_up_its_own_share_of_it() {
        let limiter = Limiter::new();
        let key = Digest::of(b"a key that is no secret");
        let from = |n: u32| limiter.admit_at(Caller::Listed(key), host(n << 8), NOW);
        assert_eq!((0..1000).filter(|_| from(1)).count(), 20);
        // An owner of one block gets a block's share, whichever addresses it uses.
        let block = (0..256)
            .filter(|n| limiter.admit_at(Caller::Listed(key), host((2 << 8) + n), NOW))
            .count();
        assert_eq!(block, 40);
        assert!(from(3), "the machine, from its own network");
        assert!(limiter.admit_at(Caller::Listed(Digest::of(b"another")), host(1 << 8), NOW));
    }

    #[test]
    fn a_node_is_counted_by_its_machine_wherever_it_is() {
        let limiter = Limiter::new();
        let admitted = (0..1000)
            .filter(|n| limiter.admit_at(Caller::Node("uid-1"), host(*n), NOW))
            .count();
        assert_eq!(admitted, 200);
        assert!(limiter.admit_at(Caller::Node("uid-2"), host(1), NOW));
    }
}
