//! The rate limiter: requests per second of the exchange.
//!
//! Three classes of callers have separate budgets. A request with a node's certificate counts
//! against its Machine; a hello with an endorsement key of the inventory counts against that key
//! and the caller's network; any other counts against the caller's network
//! ([`config_limits::networks`]). Each class also has a total. So strangers cannot exhaust the
//! budget of nodes and known machines, from any number of addresses, the machine's own included.
//!
//! Endorsement keys are public. A caller that knows one can exhaust that key's budget for its own
//! network; to exhaust the key's total takes sixteen blocks of networks.

use config_limits::{Network, Rate, Rates, Width, networks};
use config_tpm::Digest;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys in the table at most, each some hundred bytes.
const MAX_KEYS: usize = 32_768;
/// Strangers from one host. Large enough for a rack behind one NAT address that boots at once.
const HOST: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(50),
};
/// Strangers from one site or block.
const BLOCK: Rate = Rate {
    burst: 400,
    every: Duration::from_millis(25),
};
/// All strangers together. The session table holds 4,096 of them, so at this rate a session is at
/// least ten seconds old before others can displace it.
const STRANGERS: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(3),
};
/// One endorsement key of the inventory, from one host.
const KEY_AND_HOST: Rate = Rate {
    burst: 20,
    every: Duration::from_millis(500),
};
/// One endorsement key, from one site or block.
const KEY_AND_BLOCK: Rate = Rate {
    burst: 40,
    every: Duration::from_millis(250),
};
/// One endorsement key, from everywhere.
const KEY: Rate = Rate {
    burst: 640,
    every: Duration::from_millis(15),
};
/// One node that presents its certificate.
const NODE: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(50),
};
/// All nodes together, and all endorsement keys of the inventory together: the rate that two cores
/// can verify.
const ALL_KNOWN: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(1),
};

/// The key of one counter in the rate table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum RateKey {
    /// All strangers.
    Strangers,
    /// All endorsement keys of the inventory.
    Keys,
    /// All nodes.
    Nodes,
    /// Strangers of one network.
    From(Network),
    /// One endorsement key.
    Key(Digest),
    /// One endorsement key from one network.
    KeyFrom(Digest, Network),
    /// One node: SHA-256 of its Machine's uid.
    Node(Digest),
}

/// The class of a caller, which chooses the budget that its request counts against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallerClass<'a> {
    /// It presents no certificate and no endorsement key of the inventory.
    Stranger,
    /// Its hello has this endorsement key of the inventory. Public keys prove nothing about the
    /// caller.
    Listed(Digest),
    /// It presents a node's certificate, issued to the Machine with this uid.
    Node(&'a str),
}

/// The rate table.
#[derive(Debug)]
pub(crate) struct Limiter {
    since: Instant,
    rates: Mutex<Rates<RateKey>>,
}

impl Limiter {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            rates: Mutex::new(Rates::new(MAX_KEYS)),
        }
    }

    /// Counts one request; false where its rate is above the limit.
    pub(crate) fn admit(&self, caller: CallerClass<'_>, from: IpAddr) -> bool {
        self.admit_at(caller, from, self.since.elapsed())
    }

    fn admit_at(&self, caller: CallerClass<'_>, from: IpAddr, now: Duration) -> bool {
        let keys: Vec<(RateKey, Rate)> = match caller {
            CallerClass::Stranger => {
                let each = networks(from)
                    .into_iter()
                    .map(|network| (RateKey::From(network), rate_of(&network, HOST, BLOCK)));
                each.chain([(RateKey::Strangers, STRANGERS)]).collect()
            }
            CallerClass::Listed(key) => {
                let each = networks(from).into_iter().map(|network| {
                    (
                        RateKey::KeyFrom(key, network),
                        rate_of(&network, KEY_AND_HOST, KEY_AND_BLOCK),
                    )
                });
                each.chain([(RateKey::Key(key), KEY), (RateKey::Keys, ALL_KNOWN)])
                    .collect()
            }
            CallerClass::Node(uid) => vec![
                (RateKey::Node(Digest::of(uid.as_bytes())), NODE),
                (RateKey::Nodes, ALL_KNOWN),
            ],
        };
        self.rates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&keys, now)
            .is_ok()
    }
}

fn rate_of(network: &Network, host: Rate, block: Rate) -> Rate {
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
    fn ten_thousand_addresses_do_not_affect_keys_and_nodes() {
        let limiter = Limiter::new();
        let admitted = (0..100_000)
            .filter(|n| limiter.admit_at(CallerClass::Stranger, host(n % 10_000), NOW))
            .count();
        assert_eq!(admitted, usize::try_from(STRANGERS.burst).unwrap());
        // Nor from one of their own addresses.
        for number in 0..500_u32 {
            let key = Digest::of(&number.to_be_bytes());
            assert!(limiter.admit_at(CallerClass::Listed(key), host(1), NOW));
            assert!(limiter.admit_at(CallerClass::Node(&number.to_string()), host(1), NOW));
        }
        assert!(!limiter.admit_at(CallerClass::Stranger, host(20_000), NOW));
        assert!(limiter.admit_at(CallerClass::Stranger, host(20_000), NOW + STRANGERS.every));
    }

    #[test]
    fn a_known_key_uses_up_only_the_rate_of_one_network() {
        let limiter = Limiter::new();
        let key = Digest::of(b"a key that is no secret");
        let from = |n: u32| limiter.admit_at(CallerClass::Listed(key), host(n << 8), NOW);
        assert_eq!((0..1000).filter(|_| from(1)).count(), 20);
        // An owner of one block gets a block's share, whichever addresses it uses.
        let block = (0..256)
            .filter(|n| limiter.admit_at(CallerClass::Listed(key), host((2 << 8) + n), NOW))
            .count();
        assert_eq!(block, 40);
        assert!(from(3), "the machine, from its own network");
        assert!(limiter.admit_at(
            CallerClass::Listed(Digest::of(b"another")),
            host(1 << 8),
            NOW
        ));
    }

    #[test]
    fn a_node_is_counted_by_its_machine_at_any_address() {
        let limiter = Limiter::new();
        let admitted = (0..1000)
            .filter(|n| limiter.admit_at(CallerClass::Node("uid-1"), host(*n), NOW))
            .count();
        assert_eq!(admitted, 200);
        assert!(limiter.admit_at(CallerClass::Node("uid-2"), host(1), NOW));
    }
}
