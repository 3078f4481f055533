//! What firmware and boot stub will measure, computed from the build alone (TCG PC Client Platform
//! Firmware Profile; systemd-stub).

use crate::Digest;
use crate::boot::ExpectedEvent;
use crate::eventlog::kind;

/// A predicted event, as the manifest lists it.
pub type PredictedEvent = ExpectedEvent;

fn event(kind: u32, digest: Digest, note: &str) -> PredictedEvent {
    ExpectedEvent {
        kind,
        digest,
        note: note.to_owned(),
    }
}

/// The separator that ends a register's pre-boot phase.
fn separator() -> PredictedEvent {
    event(kind::SEPARATOR, Digest::of(&[0; 4]), "separator")
}

/// PCR 4: the boot manager's action, the separator, then the Authenticode hash of each program
/// started: the UKI, and without Secure Boot also its inner kernel.
pub fn pcr4_events(programs: &[Digest]) -> Vec<PredictedEvent> {
    const ACTION: &str = "Calling EFI Application from Boot Option";
    let mut events = vec![
        event(kind::EFI_ACTION, Digest::of(ACTION.as_bytes()), ACTION),
        separator(),
    ];
    events.extend(
        programs
            .iter()
            .map(|program| event(kind::EFI_BOOT_SERVICES_APPLICATION, *program, "program")),
    );
    events
}

/// A UEFI variable as it is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Vendor GUID in its binary (mixed-endian) form.
    pub vendor: [u8; 16],
    /// Name, without the NUL.
    pub name: String,
    /// Value; empty where the variable is not set.
    pub data: Vec<u8>,
}

/// EFI_GLOBAL_VARIABLE 8be4df61-93ca-11d2-aa0d-00e098032b8c.
pub const EFI_GLOBAL: [u8; 16] = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
/// EFI_IMAGE_SECURITY_DATABASE d719b2cb-3d3a-4596-a3bc-dad00e67656f.
pub const EFI_SECURITY_DATABASE: [u8; 16] = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];

impl Variable {
    /// UEFI_VARIABLE_DATA: GUID, u64 name length in characters, u64 data length, UTF-16 name, data;
    /// little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let name: Vec<u8> = self
            .name
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let mut out = self.vendor.to_vec();
        out.extend_from_slice(
            &u64::try_from(name.len() / 2)
                .unwrap_or(u64::MAX)
                .to_le_bytes(),
        );
        out.extend_from_slice(
            &u64::try_from(self.data.len())
                .unwrap_or(u64::MAX)
                .to_le_bytes(),
        );
        out.extend_from_slice(&name);
        out.extend_from_slice(&self.data);
        out
    }
}

/// The contents of the Secure Boot variables, as stored (signature lists); empty where not
/// enrolled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecureBootKeys {
    /// Whether Secure Boot is on.
    pub enabled: bool,
    /// Platform key.
    pub pk: Vec<u8>,
    /// Key exchange keys.
    pub kek: Vec<u8>,
    /// Allowed signers.
    pub db: Vec<u8>,
    /// Forbidden ones.
    pub dbx: Vec<u8>,
    /// EFI_SIGNATURE_DATA (owner GUID and certificate) of the db entry that allowed each program,
    /// in order of first use.
    pub authorities: Vec<Vec<u8>>,
}

/// PCR 7: the five variables, the separator, then the authorities that were used.
pub fn pcr7_events(keys: &SecureBootKeys) -> Vec<PredictedEvent> {
    let variables = [
        ("SecureBoot", EFI_GLOBAL, vec![u8::from(keys.enabled)]),
        ("PK", EFI_GLOBAL, keys.pk.clone()),
        ("KEK", EFI_GLOBAL, keys.kek.clone()),
        ("db", EFI_SECURITY_DATABASE, keys.db.clone()),
        ("dbx", EFI_SECURITY_DATABASE, keys.dbx.clone()),
    ];
    let mut events: Vec<PredictedEvent> = variables
        .into_iter()
        .map(|(name, vendor, data)| {
            let variable = Variable {
                vendor,
                name: name.to_owned(),
                data,
            };
            event(
                kind::EFI_VARIABLE_DRIVER_CONFIG,
                Digest::of(&variable.to_bytes()),
                name,
            )
        })
        .collect();
    events.push(separator());
    for authority in &keys.authorities {
        let variable = Variable {
            vendor: EFI_SECURITY_DATABASE,
            name: "db".to_owned(),
            data: authority.clone(),
        };
        events.push(event(
            kind::EFI_VARIABLE_AUTHORITY,
            Digest::of(&variable.to_bytes()),
            "db authority",
        ));
    }
    events
}

/// PCR 9: the kernel's load options (the command line in UTF-16LE with its NUL), then the initrd
/// exactly as the kernel reads it.
pub fn pcr9_events(command_line: &str, initrd: &Digest) -> Vec<PredictedEvent> {
    let options: Vec<u8> = command_line
        .encode_utf16()
        .chain([0])
        .flat_map(u16::to_le_bytes)
        .collect();
    vec![
        event(kind::EVENT_TAG, Digest::of(&options), "load options"),
        event(kind::EVENT_TAG, *initrd, "initrd"),
    ]
}

/// PCR 11: for each section of the UKI in the stub's order, its name with a NUL, then its data.
pub fn pcr11_events<'a>(
    sections: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Vec<PredictedEvent> {
    let mut events = Vec::new();
    for (name, data) in sections {
        let mut with_nul = name.as_bytes().to_vec();
        with_nul.push(0);
        events.push(event(kind::IPL, Digest::of(&with_nul), name));
        events.push(event(kind::IPL, Digest::of(data), name));
    }
    events
}

/// The register's value after the events.
pub fn replay_events(events: &[PredictedEvent]) -> Digest {
    super::replay(events.iter().map(|event| &event.digest))
}
