//! `metadata.managedFields`: which manager owns which fields, by which operation, since when.

use crate::fields;
use crate::set::Set;
use master_schema::error::shown;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Entries of one object that are decoded; a longer list is refused, as it costs time on every
/// write.
const MAX_MANAGERS: usize = 4096;

/// One manager and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Whether its operation is `Apply`; otherwise `Update`.
    pub applies: bool,
    /// The version whose field names the set uses.
    pub api_version: Cow<'a, str>,
    /// The subresource through which it writes.
    pub subresource: Cow<'a, str>,
    /// The time of its last write.
    pub time: Option<Cow<'a, str>>,
    /// Its fields.
    pub set: Set<'a>,
}

/// What tells a manager from others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity<'a> {
    name: Cow<'a, str>,
    applies: bool,
    subresource: Cow<'a, str>,
    /// Empty for `Apply`.
    version: Cow<'a, str>,
}

impl<'a> Manager<'a> {
    /// What tells this manager from others: equal where [`Manager::is`] says so.
    pub(crate) fn identity(&self) -> Identity<'a> {
        self.identity_in(self.api_version.clone())
    }

    /// The identity of the same manager in another version.
    pub(crate) fn identity_in(&self, version: Cow<'a, str>) -> Identity<'a> {
        Identity {
            name: self.name.clone(),
            applies: self.applies,
            subresource: self.subresource.clone(),
            version: if self.applies {
                Cow::Borrowed("")
            } else {
                version
            },
        }
    }
}

impl Manager<'_> {
    /// Whether two entries belong to the same manager. For `Apply`, the version does not matter.
    pub fn is(&self, other: &Manager<'_>) -> bool {
        self.name == other.name
            && self.applies == other.applies
            && self.subresource == other.subresource
            && (self.applies || self.api_version == other.api_version)
    }

    fn operation(&self) -> &'static str {
        if self.applies { "Apply" } else { "Update" }
    }

    /// Upstream's order of the list: `Apply` first, then by time in seconds, then by name. An equal
    /// list has to be encoded equally, or a write that changes nothing would be a change.
    fn order(&self, other: &Self) -> Ordering {
        let time = |manager: &Self| manager.time.as_deref().map_or(0, seconds);
        other
            .applies
            .cmp(&self.applies)
            .then_with(|| time(self).cmp(&time(other)))
            .then_with(|| self.name.cmp(&other.name))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }

    /// The manager, as conflict messages name it.
    pub fn label(&self) -> String {
        let through = if self.subresource.is_empty() {
            String::new()
        } else {
            format!(" with subresource {:?}", shown(&self.subresource))
        };
        let version = if self.applies {
            String::new()
        } else {
            format!(" using {}", shown(&self.api_version))
        };
        format!("{:?}{through}{version}", shown(&self.name))
    }
}

/// Seconds since 1970.
fn seconds(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>()
        .map_or(0, jiff::Timestamp::as_second)
}

/// The managers of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers<'a>(pub Vec<Manager<'a>>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a, F> {
    #[serde(borrow, default)]
    manager: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    fields_type: Cow<'a, str>,
    #[serde(rename = "fieldsV1")]
    fields: Option<F>,
    #[serde(borrow, default)]
    subresource: Cow<'a, str>,
}

impl<'a, F> Entry<'a, F> {
    fn manager(
        self,
        read: impl FnOnce(F) -> Result<Set<'a>, String>,
    ) -> Result<Manager<'a>, String> {
        let applies = match &*self.operation {
            "Apply" => true,
            "Update" => false,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        if self.api_version.is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        if self.fields_type != "FieldsV1" {
            return Err(format!(
                "invalid fieldsType {:?} in managed fields",
                self.fields_type
            ));
        }
        Ok(Manager {
            name: self.manager,
            applies,
            api_version: self.api_version,
            subresource: self.subresource,
            time: self.time,
            set: self.fields.map_or_else(|| Ok(Set::default()), read)?,
        })
    }
}

