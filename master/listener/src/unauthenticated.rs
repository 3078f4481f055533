//! Limits of requests without a credential, and of those whose credential fails: each costs an
//! authorization or a verified signature.
//!
//! The first such requests of a connection do not count, so that no client can keep a machine
//! behind the same address from joining, or a health check there from its answer. Further ones
//! count against the rates of the networks that they come from. A request beyond these rates gets
//! 429, and a connection with too many refused requests is closed.

use config_limits::{Network, Rate, Rates, Width, networks};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Networks whose rates are remembered.
const MAX_NETWORKS: usize = 8192;

/// Limits, in requests.
#[derive(Debug, Clone, Copy)]
pub struct UnauthenticatedLimits {
    /// Free requests of one connection, before the rates of its networks count.
    pub free: u32,
    /// Of one host (an IPv4 address, a /64 of IPv6).
    pub host: Rate,
    /// Of a site (a /56 of IPv6) or block (a /24 of IPv4, a /48 of IPv6).
    pub block: Rate,
    /// Refusals after which a connection is closed.
    pub refusals: u32,
}

impl Default for UnauthenticatedLimits {
    /// A machine that joins sends about ten, a load balancer asks for the health of a server a few
    /// times in a second. All strangers together have no rate: it would be one that some could use
    /// up for others, and the number of connections bounds them.
    fn default() -> Self {
        Self {
            free: 64,
            host: Rate {
                burst: 1000,
                every: Duration::from_millis(10),
            },
            block: Rate {
                burst: 4000,
                every: Duration::from_micros(2500),
            },
            refusals: 64,
        }
    }
}

/// The rates of all networks.
#[derive(Debug)]
pub(crate) struct UnauthenticatedRates {
    limits: UnauthenticatedLimits,
    began: Instant,
    rates: Mutex<Rates<Network>>,
}

/// One connection's requests.
#[derive(Debug)]
pub(crate) struct RequestCounts {
    rates: Arc<UnauthenticatedRates>,
    from: IpAddr,
    /// Requests without a credential.
    unproven: AtomicU32,
    /// Credentials that failed on a connection that had proved its caller.
    failed: AtomicU32,
    refused: AtomicU32,
    over: CancellationToken,
}

impl UnauthenticatedRates {
    pub(crate) fn new(limits: UnauthenticatedLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            began: Instant::now(),
            rates: Mutex::new(Rates::new(MAX_NETWORKS)),
        })
    }

    fn take(&self, from: IpAddr) -> bool {
        let rate = |network: Network| match network.width() {
            Width::Host => (network, self.limits.host),
            Width::Site | Width::Block => (network, self.limits.block),
        };
        let names: Vec<_> = networks(from).into_iter().map(rate).collect();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.take(&names, self.began.elapsed()).is_ok()
    }
}

impl RequestCounts {
    pub(crate) fn new(rates: &Arc<UnauthenticatedRates>, from: IpAddr) -> Self {
        Self {
            rates: Arc::clone(rates),
            from,
            unproven: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            over: CancellationToken::new(),
        }
    }

    /// Counts a request; returns whether it may be worked on. `proven`: the connection's caller has
    /// proved who it is.
    pub(crate) fn allow(&self, proven: bool) -> bool {
        let limits = &self.rates.limits;
        let spent = if proven {
            self.failed.load(Ordering::Relaxed)
        } else {
            self.unproven.fetch_add(1, Ordering::Relaxed)
        };
        if spent < limits.free || self.rates.take(self.from) {
            return true;
        }
        if self.refused.fetch_add(1, Ordering::Relaxed) >= limits.refusals {
            self.over.cancel();
        }
        false
    }

    /// Counts a credential that failed.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Cancelled once the connection is to be closed.
    pub(crate) fn over(&self) -> CancellationToken {
        self.over.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_its_own_and_beyond_it_a_share_of_its_networks_rate() {
        let limits = UnauthenticatedLimits {
            free: 2,
            host: Rate {
                burst: 3,
                every: Duration::from_secs(3600),
            },
            block: Rate {
                burst: 4,
                every: Duration::from_secs(3600),
            },
            refusals: 1,
        };
        let rates = UnauthenticatedRates::new(limits);
        let at = |last: u8| RequestCounts::new(&rates, [192, 0, 2, last].into());
        let asked =
            |counts: &RequestCounts, proven: bool| (0..10).filter(|_| counts.allow(proven)).count();
        let flood = at(1);
        assert_eq!(asked(&flood, false), 5, "its own and the host's");
        assert!(flood.over().is_cancelled(), "it went on");
        let machine = at(1);
        assert!(machine.allow(false) && machine.allow(false));
        assert!(!machine.allow(false) && !machine.over().is_cancelled());
        assert_eq!(asked(&at(2), false), 3, "the last of the block's");
        // Who proved a name is counted once proofs fail.
        let known = at(1);
        assert_eq!(asked(&known, true), 10);
        known.failed();
        known.failed();
        assert_eq!(asked(&known, true), 0);
    }
}
