//! Ports of pods by the real kubectl, through the master's API to programs that listen on a pod's
//! own loopback alone.

use crate::cluster::shell;
use crate::network::{create, on_a_machine, with_addresses};
use crate::site::{LIMIT, eventually};
use crate::tunnels::Site;
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::core::v1::Service;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

/// Bytes of the file that the pod serves: more than any buffer on the way.
const FILE: usize = 3_000_000;

/// A kubectl that forwards ports, and the local one of each.
pub(crate) struct Forward {
    kubectl: Child,
    ports: Vec<u16>,
}

impl Forward {
    pub(crate) async fn new(site: &Site, what: &str, remote: &[&str]) -> Self {
        let mut words = vec!["port-forward", what, "--address", "127.0.0.1"];
        words.extend(remote);
        let mut kubectl = site.kubectl(&words).spawn().unwrap();
        let mut lines = BufReader::new(kubectl.stdout.take().unwrap()).lines();
        let mut ports = Vec::new();
        let reading = async {
            while ports.len() < remote.len()
                && let Some(line) = lines.next_line().await.unwrap()
            {
                let place = line.strip_prefix("Forwarding from 127.0.0.1:").unwrap();
                ports.push(place.split(' ').next().unwrap().parse().unwrap());
            }
        };
        timeout(LIMIT, reading).await.expect("kubectl begins");
        // kubectl goes on to write a line for each connection.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        if ports.len() < remote.len() {
            let ended = kubectl.wait_with_output().await.unwrap();
            unreachable!("kubectl ended: {}", String::from_utf8_lossy(&ended.stderr));
        }
        Self { kubectl, ports }
    }

    pub(crate) async fn connect(&self, which: usize) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.ports[which]))
            .await
            .unwrap()
    }

    /// The pod's web server's answer to a request for a file.
    async fn get(&self, which: usize, file: &str) -> Vec<u8> {
        let mut stream = self.connect(which).await;
        let ask = format!("GET /{file} HTTP/1.0\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        rest(&mut stream).await
    }
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    timeout(LIMIT, read)
        .await
        .expect("it ends in time")
        .unwrap();
    answer
}

/// A pod with a web server and a program that sends back what it gets, and a service and a
/// deployment that lead to it.
pub(crate) async fn site() -> Site {
    let site = Site::over(with_addresses().await).await;
    let script = format!(
        "mkdir -p /tmp/www; busybox dd if=/dev/zero of=/tmp/www/file bs={FILE} count=1; echo hello > /tmp/www/hello; \
         busybox nc -ll -p 7000 -e cat & exec busybox httpd -f -p 127.0.0.1:8080 -h /tmp/www"
    );
    let mut main = shell(&script);
    let listen = "busybox netstat -ltn | busybox grep -q :8080 && busybox netstat -ltn | busybox grep -q :7000";
    main["readinessProbe"] = json!({"exec": {"command": ["sh", "-c", listen]}, "periodSeconds": 1});
    main["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    create(&site.cluster, "web", json!({"containers": [main]})).await;
    let ready = "/containerStatuses/0/ready";
    site.cluster.reaches("web", ready, json!(true)).await;
    let meta = json!({"name": "web", "namespace": "default"});
    let ports = json!([{"port": 80, "targetPort": "web"}]);
    let service: Service = serde_json::from_value(
        json!({"metadata": meta, "spec": {"selector": {"app": "web"}, "ports": ports}}),
    )
    .unwrap();
    site.cluster.admin.create(&service).await.unwrap();
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [shell("true")]}});
    let deployment: Deployment = serde_json::from_value(
        json!({"metadata": meta, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}}),
    )
    .unwrap();
    site.cluster.admin.create(&deployment).await.unwrap();
    site
}

#[test]
fn kubectl_forwards_ports_of_a_pod_to_its_own_loopback() {
    on_a_machine(|| async {
        ports_are_forwarded(&site().await).await;
    });
}

#[test]
fn kubectl_that_speaks_spdy_forwards_ports() {
    on_a_machine(|| async {
        let mut site = site().await;
        site.spdy = true;
        ports_are_forwarded(&site).await;
    });
}

async fn ports_are_forwarded(site: &Site) {
    let forward = Forward::new(site, "pod/web", &[":8080", ":7000"]).await;
    let sent_back = echo(&forward, 1);
    // Several connections at once, of both ports.
    let (one, two, three, echoed) = futures_util::join!(
        forward.get(0, "file"),
        forward.get(0, "hello"),
        forward.get(0, "file"),
        sent_back
    );
    for file in [one, three] {
        assert!(file.starts_with(b"HTTP/1.0 200 OK") || file.starts_with(b"HTTP/1.1 200 OK"));
        assert!(file.len() > FILE && file[file.len() - FILE..].iter().all(|byte| *byte == 0));
    }
    assert!(
        two.ends_with(b"\r\n\r\nhello\n"),
        "{}",
        String::from_utf8_lossy(&two)
    );
    assert!(
        echoed.len() == FILE && echoed.iter().all(|byte| *byte == b'e'),
        "{} bytes",
        echoed.len()
    );

    for (what, port) in [("service/web", ":80"), ("deployment/web", ":8080")] {
        let forward = Forward::new(site, what, &[port]).await;
        let answer = forward.get(0, "hello").await;
        assert!(answer.ends_with(b"hello\n"), "{what}");
    }
    a_closed_port_is_reported(site).await;
    a_client_that_goes_leaves_nothing(site, forward).await;
}

/// Sends bytes, closes its half, and reads everything that comes back.
async fn echo(forward: &Forward, which: usize) -> Vec<u8> {
    let stream = forward.connect(which).await;
    let (mut from, mut to) = stream.into_split();
    let writing = async {
        to.write_all(&vec![b'e'; FILE]).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let both = async { futures_util::join!(writing, from.read_to_end(&mut back)) };
    timeout(LIMIT, both)
        .await
        .expect("it ends in time")
        .1
        .unwrap();
    back
}

async fn a_closed_port_is_reported(site: &Site) {
    let forward = Forward::new(site, "pod/web", &[":9"]).await;
    assert!(rest(&mut forward.connect(0).await).await.is_empty());
    // kubectl ends with the first error from a node (upstream since 1.24).
    let ended = timeout(LIMIT, forward.kubectl.wait_with_output()).await;
    let errors = String::from_utf8(ended.expect("it ends in time").unwrap().stderr).unwrap();
    for words in [
        "an error occurred forwarding",
        "error forwarding port 9 to pod default/web, uid ",
        "IPv4: connect: connection refused IPv6: connect: connection refused",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
}

async fn a_client_that_goes_leaves_nothing(site: &Site, mut forward: Forward) {
    let mut stream = forward.connect(1).await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    assert!(established(site).await > 0);
    forward.kubectl.kill().await.unwrap();
    eventually("the pod's connections to end", || async {
        (established(site).await == 0).then_some(())
    })
    .await;
}

/// Connections that programs of the pod have.
async fn established(site: &Site) -> usize {
    let words = ["exec", "web", "--", "busybox", "netstat", "-tn"];
    let (code, out, errors) = site.run(&words, None).await;
    assert_eq!(code, 0, "{errors}");
    String::from_utf8(out)
        .unwrap()
        .matches("ESTABLISHED")
        .count()
}
