//! Services of the cluster on one node: what the packet filter holds for them, and the names by
//! which pods find them.
//!
//! Enter by [`View`]: what the node knows of services, their endpoints and nodes, filled by the
//! kubelet's watches and read by all. [`fronts`] says where services are called and who answers
//! there, [`served`] which of these a change moves, and [`table`] what the packet filter should
//! hold for them (all pure). [`Proxy`] applies the difference to what it holds, in one transaction,
//! and opens the ports at which load balancers ask for endpoints of this node, and whether it
//! serves at all. [`dns`] answers names from the same view.
//!
//! Tasks: [`Proxy::run`] and [`dns::serve`] run until they are dropped. They wait for the view to
//! change. [`Proxy::left_out`] tells which services namespaces have too many of; there are no other
//! channels.

mod budget;
mod candidates;
pub mod dns;
mod earlier;
pub mod fronts;
mod health;
mod left_out;
pub mod notices;
mod proxy;
pub mod served;
mod status;
pub mod table;
mod view;

pub use fronts::MACHINE_PORTS;
pub use left_out::LeftOut;
pub use proxy::{Proxy, Rules};
pub use status::{HEALTH_PORT, STATUS_PORT};
pub use view::{
    Endpoint, Hints, HostPort, Key, Known, Node, Objects, Port, Protocol, Service, Slice,
    SlicePort, View, Whole,
};

/// The domain below which the cluster's names are.
pub const DOMAIN: &str = "cluster.local";
