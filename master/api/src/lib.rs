//! The Kubernetes API on one generic path: authentication, authorization, admission, store.
//!
//! Start at [`ApiServer`]: it is built over a store, made ready by [`ApiServer::prepare`], and
//! answers requests from a socket (`master-listener`) and from inside the process
//! (`master_client::Client`) on the same path: path → caller → authorization → limits → verb,
//! driven by the kind's descriptor (`master-schema`). What each verb does to objects is in
//! `master-verbs`, authentication and authorization are in `master-auth`, admission in
//! `master-admission`, the documents that describe the API in `master-openapi`, what every cluster
//! has from the start in `master-initial`.
//!
//! No tasks but those of verbs, and the threads on which documents are made. No channels.

mod documents;
mod flows;
mod health;
mod hooks;
mod options;
mod paths;
mod server;
mod snapshot;
mod state;

pub use master_gateway::{
    ConnectionCheck, DialError, NodeDialer, NodeStream, NodeTarget, ReusableStream, is_proxyable,
};
pub use master_objects::{Clock, Identities};
pub use options::Options;
pub use state::ApiServer;
