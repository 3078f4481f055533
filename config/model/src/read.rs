//! Reads the tree of a document into `Raw*` structs: types of values, known keys, and positions.

use crate::defaults::{MAX_DEPTH, MAX_LIST};
use crate::fault::{FaultKind, Position, Sink, shorten};
use crate::secret::Secret;
use crate::shape::Shape;
use crate::suggest::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A value and its position.
#[derive(Debug, Clone, Default)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Position,
}

/// A type that can be read from one value of the tree. `None` after a fault.
pub(crate) trait Read: Sized {
    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self>;

    /// What the reference says about values of this type.
    fn shape() -> Shape;
}

impl Read for String {
    fn shape() -> Shape {
        Shape::Scalar("string")
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::String(text) = value else {
            return wrong_type(value, place, "a string in quotes", sink);
        };
        Some(text.to_string())
    }
}

impl Read for Secret {
    fn shape() -> Shape {
        Shape::Scalar("string")
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::String(text) = value else {
            // The value may be the secret without its quotes.
            sink.fault(
                FaultKind::WrongType,
                place,
                "a value of another type",
                "a string in quotes",
            );
            return None;
        };
        Some(Self::new(text.to_string()))
    }
}

impl Read for bool {
    fn shape() -> Shape {
        Shape::Scalar("boolean")
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::Boolean(value) = value else {
            return wrong_type(value, place, "`true` or `false`", sink);
        };
        Some(*value)
    }
}

impl Read for i64 {
    fn shape() -> Shape {
        Shape::Scalar("integer")
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::Integer(integer) = value else {
            return wrong_type(value, place, "an integer", sink);
        };
        let parsed = Self::from_str_radix(integer.as_str(), integer.radix()).ok();
        if parsed.is_none() {
            sink.fault(
                FaultKind::BadValue,
                place,
                shorten(integer.as_str(), 40),
                "an integer of 64 bits",
            );
        }
        parsed
    }
}

impl<T: Read> Read for Vec<At<T>> {
    fn shape() -> Shape {
        Shape::Array(Box::new(T::shape()))
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::Array(array) = value else {
            return wrong_type(value, place, "an array in brackets", sink);
        };
        if array.len() > MAX_LIST {
            let found = format!("{} elements", array.len());
            sink.fault(
                FaultKind::BadValue,
                place,
                found,
                &format!("at most {MAX_LIST}"),
            );
            return None;
        }
        let read = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
            let place = place.element(index, item.span());
            T::read(item.get_ref(), &place, sink).map(|value| At { value, place })
        };
        Some(array.iter().enumerate().filter_map(read).collect())
    }
}

/// A table with arbitrary keys: each key and its value, with positions.
#[derive(Debug, Default)]
pub(crate) struct Entries<T>(pub(crate) Vec<(At<String>, At<T>)>);

impl<T: Read> Read for Entries<T> {
    fn shape() -> Shape {
        Shape::Map(Box::new(T::shape()))
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        let DeValue::Table(table) = value else {
            return wrong_type(value, place, "a table", sink);
        };
        if table.len() > MAX_LIST {
            sink.fault(
                FaultKind::BadValue,
                place,
                format!("{} keys", table.len()),
                &format!("at most {MAX_LIST}"),
            );
            return None;
        }
        let read = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            let name = key.get_ref().as_ref();
            let place = place.entry(name, key.span());
            let key = At {
                value: name.to_owned(),
                place: place.clone(),
            };
            let place = Position {
                span: value.span(),
                ..place
            };
            T::read(value.get_ref(), &place, sink).map(|value| (key, At { value, place }))
        };
        Some(Self(table.iter().filter_map(read).collect()))
    }
}

/// A table that is being read.
#[derive(Debug)]
pub(crate) struct Fields<'a, 'i> {
    table: &'a DeTable<'i>,
    place: Position,
}

impl<'a, 'i> Fields<'a, 'i> {
    /// The root table of the document.
    pub(crate) fn root(table: &'a DeTable<'i>) -> Self {
        Self {
            table,
            place: Position::default(),
        }
    }

    /// The table in a value.
    pub(crate) fn open(
        value: &'a DeValue<'i>,
        place: &Position,
        sink: &mut Sink<'_>,
    ) -> Option<Self> {
        let DeValue::Table(table) = value else {
            return wrong_type(value, place, "a table", sink);
        };
        Some(Self {
            table,
            place: place.clone(),
        })
    }

