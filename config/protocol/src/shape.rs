//! The shape of a message, seen before its values: objects are objects, no field comes twice,
//! nothing nests without end.
//!
//! serde's types alone do not ensure that: a derived decoder also reads a struct from a list of its
//! fields' values, and a map keeps the last of two entries under one key. Two readers of the same
//! signed or recorded bytes could then differ.

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// How deep objects and lists nest at most; the deepest message, a manifest, has six levels.
const MAX_DEPTH: u8 = 16;
/// Names of fields that are lists in some message. No message has a struct under one of these
/// names, so that the types refuse a list in the wrong place. A manifest also has lists under the
/// numbers of registers.
const LISTS: [&str; 6] = [
    "addresses",
    "boots",
    "executables",
    "packages",
    "parts",
    "pcrs",
];
/// The one object in which unknown fields are allowed.
const OPEN: &str = "configEvent";

/// Reads a message, a statement, a manifest or a line of the log. Beside what its type asks for: a
/// list stands only where the type has one, no key comes twice in any object, however it is
/// escaped, nothing is `null`, and nothing nests deeper than 16.
///
/// # Errors
/// The bytes are no JSON of the type, or break one of the rules above.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let root = Value {
        place: Position::Message,
        left: MAX_DEPTH,
    };
    root.deserialize(&mut serde_json::Deserializer::from_slice(bytes))?;
    serde_json::from_slice(bytes)
}

/// Where in a message a value is, which decides what it may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// An object or a single value.
    Message,
    /// A list may be here too.
    List,
    /// The open object.
    Open,
    /// In the open object, where lists are allowed: its known fields have types, the others are not
    /// read.
    Unread,
}

/// A value that is checked and not kept.
#[derive(Clone, Copy)]
struct Value {
    place: Position,
    /// Levels that may still be opened.
    left: u8,
}

impl Value {
    fn within<E: Error>(self, place: Position) -> Result<Self, E> {
        let left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| E::custom(format_args!("deeper than {MAX_DEPTH} levels")))?;
        Ok(Self { place, left })
    }
}

impl Position {
    fn of_field(self, key: &str) -> Self {
        match self {
            Self::Open | Self::Unread => Self::Unread,
            Self::Message | Self::List if key == OPEN => Self::Open,
            Self::Message | Self::List => {
                let register = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
                if register || LISTS.contains(&key) {
                    Self::List
                } else {
                    Self::Message
                }
            }
        }
    }

    /// Where the elements of a list stand, if there may be one.
    fn of_element(self) -> Option<Self> {
        match self {
            Self::Message | Self::Open => None,
            Self::List => Some(Self::Message),
            Self::Unread => Some(Self::Unread),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Value {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    /// Senders leave out absent fields; `null` is allowed only where the value is not read.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.place == Position::Unread {
            Ok(())
        } else {
            Err(E::custom("a null"))
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let place = self
            .place
            .of_element()
            .ok_or_else(|| A::Error::custom("a list where none belongs"))?;
        let element = self.within(place)?;
        while list.next_element_seed(element)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        self.within::<A::Error>(self.place)?;
        let mut seen = BTreeSet::new();
        while let Some(key) = object.next_key_seed(FieldName)? {
            let field = self.within(self.place.of_field(&key))?;
            if !seen.insert(key) {
                return Err(A::Error::custom("a field that comes twice"));
            }
            object.next_value_seed(field)?;
        }
        Ok(())
    }
}

/// A key as it reads, borrowed unless it is escaped.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}
