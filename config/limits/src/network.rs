//! Networks by their owners: an attacker has a prefix, not only one address.

use std::net::IpAddr;

/// How much of the address space counts as one owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// One host: an IPv4 address, or a /64 of IPv6, in which a host chooses its addresses itself
    /// (RFC 4291).
    Host,
    /// One customer's line: a /56 of IPv6 (RFC 6177). IPv4 lines have one address, so there is no
    /// such network.
    Site,
    /// One organization: a /24 of IPv4, a /48 of IPv6 (RFC 6177), the longest prefixes that are
    /// routed between providers.
    Block,
}

/// A network of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    width: Width,
    /// The address in its IPv6 form (IPv4 as `::ffff:a.b.c.d`), what is beyond the prefix zero.
    bits: u128,
}

impl Network {
    /// How wide it is.
    pub fn width(&self) -> Width {
        self.width
    }
}

/// The networks that an address is in, the narrowest first. An IPv4 address in its IPv6 form is the
/// IPv4 address.
pub fn networks(address: IpAddr) -> Vec<Network> {
    let (bits, prefixes): (u128, &[(Width, u32)]) = match address.to_canonical() {
        IpAddr::V4(v4) => (
            v4.to_ipv6_mapped().to_bits(),
            &[(Width::Host, 128), (Width::Block, 120)],
        ),
        IpAddr::V6(v6) => (
            v6.to_bits(),
            &[(Width::Host, 64), (Width::Site, 56), (Width::Block, 48)],
        ),
    };
    let cut = |prefix: u32| bits & (u128::MAX << (128 - prefix));
    prefixes
        .iter()
        .map(|(width, prefix)| Network {
            width: *width,
            bits: cut(*prefix),
        })
        .collect()
}

/// A host as a name: an IPv4 address, or a /64 of IPv6, in which a host chooses its addresses
/// itself.
pub fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(one: &str, other: &str) -> Vec<Width> {
        let (one, other) = (
            networks(one.parse().unwrap()),
            networks(other.parse().unwrap()),
        );
        one.iter()
            .filter(|network| other.contains(network))
            .map(Network::width)
            .collect()
    }

    #[test]
    fn an_owner_of_addresses_counts_as_one() {
        use Width::{Block, Host, Site};
        assert_eq!(
            shared("2001:db8:1:2::1", "2001:db8:1:2:ffff::2"),
            [Host, Site, Block]
        );
        assert_eq!(shared("2001:db8:1:2::1", "2001:db8:1:3::1"), [Site, Block]);
        assert_eq!(shared("2001:db8:1:2::1", "2001:db8:1:100::1"), [Block]);
        assert_eq!(shared("2001:db8:1::1", "2001:db8:2::1"), []);
        assert_eq!(shared("192.0.2.1", "::ffff:192.0.2.1"), [Host, Block]);
        assert_eq!(shared("192.0.2.1", "192.0.2.2"), [Block]);
        assert_eq!(shared("192.0.2.1", "192.0.3.1"), []);
    }
}
