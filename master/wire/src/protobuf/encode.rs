//! Encodes answers: what `decode` reads, written by the same table.
//!
//! The same object gives the same bytes. A value that is null is not there, and of an empty list or
//! map nothing is written, as upstream: the encoding cannot tell them from none. Whatever else the
//! table cannot express is an error.

use super::message_of;
use super::table::{self, Cardinality, Field, FieldType};
use base64::Engine;
use master_schema::error::{ApiError, Reason};
use serde_json::{Map, Value};

/// What follows an object's message in its document: no content encoding and no content type.
pub const TAIL: &[u8] = b"\x1a\0\x22\0";

/// A value that the table cannot express.
#[derive(Debug)]
struct Unwritten {
    /// The names of the fields that lead to it.
    path: String,
    why: &'static str,
}

impl Unwritten {
    fn new(why: &'static str) -> Self {
        let path = String::new();
        Self { path, why }
    }

    /// The same, of a field of this name.
    fn within(self, name: &str) -> Self {
        let path = match &*self.path {
            "" => name.to_owned(),
            path => format!("{name}.{path}"),
        };
        Self { path, ..self }
    }

    fn of(self, version: &str, kind: &str) -> ApiError {
        let Self { path, why } = self;
        let text = format!(
            "{kind} in version {version:?} cannot be written as {}: {path}: {why}; \
             ask for application/json",
            super::MEDIA
        );
        ApiError::new(Reason::InternalError, text)
    }
}

/// The part of an object, or the reason why it cannot be written.
type Written<T> = Result<T, Unwritten>;

/// Whether objects of a kind have a message.
pub fn is_known(version: &str, kind: &str) -> bool {
    message_of(version, kind).is_some()
}

/// Encodes an answer that was made as JSON.
///
/// # Errors
/// Its kind has no message (406), or it has a field or value that the message cannot hold (500).
pub fn from_json(json: &[u8]) -> Result<Vec<u8>, ApiError> {
    let object = parsed(json)?;
    let message = message(&object)?;
    let (version, kind) = named(&object);
    let head = head(version, kind, message.len());
    Ok([&*head, &*message, TAIL].concat())
}

/// The message of an object without its envelope, for an event of a watch: [`event_head`], the
/// message, [`TAIL`].
///
/// # Errors
/// As [`from_json`].
pub fn message_from_json(json: &[u8]) -> Result<Vec<u8>, ApiError> {
    message(&parsed(json)?)
}

/// An event of a watch with its object.
///
/// # Errors
/// As [`from_json`].
pub fn event(what: &str, object: &Value) -> Result<Vec<u8>, ApiError> {
    let message = message(object)?;
    let (version, kind) = named(object);
    let head = event_head(what, version, kind, message.len())?;
    Ok([&*head, &*message, TAIL].concat())
}

/// What precedes the message, of this length, of an event's object: the length of the frame in four
/// bytes, and the start of a `WatchEvent`. That one has no envelope, as upstream; its object has.
///
/// # Errors
/// The event is longer than a frame can be (500).
pub fn event_head(
    what: &str,
    version: &str,
    kind: &str,
    length: usize,
) -> Result<Vec<u8>, ApiError> {
    let head = head(version, kind, length);
    let document = head.len() + length + TAIL.len();
    let mut object = Vec::new();
    put_start(1, document, &mut object);
    let mut event = Vec::new();
    put_bytes(1, what.as_bytes(), &mut event);
    put_start(2, object.len() + document, &mut event);
    event.extend(object);
    event.extend(head);
    let whole = u32::try_from(event.len() + length + TAIL.len());
    let whole = whole.map_err(|error| {
        let text = format!("{kind}: the event is too long: {error}");
        ApiError::new(Reason::InternalError, text)
    })?;
    Ok([&whole.to_be_bytes()[..], &event].concat())
}

/// A list, written item by item: decoded items are not held.
#[derive(Debug)]
pub struct List {
    version: String,
    kind: String,
    items: Field,
    message: Vec<u8>,
}

