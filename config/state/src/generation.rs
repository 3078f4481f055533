//! The text in which the state names the header's generation to which its files belong.
//!
//! It is the one file behind the header that an attacker with the disk cannot roll back unnoticed:
//! each boot writes another number, and an older number is refused. Other values that must not be
//! rolled back are in the same file.

use std::fmt;
use std::str::FromStr;

/// Longest text.
pub const LIMIT: u64 = 32;

/// The content of the file `generation`: a number, with `+` in front of it in a state that lists
/// the configurations which it allows. Programs from before there was a `+` read the number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation {
    /// The header's generation to which the files belong.
    pub number: u64,
    /// Whether the state lists the configurations that it allows: then the list may not be missing.
    pub listed: bool,
}

/// A text that is none of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the number of a generation")]
pub struct NoGeneration;

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.listed { "+" } else { "" };
        writeln!(f, "{mark}{}", self.number)
    }
}

impl FromStr for Generation {
    type Err = NoGeneration;

    fn from_str(text: &str) -> Result<Self, NoGeneration> {
        let text = text.trim_end();
        let digits = text.strip_prefix('+');
        let listed = digits.is_some();
        let digits = digits.unwrap_or(text);
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(NoGeneration);
        }
        let number = digits.parse().map_err(|_none| NoGeneration)?;
        Ok(Self { number, listed })
    }
}

#[cfg(test)]
mod tests {
    use super::{Generation, NoGeneration};

    #[test]
    fn a_generation_is_read_as_it_is_written_and_by_older_programs_as_a_number() {
        for listed in [false, true] {
            for number in [0, 1, 17, u64::MAX] {
                let one = Generation { number, listed };
                let text = one.to_string();
                assert_eq!(text.parse(), Ok(one));
                assert_eq!(text.trim_end().parse(), Ok(number), "{text}");
            }
        }
        for none in ["", "+", "++1", "-1", "one", "1 +", "18446744073709551616"] {
            assert_eq!(none.parse::<Generation>(), Err(NoGeneration), "{none:?}");
        }
    }
}
