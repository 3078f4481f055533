//! Patches and server-side apply: pure functions from an object and a change to an object.
//!
//! Start at [`patch::Patch`], [`apply::apply`], and [`write::update`], which tracks the ownership
//! of fields in writes other than apply. The kind's schema says which lists are merged, by which
//! keys, and what is owned as a whole ([`master_schema::schema::SchemaPosition`]). Managed fields
//! are passed as JSON text, apart from the object: they are decoded only when a write needs them.
//!
//! Sets of fields ([`set::Set`]) borrow from the objects and texts that they were made of. No
//! tasks, no channels, no I/O.

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
