//! Addresses outside of the cluster that are the machine's ([`MACHINE_ONLY`]), by family.

use agent_confine::MACHINE_ONLY;
use agent_sys::netlink::Family;
use std::net::{IpAddr, Ipv6Addr};

/// The prefix by which a translator leads to addresses of IPv4 (RFC 6052, section 2.1): they are
/// the last 32 bits.
const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

/// The ranges of addresses that only the machine may ask.
pub(crate) fn machine_only(family: Family) -> Vec<(IpAddr, u8)> {
    let all = MACHINE_ONLY
        .iter()
        .map(|range| (range.address, range.prefix));
    let of_family = all.filter_map(|(address, prefix)| match (address, family) {
        (IpAddr::V4(address), Family::V6) => {
            let translated = u128::from(TRANSLATED) | u128::from(u32::from(address));
            Some((Ipv6Addr::from(translated).into(), 96 + prefix))
        }
        (IpAddr::V6(_), Family::V4) => None,
        (IpAddr::V4(_), Family::V4) | (IpAddr::V6(_), Family::V6) => Some((address, prefix)),
    });
    of_family.collect()
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
