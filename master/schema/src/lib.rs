//! The building blocks of kinds: descriptors and their registry, schemas, and the rules that all
//! kinds share for decoding, validation, selection, quantities and table cells.
//!
//! Start at [`registry::Kind`], the descriptor of a kind, and at [`registry::Registry`], the kinds
//! that are served ([`served::Kinds`] replaces them as a whole). All of it is pure: objects are
//! JSON maps ([`validate::Fields`]), validation reports all faults at once with upstream's field
//! paths and reasons ([`validate::Faults`]), and errors are upstream's `Status` objects
//! ([`error::ApiError`]).
//!
//! No tasks, no channels, no I/O.

pub mod cells;
pub mod decode;
pub mod error;
pub mod json_text;
pub mod object;
pub mod quantity;
pub mod registry;
pub mod schema;
pub mod selector;
pub mod served;
mod stored_fields;
pub mod validate;
