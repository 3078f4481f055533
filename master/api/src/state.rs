//! The server's state: its parts, what is registered with it, and its limits. The path of a request
//! through it is in `server.rs`.

use crate::health::Prepared;
use crate::hooks::Hooks;
use crate::options::Options;
use master_admission::{Chain, PluginServices};
use master_auth::{Authenticator, Authorizer};
use master_gateway::{IdleConnections, NodeCalls, NodeDialer, Watches};
use master_kinds::builtin;
use master_listener::{
    BodyLimits, Denials, DenyList, Extensions, RequestSlots, StoredFlows, Writes,
};
use master_metrics::Metrics;
use master_openapi::Current;
use master_schema::registry::Registry;
use master_schema::served::Kinds;
use master_store::{Direct, Probe, Reader, Store};
use master_usage::Usage;
use master_verbs::ServerParts;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Concurrent snapshots: each keeps entries in memory that the store has since compacted.
const SNAPSHOTS: usize = 2;

#[derive(Debug)]
pub(crate) struct Inner {
    /// For writes, and for the store as a whole.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    /// For all reads.
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) documents: Current,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) admission: Chain,
    pub(crate) metrics: Metrics,
    pub(crate) request_slots: RequestSlots,
    pub(crate) flows: StoredFlows,
    pub(crate) watches: Watches,
    pub(crate) snapshots: Arc<Semaphore>,
    pub(crate) node_calls: Arc<NodeCalls>,
    pub(crate) tunnels: Arc<NodeCalls>,
    pub(crate) idle_connections: Arc<IdleConnections>,
    pub(crate) usage: Usage,
    pub(crate) prepared: Prepared,
    pub(crate) writer: Probe,
    /// Those of callers tied to a node.
    pub(crate) writes: Writes,
    pub(crate) denials: Denials,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) draining: CancellationToken,
}

/// The API server. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

impl ApiServer {
    /// A server over a store whose own memory answers reads. It is ready after
    /// [`ApiServer::prepare`].
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let reader = Arc::new(Direct::new(store.clone()));
        Self::with_reader(store, reader, options)
    }

    /// A server that writes to a store and reads it through `reader`.
    pub fn with_reader(store: Arc<dyn Store>, reader: Arc<dyn Reader>, options: Options) -> Self {
        let kinds = Arc::new(Kinds::new(builtin::registry()));
        let hooks: Arc<Hooks> = Arc::default();
        let authorizer = Arc::new(Authorizer::new(
            &options.authorization,
            reader.clone(),
            hooks.clone(),
        ));
        let parts = PluginServices {
            authorizer: authorizer.clone(),
            kinds: kinds.clone(),
            ranges: options.ranges.clone(),
            clock: options.clock.clone(),
        };
        let inner = Inner {
            store,
            documents: Current::new(kinds.clone()),
            kinds,
            authenticator: Authenticator::new(
                options.tokens.clone(),
                options.issuer.clone(),
                reader.clone(),
                hooks.clone(),
            ),
            authorizer,
            admission: Chain::new(&options.admission, &parts),
            reader,
            metrics: Metrics::default(),
            request_slots: RequestSlots::new(
                options.in_flight,
                options.in_flight_mutating,
                BodyLimits {
                    each: options.body_bytes,
                    ..BodyLimits::default()
                },
            ),
            flows: StoredFlows::default(),
            watches: Watches::new(options.watches),
            snapshots: Arc::new(Semaphore::new(SNAPSHOTS)),
            node_calls: options.nodes.answers(),
            tunnels: options.nodes.tunnels(),
            idle_connections: IdleConnections::new(&options.nodes),
            usage: Usage::default(),
            options,
            prepared: Prepared::default(),
            writer: Probe::default(),
            writes: Writes::default(),
            denials: hooks.denials.clone(),
            hooks,
            draining: CancellationToken::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Registers the handler of further paths, once; returns whether it was the first.
    pub fn set_extensions(&self, extensions: Arc<dyn Extensions>) -> bool {
        self.inner.hooks.extensions.set(extensions).is_ok()
    }

    /// Registers the deny list, once; returns whether it was the first.
    pub fn set_deny_list(&self, deny_list: Arc<dyn DenyList>) -> bool {
        self.inner.denials.set(deny_list)
    }

    /// Registers the dialer for nodes, once; returns whether it was the first.
    pub fn set_node_dialer(&self, dialer: Arc<dyn NodeDialer>) -> bool {
        self.inner.hooks.node_dialer.set(dialer).is_ok()
    }

    /// The usage of nodes and pods for `metrics.k8s.io`; filled by `master/usage`.
    pub fn usage(&self) -> &Usage {
        &self.inner.usage
    }

    pub(crate) fn extensions(&self) -> Option<&dyn Extensions> {
        self.inner.hooks.extensions.get().map(|own| &**own)
    }

    /// The parts that verbs may use.
    pub(crate) fn parts(&self) -> ServerParts<'_> {
        let inner = &*self.inner;
        ServerParts {
            reader: &*inner.reader,
            store: &*inner.store,
            admission: &inner.admission,
            authenticator: &inner.authenticator,
            authorizer: &inner.authorizer,
            identities: &inner.options.identities,
            extensions: self.extensions(),
            watches: &inner.watches,
            metrics: &inner.metrics,
            usage: &inner.usage,
            node_dialer: inner.hooks.node_dialer.get().map(|own| &**own),
            node_limits: &inner.options.nodes,
            node_calls: &inner.node_calls,
            tunnels: &inner.tunnels,
            idle_connections: &inner.idle_connections,
            denials: &inner.denials,
            draining: &inner.draining,
            own: self,
        }
    }

    /// The kinds that are served at the moment.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.inner.kinds.now()
    }

    /// Ends open watches and makes `/readyz` fail. The listener calls it at shutdown.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }
}
