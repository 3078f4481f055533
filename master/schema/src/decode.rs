//! Parses JSON and YAML from clients: bounded depth and number of values, duplicate fields reported
//! with their paths.

use crate::error::{ApiError, Reason, beginning};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::fmt;

/// Levels of nesting; deeper documents are refused. `serde_json` itself stops at 128.
const DEPTH: usize = 100;
/// Limit on the YAML parser's work for flow brackets: for each token it checks every open bracket,
/// so a few megabytes of `[` would occupy a core for hours. The limit is about a third of a second.
const BRACKET_STEPS: usize = 1 << 28;
/// Values of a document at most, containers and what is in them: a body is counted by its bytes,
/// and a value that takes three of them takes some 64 of memory, several times while it is
/// written. An object of 3 MiB has fewer, unless they are hardly longer than their punctuation.
pub const MAX_VALUES: usize = 1 << 18;
/// Events of a YAML document at most, estimated from its punctuation ([`events`]): the parser makes
/// all of them, of some 100 bytes each, before it hands out the first value. A block list of
/// [`MAX_VALUES`] values is estimated at this many. JSON is parsed value by value and needs no such
/// limit.
const MAX_EVENTS: usize = 2 * MAX_VALUES;
/// Bytes of all texts of a document at most, names of fields among them. Bodies have no more than
/// 3 MiB, but an alias of YAML, which takes three bytes, repeats a text of megabytes.
const MAX_TEXT: usize = 8 << 20;
/// Duplicate fields reported at most.
const MAX_DUPLICATES: usize = 100;
/// Duplicate fields that are looked at: a body of a few megabytes can repeat one field a hundred
/// thousand times.
const MAX_REPETITIONS: usize = 1_000;

/// A document has more than [`MAX_VALUES`] values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_VALUES} values in one document; spread them over several objects")]
pub struct TooManyValues;

/// A document has more than [`MAX_TEXT`] bytes of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_TEXT} bytes of text in one document, with what its aliases repeat")]
struct TooMuchText;

/// A YAML document has punctuation for more than [`MAX_EVENTS`] events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {MAX_VALUES} values in one document, or as much punctuation; send it as JSON, or spread it over several objects"
)]
struct TooMuchPunctuation;

/// How many values, and how much text, a document may still have. What is parsed in several parts
/// has one.
#[derive(Debug)]
pub struct ValuesLeft {
    values: Cell<usize>,
    /// In bytes.
    text: Cell<usize>,
}

impl Default for ValuesLeft {
    fn default() -> Self {
        Self {
            values: Cell::new(MAX_VALUES),
            text: Cell::new(MAX_TEXT),
        }
    }
}

impl ValuesLeft {
    /// Counts one value.
    ///
    /// # Errors
    /// It is one too many.
    pub fn take(&self) -> Result<(), TooManyValues> {
        let left = self.values.get().checked_sub(1).ok_or(TooManyValues)?;
        self.values.set(left);
        Ok(())
    }

    /// Counts a text.
    fn take_text(&self, text: &str) -> Result<(), TooMuchText> {
        let left = self.text.get().checked_sub(text.len());
        self.text.set(left.ok_or(TooMuchText)?);
        Ok(())
    }
}

/// Whether an object has no more values than a document may have: patches add to an object what
/// none of them has alone. One that had more before, by an older version of this program, may keep
/// them.
///
/// # Errors
/// It has more.
pub fn check_values(
    object: &Map<String, Value>,
    before: Option<&Map<String, Value>>,
) -> Result<(), TooManyValues> {
    let count = values_in(object);
    if count > MAX_VALUES && before.is_none_or(|before| count > values_in(before)) {
        return Err(TooManyValues);
    }
    Ok(())
}

/// How many values an object is: itself, and all that are in it.
fn values_in(object: &Map<String, Value>) -> usize {
    1 + object.values().map(values).sum::<usize>()
}

/// How many values one is, with all that are in it.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(fields) => values_in(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// A parsed document.
#[derive(Debug, Default, PartialEq)]
pub struct Decoded {
    /// The value; of duplicate fields the last one counts.
    pub value: Value,
    /// Paths of duplicate fields.
    pub duplicates: Vec<String>,
}

/// Parses one JSON document.
///
/// # Errors
/// The bytes are not JSON, are nested too deep, or have too many values (400).
pub fn json(bytes: &[u8]) -> Result<Decoded, ApiError> {
    json_part(bytes, &ValuesLeft::default())
}

