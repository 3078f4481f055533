//! An agent that is killed under traffic, and another one that starts: a pod and a host outside
//! call all the while, by every way to a pod that the node has, and find services also while the
//! master is away.

use crate::cluster::{Cluster, NODE, shell};
use crate::network::{create, on_a_machine, server, with_addresses};
use crate::site::eventually;
use agent_names::snapshot::Origin;
use agent_names::{Names, Options, OwnAddress};
use agent_proxy::{Proxy, View};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::links::{LOOPBACK, Links, VethPair};
use config_kube::k8s_openapi::api::core::v1::Service;
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tests_support::callers::Caller;

const PATIENCE: Duration = Duration::from_secs(120);
/// How often the agent is killed, and how often each caller is answered before the next time.
const KILLS: usize = 2;
const CALLS: usize = 20;
const NODE_PORT: u16 = 30_080;
const HOST_PORT: u16 = 8088;

/// A request of its own connection for each call.
fn ask(to: SocketAddr, wanted: &str) {
    let stream = TcpStream::connect_timeout(&to, PATIENCE);
    let mut stream = stream.unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /ip HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .unwrap_or_else(|error| panic!("{to}: {error}"));
    assert!(answer.ends_with(&format!("{wanted}\n")), "{to}: {answer:?}");
}

/// The node's service proxy, as the agent runs it once it has addresses.
fn proxy(cluster: &Cluster) -> tokio::task::JoinHandle<()> {
    let view: View = cluster.view.clone();
    let proxy = Proxy::new(view, NODE.to_owned(), cluster.addresses.subscribe());
    tokio::spawn(proxy.run())
}

/// A host outside, on a segment with the machine.
fn outside(place: &Path, machine: IpAddr) {
    in_new(&[Kind::Network], || hold(Kind::Network, place)).unwrap();
    let far = File::open(place).unwrap();
    let mut links = Links::open().unwrap();
    let pair = VethPair {
        name: "segment",
        mac: [2, 0, 0, 0, 0, 1],
        far_name: "segment",
        far_mac: [2, 0, 0, 0, 0, 2],
        far: far.as_fd(),
        mtu: 1500,
    };
    links.add_veth_pair(&pair).unwrap();
    let join = |address: IpAddr| {
        let mut links = Links::open().unwrap();
        let link = links.named("segment").unwrap().unwrap().index;
        links.switch_on(LOOPBACK).unwrap();
        links.switch_on(link).unwrap();
        links.add_address(link, address, 24).unwrap();
    };
    join(machine);
    let there = || {
        join([192, 0, 2, 2].into());
        Ok(())
    };
    namespace::inside(&[(Kind::Network, place)], there).unwrap();
}

/// A pod that serves its address, and whatever it is sent, and a service for both; the addresses of
/// the pod and of the service.
async fn served(cluster: &Cluster) -> [IpAddr; 2] {
    let mut spec = server();
    let mut echo = shell("exec busybox nc -ll -p 7000 -e busybox cat");
    echo["name"] = json!("echo");
    echo["readinessProbe"] = json!({"tcpSocket": {"port": 7000}, "periodSeconds": 1});
    spec["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": HOST_PORT}]);
    spec["containers"].as_array_mut().unwrap().push(echo);
    create(cluster, "web", spec).await;
    let mut status = json!({});
    for place in 0..2 {
        let ready = format!("/containerStatuses/{place}/ready");
        status = cluster.reaches("web", &ready, json!(true)).await;
    }
    let pod = status["podIP"].as_str().unwrap();
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "NodePort", "ports": [
            {"name": "web", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT},
            {"name": "echo", "port": 7000},
        ]},
    }))
    .unwrap();
    let service = cluster.admin.create(&service).await.unwrap();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {
            "name": "web-1", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [pod], "nodeName": NODE}],
        "ports": [{"name": "web", "port": 8080}, {"name": "echo", "port": 7000}],
    }))
    .unwrap();
    cluster.admin.create(&slice).await.unwrap();
    let own = service.spec.unwrap().cluster_ip.unwrap();
    [pod, &*own].map(|text| text.parse().unwrap())
}

