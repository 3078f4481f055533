//! Cluster services on this node: the service proxy, and the addresses of cluster DNS. Both begin
//! once the node has a range of pod addresses.

use crate::tunnel::Tunnel;
use agent_api::Api;
use agent_api::events::{self, Recorder, SERVICE_PROXY};
use agent_cluster::Sandboxes;
use agent_names::{Names, OwnAddress};
use agent_proxy::{Proxy, notices};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Poll interval for the node's pod CIDRs.
const POLL: Duration = Duration::from_millis(500);

/// Runs the service proxy, and tells cluster DNS where it answers.
pub(crate) struct Services {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) proxy: Proxy,
    pub(crate) names: Arc<Names>,
    /// The machine's addresses.
    pub(crate) addresses: watch::Receiver<Vec<IpAddr>>,
    /// The node's name, and where events of Services are written.
    pub(crate) node: String,
    pub(crate) api: Arc<dyn Api>,
    /// The WireGuard overlay, if `pod_routes = "wireguard"`.
    pub(crate) tunnel: Option<Tunnel>,
}

impl Services {
    /// Serves until it is dropped. A node without a range of pod addresses has no pods that need
    /// it, and its packet filter is left alone.
    pub(crate) async fn run(self) -> &'static str {
        let own = loop {
            let own = self.sandboxes.own_addresses();
            if !own.is_empty() {
                break own;
            }
            tokio::time::sleep(POLL).await;
        };
        let own = own.into_iter();
        let own = own.map(|(address, range)| OwnAddress { address, range });
        let own: Vec<OwnAddress> = own.collect();
        let addresses: Vec<IpAddr> = own.iter().map(|own| own.address).collect();
        let view = self.names.view();
        view.change(
            |known| known.name_servers != addresses,
            |known| known.name_servers.clone_from(&addresses),
        );
        self.names.serve_at(&own);
        let tunnel = async {
            if let Some(tunnel) = self.tunnel {
                tunnel.run().await;
            }
        };
        let following = self.names.follow(self.addresses);
        let (recorder, queue) = Recorder::of_component(SERVICE_PROXY);
        let telling = notices::tell(self.proxy.left_out(), view, recorder, self.node.clone());
        let writing = events::write(queue, self.api, self.node);
        // Each of them ends only by a failure.
        tokio::join!(self.proxy.run(), following, tunnel, telling, writing);
        "services"
    }
}
