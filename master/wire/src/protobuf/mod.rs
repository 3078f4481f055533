//! Kubernetes' protobuf encoding.
//!
//! Bodies of requests are decoded: typed commands of kubectl (`kubectl create deployment`,
//! `certificate approve`, `drain`, …) and typed clients send nothing else since v1.32. Answers are
//! encoded (`encode.rs`) for clients that accept nothing else.
//!
//! A document is `k8s\0` and a message `runtime.Unknown` around the object. Both ways use a table
//! of field numbers, `fields.txt`, taken from upstream's protocol; an unknown field is an error,
//! never dropped.

mod encode;
mod table;

pub use encode::{List, TAIL, event, event_head, from_json, is_known, message_from_json};

use base64::Engine;
use master_schema::decode::{ValuesLeft, json_part};
use master_schema::error::{ApiError, Reason, shown};
use serde_json::{Map, Value};
use table::{Cardinality, Field, FieldType};

/// The media type.
pub const MEDIA: &str = "application/vnd.kubernetes.protobuf";

fn bad(text: impl Into<String>) -> ApiError {
    ApiError::new(
        Reason::BadRequest,
        format!("the body is not readable as protobuf: {}", text.into()),
    )
}

/// The fields of an object's message.
fn message_of(version: &str, kind: &str) -> Option<&'static [Field]> {
    // DeleteOptions have the version of the deleted object.
    if kind == "DeleteOptions" {
        return table::message("meta.v1.DeleteOptions");
    }
    let (group, version) = version.split_once('/').unwrap_or(("core", version));
    let group = group.split('.').next().unwrap_or_default();
    let own = table::message(&format!("{group}.{version}.{kind}"));
    // Status, and what discovery answers, are in the core's version.
    own.or_else(|| match group {
        "core" => table::message(&format!("meta.{version}.{kind}")),
        _ => None,
    })
}

/// Decodes a body.
///
/// # Errors
/// It has no envelope, an unknown kind or field, a value of the wrong type, too many values, or is
/// cut off or nested too deeply.
pub fn decode(bytes: &[u8]) -> Result<Value, ApiError> {
    let mut rest = bytes
        .strip_prefix(b"k8s\0")
        .ok_or_else(|| bad("it does not begin with \"k8s\\0\""))?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Bytes(mut about)) => {
                while !about.is_empty() {
                    match take(&mut about)? {
                        (1, Wire::Bytes(bytes)) => version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        (number, _) => {
                            return Err(bad(format!(
                                "field number {number} of the type is not known"
                            )));
                        }
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (_, Wire::Bytes(_) | Wire::Number(_)) => {}
        }
    }
    let fields = message_of(&version, &kind).ok_or_else(|| {
        let text = format!(
            "{} in version {:?} is not taken as application/vnd.kubernetes.protobuf: use application/json",
            shown(&kind),
            shown(&version)
        );
        ApiError::new(Reason::UnsupportedMediaType, text)
    })?;
    let left = ValuesLeft::default();
    let mut object = message(raw, fields, Place::outermost(&left))?;
    object.insert("apiVersion".to_owned(), version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// Depth of nested messages at most.
const DEPTH: usize = 64;
/// The first moment of the year 1 in seconds since the epoch: a time of Go that is not set.
const YEAR_ONE: i64 = -62_135_596_800;

/// Where in the document a value is.
#[derive(Clone, Copy)]
struct Place<'a> {
    depth: usize,
    left: &'a ValuesLeft,
}

impl<'a> Place<'a> {
    fn outermost(left: &'a ValuesLeft) -> Self {
        Self { depth: 0, left }
    }

    /// A message below.
    fn below(self) -> Result<Self, ApiError> {
        if self.depth == DEPTH {
            return Err(bad("messages are nested too deep"));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }

    /// Counts a value here.
    fn count(self) -> Result<(), ApiError> {
        self.left.take().map_err(|error| bad(error.to_string()))
    }
}

/// One field on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(rest: &mut &[u8]) -> Result<u64, ApiError> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or_else(|| bad("cut short"))?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(bad("a number is too long"))
}

/// Takes one field: number and content.
fn take<'a>(rest: &mut &'a [u8]) -> Result<(u64, Wire<'a>), ApiError> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        2 => {
            let length =
                usize::try_from(varint(rest)?).map_err(|_too_long| bad("a length is too large"))?;
            let (bytes, after) = rest
                .split_at_checked(length)
                .ok_or_else(|| bad("cut short"))?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        other => return Err(bad(format!("wire type {other} is not used by Kubernetes"))),
    };
    Ok((tag >> 3, wire))
}