    /// The value of a key, if present and of the right type.
    pub(crate) fn take<T: Read>(&self, key: &str, sink: &mut Sink<'_>) -> Option<At<T>> {
        let (_, value) = self
            .table
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)?;
        let place = self.place.below(key, value.span());
        T::read(value.get_ref(), &place, sink).map(|value| At { value, place })
    }

    /// Reports every key that is not in `known`; `elsewhere` may say where such a key belongs.
    pub(crate) fn refuse_rest(
        &self,
        known: &[&str],
        elsewhere: impl Fn(&str) -> Option<String>,
        sink: &mut Sink<'_>,
    ) {
        self.refuse_unknown(known, &elsewhere, sink);
    }

    /// The same for any closure: compiled once, not for each caller.
    fn refuse_unknown(
        &self,
        known: &[&str],
        elsewhere: &dyn Fn(&str) -> Option<String>,
        sink: &mut Sink<'_>,
    ) {
        for (name, _) in self.table {
            let key = name.get_ref().as_ref();
            if known.contains(&key) {
                continue;
            }
            let near = nearest(key, known);
            if let Some(near) = near {
                sink.misspelt(self.place.below(near, 0..0).key);
            }
            let meant = near.map(|near| format!("did you mean `{near}`?"));
            let quoted: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
            sink.suggest(
                FaultKind::UnknownKey,
                &self.place.below(key, name.span()),
                format!("the unknown key `{}`", shorten(key, 40)),
                &format!("one of {}", quoted.join(", ")),
                meant.or_else(|| elsewhere(key)),
            );
        }
    }
}

/// Defines a raw table: its keys with their types and their entries in the reference, all optional;
/// other keys are refused.
macro_rules! raw {
    ($(#[$doc:meta])* $name:ident { $(#[doc = $help:literal] $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            $(#[doc = $help] pub(crate) $field: Option<crate::read::At<$type>>,)*
        }

        impl $name {
            /// Every key.
            pub(crate) const KEYS: &'static [&'static str] = &[$(stringify!($field)),*];
            /// Every key with its type and its meaning.
            pub(crate) const TABLE: &'static [crate::shape::Key] = &[$(crate::shape::Key {
                name: stringify!($field),
                shape: <$type as crate::read::Read>::shape,
                help: $help,
            }),*];

            /// Reads the keys of a table; those in `also` are read elsewhere.
            pub(crate) fn fields(
                fields: &crate::read::Fields<'_, '_>,
                also: &[&str],
                elsewhere: impl Fn(&str) -> Option<String>,
                sink: &mut crate::fault::Sink<'_>,
            ) -> Self {
                let raw = Self { $($field: fields.take(stringify!($field), sink),)* };
                fields.refuse_rest(&[also, Self::KEYS].concat(), elsewhere, sink);
                raw
            }
        }

        impl crate::read::Read for $name {
            fn shape() -> crate::shape::Shape {
                crate::shape::Shape::Table($name::TABLE)
            }

            fn read(
                value: &toml::de::DeValue<'_>,
                place: &crate::fault::Position,
                sink: &mut crate::fault::Sink<'_>,
            ) -> Option<Self> {
                let fields = crate::read::Fields::open(value, place, sink)?;
                Some(Self::fields(&fields, &[], |_| None, sink))
            }
        }
    };
}
pub(crate) use raw;

/// Reports a value of another type.
pub(crate) fn wrong_type<T>(
    value: &DeValue<'_>,
    place: &Position,
    expected: &str,
    sink: &mut Sink<'_>,
) -> Option<T> {
    report_wrong_type(value, place, expected, sink);
    None
}

/// The same without the type that is missing: compiled once, not for each type.
fn report_wrong_type(value: &DeValue<'_>, place: &Position, expected: &str, sink: &mut Sink<'_>) {
    let suggestion = match value {
        DeValue::Table(_) if expected.starts_with("an array") => Some(format!(
            "where it is a table header, write it in double brackets: `[[{}]]`",
            place.key
        )),
        DeValue::String(text) if expected.starts_with("an array") => {
            Some(format!("write [\"{}\"]", shorten(text, 40)))
        }
        DeValue::String(text) if text.parse::<i64>().is_ok() && expected == "an integer" => {
            Some("write it without quotes".to_owned())
        }
        DeValue::String(text)
            if expected.starts_with('`') && (text == "true" || text == "false") =>
        {
            Some("write it without quotes".to_owned())
        }
        DeValue::Array(array)
            if expected == "a table" && array.iter().all(|item| item.get_ref().is_table()) =>
        {
            Some(format!(
                "write it in single brackets, once: `[{}]`",
                place.key
            ))
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => None,
    };
    sink.suggest(
        FaultKind::WrongType,
        place,
        describe(value),
        expected,
        suggestion,
    );
}

/// A value in words, shortened.
pub(crate) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{}\"", shorten(text, 40)),
        DeValue::Integer(value) => format!("the integer {}", shorten(value.as_str(), 40)),
        DeValue::Float(value) => format!("the number {}", shorten(value.as_str(), 40)),
        DeValue::Boolean(value) => format!("`{value}`"),
        DeValue::Datetime(value) => format!("the date {value}"),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The first position that is nested too deep.
pub(crate) fn too_deep(table: &DeTable<'_>) -> Option<Position> {
    fn below(value: &Spanned<DeValue<'_>>, depth: usize) -> Option<Position> {
        if depth > MAX_DEPTH {
            return Some(Position {
                span: value.span(),
                key: String::new(),
            });
        }
        match value.get_ref() {
            DeValue::Array(array) => array.iter().find_map(|item| below(item, depth + 1)),
            DeValue::Table(table) => table.iter().find_map(|(_, item)| below(item, depth + 1)),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => None,
        }
    }
    table.iter().find_map(|(_, item)| below(item, 1))
}