impl<'a> Managers<'a> {
    /// Decodes the list from JSON text.
    ///
    /// # Errors
    /// The text is not a list of valid entries, or has too many.
    pub fn decode(text: &'a str) -> Result<Self, String> {
        let entries: Vec<Entry<'a, &'a RawValue>> = serde_json::from_str(text)
            .map_err(|error| format!("managedFields cannot be read: {error}"))?;
        Self::collect(
            entries
                .into_iter()
                .map(|entry| entry.manager(|fields| fields::decode(fields.get()))),
        )
    }

    /// Decodes the list from a JSON value.
    ///
    /// # Errors
    /// The value is not a list of valid entries, or has too many.
    pub fn from_value(value: &'a Value) -> Result<Self, String> {
        let list = value.as_array().ok_or("managedFields must be a list")?;
        Self::collect(list.iter().map(|entry| {
            let text = |key: &str| {
                Cow::Borrowed(entry.get(key).and_then(Value::as_str).unwrap_or_default())
            };
            let parts: Entry<'a, &'a Value> = Entry {
                manager: text("manager"),
                operation: text("operation"),
                api_version: text("apiVersion"),
                time: entry.get("time").and_then(Value::as_str).map(Cow::Borrowed),
                fields_type: text("fieldsType"),
                fields: entry.get("fieldsV1"),
                subresource: text("subresource"),
            };
            parts.manager(fields::from_value)
        }))
    }

    /// Collects entries, with one for each manager.
    fn collect(entries: impl Iterator<Item = Result<Manager<'a>, String>>) -> Result<Self, String> {
        let mut managers = Self::default();
        let mut known: BTreeMap<Identity<'a>, usize> = BTreeMap::new();
        for entry in entries {
            let entry = entry?;
            let identity = entry.identity();
            match known.get(&identity).copied() {
                // Of two entries of one manager the last counts.
                Some(index) => managers.0[index] = entry,
                None if managers.0.len() < MAX_MANAGERS => {
                    known.insert(identity, managers.0.len());
                    managers.0.push(entry);
                }
                None => return Err(format!("more than {MAX_MANAGERS} managers")),
            }
        }
        Ok(managers)
    }

    /// The index of a manager's entry.
    pub fn find(&self, manager: &Manager<'_>) -> Option<usize> {
        self.0.iter().position(|known| known.is(manager))
    }

    /// The list without times, sorted: of two lists that differ only in their times these are
    /// equal.
    #[must_use]
    pub fn without_times(mut self) -> Self {
        for manager in &mut self.0 {
            manager.time = None;
        }
        self.0.sort_by(Manager::order);
        self
    }

    /// Removes managers that own nothing.
    pub fn drop_empty(&mut self) {
        self.0.retain(|manager| !manager.set.is_empty());
    }

    /// The list as JSON text; `None` if there are no managers.
    pub fn encode(mut self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        self.0.sort_by(Manager::order);
        let mut out = Vec::with_capacity(512);
        for (number, manager) in self.0.iter().enumerate() {
            out.push(if number == 0 { b'[' } else { b',' });
            entry(&mut out, manager);
        }
        out.push(b']');
        String::from_utf8(out).ok()
    }
}

/// One entry, with fields in upstream's order.
fn entry(out: &mut Vec<u8>, manager: &Manager<'_>) {
    let start = out.len();
    let time = manager.time.as_deref().unwrap_or_default();
    let before = [
        ("manager", &*manager.name),
        ("operation", manager.operation()),
        ("apiVersion", &*manager.api_version),
        ("time", time),
        ("fieldsType", "FieldsV1"),
    ];
    for (key, value) in before {
        field(out, start, key, value);
    }
    out.extend_from_slice(b",\"fieldsV1\":");
    fields::encode(&manager.set, out);
    field(out, start, "subresource", &manager.subresource);
    out.push(b'}');
}

fn field(out: &mut Vec<u8>, start: usize, key: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    out.push(if out.len() == start { b'{' } else { b',' });
    out.push(b'"');
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
    // Writing to a Vec does not fail.
    let _infallible = serde_json::to_writer(out, value);
}
