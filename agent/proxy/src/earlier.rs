//! Reads the UDP fronts from the table that an earlier agent left in the kernel: nothing else knows
//! of services that were deleted while no agent ran.

use crate::fronts::{Front, Fronts, Pick};
use crate::table::{FRONTS, FRONTS_OF_PODS, TABLE};
use crate::view::Protocol;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::Filter;
use std::net::IpAddr;

/// The UDP fronts in the table of a family, without their endpoints.
///
/// # Errors
/// The kernel refuses a netlink socket, or to list a map. A missing table or map is no error: it
/// has no fronts.
pub(crate) fn datagrams(family: Family) -> Result<Fronts, agent_sys::Error> {
    let mut filter = Filter::open(family)?;
    let mut all = Fronts::new();
    for map in [FRONTS, FRONTS_OF_PODS] {
        let keys = filter.keys(TABLE, map, &|key| datagram_front(key).is_some())?;
        let fronts = keys.iter().filter_map(|key| datagram_front(key));
        all.extend(fronts.map(|front| (front, Pick::default())));
    }
    Ok(all)
}

/// The front of a key ([`crate::table::front_key`]), if its protocol is UDP.
fn datagram_front(key: &[u8]) -> Option<Front> {
    let (rest, port) = key.split_last_chunk::<4>()?;
    let (address, protocol) = rest.split_last_chunk::<4>()?;
    let address: IpAddr = match *address {
        [a, b, c, d] => [a, b, c, d].into(),
        _ => <[u8; 16]>::try_from(address).ok()?.into(),
    };
    let [number, ..] = protocol;
    let [high, low, ..] = port;
    (*number == Protocol::Udp.number()).then_some(Front {
        address,
        protocol: Protocol::Udp,
        port: u16::from_be_bytes([*high, *low]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::front_key;

    #[test]
    fn a_key_is_read_back_as_the_front_that_it_was_made_of() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let front = |protocol| Front {
                address: address.parse().unwrap(),
                protocol,
                port: 30_053,
            };
            let read = |protocol| datagram_front(&front_key(front(protocol)));
            assert_eq!(read(Protocol::Udp), Some(front(Protocol::Udp)));
            assert_eq!(read(Protocol::Tcp), None);
        }
        for other in [0, 3, 4, 8, 11, 13, 23, 25] {
            assert_eq!(datagram_front(&vec![17; other]), None, "{other}");
        }
    }
}
