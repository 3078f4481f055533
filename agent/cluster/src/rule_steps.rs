//! nftables expressions that several chains of [`crate::rules`] share (pure).

use crate::rules::{LINKS, TUNNEL};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Step, Verdict, name_key};

/// Offsets in headers, and protocol numbers (RFC 768, RFC 792, RFC 4443, RFC 9293).
pub(crate) const SOURCE_PORT: u32 = 0;
pub(crate) const DESTINATION_PORT: u32 = 2;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP_V6: u8 = 58;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// The first bytes of an ICMP error "packet too large": type and code for IPv4 (RFC 1191), the type
/// alone for IPv6, where the code does not matter (RFC 4443, section 3.2).
pub(crate) const TOO_LARGE: &[u8] = &[3, 4];
pub(crate) const TOO_LARGE_V6: &[u8] = &[2];
const DNS_PORT: u16 = 53;
const DHCP_SERVER_PORT: u16 = 67;
/// The machine's loopback link.
pub(crate) const OWN_LINK: &str = "lo";

/// The network mask of a prefix length.
pub(crate) fn mask(family: Family, prefix: u8) -> Vec<u8> {
    let host = family.bits().saturating_sub(prefix);
    let bits = u128::MAX.checked_shl(host.into()).unwrap_or(0);
    match family {
        Family::V4 => bits
            .to_be_bytes()
            .last_chunk::<4>()
            .map_or(vec![], |last| last.to_vec()),
        Family::V6 => bits.to_be_bytes().to_vec(),
    }
}

/// Matches packets that a pod sends: from a pod's veth pair.
pub(crate) fn from_a_pod() -> Vec<Step> {
    vec![Step::LoadInName(0), Step::Is(0, LINKS.as_bytes().to_vec())]
}

/// Matches packets to a pod: into a pod's veth pair.
pub(crate) fn to_a_pod() -> Vec<Step> {
    vec![Step::LoadOutName(0), Step::Is(0, LINKS.as_bytes().to_vec())]
}

/// Matches packets of `protocol` whose port at `offset` is that of DNS.
pub(crate) fn of_names(protocol: u8, offset: u32) -> Vec<Step> {
    at_port(protocol, offset, DNS_PORT)
}

/// Matches packets to a DHCP server.
pub(crate) fn to_a_dhcp_server() -> Vec<Step> {
    at_port(UDP, DESTINATION_PORT, DHCP_SERVER_PORT)
}

/// Matches packets of `protocol` with this port at `offset`.
fn at_port(protocol: u8, offset: u32, port: u16) -> Vec<Step> {
    vec![
        Step::LoadProtocol(0),
        Step::Is(0, vec![protocol]),
        Step::LoadTransport {
            offset,
            length: 2,
            to: 0,
        },
        Step::Is(0, port.to_be_bytes().to_vec()),
    ]
}

/// Counts a packet and applies the verdict.
pub(crate) fn end(verdict: Verdict) -> Vec<Step> {
    vec![Step::Count, Step::Verdict(verdict)]
}

/// Matches packets whose loaded link name is one of the tunnel's.
pub(crate) fn of_tunnel(load: Step) -> Vec<Step> {
    vec![load, Step::Is(0, TUNNEL.as_bytes().to_vec())]
}

/// Matches packets whose loaded link name is not one of the tunnel's.
pub(crate) fn not_of_tunnel(load: Step) -> Vec<Step> {
    vec![load, Step::IsNot(0, TUNNEL.as_bytes().to_vec())]
}

/// Matches packets that come in by another link than this.
pub(crate) fn not_by(link: &str) -> Vec<Step> {
    vec![Step::LoadInName(0), Step::IsNot(0, name_key(link).to_vec())]
}

/// Matches packets for which one of these bits of the loaded register is set.
pub(crate) fn has(load: Step, bits: u32) -> Vec<Step> {
    let mask = bits.to_ne_bytes().to_vec();
    vec![load, Step::Mask { of: 0, mask }, Step::IsNot(0, vec![0; 4])]
}

/// Matches packets that neither this machine nor its pods sent.
pub(crate) fn elsewhere() -> Vec<Step> {
    let no_pod = vec![
        Step::LoadInName(0),
        Step::IsNot(0, LINKS.as_bytes().to_vec()),
    ];
    [no_pod, not_by(OWN_LINK)].concat()
}
