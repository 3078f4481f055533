//! Role-based access control (RBAC): decides which user may do what.
//!
//! Pure: no I/O, no clock, no tasks. A [`Snapshot`] holds the stored roles and bindings, indexed by
//! subject, and [`Snapshot::decide`] takes microseconds however many bindings there are. [`cover`]
//! finds the rights that one set of rules has beyond another, which prevents privilege escalation.
//! [`defaults`] has upstream's roles and bindings and those of the master's own components;
//! [`reconcile`] finds what a cluster lacks of them. Start at [`Snapshot`].

pub mod aggregate;
pub mod cover;
pub mod defaults;
mod object;
pub mod reconcile;
mod rule;
mod snapshot;

pub use object::{Binding, ComponentRole, Metadata, Role, RoleRef, Subject};
pub use rule::{Request, Resource, Rule, Who};
pub use snapshot::{Grants, Snapshot, Verdict};
