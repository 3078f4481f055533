//! Checks an object against its schema: unknown fields are removed and reported, wrong types are
//! faults.

use super::{Integer, Node, Schemas, UNSET_MICRO_TIME, UNSET_TIME};
use crate::error::shown;
use crate::quantity::Quantity;
use base64::Engine;
use jiff::Timestamp;
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};

/// The result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Paths of unknown fields; they are removed from the object.
    pub unknown: Vec<String>,
    /// Values of a wrong type.
    pub wrong: Vec<Wrong>,
}

/// A value of a wrong type for its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    path: String,
    expected: &'static str,
    found: String,
    /// Upstream's text for the same fault in the result of a strategic merge patch.
    restored: Option<String>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, found {}",
            self.path, self.expected, self.found
        )
    }
}

impl Wrong {
    /// The fault in upstream's words for the result of a strategic merge patch.
    pub fn restored(&self) -> String {
        self.restored.clone().unwrap_or_else(|| self.to_string())
    }
}

/// Faults reported at most; an object of three megabytes can have very many, and each has a path,
/// in which a key of the object can have megabytes, too.
const MAX_FAULTS: usize = 100;

impl Checked {
    fn add_unknown(&mut self, path: &str) {
        if self.unknown.len() < MAX_FAULTS {
            self.unknown.push(shown(path).into_owned());
        }
    }

    fn add_wrong(
        &mut self,
        path: &str,
        expected: &'static str,
        value: &Value,
        restored: Option<String>,
    ) {
        if self.wrong.len() < MAX_FAULTS {
            self.wrong.push(Wrong {
                path: shown(path).into_owned(),
                expected,
                found: found(value),
                restored,
            });
        }
    }
}

impl Schemas {
    /// Checks an object against the definition `name`, removes unknown fields, nulls, empty maps
    /// and the zero values that upstream's types leave out, puts the zero value of its type in
    /// place of a null in a list and of a required time that is not set, and writes each quantity
    /// and each `MicroTime` in its canonical form.
    ///
    /// Guarantee: what has no fault can be read as the type of the definition. Everybody who
    /// follows the kind reads it, so one object that cannot be read would concern all.
    pub fn check(&self, name: &str, object: &mut Map<String, Value>) -> Checked {
        let mut checked = Checked::default();
        let mut path = String::new();
        if let Some(Node::Object(_)) = self.names.get(name).map(|index| &self.nodes[*index]) {
            self.fields(self.names[name], object, &mut path, &mut checked);
        }
        checked
    }

    /// Writes each quantity and each `MicroTime` of an object in its canonical form and changes
    /// nothing else.
    pub fn canonical(&self, name: &str, object: &mut Map<String, Value>) {
        if let Some(index) = self.names.get(name) {
            self.canonical_fields(*index, object);
        }
    }

    fn canonical_fields(&self, index: usize, object: &mut Map<String, Value>) {
        let Node::Object(known) = &self.nodes[index] else {
            return;
        };
        for (key, value) in object {
            if let Some(field) = known.fields.get(key.as_str()) {
                self.canonical_value(field.node, value);
            }
        }
    }

    fn canonical_value(&self, index: usize, value: &mut Value) {
        match (&self.nodes[index], &mut *value) {
            (Node::Object(_), Value::Object(object)) => self.canonical_fields(index, object),
            (Node::Map(inner), Value::Object(object)) => {
                object
                    .values_mut()
                    .for_each(|value| self.canonical_value(*inner, value));
            }
            (Node::Array(inner), Value::Array(items)) => {
                for value in items.iter_mut() {
                    self.canonical_value(*inner, value);
                }
            }
            (Node::Quantity, _) => {
                if let Some(quantity) = Quantity::read(value) {
                    rewrite(value, quantity);
                }
            }
            (Node::MicroTime, Value::String(text)) => {
                if let Some(time) = micro_time(text) {
                    *text = time;
                }
            }
            _ => {}
        }
    }

