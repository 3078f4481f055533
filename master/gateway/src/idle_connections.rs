//! Connections to nodes that serve several requests, one after another: those by which the server
//! asks each node again and again.
//!
//! Guarantee: a connection is handed out only to the address for which it was opened, while its
//! [`ConnectionCheck`] has no objection. What cuts it at the moment of a verdict is the task that
//! drives it, which is the caller's. Each node has at most one, all nodes together have a limit,
//! and an unused one is dropped after a time.

use crate::answer::{Driver, NodeLimits};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use master_client::Body;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Whether a connection may be used again.
pub trait ConnectionCheck: fmt::Debug + Send + Sync {
    /// Why what the node proved when the connection began would be refused now; `None` where it
    /// would not.
    fn objection(&self) -> Option<String>;
}

/// A connection to a node, without the task that drives it.
#[derive(Debug)]
pub struct NodeConnection {
    node: String,
    /// Address and port.
    address: String,
    sender: SendRequest<Body>,
    check: Arc<dyn ConnectionCheck>,
}

impl NodeConnection {
    /// A connection to a node at `address` (address and port).
    pub fn new(
        node: String,
        address: String,
        sender: SendRequest<Body>,
        check: Arc<dyn ConnectionCheck>,
    ) -> Self {
        Self {
            node,
            address,
            sender,
            check,
        }
    }

    /// Sends a request, after the answer before it was read.
    ///
    /// # Errors
    /// The connection has ended, or what came is no answer.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// A connection that is not in use.
#[derive(Debug)]
struct Idle {
    connection: NodeConnection,
    driver: Driver,
    since: Instant,
}

#[derive(Debug)]
struct IdleTable {
    by_node: HashMap<String, Idle>,
    swept: Instant,
}

/// Connections that are not in use, one for a node.
#[derive(Debug)]
pub struct IdleConnections {
    most: usize,
    time: Duration,
    idle: Mutex<IdleTable>,
}

impl IdleConnections {
    /// None yet.
    pub fn new(limits: &NodeLimits) -> Arc<Self> {
        Arc::new(Self {
            most: limits.kept,
            time: limits.kept_idle,
            idle: Mutex::new(IdleTable {
                by_node: HashMap::new(),
                swept: Instant::now(),
            }),
        })
    }

    /// Runs on the idle connections, once those that ended or waited for too long are dropped.
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Idle>) -> T) -> T {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.swept.elapsed() >= self.time / 4 {
            idle.swept = Instant::now();
            let fresh = |idle: &Idle| {
                !idle.connection.sender.is_closed() && idle.since.elapsed() < self.time
            };
            idle.by_node.retain(|_, idle| fresh(idle));
        }
        work(&mut idle.by_node)
    }

    /// The connection to a node at an address, if it may be used again. Any other to that node is
    /// dropped.
    pub fn take(&self, node: &str, address: &str) -> Option<(NodeConnection, Driver)> {
        let Idle {
            connection, driver, ..
        } = self.with(|idle| idle.remove(node))?;
        if let Some(why) = connection.check.objection() {
            tracing::debug!(node, reason = why, "connection to node not used again");
            return None;
        }
        (connection.address == address && !connection.sender.is_closed())
            .then_some((connection, driver))
    }

    /// Keeps a connection whose last answer was read, if there is room.
    pub fn put(&self, connection: NodeConnection, driver: Driver) {
        let idle = Idle {
            driver,
            since: Instant::now(),
            connection,
        };
        // One that finds no room, or that another replaces, is dropped outside of the lock.
        let _dropped = self.with(|all| {
            if all.len() >= self.most && !all.contains_key(&idle.connection.node) {
                return Some(idle);
            }
            all.insert(idle.connection.node.clone(), idle)
        });
    }
}