impl List {
    /// A list without items; `kind` is the list's own, such as `PodList`.
    ///
    /// # Errors
    /// The list has no message (406), or its metadata cannot be written (500).
    pub fn new(version: &str, kind: &str, metadata: &Value) -> Result<Self, ApiError> {
        let fields = fields_of(version, kind)?;
        let items = fields.iter().find(|field| field.name == "items");
        let items = *items.ok_or_else(|| no_message(version, kind))?;
        let start = Map::from_iter([("metadata".to_owned(), metadata.clone())]);
        let message = put_object(&start, fields).map_err(|error| error.of(version, kind))?;
        Ok(Self {
            version: version.to_owned(),
            kind: kind.to_owned(),
            items,
            message,
        })
    }

    /// Appends an item.
    ///
    /// # Errors
    /// It has a field or value that its message cannot hold (500).
    pub fn push(&mut self, item: &Value) -> Result<(), ApiError> {
        let Field {
            number, content, ..
        } = self.items;
        put_value(number, content, item, &mut self.message)
            .map_err(|error| error.within("items").of(&self.version, &self.kind))
    }

    /// The document.
    pub fn finish(self) -> Vec<u8> {
        let head = head(&self.version, &self.kind, self.message.len());
        let mut document = self.message;
        document.extend_from_slice(TAIL);
        // In its place: a copy would hold the list twice.
        drop(document.splice(0..0, head));
        document.shrink_to_fit();
        document
    }
}

fn parsed(json: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(json).map_err(|error| {
        let text = format!("the answer cannot be read as JSON: {error}");
        ApiError::new(Reason::InternalError, text)
    })
}

/// The version and kind of an object.
fn named(object: &Value) -> (&str, &str) {
    let word = |name: &str| object.get(name).and_then(Value::as_str);
    // What `/api` answers names no version.
    let version = word("apiVersion").unwrap_or("v1");
    (version, word("kind").unwrap_or_default())
}

fn no_message(version: &str, kind: &str) -> ApiError {
    let text = format!(
        "{kind} in version {version:?} has no form in {}: ask for application/json",
        super::MEDIA
    );
    ApiError::new(Reason::NotAcceptable, text)
}

fn fields_of(version: &str, kind: &str) -> Result<&'static [Field], ApiError> {
    message_of(version, kind).ok_or_else(|| no_message(version, kind))
}

fn message(object: &Value) -> Result<Vec<u8>, ApiError> {
    let (version, kind) = named(object);
    let fields = fields_of(version, kind)?;
    let object = object.as_object();
    let object = object.ok_or_else(|| no_message(version, kind))?;
    put_object(object, fields).map_err(|error| error.of(version, kind))
}

/// What precedes an object's message, of this length, in its document.
fn head(version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut about = Vec::new();
    put_bytes(1, version.as_bytes(), &mut about);
    put_bytes(2, kind.as_bytes(), &mut about);
    let mut head = b"k8s\0".to_vec();
    put_bytes(1, &about, &mut head);
    put_start(2, length, &mut head);
    head
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

fn put_number(field: u64, value: u64, out: &mut Vec<u8>) {
    put_varint(field << 3, out);
    put_varint(value, out);
}

/// The start of a field of bytes.
fn put_start(field: u64, length: usize, out: &mut Vec<u8>) {
    put_varint((field << 3) | 2, out);
    put_varint(length as u64, out);
}

fn put_bytes(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put_start(field, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// A message of one field.
fn wrapped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 4);
    put_bytes(1, bytes, &mut out);
    out
}

fn inner(name: &str) -> Written<&'static [Field]> {
    table::message(name).ok_or_else(|| Unwritten::new("its message is not in the table"))
}

/// The fields of a message that is embedded in its parent.
fn embedded(field: &Field) -> Option<&'static [Field]> {
    match (field.cardinality, field.content) {
        (Cardinality::Inline, FieldType::Message(name)) => table::message(name),
        _ => None,
    }
}

