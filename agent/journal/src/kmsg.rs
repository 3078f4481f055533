//! The kernel's log: a record for each read of `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg).

use crate::service::LoggedService;
use crate::source::{Line, Micros, Source, clean, within};
use config_machine::journal::{DAEMON, TAG};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The kernel's longest record with its dictionary; it refuses a read into less.
const MAX_RECORD: usize = 8192;
const OVERWRITTEN: &str = "(records of the kernel's log were overwritten before they were read)";

/// A record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The facility that wrote it (RFC 5424): 0 is the kernel.
    pub facility: u32,
    /// Microseconds since the kernel started.
    pub since_boot: u64,
    /// Its text, with the bytes that the kernel wrote as `\x0a`; the dictionary behind it is left
    /// out.
    pub text: Vec<u8>,
}

/// Reads a record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT`, and then lines of a dictionary.
/// `None` where it is none.
pub fn record(bytes: &[u8]) -> Option<Record> {
    let (head, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == b';')?);
    let mut fields = std::str::from_utf8(head).ok()?.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let since_boot = fields.nth(1)?.parse().ok()?;
    let text = rest.get(1..)?.split(|byte| *byte == b'\n').next()?;
    Some(Record {
        facility: priority >> 3,
        since_boot,
        text: unescaped(text),
    })
}

/// Undoes the kernel's escapes of bytes that do not print.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let code = text
            .get(at..at + 4)
            .filter(|four| four.starts_with(b"\\x"))
            .and_then(|four| std::str::from_utf8(four.get(2..)?).ok())
            .filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    out
}

fn file(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(path)
}

/// The kernel's lines, or init's, out of the kernel's log.
pub(crate) struct KernelLog {
    records: Box<dyn Read + Send>,
    service: LoggedService,
    /// When the kernel started.
    epoch: Micros,
    last: Micros,
    buffer: Vec<u8>,
}

impl KernelLog {
    /// Opens it at its oldest record.
    ///
    /// # Errors
    /// There is none, or this process may not read it.
    pub(crate) fn open(path: &Path, service: LoggedService, epoch: Micros) -> io::Result<Self> {
        Ok(Self::of(Box::new(file(path)?), service, epoch))
    }

    /// Opens it behind its newest record. Its lines have the time since the start.
    ///
    /// # Errors
    /// There is none, or this process may not read it.
    pub(crate) fn open_at_end(path: &Path, service: LoggedService) -> io::Result<Self> {
        let mut file = file(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self::of(Box::new(file), service, 0))
    }

    fn of(records: Box<dyn Read + Send>, service: LoggedService, epoch: Micros) -> Self {
        Self {
            records,
            service,
            epoch,
            last: epoch,
            buffer: vec![0; MAX_RECORD],
        }
    }

    /// A record as a line, if it is of the service that is asked for.
    fn line(&mut self, length: usize) -> Option<Line> {
        let record = record(self.buffer.get(..length)?)?;
        let since = i64::try_from(record.since_boot).unwrap_or(i64::MAX);
        // Processors' clocks may be some microseconds apart.
        self.last = self.last.max(within(self.epoch.saturating_add(since)));
        let text = if self.service == LoggedService::Init {
            let own = record.text.strip_prefix(TAG.as_bytes());
            own.filter(|_| record.facility == DAEMON)?
        } else {
            Some(&*record.text).filter(|_| record.facility == 0)?
        };
        Some(Line {
            time: self.last,
            text: clean(text),
        })
    }
}

impl Source for KernelLog {
    fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            match self.records.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => {
                    if let Some(line) = self.line(length) {
                        return Ok(Some(line));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The next record was overwritten; the kernel continues with the oldest one left.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    return Ok(Some(Line {
                        time: self.last,
                        text: OVERWRITTEN.to_owned(),
                    }));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A log that gives these records, or the error of an overwritten one.
    struct Log(VecDeque<Option<&'static [u8]>>);

    impl Read for Log {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                Some(Some(mut record)) => record.read(buffer),
                Some(None) => Err(ErrorKind::BrokenPipe.into()),
                None => Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    impl KernelLog {
        /// A log of these records.
        pub(crate) fn of_records(records: impl IntoIterator<Item = Option<&'static [u8]>>) -> Self {
            let records = Log(records.into_iter().collect());
            Self::of(Box::new(records), LoggedService::Kernel, 0)
        }
    }

    fn lines(service: LoggedService) -> Vec<(Micros, String)> {
        let records: [Option<&[u8]>; 6] = [
            Some(b"6,1,5000000,-;Linux version 6.12\n SUBSYSTEM=acpi\n DEVICE=+acpi:x\n"),
            Some(b"30,2,6000000,-;init: pratique: 6000 state mounted\n"),
            Some(b"30,3,6500000,-;systemd[1]: not ours\n"),
            None,
            Some(b"no record"),
            // From a processor whose clock is behind.
            Some(b"4,9,5900000,-,caller=T1;evil\\x1b[2J and a tail\\x5c\n"),
        ];
        let mut log = KernelLog::of(Box::new(Log(records.into())), service, 1_000_000);
        std::iter::from_fn(|| log.next().unwrap())
            .map(|line| (line.time, line.text))
            .collect()
    }

    #[test]
    fn kernel_and_init_are_separated_and_lost_records_are_reported() {
        let kernel = lines(LoggedService::Kernel);
        assert_eq!(kernel[0], (6_000_000, "Linux version 6.12".to_owned()));
        assert!(kernel[1].1.contains("overwritten"), "{kernel:?}");
        assert_eq!(
            kernel[2],
            (7_500_000, "evil\u{fffd}[2J and a tail\\".to_owned())
        );
        assert_eq!(kernel.len(), 3);
        let init = lines(LoggedService::Init);
        assert_eq!(
            init[0],
            (7_000_000, "pratique: 6000 state mounted".to_owned())
        );
        assert_eq!(init.len(), 2);
    }

    proptest! {
        /// No text of a record, whatever its bytes, reaches a terminal with a control character.
        #[test]
        fn no_record_controls_a_terminal(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [b"6,1,2,-;", &*text].concat();
            let record = record(&bytes).unwrap();
            prop_assert!(clean(&record.text).chars().all(|c| !c.is_control() || c == '\t'));
        }
    }
}
