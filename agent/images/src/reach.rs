//! Where requests may go: an address that a registry names must not be one that only this machine
//! can reach.
//!
//! A registry, or anyone who may write an image's name into a pod, chooses hosts that the agent
//! then asks. Loopback, the link and the clouds' metadata services answer the machine what they
//! answer nobody else; they are asked only where the machine's own configuration names them. A
//! registry that leads to pods and Services would have the machine scan their ports, past network
//! policies: those are asked where an image's name or the configuration names them.

use agent_confine::is_machine_only;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Tells which addresses are those of pods and Services, as far as the cluster is known at that
/// moment; by default none.
#[derive(Clone)]
pub struct ClusterAddresses(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl ClusterAddresses {
    /// Those for which `is_inside` is true.
    pub fn new(is_inside: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_inside))
    }

    /// Whether an address leads to a pod or a Service.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let inner = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => embedded(address),
        };
        (self.0)(inner.map_or(address, IpAddr::V4))
    }
}

impl Default for ClusterAddresses {
    fn default() -> Self {
        Self::new(|_| false)
    }
}

impl fmt::Debug for ClusterAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAddresses").finish_non_exhaustive()
    }
}

/// Whether an address means this machine, its link or its cloud's services.
pub(crate) fn is_own(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => own_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => own_v4(inner),
            None => {
                address.is_loopback()
                    || address.is_unspecified()
                    || address.is_multicast()
                    || is_machine_only(address.into())
            }
        },
    }
}

fn own_v4(address: Ipv4Addr) -> bool {
    address.is_loopback()
        || address.octets()[0] == 0
        || address.is_broadcast()
        || address.is_multicast()
        || is_machine_only(address.into())
}

/// The IPv4 address in an IPv6 one that leads to it: mapped (RFC 4291, 2.5.5.2), or translated by
/// the well-known prefix (RFC 6052, 2.1) or by 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let v4 =
        |at: usize| Ipv4Addr::from((u32::from(segments[at]) << 16) | u32::from(segments[at + 1]));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(v4(6)),
        [0x2002, ..] => Some(v4(1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_pod_is_known_however_it_is_written() {
        let pod: IpAddr = [10, 244, 1, 5].into();
        let cluster = ClusterAddresses::new(move |address| address == pod);
        for text in ["10.244.1.5", "::ffff:10.244.1.5", "64:ff9b::10.244.1.5"] {
            assert!(cluster.has(text.parse().unwrap()), "{text}");
        }
        assert!(!cluster.has([10, 244, 1, 6].into()));
        assert!(!ClusterAddresses::default().has(pod));
    }

    #[test]
    fn addresses_that_only_the_machine_reaches_are_its_own() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.0.1",
            "255.255.255.255",
            "224.0.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(is_own(text.parse().unwrap()), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "100.100.100.201",
            "93.184.215.14",
            "fd00::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_own(text.parse().unwrap()), "{text}");
        }
    }
}
