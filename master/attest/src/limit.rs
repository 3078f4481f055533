//! Rate limits: a token bucket for each caller and one for all, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How fast something may go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Tokens a second.
    pub(crate) per_second: f64,
    /// Tokens at most.
    pub(crate) burst: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { tokens: rate.burst, at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + seconds * rate.per_second).min(rate.burst);
        self.at = now;
    }
}

/// The buckets.
#[derive(Debug)]
pub(crate) struct Limiter<C> {
    each: Rate,
    all: Rate,
    total: Bucket,
    callers: HashMap<C, Bucket>,
}

/// Most callers that are remembered; beyond it the ones that rested longest are forgotten.
const CALLERS: usize = 4096;

impl<C: Hash + Eq> Limiter<C> {
    /// Limits for each caller, and for all together.
    pub(crate) fn new(each: Rate, all: Rate, now: Instant) -> Self {
        Self { each, all, total: Bucket::full(all, now), callers: HashMap::new() }
    }

    /// Takes a token for this caller; false: too fast.
    pub(crate) fn admit(&mut self, caller: C, now: Instant) -> bool {
        if self.callers.len() >= CALLERS && !self.callers.contains_key(&caller) {
            self.forget(now);
        }
        let bucket = self.callers.entry(caller).or_insert_with(|| Bucket::full(self.each, now));
        bucket.refill(self.each, now);
        self.total.refill(self.all, now);
        if bucket.tokens < 1.0 || self.total.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        self.total.tokens -= 1.0;
        true
    }

    /// Drops the callers whose buckets are full again, and if all are busy, all: the total still holds.
    fn forget(&mut self, now: Instant) {
        let refill = Duration::from_secs_f64(self.each.burst / self.each.per_second);
        self.callers.retain(|_, bucket| now.saturating_duration_since(bucket.at) < refill);
        if self.callers.len() >= CALLERS {
            self.callers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    const EACH: Rate = Rate { per_second: 1.0, burst: 2.0 };
    const ALL: Rate = Rate { per_second: 100.0, burst: 5.0 };

    #[test]
    fn a_caller_gets_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut limiter = Limiter::new(EACH, ALL, start);
        assert!(limiter.admit(address(1), start));
        assert!(limiter.admit(address(1), start));
        assert!(!limiter.admit(address(1), start));
        assert!(limiter.admit(address(2), start));
        assert!(limiter.admit(address(1), start + Duration::from_secs(1)));
        assert!(!limiter.admit(address(1), start + Duration::from_secs(1)));
    }

    #[test]
    fn all_callers_share_the_total() {
        let start = Instant::now();
        let mut limiter = Limiter::new(EACH, ALL, start);
        let admitted = (0..100).filter(|n| limiter.admit(address(*n), start)).count();
        assert_eq!(admitted, 5);
    }

    #[test]
    fn memory_is_bounded_whoever_calls() {
        let start = Instant::now();
        let mut limiter = Limiter::new(EACH, Rate { per_second: 1e9, burst: 1e9 }, start);
        for n in 0..20_000 {
            limiter.admit(address(n), start);
            assert!(limiter.callers.len() <= CALLERS);
        }
    }
}