/// Whether the fields, or those of a message that is embedded in them, have one of this name.
fn has(fields: &[Field], name: &str) -> bool {
    fields.iter().any(|field| match embedded(field) {
        Some(part) => has(part, name),
        None => field.name == name,
    })
}

/// An object's message.
fn put_object(object: &Map<String, Value>, fields: &[Field]) -> Written<Vec<u8>> {
    for (name, value) in object {
        // The envelope names the type; a list's items and templates have none in this encoding.
        let of_type = matches!(name.as_str(), "kind" | "apiVersion");
        if !of_type && !value.is_null() && !has(fields, name) {
            return Err(Unwritten::new("no number of this field is known").within(name));
        }
    }
    let mut out = Vec::new();
    put_fields(object, fields, &mut out)?;
    Ok(out)
}

fn put_fields(object: &Map<String, Value>, fields: &[Field], out: &mut Vec<u8>) -> Written<()> {
    for field in fields {
        if let Some(part) = embedded(field) {
            let mut message = Vec::new();
            put_fields(object, part, &mut message)?;
            if !message.is_empty() {
                put_bytes(field.number, &message, out);
            }
        } else if let Some(value) = object.get(field.name).filter(|value| !value.is_null()) {
            put_field(field, value, out).map_err(|error| error.within(field.name))?;
        }
    }
    Ok(())
}

fn put_field(field: &Field, value: &Value, out: &mut Vec<u8>) -> Written<()> {
    match field.cardinality {
        Cardinality::One | Cardinality::Inline => {
            put_value(field.number, field.content, value, out)
        }
        Cardinality::List => {
            let mut items = value.as_array().ok_or_else(other_type)?.iter();
            items.try_for_each(|item| put_value(field.number, field.content, item, out))
        }
        Cardinality::Map => {
            let mut entries = value.as_object().ok_or_else(other_type)?.iter();
            entries.try_for_each(|(key, value)| {
                let mut entry = Vec::new();
                put_bytes(1, key.as_bytes(), &mut entry);
                put_value(2, field.content, value, &mut entry)?;
                put_bytes(field.number, &entry, out);
                Ok(())
            })
        }
    }
}

/// One value. An item of a list or map that is null is its type's empty value, as in Go.
fn put_value(number: u64, content: FieldType, value: &Value, out: &mut Vec<u8>) -> Written<()> {
    if matches!(content, FieldType::Integer | FieldType::Boolean) {
        let found = if value.is_null() {
            Some(0)
        } else if content == FieldType::Boolean {
            value.as_bool().map(u64::from)
        } else {
            integer(value)
        };
        put_number(number, found.ok_or_else(other_type)?, out);
    } else if value.is_null() {
        put_bytes(number, &[], out);
    } else {
        put_bytes(number, &bytes(content, value)?, out);
    }
    Ok(())
}

fn other_type() -> Unwritten {
    Unwritten::new("its value has another type than the field")
}

/// A value that is bytes on the wire.
fn bytes(content: FieldType, value: &Value) -> Written<Vec<u8>> {
    let found = match content {
        FieldType::Text => value.as_str().map(|text| text.as_bytes().to_vec()),
        FieldType::Bytes => {
            let engine = base64::engine::general_purpose::STANDARD;
            value.as_str().and_then(|text| engine.decode(text).ok())
        }
        FieldType::Time | FieldType::MicroTime => time(value),
        FieldType::Quantity => {
            let number = || value.as_number().map(ToString::to_string);
            let text = value.as_str().map(str::to_owned).or_else(number);
            text.map(|text| wrapped(text.as_bytes()))
        }
        FieldType::Either => either(value),
        FieldType::Json => Some(wrapped(value.to_string().as_bytes())),
        FieldType::Wrapped => texts(value),
        FieldType::Message(name) => {
            let fields = inner(name)?;
            let message = value.as_object().map(|object| put_object(object, fields));
            message.transpose()?
        }
        FieldType::Integer | FieldType::Boolean => None,
    };
    found.ok_or_else(other_type)
}

fn integer(value: &Value) -> Option<u64> {
    value.as_i64().map(i64::cast_unsigned)
}

