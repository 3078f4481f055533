//! Refuses NUL characters in documents for the runtime: it is written in C, where a text ends at
//! its first NUL.
//!
//! JSON writes a NUL as `\u0000`. The runtime would use only what is before it: another path,
//! argument or variable than the one that was checked, and than the pod's.

use agent_containerd::{Error, ErrorClass};
use serde_json::Value;

/// Refuses a document that the runtime would read differently.
///
/// # Errors
/// A text or a key contains a NUL ([`ErrorClass::Config`]). The message has the place, below
/// `name`, but not the text, which may be secret.
pub(crate) fn check(name: &str, document: &Value) -> Result<(), Error> {
    match first_nul(document) {
        None => Ok(()),
        Some(place) => {
            let text = format!("{name}{place} contains a NUL character, which ends a text");
            Err(Error::new(ErrorClass::Config, text))
        }
    }
}

/// The place of the first NUL, relative to `value`. Recursion is as deep as our own documents.
fn first_nul(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(all) => all.iter().enumerate().find_map(|(index, one)| {
            let rest = first_nul(one)?;
            Some(format!("[{index}]{rest}"))
        }),
        Value::Object(all) => all.iter().find_map(|(key, one)| {
            if key.contains('\0') {
                return Some(format!(".{}", key.escape_default()));
            }
            let rest = first_nul(one)?;
            Some(format!(".{key}{rest}"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use agent_containerd::ErrorClass;
    use serde_json::{Value, json};

    fn document() -> Value {
        json!({
            "process": {"args": ["a", "b"], "env": ["A=1"], "cwd": "/", "rlimits": [{"type": "R"}]},
            "hostname": "h",
            "mounts": [{"destination": "/a"}, {"destination": "/d", "options": ["ro", "rw"]}],
            "annotations": {"key": "value"},
            "linux": {"cgroupsPath": "/g", "number": 1, "none": null, "is": true},
        })
    }

    #[test]
    fn a_nul_is_found_wherever_it_is_and_not_shown() {
        check("specification", &document()).unwrap();
        for (pointer, place) in [
            ("/process/args/1", ".process.args[1]"),
            ("/process/env/0", ".process.env[0]"),
            ("/process/cwd", ".process.cwd"),
            ("/process/rlimits/0/type", ".process.rlimits[0].type"),
            ("/hostname", ".hostname"),
            ("/mounts/1/destination", ".mounts[1].destination"),
            ("/mounts/1/options/0", ".mounts[1].options[0]"),
            ("/annotations/key", ".annotations.key"),
            ("/linux/cgroupsPath", ".linux.cgroupsPath"),
        ] {
            for text in ["\0", "/./dev\0secret", "secret\0"] {
                let mut document = document();
                *document.pointer_mut(pointer).unwrap() = json!(text);
                let told = check("specification", &document).unwrap_err();
                assert_eq!(told.class, ErrorClass::Config);
                let expected = format!("specification{place} contains a NUL");
                assert!(told.message.starts_with(&expected), "{told}");
                assert!(!told.message.contains("secret"), "{told}");
            }
        }
        let mut document = document();
        document["annotations"] = json!({"a\0b": "value"});
        let told = check("specification", &document).unwrap_err();
        assert!(told.message.contains(r".annotations.a\u{0}b "), "{told}");
    }
}
