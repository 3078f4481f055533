//! The client by which the parts of the master speak to the API: typed calls, watches, followers, events.
//!
//! Scheduler, controllers and attestation depend on this crate and not on the API server. What carries their requests is a
//! [`Transport`]; the API server is one, and takes a request from inside the process the same way as one from a socket:
//! authorization, limits, admission, store.
//!
//! Enter by [`Client`] for single calls, by [`Follower`] to keep up with all objects of a kind, by [`Store`] to keep and
//! index what is followed, by [`Recorder`] to write events. There are no tasks and no channels: a follower works while its
//! caller awaits [`Follower::next`].

mod body;
mod client;
mod follow;
mod recent;
mod record;
mod resources;
mod store;
mod transport;
mod user;

pub use body::{Body, BodyError, body};
pub use client::{
    Client, DeleteParams, ListParams, Object, ObjectList, Patch, WatchEvent, Watcher,
};
pub use follow::{Change, Follower};
/// What the API answers in place of a result, as upstream words it.
pub use master_kinds::error::{ApiError, Cause, Details, Reason};
pub use recent::Recent;
pub use record::{Happening, Recorder, Severity, reference};
pub use resources::{Meta, OwnerRef, Partial, Resource, Seen, Whole};
pub use store::{Delta, Entries, Index, Item, Key, Lookup, Progress, Scope, Store, View};
pub use transport::{BoxFuture, Transport};
pub use user::UserInfo;