/// Parses JSON that is part of a document, whose other values are counted, too.
///
/// # Errors
/// The bytes are not JSON, are nested too deep, or have too many values (400).
pub fn json_part(bytes: &[u8], left: &ValuesLeft) -> Result<Decoded, ApiError> {
    let duplicates = RefCell::new(Duplicates::default());
    // Text is checked once as a whole; decoded from bytes, each string in it would be.
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable("json", &error))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Seed {
        path: None,
        depth: 0,
        duplicates: &duplicates,
        left,
    };
    let value = seed
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| unreadable("json", &error))?;
    Ok(Decoded {
        value,
        duplicates: duplicates.into_inner().paths,
    })
}

/// Parses one YAML document.
///
/// # Errors
/// The bytes are not YAML, contain what JSON cannot express, are nested too deep, or have too many
/// values or too much punctuation (400).
pub fn yaml(bytes: &[u8]) -> Result<Decoded, ApiError> {
    let (duplicates, left) = (RefCell::new(Duplicates::default()), ValuesLeft::default());
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable("yaml", &error))?;
    if open_brackets(bytes).saturating_mul(bytes.len()) > BRACKET_STEPS {
        return Err(unreadable(
            "yaml",
            &format!("nested deeper than {DEPTH} levels"),
        ));
    }
    if events(bytes) > MAX_EVENTS {
        return Err(unreadable("yaml", &TooMuchPunctuation));
    }
    let seed = Seed {
        path: None,
        depth: 0,
        duplicates: &duplicates,
        left: &left,
    };
    let value = seed
        .deserialize(serde_yaml_ng::Deserializer::from_str(text))
        .map_err(|error| unreadable("yaml", &error))?;
    Ok(Decoded {
        value,
        duplicates: duplicates.into_inner().paths,
    })
}

