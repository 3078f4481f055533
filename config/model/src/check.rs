//! Turns raw values into checked ones: helpers of all sections. Each records a fault and continues.

use crate::fault::{FaultKind, Position, Sink, shorten};
use crate::format::{DnsLabel, FormatError};
use crate::raw::Texts;
use crate::read::At;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

impl Sink<'_> {
    /// Parses a text in its format.
    pub(crate) fn parse<T: FromStr<Err = FormatError>>(&mut self, text: &At<String>) -> Option<T> {
        self.parsed(text, text.value.parse())
    }

    /// The result of parsing a text; an error becomes a fault.
    pub(crate) fn parsed<T>(
        &mut self,
        text: &At<String>,
        result: Result<T, FormatError>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.bad_text(text, error);
                None
            }
        }
    }

    /// Reports a text that does not parse.
    fn bad_text(&mut self, text: &At<String>, error: FormatError) {
        // The text of a key or certificate does not help a reader, and a private key must not be
        // shown at all.
        let pem = text.value.contains("-----BEGIN");
        let found = if pem {
            "other PEM text".to_owned()
        } else {
            quoted(&text.value)
        };
        self.suggest(
            FaultKind::BadValue,
            &text.place,
            found,
            &error.expected,
            error.suggestion,
        );
    }

    /// Parses a required list that is not empty.
    pub(crate) fn required_list<T>(
        &mut self,
        raw: Option<&At<Texts>>,
        table: &Position,
        key: &str,
        expected: &str,
    ) -> Option<Vec<T>>
    where
        T: FromStr<Err = FormatError> + PartialEq + Display,
    {
        let list = self.required(raw.cloned(), table, key, expected)?;
        self.not_empty(&list, expected);
        Some(self.parse_list(Some(&list)))
    }

    /// Parses all texts of a list; duplicates are faults.
    pub(crate) fn parse_list<T>(&mut self, list: Option<&At<Texts>>) -> Vec<T>
    where
        T: FromStr<Err = FormatError> + PartialEq + Display,
    {
        let mut values: Vec<T> = Vec::new();
        for text in list.iter().flat_map(|list| &list.value) {
            let Some(value) = self.parse::<T>(text) else {
                continue;
            };
            if values.contains(&value) {
                self.fault(
                    FaultKind::Duplicate,
                    &text.place,
                    format!("{value} a second time"),
                    "each once",
                );
                continue;
            }
            values.push(value);
        }
        values
    }

    /// A list that must have at least one element.
    pub(crate) fn not_empty<T>(&mut self, list: &At<Vec<T>>, expected: &str) {
        if list.value.is_empty() {
            self.fault(FaultKind::BadValue, &list.place, "an empty list", expected);
        }
    }

    /// An integer in a range.
    pub(crate) fn number<T: TryFrom<i64>>(
        &mut self,
        number: &At<i64>,
        range: &RangeInclusive<i64>,
    ) -> Option<T> {
        let value = Some(number.value)
            .filter(|n| range.contains(n))
            .and_then(|n| T::try_from(n).ok());
        if value.is_none() {
            let end = if *range.end() == i64::MAX {
                " or more".to_owned()
            } else {
                format!(" to {}", range.end())
            };
            let expected = format!("a number, {}{end}", range.start());
            self.fault(
                FaultKind::BadValue,
                &number.place,
                number.value.to_string(),
                &expected,
            );
        }
        value
    }

    /// A required key of a table.
    pub(crate) fn required<T>(
        &mut self,
        value: Option<At<T>>,
        table: &Position,
        key: &str,
        expected: &str,
    ) -> Option<At<T>> {
        if value.is_none() && !self.has_fault_at(&table.below(key, 0..0).key) {
            let place = table.below(key, table.span.clone());
            self.fault(FaultKind::Missing, &place, format!("no `{key}`"), expected);
        }
        value
    }
}

/// A text in quotes, as faults show it.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", shorten(text, 60))
}

/// Names of the entries of a list, checked to be unique.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    /// Adds a name; a duplicate is a fault.
    pub(crate) fn add(&mut self, name: &str, place: &Position, sink: &mut Sink<'_>) {
        if self.has(name) {
            sink.fault(
                FaultKind::Duplicate,
                place,
                format!("the name {} a second time", quoted(name)),
                "a name of its own",
            );
            return;
        }
        self.0.push(name.to_owned());
    }

    /// Whether the name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }

    /// All names.
    pub(crate) fn list(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// The required and unique name of a list entry.
pub(crate) fn named(
    name: Option<At<String>>,
    place: &Position,
    names: &mut Names,
    sink: &mut Sink<'_>,
) -> Option<DnsLabel> {
    let text = sink.required(name, place, "name", "a name to refer to it by")?;
    let name: DnsLabel = sink.parse(&text)?;
    names.add(name.as_str(), &text.place, sink);
    Some(name)
}
