//! Changes of a stored object that concern few fields: the others stay the text that they are.

use bytes::Bytes;
use master_schema::error::{ApiError, Reason};
use master_schema::json_text::string_end;
use master_store::Entry;
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Error;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// An object, stored or inside a stored one, of which each field is undecoded JSON.
///
/// A change of one field costs the decoding and encoding of that field, and one look at the text of
/// the others.
///
/// Assumptions: the text is JSON without white space between its tokens, and names of fields have
/// no escapes. Both are true of objects that [`super::encode`] wrote, except inside managed fields.
#[derive(Debug, Clone, Default)]
pub struct Shallow<'a>(BTreeMap<&'a str, Cow<'a, str>>);

impl<'a> Shallow<'a> {
    /// The stored object, from the bytes of the entry's value; its kind must be one that is stored
    /// as it is served.
    ///
    /// # Errors
    /// The stored bytes are no object (500, with the key).
    pub fn stored(entry: &Entry, bytes: &'a [u8]) -> Result<Self, ApiError> {
        let read = super::stored::text(bytes).and_then(Self::of);
        read.map_err(|error| super::corrupt(entry, &error))
    }

    fn of(text: &'a str) -> Result<Self, Error> {
        split(text).ok_or_else(|| Error::custom("not an object as they are stored"))
    }

    fn present(&self, key: &str) -> Option<&str> {
        let value: &str = self.0.get(key)?;
        (value != "null").then_some(value)
    }

    /// The fields of an object field; none if it is absent.
    ///
    /// # Errors
    /// It is no object (500).
    pub fn object(&self, key: &str) -> Result<Shallow<'_>, ApiError> {
        let read = self.present(key).map(Shallow::of).transpose();
        read.map(Option::unwrap_or_default)
            .map_err(|error| unreadable(key, &error))
    }

    /// A field, decoded; the type's default if it is absent.
    ///
    /// # Errors
    /// It is of another type (500).
    pub fn read<T: DeserializeOwned + Default>(&self, key: &str) -> Result<T, ApiError> {
        let read = self.present(key).map(serde_json::from_str).transpose();
        read.map(Option::unwrap_or_default)
            .map_err(|error| unreadable(key, &error))
    }

    /// Sets a field.
    ///
    /// # Errors
    /// The value cannot be written as JSON (500).
    pub fn set(&mut self, key: &'a str, value: &impl Serialize) -> Result<(), ApiError> {
        let value = serde_json::to_string(value).map_err(|error| unreadable(key, &error))?;
        self.0.insert(key, Cow::Owned(value));
        Ok(())
    }

    /// Changes fields of an object field, which is made if it is absent.
    ///
    /// # Errors
    /// It is no object (500), or as `change`.
    pub fn change(
        &mut self,
        key: &'a str,
        change: impl FnOnce(&mut Shallow<'_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let changed = {
            let mut inner = self.object(key)?;
            change(&mut inner)?;
            inner.write(None)
        };
        self.0.insert(key, Cow::Owned(changed));
        Ok(())
    }

    /// The stored form: metadata first, without spare capacity.
    pub fn encode(mut self) -> Bytes {
        let metadata = self.0.remove("metadata");
        self.write(Some(metadata.as_deref().unwrap_or("{}"))).into()
    }

    /// The object as JSON; metadata that comes first is given apart.
    fn write(&self, metadata: Option<&str>) -> String {
        let mut text = vec!["{"];
        if let Some(metadata) = metadata {
            text.extend([r#""metadata":"#, metadata]);
        }
        for (key, value) in &self.0 {
            let before = if text.len() == 1 { "\"" } else { ",\"" };
            text.extend([before, *key, "\":", &**value]);
        }
        text.push("}");
        text.concat()
    }
}

/// The fields of an object. Only strings and brackets are looked at, which takes a fraction of a
/// parser's time.
fn split(text: &str) -> Option<Shallow<'_>> {
    let mut fields = BTreeMap::new();
    let mut rest = text.strip_prefix('{')?;
    while rest != "}" {
        let (key, after) = rest.strip_prefix('"')?.split_once('"')?;
        let after = after.strip_prefix(':')?;
        let (value, more) = after.split_at(end(after)?);
        fields.insert(key, Cow::Borrowed(value));
        rest = match more.strip_prefix(',') {
            Some("}") => return None,
            Some(next) => next,
            None => more,
        };
    }
    Some(Shallow(fields))
}

