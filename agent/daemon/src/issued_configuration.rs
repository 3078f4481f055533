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

/// The digest; `None` for a text that is no TOML. Neither comments nor the order of keys count.
pub(crate) fn digest(user_data: &str) -> Option<Digest> {
    let mut table: Table = user_data.parse().ok()?;
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
}
