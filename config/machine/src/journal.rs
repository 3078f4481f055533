//! The lines of services as init stores them and the agent reads them: a file of each service in
//! [`FOLDER`], with older ones behind it (`agent.log`, then `agent.log.1`), and before the text of
//! each line its [`Stamp`].

use std::fmt;

/// The folder of the services' logs.
pub const FOLDER: &str = "/var/log/pratique";
/// Largest size of one file in bytes.
pub const MAX_FILE: u64 = 4 << 20;
/// Older files kept of a service.
pub const KEPT: u32 = 3;
/// Longest text of a line in bytes.
pub const MAX_TEXT: usize = 4096;
/// Longest line of a file in bytes, with its stamp and its end.
pub const MAX_STORED: usize = MAX_TEXT + 64;
/// The facility of init's own lines in the kernel's log (RFC 5424: system daemons).
pub const DAEMON: u32 = 3;
/// The prefix of each of them.
pub const TAG: &str = "init: ";
/// The file with the kernel's id of the boot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The name of one boot: the first 32 bits of the kernel's `boot_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot(pub u32);

impl Boot {
    /// From the text of [`BOOT_ID`]; 0 if it is malformed.
    pub fn of(id: &str) -> Self {
        let start = id.get(..8).unwrap_or_default();
        Self(u32::from_str_radix(start, 16).unwrap_or(0))
    }
}

/// When a line was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// In which boot.
    pub boot: Boot,
    /// The wall clock of that moment in milliseconds since 1970, which may have been wrong.
    pub unix: u64,
    /// Milliseconds since the kernel started.
    pub since_boot: u64,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x} {} {}", self.boot.0, self.unix, self.since_boot)
    }
}

impl Stamp {
    /// A line of a file without its end: the stamp and the text. `None` if it has no stamp, as in
    /// logs from before 0.1.
    pub fn split(line: &[u8]) -> Option<(Self, &[u8])> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let boot = word().filter(|word| word.len() == 8)?;
        let stamp = Self {
            boot: Boot(u32::from_str_radix(boot, 16).ok()?),
            unix: word()?.parse().ok()?,
            since_boot: word()?.parse().ok()?,
        };
        Some((stamp, parts.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::{Boot, Stamp};

    #[test]
    fn a_stamp_round_trips_and_nothing_else_parses() {
        let stamp = Stamp {
            boot: Boot::of("00c0ffee-1234-4321-aaaa-bbbbccccdddd\n"),
            unix: 1_795_478_400_123,
            since_boot: u64::MAX,
        };
        assert_eq!(stamp.boot, Boot(0x00c0_ffee));
        for text in ["", "two  spaces ", "\u{fffd} 1 2 3"] {
            let line = format!("{stamp} {text}");
            assert_eq!(
                Stamp::split(line.as_bytes()),
                Some((stamp, text.as_bytes()))
            );
        }
        for other in [
            "",
            "2026-11-24T00:00:00Z INFO agent: text",
            "00c0ffee 1 2",
            "c0ffee 1 2 text",
            "00c0ffee -1 2 text",
            "00c0ffee 1 2e3 text",
            "time=\"2026-11-24\" level=warning",
        ] {
            assert_eq!(Stamp::split(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Boot::of(""), Boot(0));
    }
}
