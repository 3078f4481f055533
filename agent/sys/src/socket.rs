//! Sockets: the peer's credentials, sockets bound to one interface, and the kernel's device events
//! (uevents).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc::{AF_PACKET, sockaddr_ll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrIn,
    SockaddrStorage, bind, listen, recv, socket,
};
use nix::sys::socket::{LinkAddr, SockaddrLike, sendto};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::error::{Context, Result};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The user id of the process that connected a Unix socket (`SO_PEERCRED`), as it was at that time.
///
/// # Errors
/// The kernel refuses: it is no Unix socket.
pub fn peer_user(connection: &impl AsFd) -> Result<u32> {
    Ok(getsockopt(connection, sockopt::PeerCredentials)
        .at("identify", "the socket's peer")?
        .uid())
}

/// Lets the kernel ask whether the other machine is still there (tcp(7)): a connection whose other
/// end vanished fails two minutes after the last bytes, even if neither side sends anything.
///
/// # Errors
/// The kernel refuses: it is no TCP socket.
pub fn keep_alive(connection: &impl AsFd) -> Result<()> {
    setsockopt(connection, sockopt::TcpKeepIdle, &60).at("set", "TCP_KEEPIDLE")?;
    setsockopt(connection, sockopt::TcpKeepInterval, &15).at("set", "TCP_KEEPINTVL")?;
    setsockopt(connection, sockopt::TcpKeepCount, &4).at("set", "TCP_KEEPCNT")?;
    setsockopt(connection, sockopt::KeepAlive, &true).at("set", "SO_KEEPALIVE")
}

/// The kernel's device events (`uevent` over netlink): readable as soon as any device came or went.
#[derive(Debug)]
pub struct DeviceEvents(OwnedFd);

impl DeviceEvents {
    /// Subscribes to the kernel's own events, group 1.
    ///
    /// # Errors
    /// The kernel refuses: this process may not open such a socket, or no descriptor is left.
    pub fn open() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            flags,
            SockProtocol::NetlinkKObjectUEvent,
        )
        .at("open", "device events")?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 1)).at("subscribe to", "device events")?;
        Ok(Self(fd))
    }

    /// Discards queued events: an event only says that something changed, and `/sys` has the
    /// current state.
    pub fn drain(&self) {
        let mut buffer = [0_u8; 8192];
        while recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_ok() {}
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A UDP and a TCP socket of one address and port, neither of which blocks.
#[derive(Debug)]
pub struct Bound {
    /// For datagrams.
    pub datagrams: std::net::UdpSocket,
    /// For connections.
    pub connections: std::net::TcpListener,
}

/// Binds an address and port that need not be the machine's yet (`IP_FREEBIND`, ip(7)), also where
/// a server of all addresses shares the port. Nobody shares it later.
///
/// # Errors
/// If the port is in use, or the process may not.
pub fn bind_ahead(address: std::net::SocketAddr) -> Result<Bound> {
    let subject = address.to_string();
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let open = |kind| -> Result<OwnedFd> {
        let fd = socket(family, kind, flags, None).at("open a socket for", &subject)?;
        setsockopt(&fd, sockopt::IpFreebind, &true).at("bind ahead to", &subject)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true).at("share", &subject)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).at("bind to", &subject)?;
        Ok(fd)
    };
    let connections = open(SockType::Stream)?;
    let waiting = Backlog::new(BACKLOG).at("listen on", &subject)?;
    listen(&connections, waiting).at("listen on", &subject)?;
    let datagrams = open(SockType::Datagram)?;
    share_no_more(&datagrams, &subject)?;
    Ok(Bound {
        datagrams: datagrams.into(),
        connections: connections.into(),
    })
}

/// Keeps the port of a socket for datagrams, which is bound, from all who would bind it after this
/// one. Of two sockets that share an address (`SO_REUSEADDR`, socket(7)) the newer one gets all
/// datagrams, no matter who opened it, and a pod on the machine's network can open one.
fn share_no_more(datagrams: &OwnedFd, subject: &str) -> Result<()> {
    setsockopt(datagrams, sockopt::ReuseAddr, &false).at("keep for itself", subject)
}

/// A UDP socket bound to `port` on one interface alone, which may send to everybody on its segment
/// and needs no address of its own. Nobody shares the port later. It doesn't block.
///
/// # Errors
/// There is no such interface, the port is in use on it, or this process may not bind to
/// interfaces.
pub fn udp_on_interface(interface: &str, port: u16) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
        .at("open a UDP socket on", interface)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true).at("share the port on", interface)?;
    setsockopt(&fd, sockopt::Broadcast, &true).at("allow broadcast on", interface)?;
    setsockopt(&fd, sockopt::BindToDevice, &interface.into()).at("bind a socket to", interface)?;
    bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port)).at("bind a port on", interface)?;
    share_no_more(&fd, interface)?;
    Ok(fd)
}

/// A socket that sends whole IPv4 packets to everybody on one interface's segment, without the
/// kernel's choice of a source address: a machine without an address on this interface must not use
/// that of another one.
#[derive(Debug)]
pub struct Segment {
    socket: OwnedFd,
    interface: i32,
}

impl Segment {
    /// Opens it for the interface of this index. It receives nothing.
    ///
    /// # Errors
    /// The kernel refuses: this process may not open packet sockets, or no descriptor is left.
    pub fn open(index: u32) -> Result<Self> {
        let what = "a packet socket";
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let interface = i32::try_from(index)
            .map_err(std::io::Error::other)
            .at("open", what)?;
        let socket =
            socket(AddressFamily::Packet, SockType::Datagram, flags, None).at("open", what)?;
        Ok(Self { socket, interface })
    }

    /// Sends an IPv4 packet, header and all, to the segment's broadcast address, without waiting.
    ///
    /// # Errors
    /// The kernel refuses: the interface is down or its queue full.
    pub fn broadcast(&self, packet: &[u8]) -> Result<()> {
        const IPV4: u16 = 0x0800;
        let to = sockaddr_ll {
            sll_family: u16::try_from(AF_PACKET).unwrap_or_default(),
            sll_protocol: IPV4.to_be(),
            sll_ifindex: self.interface,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        };
        let length = u32::try_from(size_of::<sockaddr_ll>()).ok();
        // SAFETY: the structure is a whole link-layer address, says so in its family, and lives
        // through the call, which copies it.
        let address = unsafe { LinkAddr::from_raw((&raw const to).cast(), length) };
        let address = address
            .ok_or_else(|| std::io::Error::other("not a link address"))
            .at("address", "a segment")?;
        sendto(
            self.socket.as_raw_fd(),
            packet,
            &address,
            MsgFlags::MSG_DONTWAIT,
        )
        .at("send to", "a segment")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    /// A socket of a program on the machine's network, which needs no right for it.
    fn sharing(address: SocketAddr) -> nix::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        Ok(fd)
    }

    #[test]
    fn nobody_gets_the_datagrams_of_a_port_by_binding_it_as_well() {
        let everywhere = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let bound = bind_ahead((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let own = bound.datagrams.local_addr().unwrap();
        let of_link = UdpSocket::from(udp_on_interface("lo", 0).unwrap());
        let port = of_link.local_addr().unwrap().port();
        for address in [own, everywhere(own.port()), everywhere(port)] {
            assert_eq!(sharing(address).unwrap_err(), Errno::EADDRINUSE);
        }
    }
}
