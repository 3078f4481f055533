//! Two network namespaces with a cable between them, a DHCP server, and a namespace that owns a
//! whole range of addresses. Needs root (the test suite runs as root).
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::{Receiver, Sender, channel};

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// The DHCP server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address that it leases.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// The name server that it names.
pub const DNS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

/// The kernel's table of a host's own addresses (ip-route(8), `local`).
const LOCAL: u32 = 255;

/// Runs what `test` makes on a thread with a network namespace of its own in which every address of
/// this range is its own: sockets bind to any of them, and reach each other.
pub fn with_addresses<T: Future>(
    (range, prefix): (Ipv6Addr, u8),
    test: impl FnOnce() -> T + Send + 'static,
) {
    let body = move || {
        enter();
        std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
        runtime().block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            let own = index(&handle, "lo").await;
            handle
                .link()
                .change(LinkUnspec::new_with_index(own).up().build())
                .execute()
                .await
                .unwrap();
            let route = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(range, prefix)
                .output_interface(own)
                .table_id(LOCAL)
                .scope(RouteScope::Host)
                .kind(RouteType::Local)
                .build();
            handle.route().add(route).execute().await.unwrap();
            connection.abort();
            test().await;
        });
    };
    std::thread::spawn(body).join().unwrap();
}

/// Runs `test` on a thread with a network namespace of its own that has a card `inside`; the
/// cable's other end, with these addresses, is in another namespace, where `serve` runs until the
/// test is over.
pub fn with_peer<S: Future>(
    addresses: &'static [(Ipv4Addr, u8)],
    serve: impl FnOnce() -> S + Send + 'static,
    test: impl FnOnce() + Send + 'static,
) {
    let body = move || {
        let (namespace, moved, peer) = peer(addresses, serve);
        enter();
        runtime().block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            handle
                .link()
                .add(LinkVeth::new("inside", "outside").build())
                .execute()
                .await
                .unwrap();
            let link = LinkUnspec::new_with_index(index(&handle, "outside").await);
            handle
                .link()
                .change(link.setns_by_fd(namespace.as_raw_fd()).build())
                .execute()
                .await
                .unwrap();
            connection.abort();
        });
        let (up, over) = moved;
        up.send(()).unwrap();
        test();
        drop((up, over));
        peer.join().unwrap();
    };
    std::thread::spawn(body).join().unwrap();
}

type Ends = (Sender<()>, Sender<()>);

/// The other end's thread: it gives its namespace away, waits for the cable, and serves until the
/// ends are dropped.
fn peer<S: Future>(
    addresses: &'static [(Ipv4Addr, u8)],
    serve: impl FnOnce() -> S + Send + 'static,
) -> (std::fs::File, Ends, std::thread::JoinHandle<()>) {
    let (give, namespace) = channel();
    let (up, is_up): (Sender<()>, Receiver<()>) = channel();
    let (over, is_over): (Sender<()>, Receiver<()>) = channel();
    let (ready, is_ready) = channel();
    let thread = std::thread::spawn(move || {
        enter();
        give.send(std::fs::File::open("/proc/thread-self/ns/net").unwrap())
            .unwrap();
        ready.send(()).unwrap();
        is_up.recv().unwrap();
        runtime().block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            let outside = index(&handle, "outside").await;
            handle
                .link()
                .change(LinkUnspec::new_with_index(outside).up().build())
                .execute()
                .await
                .unwrap();
            for (address, prefix) in addresses {
                handle
                    .address()
                    .add(outside, IpAddr::from(*address), *prefix)
                    .execute()
                    .await
                    .unwrap();
            }
            let end = tokio::task::spawn_blocking(move || is_over.recv().is_err());
            tokio::select! {
                _ = serve() => {}
                over = end => assert!(over.unwrap(), "the end comes by dropping it"),
            }
            connection.abort();
        });
    });
    let namespace = namespace.recv().unwrap();
    is_ready.recv().unwrap();
    (namespace, (up, over), thread)
}

fn enter() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("network namespaces need root: run as root");
}

/// A runtime on the thread that asks for it, so that it stays in that thread's network namespace.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) async fn index(handle: &Handle, name: &str) -> u32 {
    let mut found = handle.link().get().match_name(name).execute();
    found.try_next().await.unwrap().unwrap().header.index
}

/// Answers every discover and request with the one address and this router.
pub async fn dhcp(socket: UdpSocket, router: Ipv4Addr) {
    let (_stays, lent) = watch::channel(ADDRESS);
    lend(socket, router, lent, 1800).await;
}

/// Lends the address that `lent` has at the time. Clients ask each second to keep theirs, and are
/// refused another one.
pub async fn dhcp_of(socket: UdpSocket, router: Ipv4Addr, lent: watch::Receiver<Ipv4Addr>) {
    lend(socket, router, lent, 1).await;
}

async fn lend(socket: UdpSocket, router: Ipv4Addr, lent: watch::Receiver<Ipv4Addr>, renew: u32) {
    let mut buffer = [0; 1500];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        let Ok(asked) = Message::decode(&mut Decoder::new(&buffer[..length])) else {
            continue;
        };
        let own = asked.ciaddr();
        assert_eq!(
            from.ip(),
            IpAddr::from(own),
            "a client speaks from its address, or from none"
        );
        let address = *lent.borrow();
        let is_kept = own == Ipv4Addr::UNSPECIFIED || own == address;
        let answer = match asked.opts().msg_type() {
            Some(MessageType::Discover) => {
                answer(&asked, MessageType::Offer, address, router, renew)
            }
            Some(MessageType::Request) if is_kept => {
                answer(&asked, MessageType::Ack, address, router, renew)
            }
            Some(MessageType::Request) => answer(
                &asked,
                MessageType::Nak,
                Ipv4Addr::UNSPECIFIED,
                router,
                renew,
            ),
            _ => continue,
        };
        let to = (Ipv4Addr::BROADCAST, 68);
        socket.send_to(&answer, to).await.unwrap();
    }
}

/// The bytes of an answer that lends an address for an hour.
fn answer(
    asked: &Message,
    kind: MessageType,
    yours: Ipv4Addr,
    router: Ipv4Addr,
    renew: u32,
) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut answer = Message::new_with_id(asked.xid(), none, yours, none, none, asked.chaddr());
    answer.set_opcode(Opcode::BootReply);
    for option in [
        DhcpOption::MessageType(kind),
        DhcpOption::ServerIdentifier(SERVER),
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::Router(vec![router]),
        DhcpOption::DomainNameServer(vec![DNS]),
        DhcpOption::AddressLeaseTime(3600),
        DhcpOption::Renewal(renew),
    ] {
        answer.opts_mut().insert(option);
    }
    let mut bytes = Vec::new();
    answer.encode(&mut Encoder::new(&mut bytes)).unwrap();
    bytes
}
