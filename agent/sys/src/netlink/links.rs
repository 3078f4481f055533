//! Links, addresses and neighbours of one network namespace (rtnetlink(7)). Its routes are asked
//! and changed through the same socket (`routes`).

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::libc;

use super::message::{Attributes, CREATE, DUMP, EXCLUSIVE, Message, Part, REPLACE};
pub use super::routes::Route;
use super::{Family, Socket, Subsystem};
use crate::error::{Error, Result};

/// The loopback interface, in every namespace.
pub const LOOPBACK: u32 = 1;
/// Bytes of the headers of links.
const LINK_HEADER: usize = 16;
/// What a link takes of a connection at once (`IFLA_GSO_MAX_SEGS`, `IFLA_GSO_MAX_SIZE` and, since
/// Linux 6.3, `IFLA_GSO_IPV4_MAX_SIZE`; linux/if_link.h).
const BURST_PACKETS: u16 = 40;
const BURST_BYTES: u16 = 41;
const BURST_BYTES_IPV4: u16 = 63;
/// `VETH_INFO_PEER` (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
/// `NUD_PERMANENT`: the kernel neither resolves a neighbour nor accepts another answer
/// (linux/neighbour.h).
const PERMANENT: u16 = 0x80;
/// `IFA_F_NODAD`: an IPv6 address is usable at once, without duplicate address detection: on a
/// veth pair or tunnel no other host can have it.
const AT_ONCE: u32 = 0x02;
/// `IFA_F_NOPREFIXROUTE`: a single address adds no route, as with IPv4.
const WITHOUT_ROUTE: u32 = 0x200;

/// How long an address may take to come into use, and how often it is looked at: it takes some
/// microseconds, as a rule.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(200);

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A pair of virtual Ethernet links (veth(4)): one end in the socket's namespace, the other in a
/// pod's.
#[derive(Debug)]
pub struct VethPair<'a> {
    /// Name of the near end, at most 15 bytes.
    pub name: &'a str,
    /// Address of the near end.
    pub mac: Mac,
    /// Name of the far end.
    pub far_name: &'a str,
    /// Address of the far end.
    pub far_mac: Mac,
    /// The network namespace of the far end.
    pub far: BorrowedFd<'a>,
    /// Largest packet in bytes.
    pub mtu: u32,
}

/// Most of one connection that goes through the system as one, and that a link which can't send it
/// so gets cut into packets beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Bytes with headers.
    pub bytes: u32,
    /// Packets that it is cut into on a wire.
    pub packets: u32,
}

/// A link as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Most that it takes at once, of either family.
    pub burst: Burst,
    /// A note that was left with it, which lasts as long as the link; empty where there is none.
    pub note: String,
}

/// A routing socket.
#[derive(Debug)]
pub struct Links(pub(super) Socket);

impl Links {
    /// Opens one for the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel gives the process no routing socket: its limit of open files is reached, or a
    /// filter of system calls forbids it.
    pub fn open() -> Result<Self> {
        Socket::open(Subsystem::Routing).map(Self)
    }

    /// All links.
    ///
    /// # Errors
    /// The kernel refuses the list, or sends nothing for 10 s.
    pub fn all(&mut self) -> Result<Vec<Link>> {
        let request = Message::new(
            libc::RTM_GETLINK,
            DUMP,
            &link_header(0, 0, 0),
            Attributes::new(),
        );
        let parts = self.0.send(&[request], "list", "links")?;
        Ok(parts.iter().filter_map(link).collect())
    }

    /// The link of a name.
    ///
    /// # Errors
    /// As [`Self::all`]. A name that no link has is no error.
    pub fn named(&mut self, name: &str) -> Result<Option<Link>> {
        Ok(self.all()?.into_iter().find(|link| link.name == name))
    }

