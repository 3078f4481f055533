//! The clock of an enrolled machine, compared with the master's time, which comes over an
//! authenticated connection.

use std::time::Duration;

/// The smallest offset from the master that counts, nanoseconds: its Date header has whole seconds,
/// and an exchange takes time.
const NOISE: i64 = 3 * 1_000_000_000;
/// The offset from the master above which the clock is reported as wrong, nanoseconds: certificates
/// live for minutes.
const DOUBT: i64 = 30 * 1_000_000_000;
/// Servers whose time differs more from the master's are ignored; nanoseconds.
const TRUST: i64 = 10 * 1_000_000_000;
/// Most that one round slews, nanoseconds: the kernel moves the clock by a two-thousandth, so this
/// takes half an hour.
const SLEW: i64 = 1_000_000_000;

/// What to do with the clock, and what to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// Nanoseconds by which the clock is to be slewed; it is never stepped.
    pub slew: i64,
    /// Why the clock is reported as wrong; `None` where it is not.
    pub doubt: Option<String>,
}

/// What is known of the clock since the machine enrolled. Offsets are what the clock must be moved
/// by, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch {
    master: Option<i64>,
}

impl Watch {
    /// The master's time is known: `theirs`, when the clock here was at `ours`; both since 1970.
    pub fn master(&mut self, theirs: Duration, ours: Duration) -> Advice {
        let seconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let offset = seconds(theirs).saturating_sub(seconds(ours));
        self.master = Some(offset);
        let slew = if offset.saturating_abs() > NOISE {
            offset.clamp(-SLEW, SLEW)
        } else {
            0
        };
        Advice {
            slew,
            doubt: self.doubt(),
        }
    }

    /// Servers agreed on an offset. They are finer than the master's seconds, and may not
    /// contradict them.
    pub fn servers(&self, offset: i64) -> Advice {
        let slew = offset.clamp(-SLEW, SLEW);
        let Some(master) = self.master else {
            let far = offset.saturating_abs() > DOUBT;
            return Advice {
                slew,
                doubt: far.then(|| format!("the time servers say that it is {}", text(offset))),
            };
        };
        if offset.saturating_sub(master).saturating_abs() > TRUST {
            let (servers, master) = (text(offset), text(master));
            let doubt = format!(
                "the time servers say that it is {servers}, the master that it is {master}"
            );
            return Advice {
                slew: 0,
                doubt: Some(doubt),
            };
        }
        Advice {
            slew,
            doubt: self.doubt(),
        }
    }

    fn doubt(&self) -> Option<String> {
        let offset = self
            .master
            .filter(|offset| offset.saturating_abs() > DOUBT)?;
        Some(format!("by the master's time it is {}", text(offset)))
    }
}

/// An offset in words about the clock here.
fn text(offset: i64) -> String {
    let seconds = Duration::from_nanos(offset.unsigned_abs()).as_secs();
    match offset.signum() {
        _ if seconds == 0 => "right".to_owned(),
        1 => format!("{seconds} s slow"),
        _ => format!("{seconds} s fast"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn observed(theirs: u64, ours: u64) -> (Watch, Advice) {
        let mut watch = Watch::default();
        let advice = watch.master(Duration::from_secs(theirs), Duration::from_secs(ours));
        (watch, advice)
    }

    #[test]
    fn the_masters_time_slews_and_doubts_and_never_steps() {
        assert_eq!(
            observed(1002, 1000).1,
            Advice {
                slew: 0,
                doubt: None
            }
        );
        assert_eq!(
            observed(1010, 1000).1,
            Advice {
                slew: SECOND,
                doubt: None
            }
        );
        let (_, far) = observed(1000, 5000);
        assert_eq!(
            (far.slew, far.doubt.as_deref()),
            (-SECOND, Some("by the master's time it is 4000 s fast"))
        );
    }

    #[test]
    fn servers_that_contradict_the_master_are_not_listened_to() {
        let (watch, _) = observed(1000, 1000);
        assert_eq!(
            watch.servers(SECOND / 2),
            Advice {
                slew: SECOND / 2,
                doubt: None
            }
        );
        let lie = watch.servers(3600 * SECOND);
        assert_eq!(lie.slew, 0);
        let words = "the time servers say that it is 3600 s slow, the master that it is right";
        assert_eq!(lie.doubt.as_deref(), Some(words));
        assert_eq!(watch.servers(i64::MIN).slew, 0);
    }

    /// On the first master's machine the master's clock is the same clock, and proves nothing.
    #[test]
    fn without_a_masters_time_servers_slew_and_doubt() {
        let watch = Watch::default();
        assert_eq!(
            watch.servers(20 * SECOND),
            Advice {
                slew: SECOND,
                doubt: None
            }
        );
        let far = watch.servers(3600 * SECOND);
        assert_eq!(
            (far.slew, far.doubt.as_deref()),
            (SECOND, Some("the time servers say that it is 3600 s slow"))
        );
    }
}
