//! The client through which the components of the master use the API: typed calls, watches,
//! followers, events.
//!
//! Scheduler, controllers and attestation depend on this crate and not on the API server. A
//! [`Transport`] carries their requests; the API server implements it and treats a request from
//! inside the process like one from a socket: authorization, limits, admission, store.
//!
//! Start at [`Client`] for single calls, at [`Follower`] to follow all objects of a kind, at
//! [`Store`] to keep and index them, at [`Recorder`] to write events. There are no tasks and no
//! channels: a follower works while its caller awaits [`Follower::next`].

mod bare;
mod body;
mod client;
mod follow;
mod key;
mod recent;
mod record;
mod resources;
mod store;
mod transport;
mod user;
mod watch;

pub use body::{Body, BodyError, Weight, body};
pub use client::{Client, DeleteParams, ListParams, Object, ObjectList, Patch};
pub use follow::{Change, Follower};
pub use key::Key;
/// The API's errors, in upstream's form.
pub use master_schema::error::{ApiError, Cause, Details, Reason};
pub use recent::Recent;
pub use record::{Happening, Notice, Recorder, Severity, reference};
pub use resources::{Meta, ObjectPath, OwnerRef, Partial, Resource, Seen, Whole};
pub use store::{Delta, Entries, Index, Item, Lookup, Progress, Scope, Store, View};
pub use transport::{BoxFuture, Transport};
pub use user::UserInfo;
pub use watch::{Gone, WatchEvent, Watcher};
