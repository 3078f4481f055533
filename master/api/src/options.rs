//! What a server is told when it is made: its limits, and how it decides.

use crate::admit::Admission;
use crate::allocate::Ranges;
use crate::authenticate::{TokenIssuer, TokenList};
use crate::authorize::Mode;
use crate::verbs::NodeLimits;
use std::sync::Arc;

/// Limits of the server, and how it admits and authorizes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that a request's body may have (upstream: 3 MiB).
    pub body_bytes: usize,
    /// Reads that may be worked on at once, watches aside; more get 429 (upstream: 400).
    pub in_flight: usize,
    /// Writes that may be worked on at once; more get 429 (upstream: 200).
    pub in_flight_mutating: usize,
    /// Watches that may be open at once; more get 429.
    pub watches: usize,
    /// How much of what nodes answer is taken.
    pub nodes: NodeLimits,
    /// Which admission plugins are on.
    pub admission: Admission,
    /// How it is decided who may do what: asked in order, the first that allows decides.
    pub authorization: Vec<Mode>,
    /// What services get, and where this server is found.
    pub ranges: Ranges,
    /// Tokens that never change, and whom they belong to.
    pub tokens: TokenList,
    /// Who signs service accounts' tokens; none: a key of this process alone, whose tokens end with it.
    pub issuer: Option<Arc<TokenIssuer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            in_flight: 400,
            in_flight_mutating: 200,
            watches: 20_000,
            nodes: NodeLimits::default(),
            admission: Admission::default(),
            authorization: vec![Mode::Node, Mode::Rbac],
            ranges: Ranges::default(),
            tokens: TokenList::default(),
            issuer: None,
        }
    }
}
