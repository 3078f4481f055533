//! The whole room in a network namespace of its own: fixed addresses, and DHCP from a server on the
//! other end of a virtual cable. Needs root (the test suite runs as root).
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use agent_net::{Status, Task, run};
use config_model::network::{Interface, Network, PodRoutes, Selector};
use futures_util::TryStreamExt;
use rtnetlink::{LinkUnspec, LinkVeth};
use tests_support::network::{ADDRESS, SERVER, dhcp};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);

/// Runs `test` on a thread with a network namespace of its own, which holds a cable from `inside`
/// to `outside`.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let body = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("network namespaces need root: run as root");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            handle
                .link()
                .add(LinkVeth::new("inside", "outside").build())
                .execute()
                .await
                .unwrap();
            let mut found = handle.link().get().match_name("outside").execute();
            let index = found.try_next().await.unwrap().unwrap().header.index;
            handle
                .link()
                .change(LinkUnspec::new_with_index(index).up().build())
                .execute()
                .await
                .unwrap();
            handle
                .address()
                .add(index, SERVER.into(), 24)
                .execute()
                .await
                .unwrap();
            // Both ends live in one namespace, so that the server's own address arrives from
            // outside.
            std::fs::write("/proc/sys/net/ipv4/conf/inside/accept_local", "1").unwrap();
            timeout(Duration::from_secs(180), test())
                .await
                .expect("the network was not ready in 180 s");
            connection.abort();
        });
    };
    std::thread::spawn(body).join().unwrap();
}

fn network(addresses: &[&str], dhcp: bool) -> Network {
    let interface = Interface {
        selector: Selector::Name("inside".parse().unwrap()),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        gateway: None,
        dhcp,
        mtu: Some(1400),
    };
    Network {
        interfaces: vec![interface],
        nameservers: vec![Ipv4Addr::new(198, 51, 100, 53).into()],
        ntp: vec![],
        pod_routes: PodRoutes::None,
        ..Network::default()
    }
}

/// Runs the room beside a story, which gets its status, until that ends.
async fn beside<T, F: Future<Output = T>>(
    network: Network,
    resolver_file: &Path,
    story: impl FnOnce(watch::Receiver<Status>) -> F,
) -> T {
    let (sender, status) = watch::channel(Status::default());
    let task = Task {
        network,
        host_name: Some("worker-1".to_owned()),
        resolver_file: resolver_file.to_owned(),
    };
    tokio::select! {
        error = run(task, sender) => panic_with(&error.unwrap_err()),
        told = story(status) => told,
    }
}

/// Moves the clock on by the longest time between two scans of the machine's links; the kernel's
/// answers are waited for in real time again.
async fn next_scan() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
}

/// Runs the room until it says that it is ready.
async fn until_ready(network: Network, resolver_file: &Path) -> Status {
    let story = |mut status: watch::Receiver<Status>| async move {
        let ready = status.wait_for(|status| status.ready).await.unwrap();
        ready.clone()
    };
    beside(network, resolver_file, story).await
}

fn panic_with(error: &agent_net::NetError) -> ! {
    unreachable!(
        "the network failed: {error}: {:?}",
        std::error::Error::source(error)
    )
}

#[test]
fn fixed_addresses_and_loopback_are_set_up() {
    in_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("resolv.conf");
        let status = until_ready(network(&["203.0.113.7/24"], false), &file).await;
        let fixed: IpAddr = "203.0.113.7".parse().unwrap();
        assert_eq!(
            status
                .addresses
                .iter()
                .map(|address| address.ip)
                .collect::<Vec<_>>(),
            [fixed]
        );
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            "nameserver 198.51.100.53\n"
        );
        for ip in [fixed, Ipv4Addr::LOCALHOST.into()] {
            let listener = UdpSocket::bind(SocketAddr::new(ip, 0)).await.unwrap();
            let sender = UdpSocket::bind(SocketAddr::new(ip, 0)).await.unwrap();
            sender
                .send_to(b"x", listener.local_addr().unwrap())
                .await
                .unwrap();
            assert_eq!(listener.recv(&mut [0; 8]).await.unwrap(), 1);
        }
    });
}

#[test]
fn a_lease_comes_from_a_real_exchange() {
    in_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("resolv.conf");
        let fd = agent_sys::socket::udp_on_interface("outside", 67).unwrap();
        let server = tokio::spawn(dhcp(UdpSocket::from_std(fd.into()).unwrap(), ROUTER));
        let status = until_ready(network(&[], true), &file).await;
        server.abort();
        assert!(
            server.await.unwrap_err().is_cancelled(),
            "the server saw something wrong"
        );
        assert_eq!(
            status
                .addresses
                .iter()
                .map(|address| address.ip)
                .collect::<Vec<_>>(),
            [IpAddr::from(ADDRESS)]
        );
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "nameserver 198.51.100.53\nnameserver 192.0.2.53\n");
        UdpSocket::bind(SocketAddr::new(ADDRESS.into(), 0))
            .await
            .expect("the address is the machine's");
        let outside = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        outside
            .connect("198.51.100.1:9")
            .await
            .expect("there is a default route");
    });
}

#[test]
fn a_named_interface_that_was_removed_and_comes_back_is_set_up_again() {
    in_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("resolv.conf");
        let story = |mut status: watch::Receiver<Status>| async move {
            status.wait_for(|status| status.ready).await.unwrap();
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            let mut found = handle.link().get().match_name("inside").execute();
            let index = found.try_next().await.unwrap().unwrap().header.index;
            handle.link().del(index).execute().await.unwrap();
            next_scan().await;
            status.wait_for(|status| !status.ready).await.unwrap();
            let pair = LinkVeth::new("inside", "outside").build();
            handle.link().add(pair).execute().await.unwrap();
            next_scan().await;
            let ready = status.wait_for(|status| status.ready).await.unwrap();
            assert_eq!(ready.addresses.len(), 1);
            connection.abort();
        };
        beside(network(&["203.0.113.7/24"], false), &file, story).await;
        UdpSocket::bind("203.0.113.7:0")
            .await
            .expect("the address is the machine's");
    });
}

#[test]
fn a_resolver_s_file_that_could_not_be_written_is_written_once_it_can_be() {
    in_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("later");
        let file = folder.join("resolv.conf");
        let story = |mut status: watch::Receiver<Status>| {
            let (folder, file) = (folder.clone(), file.clone());
            async move {
                status.wait_for(|status| status.ready).await.unwrap();
                assert!(!file.exists());
                std::fs::create_dir(folder).unwrap();
                while !file.exists() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        beside(network(&["203.0.113.7/24"], false), &file, story).await;
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            "nameserver 198.51.100.53\n"
        );
    });
}
