//! The agent's report to init about the state: lines of text over a pipe. (Only the agent can talk
//! to the TPM.)
//!
//! `outcome WORD`, then its fields (`key`, `recovery`, `reason`, `generation`, `boots`,
//! `renewals`), one each, then `end`. init answers an opened or new state with [`InitAnswer`]: the
//! floor that the machine's admission allows, and this boot's value.

use crate::generation::BootNonce;
use crate::header::{VOLUME_KEY, VolumeKey, WRAPPING_KEY, WrappingKey};
use crate::reason::Reason;
use std::fmt;
use zeroize::Zeroizing;

/// Most bytes of a report.
pub const MAX_REPORT: usize = 34 << 10;
/// Most bytes of the master's keys in a report.
pub const MAX_KEYS: usize = 16 << 10;
/// Most boots of a report: the TPM has two places for a key.
pub const MOST_BOOTS: usize = 2;
/// Most bytes of an answer.
pub const MAX_ANSWER: usize = 64;

/// What init has to do.
#[derive(Clone, PartialEq, Eq)]
pub enum Report {
    /// The volume is there: open it with this key.
    Opened {
        /// Its key.
        key: VolumeKey,
        /// Its generation.
        generation: u64,
        /// The values of the boots for which the TPM last moved, [`MOST_BOOTS`] at most: the
        /// state's files name one of them. The first is the one that this boot follows.
        boots: Vec<BootNonce>,
        /// How often it was made anew before.
        renewals: u32,
        /// SHA-256 of the key of the admin who moved it to this board; `None` if it was made here.
        admin: Option<[u8; 32]>,
    },
    /// The volume was made on another board and opened by the admin's one-off key: mount it, store
    /// the keys, and answer. Without an answer it stays bound to the other board.
    Recovered {
        /// Its key.
        key: VolumeKey,
        /// Its generation from the answer on.
        generation: u64,
        /// SHA-256 of the admin's key.
        admin: [u8; 32],
        /// The master's keys, which the other board's TPM sealed: PEM.
        keys: Zeroizing<Vec<u8>>,
    },
    /// The header is new: make a file system, and answer. Without an answer the state counts as not
    /// finished, and is made again.
    Made {
        /// Its key.
        key: VolumeKey,
        /// The key of its recovery slot, to be kept in it, if it can be recovered.
        recovery: Option<WrappingKey>,
        /// Why it was made.
        reason: Reason,
        /// How often it was made anew, this time included.
        renewals: u32,
    },
    /// Nothing can keep a key: make a file system that lasts until the next reboot.
    Temporary {
        /// Its key.
        key: VolumeKey,
        /// Why nothing can keep it.
        reason: Reason,
    },
    /// There is a state that must not be replaced by a new one: the boot stops.
    Refused {
        /// Why it did not open.
        reason: Reason,
    },
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened {
                generation,
                renewals,
                ..
            } => write!(f, "Opened({generation}, {renewals})"),
            Self::Recovered { generation, .. } => write!(f, "Recovered({generation})"),
            Self::Made {
                reason, renewals, ..
            } => write!(f, "Made({reason:?}, {renewals})"),
            Self::Temporary { reason, .. } => write!(f, "Temporary({reason:?})"),
            Self::Refused { reason } => write!(f, "Refused({reason:?})"),
        }
    }
}

impl Report {
    /// The last line.
    pub const END: &'static str = "end\n";

    /// The text. It holds keys.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(String::with_capacity(MAX_REPORT));
        let mut line = |name: &str, value: &str| {
            for part in [name, " ", value, "\n"] {
                out.push_str(part);
            }
        };
        let hexed = |bytes: &[u8]| Zeroizing::new(hex::encode(bytes));
        match self {
            Self::Opened {
                key,
                generation,
                boots,
                renewals,
                admin,
            } => {
                line("outcome", "opened");
                line("key", &hexed(key.as_slice()));
                line("generation", &generation.to_string());
                line("boots", &hexed(&boots.concat()));
                line("renewals", &renewals.to_string());
                if let Some(admin) = admin {
                    line("admin", &hexed(admin));
                }
            }
            Self::Recovered {
                key,
                generation,
                admin,
                keys,
            } => {
                line("outcome", "recovered");
                line("key", &hexed(key.as_slice()));
                line("generation", &generation.to_string());
                line("admin", &hexed(admin));
                line("keys", &hexed(keys));
            }
            Self::Made {
                key,
                recovery,
                reason,
                renewals,
            } => {
                line("outcome", "made");
                line("key", &hexed(key.as_slice()));
                line("reason", &reason.word());
                line("renewals", &renewals.to_string());
                if let Some(recovery) = recovery {
                    line("recovery", &hexed(recovery.as_slice()));
                }
            }
            Self::Temporary { key, reason } => {
                line("outcome", "temporary");
                line("key", &hexed(key.as_slice()));
                line("reason", &reason.word());
            }
            Self::Refused { reason } => {
                line("outcome", "refused");
                line("reason", &reason.word());
            }
        }
        out.push_str(Self::END);
        out
    }

    /// Parses the output of [`Report::to_text`]; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let body = text
            .strip_suffix(Self::END)
            .filter(|_| text.len() <= MAX_REPORT)?;
        let mut fields = body.lines().map(|line| line.split_once(' '));
        let mut next = |wanted: &str| {
            fields
                .next()
                .flatten()
                .filter(|(name, _)| *name == wanted)
                .map(|(_, value)| value)
        };
        let report = match next("outcome")? {
            "opened" => Self::Opened {
                key: bytes::<VOLUME_KEY>(next("key")?)?,
                generation: next("generation")?.parse().ok()?,
                boots: boots(next("boots")?)?,
                renewals: next("renewals")?.parse().ok()?,
                admin: match next("admin") {
                    Some(text) => Some(*bytes::<32>(text)?),
                    None => None,
                },
            },
            "recovered" => Self::Recovered {
                key: bytes::<VOLUME_KEY>(next("key")?)?,
                generation: next("generation")?.parse().ok()?,
                admin: *bytes::<32>(next("admin")?)?,
                keys: keys(next("keys")?)?,
            },
            "made" => Self::Made {
                key: bytes::<VOLUME_KEY>(next("key")?)?,
                reason: Reason::of_word(next("reason")?)?,
                renewals: next("renewals")?.parse().ok()?,
                recovery: match next("recovery") {
                    Some(text) => Some(bytes::<WRAPPING_KEY>(text)?),
                    None => None,
                },
            },
            "temporary" => Self::Temporary {
                key: bytes::<VOLUME_KEY>(next("key")?)?,
                reason: Reason::of_word(next("reason")?)?,
            },
            "refused" => Self::Refused {
                reason: Reason::of_word(next("reason")?)?,
            },
            _ => return None,
        };
        // Each report has exactly one text, so comparing the text finds what the parser skipped.
        (*report.to_text() == *text).then_some(report)
    }
}

