//! The few values that init itself reads from documents: the image's build time and role, the
//! machine's name.
//!
//! Guarantees: total over any bytes. The agent checks the configuration; init only reads the name
//! from it, and quotes nothing of it.

use toml::Table;

/// The image's description in `/etc/pratique/image.toml`. Missing keys read as empty: the file is
/// on the verified root, so it is as the build made it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The image's id.
    pub id: String,
    /// `worker` or `master`.
    pub role: String,
    /// When it was built, seconds since 1970.
    pub build_time: u64,
    /// Which metadata service may be asked: `auto`, `off` or a name.
    pub metadata: String,
    /// Whether the state of a worker belongs to the user-data that made it.
    pub state_of_user_data: bool,
}

impl Image {
    /// Reads `image.toml`.
    pub fn parse(text: &str) -> Self {
        let table = text.parse::<Table>().unwrap_or_default();
        let word = |key: &str| {
            table
                .get(key)
                .and_then(|value| value.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let seconds = table
            .get("build_time")
            .and_then(toml::Value::as_integer)
            .and_then(|time| u64::try_from(time).ok());
        Self {
            id: word("id"),
            role: word("role"),
            build_time: seconds.unwrap_or(0),
            metadata: word("metadata"),
            state_of_user_data: word("state") == "user-data",
        }
    }
}

/// The name that a configuration claims in `[machine] name`, if it is a DNS label.
pub fn claimed_name(configuration: &[u8]) -> Option<String> {
    let table = std::str::from_utf8(configuration)
        .ok()?
        .parse::<Table>()
        .ok()?;
    let name = table.get("machine")?.as_table()?.get("name")?.as_str()?;
    is_host_name(name).then(|| name.to_owned())
}

/// Whether `name` is a host name of DNS labels (RFC 1123), at most 63 bytes, which is also the
/// kernel's limit.
fn is_host_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label = |text: &str| {
        !text.is_empty() && text.chars().all(good) && !text.starts_with('-') && !text.ends_with('-')
    };
    name.len() <= 63 && name.split('.').all(label)
}

/// The root hash on the kernel command line; `None` unless exactly one well-formed
/// `pratique.roothash=` is there.
///
/// A second one could only come from outside of the signed image, so neither is trusted.
pub fn root_hash(command_line: &str) -> Option<[u8; 32]> {
    let mut found = command_line
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("pratique.roothash="));
    let text = found.next()?;
    let mut hash = [0; 32];
    match (found.next(), hex::decode_to_slice(text, &mut hash)) {
        (None, Ok(())) => Some(hash),
        (Some(_), _) | (None, Err(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Image, claimed_name, root_hash};
    use proptest::prelude::*;

    #[test]
    fn the_image_s_facts_are_read() {
        let image = Image::parse(
            "id = \"a\"\nrole = \"master\"\nbuild_time = 1700000000\nmetadata = \"off\"\nstate = \"machine\"\n",
        );
        let [id, role, metadata] = ["a", "master", "off"].map(str::to_owned);
        assert_eq!(
            image,
            Image {
                id,
                role,
                build_time: 1_700_000_000,
                metadata,
                state_of_user_data: false
            }
        );
        assert!(Image::parse("state = \"user-data\"").state_of_user_data);
        assert_eq!(Image::parse("???"), Image::default());
    }

    #[test]
    fn only_a_host_name_is_taken_as_name() {
        assert_eq!(
            claimed_name(b"[machine]\nname = \"worker-1\"").as_deref(),
            Some("worker-1")
        );
        for text in [
            "[machine]\nname = \"Bad Name\"",
            "[machine]\nname = 1",
            "name = \"x\"",
            "[machine]\nname = \"-x\"",
            "\u{fffd}",
        ] {
            assert_eq!(claimed_name(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn two_root_hashes_count_as_none() {
        let one = format!("ro pratique.roothash={} quiet", "ab".repeat(32));
        assert_eq!(root_hash(&one), Some([0xAB; 32]));
        assert_eq!(
            root_hash(&format!("{one} pratique.roothash={}", "cd".repeat(32))),
            None
        );
        assert_eq!(root_hash("pratique.roothash=abcd"), None);
    }

    proptest! {
        #[test]
        fn any_configuration_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            prop_assert!(claimed_name(&bytes).is_none_or(|name| name.len() <= 63));
        }
    }
}
