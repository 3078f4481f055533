//! An image that exists only as its measurements.

use config_attest::release::{MANIFEST_VERSION, Manifest};
use config_tpm::Digest;
use config_tpm::boot::{Boot, ExpectedEvent};
use config_tpm::eventlog::{Event, EventLog, kind};
use config_tpm::pcr::{
    EFI_GLOBAL, EFI_SECURITY_DATABASE, SecureBootKeys, Variable, pcr4_events, pcr7_events,
    pcr9_events, pcr11_events, replay_events,
};
use std::collections::BTreeMap;

/// An image: what its build knows.
#[derive(Debug, Clone)]
pub struct SoftImage {
    /// Id.
    pub id: String,
    /// `worker` or `master`.
    pub role: String,
    /// Security version number.
    pub svn: u64,
    /// Unix seconds.
    pub build_time: u64,
    /// Kernel command line in the UKI.
    pub command_line: String,
    /// Any bytes in place of a kernel.
    pub kernel: Vec<u8>,
    /// Enrolled Secure Boot keys.
    pub keys: SecureBootKeys,
    /// Whether the manifest lists events beside register values.
    pub list_events: bool,
}

impl SoftImage {
    /// An image of a role, with Secure Boot on.
    pub fn new(id: &str, role: &str, svn: u64) -> Self {
        Self {
            id: id.to_owned(),
            role: role.to_owned(),
            svn,
            build_time: 1_790_000_000,
            command_line: format!(
                "console=ttyS0 ro pratique.roothash={}",
                Digest::of(id.as_bytes())
            ),
            kernel: format!("kernel of {id}").into_bytes(),
            keys: SecureBootKeys {
                enabled: true,
                pk: signature_list(b"pk"),
                kek: signature_list(b"kek"),
                db: signature_list(b"db"),
                dbx: signature_list(b"dbx"),
                authorities: vec![[&[0; 16], b"db".as_slice()].concat()],
            },
            list_events: false,
        }
    }

    /// The same machine's keys with Secure Boot off: nothing is verified, so no authority is
    /// measured.
    fn keys(&self, secure_boot: bool) -> SecureBootKeys {
        let authorities = if secure_boot {
            self.keys.authorities.clone()
        } else {
            Vec::new()
        };
        SecureBootKeys {
            enabled: secure_boot,
            authorities,
            ..self.keys.clone()
        }
    }

    fn events(&self, secure_boot: bool) -> BTreeMap<u8, Vec<ExpectedEvent>> {
        let mut programs = vec![Digest::of_parts(&[
            b"uki",
            &self.kernel,
            self.command_line.as_bytes(),
        ])];
        if !secure_boot {
            programs.push(Digest::of_parts(&[b"linux", &self.kernel]));
        }
        let sections: [(&str, &[u8]); 2] = [
            (".linux", &self.kernel),
            (".cmdline", self.command_line.as_bytes()),
        ];
        BTreeMap::from([
            (4, pcr4_events(&programs)),
            (7, pcr7_events(&self.keys(secure_boot))),
            (9, pcr9_events(&self.command_line, &Digest::of(b"initrd"))),
            (11, pcr11_events(sections)),
        ])
    }

    /// The manifest that its build would write.
    pub fn manifest(&self) -> Manifest {
        let boots = [true, false].map(|secure_boot| {
            let events = self.events(secure_boot);
            let pcrs = events
                .iter()
                .map(|(pcr, events)| (*pcr, vec![replay_events(events)]))
                .collect();
            Boot {
                secure_boot,
                pcrs,
                events: if self.list_events {
                    events
                } else {
                    BTreeMap::new()
                },
            }
        });
        Manifest {
            version: MANIFEST_VERSION,
            id: self.id.clone(),
            role: self.role.clone(),
            svn: self.svn,
            build_time: self.build_time,
            kernel: "6.12.0-cloud-amd64".to_owned(),
            command_line: self.command_line.clone(),
            root_hash: Digest::of(self.id.as_bytes()),
            boots: boots.into(),
            ..Manifest::default()
        }
    }