/// Where the value at the start of a text ends: at the comma or bracket that is outside of it.
fn end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => depth += 1,
            b',' | b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
}

fn unreadable(key: &str, error: &Error) -> ApiError {
    let text = format!("the field {key} of a stored object cannot be read or written: {error}");
    ApiError::new(Reason::InternalError, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    /// Any JSON, with what means something to the text of it in strings.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            r#"[a\\"{}\[\],:é\n]{0,6}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = r#"[a\\"{}\[\],:é]{0,3}"#;
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn fields() -> impl Strategy<Value = Map<String, Value>> {
        let fields = proptest::collection::btree_map("[a-d]{1,2}", value(), 0..5);
        fields.prop_map(|fields| fields.into_iter().collect())
    }

    proptest! {
        #[test]
        fn a_field_is_set_as_in_the_decoded_object(
            metadata in fields(), mut spec in fields(), data in value(), new in value(),
        ) {
            let object = |spec: &Map<String, Value>| json!({"metadata": metadata, "data": data, "spec": spec});
            let stored = object(&spec).to_string();
            let mut shallow = read(&stored).unwrap();
            prop_assert_eq!(shallow.read::<Value>("data").unwrap(), data.clone());
            shallow.change("spec", |fields| fields.set("b", &new)).unwrap();
            spec.insert("b".to_owned(), new);
            let changed: Value = serde_json::from_slice(&shallow.encode()).unwrap();
            prop_assert_eq!(changed, object(&spec));
        }

        #[test]
        fn no_text_is_too_strange_to_be_refused(text in r#"[\{\}\[\],:"\\a1 é]{0,24}"#) {
            if let Ok(shallow) = read(&text) {
                drop(shallow.encode());
            }
        }
    }

    fn read(text: &str) -> Result<Shallow<'_>, ApiError> {
        let entry = Entry {
            key: "pods/a/b".into(),
            value: Bytes::new().into(),
            created: 1,
            modified: 2,
        };
        Shallow::stored(&entry, text.as_bytes())
    }

    #[test]
    fn what_is_not_changed_keeps_its_text() {
        let stored = r#"{"metadata":{"name":"a\\\"b]","managedFields":[ {"x":1.50} ]},"data":{"é":"\u00e9"},"spec":{"a":1e3,"c":null,"e":{}}}"#;
        let mut object = read(stored).unwrap();
        let change = |spec: &mut Shallow<'_>| {
            assert_eq!(spec.read::<Vec<Value>>("c").unwrap(), Vec::<Value>::new());
            spec.set("b", &json!({"new": true}))
        };
        object.change("spec", change).unwrap();
        object
            .change("status", |status| status.set("d", &[1]))
            .unwrap();
        assert_eq!(
            object.encode(),
            r#"{"metadata":{"name":"a\\\"b]","managedFields":[ {"x":1.50} ]},"data":{"é":"\u00e9"},"spec":{"a":1e3,"b":{"new":true},"c":null,"e":{}},"status":{"d":[1]}}"#
        );
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for text in [
            "",
            "[]",
            "{",
            r#"{"a":1,}"#,
            r#"{"a":{}"#,
            r#"{"a":"}"#,
            r#"{"a":1}}"#,
            r#"{"a\"b":1}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let mut object = read(r#"{"metadata":{},"spec":1}"#).unwrap();
        assert!(object.object("spec").is_err() && object.read::<String>("spec").is_err());
        assert!(object.change("spec", |_| Ok(())).is_err());
        assert_eq!(object.encode(), r#"{"metadata":{},"spec":1}"#);
    }
}