fn boots(text: &str) -> Option<Vec<BootNonce>> {
    let bytes = hex::decode(text).ok()?;
    let (boots, rest) = bytes.as_chunks();
    let fits = (1..=MOST_BOOTS).contains(&boots.len()) && rest.is_empty();
    fits.then(|| boots.to_vec())
}

fn keys(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut out = Zeroizing::new(vec![0; text.len() / 2]);
    let fits = out.len() <= MAX_KEYS;
    (fits && hex::decode_to_slice(text, &mut out).is_ok()).then_some(out)
}

fn bytes<const N: usize>(text: &str) -> Option<Zeroizing<[u8; N]>> {
    let mut out = Zeroizing::new([0; N]);
    hex::decode_to_slice(text, out.as_mut_slice())
        .ok()
        .map(|()| out)
}

/// init's answer after the state is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAnswer {
    /// The security version of the machine's last admission, zero for none.
    pub admitted: u64,
    /// This boot's value, which the state's files name already.
    pub boot: BootNonce,
}

impl InitAnswer {
    /// The line.
    pub fn to_text(self) -> String {
        format!(
            "admitted {} boot {}\n",
            self.admitted,
            hex::encode(self.boot)
        )
    }

    /// Parses the output of [`InitAnswer::to_text`]; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let values = text.strip_prefix("admitted ")?.strip_suffix('\n')?;
        let (admitted, boot) = values.split_once(" boot ")?;
        Some(Self {
            admitted: admitted.parse().ok()?,
            boot: *bytes(boot)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_report_round_trips_and_no_part_of_one_parses() {
        let (key, recovery) = (
            Zeroizing::new([7; VOLUME_KEY]),
            Zeroizing::new([8; WRAPPING_KEY]),
        );
        for report in [
            Report::Opened {
                key: key.clone(),
                generation: 3,
                boots: vec![[5; 8]],
                renewals: 1,
                admin: None,
            },
            Report::Opened {
                key: key.clone(),
                generation: 3,
                boots: vec![[0; 8], [5; 8]],
                renewals: 1,
                admin: Some([9; 32]),
            },
            Report::Recovered {
                key: key.clone(),
                generation: 4,
                admin: [9; 32],
                keys: Zeroizing::new(vec![7; MAX_KEYS]),
            },
            Report::Made {
                key: key.clone(),
                recovery: Some(recovery),
                reason: Reason::Floor(4),
                renewals: 1,
            },
            Report::Made {
                key: key.clone(),
                recovery: None,
                reason: Reason::FirstStart,
                renewals: 0,
            },
            Report::Temporary {
                key,
                reason: Reason::NoTpm,
            },
            Report::Refused {
                reason: Reason::OlderCopy,
            },
        ] {
            let text = report.to_text();
            assert!(
                text.len() < MAX_REPORT && !format!("{report:?}").contains("0707"),
                "{report:?}"
            );
            for length in 0..text.len() {
                assert_eq!(Report::parse(&text[..length]), None);
            }
            assert_eq!(Report::parse(&format!("x 1\n{}", *text)), None);
            assert_eq!(Report::parse(&text.replace("end\n", "x 1\nend\n")), None);
            assert_eq!(Report::parse(&text), Some(report));
        }
        let answer = InitAnswer {
            admitted: u64::MAX,
            boot: [0xA5; 8],
        };
        let text = answer.to_text();
        assert!(text.len() <= MAX_ANSWER, "{text}");
        assert_eq!(InitAnswer::parse(&text), Some(answer));
        for other in [
            "admitted x boot a5a5a5a5a5a5a5a5\n",
            "admitted 1 boot a5\n",
            "admitted 1\n",
        ] {
            assert_eq!(InitAnswer::parse(other), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(outcome (opened|recovered|made|refused)\n)?(key [0-9a-f]{0,130}\n)?.{0,60}(end\n)?") {
            if let Some(report) = Report::parse(&text) {
                prop_assert_eq!(&*report.to_text(), &text);
            }
        }
    }
}
