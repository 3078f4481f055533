//! Values in memory: as they were written, or as differences from a similar value.

use crate::packing::Packed;
use bytes::{BufMut, Bytes};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The value of a key. Clones share it.
///
/// The newest values of a table are kept as they were written; older ones are packed, and unpacked
/// at each read. Readers see no difference except in time.
#[derive(Clone)]
pub struct Value(Form);

#[derive(Clone)]
enum Form {
    Plain(Bytes),
    Packed(Arc<Packed>),
}

impl Value {
    pub(crate) fn packed(packed: Packed) -> Self {
        Self(Form::Packed(Arc::new(packed)))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Plain(bytes) => bytes.len(),
            Form::Packed(packed) => packed.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes: shared with the value, or made for the caller where it is packed.
    pub fn bytes(&self) -> Bytes {
        match &self.0 {
            Form::Plain(bytes) => bytes.clone(),
            Form::Packed(packed) => {
                let mut bytes = Vec::with_capacity(packed.len());
                packed.put(0..packed.len(), &mut bytes);
                bytes.into()
            }
        }
    }

    /// Writes the bytes of a range, as far as the value has them.
    pub fn put(&self, range: Range<usize>, into: &mut impl BufMut) {
        match &self.0 {
            Form::Plain(bytes) => {
                let end = range.end.min(bytes.len());
                into.put_slice(bytes.get(range.start..end).unwrap_or_default());
            }
            Form::Packed(packed) => packed.put(range, into),
        }
    }

    /// The bytes, if they are kept as they were written.
    pub(crate) fn plain(&self) -> Option<&Bytes> {
        match &self.0 {
            Form::Plain(bytes) => Some(bytes),
            Form::Packed(_) => None,
        }
    }

    /// Bytes that it takes besides its sample, if it is packed.
    #[cfg(test)]
    pub(crate) fn packed_len(&self) -> Option<usize> {
        match &self.0 {
            Form::Plain(_) => None,
            Form::Packed(packed) => Some(packed.steps_len()),
        }
    }

    /// The sample against which it is packed.
    pub(crate) fn sample(&self) -> Option<&Arc<[u8]>> {
        match &self.0 {
            Form::Plain(_) => None,
            Form::Packed(packed) => Some(packed.sample()),
        }
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self(Form::Plain(bytes))
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() && self.bytes() == other
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.bytes() == other.bytes()
    }
}

impl Eq for Value {}

impl PartialEq<Bytes> for Value {
    fn eq(&self, other: &Bytes) -> bool {
        *self == **other
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        *self == *other.as_bytes()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}