    /// Adds a veth pair between this namespace and another. Both ends are off.
    ///
    /// # Errors
    /// If there is a link of the name, or the kernel refuses.
    pub fn add_veth_pair(&mut self, pair: &VethPair<'_>) -> Result<()> {
        let far = Attributes::new()
            .text(libc::IFLA_IFNAME, pair.far_name)
            .bytes(libc::IFLA_ADDRESS, &pair.far_mac)
            .number(libc::IFLA_MTU, pair.mtu)
            .bytes(libc::IFLA_NET_NS_FD, &pair.far.as_raw_fd().to_ne_bytes());
        let data = Attributes::new().nest_with_header(VETH_INFO_PEER, &link_header(0, 0, 0), &far);
        let kind = Attributes::new()
            .text(libc::IFLA_INFO_KIND, "veth")
            .nest(libc::IFLA_INFO_DATA, &data);
        let near = Attributes::new()
            .text(libc::IFLA_IFNAME, pair.name)
            .bytes(libc::IFLA_ADDRESS, &pair.mac)
            .number(libc::IFLA_MTU, pair.mtu)
            .nest(libc::IFLA_LINKINFO, &kind);
        let flags = CREATE | EXCLUSIVE;
        let request = Message::new(libc::RTM_NEWLINK, flags, &link_header(0, 0, 0), near);
        self.act(request, "add the veth pair", pair.name)
    }

    /// Makes a WireGuard tunnel's link, without a key or peers. It is off.
    ///
    /// # Errors
    /// If there is a link of the name, or the kernel refuses: `EOPNOTSUPP` where it has no
    /// WireGuard.
    pub fn add_wireguard(&mut self, name: &str, mtu: u32) -> Result<()> {
        let request = wireguard_link(name, mtu);
        self.act(request, "make the tunnel", name)
    }

    /// Switches a link on.
    ///
    /// # Errors
    /// If there is none, or the kernel refuses.
    pub fn switch_on(&mut self, index: u32) -> Result<()> {
        let up = u32::try_from(libc::IFF_UP).unwrap_or_default();
        let request = Message::new(
            libc::RTM_NEWLINK,
            0,
            &link_header(index, up, up),
            Attributes::new(),
        );
        self.act(request, "switch on", &format!("link {index}"))
    }

    /// Says what a link takes at once, of both families.
    ///
    /// # Errors
    /// If there is none, or the kernel refuses: not every link takes more than 64 KiB. Before
    /// Linux 6.3 it takes no more than that of IPv4, whatever is set.
    pub fn set_burst(&mut self, index: u32, burst: Burst) -> Result<()> {
        let attributes = Attributes::new()
            .number(BURST_BYTES, burst.bytes)
            .number(BURST_PACKETS, burst.packets)
            .number(BURST_BYTES_IPV4, burst.bytes);
        let request = Message::new(libc::RTM_NEWLINK, 0, &link_header(index, 0, 0), attributes);
        self.act(request, "set the bursts of", &format!("link {index}"))
    }

    /// Leaves a note with a link (`ip link show` prints it as `alias`), in place of an earlier one;
    /// at most 255 bytes.
    ///
    /// # Errors
    /// If there is none, or the kernel refuses.
    pub fn note(&mut self, index: u32, text: &str) -> Result<()> {
        let attributes = Attributes::new().bytes(libc::IFLA_IFALIAS, text.as_bytes());
        let request = Message::new(libc::RTM_NEWLINK, 0, &link_header(index, 0, 0), attributes);
        self.act(request, "leave a note with", &format!("link {index}"))
    }

