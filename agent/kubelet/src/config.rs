//! The kubelet's settings.

use agent_launch::Machine;
use agent_pressure::{Notices, Thresholds};
use agent_proxy::View;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_model::ShutdownGrace;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;

/// Port of the kubelet's API (upstream's).
pub const PORT: u16 = 10250;
/// Most pods on a node, unless configured (upstream's default).
pub const DEFAULT_MAX_PODS: u32 = 110;

/// Longest time between two steps of a pod's task; volumes and their tokens are refreshed then.
pub(crate) const RESYNC: Duration = Duration::from_secs(60);

/// The kubelet's settings; no defaults that depend on the machine are taken here.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the Node, from the certificate.
    pub node_name: String,
    /// The machine's present addresses, the most important first; the first is `status.hostIP` of
    /// pods.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// Port of the kubelet's API as reported to the master.
    pub port: u16,
    /// Folders of pods, and what pods may use of the machine.
    pub machine: Machine,
    /// Most images that are pulled at the same time.
    pub parallel_pulls: u32,
    /// Whether the machine serves only this node: then the control group of all pods has limits
    /// (`capacity`).
    pub owns_machine: bool,
    /// Most pods.
    pub max_pods: u32,
    /// Memory kept from pods, in bytes.
    pub reserved_memory: u64,
    /// CPU kept from pods, in thousandths.
    pub reserved_cpu_millis: u64,
    /// Disk of the state partition kept from pods, in bytes.
    pub reserved_storage: u64,
    /// The thresholds of eviction.
    pub thresholds: Thresholds,
    /// Time for pods to end when the machine ends, by their priority.
    pub shutdown: ShutdownGrace,
    /// `status.nodeInfo.osImage`, such as `Pratique worker 0.1.0 (id)`.
    pub os_image: String,
    /// Conditions of the Node that other parts of the agent set.
    pub notices: Notices,
    /// The node's view of services and nodes: the kubelet fills it, and pods' environment variables
    /// and DNS answers come from it. `None` if this node serves no DNS.
    pub cluster: Option<View>,
    /// Static pods, from the machine's configuration ([`config_static_pods::read`]).
    pub static_pods: Vec<Pod>,
    /// Whether routes lead to other nodes' pods over the machine's L2 segment, unencrypted.
    pub pod_routes: bool,
}

impl Config {
    /// Whether a pod of this UID comes from the machine's configuration, and not from the master.
    pub(crate) fn is_static(&self, uid: &str) -> bool {
        let mut all = self.static_pods.iter();
        all.any(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use config_model::host_path::HostPath;
    use std::path::Path;
    use std::time::Duration;

    /// A configuration whose folders all lie in `dir`.
    pub(crate) fn config(dir: &Path) -> Config {
        let path = |path: &str, writable| HostPath {
            path: path.parse().unwrap(),
            writable,
        };
        Config {
            node_name: "node".into(),
            addresses: watch::channel(Vec::new()).1,
            port: PORT,
            machine: Machine {
                data: dir.join("data"),
                run: dir.join("run"),
                logs: dir.join("logs"),
                host_paths: vec![path("/listed/read", false), path("/listed/write", true)],
                privileged: false,
                pids: 100,
                unsafe_sysctls: Vec::new(),
                resolv_conf: dir.join("resolv"),
                hosts: dir.join("hosts"),
            },
            parallel_pulls: 5,
            owns_machine: false,
            max_pods: 10,
            reserved_memory: 0,
            reserved_cpu_millis: 0,
            reserved_storage: 0,
            thresholds: Thresholds::default(),
            shutdown: ShutdownGrace::of(Duration::from_secs(50), Duration::from_secs(10)),
            os_image: "test".into(),
            notices: Notices::default(),
            cluster: None,
            static_pods: Vec::new(),
            pod_routes: false,
        }
    }
}
