//! Facts from an event log that replays: Secure Boot, its databases, and events of types that the
//! policy does not know.

use crate::verdict::Checks;
use config_protocol::Code;
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::eventlog::{Event, EventLog, kind};
use config_tpm::pcr::{EFI_GLOBAL, EFI_SECURITY_DATABASE, Variable};

/// The variables of Secure Boot, in the order in which firmware measures them (firmware profile,
/// 3.3.4.8).
const VARIABLES: [(&str, [u8; 16]); 5] = [
    ("SecureBoot", EFI_GLOBAL),
    ("PK", EFI_GLOBAL),
    ("KEK", EFI_GLOBAL),
    ("db", EFI_SECURITY_DATABASE),
    ("dbx", EFI_SECURITY_DATABASE),
];

/// Whether a register's events stop before the separator that every boot has in PCR 0, 2, 4 and 7,
/// or, in another register, before the first event. Such a log was cut, which has a code of its
/// own.
pub(crate) fn ends_early(log: &EventLog, pcr: u8) -> bool {
    let booted = matches!(pcr, 0 | 2 | 4 | 7);
    if booted {
        log.of(pcr).all(|event| event.kind != kind::SEPARATOR)
    } else {
        log.of(pcr).next().is_none()
    }
}

/// Whether an event's digest is that of its data. Registers hold digests alone: without this, data
/// and type of an event are whatever the sender of the log wrote.
fn covers_data(event: &Event) -> bool {
    event.digest == Digest::of(&event.data)
}

/// Parses UEFI_VARIABLE_DATA: GUID ‖ name length in UTF-16 units (u64) ‖ data length (u64) ‖ name ‖
/// data, little-endian. Every byte must belong to it.
fn variable(data: &[u8]) -> Option<Variable> {
    let (vendor, rest) = data.split_at_checked(16)?;
    let (name_length, rest) = rest.split_at_checked(8)?;
    let (data_length, rest) = rest.split_at_checked(8)?;
    let length = |bytes: &[u8]| {
        bytes
            .try_into()
            .ok()
            .map(u64::from_le_bytes)
            .and_then(|n| usize::try_from(n).ok())
    };
    let (name, value) = rest.split_at_checked(length(name_length)?.checked_mul(2)?)?;
    if value.len() != length(data_length)? {
        return None;
    }
    let (pairs, _) = name.as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    let name = String::from_utf16(&units).ok()?;
    Some(Variable {
        vendor: vendor.try_into().ok()?,
        name,
        data: value.to_vec(),
    })
}

/// Secure Boot on or off, from PCR 7: its first five events must be the variables, in order, with
/// data that was measured. `None` where they are not; the failed check says why. An event of the
/// same form later in the log could come from a boot loader, so place and order count.
pub(crate) fn secure_boot(log: &EventLog, checks: &mut Checks) -> Option<bool> {
    let mut on = None;
    let mut events = log.of(7);
    for (name, vendor) in VARIABLES {
        let check = format!("Secure Boot variable {name}");
        let wanted = "measured with its data, in its place";
        let Some(event) = events.next() else {
            checks.test(&check, Code::EventLogTruncated, false, wanted, "no event");
            return None;
        };
        let parsed = variable(&event.data)
            .filter(|variable| variable.name == name && variable.vendor == vendor);
        if event.kind != kind::EFI_VARIABLE_DRIVER_CONFIG {
            checks.test(
                &check,
                Code::EventUnknown,
                false,
                wanted,
                format!("event type {:#010x}", event.kind),
            );
            return None;
        }
        if !covers_data(event) {
            checks.test(
                &check,
                Code::EventData,
                false,
                event.digest,
                "data with another digest",
            );
            return None;
        }
        let Some(variable) = parsed else {
            checks.test(
                &check,
                Code::EventUnknown,
                false,
                wanted,
                "another variable",
            );
            return None;
        };
        // One byte: 1 is on, 0 is off (UEFI 2.10, 3.3).
        if name == "SecureBoot" {
            on = Some(variable.data == [1]);
        }
    }
    on
}

/// The Secure Boot variables, and the events after them, in which a log differs from what a release
/// expects. Empty if the release lists no events.
pub(crate) fn other_databases(log: &EventLog, boot: &Boot) -> Vec<&'static str> {
    let Some(expected) = boot.events.get(&7) else {
        return Vec::new();
    };
    let (mut found, mut expected) = (log.of(7).map(|event| event.digest), expected.iter());
    let mut others: Vec<&str> = VARIABLES
        .iter()
        .filter(|_| found.next() != expected.next().map(|event| event.digest))
        .map(|(name, _)| *name)
        .collect();
    // After the variables come the separator and the certificates that verified what was started.
    if !found.eq(expected.map(|event| event.digest)) {
        others.push("signer");
    }
    others
}

