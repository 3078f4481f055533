//! Addresses outside of the cluster that are the machine's: metadata services of clouds, which hand
//! out its identity and user-data.

use agent_sys::netlink::Family;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses outside of the cluster that only the machine itself may reach. Pods may send them DNS
/// questions and nothing else.
const MACHINE_ONLY: [(Ipv4Addr, u8, &str); 3] = [
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        "link-local addresses: metadata services of clouds",
    ),
    (
        Ipv4Addr::new(168, 63, 129, 16),
        32,
        "the host's agent on Azure",
    ),
    (
        Ipv4Addr::new(100, 100, 100, 200),
        32,
        "the metadata service of Alibaba Cloud",
    ),
];
/// The same of IPv6; those of [`MACHINE_ONLY`] behind a translator's prefix ([`TRANSLATED`]) belong
/// to them.
const MACHINE_ONLY_V6: [(Ipv6Addr, u8, &str); 3] = [
    (
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
        10,
        "link-local addresses",
    ),
    (
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0),
        32,
        "services of EC2, of which one is for metadata",
    ),
    (
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        128,
        "the metadata service of Google Compute Engine",
    ),
];
/// The prefix by which a translator leads to addresses of IPv4 (RFC 6052, section 2.1): they are
/// the last 32 bits.
const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

/// The ranges of addresses that only the machine may ask.
pub(crate) fn machine_only(family: Family) -> Vec<(IpAddr, u8)> {
    let v4 = MACHINE_ONLY.iter();
    match family {
        Family::V4 => v4.map(|(at, prefix, _)| ((*at).into(), *prefix)).collect(),
        Family::V6 => {
            let translated = v4.map(|(at, prefix, _)| {
                let at = u128::from(TRANSLATED) | u128::from(u32::from(*at));
                (Ipv6Addr::from(at).into(), 96 + prefix)
            });
            let own = MACHINE_ONLY_V6.iter();
            let own = own.map(|(at, prefix, _)| ((*at).into(), *prefix));
            own.chain(translated).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_model::format::Cidr;

    #[test]
    fn metadata_services_are_the_machines_in_both_families() {
        let is_in = |text: &str| {
            let at: IpAddr = text.parse().unwrap();
            let mut ranges = machine_only(Family::of(at)).into_iter();
            ranges.any(|(address, prefix)| Cidr { address, prefix }.contains(at))
        };
        for own in [
            "169.254.169.254",
            "fe80::a9fe:a9fe",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::168.63.129.16",
        ] {
            assert!(is_in(own), "{own}");
        }
        for other in [
            "169.253.0.1",
            "fec0::1",
            "fd00:ec3::1",
            "64:ff9b::192.0.2.1",
        ] {
            assert!(!is_in(other), "{other}");
        }
    }
}