    /// Removes a link, and with a veth pair's end the other; true where there was one.
    ///
    /// # Errors
    /// The kernel refuses for another reason than that there is no such link (`ENODEV`): it can't
    /// be removed, as `lo`, or the process may not (`EPERM`).
    pub fn remove(&mut self, name: &str) -> Result<bool> {
        let attributes = Attributes::new().text(libc::IFLA_IFNAME, name);
        let request = Message::new(libc::RTM_DELLINK, 0, &link_header(0, 0, 0), attributes);
        match self.act(request, "remove the link", name) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a link that is on an address; nothing changes where it has it. The address is in use
    /// when the call returns.
    ///
    /// # Errors
    /// The kernel refuses, as where there is no such link; or an address of IPv6 is not in use
    /// after 5 s.
    pub fn add_address(&mut self, link: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let [a, b, c, d] = link.to_ne_bytes();
        let header = [Family::of(address).number(), prefix, 0, 0, a, b, c, d];
        let bytes = octets(address);
        let mut attributes = Attributes::new()
            .bytes(libc::IFA_LOCAL, &bytes)
            .bytes(libc::IFA_ADDRESS, &bytes);
        if address.is_ipv6() {
            let alone = prefix == Family::V6.bits();
            let flags = AT_ONCE | if alone { WITHOUT_ROUTE } else { 0 };
            attributes = attributes.number(libc::IFA_FLAGS, flags);
        }
        let request = Message::new(libc::RTM_NEWADDR, CREATE | REPLACE, &header, attributes);
        self.act(request, "add the address", &address.to_string())?;
        match address {
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(_) => self.wait_for(address),
        }
    }

    /// Waits until the kernel takes packets for an address of IPv6: a worker of its own makes the
    /// route for that.
    fn wait_for(&mut self, address: IpAddr) -> Result<()> {
        let begun = Instant::now();
        while !self.is_own(address)? {
            if begun.elapsed() > PATIENCE {
                let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
                let subject = address.to_string();
                return Err(Error::new("wait for the address", subject, cause));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Fixes a neighbour's Ethernet address: the kernel does not resolve it (ARP, neighbour
    /// discovery), and no answer changes it.
    ///
    /// # Errors
    /// The kernel refuses: there is no such link (`ENODEV`), or its table of neighbours is full
    /// (`ENOBUFS`).
    pub fn fix_neighbour(&mut self, link: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let mut header = vec![Family::of(address).number(), 0, 0, 0];
        header.extend(link.to_ne_bytes());
        header.extend(PERMANENT.to_ne_bytes());
        header.extend([0, libc::RTN_UNICAST]);
        let attributes = Attributes::new()
            .bytes(libc::NDA_DST, &octets(address))
            .bytes(libc::NDA_LLADDR, &mac);
        let request = Message::new(libc::RTM_NEWNEIGH, CREATE | REPLACE, &header, attributes);
        self.act(request, "fix the neighbour", &address.to_string())
    }

    /// Makes one change.
    pub(super) fn act(
        &mut self,
        request: Message,
        what: &'static str,
        subject: &str,
    ) -> Result<()> {
        self.0.send(&[request.answered()], what, subject).map(drop)
    }
}

fn wireguard_link(name: &str, mtu: u32) -> Message {
    let kind = Attributes::new().text(libc::IFLA_INFO_KIND, "wireguard");
    let attributes = Attributes::new()
        .text(libc::IFLA_IFNAME, name)
        .number(libc::IFLA_MTU, mtu)
        .nest(libc::IFLA_LINKINFO, &kind);
    let flags = CREATE | EXCLUSIVE;
    Message::new(libc::RTM_NEWLINK, flags, &link_header(0, 0, 0), attributes)
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    for (at, number) in [(4, index), (8, flags), (12, change)] {
        if let Some(place) = header.get_mut(at..at + 4) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
    }
    header
}

/// The bytes of an address in the network's order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The reverse of [`octets`].
pub(super) fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(IpAddr::from(octets.first_chunk::<4>().copied()?)),
        16 => Some(IpAddr::from(octets.first_chunk::<16>().copied()?)),
        _ => None,
    }
}

/// A number of the kernel's.
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.first_chunk().copied()?))
}

