//! Configured ranges of service addresses and node ports.

use master_schema::validate::net::Range;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

/// The ranges that services get addresses and ports from, and the addresses of the API itself.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// Ranges of cluster IPs: one, or one per family; the first is the primary family's.
    pub services: Vec<Range>,
    /// Node ports.
    pub node_ports: RangeInclusive<u16>,
    /// The addresses of this server, as clients inside the cluster reach them.
    pub advertise: Vec<SocketAddr>,
}

impl Default for Ranges {
    fn default() -> Self {
        let services = Range::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 0)), 12)
            .into_iter()
            .collect();
        Self {
            services,
            node_ports: 30000..=32767,
            advertise: Vec::new(),
        }
    }
}
