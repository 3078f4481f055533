//! Cluster services and DNS, served on this node once it has a range of pod addresses.

use crate::tunnel::Tunnel;
use agent_api::Api;
use agent_api::events::{self, Recorder, SERVICE_PROXY};
use agent_cluster::Sandboxes;
use agent_names::{Settings, serve};
use agent_proxy::{Proxy, View, notices};
use config_errors::chain;
use config_model::stub_domain::StubDomain;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Poll interval for the node's pod CIDRs, and retry delay of DNS.
const POLL: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(5);

/// Runs the service proxy and cluster DNS.
pub(crate) struct Services {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) proxy: Proxy,
    pub(crate) view: View,
    /// The machine's addresses.
    pub(crate) addresses: watch::Receiver<Vec<IpAddr>>,
    pub(crate) resolv_conf: PathBuf,
    pub(crate) stub_domains: Vec<StubDomain>,
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
        let addresses: Vec<IpAddr> = own.iter().map(|(address, _)| *address).collect();
        self.view.change(
            |known| known.name_servers != addresses,
            |known| known.name_servers.clone_from(&addresses),
        );
        let settings = Settings {
            addresses,
            clients: own.iter().map(|(_, range)| *range).collect(),
            own: self.addresses,
            resolv_conf: self.resolv_conf,
            stub_domains: self.stub_domains,
        };
        let tunnel = async {
            if let Some(tunnel) = self.tunnel {
                tunnel.run().await;
            }
        };
        let (recorder, queue) = Recorder::of_component(SERVICE_PROXY);
        let view = self.view.clone();
        let telling = notices::tell(self.proxy.left_out(), view, recorder, self.node.clone());
        let writing = events::write(queue, self.api, self.node);
        // Each of them ends only by a failure.
        tokio::join!(
            self.proxy.run(),
            answer_names(settings, self.view),
            tunnel,
            telling,
            writing
        );
        "services"
    }
}

async fn answer_names(settings: Settings, view: View) {
    loop {
        if let Err(error) = serve(settings.clone(), view.clone()).await {
            tracing::error!(
                error = chain(&error),
                "cannot serve cluster DNS; trying again"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}
