//! The reference of all documents, generated from the tables of the reader, so that it has exactly
//! the keys that the reader accepts.

use crate::defaults;
use crate::format::HumanDuration;
use crate::raw::{RawClusterDocument, RawImageDocument, RawMachineDocument, RawPolicyDocument};
use crate::shape::Key;
use std::fmt::Write as _;

/// The reference as Markdown.
///
/// # Panics
/// Never: writing to a `String` does not fail.
pub fn markdown() -> String {
    let documents = [
        (
            "machine",
            "user-data of a machine",
            RawMachineDocument::TABLE,
        ),
        (
            "cluster",
            "a master on a plain host",
            RawClusterDocument::TABLE,
        ),
        ("policy", "a `CertificatePolicy`", RawPolicyDocument::TABLE),
        ("image", "input of the image build", RawImageDocument::TABLE),
    ];
    let mut text = HEAD.to_owned();
    let mut described = Vec::new();
    for (kind, what, keys) in documents {
        section(&mut text, &format!("## `kind = \"{kind}\"`: {what}"), keys);
        below(&mut text, "", keys, &mut described);
    }
    text
}

const HEAD: &str = "# Every key of every document

Made from the tables by which documents are read; a test compares. [The guide](GUIDE.md) explains how the keys play
together. Each document begins with `version = 1` and `kind` (default: `\"machine\"`).
";

/// The tables in a table, each once: rules and clusters occur in several documents.
fn below(text: &mut String, path: &str, keys: &'static [Key], described: &mut Vec<*const Key>) {
    for key in keys {
        let path = match path {
            "" => key.name.to_owned(),
            above => format!("{above}.{}", key.name),
        };
        let Some((header, keys)) = (key.shape)().table(&path) else {
            continue;
        };
        if described.contains(&keys.as_ptr()) {
            continue;
        }
        described.push(keys.as_ptr());
        let title = if header.starts_with('[') {
            format!("### `{header}`")
        } else {
            format!("### {header}")
        };
        section(text, &title, keys);
        below(text, &path, keys, described);
    }
}

fn section(text: &mut String, title: &str, keys: &[Key]) {
    let _infallible = write!(
        text,
        "\n{title}\n\n| key | type | meaning |\n|---|---|---|\n"
    );
    for key in keys {
        let (name, shape) = (key.name, (key.shape)().name());
        let _infallible = writeln!(text, "| `{name}` | {shape} | {} |", filled(key.help.trim()));
    }
}

/// A help text with the values of the constants that it names.
fn filled(help: &str) -> String {
    let mut text = help.to_owned();
    for (name, value) in constants() {
        text = text.replace(&format!("{{{name}}}"), &value);
    }
    text
}

fn constants() -> Vec<(&'static str, String)> {
    macro_rules! values {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name), defaults::$name.to_string())),*] };
    }
    macro_rules! durations {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name), HumanDuration(defaults::$name).to_string())),*] };
    }
    let mut all = values![
        API_EXCHANGES,
        API_READS,
        API_WATCHES,
        API_WRITES,
        CLUSTER_NAME,
        DEFAULT_REGISTRY,
        MAX_CMDLINE,
        MAX_NODE_TAINTS,
        MAX_PODS,
        MAX_PODS_LIMIT,
        MIN_SVN,
        MTU_MAX,
        MTU_MIN,
        NODE_CIDR_MASK_IPV4,
        NODE_CIDR_MASK_IPV6,
        NODE_PORTS,
        PARALLEL_IMAGE_PULLS,
        PARALLEL_IMAGE_PULLS_MAX,
        PIDS_MAX,
        PIDS_MIN,
        PIDS_PER_CONTAINER,
        POD_CIDR,
        QUEUE_MAX_WAITING,
        RESERVED_CPU,
        RESERVED_EPHEMERAL_STORAGE,
        RESERVED_MEMORY,
        SERVICE_CIDR,
    ];
    all.extend(durations![
        CERTIFICATE_TTL,
        CERTIFICATE_TTL_MAX,
        CERTIFICATE_TTL_MIN,
        EVICTION_MAX_POD_GRACE,
        EVICTION_TRANSITION,
        QUEUE_WAIT_MAX,
        QUEUE_WAIT_MIN,
        SHUTDOWN_GRACE,
        SHUTDOWN_GRACE_CRITICAL,
        SHUTDOWN_GRACE_MAX,
        WIREGUARD_KEY_PERIOD,
        WIREGUARD_KEY_PERIOD_MAX,
        WIREGUARD_KEY_PERIOD_MIN,
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_reader_accepts() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/REFERENCE.md");
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        if kept != markdown() {
            // The new text is written beside it, for a person to compare and move.
            let made = std::env::temp_dir().join("REFERENCE.md");
            std::fs::write(&made, markdown()).unwrap();
            panic!(
                "{file} does not match the reader; the new text is in {}",
                made.display()
            );
        }
    }

    #[test]
    fn every_help_text_has_content_and_its_constants_have_values() {
        let text = markdown();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let braces = line.replace("{ infineon", "").contains('{');
            assert!(!braces && line.ends_with(". |"), "{line}");
        }
        assert!(text.contains("### `[[cluster.release_key]]`"));
        assert!(text.contains("### `[rule.certificate]`") || text.contains("### `[[rule]]`"));
    }
}
