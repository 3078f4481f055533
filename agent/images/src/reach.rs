//! Where requests may go: an address that a registry names must not be one that only this machine
//! can reach.
//!
//! A registry, or anyone who may write an image's name into a pod, chooses hosts that the agent
//! then asks. Loopback, the link and the clouds' metadata services answer the machine what they
//! answer nobody else; they are asked only where the machine's own configuration names them.

use agent_confine::is_machine_only;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
