//! The Kubernetes API on one generic path: authentication, authorization, admission, store.
//!
//! Start at [`ApiServer`]: it is built over a store, made ready by [`ApiServer::prepare`], and
//! answers requests from a socket ([`serve`]) and from inside the process (`master_client::Client`)
//! on the same path: path → caller → authorization → limits → verb, driven by the kind's descriptor
//! (`master-schema`). Authentication and authorization are in `master-auth`, admission in
//! `master-admission`, the documents that describe the API in `master-openapi`.
//!
//! Tasks: `serve` starts one task for each connection and owns them until it returns; a watch runs
//! inside the body of its response; a connection to a kubelet has a task that ends with it. There
//! are no channels.

mod accept;
mod authorize;
mod connections;
mod documents;
mod encoding;
mod fairness;
mod guard;
mod health;
mod hooks;
mod idle;
mod metrics;
mod node_answer;
mod options;
mod path;
mod paths;
mod peer;
mod prepare;
mod protobuf;
mod respond;
mod serve;
mod server;
mod snapshot;
mod state;
mod table;
mod verbs;
mod write_timeout;

pub use connections::ConnectionLimits;
pub use hooks::{DenyList, DialError, Extensions, NodeDialer, NodeStream, NodeTarget};
pub use node_answer::NodeLimits;
pub use options::Options;
pub use peer::Peer;
pub use serve::{ServeOptions, TlsError, serve, tls_config};
pub use state::ApiServer;
