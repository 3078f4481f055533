use super::*;
use crate::view::{Known, Node};
use crate::{Proxy, Service};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use tokio::sync::watch;

fn asked(path: &str, freshness: &Freshness, at: Instant, eligible: bool) -> u16 {
    healthy(path, freshness.now(at), eligible).status().as_u16()
}

#[test]
fn a_proxy_is_healthy_until_a_change_waits_for_longer_than_a_minute() {
    let freshness = Freshness::default();
    let start = Instant::now();
    let later = start + BEHIND;
    freshness.changed(start);
    freshness.changed(later);
    let both =
        |at, eligible| ["/healthz", "/livez"].map(|path| asked(path, &freshness, at, eligible));
    assert_eq!(both(start + BEHIND / 2, true), [200, 200]);
    assert_eq!(both(later, true), [503, 503], "the first change counts");
    freshness.applied();
    assert_eq!(both(later, true), [200, 200]);
    assert_eq!(
        both(later, false),
        [503, 200],
        "the node goes, the proxy works"
    );
    assert_eq!(asked("/", &freshness, start, true), 404);
}

/// The whole answer of a port of this network, once there is one.
fn ask(to: SocketAddr, path: &str) -> String {
    loop {
        let Ok(mut stream) = TcpStream::connect(to) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: n1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        return answer;
    }
}

#[test]
fn upstreams_ports_answer_as_kube_proxys_do() {
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        Links::open()?.add_address(LOOPBACK, elsewhere, 32)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let view = View::default();
        let (_stays, addresses) = watch::channel(Vec::new());
        let proxy = Proxy::new(view.clone(), "n1".to_owned(), addresses);
        view.change(
            |_| true,
            |known| {
                *known = Known {
                    services: Some([(Arc::default(), Arc::new(Service::default()))].into()),
                    slices: Some([].into()),
                    ..Known::default()
                };
            },
        );
        let asks = std::thread::scope(|scope| {
            // A thread of the same network.
            let asking = scope.spawn(move || {
                let [own, other] = [Ipv4Addr::LOCALHOST.into(), elsewhere];
                let health = ask((other, HEALTH_PORT).into(), "/healthz");
                assert!(health.starts_with("HTTP/1.1 200 OK\r\n"), "{health}");
                for key in ["lastUpdated", "currentTime", r#""nodeEligible":true"#] {
                    assert!(health.contains(key), "{health}");
                }
                let mode = ask((own, STATUS_PORT).into(), "/proxyMode");
                assert!(mode.starts_with("HTTP/1.1 200 OK\r\n"), "{mode}");
                assert!(mode.ends_with("\r\n\r\nnftables"), "{mode}");
                let none = TcpStream::connect((other, STATUS_PORT));
                assert!(none.is_err(), "on the loopback address alone");
                let leaving = Node {
                    leaving: true,
                    ..Node::default()
                };
                view.change(
                    |_| true,
                    |known| known.nodes = Some([("n1".to_owned(), Arc::new(leaving))].into()),
                );
                let health = ask((own, HEALTH_PORT).into(), "/healthz");
                assert!(health.starts_with("HTTP/1.1 503"), "{health}");
            });
            runtime.block_on(async {
                let done = async {
                    while !asking.is_finished() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                tokio::select! {
                    () = proxy.run() => {}
                    () = done => {}
                }
            });
            asking.join()
        });
        asks.unwrap();
        Ok(())
    })
    .unwrap();
}
