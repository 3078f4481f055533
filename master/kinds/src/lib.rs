//! What each kind is, said once: names, scope, columns, defaults, validation, strategy.
//!
//! Enter by [`builtin::all`], the descriptors of every built-in kind, and [`registry::Kind`], what a descriptor says. All
//! of it is pure: objects are JSON maps ([`validate::Fields`]), faults are collected all at once with upstream's field
//! paths and reasons ([`validate::Faults`]), and refusals are upstream's `Status` objects ([`error::ApiError`]).
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
