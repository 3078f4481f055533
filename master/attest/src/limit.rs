//! The rate limiter: requests per second of the exchange.
//!
//! Three classes of callers have separate budgets. A request with a node's certificate counts
//! against its Machine; a hello with an endorsement key of the inventory counts against that key
//! and the caller's network; any other counts against the caller's network
//! ([`config_limits::networks`]). Each class also has a total. So strangers cannot exhaust the
//! budget of nodes and known machines, from any number of addresses, the machine's own included.
//!
//! Endorsement keys are public. A caller that knows one can exhaust that key's budget for its own
//! network; to exhaust the key's total takes sixteen blocks of networks. One that knows many can
//! exhaust three quarters of the total of all keys. The last quarter is a reserve with a small
//! share for each key, so that an honest machine gets a request through every few seconds, unless a
//! thousand keys use up the reserve.

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
/// All strangers together. The session table holds 4,096 of them, so at this rate a session is some
/// nine seconds old before others can displace it.
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
/// All nodes together: the rate that two cores can verify.
const NODES: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(1),
};
/// All endorsement keys of the inventory together, whichever of them asks: three quarters of that
/// rate.
const KEYS: Rate = Rate {
    burst: 1500,
    every: Duration::from_micros(1334),
};
/// All endorsement keys together, beyond [`KEYS`]: the last quarter of that rate.
const RESERVE: Rate = Rate {
    burst: 500,
    every: Duration::from_millis(4),
};
/// One endorsement key, of [`RESERVE`]. At this rate a thousand keys use it up.
const RESERVE_OF_KEY: Rate = Rate {
    burst: 1,
    every: Duration::from_secs(4),
};

/// The key of one counter in the rate table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum RateKey {
    /// All strangers.
    Strangers,
    /// All endorsement keys of the inventory.
    Keys,
    /// The same, beyond that.
    Reserve,
    /// One endorsement key, of the reserve.
    ReserveOf(Digest),
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
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
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
                let own: Vec<_> = each.chain([(RateKey::Key(key), KEY)]).collect();
                if rates
                    .take(&[&own[..], &[(RateKey::Keys, KEYS)]].concat(), now)
                    .is_ok()
                {
                    return true;
                }
                let reserve = [
                    (RateKey::ReserveOf(key), RESERVE_OF_KEY),
                    (RateKey::Reserve, RESERVE),
                ];
                [&own[..], &reserve].concat()
            }
            CallerClass::Node(uid) => vec![
                (RateKey::Node(Digest::of(uid.as_bytes())), NODE),
                (RateKey::Nodes, NODES),
            ],
        };
        rates.take(&keys, now).is_ok()
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
        // Nor do strangers behind the same address as keys and nodes.
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

    /// Twenty stolen public keys from as many networks as use up each key's rate.
    #[test]
    fn twenty_known_keys_leave_each_other_key_a_request_every_few_seconds() {
        let limiter = Limiter::new();
        let key = |n: u32| CallerClass::Listed(Digest::of(&n.to_be_bytes()));
        let flood = |keys: std::ops::Range<u32>, now| {
            let tries = keys.flat_map(|n| (0..640).map(move |network| (n, n * 640 + network)));
            tries
                .filter(|(n, network)| limiter.admit_at(key(*n), host(network << 8), now))
                .count()
        };
        let all = usize::try_from(KEYS.burst).unwrap();
        assert_eq!(flood(0..20, NOW), all + 20 - all / 640);
        let honest = |now| limiter.admit_at(key(50_000), host(1), now);
        assert!(honest(NOW) && !honest(NOW));
        let later = NOW + RESERVE_OF_KEY.every;
        flood(0..20, later);
        assert!(honest(later) && !honest(later));
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
