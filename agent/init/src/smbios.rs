//! Configuration in SMBIOS: an OEM string (structure type 11)
//! `io.pratique.config=<base64 of the TOML>`.
//!
//! Source: SMBIOS 3.7, chapters 6.1.3 (text strings) and 7.12. Pure and total.

use agent_metadata::MAX_BYTES;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const OEM_STRINGS: u8 = 11;
const PREFIX: &[u8] = b"io.pratique.config=";

/// Why a structure's configuration was refused. No content is in the text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SmbiosError {
    /// Not standard base64 with padding.
    #[error("the SMBIOS string io.pratique.config is not base64")]
    NotBase64,
    /// More than the limit.
    #[error("the SMBIOS string io.pratique.config holds more than {MAX_BYTES} bytes")]
    TooLong,
}

/// The configurations in one raw structure, normally none or one.
///
/// # Errors
/// A string has the prefix of a configuration, and is no base64 or holds more than [`MAX_BYTES`].
pub fn configurations(raw: &[u8]) -> Result<Vec<Vec<u8>>, SmbiosError> {
    strings(raw)
        .iter()
        .filter_map(|text| text.strip_prefix(PREFIX))
        .map(decode)
        .collect()
}

/// The strings behind the formatted part of a type 11 structure; none for another type or a cut
/// structure.
fn strings(raw: &[u8]) -> Vec<&[u8]> {
    match raw {
        [OEM_STRINGS, length, ..] => {
            let tail = raw.get(usize::from(*length)..).unwrap_or_default();
            tail.split(|byte| *byte == 0)
                .take_while(|text| !text.is_empty())
                .collect()
        }
        [..] => Vec::new(),
    }
}

fn decode(text: &[u8]) -> Result<Vec<u8>, SmbiosError> {
    if text.len() > MAX_BYTES.div_ceil(3) * 4 {
        return Err(SmbiosError::TooLong);
    }
    let bytes = STANDARD
        .decode(text.trim_ascii())
        .ok()
        .ok_or(SmbiosError::NotBase64)?;
    if bytes.len() > MAX_BYTES {
        Err(SmbiosError::TooLong)
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{SmbiosError, configurations};
    use proptest::prelude::*;

    fn structure(strings: &[&str]) -> Vec<u8> {
        let mut raw = vec![11, 5, 0, 1, u8::try_from(strings.len()).expect("few")];
        for text in strings {
            raw.extend(text.as_bytes());
            raw.push(0);
        }
        raw.push(0);
        raw
    }

    #[test]
    fn our_string_is_found_among_others() {
        let raw = structure(&[
            "io.systemd.credential:x=y",
            "io.pratique.config=dmVyc2lvbiA9IDE=",
        ]);
        assert_eq!(configurations(&raw), Ok(vec![b"version = 1".to_vec()]));
        assert_eq!(configurations(&structure(&["other"])), Ok(vec![]));
    }

    #[test]
    fn two_strings_are_two_configurations() {
        let raw = structure(&["io.pratique.config=YQ==", "io.pratique.config=Yg=="]);
        assert_eq!(configurations(&raw).map(|all| all.len()), Ok(2));
    }

    #[test]
    fn bad_and_oversized_strings_are_refused() {
        assert_eq!(
            configurations(&structure(&["io.pratique.config=%%%"])),
            Err(SmbiosError::NotBase64)
        );
        let long = format!("io.pratique.config={}", "A".repeat(100_000));
        assert_eq!(
            configurations(&structure(&[&long])),
            Err(SmbiosError::TooLong)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut raw = raw;
            if let Some(first) = raw.first_mut() { *first = 11; }
            prop_assert!(configurations(&raw).is_ok_and(|all| all.len() <= 200) || configurations(&raw).is_err());
        }
    }
}