fn link(part: &Part) -> Option<Link> {
    let index = number(part.header(LINK_HEADER)?.get(4..)?)?;
    let attributes = part.attributes(LINK_HEADER);
    let value = |wanted: u16| {
        let mut found = attributes.iter().filter(|(kind, _)| *kind == wanted);
        found.next().map(|(_, value)| *value)
    };
    let text = |bytes: &[u8]| {
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        String::from_utf8(bytes.to_vec()).ok()
    };
    Some(Link {
        index,
        name: value(libc::IFLA_IFNAME).and_then(text)?,
        mtu: value(libc::IFLA_MTU).and_then(number)?,
        burst: Burst {
            bytes: [BURST_BYTES, BURST_BYTES_IPV4]
                .into_iter()
                .filter_map(|kind| value(kind).and_then(number))
                .min()?,
            packets: value(BURST_PACKETS).and_then(number)?,
        },
        note: value(libc::IFLA_IFALIAS).and_then(text).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Kind, hold, in_new, inside, release};
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_tunnels_link_is_asked_for_by_its_kind() {
        let mut bytes = Vec::new();
        wireguard_link("wg", 1420).write(7, &mut bytes);
        let expected: &[&[u8]] = &[
            &68_u32.to_ne_bytes(),
            &16_u16.to_ne_bytes(), // RTM_NEWLINK
            &0x601_u16.to_ne_bytes(),
            &7_u32.to_ne_bytes(),
            &[0; 4],
            &[0; 16], // ifinfomsg
            &[7, 0, 3, 0, b'w', b'g', 0, 0],
            &[8, 0, 4, 0, 0x8C, 5, 0, 0],
            &[20, 0, 18, 0x80, 14, 0, 1, 0],
            b"wireguard\0\0\0",
        ];
        assert_eq!(bytes, expected.concat());
    }

    /// Of each family: this end's address, the other's, all addresses, and a range behind the other
    /// end.
    const ENDS: [[&str; 4]; 2] = [
        ["10.0.0.1", "10.0.0.2", "0.0.0.0", "10.9.9.0"],
        ["fd00::1", "fd00::2", "::", "fd09::100"],
    ];

    #[test]
    fn a_cable_joins_two_namespaces_and_goes_whole() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("far");
        in_new(&[Kind::Network], || hold(Kind::Network, &place)).unwrap();
        let far = File::open(&place).unwrap();
        in_new(&[Kind::Network], || {
            let mut here = Links::open()?;
            let pair = VethPair {
                name: "near",
                mac: [2, 0, 0, 0, 0, 1],
                far_name: "eth0",
                far_mac: [2, 0, 0, 0, 0, 2],
                far: far.as_fd(),
                mtu: 1400,
            };
            here.add_veth_pair(&pair)?;
            assert!(here.add_veth_pair(&pair).is_err(), "a name is taken once");
            let near = here.named("near")?.unwrap();
            assert_eq!((near.mtu, near.note.as_str()), (1400, ""));
            here.switch_on(near.index)?;
            let burst = Burst {
                bytes: 100_000,
                packets: 44,
            };
            here.set_burst(near.index, burst)?;
            let beyond = Burst {
                bytes: u32::MAX,
                ..burst
            };
            assert!(here.set_burst(near.index, beyond).is_err());
            assert_eq!(here.named("near")?.unwrap().burst, burst);
            for text in ["a first note", "another"] {
                here.note(near.index, text)?;
                assert_eq!(here.named("near")?.unwrap().note, text);
            }
            for (count, [own, other, any, far]) in (1..).zip(ENDS) {
                let [own, other, any, far] = [own, other, any, far].map(|at| at.parse().unwrap());
                let alone = Family::of(own).bits();
                here.add_address(near.index, own, alone)?;
                here.add_address(near.index, own, alone)?;
                let link = near.index;
                let route = |destination, prefix, gateway, link| Route {
                    destination,
                    prefix,
                    gateway,
                    link,
                };
                here.add_route(&route(other, alone, None, link))?;
                let into = here.routes_into(link)?;
                assert_eq!(into.len(), count, "{into:?}");
                assert!(into.contains(&route(other, alone, None, link)), "{into:?}");
                assert!(here.routes_into(link + 1)?.is_empty());
                here.fix_neighbour(link, other, [2, 0, 0, 0, 0, 2])?;
                here.add_route(&route(any, 0, Some(other), link))?;
                assert_eq!(here.default_links()?, vec![link; count]);
                assert_eq!(here.largest_packet_to(far)?, Some(1400));
                here.add_route_for(&route(far, alone - 8, Some(other), link), 1300)?;
                assert_eq!(here.largest_packet_to(far)?, Some(1300));
                assert!(here.remove_route(&route(far, alone - 8, Some(other), link))?);
                let by_router = route(far, alone - 8, Some(other), 0);
                here.add_route(&by_router)?;
                assert_eq!(here.routes_by_routers()?, [by_router]);
                assert!(here.remove_route(&by_router)? && !here.remove_route(&by_router)?);
            }
            let seen = inside(&[(Kind::Network, &place)], || Links::open()?.named("eth0"));
            assert_eq!(seen?.unwrap().mtu, 1400);
            for [_, other, ..] in ENDS {
                let destination: IpAddr = other.parse().unwrap();
                let into = Route {
                    destination,
                    prefix: Family::of(destination).bits(),
                    gateway: None,
                    link: near.index,
                };
                assert!(here.remove_route(&into)? && !here.remove_route(&into)?);
            }
            assert!(here.remove("near")? && !here.remove("near")?);
            let seen = inside(&[(Kind::Network, &place)], || Links::open()?.named("eth0"));
            assert_eq!(seen?, None, "one end goes with the other");
            Ok(())
        })
        .unwrap();
        release(&place).unwrap();
    }
}