    fn fields(
        &self,
        index: usize,
        object: &mut Map<String, Value>,
        path: &mut String,
        checked: &mut Checked,
    ) {
        let Node::Object(known) = &self.nodes[index] else {
            return;
        };
        object.retain(|key, value| {
            let length = path.len();
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(key);
            let keep = match known.fields.get(key.as_str()) {
                // A null in a request means the field's absence (upstream's decoder leaves the zero
                // value).
                Some(_) if value.is_null() => false,
                // Upstream's types do not distinguish an empty map from an absent one.
                Some(field)
                    if matches!(self.nodes[field.node], Node::Map(_)) && is_empty(value) =>
                {
                    false
                }
                Some(field) if field.omitted && is_zero(&self.nodes[field.node], value) => false,
                Some(field) => {
                    self.value(field.node, value, path, checked);
                    true
                }
                None => {
                    checked.add_unknown(path);
                    false
                }
            };
            path.truncate(length);
            keep
        });
        for time in &known.times {
            if !object.contains_key(&**time) {
                let field = known.fields.get(time);
                let unset = match field.map(|field| &self.nodes[field.node]) {
                    Some(Node::MicroTime) => UNSET_MICRO_TIME,
                    Some(_) | None => UNSET_TIME,
                };
                object.insert((**time).to_owned(), unset.into());
            }
        }
    }

    fn value(&self, index: usize, value: &mut Value, path: &mut String, checked: &mut Checked) {
        let node = &self.nodes[index];
        match (node, &mut *value) {
            (Node::Object(_), Value::Object(object)) => self.fields(index, object, path, checked),
            (Node::Map(inner), Value::Object(object)) => {
                object.retain(|_, value| !value.is_null());
                for (key, value) in object {
                    let length = path.len();
                    path.push('.');
                    path.push_str(key);
                    self.value(*inner, value, path, checked);
                    path.truncate(length);
                }
            }
            (Node::Array(inner), Value::Array(items)) => {
                for (number, value) in items.iter_mut().enumerate() {
                    let length = path.len();
                    // Writing to a String does not fail.
                    let _infallible = write!(path, "[{number}]");
                    if value.is_null() {
                        *value = zero(&self.nodes[*inner]);
                    }
                    self.value(*inner, value, path, checked);
                    path.truncate(length);
                }
            }
            (Node::Quantity, Value::Number(_) | Value::String(_)) => {
                if let Some(quantity) = Quantity::read(value) {
                    rewrite(value, quantity);
                } else {
                    checked.add_wrong(path, "a quantity", value, None);
                }
            }
            (Node::MicroTime, Value::String(text)) => {
                if let Some(time) = micro_time(text) {
                    *text = time;
                } else {
                    checked.add_wrong(path, TIME, value, None);
                }
            }
            _ => {
                if let Some(expected) = mismatch(node, value) {
                    checked.add_wrong(path, expected, value, restored(node, value));
                }
            }
        }
    }
}

