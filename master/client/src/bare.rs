//! Objects without what no part of the master reads of them.

use std::borrow::Cow;

/// How managed fields begin. Within a text the quotes would be escaped.
const MANAGED: &str = r#""managedFields":["#;

/// An object as JSON without its managed fields: they are often as long as the rest, decoding them costs more than that, and an
/// update without them leaves them as they are.
pub(crate) fn bare(object: &str) -> Cow<'_, str> {
    let Some((before, after)) = around(object) else {
        return Cow::Borrowed(object);
    };
    // The comma before them, or after where they are the first.
    let (before, after) = match before.strip_suffix(',') {
        Some(before) => (before, after),
        None => (before, after.strip_prefix(',').unwrap_or(after)),
    };
    Cow::Owned([before, after].concat())
}

/// What comes before and after the managed fields of the object itself; those of a template in it are its content.
fn around(object: &str) -> Option<(&str, &str)> {
    let (before, rest) = object.split_at(object.find(MANAGED)?);
    let (mut depth, mut opened) = (0_usize, 0);
    for (at, bracket) in brackets(before) {
        if matches!(bracket, b'{' | b'[') {
            depth += 1;
            if depth == 2 {
                opened = at;
            }
        } else {
            depth = depth.saturating_sub(1);
        }
    }
    if depth != 2 || !before[..opened].ends_with(r#""metadata":"#) {
        return None;
    }
    let mut open = 0_usize;
    let end = brackets(rest).find(|(_, bracket)| {
        if matches!(bracket, b'{' | b'[') {
            open += 1;
        } else {
            open = open.saturating_sub(1);
        }
        open == 0
    });
    Some((before, &rest[end?.0 + 1..]))
}

/// The brackets outside texts, with their places.
fn brackets(json: &str) -> impl Iterator<Item = (usize, u8)> {
    let (mut quoted, mut escaped) = (false, false);
    json.bytes().enumerate().filter(move |(_, byte)| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'}' | b'[' | b']' => return !quoted,
            _ => {}
        }
        false
    })
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
                let left = bare(&text);
                assert_eq!(matches!(left, Cow::Owned(_)), cut, "{text}");
                let left: Value = serde_json::from_str(&left).expect("still JSON");
                assert_eq!(left, without);
            }
        }
    }
}
