//! Hashes of templates, for names and labels.
//!
//! Upstream hashes a dump of the Go value in memory, with names of types and all fields, so that
//! the hash of a template changes with each release that adds a field. Here the template's
//! canonical JSON (keys in order, absent fields omitted) is hashed, by the same function and into
//! the same letters. A template is recognised by its content and never by its hash, so objects that
//! upstream created keep their names.
//!
//! For a revision, upstream hashes the JSON of the patch: [`of_patch`] gives the same hash.

use serde_json::Value;
use std::fmt::Write as _;

/// Upstream's letters of generated names.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of a template, which differs for each `collisionCount`.
pub fn hash(template: &Value, collisions: Option<i32>) -> String {
    // `serde_json::Value` keeps its keys sorted.
    let mut text = template.to_string();
    if let Some(collisions) = collisions {
        // Writing to a String cannot fail.
        let _ignored = write!(text, "#{collisions}");
    }
    safe_encode(&fnv_1a(text.as_bytes()).to_string())
}

/// The hash of a revision's patch, which differs for each `collisionCount` (upstream:
/// `HashControllerRevision`).
pub fn of_patch(patch: &Value, collisions: Option<i32>) -> String {
    // Go escapes these characters; in JSON they occur only inside strings.
    let written = [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ];
    let mut text = patch.to_string();
    for (letter, number) in written {
        text = text.replace(letter, number);
    }
    let text = format!("{text}{}", collisions.unwrap_or_default());
    safe_encode(&fnv_1(text.as_bytes()).to_string())
}

/// FNV-1 of 32 bits.
fn fnv_1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte)
    })
}

/// FNV-1a of 32 bits.
fn fnv_1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Replaces each character by a letter that forms no words (upstream: `rand.SafeEncodeString`).
fn safe_encode(text: &str) -> String {
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    text.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_revisions_hash_is_of_the_patch_as_go_writes_it() {
        // FNV-1's published vectors.
        assert_eq!((fnv_1(b""), fnv_1(b"foobar")), (0x811c_9dc5, 0x31f0_b262));
        let patch = json!({"spec": {"b": "a && <b>", "a": 1}});
        let text = r#"{"spec":{"a":1,"b":"a \u0026\u0026 \u003cb\u003e"}}0"#;
        let expected = safe_encode(&fnv_1(text.as_bytes()).to_string());
        assert_eq!(of_patch(&patch, None), expected);
        assert_eq!(of_patch(&patch, Some(0)), expected);
        assert_ne!(of_patch(&patch, Some(1)), expected);
    }

    #[test]
    fn a_revisions_hash_is_upstreams() {
        // From an upstream cluster before 1.34: the revision of a StatefulSet with one container.
        let spec = json!({"containers": [{"image": "nginx", "imagePullPolicy": "Always", "name": "nginx", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30});
        let metadata = json!({"creationTimestamp": null, "labels": {"app": "nginx-sts"}});
        let template = json!({"$patch": "replace", "metadata": metadata, "spec": spec});
        let patch = json!({"spec": {"template": template}});
        assert_eq!(of_patch(&patch, None), "6798d68dcd");
    }

    #[test]
    fn a_hash_is_stable_and_differs_by_content_and_collisions() {
        // FNV-1a's published vectors.
        assert_eq!((fnv_1a(b""), fnv_1a(b"foobar")), (0x811c_9dc5, 0xbf9c_f968));
        let one = hash(&json!({"a": 1, "b": 2}), None);
        assert_eq!(one, hash(&json!({"b": 2, "a": 1}), None));
        assert_ne!(one, hash(&json!({"a": 1, "b": 3}), None));
        assert_ne!(one, hash(&json!({"a": 1, "b": 2}), Some(1)));
        assert!(one.bytes().all(|byte| LETTERS.contains(&byte)));
        // Fixed for ever: names of ReplicaSets depend on it.
        assert_eq!(safe_encode("0123456789"), "456789bcdf");
    }
}
