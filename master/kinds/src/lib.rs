//! The kinds: each is described once, with names, scope, columns, defaults, validation and
//! strategy.
//!
//! Start at [`builtin::all`], the descriptors of all built-in kinds, and at [`registry::Kind`], the
//! descriptor. All of it is pure: objects are JSON maps ([`validate::Fields`]), validation reports
//! all faults at once with upstream's field paths and reasons ([`validate::Faults`]), and errors
//! are upstream's `Status` objects ([`error::ApiError`]).
//!
//! No tasks, no channels, no I/O.

pub mod builtin;
pub mod decode;
pub mod error;
pub mod object;
pub mod podspec;
pub mod quantity;
pub mod quota;
pub mod registry;
pub mod schema;
pub mod selector;
pub mod validate;
