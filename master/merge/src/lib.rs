//! Patches and server-side apply: pure functions from an object and a change to an object.
//!
//! Enter by [`patch::Patch`]. Which lists are merged and by which key, the kind's schema says
//! ([`master_kinds::schema::Place`]). No tasks, no channels, no I/O.

pub mod patch;
mod strategic;