/// Writes a quantity in upstream's canonical form.
fn rewrite(value: &mut Value, quantity: Quantity) {
    let text = quantity.to_string();
    if value.as_str() != Some(text.as_str()) {
        *value = Value::String(text);
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Whether a value of the right type is the zero value.
fn is_zero(node: &Node, value: &Value) -> bool {
    match (node, value) {
        (Node::Array(_), Value::Array(items)) => items.is_empty(),
        (Node::String, Value::String(text)) => text.is_empty(),
        (Node::Boolean, Value::Bool(truth)) => !truth,
        (Node::Integer(_), Value::Number(number)) => number.as_i64() == Some(0),
        // Structs, among them times and quantities, are written where they are zero, too:
        // `omitempty` leaves out none.
        _ => false,
    }
}

/// The expected type, if a simple value has another one.
fn mismatch(node: &Node, value: &Value) -> Option<&'static str> {
    let (fits, expected) = match node {
        // Right values of these never come here: the caller has walked into them.
        Node::Object(_) | Node::Map(_) => (value.is_null(), "an object"),
        Node::Array(_) => (value.is_null(), "an array"),
        Node::String => (value.is_string() || value.is_null(), "a string"),
        Node::Time => (
            value.as_str().and_then(time).is_some() || value.is_null(),
            TIME,
        ),
        // Texts of these, too, never come here.
        Node::MicroTime => (value.is_null(), TIME),
        Node::Bytes => (
            value.as_str().is_some_and(is_base64) || value.is_null(),
            "base64 text",
        ),
        Node::Integer(integer) => (integer.holds(value), integer.name()),
        Node::Number => (value.is_number(), "a number"),
        Node::Boolean => (value.is_boolean(), "a boolean"),
        Node::Quantity => (false, "a quantity"),
        Node::IntOrString => (
            value.is_string() || Integer::I32.holds(value),
            "an integer or a string",
        ),
        Node::Any => (true, ""),
    };
    (!fits).then_some(expected)
}

fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("number {number}"),
        Value::String(text) if text.len() <= 64 => format!("string {text:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Upstream's error for a value of another type; fields with a parser of their own have none.
fn restored(node: &Node, value: &Value) -> Option<String> {
    let (kind, name) = match value {
        Value::Null => return None,
        Value::Bool(_) => ("bool", "bool"),
        Value::Number(number) if number.is_f64() => ("float64", "float64"),
        Value::Number(_) => ("int64", "int64"),
        Value::String(_) => ("string", "string"),
        Value::Array(_) => ("slice", "[]interface {}"),
        Value::Object(_) => ("map", "map[string]interface {}"),
    };
    Some(match node {
        Node::Object(_) => format!("cannot restore struct from: {kind}"),
        Node::Map(_) => format!("cannot restore map from {kind}"),
        Node::Array(_) => format!("cannot restore slice from {kind}"),
        Node::String => format!("cannot convert {name} to string"),
        Node::Boolean => format!("cannot convert {name} to bool"),
        Node::Number => format!("cannot convert {name} to float64"),
        Node::Integer(integer) => format!("cannot convert {name} to {}", integer.name()),
        Node::Time
        | Node::MicroTime
        | Node::Bytes
        | Node::Quantity
        | Node::IntOrString
        | Node::Any => return None,
    })
}

/// What is expected of a time.
const TIME: &str = "an RFC 3339 time";

/// Reads a time in the form of RFC 3339 that Go reads. Clients in Go read a list as a whole: one
/// object with a time that they cannot read would keep them from all others.
fn time(text: &str) -> Option<Timestamp> {
    // The parser reads more: other separators, no seconds, leap seconds, offsets beyond a day.
    let like = |text: &str, form: &str| {
        let mut bytes = text.bytes().zip(form.bytes());
        text.len() == form.len()
            && bytes.all(|(found, wanted)| {
                found == wanted || (wanted == b'0' && found.is_ascii_digit())
            })
    };
    let form = "0000-00-00T00:00:00";
    let (clock, rest) = text.split_at_checked(form.len())?;
    let zone = rest.strip_prefix('.').map_or(rest, |fraction| {
        fraction.trim_start_matches(|c: char| c.is_ascii_digit())
    });
    let is_offset = like(zone, "+00:00") || like(zone, "-00:00");
    let has_hours = zone.get(1..3).is_some_and(|hours| hours < "24");
    if !like(clock, form) || clock.ends_with(":60") || !(zone == "Z" || (is_offset && has_hours)) {
        return None;
    }
    text.parse().ok()
}

/// A time with microseconds as upstream writes it. Go's `MicroTime` reads exactly six digits of the
/// fraction. Upstream refuses others; clients in other languages write none, three or nine of them,
/// so they are rewritten here.
fn micro_time(text: &str) -> Option<String> {
    let text = time(text)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    // An offset can lead to a year before the first.
    time(&text).is_some().then_some(text)
}

fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .is_ok()
}

/// What upstream's types hold for a null in a list.
fn zero(node: &Node) -> Value {
    match node {
        Node::Object(_) | Node::Map(_) => Value::Object(Map::new()),
        Node::Array(_) => Value::Array(Vec::new()),
        Node::String | Node::Bytes => Value::String(String::new()),
        Node::Integer(_) | Node::Number | Node::IntOrString | Node::Quantity => 0.into(),
        Node::Boolean => false.into(),
        // There are no lists of times.
        Node::Time | Node::MicroTime | Node::Any => Value::Null,
    }
}

impl Integer {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::I32 => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Self::I64 => value.is_i64(),
            Self::U32 => value.as_u64().is_some_and(|n| u32::try_from(n).is_ok()),
            Self::U64 => value.is_u64(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Source, definitions};
    use super::*;
    use config_kube::FromJson;
    use config_kube::k8s_openapi::api::apps::v1::Deployment;
    use config_kube::k8s_openapi::api::coordination::v1::Lease;
    use config_kube::k8s_openapi::api::core::v1::Service;
    use config_kube::k8s_openapi::api::{core, events};
    use serde_json::json;

    fn checked(definition: &Value, object: &Value) -> (Value, Vec<String>) {
        let definitions = json!({ "of": definition });
        let schemas = Schemas::compile(definitions.as_object().unwrap());
        let mut fields = object.as_object().unwrap().clone();
        let found = schemas.check("of", &mut fields);
        let wrong = found.wrong.iter().map(ToString::to_string).collect();
        (Value::Object(fields), wrong)
    }

    #[test]
    fn a_null_in_a_list_is_the_zero_value_of_its_type() {
        let list = |items: Value| json!({"type": "array", "items": items});
        let definition = json!({"type": "object", "properties": {
            "objects": list(json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            "maps": list(json!({"type": "object", "additionalProperties": {"type": "string"}})),
            "lists": list(list(json!({"type": "string"}))),
            "texts": list(json!({"type": "string"})),
            "numbers": list(json!({"type": "integer", "format": "int32"})),
            "truths": list(json!({"type": "boolean"})),
            "anything": list(json!({})),
        }});
        let nulls = json!({
            "objects": [null, {"a": null}], "maps": [null], "lists": [null, [null]],
            "texts": ["a", null], "numbers": [null], "truths": [null], "anything": [null],
        });
        let zeros = json!({
            "objects": [{}, {}], "maps": [{}], "lists": [[], [""]],
            "texts": ["a", ""], "numbers": [0], "truths": [false], "anything": [null],
        });
        assert_eq!(checked(&definition, &nulls), (zeros, Vec::new()));
    }

    #[test]
    fn zero_values_that_upstreams_types_leave_out_are_absent() {
        let source = Source::of::<Deployment>();
        let schemas = Schemas::compile(&definitions(std::slice::from_ref(&source)));
        let checked = |object: &Value| {
            let mut fields = object.as_object().unwrap().clone();
            let found = schemas.check(source.name(), &mut fields);
            (Value::Object(fields), found)
        };
        let container = |more: Value| {
            let mut container = json!({"name": "c", "ports": [{"containerPort": 0}], "env": [{"name": "A"}],
                "securityContext": {"privileged": false, "runAsUser": 0}, "volumeMounts": [{"name": "", "mountPath": ""}],
                "livenessProbe": {"httpGet": {"port": 0}, "terminationGracePeriodSeconds": 0}});
            for (pointer, value) in more.as_object().unwrap() {
                let (place, field) = pointer.rsplit_once('/').unwrap();
                container.pointer_mut(place).unwrap()[field] = value.clone();
            }
            container
        };
        let deployment = |spec: Value, container: &Value| {
            let mut spec_of_pods = json!({"containers": [container], "hostUsers": false, "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 0, "priority": 0});
            let fields = spec_of_pods.as_object_mut().unwrap();
            fields.extend(spec.as_object().unwrap().clone());
            json!({"spec": {"replicas": 0, "template": {"spec": spec_of_pods}}})
        };
        let zeros = json!({"/tty": false, "/stdin": false, "/args": [], "/command": [], "/workingDir": "",
            "/ports/0/hostPort": 0, "/ports/0/name": "", "/env/0/value": "", "/volumeMounts/0/readOnly": false,
            "/volumeMounts/0/subPath": "", "/livenessProbe/initialDelaySeconds": 0, "/livenessProbe/httpGet/path": "",
            "/livenessProbe/httpGet/httpHeaders": []});
        let pods = json!({"hostNetwork": false, "nodeName": "", "tolerations": [], "volumes": [],
            "imagePullSecrets": []});
        let mut written = deployment(pods, &container(zeros));
        written["spec"]["paused"] = false.into();
        written["metadata"] = json!({"generateName": "", "finalizers": [], "managedFields": []});
        let mut kept = deployment(json!({}), &container(json!({})));
        kept["metadata"] = json!({"managedFields": []});
        assert_eq!(checked(&written), (kept, Checked::default()));
        // What is no zero value of the field's type is left for those who judge it.
        let others = json!({"hostNetwork": true, "volumes": [{"name": ""}], "nodeName": "n"});
        let others = deployment(
            others,
            &container(json!({"/args": [""], "/livenessProbe/periodSeconds": -1})),
        );
        assert_eq!(checked(&others).0, others);
        let wrong = deployment(
            json!({"hostNetwork": 0, "volumes": "", "nodeName": false}),
            &container(json!({})),
        );
        assert_eq!(checked(&wrong).1.wrong.len(), 3);
    }

    #[test]
    fn a_required_time_that_is_not_set_can_be_read() {
        let source = Source::of::<Service>();
        let schemas = Schemas::compile(&definitions(std::slice::from_ref(&source)));
        let condition = |time: Value| {
            let mut condition =
                json!({"type": "A", "status": "True", "reason": "B", "message": "c"});
            if time != "absent" {
                condition["lastTransitionTime"] = time;
            }
            json!({"status": {"conditions": [condition]}})
        };
        let set = json!("2026-01-01T00:00:00Z");
        for (sent, kept) in [
            (Value::Null, UNSET_TIME.into()),
            ("absent".into(), UNSET_TIME.into()),
            (set.clone(), set),
        ] {
            let mut service = condition(sent).as_object().unwrap().clone();
            assert_eq!(
                schemas.check(source.name(), &mut service),
                Checked::default()
            );
            let service = Value::Object(service);
            assert_eq!(service, condition(kept));
            Service::from_tree(&service).unwrap();
        }
    }

    /// Go reads no list of leases or events in which one has other digits.
    #[test]
    fn microseconds_are_written_with_six_digits_whatever_was_sent() {
        let sources = [
            Source::of::<Lease>(),
            Source::of::<core::v1::Event>(),
            Source::of::<events::v1::Event>(),
        ];
        let schemas = Schemas::compile(&definitions(&sources));
        let [lease, older, newer] = sources.each_ref().map(Source::name);
        let event = r#"{"eventTime": "TIME", "series": {"count": 2, "lastObservedTime": "TIME"}}"#;
        let spec = r#"{"spec": {"acquireTime": "TIME", "renewTime": "TIME"}}"#;
        for (name, text) in [(lease, spec), (older, event), (newer, event)] {
            let with = |time: &str| -> Map<String, Value> {
                serde_json::from_str(&text.replace("TIME", time)).unwrap()
            };
            for (sent, kept) in [
                ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
                ("2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.123000Z"),
                ("2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123456Z"),
                (
                    "2026-01-01T00:00:00.123456789Z",
                    "2026-01-01T00:00:00.123456Z",
                ),
                ("2026-01-01T01:00:00.5+01:00", "2026-01-01T00:00:00.500000Z"),
            ] {
                let mut object = with(sent);
                assert_eq!(schemas.check(name, &mut object), Checked::default());
                assert_eq!(object, with(kept), "{name}");
                let mut applied = with(sent);
                schemas.canonical(name, &mut applied);
                assert_eq!(applied, with(kept), "{name}");
            }
            for bad in ["", "now", "2026-01-01", "0000-01-01T00:00:00+01:00"] {
                let found = schemas.check(name, &mut with(bad));
                assert_eq!(found.wrong.len(), 2, "{name}: {bad}");
            }
        }
        let mut untold = Map::new();
        untold.insert("series".to_owned(), json!({"count": 2}));
        assert_eq!(schemas.check(newer, &mut untold), Checked::default());
        assert_eq!(untold["series"]["lastObservedTime"], UNSET_MICRO_TIME);
    }

    #[test]
    fn a_time_in_a_form_that_go_does_not_read_is_a_fault() {
        let time = json!({"type": "string", "format": "date-time"});
        let definition = json!({"type": "object", "properties": {"time": time}});
        for good in [
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.123456789Z",
            "2026-01-01T00:00:00+23:59",
            "2026-01-01T00:00:00.5-00:30",
            UNSET_TIME,
        ] {
            let object = json!({ "time": good });
            assert_eq!(checked(&definition, &object), (object, Vec::new()));
        }
        for bad in [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01t00:00:00Z",
            "2026-01-01T00:00:00z",
            "2026-01-01T00:00Z",
            "20260101T000000Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00,5Z",
            "2026-01-01T00:00:00+01",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T00:00:00Z[UTC]",
            "2016-12-31T23:59:60Z",
            "-000001-01-01T00:00:00Z",
        ] {
            let (_, wrong) = checked(&definition, &json!({ "time": bad }));
            assert_eq!(wrong.len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_number_beyond_its_type_is_a_fault() {
        let field = |format: &str| json!({"type": "integer", "format": format});
        let definition = json!({"type": "object", "properties": {
            "i32": field("int32"), "i64": field("int64"), "u32": field("uint32"), "u64": field("uint64"),
        }});
        let fits = json!({"i32": i32::MIN, "i64": i64::MIN, "u32": u32::MAX, "u64": u64::MAX});
        assert_eq!(checked(&definition, &fits), (fits, Vec::new()));
        for (field, number) in [
            ("i32", json!(i64::from(i32::MAX) + 1)),
            ("i64", json!(i64::MAX as u64 + 1)),
            ("u32", json!(u64::from(u32::MAX) + 1)),
            ("u32", json!(-1)),
            ("u64", json!(-1)),
            ("i64", json!(1.0)),
        ] {
            let (_, wrong) = checked(&definition, &json!({ field: number }));
            assert_eq!(wrong.len(), 1, "{field}: {wrong:?}");
        }
    }

    /// Each fault has the key in its path, which would take more memory than there is.
    #[test]
    fn faults_below_a_long_key_show_its_beginning() {
        let list = json!({"type": "array", "items": {"type": "string"}});
        let map = json!({"type": "object", "additionalProperties": list});
        let known = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let maps = json!({"type": "object", "additionalProperties": known});
        let definition = json!({"type": "object", "properties": {"extra": map, "of": maps}});
        let key = "k".repeat(1 << 20);
        let fields: Map<_, _> = (0..100_000).map(|n| (format!("x{n}"), json!(1))).collect();
        let mut object = Map::new();
        object.insert("extra".to_owned(), json!({ &key: vec![1; 100_000] }));
        object.insert("of".to_owned(), json!({ &key: fields }));
        let definitions = json!({ "of": definition });
        let schemas = Schemas::compile(definitions.as_object().unwrap());
        let checked = schemas.check("of", &mut object);
        assert_eq!((checked.wrong.len(), checked.unknown.len()), (100, 100));
        let wrong = checked.wrong.iter().map(ToString::to_string);
        assert!(wrong.chain(checked.unknown).all(|text| text.len() < 400));
        assert_eq!(object["of"], json!({ &key: {} }));
    }

    #[test]
    fn the_definitions_have_no_list_of_times() {
        let document = serde_json::from_str(include_str!("definitions.json")).unwrap();
        let nodes = Schemas::compile(&document).nodes;
        let is_time = |of: usize| matches!(nodes[of], Node::Time | Node::MicroTime);
        let of_times = |node: &Node| matches!(node, Node::Array(of) if is_time(*of));
        assert!(!nodes.iter().any(of_times));
    }
}
