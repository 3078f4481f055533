//! What the packet filter holds of an earlier agent, as far as datagrams go: services that went
//! while no agent ran are known from nowhere else.

use crate::fronts::{Front, Fronts, Pick};
use crate::table::{FRONTS, FRONTS_OF_PODS, TABLE};
use crate::view::Protocol;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::Filter;
use std::net::IpAddr;

/// The fronts of datagrams in the table of a family; where they lead is not looked at.
///
/// # Errors
/// The kernel refuses the packet filter's socket, or to list a map. A table or a map that is not
/// there has no fronts.
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

/// The front of a key ([`crate::table::front_key`]), if it is one of datagrams.
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