#[test]
fn callers_notice_nothing_of_an_agent_that_is_killed_and_of_the_next_one() {
    on_a_machine(|| async {
        let folder = tempfile::tempdir().unwrap();
        let neighbour = folder.path().join("neighbour");
        let machine: IpAddr = [192, 0, 2, 1].into();
        outside(&neighbour, machine);
        let mut cluster = with_addresses().await;
        cluster.addresses.send_replace(vec![machine]);
        let mut proxied = proxy(&cluster);
        let [pod, service] = served(&cluster).await;
        create(
            &cluster,
            "asks",
            json!({"containers": [shell("sleep 100000")]}),
        )
        .await;
        cluster.reaches("asks", "/phase", json!("Running")).await;
        let asks = cluster.pod("asks").await.unwrap().metadata.uid.unwrap();
        let run = cluster.site.dir.path().join("run/pods");
        let network = Kind::Network.name();
        let inside: PathBuf = run.join(asks).join(network);
        eventually("the service in the packet filter", || async {
            let call = || Ok(TcpStream::connect_timeout(&(service, 80).into(), PATIENCE).is_ok());
            let reached = namespace::inside(&[(Kind::Network, &inside)], call).unwrap();
            reached.then_some(())
        })
        .await;

        let mut callers = Vec::new();
        for (from, place, to) in [
            ("a pod", &inside, (pod, 8080)),
            ("a pod", &inside, (service, 80)),
            ("a pod", &inside, (machine, NODE_PORT)),
            ("a pod", &inside, (machine, HOST_PORT)),
            ("outside", &neighbour, (machine, NODE_PORT)),
            ("outside", &neighbour, (machine, HOST_PORT)),
        ] {
            let (to, wanted) = (SocketAddr::from(to), pod.to_string());
            let again = move || ask(to, &wanted);
            callers.push(Caller::new(format!("{from}: {to}"), place, again));
        }
        for to in [pod, service] {
            let mut open = None;
            let again = move || {
                // One connection, which must not break.
                let stream = open.get_or_insert_with(|| TcpStream::connect((to, 7000)).unwrap());
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"ping").unwrap();
                stream.read_exact(&mut [0; 4]).unwrap();
            };
            callers.push(Caller::new(format!("open: {to}"), &inside, again));
        }
        let progress = async |callers: &[Caller]| {
            for caller in callers {
                let before = caller.answered();
                eventually(&caller.what, || async {
                    assert!(!caller.has_failed(), "{} has failed", caller.what);
                    (caller.answered() >= before + CALLS).then_some(())
                })
                .await;
            }
        };
        progress(&callers).await;
        for _ in 0..KILLS {
            proxied.abort();
            cluster = cluster.killed().await;
            progress(&callers).await;
            proxied = proxy(&cluster);
            eventually("the next agent", || async {
                let known = cluster.view.now();
                (known.whole().is_some() && known.host_ports_listed).then_some(())
            })
            .await;
            progress(&callers).await;
        }
        proxied.abort();
        Caller::end(callers);
        for name in ["web", "asks"] {
            cluster.delete(name, 1).await;
            eventually(name, || async {
                cluster.pod(name).await.is_none().then_some(())
            })
            .await;
        }
        release(&neighbour).unwrap();
    });
}

/// The node's own address in its range of pod addresses.
const OWN: [u8; 4] = [10, 1, 0, 1];

/// Where an agent leaves names for the next one.
fn left(cluster: &Cluster) -> PathBuf {
    cluster.site.dir.path().join("run/names")
}

/// The node's name server, as the agent runs it from its start on.
fn names(cluster: &Cluster) -> (Arc<Names>, tokio::task::JoinHandle<()>) {
    let names = Arc::new(Names::new(Options {
        view: cluster.view.clone(),
        snapshot: left(cluster),
        origin: Origin {
            boot: "this".to_owned(),
            node: NODE.to_owned(),
        },
        machine: Vec::new(),
        resolv_conf: "/dev/null".into(),
        stub_domains: Vec::new(),
    }));
    let own = Arc::clone(&names);
    let task = tokio::spawn(async move { match own.run().await {} });
    (names, task)
}