    /// The log that firmware and stub write when they start it.
    pub fn log(&self) -> EventLog {
        let expected = self.events(self.keys.enabled);
        let take = |pcr: u8| expected.get(&pcr).map(Vec::as_slice).unwrap_or_default();
        let mut events = firmware_events();
        events.extend(self.secure_boot_variables(take(7)));
        events.extend((0..8).filter(|pcr| *pcr != 4 && *pcr != 7).map(separator));
        events.extend(self.secure_boot_authorities(take(7)));
        events.extend(take(4).iter().map(loaded_program));
        for pcr in [11, 9] {
            events.extend(take(pcr).iter().map(|event| Event {
                pcr,
                kind: event.kind,
                digest: event.digest,
                data: tagged(&event.note),
            }));
        }
        events.push(measured(
            5,
            kind::EFI_ACTION,
            b"Exit Boot Services Invocation",
        ));
        EventLog { events }
    }

    /// PCR 7 before its separator: the variables of Secure Boot, the first five of what is expected
    /// there.
    fn secure_boot_variables(&self, expected: &[ExpectedEvent]) -> Vec<Event> {
        let keys = self.keys(self.keys.enabled);
        let variables = [
            (EFI_GLOBAL, vec![u8::from(keys.enabled)]),
            (EFI_GLOBAL, keys.pk),
            (EFI_GLOBAL, keys.kek),
            (EFI_SECURITY_DATABASE, keys.db),
            (EFI_SECURITY_DATABASE, keys.dbx),
        ];
        let event = |(event, (vendor, data)): (&ExpectedEvent, (_, Vec<u8>))| {
            let variable = Variable {
                vendor,
                name: event.note.clone(),
                data,
            };
            Event {
                pcr: 7,
                kind: event.kind,
                digest: event.digest,
                data: variable.to_bytes(),
            }
        };
        expected.iter().zip(variables).map(event).collect()
    }

    /// PCR 7 from its separator on: by which certificate the program was accepted.
    fn secure_boot_authorities(&self, expected: &[ExpectedEvent]) -> Vec<Event> {
        let authorities = self.keys(self.keys.enabled).authorities;
        let variable = Variable {
            vendor: EFI_SECURITY_DATABASE,
            name: "db".to_owned(),
            data: authorities.into_iter().next().unwrap_or_default(),
        };
        let event = |event: &ExpectedEvent| match event.kind {
            kind::EFI_VARIABLE_AUTHORITY => Event {
                pcr: 7,
                kind: event.kind,
                digest: event.digest,
                data: variable.to_bytes(),
            },
            _ => separator(7),
        };
        expected.iter().skip(5).map(event).collect()
    }
}

/// The firmware's measurements of itself before it loads any program.
fn firmware_events() -> Vec<Event> {
    let boot_order = Variable {
        vendor: EFI_GLOBAL,
        name: "BootOrder".to_owned(),
        data: vec![0, 0],
    };
    vec![
        Event {
            pcr: 0,
            kind: kind::NO_ACTION,
            digest: Digest::ZERO,
            data: b"StartupLocality\0\x03".to_vec(),
        },
        measured(0, 0x8, b"firmware version"),
        measured(1, 0x8000_0002, &boot_order.to_bytes()),
    ]
}

/// PCR 4: the programs that firmware loads.
fn loaded_program(event: &ExpectedEvent) -> Event {
    let data = match event.kind {
        kind::SEPARATOR => return separator(4),
        // UEFI_IMAGE_LOAD_EVENT without a device path.
        kind::EFI_BOOT_SERVICES_APPLICATION => vec![0; 32],
        _ => event.note.clone().into_bytes(),
    };
    Event {
        pcr: 4,
        kind: event.kind,
        digest: event.digest,
        data,
    }
}

/// A tagged event: id, size, data.
fn tagged(note: &str) -> Vec<u8> {
    let mut out = 1_u32.to_le_bytes().to_vec();
    out.extend_from_slice(&u32::try_from(note.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(note.as_bytes());
    out
}

/// EFI_SIGNATURE_LIST of one X.509 entry without an owner.
fn signature_list(entry: &[u8]) -> Vec<u8> {
    const EFI_CERT_X509: [u8; 16] = [
        0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0,
        0x72,
    ];
    let size = u32::try_from(entry.len() + 16).unwrap_or(u32::MAX);
    let mut out = EFI_CERT_X509.to_vec();
    for field in [28 + size, 0, size] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(entry);
    out
}

/// An event whose digest is that of its data.
fn measured(pcr: u8, kind: u32, data: &[u8]) -> Event {
    Event {
        pcr,
        kind,
        digest: Digest::of(data),
        data: data.to_vec(),
    }
}

fn separator(pcr: u8) -> Event {
    measured(pcr, kind::SEPARATOR, &[0; 4])
}