/// Seconds since 1970, and the nanoseconds after them.
fn time(value: &Value) -> Option<Vec<u8>> {
    const SECOND: i128 = 1_000_000_000;
    let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
    let all = time.as_nanosecond();
    let seconds = i64::try_from(all.div_euclid(SECOND)).ok()?;
    let nanos = u64::try_from(all.rem_euclid(SECOND)).ok()?;
    let mut out = Vec::new();
    put_number(1, seconds.cast_unsigned(), &mut out);
    put_number(2, nanos, &mut out);
    Some(out)
}

/// A number or a string (`util/intstr`).
fn either(value: &Value) -> Option<Vec<u8>> {
    let (kind, whole, word) = match value.as_str() {
        Some(word) => (1, 0, word),
        None => (0, integer(value)?, ""),
    };
    let mut out = Vec::new();
    put_number(1, kind, &mut out);
    put_number(2, whole, &mut out);
    put_bytes(3, word.as_bytes(), &mut out);
    Some(out)
}

/// A list of strings in a message of its own.
fn texts(value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for item in value.as_array()? {
        put_bytes(1, item.as_str()?.as_bytes(), &mut out);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use serde_json::json;

    /// Numbers by a seed (Knuth's linear congruential generator).
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// A value of a type; none that means absent if `optional`.
    fn some(content: FieldType, optional: bool, dice: &mut Dice, full: bool, depth: u32) -> Value {
        let small = dice.below(1000) + u64::from(optional);
        let word = match small {
            0 => String::new(),
            small => format!("é{small}"),
        };
        let time = 1 + dice.below(4_000_000_000);
        let time = jiff::Timestamp::from_second(time.cast_signed()).unwrap();
        match content {
            FieldType::Bytes => base64::engine::general_purpose::STANDARD
                .encode(word)
                .into(),
            FieldType::Integer if small % 5 == 4 => i64::MIN.into(),
            FieldType::Integer => small.into(),
            FieldType::Boolean => (optional || small.is_multiple_of(2)).into(),
            FieldType::Time => time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
            FieldType::MicroTime => time
                .strftime("%Y-%m-%dT%H:%M:%S.000250Z")
                .to_string()
                .into(),
            FieldType::Quantity => format!("{small}m").into(),
            FieldType::Either if small.is_multiple_of(2) => small.into(),
            FieldType::Text | FieldType::Either => word.into(),
            FieldType::Json => json!({"a": [small, {"b": word}]}),
            FieldType::Wrapped => json!([word, ""]),
            FieldType::Message(name) => {
                let fields = table::message(name).unwrap();
                Value::Object(made(fields, dice, full, depth + 1))
            }
        }
    }

    /// An object with some of the fields, or with all.
    fn made(fields: &[Field], dice: &mut Dice, full: bool, depth: u32) -> Map<String, Value> {
        let mut object = Map::new();
        for field in fields {
            let Field {
                content, optional, ..
            } = *field;
            if depth > 12 || !(full || dice.below(2) == 0) {
                continue;
            }
            let value = match field.cardinality {
                Cardinality::Inline => {
                    let Value::Object(mut part) = some(content, false, dice, full, depth) else {
                        panic!("{field:?}");
                    };
                    object.append(&mut part);
                    continue;
                }
                Cardinality::One => some(content, optional, dice, full, depth),
                Cardinality::List => {
                    let items = 0..=dice.below(2);
                    items
                        .map(|_| some(content, false, dice, full, depth))
                        .collect()
                }
                Cardinality::Map => {
                    let keys = (0..=dice.below(2)).map(|key| format!("k{key}"));
                    let keys: Vec<String> = keys.collect();
                    let entry = |key| (key, some(content, false, dice, full, depth));
                    Value::Object(keys.into_iter().map(entry).collect())
                }
            };
            object.insert(field.name.to_owned(), value);
        }
        object
    }

    /// The version and kind of each message that can stand by itself: the envelope has these two.
    fn kinds() -> Vec<(String, String)> {
        let names = include_str!("fields.txt").lines();
        let names = names.filter_map(|line| line.strip_prefix('@'));
        let alone = names.filter(|name| {
            let fields = table::message(name).unwrap();
            !has(fields, "kind") && !has(fields, "apiVersion")
        });
        let kinds = alone.map(|name| {
            let (version, kind) = name.rsplit_once('.').unwrap();
            (version.replacen('.', "/", 1), kind.to_owned())
        });
        kinds.collect()
    }

    fn object(version: &str, kind: &str, seed: u64) -> Value {
        let fields = message_of(version, kind).unwrap();
        let mut object = made(fields, &mut Dice(seed), seed == 0, 0);
        object.insert("apiVersion".to_owned(), version.into());
        object.insert("kind".to_owned(), kind.into());
        Value::Object(object)
    }

    #[test]
    fn what_is_written_of_any_kind_is_read_again() {
        let kinds = kinds();
        assert!(kinds.len() > 400, "{}", kinds.len());
        for (version, kind) in &kinds {
            for seed in 0..4 {
                let object = object(version, kind, seed);
                let bytes = from_json(object.to_string().as_bytes()).unwrap();
                assert_eq!(decode(&bytes).unwrap(), object, "{version} {kind} {seed}");
            }
        }
    }

    #[test]
    fn a_list_is_the_same_written_at_once_and_item_by_item() {
        let metadata = json!({"resourceVersion": "7", "continue": "c", "remainingItemCount": 0});
        for (version, kind) in [
            ("v1", "Pod"),
            ("meta.k8s.io/v1beta1", "PartialObjectMetadata"),
        ] {
            let name = format!("{kind}List");
            let mut list = List::new(version, &name, &metadata).unwrap();
            let mut items = Vec::new();
            for seed in 1..4 {
                let mut item = object(version, kind, seed);
                list.push(&item).unwrap();
                item.as_object_mut()
                    .unwrap()
                    .retain(|name, _| !matches!(name.as_str(), "kind" | "apiVersion"));
                items.push(item);
            }
            let whole = json!({
                "apiVersion": version, "kind": name, "metadata": metadata, "items": items,
            });
            let document = list.finish();
            assert_eq!(document, from_json(whole.to_string().as_bytes()).unwrap());
            assert_eq!(decode(&document).unwrap(), whole);
        }
    }

    #[test]
    fn a_document_has_an_envelope_and_upstreams_numbers() {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "abc", "creationTimestamp": null}, "data": {}});
        let document =
            b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x07\x0a\x05\x0a\x03abc\x1a\0\x22\0";
        assert_eq!(from_json(map.to_string().as_bytes()).unwrap(), document);
        // The length; the type; a RawExtension, which is a field with the document.
        let start = b"\0\0\0\x2d\x0a\x05ADDED\x12\x24\x0a\x22";
        let frame = [&start[..], document].concat();
        assert_eq!(event("ADDED", &map).unwrap(), frame);
    }

    #[test]
    fn what_the_table_does_not_know_is_an_error_and_never_left_out() {
        let refusal = |kind: &str, part: &str, value: Value| {
            let mut object = json!({"apiVersion": "v1", "kind": kind});
            object[part] = value;
            from_json(object.to_string().as_bytes()).unwrap_err()
        };
        for (part, value, path) in [
            ("odd", json!(1), "odd"),
            ("metadata", json!({"odd": {}}), "metadata.odd"),
            (
                "spec",
                json!({"containers": [{"odd": 1}]}),
                "spec.containers.odd",
            ),
            ("spec", json!({"priority": 1.5}), "spec.priority"),
            ("spec", json!({"hostNetwork": 1}), "spec.hostNetwork"),
            ("spec", json!({"nodeName": 1}), "spec.nodeName"),
            ("spec", json!({"containers": {}}), "spec.containers"),
        ] {
            let error = refusal("Pod", part, value);
            assert_eq!(error.code, 500);
            let text = &error.message;
            assert!(text.contains(&format!(": {path}: ")), "{text}");
        }
        assert_eq!(refusal("Odd", "spec", json!({})).code, 406);
    }
}
