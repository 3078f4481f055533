//! Selects an offset from the servers' answers, and bounds the clock step.

use crate::sntp::Sample;
use std::time::Duration;

/// Answers agree if they differ by no more than this, in addition to what their delays explain.
const AGREE: Duration = Duration::from_secs(1);
/// A clock that is off by less is left alone.
const SMALL: Duration = Duration::from_millis(500);
/// How far back servers may set the clock: a battery clock in local time is off by less. Farther
/// back, expired certificates and documents would be valid again.
const BACK: Duration = Duration::from_secs(24 * 3600);
/// The longest time after the image's build that a clock may show: no image is run for ten years.
const AHEAD: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The servers' answers contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{of} time servers answered, and no more than {agree} of them agree")]
pub struct Disagreement {
    /// How many answered.
    pub of: usize,
    /// How many agree at most.
    pub agree: usize,
}

/// The bounds within which servers may set the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// When the image was built, since 1970: it is never earlier.
    pub built: Duration,
}

/// What to do with the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Leave it: the clock is exact enough.
    Leave,
    /// Set it to this time since the Unix epoch.
    Set(Duration),
}

/// A time that no server may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Before the image was built.
    #[error("the time servers report a time before this image was built")]
    BeforeImage,
    /// Too far after the image was built.
    #[error("the time servers report a time more than ten years after this image was built")]
    TooFar,
    /// Too far back.
    #[error("the time servers report a time more than a day before this machine's clock")]
    TooFarBack,
}

/// The offset that more than half of the servers agree on: of those, the answer that came quickest.
///
/// # Errors
/// [`Disagreement`] where no offset has more than half of the servers.
pub fn judge(samples: &[Sample]) -> Result<Option<Sample>, Disagreement> {
    let near = |one: &Sample, two: &Sample| {
        let room = AGREE + one.delay / 2 + two.delay / 2;
        u128::from(one.offset.abs_diff(two.offset)) <= room.as_nanos()
    };
    let camp = |one: &Sample| samples.iter().filter(|two| near(one, two)).count();
    let of = samples.len();
    let agree = samples.iter().map(camp).max().unwrap_or(0);
    if of > 0 && agree * 2 <= of {
        return Err(Disagreement { of, agree });
    }
    Ok(samples
        .iter()
        .filter(|sample| camp(sample) == agree)
        .min_by_key(|sample| sample.delay)
        .copied())
}

/// The step by which servers set the clock: once, before the master's time is known.
///
/// # Errors
/// [`Refusal`] where the time would be out of bounds.
pub fn step(now: Duration, offset: i64, bounds: Bounds) -> Result<Step, Refusal> {
    let by = Duration::from_nanos(offset.unsigned_abs());
    if by < SMALL {
        return Ok(Step::Leave);
    }
    let to = if offset < 0 {
        now.checked_sub(by)
    } else {
        now.checked_add(by)
    };
    let to = to
        .filter(|to| *to >= bounds.built)
        .ok_or(Refusal::BeforeImage)?;
    if to > bounds.built + AHEAD {
        return Err(Refusal::TooFar);
    }
    if offset < 0 && by > BACK {
        return Err(Refusal::TooFarBack);
    }
    Ok(Step::Set(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUILT: Duration = Duration::from_secs(1_795_000_000);
    const BOUNDS: Bounds = Bounds { built: BUILT };
    const SECOND: i64 = 1_000_000_000;

    fn sample(seconds: i64, delay: u64) -> Sample {
        Sample {
            offset: seconds * SECOND,
            delay: Duration::from_millis(delay),
        }
    }

    #[test]
    fn the_majority_counts_and_of_it_the_quickest() {
        assert_eq!(judge(&[]), Ok(None));
        assert_eq!(judge(&[sample(900, 5)]), Ok(Some(sample(900, 5))));
        assert_eq!(
            judge(&[sample(3, 50), sample(900, 1), sample(3, 20)]),
            Ok(Some(sample(3, 20)))
        );
        assert_eq!(
            judge(&[sample(3, 50), sample(900, 1)]),
            Err(Disagreement { of: 2, agree: 1 })
        );
        let split = [sample(3, 5), sample(3, 5), sample(900, 1), sample(900, 1)];
        assert_eq!(judge(&split), Err(Disagreement { of: 4, agree: 2 }));
    }

    #[test]
    fn the_clock_moves_within_bounds_only() {
        let now = BUILT + Duration::from_secs(100_000);
        let stepped = |seconds: i64| step(now, seconds * SECOND, BOUNDS);
        assert_eq!(step(now, SECOND / 4, BOUNDS), Ok(Step::Leave));
        assert_eq!(stepped(50), Ok(Step::Set(now + Duration::from_secs(50))));
        assert_eq!(
            stepped(-50),
            Ok(Step::Set(BUILT + Duration::from_secs(99_950)))
        );
        assert_eq!(stepped(-86_401), Err(Refusal::TooFarBack));
        assert_eq!(stepped(-100_001), Err(Refusal::BeforeImage));
        assert_eq!(stepped(10 * 365 * 86_400), Err(Refusal::TooFar));
        let dead_battery = step(BUILT, 3 * 365 * 86_400 * SECOND, BOUNDS);
        assert!(matches!(dead_battery, Ok(Step::Set(_))));
        assert_eq!(step(BUILT, -SECOND, BOUNDS), Err(Refusal::BeforeImage));
    }

    proptest! {
        /// Whatever servers answer, the clock lands in its bounds or stays.
        #[test]
        fn no_offset_leaves_the_bounds(ahead in 0..1_000_000_000_u64, offset in any::<i64>()) {
            let now = BUILT + Duration::from_secs(ahead);
            if let Ok(Step::Set(to)) = step(now, offset, BOUNDS) {
                prop_assert!(to >= BUILT && to <= BUILT + AHEAD && to + BACK >= now);
            }
        }

        #[test]
        fn a_minority_never_decides(good in 2..6_usize, lie in any::<i64>()) {
            let mut samples = vec![sample(3, 10); good];
            samples.extend(vec![Sample { offset: lie, delay: Duration::ZERO }; good - 1]);
            prop_assert!(judge(&samples).unwrap().unwrap().offset.abs_diff(3 * SECOND) <= 1_010_000_000);
        }
    }
}
