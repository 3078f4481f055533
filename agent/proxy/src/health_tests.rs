use super::*;
use crate::status::BEHIND;
use crate::view::{Endpoint, Protocol, Service, Slice, SlicePort};
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn key(name: &str) -> Key {
    Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn endpoint(address: &str, node: &str, ready: bool) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready,
        serving: true,
        terminating: !ready,
        hostname: None,
        node: Some(node.to_owned()),
        hints: None,
    }
}

/// A service `web` with a health port and these endpoints, in two slices that share the first.
fn known(port: u16, endpoints: &[Endpoint]) -> Known {
    let slice = |endpoints: &[Endpoint]| {
        Arc::new(Slice {
            service: "web".to_owned(),
            ports: vec![SlicePort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
            }],
            endpoints: endpoints.to_vec(),
            foreign: false,
        })
    };
    let service = Service {
        external_local: true,
        health_port: Some(port),
        ..Service::default()
    };
    let first = endpoints.get(..1).unwrap_or_default();
    Known {
        services: Some([(Arc::new(key("web")), Arc::new(service))].into()),
        slices: Some(
            [
                (Arc::new(key("web-a")), slice(endpoints)),
                (Arc::new(key("web-b")), slice(first)),
            ]
            .into(),
        ),
        ..Known::default()
    }
}

#[test]
fn ready_endpoints_of_this_node_count_once() {
    let all = [
        endpoint("10.1.0.2", "n1", true),
        endpoint("10.1.0.3", "n1", true),
        endpoint("10.1.0.4", "n1", false),
        endpoint("10.1.1.2", "n2", true),
        endpoint("fd00:1::2", "n1", true),
        endpoint("fd00:1::4", "n1", false),
    ];
    // The balancer weighs nodes by this number, also if pods have an address of each family.
    let nothing = LeftOut::default();
    let count = |node: &str| healths(&known(30_000, &all), node, &nothing)[&30_000].endpoints;
    assert_eq!([count("n1"), count("n2"), count("n3")], [2, 1, 0]);
    let mut others = known(30_000, &all);
    for slice in others.slices.iter_mut().flat_map(BTreeMap::values_mut) {
        Arc::make_mut(slice).foreign = true;
    }
    assert_eq!(healths(&others, "n1", &nothing)[&30_000].endpoints, 0);
    assert!(healths(&Known::default(), "n1", &nothing).is_empty());
}

/// The input of health checks for a node `n1` with this view; the sender sets what it leaves out.
fn asked(view: &View, freshness: &Freshness) -> (watch::Sender<LeftOut>, Asked) {
    let (sender, left_out) = watch::channel(LeftOut::default());
    let asked = Asked {
        view: view.clone(),
        node: "n1".to_owned(),
        left_out,
        freshness: freshness.clone(),
    };
    (sender, asked)
}

/// The answer of a port: its head and its body.
async fn ask(at: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(at).await.ok()?;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n")
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Asks until the answer is as wanted: the port follows the view in its own time.
async fn ask_until(at: SocketAddr, wanted: impl Fn(Option<&str>) -> bool) {
    let asked = async {
        loop {
            if wanted(ask(at).await.as_deref()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(120), asked).await.unwrap();
}

#[tokio::test]
async fn a_port_is_open_at_the_nodes_addresses_while_its_service_asks_for_it_and_tells_what_is_here()
 {
    // A port that was free a moment ago.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let view = View::default();
    let set = |known: Known| view.change(|_| true, |held| *held = known);
    let (own, addresses) = watch::channel(vec![at.ip()]);
    let freshness = Freshness::default();
    let (sender, asked) = asked(&view, &freshness);
    let serving = tokio::spawn(serve(asked, addresses));
    set(known(at.port(), &[endpoint("10.1.0.2", "n1", true)]));
    ask_until(at, |answer| {
        answer.is_some_and(|answer| {
            answer.starts_with("HTTP/1.1 200")
                && answer.contains("x-load-balancing-endpoint-weight: 1\r\n")
                && answer.ends_with(
                    r#"{"localEndpoints":1,"service":{"name":"web","namespace":"shop"},"serviceProxyHealthy":true}"#,
                )
        })
    })
    .await;
    // The packet filter can't follow: what endpoints there are may not be reached.
    freshness.changed(Instant::now().checked_sub(BEHIND).unwrap());
    let answer = ask(at).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.ends_with(r#""serviceProxyHealthy":false}"#),
        "{answer}"
    );
    freshness.applied();
    // Its namespace exceeds its share: nobody reaches its endpoints here.
    let closed = LeftOut {
        namespaces: [("shop".to_owned(), Vec::new())].into(),
        ..LeftOut::default()
    };
    let said = |code: &'static str, works: bool| {
        move |answer: Option<&str>| {
            let end = format!(r#""serviceProxyHealthy":{works}}}"#);
            answer.is_some_and(|answer| answer.starts_with(code) && answer.ends_with(&end))
        }
    };
    sender.send_replace(closed);
    ask_until(at, said("HTTP/1.1 503", false)).await;
    sender.send_replace(LeftOut::default());
    ask_until(at, said("HTTP/1.1 200", true)).await;
    set(known(at.port(), &[endpoint("10.1.1.2", "n2", true)]));
    ask_until(at, |answer| {
        answer.is_some_and(|answer| {
            answer.starts_with("HTTP/1.1 503") && answer.contains(r#""localEndpoints":0"#)
        })
    })
    .await;
    // The node gets another address.
    let moved = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), at.port()));
    own.send_replace(vec![moved.ip()]);
    ask_until(moved, |answer| answer.is_some()).await;
    ask_until(at, |answer| answer.is_none()).await;
    set(Known::default());
    ask_until(moved, |answer| answer.is_none()).await;
    serving.abort();
}

#[tokio::test]
async fn a_stranger_who_says_nothing_keeps_nobody_out() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let view = View::default();
    view.change(
        |_| true,
        |held| *held = known(at.port(), &[endpoint("10.1.0.2", "n1", true)]),
    );
    let (_stays, addresses) = watch::channel(vec![at.ip()]);
    let (_tells, asked) = asked(&view, &Freshness::default());
    let serving = tokio::spawn(serve(asked, addresses));
    ask_until(at, |answer| answer.is_some()).await;
    let mut silent = Vec::new();
    for _ in 0..LIMITS.strangers * 2 {
        silent.extend(TcpStream::connect(at).await);
    }
    let answer = ask(at).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
    serving.abort();
}
