//! Compares two versions of an object: fields removed, modified and added.

use crate::path::Element;
use crate::set::Set;
use crate::typed::{Form, absent, element, form};
use master_schema::schema::{List, SchemaPosition};
use serde_json::{Map, Value};

/// The differences. The sets are disjoint.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes<'a> {
    /// Fields that were removed.
    pub removed: Set<'a>,
    /// Fields with another value.
    pub modified: Set<'a>,
    /// Fields that were added.
    pub added: Set<'a>,
}

impl<'a> Changes<'a> {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// The differences without some paths and everything below them.
    #[must_use]
    pub fn without(self, paths: &Set<'_>) -> Self {
        Self {
            removed: self.removed.difference_below(paths),
            modified: self.modified.difference_below(paths),
            added: self.added.difference_below(paths),
        }
    }

    /// The differences, independent of the objects.
    pub fn into_owned(self) -> Changes<'static> {
        Changes {
            removed: self.removed.into_owned(),
            modified: self.modified.into_owned(),
            added: self.added.into_owned(),
        }
    }

    fn push(&mut self, step: &Element<'a>, left: bool, right: bool, inner: Self) {
        self.removed
            .push(step.clone(), left && !right, inner.removed);
        self.modified.push(step.clone(), false, inner.modified);
        self.added.push(step.clone(), right && !left, inner.added);
    }
}

/// Compares two objects.
pub fn compare<'a>(
    old: &'a Map<String, Value>,
    new: &'a Map<String, Value>,
    place: SchemaPosition<'a>,
) -> Changes<'a> {
    let mut changes = Changes::default();
    fields(Some(old), Some(new), place, &mut changes);
    changes
}

fn value<'a>(
    step: Element<'a>,
    left: Option<&'a Value>,
    right: Option<&'a Value>,
    place: SchemaPosition<'a>,
    changes: &mut Changes<'a>,
) {
    let mut inner = Changes::default();
    match form(place, [left, right]) {
        Form::Leaf => match (left, right) {
            (None, _) => changes.added.push(step, true, Set::default()),
            (_, None) => changes.removed.push(step, true, Set::default()),
            (Some(left), Some(right)) if left != right => {
                changes.modified.push(step, true, Set::default());
            }
            (Some(_), Some(_)) => {}
        },
        Form::Fields => {
            let object = |value: Option<&'a Value>| value.and_then(Value::as_object);
            fields(object(left), object(right), place, &mut inner);
            changes.push(&step, left.is_some(), right.is_some(), inner);
        }
        Form::Items(list) => {
            let array = |value: Option<&'a Value>| {
                value
                    .and_then(Value::as_array)
                    .map_or(&[][..], Vec::as_slice)
            };
            items(array(left), array(right), list, place.items(), &mut inner);
            changes.push(&step, left.is_some(), right.is_some(), inner);
        }
    }
}

fn fields<'a>(
    left: Option<&'a Map<String, Value>>,
    right: Option<&'a Map<String, Value>>,
    place: SchemaPosition<'a>,
    changes: &mut Changes<'a>,
) {
    // Maps are sorted by name, so equal names meet in one walk over both.
    let mut olds = left.into_iter().flatten().peekable();
    let mut news = right.into_iter().flatten().peekable();
    loop {
        let old = olds.peek().map(|(name, _)| name.as_str());
        let new = news.peek().map(|(name, _)| name.as_str());
        let (name, mut before, mut after) = match (old, new) {
            (None, None) => return,
            (Some(old), Some(new)) if old == new => (
                old,
                olds.next().map(|(_, value)| value),
                news.next().map(|(_, value)| value),
            ),
            (Some(old), new) if new.is_none_or(|new| old < new) => {
                (old, olds.next().map(|(_, value)| value), None)
            }
            (Some(new), None) | (_, Some(new)) => (new, None, news.next().map(|(_, value)| value)),
        };
        let inner = place.field(name);
        // Upstream compares Go values, in which such a field is never absent: a client that sends
        // `status: {}` where there was none has changed nothing.
        if let Some(absent) = absent(inner) {
            before = before.or(left.map(|_| absent));
            after = after.or(right.map(|_| absent));
        }
        value(Element::Field(name.into()), before, after, inner, changes);
    }
}

/// An item of one of two lists, with the path element that identifies it.
struct Item<'a> {
    step: Element<'a>,
    is_new: bool,
    value: &'a Value,
}

fn items<'a>(
    left: &'a [Value],
    right: &'a [Value],
    list: &'a List,
    place: SchemaPosition<'a>,
    changes: &mut Changes<'a>,
) {
    let mut all: Vec<Item<'a>> = Vec::with_capacity(left.len() + right.len());
    for (is_new, items) in [(false, left), (true, right)] {
        // An item without any of the keys cannot be owned.
        all.extend(items.iter().filter_map(|value| {
            let step = element(list, value).ok()?;
            Some(Item {
                step,
                is_new,
                value,
            })
        }));
    }
    // Items of both lists with the same keys stand together, the old ones first. The sort is
    // stable, so equal ones keep their order.
    all.sort_by(|one, other| {
        let by_step = one.step.cmp(&other.step);
        by_step.then(one.is_new.cmp(&other.is_new))
    });
    for run in all.chunk_by(|one, other| one.step == other.step) {
        let split = run.partition_point(|item| !item.is_new);
        let (old, new) = run.split_at(split);
        let Some(Item { step, .. }) = run.first() else {
            continue;
        };
        match (old, new) {
            ([] | [_], [] | [_]) => {
                let only = |side: &[Item<'a>]| side.first().map(|item| item.value);
                value(step.clone(), only(old), only(new), place, changes);
            }
            // Items with the same keys can't be told apart, so they change together.
            ([_, _, ..], [_, _, ..]) => {
                let olds = old.iter().map(|item| item.value);
                let same = olds.eq(new.iter().map(|item| item.value));
                changes.modified.push(step.clone(), !same, Set::default());
            }
            // Several became one or none: all of them are gone, and the one is new.
            ([_, _, ..], rest) => {
                if let [item] = rest {
                    value(step.clone(), None, Some(item.value), place, changes);
                }
                changes.removed.push(step.clone(), true, Set::default());
            }
            (rest, [_, _, ..]) => {
                if let [item] = rest {
                    value(step.clone(), Some(item.value), None, place, changes);
                }
                changes.added.push(step.clone(), true, Set::default());
            }
        }
    }
}
