//! Tunnels into pods: a client's upgraded connection on one side, a process of a container or
//! programs' ports on the other.
//!
//! Enter by [`Tunnels`]: it judges a request, and answers with a [`Tunnel`], whose head is sent to
//! the client and whose work is then run, by the task that served the request; or with a
//! [`TunnelRefusal`]. The protocol inside is that of `config/tunnel`: a WebSocket, or SPDY as older
//! clients ask for it. Either way the rest is the same code, except for ports over a WebSocket
//! without SPDY (`channels`).
//!
//! [`Tunnels::reach`] is the way of the API's proxy, on which the master speaks HTTP itself.
//!
//! Bounds: a number of concurrent tunnels ([`Tunnels::new`]); of each, one buffer from the client
//! and one to it. A client that does not read stops the process's output, and a process that does
//! not read stops the client. A client that went is found by pings, which its machine answers or
//! its connection fails on; its process is killed then, and its connections end.

mod attach;
mod channels;
mod client;
mod connections;
mod dial;
mod exec;
mod forward;
mod handshake;
mod link;
mod query;
mod reach;
mod relay;
mod running;

pub use dial::ForwardTarget;
pub use handshake::TunnelRefusal;
pub use reach::Reach;
pub use running::running;

use config_errors::chain;
use handshake::Offer;
use http::{Request, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tunnels of a node at once: as many as the master opens to one node. Each has up to three pipes,
/// whose buffers are the kernel's (64 KiB), and some 100 KiB here.
pub const MOST: usize = 160;
/// Connections to ports of pods at once, of all tunnels. Each has a socket and, while its program
/// does not read, some bytes here.
const MOST_CONNECTIONS: usize = 1024;

/// Connections of the API's proxy to pods at once: as many as the master opens to one node.
const MOST_PROXIED: usize = 128;

/// What a tunnel does once its client was answered.
pub type TunnelTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A tunnel that is granted.
pub struct Tunnel {
    /// The answer's head: 101, and what was agreed on.
    pub head: Response<()>,
    /// The future that serves the tunnel; dropping it ends the tunnel.
    pub work: TunnelTask,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

/// The tunnels of one node.
#[derive(Debug, Clone)]
pub struct Tunnels {
    permits: Arc<Semaphore>,
    /// Permits for connections to ports, of all tunnels.
    connections: Arc<Semaphore>,
    /// Permits for connections of the API's proxy, beside those of tunnels.
    proxied: Arc<Semaphore>,
}

impl Tunnels {
    /// Room for `most` tunnels at once.
    pub fn new(most: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(most)),
            connections: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            proxied: Arc::new(Semaphore::new(MOST_PROXIED)),
        }
    }

    /// A tunnel for a client that `protocol` was agreed on with: `work` gets its connection, once
    /// it is no HTTP any more. `to` is what the tunnel leads to, for the log.
    fn agreed<B, W>(
        &self,
        request: &mut Request<B>,
        offer: &Offer,
        protocol: &'static str,
        to: String,
        work: impl FnOnce(TokioIo<Upgraded>) -> W + Send + 'static,
    ) -> Result<Tunnel, TunnelRefusal>
    where
        W: Future<Output = io::Result<()>> + Send,
    {
        let permit = self.permit()?;
        let upgrade = hyper::upgrade::on(request);
        let work = Box::pin(async move {
            let _permit = permit;
            let Ok(stream) = upgrade.await else {
                tracing::debug!(
                    to,
                    protocol,
                    "the client closed the connection before the upgrade"
                );
                return;
            };
            if let Err(error) = work(TokioIo::new(stream)).await {
                tracing::debug!(
                    to,
                    protocol,
                    error = chain(&error),
                    "streaming connection failed"
                );
            }
        });
        let head = offer.agree(protocol);
        Ok(Tunnel { head, work })
    }

    /// A permit for one more.
    fn permit(&self) -> Result<OwnedSemaphorePermit, TunnelRefusal> {
        self.permits
            .clone()
            .try_acquire_owned()
            .map_err(|_full| TunnelRefusal::too_many())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::{Containerd, Options, Registries};
    use http::{Request, StatusCode};

    #[tokio::test]
    async fn a_node_has_so_many_tunnels_at_once_and_no_more() {
        let dir = std::env::temp_dir();
        let runtime = Arc::new(Containerd::new(Options {
            socket: dir.join("no-containerd.sock"),
            state: dir.clone(),
            fifos: dir.clone(),
            logs: dir,
            registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
            programs: None,
            archives: Vec::new(),
        }));
        let tunnels = Tunnels::new(1);
        let ask = |protocol: &str| {
            let request = Request::get("/exec/a/b/c?command=sh&output=1")
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("sec-websocket-protocol", protocol);
            tunnels.exec(
                &mut request.body(()).unwrap(),
                runtime.clone(),
                "id".to_owned(),
            )
        };
        let unknown = ask("v1.channel.k8s.io").unwrap_err();
        assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
        assert!(unknown.message.contains("unable to negotiate protocol"));
        let one = ask("v5.channel.k8s.io").unwrap();
        let second = ask("v4.channel.k8s.io").unwrap_err();
        assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
        drop(one);
        assert!(ask("v4.channel.k8s.io").is_ok(), "a permit is given back");
    }
}
