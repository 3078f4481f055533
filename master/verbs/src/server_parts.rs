//! The parts of the server that verbs may use.

use master_admission::Chain;
use master_auth::{Authenticator, Authorizer};
use master_client::Transport;
use master_gateway::{IdleConnections, NodeCalls, NodeDialer, NodeLimits, Watches};
use master_listener::{Denials, Extensions};
use master_metrics::Metrics;
use master_objects::Identities;
use master_store::{Reader, Store};
use master_usage::Usage;
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Makes the transport for requests that a verb sends in the server's own name. Few verbs do, so no
/// request pays for a [`Transport`] that it doesn't use.
pub trait OwnTransport: fmt::Debug + Sync {
    /// Calls the server that runs the verb.
    fn transport(&self) -> Arc<dyn Transport>;
}

/// The parts of the server that verbs may use. [`run`](crate::run()) hands each verb those that it
/// needs.
#[derive(Debug, Clone)]
pub struct ServerParts<'a> {
    /// For all reads.
    pub reader: &'a dyn Reader,
    /// For writes.
    pub store: &'a dyn Store,
    /// The admission plugins.
    pub admission: &'a Chain,
    /// Knows callers by their tokens, and signs those of service accounts.
    pub authenticator: &'a Authenticator,
    /// Knows what a caller may do. Watches of nodes keep it.
    pub authorizer: &'a Arc<Authorizer>,
    /// The UIDs and generated names of new objects.
    pub identities: &'a Identities,
    /// The service whose kinds are this project's own, if one is registered.
    pub extensions: Option<&'a dyn Extensions>,
    /// Slots for watches.
    pub watches: &'a Watches,
    /// Counts watches: those that are open, what they send, those that are refused.
    pub metrics: &'a Metrics,
    /// The usage of nodes and pods.
    pub usage: &'a Usage,
    /// Connects to nodes, if a dialer is registered.
    pub node_dialer: Option<&'a dyn NodeDialer>,
    /// Limits on answers from nodes.
    pub node_limits: &'a NodeLimits,
    /// Slots for answers of nodes.
    pub node_calls: &'a Arc<NodeCalls>,
    /// Slots for tunnels to nodes.
    pub tunnels: &'a Arc<NodeCalls>,
    /// Connections to nodes that are kept between two calls.
    pub idle_connections: &'a Arc<IdleConnections>,
    /// Ends what is sent to a caller, or comes from a node, that is denied.
    pub denials: &'a Denials,
    /// Ends watches and tunnels when the server does.
    pub draining: &'a CancellationToken,
    /// The server itself, for what a verb asks in the server's own name.
    pub own: &'a dyn OwnTransport,
}
