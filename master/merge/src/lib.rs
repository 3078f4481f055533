//! Patches and server-side apply: pure functions from an object and a change to an object.
//!
//! Enter by [`patch::Patch`], [`apply::apply`], and [`write::update`], which keeps account of who owns which fields
//! when a write is no apply. Which lists are merged, by which keys, and what is owned as a whole, the kind's schema
//! says ([`master_kinds::schema::Place`]). Managed fields come and go as text, and objects are without them: they are
//! read only where a write needs them.
//!
//! Sets of fields ([`set::Set`]) borrow from the objects and texts that they were made of. No tasks, no channels, no
//! I/O.

pub mod apply;
pub mod compare;
mod extract;
pub mod fields;
mod join;
pub mod managed;
pub mod patch;
pub mod path;
mod remove;
pub mod scale;
pub mod set;
mod strategic;
mod typed;
pub mod write;
