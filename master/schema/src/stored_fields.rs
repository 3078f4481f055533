//! Fields of a kind as the store has them: those that selectors name, and those that have another
//! name there.

use std::borrow::Cow;

/// A field that field selectors can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectableField {
    /// Its name in selectors.
    pub label: Cow<'static, str>,
    /// JSON pointers into the stored object; the first that exists counts.
    pub pointers: Vec<Cow<'static, str>>,
}

impl SelectableField {
    /// The same field, at this JSON pointer where nothing is at those before.
    #[must_use]
    pub fn or(mut self, pointer: &'static str) -> Self {
        self.pointers.push(Cow::Borrowed(pointer));
        self
    }
}

/// A selectable field of a built-in kind, and where it is stored.
pub fn selectable(label: &'static str, pointer: &'static str) -> SelectableField {
    SelectableField {
        label: Cow::Borrowed(label),
        pointers: vec![Cow::Borrowed(pointer)],
    }
}

/// A top-level field that has another name in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedField {
    /// The name that clients see.
    pub served: Cow<'static, str>,
    /// The name in the store.
    pub stored: Cow<'static, str>,
}

/// A renamed field of a built-in kind.
pub fn renamed(served: &'static str, stored: &'static str) -> RenamedField {
    RenamedField {
        served: Cow::Borrowed(served),
        stored: Cow::Borrowed(stored),
    }
}
