//! Names of nodes: which are valid, and the name derived for a machine that claims none.

use config_tpm::Digest;

/// Longest name of a node, so that objects named after it stay within 253 bytes.
pub const MAX_NODE_NAME: usize = 200;
/// Digits of the endorsement key's hash in a derived name.
const DIGITS: usize = 10;

/// The name of a machine that claims none: `node-` and the first ten hex digits of its endorsement
/// key's hash. Both sides derive it, because the certificate requests need a name before the
/// master's first answer.
pub fn derived(ek_hash: &Digest) -> String {
    format!(
        "node-{}",
        ek_hash.to_hex().chars().take(DIGITS).collect::<String>()
    )
}

/// Whether a node can have this name: a DNS subdomain in lower case (RFC 1123) of at most
/// [`MAX_NODE_NAME`] bytes.
pub fn is_node_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_NODE_NAME && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_names() {
        assert_eq!(derived(&Digest::ZERO), "node-0000000000");
        assert!(is_node_name(&derived(&Digest::of(b"any"))));
    }

    #[test]
    fn only_dns_names_are_node_names() {
        assert!(is_node_name("worker-1.lab"));
        for text in [
            "",
            "Worker",
            "a_b",
            "-a",
            "a-",
            "a..b",
            "../x",
            "a/b",
            &"a".repeat(64),
            &"a.".repeat(101),
        ] {
            assert!(!is_node_name(text), "{text}");
        }
    }
}
