//! The firmware's event log (TCG PC Client Platform Firmware Profile 1.05, section 10): parsed,
//! bounded, replayed.
//!
//! Only the SHA-256 digests are kept. A parsed log proves nothing until [`EventLog::replay`] gives
//! the registers that a TPM quoted. Even then an event's type and data are the caller's claim
//! unless the digest covers them.

use crate::Digest;
use crate::HashAlg;
use crate::pcr::{Bank, COUNT};

/// Largest event log, in bytes.
pub const MAX_EVENT_LOG: usize = 256 * 1024;
/// Largest number of events.
pub const MAX_EVENTS: usize = 4096;
/// Largest number of banks in a log.
pub const MAX_BANKS: u32 = 8;

/// Event types (firmware profile, 10.4.1).
pub mod kind {
    /// Not measured.
    pub const NO_ACTION: u32 = 0x0000_0003;
    /// Ends a phase.
    pub const SEPARATOR: u32 = 0x0000_0004;
    /// A tagged event; the kernel's stub measures load options and initrd with it.
    pub const EVENT_TAG: u32 = 0x0000_0006;
    /// Initial program loader; systemd-stub measures with it.
    pub const IPL: u32 = 0x0000_000d;
    /// A UEFI variable of Secure Boot.
    pub const EFI_VARIABLE_DRIVER_CONFIG: u32 = 0x8000_0001;
    /// A started program.
    pub const EFI_BOOT_SERVICES_APPLICATION: u32 = 0x8000_0003;
    /// A string that says what firmware does next.
    pub const EFI_ACTION: u32 = 0x8000_0007;
    /// The database entry that allowed a program.
    pub const EFI_VARIABLE_AUTHORITY: u32 = 0x8000_00e0;
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Register.
    pub pcr: u8,
    /// Type, see [`kind`].
    pub kind: u32,
    /// SHA-256 digest that was extended.
    pub digest: Digest,
    /// Data.
    pub data: Vec<u8>,
}

/// A parsed log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventLog {
    /// The events after the header, in order.
    pub events: Vec<Event>,
}

/// Why bytes are not an event log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventLogError {
    /// Larger than [`MAX_EVENT_LOG`] or [`MAX_EVENTS`].
    #[error("larger than the limit of {MAX_EVENT_LOG} bytes and {MAX_EVENTS} events")]
    TooLarge,
    /// The header is not that of a crypto-agile log.
    #[error("no Spec ID Event03 header with a SHA-256 bank")]
    Header,
    /// Ends inside an event.
    #[error("ends inside event {0}")]
    Truncated(usize),
    /// An event that is malformed.
    #[error("event {0}: {1}")]
    Event(usize, &'static str),
}

const SIGNATURE: &[u8; 16] = b"Spec ID Event03\0";
const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// Little-endian reading.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.u32()?).ok()?;
        self.take(size)
    }
}

/// Sizes of the digests of each bank in the log.
type Banks = Vec<(u16, usize)>;

fn read_header(reader: &mut Reader<'_>) -> Option<Banks> {
    let (pcr, kind, digest) = (reader.u32()?, reader.u32()?, reader.take(20)?);
    let data = reader.sized()?;
    if pcr != 0 || kind != kind::NO_ACTION || digest.iter().any(|byte| *byte != 0) {
        return None;
    }
    let mut data = Reader(data);
    if data.take(16)? != SIGNATURE {
        return None;
    }
    data.take(8)?;
    let count = data.u32()?;
    if count == 0 || count > MAX_BANKS {
        return None;
    }
    let mut banks = Banks::new();
    for _ in 0..count {
        let (algorithm, size) = (data.u16()?, usize::from(data.u16()?));
        let known = HashAlg::from_id(algorithm).map_or(size <= 64, |hash| hash.size() == size);
        if !known || banks.iter().any(|(other, _)| *other == algorithm) {
            return None;
        }
        banks.push((algorithm, size));
    }
    let vendor = usize::from(data.u8()?);
    data.take(vendor)?;
    let complete = data.0.is_empty()
        && banks
            .iter()
            .any(|(algorithm, _)| *algorithm == HashAlg::Sha256.id());
    complete.then_some(banks)
}

