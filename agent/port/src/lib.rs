//! The kubelet's port: limits of connections, serving them ([`serve`](fn@serve)), and authorization
//! of callers ([`Access`]).
//!
//! Anyone who reaches the machine can open a connection, and TLS authenticates the caller only at
//! the end of the handshake. Until then a caller is a stranger. Unauthenticated connections share a
//! fixed number of slots by network prefix: a new one is always accepted and evicts an older one,
//! of the same network if that has its share, else of the network that has most. A caller with the
//! master's certificate frees its slot there and takes one of the master's own.

mod access;
mod caller;
mod needed_right;
mod serve;

pub use access::{Access, Denied, GRANTED, REFUSED, Reviews, Unreviewed};
pub use caller::{Caller, ClusterUser};
pub use needed_right::NeededRight;
pub use serve::{Body, Reply, RequestHandler, Work, answer, serve, text};

use config_limits::{Network, SlotId, SlotTable, Width, networks};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Limits of the port.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Concurrent connections of callers without the master's certificate.
    pub strangers: usize,
    /// Of these, those of one host (an IPv4 address, a /64 of IPv6).
    pub per_host: usize,
    /// Of these, those of one site or block (a /56 or /48 of IPv6, a /24 of IPv4).
    pub per_block: usize,
    /// Concurrent connections of the master: a followed log holds one, and so does a tunnel. The
    /// master opens at most 128 and 160 of these to one node for its callers, and some of its own.
    pub master: usize,
    /// Longest time for a TLS handshake, and for the head of a request.
    pub patience: Duration,
    /// How long the master's connection may be without a request: it asks for figures once a
    /// minute.
    pub kept: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            strangers: 256,
            per_host: 32,
            per_block: 128,
            master: 352,
            patience: Duration::from_secs(10),
            kept: Duration::from_secs(180),
        }
    }
}

/// The slots of the strangers.
#[derive(Debug, Clone)]
pub struct StrangerSlots {
    limits: Limits,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug)]
struct Open {
    slots: SlotTable<Network>,
    tasks: HashMap<SlotId, AbortHandle>,
    next: SlotId,
}

/// One connection's slot, freed when it is dropped.
#[derive(Debug)]
pub struct StrangerSlot(Arc<Mutex<Open>>, SlotId);

impl StrangerSlots {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let open = Open {
            slots: SlotTable::new(limits.strangers),
            tasks: HashMap::new(),
            next: 0,
        };
        Self {
            limits,
            open: Arc::new(Mutex::new(open)),
        }
    }

    /// Gives a new connection a slot, and spawns its task. The evicted connection is cut.
    pub fn admit<W>(
        &self,
        from: IpAddr,
        tasks: &mut JoinSet<()>,
        work: impl FnOnce(StrangerSlot) -> W,
    ) where
        W: Future<Output = ()> + Send + 'static,
    {
        let most = |network: &Network| match network.width() {
            Width::Host => self.limits.per_host,
            Width::Site | Width::Block => self.limits.per_block,
        };
        let groups: Vec<_> = networks(from)
            .into_iter()
            .map(|network| (network, most(&network)))
            .collect();
        // The lock is held until here, so that a task that ends at once finds its handle to remove.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let id = open.next;
        open.next += 1;
        let out = open.slots.enter(id, &groups);
        if let Some(task) = out.and_then(|out| open.tasks.remove(&out)) {
            task.abort();
        }
        let task = tasks.spawn(work(StrangerSlot(Arc::clone(&self.open), id)));
        open.tasks.insert(id, task);
    }
}

impl Drop for StrangerSlot {
    fn drop(&mut self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.slots.leave(self.1);
        open.tasks.remove(&self.1);
    }
}
