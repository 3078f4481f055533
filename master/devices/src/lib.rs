//! The kinds of devices that pods claim (dynamic resource allocation, KEP-4381): classes, claims,
//! templates, slices.
//!
//! Each function of the first level is the descriptor of one kind; `master-kinds` has all of them
//! in one list. No tasks, no channels, no I/O.

mod kinds;
mod slice;
mod status;
mod validate;

pub use kinds::{claim, class, slice, template};
