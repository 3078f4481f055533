//! The client through which the components of the master use the API: typed calls, watches,
//! followers, events.
//!
//! Scheduler, controllers and attestation depend on this crate and not on the API server. A
//! [`Transport`] carries their requests; the API server implements it and treats a request from
//! inside the process like one from a socket: authorization, limits, admission, store.
//!
//! Start at [`Client`] for single calls, at [`Follower`] to follow all objects of a kind, at
//! [`Store`] to keep and index them, at [`Recorder`] to write events. A follower works only while
//! its caller awaits [`Follower::next`]. There are no channels. The only tasks are those in which a
//! recorder tries events again: a bounded number, each for two minutes at most.

mod body;
mod client;
mod dropped;
mod follow;
mod interner;
mod key;
mod managed_fields;
mod record;
mod resources;
mod store;
mod transport;
mod user;
mod watch;

pub use body::{Body, BodyError, HeldBytes, body};
pub use client::{Client, DeleteParams, ListParams, Object, ObjectList, Patch};
pub use follow::{Change, Follower};
pub use interner::Interner;
pub use key::Key;
/// The API's errors, in upstream's form.
pub use master_schema::error::{ApiError, Cause, Details, Reason};
pub use record::{NewEvent, ObjectEvent, Recorder, Severity, reference};
pub use resources::{
    DynamicObject, Meta, ObjectPath, OwnerRef, PartialObject, Resource, Versioned,
};
pub use store::{Delta, Entries, Index, Item, Lookup, Progress, Scope, Store, View};
pub use transport::{BoxFuture, Transport};
pub use user::UserInfo;
pub use watch::{Gone, WatchEvent, Watcher};
