//! Reads stored bytes with the managed fields as one undecoded string.

use super::MANAGED;
use master_schema::validate::Fields;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// Stored bytes as text: checked once as a whole, which costs far less than a check of each string
/// inside.
pub(super) fn text(bytes: &[u8]) -> Result<&str, serde_json::Error> {
    str::from_utf8(bytes).map_err(serde_json::Error::custom)
}

/// The object without managed fields, and their string.
pub(super) fn read(bytes: &[u8]) -> Result<(Fields, Option<&str>), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text(bytes)?);
    let read = deserializer.deserialize_map(Level { top: true })?;
    deserializer.end()?;
    Ok(read)
}

/// Whether the object itself or its metadata is read.
struct Level {
    top: bool,
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = (Fields, Option<&'de str>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = (Fields, Option<&'de str>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::new();
        let mut managed = None;
        while let Some(key) = access.next_key::<String>()? {
            if self.top && key == "metadata" {
                let (metadata, found) = access.next_value_seed(Self { top: false })?;
                managed = found;
                fields.insert(key, Value::Object(metadata));
            } else if !self.top && key == MANAGED {
                managed = Some(access.next_value::<&'de RawValue>()?.get());
            } else {
                let value = access.next_value()?;
                fields.insert(key, value);
            }
        }
        Ok((fields, managed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn managed_fields_stay_a_text_and_the_rest_is_read() {
        let text = br#"{"metadata":{"managedFields":[{"manager":"a b"}],"name":"x"},"data":{"managedFields":"no"}}"#;
        let (fields, managed) = read(text).unwrap();
        assert_eq!(managed, Some(r#"[{"manager":"a b"}]"#));
        assert_eq!(
            Value::Object(fields),
            json!({"metadata": {"name": "x"}, "data": {"managedFields": "no"}})
        );
        assert!(read(b"[]").is_err());
        assert!(read(br#"{"metadata":{}} x"#).is_err());
        assert!(read(b"{\"metadata\":{\"name\":\"\xff\"}}").is_err());
    }
}