fn message(
    mut rest: &[u8],
    fields: &[Field],
    place: Place<'_>,
) -> Result<Map<String, Value>, ApiError> {
    let mut object = Map::new();
    while !rest.is_empty() {
        let (number, wire) = take(&mut rest)?;
        let field = fields.iter().find(|field| field.number == number);
        let field = field.ok_or_else(|| bad(format!("field number {number} is not known")))?;
        match field.cardinality {
            Cardinality::Inline => {
                let FieldType::Message(inner) = field.content else {
                    return Err(bad("the table is wrong"));
                };
                object.append(&mut message(
                    bytes(&wire)?,
                    table::message(inner).unwrap_or_default(),
                    place.below()?,
                )?);
            }
            Cardinality::List => {
                let item = value(&wire, field.content, place)?;
                let list = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                if let Some(list) = list.as_array_mut() {
                    list.push(item);
                }
            }
            Cardinality::Map => {
                let (key, value) = entry(bytes(&wire)?, field.content, place)?;
                let map = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Some(map) = map.as_object_mut() {
                    map.insert(key, value);
                }
            }
            Cardinality::One => {
                let value = value(&wire, field.content, place)?;
                // A field without a value is written too, unless its type can be absent.
                let nothing = value.is_null()
                    || (field.optional && (value == "" || value == 0 || value == false));
                if !nothing {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(object)
}

fn bytes<'a>(wire: &Wire<'a>) -> Result<&'a [u8], ApiError> {
    match wire {
        Wire::Bytes(bytes) => Ok(bytes),
        Wire::Number(_) => Err(bad("a number stands where text or a message should")),
    }
}

fn number(wire: &Wire<'_>) -> Result<u64, ApiError> {
    match wire {
        Wire::Number(number) => Ok(*number),
        Wire::Bytes(_) => Err(bad("text stands where a number should")),
    }
}

fn text(bytes: &[u8]) -> Result<String, ApiError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|error| bad(error.to_string()))
}

fn value(wire: &Wire<'_>, content: FieldType, place: Place<'_>) -> Result<Value, ApiError> {
    place.count()?;
    Ok(match content {
        FieldType::Integer => number(wire)?.cast_signed().into(),
        FieldType::Boolean => (number(wire)? != 0).into(),
        FieldType::Text => text(bytes(wire)?)?.into(),
        FieldType::Bytes => base64::engine::general_purpose::STANDARD
            .encode(bytes(wire)?)
            .into(),
        FieldType::Time => time(bytes(wire)?, "%Y-%m-%dT%H:%M:%SZ")?,
        FieldType::MicroTime => time(bytes(wire)?, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        FieldType::Quantity => text(only(bytes(wire)?)?)?.into(),
        FieldType::Either => either(bytes(wire)?)?,
        FieldType::Json => {
            let raw = only(bytes(wire)?)?;
            if raw.is_empty() {
                Value::Null
            } else {
                json_part(raw, place.left)?.value
            }
        }
        FieldType::Wrapped => {
            let (mut rest, mut items) = (bytes(wire)?, Vec::new());
            while !rest.is_empty() {
                match take(&mut rest)? {
                    (1, Wire::Bytes(bytes)) => {
                        place.count()?;
                        items.push(Value::String(text(bytes)?));
                    }
                    (number, _) => {
                        return Err(bad(format!("field number {number} of a list is not known")));
                    }
                }
            }
            Value::Array(items)
        }
        FieldType::Message(name) => {
            let fields =
                table::message(name).ok_or_else(|| bad(format!("{name} is not in the table")))?;
            Value::Object(message(bytes(wire)?, fields, place.below()?)?)
        }
    })
}

/// The only field of a message that wraps a value.
fn only(mut rest: &[u8]) -> Result<&[u8], ApiError> {
    let mut found = &[][..];
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Bytes(bytes)) => found = bytes,
            (number, _) => {
                return Err(bad(format!(
                    "field number {number} of a wrapped value is not known"
                )));
            }
        }
    }
    Ok(found)
}

