//! Bodies in Kubernetes' protobuf encoding, for the kinds that kubectl's typed commands write (`kubectl create
//! configmap`, `certificate approve`, `drain`, …): clients since v1.32 send nothing else for them.
//!
//! A body is `k8s\0` and a message `runtime.Unknown` around the object. Decoding is driven by tables of field
//! numbers (upstream's `generated.proto` files); a field that a table doesn't have is an error, never lost.

use crate::error::{ApiError, Reason};
use base64::Engine;
use serde_json::{Map, Value};

/// What a field holds.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    /// Base64 in JSON.
    Bytes,
    Integer,
    Boolean,
    /// `meta/v1 Time`: seconds and nanoseconds; whole seconds in JSON.
    Time,
    /// `meta/v1 MicroTime`.
    MicroTime,
    Message(&'static [Field]),
    Texts,
    Messages(&'static [Field]),
    /// A map from text to what the value holds.
    Map(&'static Holds),
    /// A message with one list of texts, which is a bare list in JSON.
    Wrapped,
}

/// Number, JSON name and content of a field.
type Field = (u64, &'static str, Holds);

use Holds::{Boolean, Integer, Message, Messages, MicroTime, Text, Texts, Time, Wrapped};

const TEXT: Holds = Text;
const BYTES: Holds = Holds::Bytes;

const OWNER: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Boolean),
    (7, "blockOwnerDeletion", Boolean),
];
/// Managed fields (17) are not kept by this version, so they are not read.
const METADATA: &[Field] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Integer),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", Integer),
    (11, "labels", Holds::Map(&TEXT)),
    (12, "annotations", Holds::Map(&TEXT)),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
/// Field numbers that are skipped, not refused: `ObjectMeta.managedFields`.
const SKIPPED: u64 = 17;

const CONFIG_MAP: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", Holds::Map(&TEXT)),
    (3, "binaryData", Holds::Map(&BYTES)),
    (4, "immutable", Boolean),
];
const SECRET: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", Holds::Map(&BYTES)),
    (3, "type", Text),
    (4, "stringData", Holds::Map(&TEXT)),
    (5, "immutable", Boolean),
];
const NAMESPACE_CONDITION: &[Field] = &[
    (1, "type", Text),
    (2, "status", Text),
    (4, "lastTransitionTime", Time),
    (5, "reason", Text),
    (6, "message", Text),
];
const NAMESPACE: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(&[(1, "finalizers", Texts)])),
    (3, "status", Message(&[(1, "phase", Text), (2, "conditions", Messages(NAMESPACE_CONDITION))])),
];
const REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];
const SERVICE_ACCOUNT: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "secrets", Messages(REFERENCE)),
    (3, "imagePullSecrets", Messages(&[(1, "name", Text)])),
    (4, "automountServiceAccountToken", Boolean),
];
const BINDING: &[Field] = &[(1, "metadata", Message(METADATA)), (2, "target", Message(REFERENCE))];
const REQUEST_SPEC: &[Field] = &[
    (1, "request", Holds::Bytes),
    (2, "username", Text),
    (3, "uid", Text),
    (4, "groups", Texts),
    (5, "usages", Texts),
    (6, "extra", Holds::Map(&Wrapped)),
    (7, "signerName", Text),
    (8, "expirationSeconds", Integer),
];
const REQUEST_CONDITION: &[Field] = &[
    (1, "type", Text),
    (2, "reason", Text),
    (3, "message", Text),
    (4, "lastUpdateTime", Time),
    (5, "lastTransitionTime", Time),
    (6, "status", Text),
];
const REQUEST: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(REQUEST_SPEC)),
    (3, "status", Message(&[(1, "conditions", Messages(REQUEST_CONDITION)), (2, "certificate", Holds::Bytes)])),
];
const LEASE_SPEC: &[Field] = &[
    (1, "holderIdentity", Text),
    (2, "leaseDurationSeconds", Integer),
    (3, "acquireTime", MicroTime),
    (4, "renewTime", MicroTime),
    (5, "leaseTransitions", Integer),
    (6, "strategy", Text),
    (7, "preferredHolder", Text),
];
const LEASE: &[Field] = &[(1, "metadata", Message(METADATA)), (2, "spec", Message(LEASE_SPEC))];
const DELETE_OPTIONS: &[Field] = &[
    (1, "gracePeriodSeconds", Integer),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Boolean),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
const EVICTION: &[Field] = &[(1, "metadata", Message(METADATA)), (2, "deleteOptions", Message(DELETE_OPTIONS))];

/// API version and kind, and the fields.
const KINDS: &[(&str, &str, &[Field])] = &[
    ("v1", "ConfigMap", CONFIG_MAP),
    ("v1", "Secret", SECRET),
    ("v1", "Namespace", NAMESPACE),
    ("v1", "ServiceAccount", SERVICE_ACCOUNT),
    ("v1", "Binding", BINDING),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", REQUEST),
    ("coordination.k8s.io/v1", "Lease", LEASE),
    ("policy/v1", "Eviction", EVICTION),
];

const TYPE: &[Field] = &[(1, "apiVersion", Text), (2, "kind", Text)];

fn bad(text: impl Into<String>) -> ApiError {
    ApiError::new(Reason::BadRequest, format!("the body is not readable as protobuf: {}", text.into()))
}

