//! Attestations (TPMS_ATTEST, TPM 2.0 part 2, 10.12.8): quotes and certifications.

use super::TpmError;
use super::buffer::{Reader, put_sized};

/// The magic that only a TPM may put before what its restricted keys sign.
pub const TPM_GENERATED: u32 = 0xff54_4347;
const ST_ATTEST_CERTIFY: u16 = 0x8017;
const ST_ATTEST_QUOTE: u16 = 0x8018;

/// TPMS_CLOCK_INFO (part 2, 10.11.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockInfo {
    /// Milliseconds that the TPM has run.
    pub clock: u64,
    /// Resets since manufacture.
    pub reset_count: u32,
    /// Restarts and resumes since the last reset.
    pub restart_count: u32,
    /// False after an unclean power-off.
    pub safe: bool,
}

/// Registers of one bank (TPMS_PCR_SELECTION, part 2, 10.6.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcrSelection {
    /// TPM_ALG_ID of the bank's hash.
    pub bank: u16,
    /// Bit map, register 0 in the lowest bit of the first byte.
    pub select: Vec<u8>,
}

/// What was attested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attested {
    /// Register values.
    Quote {
        /// Which registers.
        selection: Vec<PcrSelection>,
        /// Digest over their values.
        digest: Vec<u8>,
    },
    /// A key in the TPM.
    Certify {
        /// Its Name.
        name: Vec<u8>,
        /// Its qualified Name.
        qualified_name: Vec<u8>,
    },
    /// Another type, unread.
    Other {
        /// TPMI_ST_ATTEST.
        kind: u16,
        /// The rest.
        rest: Vec<u8>,
    },
}

/// A TPMS_ATTEST with the right magic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attest {
    /// Qualified Name of the signing key.
    pub qualified_signer: Vec<u8>,
    /// The caller's data.
    pub extra_data: Vec<u8>,
    /// Counters.
    pub clock_info: ClockInfo,
    /// Firmware version of the TPM.
    pub firmware_version: u64,
    /// What was attested.
    pub attested: Attested,
}

impl Attest {
    /// Parses a TPMS_ATTEST; every byte must belong to it.
    ///
    /// # Errors
    /// [`TpmError::Magic`] where a TPM did not make it, [`TpmError::Malformed`] where bytes are
    /// missing or, in a quote or certification, left. Other types are [`Attested::Other`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TpmError> {
        let mut reader = Reader::new(bytes, "attestation");
        let magic = reader.u32()?;
        if magic != TPM_GENERATED {
            return Err(TpmError::Magic(magic));
        }
        let kind = reader.u16()?;
        let qualified_signer = reader.sized(66)?.to_vec();
        let extra_data = reader.sized(66)?.to_vec();
        let clock_info = ClockInfo {
            clock: reader.u64()?,
            reset_count: reader.u32()?,
            restart_count: reader.u32()?,
            safe: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return Err(TpmError::Malformed("attestation")),
            },
        };
        let firmware_version = reader.u64()?;
        let attested = match kind {
            ST_ATTEST_QUOTE => {
                let selection = read_selection(&mut reader)?;
                let digest = reader.sized(64)?.to_vec();
                reader.finish()?;
                Attested::Quote { selection, digest }
            }
            ST_ATTEST_CERTIFY => {
                let name = reader.sized(66)?.to_vec();
                let qualified_name = reader.sized(66)?.to_vec();
                reader.finish()?;
                Attested::Certify {
                    name,
                    qualified_name,
                }
            }
            kind => Attested::Other {
                kind,
                rest: reader.rest().to_vec(),
            },
        };
        Ok(Self {
            qualified_signer,
            extra_data,
            clock_info,
            firmware_version,
            attested,
        })
    }

    /// The TPMS_ATTEST.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = match &self.attested {
            Attested::Quote { .. } => ST_ATTEST_QUOTE,
            Attested::Certify { .. } => ST_ATTEST_CERTIFY,
            Attested::Other { kind, .. } => *kind,
        };
        let mut out = TPM_GENERATED.to_be_bytes().to_vec();
        out.extend_from_slice(&kind.to_be_bytes());
        put_sized(&mut out, &self.qualified_signer);
        put_sized(&mut out, &self.extra_data);
        out.extend_from_slice(&self.clock_info.clock.to_be_bytes());
        out.extend_from_slice(&self.clock_info.reset_count.to_be_bytes());
        out.extend_from_slice(&self.clock_info.restart_count.to_be_bytes());
        out.push(u8::from(self.clock_info.safe));
        out.extend_from_slice(&self.firmware_version.to_be_bytes());
        match &self.attested {
            Attested::Quote { selection, digest } => {
                out.extend_from_slice(&selection_bytes(selection));
                put_sized(&mut out, digest);
            }
            Attested::Certify {
                name,
                qualified_name,
            } => {
                put_sized(&mut out, name);
                put_sized(&mut out, qualified_name);
            }
            Attested::Other { rest, .. } => out.extend_from_slice(rest),
        }
        out
    }
}

/// TPML_PCR_SELECTION (part 2, 10.9.7).
pub(crate) fn selection_bytes(selections: &[PcrSelection]) -> Vec<u8> {
    let mut out = u32::try_from(selections.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes()
        .to_vec();
    for selection in selections {
        out.extend_from_slice(&selection.bank.to_be_bytes());
        out.push(u8::try_from(selection.select.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(&selection.select);
    }
    out
}

fn read_selection(reader: &mut Reader<'_>) -> Result<Vec<PcrSelection>, TpmError> {
    let count = reader.u32()?;
    if count > 8 {
        return Err(TpmError::Malformed("attestation"));
    }
    let mut selections = Vec::new();
    for _ in 0..count {
        let bank = reader.u16()?;
        let size = usize::from(reader.u8()?);
        if size > 4 {
            return Err(TpmError::Malformed("attestation"));
        }
        selections.push(PcrSelection {
            bank,
            select: reader.take(size)?.to_vec(),
        });
    }
    Ok(selections)
}
