//! Waiting for conditions, with a limit and a hint.

use crate::{Error, Result};
use std::time::{Duration, Instant};

/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(100);
/// The same if a check runs a program that talks to an emulated machine: checking all the time
/// would take half of the host.
const LONG_PAUSE: Duration = Duration::from_millis(1500);

/// Looks until `condition` gives a value, or fails after `limit` with what was awaited and where to
/// look.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    hint: &str,
    condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    look(what, limit, hint, PAUSE, condition)
}

/// As [`eventually`], for conditions that are expensive to check.
pub fn eventually_costly<T>(
    what: &str,
    limit: Duration,
    hint: &str,
    condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    look(what, limit, hint, LONG_PAUSE, condition)
}

fn look<T>(
    what: &str,
    limit: Duration,
    hint: &str,
    pause: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if start.elapsed() >= limit {
            return Err(Error::Timeout {
                what: what.to_owned(),
                seconds: limit.as_secs(),
                hint: hint.to_owned(),
            });
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_is_returned() {
        let mut left = 2;
        let value = eventually("a countdown", Duration::from_secs(5), "", || {
            left -= 1;
            Ok((left == 0).then_some(7))
        });
        assert_eq!(value.unwrap(), 7);
    }

    #[test]
    fn a_condition_that_never_comes_says_what_was_awaited() {
        let error = eventually::<()>("the tide", Duration::ZERO, "look at the sea", || Ok(None))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "waited 0 s for the tide; look at the sea"
        );
    }
}
