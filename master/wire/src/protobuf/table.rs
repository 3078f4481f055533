//! The table of messages, parsed from `fields.txt` at the first document in this encoding.
//!
//! A line `@NAME` begins a message; a line `NUMBER JSON-NAME CONTENT` is a field of it. Content is
//! `*` for a list or `%` for a map from text, then what each holds: `s` text, `B` bytes, `i`
//! integer, `b` boolean, `T` and `U` times, `Q` a quantity, `I` a number or text, `R` and `F` JSON
//! inside, `w` a message that is a bare list, `@NAME` another message; a `?` at the end says that
//! an empty value means none. The JSON name `~` embeds a message in its parent.
//!
//! The list of each kind is not in the text: upstream numbers the fields of all lists alike.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The table's text.
const TEXT: &str = include_str!("fields.txt");

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldType {
    Text,
    /// Base64 in JSON.
    Bytes,
    Integer,
    Boolean,
    /// `meta/v1 Time`: seconds and nanoseconds; whole seconds in JSON.
    Time,
    /// `meta/v1 MicroTime`.
    MicroTime,
    Quantity,
    /// A number or a text.
    Either,
    /// Embedded JSON.
    Json,
    /// A message with one list of strings, which is a bare list in JSON.
    Wrapped,
    Message(&'static str),
}

/// The cardinality of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cardinality {
    One,
    List,
    /// A map with string keys.
    Map,
    /// A message whose fields are part of the parent.
    Inline,
}

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) cardinality: Cardinality,
    pub(super) content: FieldType,
    /// Whether an empty value means absent.
    pub(super) optional: bool,
}

/// The fields of a message.
pub(super) fn message(name: &str) -> Option<&'static [Field]> {
    static MESSAGES: LazyLock<Messages> = LazyLock::new(|| with_lists(read()));
    MESSAGES.get(name).map(Vec::as_slice)
}

/// The fields of each message, by its name.
type Messages = HashMap<Cow<'static, str>, Vec<Field>>;

/// Adds the list of each message that is an object.
fn with_lists(messages: HashMap<&'static str, Vec<Field>>) -> Messages {
    let mut all = Messages::new();
    for (name, fields) in messages {
        let metadata = FieldType::Message("meta.v1.ObjectMeta");
        if fields.iter().any(|field| field.content == metadata) {
            // One that is in the text counts.
            all.entry(format!("{name}List").into())
                .or_insert_with(|| list_of(name));
        }
        all.insert(name.into(), fields);
    }
    all
}

/// The fields of a list of these messages.
fn list_of(name: &'static str) -> Vec<Field> {
    let field = |number, name, cardinality, content| Field {
        number,
        name,
        cardinality,
        content: FieldType::Message(content),
        optional: false,
    };
    vec![
        field(1, "metadata", Cardinality::One, "meta.v1.ListMeta"),
        field(2, "items", Cardinality::List, name),
    ]
}

fn read() -> HashMap<&'static str, Vec<Field>> {
    let mut messages: HashMap<&'static str, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in TEXT.lines() {
        if let Some(name) = line.strip_prefix('@') {
            current = name;
            messages.insert(name, Vec::new());
        } else if let (Some(field), Some(fields)) = (field(line), messages.get_mut(current)) {
            fields.push(field);
        }
    }
    messages
}

fn field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (number, name, content) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let (content, optional) = content
        .strip_suffix('?')
        .map_or((content, false), |content| (content, true));
    let (cardinality, content) = match content.as_bytes().first()? {
        b'*' => (Cardinality::List, &content[1..]),
        b'%' => (Cardinality::Map, &content[1..]),
        _ if name == "~" => (Cardinality::Inline, content),
        _ => (Cardinality::One, content),
    };
    let content = match content {
        "s" => FieldType::Text,
        "B" => FieldType::Bytes,
        "i" => FieldType::Integer,
        "b" => FieldType::Boolean,
        "T" => FieldType::Time,
        "U" => FieldType::MicroTime,
        "Q" => FieldType::Quantity,
        "I" => FieldType::Either,
        "R" | "F" => FieldType::Json,
        "w" => FieldType::Wrapped,
        message => FieldType::Message(message.strip_prefix('@')?),
    };
    Some(Field {
        number,
        name,
        cardinality,
        content,
        optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::identity::GROUP;
    use master_schema::registry::Review;
    use std::collections::BTreeSet;

    /// The JSON names of a message's fields and of the messages embedded in it.
    fn names(fields: &[Field]) -> BTreeSet<&'static str> {
        let own = fields
            .iter()
            .filter(|field| field.cardinality != Cardinality::Inline)
            .map(|field| field.name);
        let inner = fields
            .iter()
            .filter_map(|field| match (field.cardinality, field.content) {
                (Cardinality::Inline, FieldType::Message(inner)) => message(inner),
                _ => None,
            });
        own.chain(inner.flat_map(names)).collect()
    }

    #[test]
    fn every_field_of_every_kind_that_is_served_has_a_number() {
        let kinds = master_kinds::builtin::all();
        let sources: Vec<_> = kinds
            .iter()
            // Kinds of ours have no messages, and what is only read or always refused is never in a
            // body.
            .filter(|kind| kind.group != GROUP && !kind.review.is_some_and(Review::is_read))
            .filter(|kind| kind.refused.is_none())
            .map(|kind| kind.source.clone())
            .collect();
        let definitions = master_schema::schema::definitions(&sources);
        let mut missing = Vec::new();
        for (name, definition) in &definitions {
            let Some(properties) = definition["properties"].as_object() else {
                continue;
            };
            let name = name.rsplitn(4, '.').take(3).collect::<Vec<_>>();
            let [kind, version, group] = name[..] else {
                continue;
            };
            let known = message(&format!("{group}.{version}.{kind}")).map(names);
            let known = known.unwrap_or_default();
            let fields = properties
                .keys()
                .filter(|key| !matches!(key.as_str(), "apiVersion" | "kind"));
            missing.extend(
                fields
                    .filter(|key| !known.contains(key.as_str()))
                    .map(|key| format!("{group}.{version}.{kind}: {key}")),
            );
        }
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn the_list_of_a_kind_has_upstreams_numbers() {
        let numbers = |name| -> Vec<_> {
            let fields = message(name).unwrap().iter();
            fields.map(|field| (field.number, field.name)).collect()
        };
        let usual = [(1_u64, "metadata"), (2, "items")];
        assert_eq!(numbers("core.v1.PodList"), usual);
        assert_eq!(numbers("meta.v1.PartialObjectMetadataList"), usual);
        let older = numbers("meta.v1beta1.PartialObjectMetadataList");
        assert_eq!(older, [(2_u64, "metadata"), (1, "items")]);
        assert!(message("core.v1.PodSpecList").is_none());
    }

    #[test]
    fn every_line_is_read_and_every_message_that_is_named_is_there() {
        let messages = read();
        let fields: usize = messages.values().map(Vec::len).sum();
        assert_eq!(messages.len() + fields, TEXT.lines().count());
        for (name, fields) in &messages {
            for field in fields {
                if let FieldType::Message(inner) = field.content {
                    assert!(
                        messages.contains_key(inner),
                        "{name}.{} is {inner}",
                        field.name
                    );
                }
                assert!(
                    field.cardinality != Cardinality::Inline
                        || matches!(field.content, FieldType::Message(_)),
                    "{name}"
                );
            }
        }
    }
}