/// Reads a body.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, ApiError> {
    let mut rest = bytes.strip_prefix(b"k8s\0").ok_or_else(|| bad("it does not begin with \"k8s\\0\""))?;
    let (mut about, mut raw) = (Map::new(), &[][..]);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Bytes(bytes)) => about = message(bytes, TYPE)?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (_, Wire::Bytes(_) | Wire::Number(_)) => {}
        }
    }
    let word = |key: &str| about.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let known = KINDS.iter().find(|(v, k, _)| *v == version && *k == kind).map(|(_, _, fields)| *fields);
    // Options of a deletion come under the version of what is deleted.
    let fields = known.or((kind == "DeleteOptions").then_some(DELETE_OPTIONS)).ok_or_else(|| {
        let text = format!(
            "{kind} in version {version:?} is not taken as application/vnd.kubernetes.protobuf by this version: use \
             application/json"
        );
        ApiError::new(Reason::UnsupportedMediaType, text)
    })?;
    let mut object = message(raw, fields)?;
    object.append(&mut about);
    Ok(Value::Object(object))
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

/// Takes one field: its number and content.
fn take<'a>(rest: &mut &'a [u8]) -> Result<(u64, Wire<'a>), ApiError> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_too_long| bad("a length is too large"))?;
            let (bytes, after) = rest.split_at_checked(length).ok_or_else(|| bad("cut short"))?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        other => return Err(bad(format!("wire type {other} is not used by Kubernetes"))),
    };
    Ok((tag >> 3, wire))
}

fn message(mut rest: &[u8], fields: &[Field]) -> Result<Map<String, Value>, ApiError> {
    let mut object = Map::new();
    while !rest.is_empty() {
        let (number, wire) = take(&mut rest)?;
        let Some((_, name, holds)) = fields.iter().find(|(known, _, _)| *known == number) else {
            if number == SKIPPED && fields.len() == METADATA.len() {
                continue;
            }
            return Err(bad(format!("field number {number} is not known")));
        };
        match holds {
            Texts => push(&mut object, name, text(bytes(&wire)?)?),
            Messages(inner) => push(&mut object, name, Value::Object(message(bytes(&wire)?, inner)?)),
            Holds::Map(inner) => {
                let (key, value) = entry(bytes(&wire)?, inner)?;
                let map = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                if let Some(map) = map.as_object_mut() {
                    map.insert(key, value);
                }
            }
            Text | Holds::Bytes | Integer | Boolean | Time | MicroTime | Message(_) | Wrapped => {
                // Empty texts and no times are how absence is written.
                let value = value(&wire, *holds)?;
                if value != "" && !value.is_null() {
                    object.insert((*name).to_owned(), value);
                }
            }
        }
    }
    Ok(object)
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn bytes<'a>(wire: &Wire<'a>) -> Result<&'a [u8], ApiError> {
    match wire {
        Wire::Bytes(bytes) => Ok(bytes),
        Wire::Number(_) => Err(bad("a number stands where text or a message should")),
    }
}

fn text(bytes: &[u8]) -> Result<Value, ApiError> {
    std::str::from_utf8(bytes).map(Value::from).map_err(|error| bad(error.to_string()))
}

fn value(wire: &Wire<'_>, holds: Holds) -> Result<Value, ApiError> {
    match (holds, wire) {
        (Integer, Wire::Number(number)) => Ok(number.cast_signed().into()),
        (Boolean, Wire::Number(number)) => Ok((*number != 0).into()),
        (Integer | Boolean, Wire::Bytes(_)) => Err(bad("text stands where a number should")),
        (Text, wire) => text(bytes(wire)?),
        (Holds::Bytes, wire) => Ok(base64::engine::general_purpose::STANDARD.encode(bytes(wire)?).into()),
        (Time, wire) => time(bytes(wire)?, "%Y-%m-%dT%H:%M:%SZ"),
        (MicroTime, wire) => time(bytes(wire)?, "%Y-%m-%dT%H:%M:%S.%6fZ"),
        (Message(fields), wire) => message(bytes(wire)?, fields).map(Value::Object),
        (Wrapped, wire) => {
            let mut wrapped = message(bytes(wire)?, &[(1, "items", Texts)])?;
            Ok(wrapped.remove("items").unwrap_or_else(|| Value::Array(Vec::new())))
        }
        (Texts | Messages(_) | Holds::Map(_), _) => Err(bad("a list stands where one value should")),
    }
}

/// One entry of a map: key 1, value 2.
fn entry(mut rest: &[u8], holds: &Holds) -> Result<(String, Value), ApiError> {
    let (mut key, mut found) = (String::new(), value(&Wire::Bytes(&[]), *holds)?);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Bytes(bytes)) => text(bytes)?.as_str().unwrap_or_default().clone_into(&mut key),
            (2, wire) => found = value(&wire, *holds)?,
            _ => return Err(bad("a map's entry has a field that is neither key nor value")),
        }
    }
    Ok((key, found))
}

/// A time; nothing where it is the zero time.
fn time(mut rest: &[u8], form: &str) -> Result<Value, ApiError> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    while !rest.is_empty() {
        match take(&mut rest)? {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanos = number.cast_signed(),
            _ => return Err(bad("a time has an unknown field")),
        }
    }
    // The zero time of the encoding: nothing set, or the year 1.
    if seconds <= 0 {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos).map_err(|_out_of_range| bad("a time is out of range"))?;
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|error| bad(error.to_string()))?;
    Ok(time.strftime(form).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
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
        let object = [field(1, &metadata), field(2, &data), field(3, &binary), vec![4 << 3, 1]].concat();
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
    fn what_no_table_has_is_refused_and_not_lost() {
        let error = decode(&wrapped("v1", "Pod", b"")).unwrap_err();
        assert_eq!(error.code, 415);
        let error = decode(&wrapped("v1", "ConfigMap", &field(9, b"x"))).unwrap_err();
        assert!(error.message.contains("field number 9"), "{}", error.message);
        assert!(decode(b"{}").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..KINDS.len()) {
            let (version, name, _) = KINDS[kind];
            prop_assume!(bytes.len() < 128);
            drop(decode(&wrapped(version, name, &bytes)));
            drop(decode(&bytes));
        }
    }
}
