//! The kernel's table of connections: listing and deleting UDP flows, which have no end of their
//! own (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use std::cell::Cell;
use std::net::IpAddr;

use nix::libc;

use super::links::{address, octets};
use super::message::{Attributes, DUMP, Message, Part, attributes_of};
use super::{Family, Socket, Subsystem};
use crate::error::Result;

/// `NFNL_SUBSYS_CTNETLINK`, the upper byte of its messages' types, and `IPCTNL_MSG_CT_*`.
const CONNECTIONS: u16 = 1 << 8;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`, `CTA_ID`; `CTA_TUPLE_IP`, `CTA_TUPLE_PROTO`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
/// `CTA_PROTO_NUM`, `CTA_PROTO_SRC_PORT`, `CTA_PROTO_DST_PORT`.
const PROTOCOL: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// Most flows of one answer.
pub const MOST_FLOWS: usize = 16_384;
/// Bytes of `struct nfgenmsg`.
const HEADER: usize = 4;
const UDP: u8 = 17;

/// An address and a port.
pub type End = (IpAddr, u16);

/// Datagrams between two ends, as the kernel knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The address that sent first.
    pub client: End,
    /// The address that the client called.
    pub called: End,
    /// The address that answers: the same, unless the destination was changed.
    pub answers: End,
    id: Vec<u8>,
}

/// The table of connections of one network namespace.
#[derive(Debug)]
pub struct Connections(Socket);

impl Connections {
    /// Opens that of the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no netfilter sockets.
    pub fn open() -> Result<Self> {
        Socket::open(Subsystem::Netfilter).map(Self)
    }

    /// UDP flows of both families that are wanted, at most [`MOST_FLOWS`].
    ///
    /// # Errors
    /// The kernel refuses the list (without `CAP_NET_ADMIN`: `EPERM`), or sends nothing for 10 s.
    pub fn datagrams(&mut self, wanted: &dyn Fn(&Flow) -> bool) -> Result<Vec<Flow>> {
        let request = Message::new(CONNECTIONS | GET, DUMP, &header(None), Attributes::new());
        let found = Cell::new(0_usize);
        let is_wanted = |part: &Part| {
            let wanted = found.get() < MOST_FLOWS && flow(part).is_some_and(|flow| wanted(&flow));
            found.set(found.get().saturating_add(usize::from(wanted)));
            wanted
        };
        let parts = self
            .0
            .send_and_keep(&[request], "list", "connections", &is_wanted)?;
        Ok(parts.iter().filter_map(flow).collect())
    }

    /// Deletes a flow, so that the rules apply to its client's next datagram again; true if the
    /// flow existed.
    ///
    /// # Errors
    /// The kernel refuses for another reason than that the flow is gone (`ENOENT`), or does not
    /// answer within 10 s.
    pub fn delete(&mut self, flow: &Flow) -> Result<bool> {
        let ((client, from), (called, to)) = (flow.client, flow.called);
        let family = Family::of(client);
        let (source, destination) = address_attributes(family);
        let addresses = Attributes::new()
            .bytes(source, &octets(client))
            .bytes(destination, &octets(called));
        let ports = Attributes::new()
            .bytes(PROTOCOL, &[UDP])
            .bytes(SOURCE_PORT, &from.to_be_bytes())
            .bytes(DESTINATION_PORT, &to.to_be_bytes());
        let tuple = Attributes::new()
            .nest(ADDRESSES, &addresses)
            .nest(PORTS, &ports);
        let attributes = Attributes::new().nest(ORIGINAL, &tuple).bytes(ID, &flow.id);
        let request = Message::new(CONNECTIONS | DELETE, 0, &header(Some(family)), attributes);
        let request = request.answered();
        match self.0.send(&[request], "delete", "a connection") {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Without a family it is for both.
fn header(family: Option<Family>) -> [u8; HEADER] {
    [family.map_or(0, Family::number), 0, 0, 0]
}

/// The attributes of a tuple's source and destination (`CTA_IP_V4_SRC` and the next).
fn address_attributes(family: Family) -> (u16, u16) {
    match family {
        Family::V4 => (1, 2),
        Family::V6 => (3, 4),
    }
}

fn flow(part: &Part) -> Option<Flow> {
    let attributes = part.attributes(HEADER);
    let find = |kind: u16| value(&attributes, kind);
    let (client, called) = ends(find(ORIGINAL)?)?;
    let (answers, _) = ends(find(REPLY)?)?;
    Some(Flow {
        client,
        called,
        answers,
        id: find(ID)?.to_vec(),
    })
}

/// Source and destination of a tuple of UDP.
fn ends(tuple: &[u8]) -> Option<(End, End)> {
    let tuple = attributes_of(tuple);
    let addresses = attributes_of(value(&tuple, ADDRESSES)?);
    let ports = attributes_of(value(&tuple, PORTS)?);
    let both = |family: Family| {
        let (source, destination) = address_attributes(family);
        let address = |kind: u16| address(value(&addresses, kind)?);
        Some((address(source)?, address(destination)?))
    };
    let port = |kind: u16| {
        let bytes: [u8; 2] = value(&ports, kind)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    (value(&ports, PROTOCOL)? == [UDP]).then_some(())?;
    let (source, destination) = both(Family::V4).or_else(|| both(Family::V6))?;
    Some((
        (source, port(SOURCE_PORT)?),
        (destination, port(DESTINATION_PORT)?),
    ))
}

fn value<'a>(attributes: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    let mut all = attributes.iter();
    all.find(|(one, _)| *one == kind).map(|(_, value)| *value)
}
