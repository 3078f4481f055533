//! The configuration's measurement: into PCR 13, exactly once in a boot, with a record for the
//! agent.
//!
//! The order makes a power cut at any point safe: a marker is made (only one process can), the PCR
//! is extended, then the record and the configuration are written. A second attempt finds the
//! marker and stops.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;

use sha2::{Digest, Sha256};

use crate::fatal::Fatal;
use crate::user_data::Found;

/// The register of the configuration.
pub const PCR: u32 = 13;
/// The configuration's exact bytes, for the services.
pub const CONFIGURATION: &str = "/run/pratique/config.toml";
/// The record of the event in PCR 13.
pub const EVENT: &str = "/run/pratique/config-event.json";
const MARKER: &str = "/run/pratique/config-measured";
const CURE: &str =
    "the configuration is not used; power off and on, and check the TPM if it happens again";

/// A file of the measurement that could not be written.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("a configuration was measured already in this boot")]
    Again(#[source] io::Error),
    #[error("{0} can't be written")]
    Write(&'static str, #[source] io::Error),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// SHA-256(label ‖ length ‖ bytes).
    pub digest: [u8; 32],
    /// Whether it was extended into a TPM.
    pub measured: bool,
}

/// SHA-256 of the label's bytes, the configuration's length as 64 bits big-endian, and the
/// configuration.
pub fn digest(found: &Found) -> [u8; 32] {
    let length = u64::try_from(found.bytes.len()).unwrap_or(u64::MAX);
    let hash = Sha256::new()
        .chain_update(found.label)
        .chain_update(length.to_be_bytes())
        .chain_update(&found.bytes);
    hash.finalize().into()
}

/// The record for the agent, one line of JSON.
pub fn record(found: &Found, measurement: &Measurement) -> String {
    let Found { label, bytes } = found;
    let (digest, length) = (hex::encode(measurement.digest), bytes.len());
    let measured = measurement.measured;
    format!(
        "{{\"pcr\":{PCR},\"label\":\"{label}\",\"length\":{length},\"digest\":\"{digest}\",\"measured\":{measured}}}\n"
    )
}

/// Measures the configuration, then writes it to `/run/pratique`.
///
/// # Errors
/// The configuration was measured in this boot already, the TPM refuses, or `/run/pratique` cannot
/// be written.
pub fn measure(found: &Found) -> Result<Measurement, Fatal> {
    let fatal = |cause: MeasureError| Fatal::hold("MEASURE", CURE, cause);
    write(MARKER, b"").map_err(|cause| fatal(MeasureError::Again(cause)))?;
    let measured = agent_sys::tpm::present();
    let measurement = Measurement {
        digest: digest(found),
        measured,
    };
    if measured {
        let extended = agent_sys::tpm::extend(PCR, &measurement.digest);
        extended.map_err(|cause| Fatal::hold("MEASURE", CURE, cause))?;
    }
    let event = record(found, &measurement);
    write(EVENT, event.as_bytes()).map_err(|cause| fatal(MeasureError::Write(EVENT, cause)))?;
    write(CONFIGURATION, &found.bytes)
        .map_err(|cause| fatal(MeasureError::Write(CONFIGURATION, cause)))?;
    Ok(measurement)
}

/// Writes a new file that only root may read.
fn write(path: &str, bytes: &[u8]) -> io::Result<()> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Measurement, digest, record};
    use crate::user_data::Found;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_digest_covers_label_length_and_bytes() {
        let found = Found {
            label: "nocloud",
            bytes: b"version = 1\n".to_vec(),
        };
        let expected: [u8; 32] = Sha256::digest(b"nocloud\0\0\0\0\0\0\0\x0cversion = 1\n").into();
        assert_eq!(digest(&found), expected);
        let other = Found {
            label: "smbios",
            ..found.clone()
        };
        assert_ne!(digest(&other), digest(&found));
    }

    #[test]
    fn the_record_names_the_event_and_not_the_content() {
        let found = Found {
            label: "smbios",
            bytes: b"secret".to_vec(),
        };
        let text = record(
            &found,
            &Measurement {
                digest: [0xAB; 32],
                measured: true,
            },
        );
        let digest = "ab".repeat(32);
        let expected = format!(
            "{{\"pcr\":13,\"label\":\"smbios\",\"length\":6,\"digest\":\"{digest}\",\"measured\":true}}\n"
        );
        assert_eq!(text, expected);
    }
}
