//! The services of the API server that plugins are built with.

use crate::services::ranges::Ranges;
use master_auth::Authorizer;
use master_objects::Clock;
use master_schema::served::Kinds;
use std::sync::Arc;

/// Services of the API server that plugins use.
#[derive(Debug, Clone)]
pub struct PluginServices {
    /// Answers whether a caller has further rights.
    pub authorizer: Arc<Authorizer>,
    /// The kinds that are served.
    pub kinds: Arc<Kinds>,
    /// The ranges of service addresses and node ports.
    pub ranges: Ranges,
    /// The time that objects get.
    pub clock: Clock,
}
