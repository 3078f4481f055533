//! Serves the cluster's Services on one node, by nftables. The node's DNS server (`agent_names`)
//! answers from the same view.
//!
//! Enter by [`View`]: what the node knows of services, their endpoints and nodes, filled by the
//! kubelet's watches and read by all. Three pure modules: [`fronts`] computes at which addresses
//! and ports services are called and which endpoints answer there, [`served`] which of these a
//! change moves, and [`table`] the nftables table. The table also refuses packets to addresses of
//! services' ranges that no service has. [`Proxy`] applies the difference to the kernel's table in
//! one transaction, and opens the ports at which load balancers check for endpoints on this node,
//! and whether the node serves at all.
//!
//! Tasks: [`Proxy::run`] runs until it is dropped, and waits for changes of the view and of the
//! node's addresses. [`Proxy::left_out`] is a channel with the services that are not served because
//! their namespaces exceed their share.

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

/// The port at which the node's DNS server answers for the cluster's DNS Service, besides port 53.
/// Packets of port 53 between pods and the node bypass connection tracking
/// (`agent_cluster::rules`), which the translation of a Service's address needs. Upstream's kubelet
/// uses this port on each node, so that no pod with `hostNetwork` expects it to be free.
pub const NAME_SERVER_PORT: u16 = 10_248;

/// The cluster's DNS domain.
pub const DOMAIN: &str = "cluster.local";