/// A number or a string (`util/intstr`).
fn either(mut rest: &[u8]) -> Result<Value, ApiError> {
    let (mut is_text, mut whole, mut word) = (false, 0, String::new());
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(number)) => whole = number.cast_signed(),
            (3, Wire::Bytes(bytes)) => word = text(bytes)?,
            _ => return Err(bad("a number or text has an unknown field")),
        }
    }
    Ok(if is_text { word.into() } else { whole.into() })
}

/// One entry of a map: key 1, value 2.
fn entry(
    mut rest: &[u8],
    content: FieldType,
    place: Place<'_>,
) -> Result<(String, Value), ApiError> {
    let (mut key, mut found) = (String::new(), None);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, wire) => found = Some(value(&wire, content, place)?),
            _ => {
                return Err(bad(
                    "a map's entry has a field that is neither key nor value",
                ));
            }
        }
    }
    let found = match found {
        Some(found) => found,
        None => value(&Wire::Bytes(&[]), content, place)?,
    };
    Ok((key, found))
}

/// A time; null for one that is not set. Upstream writes nothing for it, and takes the first moment
/// of the year 1 for it, too. The epoch and times before it are times like all others.
fn time(mut rest: &[u8], form: &str) -> Result<Value, ApiError> {
    let is_unset = rest.is_empty();
    let (mut seconds, mut nanos) = (0i64, 0i64);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanos = number.cast_signed(),
            _ => return Err(bad("a time has an unknown field")),
        }
    }
    if is_unset || (seconds, nanos) == (YEAR_ONE, 0) {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos).map_err(|_out_of_range| bad("a time is out of range"))?;
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|error| bad(error.to_string()))?;
    Ok(time.strftime(form).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_schema::decode::MAX_VALUES;
    use proptest::prelude::*;
    use serde_json::json;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let (mut bytes, mut length) = (vec![number << 3 | 2], content.len());
        while length > 0x7f {
            bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        bytes.push(u8::try_from(length).unwrap());
        bytes.extend_from_slice(content);
        bytes
    }

    fn put_number(mut number: u64, bytes: &mut Vec<u8>) {
        while number > 0x7f {
            bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        bytes.push(u8::try_from(number).unwrap());
    }

    fn wrapped(version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let about = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &about), field(2, object)].concat()
    }

    #[test]
    fn a_config_map_reads_as_its_json() {
        let metadata = [field(1, b"cm"), field(3, b"ns"), field(8, &[8, 60])].concat();
        let data = [field(1, b"k"), field(2, b"v")].concat();
        let binary = [field(1, b"b"), field(2, &[0xff])].concat();
        let object = [
            field(1, &metadata),
            field(2, &data),
            field(3, &binary),
            vec![4 << 3, 1],
        ]
        .concat();
        assert_eq!(
            decode(&wrapped("v1", "ConfigMap", &object)).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}, "binaryData": {"b": "/w=="},
                "immutable": true,
                "metadata": {"name": "cm", "namespace": "ns", "creationTimestamp": "1970-01-01T00:01:00Z"},
            })
        );
    }

    #[test]
    fn embedded_parts_quantities_and_ports_read_as_their_json() {
        let volume = [field(1, b"v"), field(2, &field(2, &field(1, b"")))].concat();
        let quantity = [field(1, b"cpu"), field(2, &field(1, b"1500m"))].concat();
        let limits = field(1, &quantity);
        let container = [field(1, b"c"), field(2, b"x:1"), field(8, &limits)].concat();
        let pod = field(2, &[field(1, &volume), field(2, &container)].concat());
        let read = decode(&wrapped("v1", "Pod", &pod)).unwrap();
        assert_eq!(
            read["spec"]["volumes"][0],
            json!({"name": "v", "emptyDir": {}})
        );
        assert_eq!(
            read["spec"]["containers"][0]["resources"]["limits"]["cpu"],
            "1500m"
        );
        let port = [
            vec![3 << 3, 80],
            field(4, &[vec![8, 1], field(3, b"web")].concat()),
            vec![5 << 3, 0],
        ]
        .concat();
        let service = field(2, &field(1, &port));
        let read = decode(&wrapped("v1", "Service", &service)).unwrap();
        assert_eq!(
            read["spec"]["ports"][0],
            json!({"port": 80, "targetPort": "web"})
        );
    }

    #[test]
    fn a_time_before_1970_is_read_and_one_that_is_not_set_is_none() {
        let moment = |seconds: i64, micros: u64| {
            let mut bytes = vec![1 << 3];
            put_number(seconds.cast_unsigned(), &mut bytes);
            bytes.push(2 << 3);
            put_number(micros * 1000, &mut bytes);
            bytes
        };
        let renewed = |time: &[u8]| {
            let lease = field(2, &field(4, time));
            let read = decode(&wrapped("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
            read["spec"]["renewTime"].clone()
        };
        let read = [
            (moment(-62_135_596_798, 5), "0001-01-01T00:00:02.000005Z"),
            (moment(-1, 500_000), "1969-12-31T23:59:59.500000Z"),
            (moment(0, 0), "1970-01-01T00:00:00.000000Z"),
            (moment(60, 0), "1970-01-01T00:01:00.000000Z"),
        ];
        for (bytes, text) in read {
            assert_eq!(renewed(&bytes), text);
        }
        assert_eq!(renewed(&[]), Value::Null);
        assert_eq!(renewed(&moment(YEAR_ONE, 0)), Value::Null);
    }

    #[test]
    fn an_unknown_column_is_refused() {
        let error = decode(&wrapped("v1", "Nothing", b"")).unwrap_err();
        assert_eq!(error.code, 415);
        let error = decode(&wrapped("v1", "ConfigMap", &field(9, b"x"))).unwrap_err();
        assert!(
            error.message.contains("field number 9"),
            "{}",
            error.message
        );
        assert!(decode(b"{}").is_err());
    }

    #[test]
    fn a_message_of_too_many_values_is_refused() {
        // Two bytes each: a map's entries without key and value, and words of a list.
        let maps = |count: usize| wrapped("v1", "ConfigMap", &field(2, b"").repeat(count));
        assert!(decode(&maps(MAX_VALUES)).is_ok());
        // The spec and a container, and what this one has.
        let pods = |count: usize| {
            let container = field(3, b"").repeat(count);
            wrapped("v1", "Pod", &field(2, &field(2, &container)))
        };
        assert!(decode(&pods(MAX_VALUES - 2)).is_ok());
        for more in [maps(MAX_VALUES + 1), pods(MAX_VALUES - 1)] {
            let error = decode(&more).unwrap_err();
            assert_eq!(error.code, 400);
            let text = "more than 262144 values in one document; spread them over several objects";
            assert!(error.message.ends_with(text), "{}", error.message);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..4_usize) {
            let kind = ["Pod", "Service", "ConfigMap", "Node"][kind];
            drop(decode(&wrapped("v1", kind, &bytes)));
            drop(decode(&bytes));
        }
    }
}