/// Checks that the policy knows every event of the quoted registers. PCR 0 and 2 are covered by
/// their pinned values, PCR 13 by the configuration event. In a register whose value was learned,
/// only the types of the events are checked.
pub(crate) fn consume(
    log: &EventLog,
    boot: &Boot,
    learned: Option<u8>,
    allow_unknown: bool,
    checks: &mut Checks,
) {
    for pcr in [4, 7, 9, 11, 12, 14, 15] {
        match boot.events.get(&pcr).filter(|_| learned != Some(pcr)) {
            Some(expected) => {
                let same = log
                    .of(pcr)
                    .map(|event| (event.kind, event.digest))
                    .eq(expected.iter().map(|event| (event.kind, event.digest)));
                let found = if same {
                    "the same"
                } else {
                    "others, or of another type"
                };
                checks.test(
                    &format!("events of PCR {pcr}"),
                    Code::EventUnknown,
                    same,
                    "the release's events",
                    found,
                );
                faulty_data(log, pcr, checks);
            }
            // The release predicts no events of this register: only their types and order are
            // checked.
            None => by_grammar(log, pcr, allow_unknown, checks),
        }
    }
}

/// Events whose type says that the digest is of the data.
fn measures_data(event: &Event) -> bool {
    matches!(
        event.kind,
        kind::SEPARATOR
            | kind::EFI_ACTION
            | kind::EFI_VARIABLE_DRIVER_CONFIG
            | kind::EFI_VARIABLE_AUTHORITY
    )
}

fn faulty_data(log: &EventLog, pcr: u8, checks: &mut Checks) {
    let mut faulty = log
        .of(pcr)
        .filter(|event| measures_data(event) && !covers_data(event));
    if let Some(event) = faulty.next() {
        // One check for all: a log has room for thousands, and the verdict is kept.
        let found = format!(
            "{}, and of {} more events",
            Digest::of(&event.data),
            faulty.count()
        );
        checks.test(
            &format!("event data of PCR {pcr}"),
            Code::EventData,
            false,
            event.digest,
            found,
        );
    }
}

fn by_grammar(log: &EventLog, pcr: u8, allow_unknown: bool, checks: &mut Checks) {
    let unknown: Vec<String> = log
        .of(pcr)
        .enumerate()
        .filter(|(index, event)| !known(pcr, *index, event))
        .map(|(index, event)| format!("event {index} of type {:#010x}", event.kind))
        .take(8)
        .collect();
    let good = unknown.is_empty() || allow_unknown;
    let wanted = if allow_unknown {
        "any"
    } else {
        "events that policy knows"
    };
    let found = if unknown.is_empty() {
        "nothing else".to_owned()
    } else {
        unknown.join(", ")
    };
    checks.test(
        &format!("events of PCR {pcr}"),
        Code::EventUnknown,
        good,
        wanted,
        found,
    );
    faulty_data(log, pcr, checks);
}

/// Whether the policy knows an event's type at its place in a register. The release decides about
/// values.
fn known(pcr: u8, index: usize, event: &Event) -> bool {
    let separator = event.kind == kind::SEPARATOR && event.data == [0; 4];
    match pcr {
        4 => {
            separator
                || matches!(
                    event.kind,
                    kind::EFI_ACTION | kind::EFI_BOOT_SERVICES_APPLICATION
                )
        }
        // In this order: the variables, the separator, then the certificates that verified what was
        // started. A variable event later could come from a boot loader.
        7 => match event.kind {
            kind::EFI_VARIABLE_DRIVER_CONFIG => index < VARIABLES.len(),
            kind::EFI_VARIABLE_AUTHORITY => index > VARIABLES.len(),
            _ => separator && index == VARIABLES.len(),
        },
        // The EFI stub of the kernel measures command line and initrd as tagged events.
        9 => event.kind == kind::EVENT_TAG,
        // systemd-stub measures the sections of the kernel image.
        11 => event.kind == kind::IPL,
        // None in 12 (arguments from outside), 14 (shim's keys) and 15 (systemd's measurements of
        // the running system): an image starts without shim, and runs no systemd.
        _ => false,
    }
}
