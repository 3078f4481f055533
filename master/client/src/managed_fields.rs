//! Cuts managed fields, which no part of the master reads, out of an object's JSON.

use master_schema::json_text::string_end;
use memchr::memmem;
use std::borrow::Cow;

/// The start of managed fields. It can't occur inside a JSON string, as its quotes would be escaped
/// there.
const MANAGED: &str = r#""managedFields":["#;

/// An object's JSON without its managed fields. They are often as long as the rest and cost more to
/// decode; an update without them leaves them unchanged.
pub(crate) fn without_managed_fields(object: &str) -> Cow<'_, str> {
    let Some((before, after)) = around(object) else {
        return Cow::Borrowed(object);
    };
    // Also cuts the comma before them, or the one after if they are the first field.
    let (before, after) = match before.strip_suffix(',') {
        Some(before) => (before, after),
        None => (before, after.strip_prefix(',').unwrap_or(after)),
    };
    Cow::Owned([before, after].concat())
}

/// The JSON before and after the object's own managed fields. Those of a template inside it are
/// kept.
fn around(object: &str) -> Option<(&str, &str)> {
    let start = memmem::find(object.as_bytes(), MANAGED.as_bytes())?;
    let (before, rest) = object.split_at(start);
    let (mut depth, mut opened) = (0_usize, 0);
    // The closure never returns true: this walks to the end.
    let _end = walk(before, |at, opens| {
        if opens {
            depth += 1;
            if depth == 2 {
                opened = at;
            }
        } else {
            depth = depth.saturating_sub(1);
        }
        false
    });
    if depth != 2 || !before[..opened].ends_with(r#""metadata":"#) {
        return None;
    }
    let mut open = 0_usize;
    let end = walk(rest, |_, opens| {
        open = if opens {
            open + 1
        } else {
            open.saturating_sub(1)
        };
        open == 0
    });
    Some((before, &rest[end? + 1..]))
}

/// Calls `is_last` with the place of each bracket outside strings and whether it opens, until that
/// returns true; returns this place.
fn walk(json: &str, mut is_last: impl FnMut(usize, bool) -> bool) -> Option<usize> {
    let json = json.as_bytes();
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at)?,
            b'{' | b'[' if is_last(at, true) => return Some(at),
            b'}' | b']' if is_last(at, false) => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_object_loses_its_managed_fields_and_nothing_else() {
        let managed = json!([{"manager": "a\"]}\\", "fieldsV1": {"f:spec": {"k:{\"x\":[1]}": {}}}}, {"manager": "b"}]);
        let template = json!({"metadata": {"managedFields": [{"manager": "t"}]}});
        let tricky = json!({"text": "\"managedFields\":[", "other": "]}\\"});
        for metadata in [
            json!({"name": "n"}),
            json!({"annotations": tricky, "name": "n"}),
            json!({}),
        ] {
            let without =
                json!({"kind": "K", "metadata": metadata, "spec": {"template": template}});
            let mut with = without.clone();
            with["metadata"]["managedFields"] = managed.clone();
            for (object, cut) in [(&with, true), (&without, false)] {
                let text = object.to_string();
                let left = without_managed_fields(&text);
                assert_eq!(matches!(left, Cow::Owned(_)), cut, "{text}");
                let left: Value = serde_json::from_str(&left).expect("still JSON");
                assert_eq!(left, without);
            }
        }
    }
}
