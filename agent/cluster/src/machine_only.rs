//! The addresses that the machine may call and pods may not, by family: its loopback addresses, and
//! those of cloud metadata services and other link-local ones ([`MACHINE_ONLY`]).

use crate::address::{edges, of_number};
use agent_confine::MACHINE_ONLY;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::AddressRange;
use config_model::format::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The NAT64 prefix (RFC 6052, section 2.1): the last 32 bits are the IPv4 address.
const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

/// The ranges of addresses that only the machine may call.
pub(crate) fn machine_only(family: Family) -> Vec<Cidr> {
    let of_family = MACHINE_ONLY
        .iter()
        .filter_map(|range| match (range.address, family) {
            (IpAddr::V4(address), Family::V6) => {
                let translated = u128::from(TRANSLATED) | u128::from(u32::from(address));
                Some(Cidr {
                    address: Ipv6Addr::from(translated).into(),
                    prefix: 96 + range.prefix,
                })
            }
            (IpAddr::V6(_), Family::V4) => None,
            (IpAddr::V4(_), Family::V4) | (IpAddr::V6(_), Family::V6) => Some(Cidr {
                address: range.address,
                prefix: range.prefix,
            }),
        });
    of_family.collect()
}

/// The machine's loopback addresses.
pub(crate) fn loopback(family: Family) -> Cidr {
    let (address, prefix) = match family {
        Family::V4 => (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        Family::V6 => (Ipv6Addr::LOCALHOST.into(), 128),
    };
    Cidr { address, prefix }
}

/// The addresses that only the machine may call, and its loopback addresses, in order.
pub(crate) fn machines(family: Family) -> Vec<AddressRange> {
    let all = machine_only(family).into_iter().chain([loopback(family)]);
    let mut all: Vec<(u128, u128)> = all.map(|range| edges(&range)).collect();
    all.sort_unstable();
    let address = |number| of_number(number, family == Family::V4);
    let all = all.into_iter();
    all.map(|(first, last)| AddressRange {
        first: address(first),
        last: address(last),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_the_machines_in_both_families() {
        let is_in = |text: &str| {
            let at: IpAddr = text.parse().unwrap();
            let mut ranges = machine_only(Family::of(at)).into_iter();
            ranges.any(|range| range.contains(at))
        };
        for own in [
            "169.254.169.254",
            "fe80::a9fe:a9fe",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "192.0.0.192",
            "fd00:c1::a9fe:a9fe",
            "64:ff9b::192.0.0.192",
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
