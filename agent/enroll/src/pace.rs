//! How long to wait: between refused attempts, and before a renewal.

use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

/// First wait after a refusal or a failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait: a machine whose admin has just put it into the inventory should not be waited for much longer.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits that double from [`FIRST`] to [`LONGEST`], each of them shortened by up to half at random so that machines
/// that were refused together do not come back together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The wait before the next attempt.
    pub(crate) fn step(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait.mul_f64(0.5 + fraction() / 2.0)
    }
}

/// When to renew a certificate that lives for `lifetime`: at a third of it, give or take a tenth of that.
pub(crate) fn renewal(lifetime: Duration) -> Duration {
    (lifetime / 3).mul_f64(0.9 + fraction() / 5.0)
}

/// A random number from 0 to 1. Where the system has no randomness there is no jitter, which does no harm.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    SystemRandom::new().fill(&mut bytes).ok();
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..12).map(|_| backoff.step()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= LONGEST));
        assert!(waits[11] >= LONGEST / 2);
    }

    #[test]
    fn a_renewal_comes_at_about_a_third() {
        for _ in 0..100 {
            let after = renewal(Duration::from_secs(1800));
            assert!(after >= Duration::from_secs(540) && after <= Duration::from_secs(660), "{after:?}");
        }
    }
}
