//! The Kubernetes API on one generic path: authentication, authorization, admission, store.
//!
//! Start at [`ApiServer`]: it is built over a store, made ready by [`ApiServer::prepare`], and
//! answers requests from a socket ([`serve`]) and from inside the process (`master_client::Client`)
//! on the same path: path → caller → authorization → limits → verb, driven by the kind's descriptor
//! (`master-kinds`).
//!
//! Tasks: `serve` starts one task for each connection and owns them until it returns; a watch runs
//! inside the body of its response; a connection to a kubelet has a task that ends with it. There
//! are no channels.

mod accept;
mod admit;
mod allocate;
mod authenticate;
mod authorize;
mod connections;
mod discovery;
mod encoding;
mod fairness;
mod guard;
mod health;
mod hooks;
mod idle;
mod metrics;
mod object;
mod openapi;
mod options;
mod path;
mod paths;
mod peer;
mod prepare;
mod protobuf;
mod serve;
mod server;
mod snapshot;
mod table;
mod verbs;
mod write_timeout;

pub use admit::Admission;
pub use allocate::Ranges;
pub use authenticate::{TokenFileError, TokenIssuer, TokenKeyError, TokenList};
pub use authorize::Mode;
pub use connections::ConnectionLimits;
pub use hooks::{DenyList, DialError, Extensions, NodeDialer, NodeStream, NodeTarget};
pub use master_schema::validate::net::Range;
pub use options::Options;
pub use peer::Peer;
pub use serve::{ServeOptions, TlsError, serve, tls_config};
pub use server::ApiServer;
pub use verbs::NodeLimits;