fn read_event(
    reader: &mut Reader<'_>,
    banks: &Banks,
    index: usize,
) -> Result<Event, EventLogError> {
    let truncated = || EventLogError::Truncated(index);
    let pcr = reader.u32().ok_or_else(truncated)?;
    let kind = reader.u32().ok_or_else(truncated)?;
    let count = reader.u32().ok_or_else(truncated)?;
    if usize::try_from(count) != Ok(banks.len()) {
        return Err(EventLogError::Event(
            index,
            "does not have one digest for each bank",
        ));
    }
    let mut sha256 = None;
    for (bank, size) in banks {
        if reader.u16().ok_or_else(truncated)? != *bank {
            return Err(EventLogError::Event(
                index,
                "digests are not in the header's order",
            ));
        }
        let digest = reader.take(*size).ok_or_else(truncated)?;
        if *bank == HashAlg::Sha256.id() {
            sha256 = Digest::from_slice(digest);
        }
    }
    let data = reader.sized().ok_or_else(truncated)?.to_vec();
    let pcr = u8::try_from(pcr).ok().filter(|pcr| *pcr < COUNT);
    let digest = sha256.ok_or(EventLogError::Event(index, "has no SHA-256 digest"))?;
    match pcr {
        Some(pcr) => Ok(Event {
            pcr,
            kind,
            digest,
            data,
        }),
        None => Err(EventLogError::Event(
            index,
            "names a register that does not exist",
        )),
    }
}

impl EventLog {
    /// Parses a crypto-agile log; every byte must belong to it.
    ///
    /// # Errors
    /// [`EventLogError::TooLarge`] beyond the limits of bytes and events, [`EventLogError::Header`]
    /// where the log does not begin as a crypto-agile one, [`EventLogError::Truncated`] or
    /// [`EventLogError::Event`] with the number of the event that cannot be read.
    pub fn parse(bytes: &[u8]) -> Result<Self, EventLogError> {
        if bytes.len() > MAX_EVENT_LOG {
            return Err(EventLogError::TooLarge);
        }
        let mut reader = Reader(bytes);
        let banks = read_header(&mut reader).ok_or(EventLogError::Header)?;
        let mut events = Vec::new();
        while !reader.0.is_empty() {
            if events.len() == MAX_EVENTS {
                return Err(EventLogError::TooLarge);
            }
            events.push(read_event(&mut reader, &banks, events.len())?);
        }
        Ok(Self { events })
    }

    /// Writes a log with the SHA-256 bank only; parsing it gives this log again.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut spec = SIGNATURE.to_vec();
        spec.extend_from_slice(&[0, 0, 0, 0, 0, 2, 0, 2]);
        spec.extend_from_slice(&1_u32.to_le_bytes());
        spec.extend_from_slice(&HashAlg::Sha256.id().to_le_bytes());
        spec.extend_from_slice(&32_u16.to_le_bytes());
        spec.push(0);
        let mut out = 0_u32.to_le_bytes().to_vec();
        out.extend_from_slice(&kind::NO_ACTION.to_le_bytes());
        out.extend_from_slice(&[0; 20]);
        put_sized(&mut out, &spec);
        for event in &self.events {
            out.extend_from_slice(&u32::from(event.pcr).to_le_bytes());
            out.extend_from_slice(&event.kind.to_le_bytes());
            out.extend_from_slice(&1_u32.to_le_bytes());
            out.extend_from_slice(&HashAlg::Sha256.id().to_le_bytes());
            out.extend_from_slice(event.digest.as_bytes());
            put_sized(&mut out, &event.data);
        }
        out
    }

    /// The registers after the log's events, from a reset.
    pub fn replay(&self) -> Bank {
        let mut bank = Bank::new();
        if let Some(locality) = self.startup_locality() {
            let mut value = Digest::ZERO;
            value.0[31] = locality;
            bank.set(0, value);
        }
        for event in self.measured() {
            bank.extend(event.pcr, &event.digest);
        }
        bank
    }

    /// The events that were extended, in order.
    pub fn measured(&self) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .filter(|event| event.kind != kind::NO_ACTION)
    }

    /// The measured events of one register, in order.
    pub fn of(&self, pcr: u8) -> impl Iterator<Item = &Event> {
        self.measured().filter(move |event| event.pcr == pcr)
    }

    /// The locality of TPM2_Startup, where it was not 0 (firmware profile, 10.4.5.3).
    fn startup_locality(&self) -> Option<u8> {
        let event = self.events.iter().find(|event| {
            event.kind == kind::NO_ACTION
                && event.pcr == 0
                && event.data.starts_with(STARTUP_LOCALITY)
        })?;
        event
            .data
            .get(16)
            .copied()
            .filter(|locality| matches!(locality, 3 | 4))
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}
