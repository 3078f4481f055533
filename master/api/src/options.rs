//! Options of the server: limits, admission, authorization.

use master_admission::EnabledPlugins;
use master_admission::services::Ranges;
use master_auth::{Mode, TokenIssuer, TokenList};
use master_gateway::NodeLimits;
use master_objects::{Clock, Identities};
use master_rbac::ComponentRole;
use std::sync::Arc;

/// Limits of the server and its choice of admission and authorization.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a request's body at most (upstream: 3 MiB).
    pub body_bytes: usize,
    /// Concurrent reads, watches aside; more get 429 (upstream: 400). A user may have a quarter of
    /// them, and a quarter is kept for nodes; so with writes.
    pub in_flight: usize,
    /// Concurrent writes; more get 429 (upstream: 200). What waits for its body is none yet.
    pub in_flight_mutating: usize,
    /// Open watches; more get 429. Half are kept for nodes, and no caller gets more than a part
    /// ([`master_gateway::Watches`]).
    pub watches: usize,
    /// Limits on answers from nodes.
    pub nodes: NodeLimits,
    /// Which admission plugins are enabled.
    pub admission: EnabledPlugins,
    /// Authorization modes, in order: the first that allows a request decides.
    pub authorization: Vec<Mode>,
    /// Ranges of service addresses and node ports, and the addresses of this server.
    pub ranges: Ranges,
    /// Static tokens and their users.
    pub tokens: TokenList,
    /// Signs service account tokens; `None` uses a key of this process, whose tokens end with it.
    pub issuer: Option<Arc<TokenIssuer>>,
    /// The UIDs and generated names of new objects.
    pub identities: Identities,
    /// The time that objects get.
    pub clock: Clock,
    /// Cluster roles of the master's own parts, with their bindings, beside the default ones.
    pub roles: Vec<ComponentRole>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            in_flight: 400,
            in_flight_mutating: 200,
            watches: 20_000,
            nodes: NodeLimits::default(),
            admission: EnabledPlugins::default(),
            authorization: vec![Mode::Node, Mode::Rbac],
            ranges: Ranges::default(),
            tokens: TokenList::default(),
            issuer: None,
            identities: Identities::default(),
            clock: Clock::default(),
            roles: Vec::new(),
        }
    }
}
