//! Role based access control: who may do what.
//!
//! Pure: no I/O, no clock, no tasks. A [`Snapshot`] holds roles and bindings as they are stored, indexed by subject, and
//! [`Snapshot::decide`] answers in microseconds however many bindings there are. [`cover`] says what a set of rules lacks
//! of another, by which nobody gives away what he does not have. [`defaults`] has upstream's roles and bindings and those
//! of the master's own parts; [`reconcile`] says what a cluster lacks of them. Enter by [`Snapshot`].

pub mod aggregate;
pub mod cover;
pub mod defaults;
mod object;
pub mod reconcile;
mod rule;
mod snapshot;

pub use object::{Binding, Metadata, Role, RoleRef, Subject};
pub use rule::{Request, Resource, Rule, Who};
pub use snapshot::{Grants, Snapshot, Verdict};
