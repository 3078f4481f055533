//! Services of the cluster on one node: what the packet filter holds for them. The names by which
//! pods find them are answered from the same view (`agent_names`).
//!
//! Enter by [`View`]: what the node knows of services, their endpoints and nodes, filled by the
//! kubelet's watches and read by all. [`fronts`] says where services are called and who answers
//! there, [`served`] which of these a change moves, and [`table`] what the packet filter should
//! hold for them; what is for an address of services and is led nowhere is refused (all pure).
//! [`Proxy`] applies the difference to what it holds, in one transaction, and opens the ports at
//! which load balancers ask for endpoints of this node, and whether it serves at all.
//!
//! Tasks: [`Proxy::run`] runs until it is dropped. It waits for the view to change.
//! [`Proxy::left_out`] tells which services namespaces have too many of; there are no other
//! channels.

mod budget;
mod candidates;
mod earlier;
pub mod fronts;
mod health;
mod left_out;
pub mod notices;
mod picking;
mod proxy;
mod ranges;
pub mod served;
mod status;
pub mod table;
mod view;

pub use budget::is_everyones;
pub use fronts::MACHINE_PORTS;
pub use left_out::LeftOut;
pub use proxy::{Proxy, Rules};
pub use status::{HEALTH_PORT, STATUS_PORT};
pub use view::{
    Endpoint, Hints, HostPort, Key, Known, Node, Objects, Port, Protocol, Service, ServiceRange,
    Slice, SlicePort, View, Whole,
};

/// Where the node's name server answers for the cluster's service for names, beside the port of
/// DNS: the packet filter forgets what comes from that to pods, so that what answers for a service
/// needs another. Upstream's kubelet has this port on each node, so that no pod on the machine's
/// network expects it to be free.
pub const NAME_SERVER_PORT: u16 = 10_248;

/// The domain below which the cluster's names are.
pub const DOMAIN: &str = "cluster.local";
