//! Addresses outside of the cluster that only the machine may call: metadata services of clouds,
//! which hand out its identity and user-data, and other services that trust every client that
//! reaches them.
//!
//! No pod reaches them, and the agent calls none of them for a registry or an image.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses that only the machine may call, except for DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineOnly {
    /// Its first address.
    pub address: IpAddr,
    /// Bits that all its addresses have in common.
    pub prefix: u8,
    /// What answers there.
    pub what: &'static str,
}

const fn v4(address: [u8; 4], prefix: u8, what: &'static str) -> MachineOnly {
    MachineOnly {
        address: IpAddr::V4(Ipv4Addr::from_bits(u32::from_be_bytes(address))),
        prefix,
        what,
    }
}

const fn v6(address: u128, prefix: u8, what: &'static str) -> MachineOnly {
    MachineOnly {
        address: IpAddr::V6(Ipv6Addr::from_bits(address)),
        prefix,
        what,
    }
}

/// All such ranges.
pub const MACHINE_ONLY: [MachineOnly; 8] = [
    v4(
        [169, 254, 0, 0],
        16,
        "link-local addresses: metadata services of clouds",
    ),
    v4([168, 63, 129, 16], 32, "the host's agent on Azure"),
    v4(
        [100, 100, 100, 200],
        32,
        "the metadata service of Alibaba Cloud",
    ),
    v4(
        [192, 0, 0, 192],
        32,
        "the metadata service of Oracle Cloud's first generation",
    ),
    v6(0xfe80 << 112, 10, "link-local addresses"),
    v6(
        0xfd00_0ec2 << 96,
        32,
        "services of EC2, of which one is for metadata",
    ),
    v6(
        0xfd20_00ce << 96 | 0x254,
        128,
        "the metadata service of Google Compute Engine",
    ),
    v6(
        0xfd00_00c1 << 96 | 0xa9fe_a9fe,
        128,
        "the metadata service of Oracle Cloud",
    ),
];

impl MachineOnly {
    fn has(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        let differ = bits(address) ^ bits(self.address);
        address.is_ipv4() == self.address.is_ipv4() && differ.leading_zeros() >= self.prefix.into()
    }
}

/// Whether only the machine may call this address.
pub fn is_machine_only(address: IpAddr) -> bool {
    MACHINE_ONLY.iter().any(|range| range.has(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_of_clouds_are_the_machines() {
        for own in [
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fe80::a9fe:a9fe",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
        ] {
            assert!(is_machine_only(own.parse().unwrap()), "{own}");
        }
        for other in [
            "169.253.0.1",
            "192.0.0.193",
            "100.100.100.201",
            "fec0::1",
            "fd00:ec3::1",
            "fd00:c1::1",
            "a9fe:a9fe::",
        ] {
            assert!(!is_machine_only(other.parse().unwrap()), "{other}");
        }
    }
}
