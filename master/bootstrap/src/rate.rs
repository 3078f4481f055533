//! Request rates per address and per network.

use config_limits::{Network, Rates, Width, networks};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use config_limits::Rate;

/// Networks in one table: some hundred bytes each.
const MAX_NETWORKS: usize = 16_384;
/// The rate of a site or block (a /56 or /48 of IPv6, a /24 of IPv4) in multiples of a host's, for
/// all of its addresses.
const HOSTS_PER_NETWORK: u32 = 4;

/// The rates of all addresses for one type of request.
#[derive(Debug)]
pub(crate) struct Buckets {
    host: Rate,
    block: Rate,
    start: Instant,
    used: Mutex<Rates<Network>>,
}

impl Buckets {
    pub(crate) fn new(rate: Rate) -> Self {
        let block = Rate {
            burst: rate.burst.saturating_mul(HOSTS_PER_NETWORK),
            every: rate.every / HOSTS_PER_NETWORK,
        };
        Self {
            host: rate,
            block,
            start: Instant::now(),
            used: Mutex::new(Rates::new(MAX_NETWORKS)),
        }
    }

    /// Takes one request from the address' rate.
    ///
    /// # Errors
    /// The rate is exhausted; the value is the time until the next request.
    pub(crate) fn take(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let rate = |network: Network| match network.width() {
            Width::Host => (network, self.host),
            Width::Site | Width::Block => (network, self.block),
        };
        let names: Vec<_> = networks(address).into_iter().map(rate).collect();
        let now = now.saturating_duration_since(self.start);
        self.used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&names, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate_for_each_address_alone() {
        let buckets = Buckets::new(Rate {
            burst: 3,
            every: Duration::from_secs(10),
        });
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            assert!(buckets.take(one, at(0)).is_ok());
        }
        let wait = buckets.take(one, at(0)).unwrap_err();
        assert!(
            wait > Duration::from_secs(9) && wait <= Duration::from_secs(10),
            "{wait:?}"
        );
        assert!(buckets.take(other, at(0)).is_ok());
        assert!(buckets.take(one, at(10)).is_ok());
        assert!(buckets.take(one, at(10)).is_err());
        assert!((0..3).all(|_| buckets.take(one, at(1000)).is_ok()));
        assert!(
            buckets.take(one, at(1000)).is_err(),
            "what was not used does not pile up"
        );
    }

    #[test]
    fn an_owner_of_many_addresses_gets_four_hosts_share() {
        let buckets = Buckets::new(Rate {
            burst: 3,
            every: Duration::from_secs(10),
        });
        let now = Instant::now();
        let admitted = (0..200_u128).filter(|number| {
            let address = 0x2001_0db8_0001_u128 << 80 | number << 64;
            buckets.take(IpAddr::V6(address.into()), now).is_ok()
        });
        assert_eq!(admitted.count(), 12);
        assert!(buckets.take("2001:db8:2::1".parse().unwrap(), now).is_ok());
    }
}
