//! Settings, keys and connections that the master's program passes to the controllers.

use crate::pod_range::PodRange;
use config_kube::CertificatePolicySpec;
use config_kube::policy::Ruling;
use config_model::discovery::DiscoveryUri;
use config_model::format::Endpoint;
use master_ca::Authority;
use master_client::{ApiError, BoxFuture, ObjectEvent};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Settings of the controllers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Silence after which a node is not ready.
    pub node_grace: Duration,
    /// Ranges of which each node gets a part for its pods; none where something else gives nodes
    /// their ranges.
    pub pod_ranges: Vec<PodRange>,
    /// The roots' certificates (PEM) that are published in every namespace; others are published
    /// when they change.
    pub root_ca: Option<watch::Receiver<String>>,
    /// With what certificate requests are decided and signed.
    pub signing: Option<Signing>,
    /// With what the cluster is published at discovery endpoints.
    pub discovery: Option<Discovery>,
    /// Repairs the allocations of services; `None` if nothing allocates.
    pub allocations: Option<Arc<dyn Allocations>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_grace: crate::views::node::GRACE,
            pod_ranges: Vec::new(),
            root_ca: None,
            signing: None,
            discovery: None,
            allocations: None,
        }
    }
}

/// With what requests are decided and signed.
#[derive(Debug, Clone)]
pub struct Signing {
    /// The cluster's keys.
    pub authority: Arc<Authority>,
    /// DNS names and IP addresses of the API server, which no other certificate may carry.
    pub api_names: Vec<String>,
    /// The decision of a policy on the requests of a signer; none where a person decides. Pure.
    pub decide: fn(&CertificatePolicySpec, &str) -> Option<Ruling>,
}

/// With what the cluster is published.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// The cluster's keys.
    pub authority: Arc<Authority>,
    /// The addresses at which nodes reach the masters, unless the Secret has others.
    pub endpoints: Vec<Endpoint>,
    /// The way to the discovery programs.
    pub publish: Arc<dyn Publish>,
}

/// The way to a discovery program.
pub trait Publish: Debug + Send + Sync {
    /// Sets a signed document at an address, in place of the one that is there. The error is for
    /// the ConfigMap's status and names no credential.
    fn set<'a>(
        &'a self,
        uri: &'a DiscoveryUri,
        credential: &'a str,
        document: Vec<u8>,
    ) -> BoxFuture<'a, Result<(), String>>;
}

/// Repairs the allocations of service addresses and node ports. They are written in one transaction
/// with their service, and node ports are not objects, so no client of the API can do it.
pub trait Allocations: Debug + Send + Sync {
    /// Repairs what it can, and returns what was wrong, to be recorded as events.
    ///
    /// # Errors
    /// The store cannot be read, or refuses a repair for another reason than a concurrent change.
    fn repair(&self) -> BoxFuture<'_, Result<Vec<ObjectEvent>, ApiError>>;
}
