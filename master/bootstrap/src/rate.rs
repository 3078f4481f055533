//! What an address may ask in a time: token buckets in a table of fixed size.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Buckets of one table. Two addresses that share one share its rate; with a secret hash nobody can choose to.
const BUCKETS: usize = 16_384;

/// A rate: `burst` at once, then one each `every`.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// How many at once.
    pub burst: u32,
    /// Time until one more is allowed.
    pub every: Duration,
}

/// The buckets of all addresses for one kind of request.
#[derive(Debug)]
pub(crate) struct Buckets {
    rate: Rate,
    hash: RandomState,
    start: Instant,
    /// For each bucket the time at which it will be full again, since `start`.
    full_at: Mutex<Vec<Duration>>,
}

impl Buckets {
    pub(crate) fn new(rate: Rate) -> Self {
        let full_at = Mutex::new(vec![Duration::ZERO; BUCKETS]);
        Self { rate, hash: RandomState::new(), start: Instant::now(), full_at }
    }

    /// Takes one; `Err` is how long there is none.
    pub(crate) fn take(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.start);
        let slot = usize::try_from(self.hash.hash_one(network(address)) % BUCKETS as u64).unwrap_or_default();
        let mut table = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(full_at) = table.get_mut(slot) else { return Ok(()) };
        let next = (*full_at).max(now) + self.rate.every;
        let most = now + self.rate.every * self.rate.burst;
        if let Some(wait) = next.checked_sub(most).filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        *full_at = next;
        Ok(())
    }
}

/// Who counts as one: an IPv4 address, or a network of IPv6 as one customer gets it.
pub(crate) fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6) >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate_for_each_address_alone() {
        let buckets = Buckets::new(Rate { burst: 3, every: Duration::from_secs(10) });
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            assert!(buckets.take(one, at(0)).is_ok());
        }
        let wait = buckets.take(one, at(0)).unwrap_err();
        assert!(wait > Duration::from_secs(9) && wait <= Duration::from_secs(10), "{wait:?}");
        assert!(buckets.take(other, at(0)).is_ok());
        assert!(buckets.take(one, at(10)).is_ok());
        assert!(buckets.take(one, at(10)).is_err());
        assert!((0..3).all(|_| buckets.take(one, at(1000)).is_ok()));
        assert!(buckets.take(one, at(1000)).is_err(), "what was not used does not pile up");
    }

    #[test]
    fn an_ipv6_network_counts_as_one_and_mapped_addresses_as_ipv4() {
        let net = |text: &str| network(text.parse().unwrap());
        assert_eq!(net("2001:db8::1"), net("2001:db8::ffff:1"));
        assert_ne!(net("2001:db8::1"), net("2001:db8:0:1::1"));
        assert_eq!(net("::ffff:192.0.2.1"), net("192.0.2.1"));
    }
}
