//! `FieldsV1`: the encoding of a set of paths in `metadata.managedFields`.

use crate::path::Element;
use crate::set::{Node, Set};
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Encodes a set.
pub fn encode(set: &Set<'_>, out: &mut Vec<u8>) {
    write(set, false, out);
}

fn write(set: &Set<'_>, member: bool, out: &mut Vec<u8>) {
    out.push(b'{');
    if member && !set.is_empty() {
        out.extend_from_slice(b"\".\":{}");
    }
    for (number, node) in set.nodes().iter().enumerate() {
        if number > 0 || member {
            out.push(b',');
        }
        node.element.encode(out);
        out.push(b':');
        write(&node.children, node.member, out);
    }
    out.push(b'}');
}

/// Decodes a set from JSON text.
///
/// # Errors
/// The text is not JSON of this form, or a key has no known prefix.
pub fn decode(text: &str) -> Result<Set<'_>, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let level = deserializer.deserialize_any(Level);
    let level = level.and_then(|level| deserializer.end().map(|()| level));
    level
        .map(|level| level.set)
        .map_err(|error| format!("fieldsV1 cannot be read: {error}"))
}

/// Decodes a set from a JSON value.
///
/// # Errors
/// The value has not this form, or a key has no known prefix.
pub fn from_value(value: &Value) -> Result<Set<'_>, String> {
    value
        .deserialize_any(Level)
        .map(|level| level.set)
        .map_err(|error| format!("fieldsV1 cannot be read: {error}"))
}

/// The fields below a path element.
struct Below<'a> {
    set: Set<'a>,
    member: bool,
}

struct Level;

impl<'de> serde::de::DeserializeSeed<'de> for Level {
    type Value = Below<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Below<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of fields")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        // `null` is read as `{}`.
        Ok(Below {
            set: Set::default(),
            member: true,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let (mut nodes, mut member) = (Vec::new(), false);
        while let Some(key) = fields.next_key_seed(Text)? {
            if key == "." {
                member = true;
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            match Element::decode(key).map_err(A::Error::custom)? {
                // A form of a later version: it can't be owned here, and is no reason to fail the
                // write.
                None => drop(fields.next_value::<IgnoredAny>()?),
                Some(element) => {
                    let inner = fields.next_value_seed(Level)?;
                    nodes.push(Node {
                        element,
                        member: inner.member,
                        children: inner.set,
                    });
                }
            }
        }
        // A client's keys come in any order, by which the nodes are not put in place one by one.
        let set = Set::from_unsorted(nodes);
        // `{}` alone is a member. The `.` is there only where longer paths follow.
        member |= set.is_empty();
        Ok(Below { set, member })
    }
}

/// A string that is borrowed if it has no escapes.
struct Text;

impl<'de> serde::de::DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        let set = decode(text).unwrap();
        let mut out = Vec::new();
        encode(&set, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn upstreams_form_is_kept() {
        let text = r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{}}}},"f:x":{"v:1":{},"v:\"a\"":{},"i:3":{}}}}"#;
        assert_eq!(round(text), text);
    }

    #[test]
    fn order_is_made_and_unknown_forms_are_dropped() {
        assert_eq!(
            round(r#"{"f:b":{},"f:a":{"x:1":{"f:c":{}}},"f:a\"q":null}"#),
            r#"{"f:a":{},"f:a\"q":{},"f:b":{}}"#
        );
    }

    #[test]
    fn a_malformed_field_set_is_refused() {
        for text in [
            "",
            "[]",
            "5",
            r#"{"a":{}}"#,
            r#"{"f:a":5}"#,
            r#"{"k:x":{}}"#,
            r#"{"i:x":{}}"#,
            r#"{"f:a":{}} {}"#,
        ] {
            assert!(decode(text).is_err(), "{text}");
        }
    }
}
