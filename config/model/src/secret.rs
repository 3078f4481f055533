//! Secret texts of documents.

use std::fmt;
use zeroize::Zeroizing;

/// A text that neither faults nor `Debug` show. Its memory is zeroed when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text over.
    pub fn new(text: impl Into<Zeroizing<String>>) -> Self {
        Self(text.into())
    }

    /// The secret text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}
