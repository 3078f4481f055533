//! The text in which the state names the header's generation to which its files belong.
//!
//! It is the one file behind the header that an attacker with the disk cannot roll back unnoticed:
//! each boot writes another number, and an older number is refused. Other values that must not be
//! rolled back are in the same file.
//!
//! The number fills the first 32 bytes where fields follow it: programs from before there were
//! fields read no more than that. Such a program writes the number alone, and the fields are lost.

use std::fmt;
use std::str::FromStr;

/// Longest text that is read.
pub const LIMIT: u64 = 256;
/// Bytes of the number's line where fields follow, its end included.
const FIRST: usize = 32;

/// The content of the file `generation`: a number, with `+` in front of it in a state that lists
/// the configurations which it allows, and the fields that are there, one a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation {
    /// The header's generation to which the files belong.
    pub number: u64,
    /// Whether the state lists the configurations that it allows: then the list may not be missing.
    pub listed: bool,
    /// How the machine joined the cluster that the state belongs to: then the record of that
    /// cluster may not be missing. `None` before it joined.
    pub joined: Option<Joined>,
    /// The generation in which a master last began to serve the state's store: then the store says
    /// so, too. `None` before one did.
    pub served: Option<u64>,
}

/// How a machine joins a cluster, by which its state stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// The master admitted it.
    Admitted,
    /// By an identity in its user-data, without a word of the master: the digest is that of the
    /// user-data beside it.
    Issued([u8; 32]),
}

/// A text that is none of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the number of a generation")]
pub struct NoGeneration;

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted => f.write_str("admitted"),
            Self::Issued(digest) => {
                f.write_str("issued ")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Joined {
    type Err = NoGeneration;

    fn from_str(text: &str) -> Result<Self, NoGeneration> {
        if text == "admitted" {
            return Ok(Self::Admitted);
        }
        let digits = text.strip_prefix("issued ").ok_or(NoGeneration)?;
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() {
            return Err(NoGeneration);
        }
        for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_none| NoGeneration)?;
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(NoGeneration);
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_none| NoGeneration)?;
        }
        Ok(Self::Issued(digest))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.listed { "+" } else { "" };
        let number = format!("{mark}{}", self.number);
        if self.joined.is_none() && self.served.is_none() {
            return writeln!(f, "{number}");
        }
        writeln!(f, "{number:width$}", width = FIRST - 1)?;
        if let Some(joined) = self.joined {
            writeln!(f, "joined {joined}")?;
        }
        if let Some(served) = self.served {
            writeln!(f, "served {served}")?;
        }
        Ok(())
    }
}

impl FromStr for Generation {
    type Err = NoGeneration;

    fn from_str(text: &str) -> Result<Self, NoGeneration> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default().trim_end();
        let digits = first.strip_prefix('+');
        let mut read = Self {
            number: number(digits.unwrap_or(first))?,
            listed: digits.is_some(),
            ..Self::default()
        };
        for line in lines {
            match line.split_once(' ') {
                Some(("joined", joined)) => read.joined = Some(joined.parse()?),
                Some(("served", served)) => read.served = Some(number(served)?),
                // A field of a later program.
                Some(_) | None => {}
            }
        }
        Ok(read)
    }
}

fn number(digits: &str) -> Result<u64, NoGeneration> {
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(NoGeneration);
    }
    digits.parse().map_err(|_none| NoGeneration)
}

#[cfg(test)]
mod tests {
    use super::{Generation, Joined, LIMIT, NoGeneration};

    #[test]
    fn a_generation_is_read_as_it_is_written_and_by_older_programs_as_a_number() {
        for joined in [
            None,
            Some(Joined::Admitted),
            Some(Joined::Issued([0xAB; 32])),
        ] {
            for served in [None, Some(3), Some(u64::MAX)] {
                for listed in [false, true] {
                    for number in [0, 1, 17, u64::MAX] {
                        let one = Generation {
                            number,
                            listed,
                            joined,
                            served,
                        };
                        let text = one.to_string();
                        assert_eq!(text.parse(), Ok(one));
                        assert!(text.len() < usize::try_from(LIMIT).unwrap(), "{text}");
                        // What a program read that knows the number alone.
                        let first = &text[..text.len().min(32)];
                        assert_eq!(first.trim_end().parse(), Ok(number), "{text}");
                    }
                }
            }
        }
        assert_eq!(
            "7\n".parse(),
            Ok(Generation {
                number: 7,
                ..Generation::default()
            }),
            "a state from before there were fields"
        );
        let later = "+7\nlater field\nserved 2\n".parse::<Generation>();
        assert_eq!(later.map(|read| read.served), Ok(Some(2)));
    }

    #[test]
    fn anything_else_is_no_generation() {
        let short = format!("7\njoined issued {}\n", "ab".repeat(31));
        let other = format!("7\njoined issued {}\n", "+b".repeat(32));
        for none in [
            "",
            "+",
            "++1",
            "-1",
            "one",
            "1 +",
            "18446744073709551616",
            "7\nserved\u{20}\n",
            "7\nserved +1\n",
            "7\njoined x\n",
            &short,
            &other,
        ] {
            assert_eq!(none.parse::<Generation>(), Err(NoGeneration), "{none:?}");
        }
    }
}
