//! The digest of a machine's user-data without its identity and its masters.
//!
//! An issued identity opens the machine's state without the master's approval. So the state is
//! bound to all of the user-data that decides what then runs beside it: privileges, static pods,
//! registries. The identity itself is left out, as an admin renews it, and so is what names the
//! masters, as their addresses and pins change: masters of another cluster are refused in any case
//! ([`crate::state_cluster`]).

use config_tpm::Digest;
use toml::{Table, Value};

/// The user-data's tables of the identity and of the masters.
const LEFT_OUT: [&str; 3] = ["identity", "master", "discovery"];

/// The digest; `None` for a text that holds no TOML. Neither comments nor the order of keys count,
/// nor does what a cloud-config has around the document: the agent reads the document alone.
pub(crate) fn digest(user_data: &str) -> Option<Digest> {
    let mut table: Table = config_model::toml_text(user_data)?.parse().ok()?;
    table.retain(|key, _| !LEFT_OUT.contains(&key));
    let mut bytes = Vec::new();
    put_table(&table, &mut bytes);
    Some(Digest::of(&bytes))
}

/// Each value is a letter for its kind, then its bytes or parts, with their number in front.
fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => put_text(b's', text, out),
        Value::Datetime(time) => put_text(b'd', &time.to_string(), out),
        Value::Integer(number) => {
            out.push(b'i');
            out.extend(number.to_be_bytes());
        }
        Value::Float(number) => {
            out.push(b'f');
            out.extend(number.to_bits().to_be_bytes());
        }
        Value::Boolean(value) => out.extend([b'b', u8::from(*value)]),
        Value::Array(values) => {
            put_count(b'a', values.len(), out);
            for value in values {
                put(value, out);
            }
        }
        Value::Table(table) => put_table(table, out),
    }
}

fn put_table(table: &Table, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = table.iter().collect();
    fields.sort_unstable_by_key(|(key, _)| *key);
    put_count(b't', fields.len(), out);
    for (key, value) in fields {
        put_text(b's', key, out);
        put(value, out);
    }
}

fn put_text(kind: u8, text: &str, out: &mut Vec<u8>) {
    put_count(kind, text.len(), out);
    out.extend(text.as_bytes());
}

fn put_count(kind: u8, count: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend(count.to_string().as_bytes());
    out.push(b':');
}

#[cfg(test)]
mod tests {
    use super::digest;
    use toml::Table;

    const TEXT: &str =
        "version = 1\n[machine]\nname = \"edge-1\"\n[node]\nstatic_pods = [\"a\", \"b\"]\n";

    #[test]
    fn identity_and_masters_may_change_and_nothing_beside_them() {
        let own = digest(&format!("{TEXT}[identity]\nkey = \"one\"\n"));
        assert!(own.is_some());
        for same in [
            format!("{TEXT}[identity]\nkey = \"two\"\nroots = \"r\"\n"),
            format!("# a comment\n{TEXT}"),
            format!("{TEXT}[master]\nca_pins = [\"sha256:00\"]\n[discovery]\nmin_generation = 7\n"),
            "version=1\n[node]\nstatic_pods=['a','b']\n[machine]\nname='edge-1'".to_owned(),
        ] {
            assert_eq!(digest(&same), own, "{same}");
        }
        for other in [
            format!("{TEXT}privileged = true\n"),
            TEXT.replace("\"a\", \"b\"", "\"ab\""),
            TEXT.replace("\"a\", \"b\"", "\"b\", \"a\""),
            TEXT.replace("\"a\", \"b\"", "[\"a\", \"b\"]"),
            TEXT.replace("edge-1", "edge-2"),
            TEXT.replace("version = 1", "version = \"1\""),
            format!("{TEXT}[[registry]]\nhost = \"r\"\n"),
        ] {
            let found = digest(&other);
            assert!(found.is_some() && found != own, "{other}");
        }
        assert_eq!(digest("no TOML"), None);
    }

    fn block(indent: &str, text: &str) -> String {
        let lines = text.lines().map(|line| format!("{indent}{line}\n"));
        lines.collect()
    }

    /// An attacker who has the board writes one text that is two documents: as TOML the machine's
    /// own, as cloud-config one with privileges. NEL ends a comment in YAML, and not in TOML.
    #[test]
    fn of_a_text_that_is_two_documents_the_one_counts_that_the_agent_reads() {
        let privileged = format!("{TEXT}privileged = true\n");
        let cloud_config = |document: &str| {
            let document = block("  ", document);
            format!("#cloud-config\npratique: |\n{document}")
        };
        let both = format!(
            "#cloud-config\u{85}write_files:\u{85}- path: /etc/pratique/config.toml\u{85}  owner: |\n{}    [discovery]\n    x = '''\n  \
             content: |\n{}# '''\n",
            block("    ", TEXT),
            block("    ", &privileged),
        );
        let as_toml: Table = both.parse().expect("TOML");
        assert_eq!(as_toml["node"].get("privileged"), None);
        assert_eq!(digest(&both), digest(&privileged));
        assert_eq!(digest(&cloud_config(TEXT)), digest(TEXT));
        assert_ne!(digest(TEXT), digest(&privileged));
    }
}