/// The largest number of flow brackets that can be open at once. Brackets in strings count too: in
/// any meaningful text their number is far below the limit.
fn open_brackets(bytes: &[u8]) -> usize {
    let (mut open, mut most) = (0_usize, 0_usize);
    for byte in bytes {
        match byte {
            b'[' | b'{' => {
                open += 1;
                most = most.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// How many events the YAML parser makes of a text at most. An event is a node (a scalar, an alias,
/// or the start of a collection) or the end of a collection, and each needs punctuation: a colon or
/// question mark gives a key, a value, and the end of their mapping; a dash before a blank an item
/// and the end of its list; a comma or `{` an item, or a key and its absent value. Punctuation in
/// strings counts too, as only the parser knows where strings are. A colon within a word is part of
/// it, as in `fd00::1` or `aa:bb`, and gives a key after an alias or anchor alone.
fn events(bytes: &[u8]) -> usize {
    // The root, and that of a second document, which is read before it is refused.
    let (mut count, mut rest, mut before) = (2, bytes, b' ');
    while let [byte, after @ ..] = rest {
        let is_within =
            before.is_ascii_alphanumeric() && after.first().is_some_and(u8::is_ascii_alphanumeric);
        count += match byte {
            b':' if is_within => 0,
            b':' | b'?' | b'*' | b'&' => 3,
            b'{' | b',' => 2,
            b'[' | b']' | b'}' => 1,
            b'-' if !after.first().is_some_and(u8::is_ascii_graphic) => 2,
            _ => 0,
        };
        (rest, before) = (after, *byte);
    }
    count
}

fn unreadable(what: &str, error: &dyn fmt::Display) -> ApiError {
    ApiError::new(Reason::BadRequest, format!("{what} parse error: {error}"))
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

#[derive(Clone, Copy)]
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Field(name) if self.parent.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Item(number) => write!(f, "[{number}]"),
        }
    }
}

/// Fields that a document has twice.
#[derive(Default)]
struct Duplicates {
    paths: Vec<String>,
    repetitions: usize,
}

impl Duplicates {
    fn add(&mut self, path: &Path<'_>) {
        self.repetitions += 1;
        if self.repetitions > MAX_REPETITIONS || self.paths.len() == MAX_DUPLICATES {
            return;
        }
        let text = beginning(path);
        if !self.paths.contains(&text) {
            self.paths.push(text);
        }
    }
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    path: Option<&'a Path<'a>>,
    depth: usize,
    duplicates: &'a RefCell<Duplicates>,
    left: &'a ValuesLeft,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > DEPTH {
            return Err(D::Error::custom(format!(
                "nested deeper than {DEPTH} levels"
            )));
        }
        self.left.take().map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.left.take_text(value).map_err(E::custom)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.left.take_text(&value).map_err(E::custom)?;
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        loop {
            let path = Path {
                parent: self.path,
                step: Step::Item(array.len()),
            };
            let seed = Seed {
                path: Some(&path),
                depth: self.depth + 1,
                duplicates: self.duplicates,
                left: self.left,
            };
            match items.next_element_seed(seed)? {
                Some(value) => array.push(value),
                None => return Ok(Value::Array(array)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            self.left.take_text(&key).map_err(A::Error::custom)?;
            let path = Path {
                parent: self.path,
                step: Step::Field(&key),
            };
            let seed = Seed {
                path: Some(&path),
                depth: self.depth + 1,
                duplicates: self.duplicates,
                left: self.left,
            };
            let value = fields.next_value_seed(seed)?;
            if object.contains_key(&key) {
                self.duplicates.borrow_mut().add(&path);
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicate_fields_are_reported_with_their_path_and_the_last_counts() {
        let decoded = json(br#"{"spec":{"a":1,"c":[{"x":1,"x":2}],"a":3}}"#).unwrap();
        assert_eq!(decoded.duplicates, ["spec.c[0].x", "spec.a"]);
        assert_eq!(decoded.value, json!({"spec": {"a": 3, "c": [{"x": 2}]}}));
    }

    #[test]
    fn nesting_without_end_is_refused() {
        for open in ["[", "{\"a\":"] {
            let error = json(open.repeat(100_000).as_bytes()).unwrap_err();
            assert_eq!(error.reason, Reason::BadRequest);
        }
        assert!(yaml("- ".repeat(5000).as_bytes()).is_err());
        for open in ["[", "{a: ", "[]: [", "{\"a\":"] {
            let error = yaml(open.repeat(700_000).as_bytes()).unwrap_err();
            assert!(error.message.contains("nested deeper"), "{}", error.message);
        }
    }

    #[test]
    fn brackets_in_a_long_text_are_no_nesting() {
        let text = format!(
            "data:\n  a: |\n{}",
            "    [x] {y} (z: [\"]\")\n".repeat(50_000)
        );
        assert_eq!(
            yaml(text.as_bytes()).unwrap().value["data"]["a"]
                .as_str()
                .unwrap()
                .lines()
                .count(),
            50_000
        );
    }

    #[test]
    fn yaml_and_json_read_the_same() {
        let yaml = yaml(b"metadata:\n  name: a\ndata: {x: '1', y: \"2\"}\n").unwrap();
        assert_eq!(
            yaml.value,
            json!({"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})
        );
    }

    #[test]
    fn a_document_of_too_many_values_is_refused() {
        // One of the values is the list itself.
        let list = |count: usize| format!("[{}]", vec!["{}"; count - 1].join(","));
        let (most, more) = (list(MAX_VALUES), list(MAX_VALUES + 1));
        assert!(json(most.as_bytes()).is_ok());
        assert!(yaml("- 0\n".repeat(MAX_VALUES - 1).as_bytes()).is_ok());
        // Each alias of a list of 100 items is 101 values.
        let repeated = format!(
            "- &a [{}]\n{}",
            vec!["0"; 100].join(","),
            "- *a\n".repeat(MAX_VALUES / 100)
        );
        let fields: Vec<_> = (0..MAX_VALUES).map(|n| format!("\"{n}\":0")).collect();
        let fields = format!("{{{}}}", fields.join(","));
        for refused in [
            json(more.as_bytes()),
            yaml(repeated.as_bytes()),
            json(fields.as_bytes()),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.reason, Reason::BadRequest);
            let text = "more than 262144 values in one document; spread them over several objects";
            assert!(error.message.contains(text), "{}", error.message);
        }
        // Repeated fields count, although the last alone is kept.
        let repeated = format!("{{{}}}", vec!["\"a\":0"; MAX_VALUES].join(","));
        assert!(json(repeated.as_bytes()).is_err());
    }

    /// The events of a document without aliases that can be read.
    struct Events(usize);

    impl<'de> serde::Deserialize<'de> for Events {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(Self(0))
        }
    }

    impl<'de> Visitor<'de> for Events {
        type Value = Self;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }

        fn visit_unit<E>(self) -> Result<Self, E> {
            Ok(Self(1))
        }

        fn visit_str<E>(self, _value: &str) -> Result<Self, E> {
            Ok(Self(1))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
            let mut count = 2;
            while let Some(Self(item)) = items.next_element()? {
                count += item;
            }
            Ok(Self(count))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
            let mut count = 2;
            while let Some((Self(key), Self(value))) = fields.next_entry()? {
                count += key + value;
            }
            Ok(Self(count))
        }
    }

    #[test]
    fn yaml_has_no_more_events_than_its_punctuation_gives() {
        let many = |part: &str| part.repeat(100);
        let texts = [
            ("a".to_owned(), 1),
            (format!("[{}]", many("a,")), 102),
            (format!("[{}]", many("a: ,")), 402),
            (format!("[{}]", many("? a,")), 402),
            (many("- a:b\n"), 102),
            (format!("[{}]", many("'a':b,")), 402),
            (format!("[{}]", many("&a:b,")), 402),
            (format!("[{}]", many("[],")), 202),
            (format!("[{}]", many("{},")), 202),
            (format!("{{{}}}", many("a,")), 202),
            (format!("{{{}}}", many("? a,")), 202),
            (many("-\n"), 102),
            (many("- a\n"), 102),
            (many("- - a\n"), 302),
            (many("- a:\n"), 402),
            (many("a:\n"), 202),
            (many("a:\n- b\n"), 402),
            (many("? a\n"), 202),
            (format!("{}a", "- ".repeat(50)), 101),
            (format!("{}a", "? ".repeat(50)), 151),
        ];
        for (text, count) in texts {
            let Events(made) = serde_yaml_ng::from_str(&text).unwrap();
            assert_eq!(made, count, "{text}");
            assert!(made <= events(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn yaml_of_more_punctuation_than_values_have_is_refused_before_it_is_parsed() {
        // Only the estimate answers so: the parser has not run.
        for part in ["a,", "[],", "{},", "a:,", "? ,", "0, ", "\"\","] {
            let text = format!("[{}", part.repeat((3 << 20) / part.len()));
            let error = yaml(text.as_bytes()).unwrap_err();
            let words = "more than 262144 values in one document, or as much punctuation";
            assert!(error.message.contains(words), "{}", error.message);
        }
        for part in ["- ", "-\n", "a:\n", "? a\n", "- 0\n", "a: 0\n"] {
            let text = part.repeat((3 << 20) / part.len());
            assert!(events(text.as_bytes()) > MAX_EVENTS, "{part:?}");
            let error = yaml(text.as_bytes()).unwrap_err();
            assert!(error.message.contains("or as much punctuation"), "{part:?}");
        }
    }

    #[test]
    fn large_texts_of_yaml_have_room() {
        let lines = [
            "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA1234567890abcdefghij",
            "-----BEGIN CERTIFICATE-----",
            "2026-01-01T00:00:00Z the quick, brown fox jumps over: the lazy dog",
            "              description: The name of a well-known key, as in a-b-c.",
            "2001:db8:1:2:3:4:5:6 aa:bb:cc:dd:ee:ff AA:BB:CC:DD:EE:FF:00:11:22:33",
        ];
        for line in lines {
            let text = format!("data:\n  a: |\n{}", format!("    {line}\n").repeat(20_000));
            let read = yaml(text.as_bytes()).unwrap();
            let kept = read.value["data"]["a"].as_str().unwrap().lines().count();
            assert_eq!(kept, 20_000, "{line}");
        }
    }

    #[test]
    fn large_objects_have_room() {
        let endpoint = json!({"addresses": ["10.1.2.3"], "nodeName": "n", "zone": "z",
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
            "targetRef": {"kind": "Pod", "namespace": "n", "name": "p", "uid": "u"}});
        let slice = json!({"endpoints": vec![endpoint; 1000]});
        // Entries of 26 bytes, of which 3 MiB are less than half of the values.
        let map: Map<_, _> = (0..(3 << 20) / 26)
            .map(|n| (format!("key-{n:07}"), json!("value-val")))
            .collect();
        let map = json!({"data": map});
        for object in [slice, map] {
            let text = object.to_string();
            assert_eq!(json(text.as_bytes()).unwrap().value, object);
            assert_eq!(check_values(object.as_object().unwrap(), None), Ok(()));
        }
        let mut many = Map::new();
        many.insert("a".to_owned(), vec![0; MAX_VALUES - 2].into());
        assert_eq!(check_values(&many, None), Ok(()));
        many.insert("b".to_owned(), Value::Null);
        assert_eq!(check_values(&many, None), Err(TooManyValues));
    }

    #[test]
    fn aliases_repeat_no_more_text_than_a_body_has() {
        let text = "x".repeat(1 << 20);
        let list = |aliases: usize| format!("- &a {text}\n{}", "- *a\n".repeat(aliases));
        let keys = format!("a: &a {text}\nb:\n{}", "- *a : 1\n".repeat(8));
        assert!(yaml(list(6).as_bytes()).is_ok());
        for refused in [list(100_000), keys] {
            let error = yaml(refused.as_bytes()).unwrap_err();
            let words = "more than 8388608 bytes of text in one document";
            assert!(error.message.contains(words), "{}", error.message);
        }
    }

    #[test]
    fn duplicate_fields_below_a_long_name_cost_what_is_shown_of_them() {
        let name = "n".repeat(1 << 20);
        let fields = vec!["\"a\":0"; 200_000].join(",");
        let decoded = json(format!("{{\"{name}\":{{{fields}}}}}").as_bytes()).unwrap();
        assert_eq!(decoded.duplicates, [format!("{}…", "n".repeat(256))]);
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let below = format!("*a{}", level - 1);
            text = format!(
                "{text}a{level}: &a{level} [{}]\n",
                vec![below; 10].join(", ")
            );
        }
        assert!(yaml(text.as_bytes()).is_err());
    }
}
