//! How long to wait: between refused attempts, and before a renewal. No clock: the caller passes
//! time and randomness.

use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

/// First wait after a refusal or a failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait at a join: a machine that an admin has just put into the inventory should join
/// soon.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Shortest time between two renewals, even if the master asks for less.
const RENEWAL_FLOOR: Duration = Duration::from_secs(2);
/// Longest time between two renewals: certificates live a day at most.
const RENEWAL_CEILING: Duration = Duration::from_secs(86_400);

/// Waits that double from [`FIRST`] to the longest, each of them shortened by up to half at random
/// so that machines that were refused together do not come back together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::up_to(MAX_WAIT)
    }

    fn up_to(longest: Duration) -> Self {
        Self {
            next: FIRST,
            longest,
        }
    }

    /// The wait before the next attempt.
    pub(crate) fn step(&mut self) -> Duration {
        self.step_by(fraction())
    }

    fn step_by(&mut self, chance: f64) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait.mul_f64(0.5 + chance / 2.0)
    }
}

/// A node's next step for its certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Nothing for this long.
    Wait(Duration),
    /// A renewal with the certificate that it has.
    Renew,
    /// Join again: the renewal was refused.
    Rejoin,
    /// Join again: the certificate has expired.
    Expired,
}

/// When a node renews, tries again, and joins anew.
///
/// Guarantee: an outage of the master of up to 60 % of the lifetime leaves time for a try before
/// the certificate ends, at lifetimes of ten minutes and more. A renewal begins after a third of
/// the lifetime at the latest, and waits between tries are at most a twentieth of that third.
///
/// Times are those of the caller's monotonic clock, so that a wrong time of day does not matter.
/// Randomness is a number from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct Cadence {
    due: Duration,
    end: Duration,
    refused: bool,
    backoff: Backoff,
}

impl Cadence {
    /// From certificates that the master gave at `now`.
    pub fn new(now: Duration, renew_after_seconds: u64, chance: f64) -> Self {
        let third = Duration::from_secs(renew_after_seconds).clamp(RENEWAL_FLOOR, RENEWAL_CEILING);
        let backoff = Backoff::up_to((third / 20).clamp(FIRST, MAX_WAIT));
        Self {
            due: now + renewal(third, chance),
            end: now + third * 3,
            refused: false,
            backoff,
        }
    }

    /// The next step at `now`.
    pub fn next(&self, now: Duration) -> NextAction {
        match self.due.checked_sub(now) {
            Some(wait) if !wait.is_zero() => NextAction::Wait(wait),
            Some(_) | None if now >= self.end => NextAction::Expired,
            Some(_) | None if self.refused => NextAction::Rejoin,
            Some(_) | None => NextAction::Renew,
        }
    }

    /// The step failed at `now`, or was refused; returns the wait before the next try.
    pub fn failed(&mut self, now: Duration, refused: bool, chance: f64) -> Duration {
        self.refused |= refused;
        let again = self.backoff.step_by(chance);
        self.due = now + again;
        again
    }
}

/// When to renew: at a third of the lifetime, or up to a fifth of that earlier.
fn renewal(third: Duration, chance: f64) -> Duration {
    third.mul_f64(0.8 + chance / 5.0)
}

/// The wait that was asked for, and up to half as long again, so that waiting machines do not all
/// ask at once.
pub(crate) fn spread(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + fraction() / 2.0)
}

/// A random number from 0 to 1. If the system has no randomness there is no jitter, which does no
/// harm.
pub(crate) fn fraction() -> f64 {
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
        assert!(waits.iter().all(|wait| *wait <= MAX_WAIT));
        assert!(waits[11] >= MAX_WAIT / 2);
    }

    #[test]
    fn a_renewal_comes_at_about_a_third() {
        for _ in 0..100 {
            let after = renewal(Duration::from_secs(600), fraction());
            assert!(
                after >= Duration::from_secs(480) && after <= Duration::from_secs(600),
                "{after:?}"
            );
        }
    }

    /// The worst moment for an outage to begin is when the renewal is due; each try during it may
    /// take the whole time of a look-up and a connection.
    #[test]
    fn an_outage_of_sixty_percent_leaves_time_for_a_renewal() {
        let connect = crate::endpoint::LOOKUP_TIMEOUT + config_http::CONNECT_LIMIT;
        let exchange = Duration::from_secs(8);
        for life in (600..=86_400).step_by(60) {
            for chance in [0.0, 0.5, 1.0] {
                let mut cadence = Cadence::new(Duration::ZERO, life / 3, chance);
                let NextAction::Wait(due) = cadence.next(Duration::ZERO) else {
                    panic!("a renewal that is due at once")
                };
                let over = due + Duration::from_secs(life * 3 / 5);
                let mut now = due;
                while now < over {
                    assert_eq!(
                        cadence.next(now),
                        NextAction::Renew,
                        "{life} s: lapsed in the outage"
                    );
                    now += connect;
                    now += cadence.failed(now, false, chance);
                }
                assert_eq!(
                    cadence.next(now + exchange),
                    NextAction::Renew,
                    "{life} s, chance {chance}: no time is left"
                );
            }
        }
    }

    #[test]
    fn a_refused_renewal_or_an_expired_certificate_leads_to_a_join() {
        let seconds = Duration::from_secs;
        let mut cadence = Cadence::new(seconds(0), 600, 0.5);
        assert_eq!(cadence.next(seconds(0)), NextAction::Wait(seconds(540)));
        assert_eq!(cadence.next(seconds(600)), NextAction::Renew);
        assert_eq!(cadence.failed(seconds(600), false, 1.0), seconds(1));
        assert_eq!(
            (cadence.next(seconds(600)), cadence.next(seconds(601))),
            (NextAction::Wait(seconds(1)), NextAction::Renew)
        );
        cadence.failed(seconds(601), true, 1.0);
        assert_eq!(cadence.next(seconds(603)), NextAction::Rejoin);
        assert_eq!(cadence.next(seconds(1800)), NextAction::Expired);
    }
}
