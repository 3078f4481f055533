//! The Kubernetes API on one generic path: authentication, authorization, admission, store.
//!
//! Enter by [`ApiServer`]: it is built over a store, made ready by [`ApiServer::prepare`], and answers requests,
//! whether they come from a socket ([`serve`]) or from inside the process ([`Client`]), on the same path: path →
//! caller → authorization → limits → the verb, driven by the kind's descriptor (`master-kinds` has them all).
//!
//! Tasks: `serve` starts one task for each connection and owns them until it returns; a watch runs inside its
//! response's body; a connection to a kubelet for a log has a task that ends with it. There are no channels.

mod accept;
mod admit;
mod allocate;
mod authenticate;
mod authorize;
pub mod client;
mod connections;
mod discovery;
mod encoding;
mod fairness;
pub mod follow;
mod health;
mod hooks;
mod idle;
mod metrics;
mod object;
mod openapi;
mod options;
mod path;
mod paths;
mod patience;
mod peer;
mod prepare;
mod protobuf;
mod recent;
pub mod record;
pub mod resources;
mod serve;
mod server;
mod snapshot;
mod table;
mod user;
mod verbs;

use master_kinds::{builtin as kinds, decode, error, registry, schema, selector, validate};
use master_merge::patch;

pub use admit::Admission;
pub use allocate::Ranges;
pub use authenticate::{TokenFileError, TokenIssuer, TokenKeyError, TokenList};
pub use authorize::Mode;
pub use client::{Client, DeleteParams, ListParams, Object, ObjectList, Patch, WatchEvent, Watcher};
pub use connections::ConnectionLimits;
pub use error::{ApiError, Cause, Details, Reason};
pub use follow::{Change, Follower};
pub use hooks::{BoxFuture, DenyList, DialError, Extensions, NodeDialer, NodeStream, NodeTarget};
pub use options::Options;
pub use peer::Peer;
pub use recent::Recent;
pub use record::{Happening, Recorder, Severity};
pub use resources::{Meta, OwnerRef, Partial, Resource, Seen, Whole};
pub use serve::{ServeOptions, TlsError, clients_of, serve, tls_config};
pub use server::{ApiServer, Body, BodyError, body};
pub use user::UserInfo;
pub use validate::net::Range;
pub use verbs::NodeLimits;
