//! How many requests a connection may send whose caller proves nothing, and how many whose proof
//! fails: each costs a look at rights or at a signature.
//!
//! A connection has some free of any count, so that what another sends from the same address keeps
//! no machine from joining and no health check from its answer; beyond them its networks have rates.
//! A request beyond these gets 429, and a connection that goes on all the same is closed.

use config_limits::{Network, Rate, Rates, Width, networks};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Networks whose rates are remembered.
const NETWORKS: usize = 8192;

/// Limits, in requests.
#[derive(Debug, Clone, Copy)]
pub struct VisitLimits {
    /// Of one connection, before its networks' rates count.
    pub free: u32,
    /// Of one host (an IPv4 address, a /64 of IPv6).
    pub host: Rate,
    /// Of a site (a /56 of IPv6) or block (a /24 of IPv4, a /48 of IPv6).
    pub block: Rate,
    /// Refusals after which a connection is closed.
    pub refusals: u32,
}

impl Default for VisitLimits {
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
pub(crate) struct Visits {
    limits: VisitLimits,
    began: Instant,
    rates: Mutex<Rates<Network>>,
}

/// One connection's requests.
#[derive(Debug)]
pub(crate) struct Visitor {
    visits: Arc<Visits>,
    from: IpAddr,
    /// Requests before which nothing was proved.
    unproven: AtomicU32,
    /// Proofs that failed although an earlier one did not.
    failed: AtomicU32,
    refused: AtomicU32,
    over: CancellationToken,
}

impl Visits {
    pub(crate) fn new(limits: VisitLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            began: Instant::now(),
            rates: Mutex::new(Rates::new(NETWORKS)),
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

impl Visitor {
    pub(crate) fn new(visits: &Arc<Visits>, from: IpAddr) -> Self {
        Self {
            visits: Arc::clone(visits),
            from,
            unproven: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            over: CancellationToken::new(),
        }
    }

    /// Counts a request; returns whether it may be worked on. `proven`: the connection's caller has
    /// proved who it is.
    pub(crate) fn may_ask(&self, proven: bool) -> bool {
        let limits = &self.visits.limits;
        let spent = if proven {
            self.failed.load(Ordering::Relaxed)
        } else {
            self.unproven.fetch_add(1, Ordering::Relaxed)
        };
        if spent < limits.free || self.visits.take(self.from) {
            return true;
        }
        if self.refused.fetch_add(1, Ordering::Relaxed) >= limits.refusals {
            self.over.cancel();
        }
        false
    }

    /// Counts a proof that failed.
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
        let limits = VisitLimits {
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
        let visits = Visits::new(limits);
        let at = |last: u8| Visitor::new(&visits, [192, 0, 2, last].into());
        let asked =
            |visitor: &Visitor, proven: bool| (0..10).filter(|_| visitor.may_ask(proven)).count();
        let flood = at(1);
        assert_eq!(asked(&flood, false), 5, "its own and the host's");
        assert!(flood.over().is_cancelled(), "it went on");
        let machine = at(1);
        assert!(machine.may_ask(false) && machine.may_ask(false));
        assert!(!machine.may_ask(false) && !machine.over().is_cancelled());
        assert_eq!(asked(&at(2), false), 3, "the last of the block's");
        // Who proved a name is counted once proofs fail.
        let known = at(1);
        assert_eq!(asked(&known, true), 10);
        known.failed();
        known.failed();
        assert_eq!(asked(&known, true), 0);
    }
}
