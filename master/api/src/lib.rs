//! The Kubernetes API on one generic path: authentication, authorization, admission, store.
//!
//! Start at [`ApiServer`]: it is built over a store, made ready by [`ApiServer::prepare`], and
//! answers requests from a socket (`master-listener`) and from inside the process
//! (`master_client::Client`) on the same path: path → caller → authorization → limits → verb,
//! driven by the kind's descriptor (`master-schema`). Authentication and authorization are in
//! `master-auth`, admission in `master-admission`, the documents that describe the API in
//! `master-openapi`, what every cluster has from the start in `master-initial`.
//!
//! Tasks: a watch runs inside the body of its response; a connection to a kubelet has a task that
//! ends with it. There are no channels.

mod authorize;
mod denials;
mod documents;
mod flows;
mod guard;
mod health;
mod hooks;
mod options;
mod paths;
mod server;
mod snapshot;
mod state;
mod verbs;

pub use hooks::{DialError, NodeDialer, NodeStream, NodeTarget, ReusableStream};
pub use master_gateway::{ConnectionCheck, is_proxyable};
pub use master_objects::{Clock, Identities};
pub use options::Options;
pub use state::ApiServer;
