//! The raw TPM device: one command, PCR extend, for PID 1, which uses the TPM before the TPM stack
//! runs.
//!
//! Layouts: TPM 2.0 Library Part 3, `TPM2_PCR_Extend`; Part 2 for constants.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use crate::error::{Context, Error, Result};

/// The raw device, without a resource manager.
pub const DEVICE: &str = "/dev/tpm0";
/// The device with the kernel's resource manager, for all but PID 1.
pub const MANAGED_DEVICE: &str = "/dev/tpmrm0";
/// Device node name prefixes under `/dev` that no container may get, privileged or not.
pub const DEVICE_NAMES: [&str; 2] = ["tpm", "tpmrm"];
/// The firmware's and the boot stub's event log (needs securityfs).
pub const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";

/// The TPM's version, `1` or `2`; kernels before 5.6 do not say.
const VERSION: &str = "/sys/class/tpm/tpm0/tpm_version_major";

const SESSIONS: u16 = 0x8002;
const PCR_EXTEND: u32 = 0x0000_0182;
const PASSWORD_SESSION: u32 = 0x4000_0009;
const SHA256: u16 = 0x000B;
const SUCCESS: u32 = 0;
/// Answers that say "not now, nothing was done": `TPM_RC_YIELDED`, `TPM_RC_TESTING`,
/// `TPM_RC_RETRY`.
const NOT_NOW: [u32; 3] = [0x908, 0x90A, 0x922];
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The bytes of `TPM2_PCR_Extend(pcr, sha256 = digest)` with the empty password.
pub fn extend_command(pcr: u32, digest: &[u8; 32]) -> Vec<u8> {
    let mut body = Vec::with_capacity(55);
    body.extend(pcr.to_be_bytes());
    let mut session = Vec::with_capacity(9);
    session.extend(PASSWORD_SESSION.to_be_bytes());
    session.extend([0, 0, 0, 0, 0]); // no nonce, no attributes, no password
    body.extend(9_u32.to_be_bytes());
    body.append(&mut session);
    body.extend(1_u32.to_be_bytes());
    body.extend(SHA256.to_be_bytes());
    body.extend(digest);
    let mut command = Vec::with_capacity(65);
    command.extend(SESSIONS.to_be_bytes());
    command.extend(65_u32.to_be_bytes());
    command.extend(PCR_EXTEND.to_be_bytes());
    command.append(&mut body);
    command
}

/// The response code in a TPM's answer; `None` if the answer is truncated or its length field is
/// wrong.
pub fn response_code(answer: &[u8]) -> Option<u32> {
    let size = u32::from_be_bytes(answer.get(2..6)?.try_into().ok()?);
    let code = u32::from_be_bytes(answer.get(6..10)?.try_into().ok()?);
    (usize::try_from(size) == Ok(answer.len())).then_some(code)
}

/// Whether the machine has a TPM that the kernel drives and that understands [`extend`]: a TPM 1.2
/// does not.
pub fn present() -> bool {
    Path::new(DEVICE).exists()
        && !std::fs::read_to_string(VERSION).is_ok_and(|version| version.trim() == "1")
}

/// Extends `digest` into the SHA-256 bank of `pcr`, once.
///
/// Assumes that nobody else holds [`DEVICE`] (the raw device opens once). The command is repeated
/// only when the TPM says that it did nothing.
///
/// # Errors
/// The device cannot be opened, read or written, or the TPM answers with an error, or is not ready
/// after all attempts.
pub fn extend(pcr: u32, digest: &[u8; 32]) -> Result<()> {
    let mut device = File::options()
        .read(true)
        .write(true)
        .open(DEVICE)
        .at("open", DEVICE)?;
    let command = extend_command(pcr, digest);
    for _ in 0..ATTEMPTS {
        device.write_all(&command).at("send a command to", DEVICE)?;
        let mut answer = [0_u8; 4096];
        let length = device.read(&mut answer).at("read the answer of", DEVICE)?;
        match response_code(answer.get(..length).unwrap_or_default()) {
            Some(SUCCESS) => return Ok(()),
            Some(code) if NOT_NOW.contains(&code) => std::thread::sleep(PAUSE),
            Some(code) => return Err(refused(&format!("TPM response code {code:#x}"))),
            None => return Err(refused("the answer is malformed")),
        }
    }
    Err(refused("the TPM stayed busy"))
}

fn refused(why: &str) -> Error {
    Error::new("extend a PCR of", DEVICE, io::Error::other(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{extend_command, response_code};

    #[test]
    fn the_extend_command_has_the_library_s_layout() {
        let command = extend_command(13, &[0xAB; 32]);
        assert_eq!(command.len(), 65);
        let head = "80020000004100000182\
                    0000000d00000009400000090000000000000000010\
                    00b";
        assert_eq!(hex::encode(&command[..33]), head);
        assert_eq!(&command[33..], &[0xAB; 32]);
    }

    #[test]
    fn an_answer_with_a_wrong_length_has_no_code() {
        let good = [0x80, 0x02, 0, 0, 0, 10, 0, 0, 0x01, 0x01];
        assert_eq!(response_code(&good), Some(0x101));
        assert_eq!(response_code(&good[..9]), None);
        assert_eq!(response_code(&[]), None);
        let mut long = good.to_vec();
        long.push(0);
        assert_eq!(response_code(&long), None);
    }
}