/// A service on port 80 of pods that serve on port 8080, with this pod as its endpoint.
async fn serve(cluster: &Cluster, name: &str, pod: IpAddr) {
    let service = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "web", "port": 80, "targetPort": 8080}]},
    });
    let service: Service = serde_json::from_value(service).unwrap();
    cluster.admin.create(&service).await.unwrap();
    let slice = json!({
        "metadata": {
            "name": format!("{name}-1"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [pod], "nodeName": NODE}],
        "ports": [{"name": "web", "port": 8080}],
    });
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    cluster.admin.create(&slice).await.unwrap();
}

/// A pod that calls services by their names again and again, and serves how often each has
/// answered.
fn client(services: &str) -> serde_json::Value {
    let script = format!(
        "mkdir -p /tmp/www; busybox httpd -p 8080 -h /tmp/www
        for name in {services}; do
            while :; do
                busybox wget -q -T 5 -O - http://$name/ip > /dev/null && echo >> /tmp/www/$name
                busybox sleep 0.1
            done &
        done
        wait"
    );
    json!({"containers": [shell(&script)]})
}

/// How often a service has answered this client.
fn answered(client: IpAddr, service: &str) -> usize {
    let request = format!("GET /{service} HTTP/1.0\r\n\r\n");
    let ask = move || {
        let mut stream = TcpStream::connect_timeout(&(client, 8080).into(), PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.contains(" 200 ").then(|| body.lines().count())
    };
    // The machine's network is that of this thread.
    tokio::task::block_in_place(ask).unwrap_or_default()
}

/// Waits until a service has answered a client some more times.
async fn is_found(client: IpAddr, service: &str) {
    let before = answered(client, service);
    let what = format!("calls of {service}, which has answered {before} times,");
    eventually(&what, || async {
        (answered(client, service) >= before + 5).then_some(())
    })
    .await;
}

/// Where the node answers.
fn own() -> OwnAddress {
    OwnAddress {
        address: OWN.into(),
        range: "10.1.0.0/24".parse().unwrap(),
    }
}

#[test]
fn pods_find_and_reach_services_by_an_agent_that_starts_while_the_master_is_away() {
    on_a_machine(|| async {
        let mut cluster = with_addresses().await;
        let (served, mut answers) = names(&cluster);
        served.serve_at(&[own()]);
        let mut proxied = proxy(&cluster);
        create(&cluster, "web", server()).await;
        create(&cluster, "asks", client("web later")).await;
        let status = cluster
            .reaches("web", "/containerStatuses/0/ready", json!(true))
            .await;
        let pod: IpAddr = status["podIP"].as_str().unwrap().parse().unwrap();
        serve(&cluster, "web", pod).await;
        let status = cluster.reaches("asks", "/phase", json!("Running")).await;
        let asks: IpAddr = status["podIP"].as_str().unwrap().parse().unwrap();
        is_found(asks, "web").await;
        eventually("the names for the next agent", || async {
            let left = std::fs::read_to_string(left(&cluster)).ok()?;
            left.contains("\"web\"").then_some(())
        })
        .await;

        cluster.away.store(true, Ordering::SeqCst);
        proxied.abort();
        answers.abort();
        cluster = cluster.killed().await;
        serve(&cluster, "later", pod).await;
        let (served, next) = names(&cluster);
        answers = next;
        is_found(asks, "web").await;
        assert!(cluster.view.now().services.is_none(), "the master is away");
        assert_eq!(answered(asks, "later"), 0);

        cluster.away.store(false, Ordering::SeqCst);
        served.serve_at(&[own()]);
        proxied = proxy(&cluster);
        is_found(asks, "later").await;
        is_found(asks, "web").await;
        proxied.abort();
        answers.abort();
        for name in ["web", "asks"] {
            cluster.delete(name, 1).await;
            eventually(name, || async {
                cluster.pod(name).await.is_none().then_some(())
            })
            .await;
        }
    });
}
