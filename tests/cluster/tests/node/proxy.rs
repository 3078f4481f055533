//! Programs in pods through the API's proxy, by the real `kubectl proxy`: upstream's conformance
//! cases (test/e2e, `network/proxy.go`), and addresses that must not be reachable.

use crate::cluster::shell;
use crate::network::{create, on_a_machine, with_addresses};
use crate::site::{LIMIT, eventually};
use crate::tunnels::Site;
use config_kube::k8s_openapi::api::core::v1::{Pod, Service};
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use master_client::Patch;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::time::timeout;

const BASE: &str = "/api/v1/namespaces/default";
/// Bytes that are sent and come back: more than any buffer on the way.
const MANY: usize = 2_000_000;

/// In place of upstream's `porter`: an HTTP server of all methods, for one connection. In a
/// variable's value `$$` and `$(…)` would mean something else.
const PORTER: &str = r#"#!/bin/sh
read -r method path version
: > /tmp/head
length=0
while IFS= read -r line; do
  line="${line%?}"
  [ -z "$line" ] && break
  echo "$line" >> /tmp/head
  case "$line" in [Cc]ontent-[Ll]ength:*) length="${line#*: }";; esac
done
say() {
  printf 'HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %s\r\nConnection: close\r\nX-Hop: 1\r\n\r\n' "$1" "$2" "${#3}"
  [ "$method" = HEAD ] || printf '%s' "$3"
}
case "$path" in
  /page*) say '200 OK' 'text/html; charset=utf-8' '<a href="/rewriteme">test</a>';;
  /head*) say '200 OK' text/plain "$path
`cat /tmp/head`";;
  /moved) printf 'HTTP/1.1 302 Found\r\nLocation: /there?a=b\r\nContent-Length: 0\r\n\r\n';;
  /back) printf 'HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n' "$length"; busybox head -c "$length";;
  /ws) printf 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'; cat;;
  *) say '200 OK' application/json "{\"Method\":\"$method\",\"Body\":\"foo\"}";;
esac
"#;

/// `kubectl proxy`, whose clients need neither TLS nor a credential.
struct Proxy {
    port: u16,
    _kubectl: Child,
}

impl Proxy {
    async fn new(site: &Site) -> Self {
        let words = ["proxy", "--address=127.0.0.1", "--port=0"];
        let mut kubectl = site.kubectl(&words).spawn().unwrap();
        let mut lines = BufReader::new(kubectl.stdout.take().unwrap()).lines();
        let line = timeout(LIMIT, lines.next_line()).await.expect("it begins");
        let line = line.unwrap().unwrap();
        let port = line.rsplit(':').next().unwrap().trim().parse().unwrap();
        Self {
            port,
            _kubectl: kubectl,
        }
    }

    async fn open(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// A request, with more lines of its head: the head of the answer, and its body.
    async fn ask(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> (String, Vec<u8>) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        let (mut from, mut to) = self.open(&request).await.into_split();
        let body = body.to_vec();
        let sending = tokio::spawn(async move {
            to.write_all(&body).await.ok();
            to
        });
        let mut answer = Vec::new();
        let read = timeout(LIMIT, from.read_to_end(&mut answer)).await;
        read.expect("it ends in time").unwrap();
        drop(sending.await.unwrap());
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
        let rest = answer.split_off(end.expect("a head") + 4);
        (String::from_utf8(answer).unwrap(), rest)
    }

    /// The status and the body of a GET. Pieces are put together.
    async fn get(&self, path: &str) -> (u16, String) {
        let (head, body) = self.ask("GET", path, "", b"").await;
        let chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = if chunked { joined(&body) } else { body };
        (status(&head), String::from_utf8(body).unwrap())
    }
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A body that came in pieces (RFC 9112, 7.1).
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|part| part == b"\r\n").unwrap();
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
}

async fn post<T>(site: &Site, object: Value) -> T
where
    T: master_client::Object + serde::de::DeserializeOwned,
{
    let object: T = serde_json::from_value(object).unwrap();
    site.cluster.admin.create(&object).await.unwrap()
}

/// An endpoint slice of a service, written by an authorized user.
fn slice(name: &str, service: &str, endpoint: &Value, port: u16) -> Value {
    let labels = json!({"kubernetes.io/service-name": service});
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "web", "protocol": "TCP", "port": port}],
    })
}

fn service(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "web", "port": 81, "targetPort": 8080}]},
    })
}

/// A pod that runs [`PORTER`] at its address and another server at its loopback alone, and a
/// service that leads to it.
async fn site() -> Site {
    let site = Site::over(with_addresses().await).await;
    let mut main = shell(
        "printf '%s' \"$PORTER\" > /tmp/porter; chmod +x /tmp/porter; mkdir /tmp/www; \
         busybox httpd -p 127.0.0.1:7000 -h /tmp/www; exec busybox nc -ll -p 8080 -e /tmp/porter",
    );
    main["env"] = json!([{"name": "PORTER", "value": PORTER}]);
    main["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    let listen = "busybox netstat -ltn | busybox grep -q :8080 && busybox netstat -ltn | busybox grep -q :7000";
    main["readinessProbe"] = json!({"exec": {"command": ["sh", "-c", listen]}, "periodSeconds": 1});
    create(&site.cluster, "porter", json!({"containers": [main]})).await;
    let ready = "/containerStatuses/0/ready";
    site.cluster.reaches("porter", ready, json!(true)).await;
    post::<Service>(&site, service("svc")).await;
    let pod = site.cluster.pod("porter").await.unwrap();
    let reference =
        json!({"kind": "Pod", "name": "porter", "namespace": "default", "uid": pod.metadata.uid});
    let endpoint = json!({"addresses": [pod.status.unwrap().pod_ip], "targetRef": reference});
    post::<EndpointSlice>(&site, slice("svc-1", "svc", &endpoint, 8080)).await;
    site
}

#[test]
fn programs_are_reached_through_the_api_as_upstreams_conformance_tests_ask() {
    on_a_machine(|| async {
        let site = site().await;
        let proxy = Proxy::new(&site).await;
        // "should proxy through a service and a pod"
        for place in [
            "pods/porter",
            "pods/porter:8080",
            "pods/porter:web",
            "pods/http:porter:8080",
            "services/svc:web",
            "services/svc:81",
            "services/http:svc:web",
        ] {
            let path = format!("{BASE}/{place}/proxy/page");
            let page = format!("<a href=\"{BASE}/{place}/proxy/rewriteme\">test</a>");
            assert_eq!(proxy.get(&path).await, (200, page), "{place}");
        }
        // "A set of valid responses are returned for both pod and service Proxy", and "…
        // ProxyWithPath"
        for place in ["pods/porter", "services/svc:web"] {
            for method in ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"] {
                let path = format!("{BASE}/{place}/proxy/some/path/with/{method}");
                let (head, body) = proxy.ask(method, &path, "", b"").await;
                assert_eq!(status(&head), 200, "{method}: {head}");
                let answer = format!("{{\"Method\":\"{method}\",\"Body\":\"foo\"}}");
                let length = format!("content-length: {}\r\n", answer.len());
                assert!(head.to_ascii_lowercase().contains(&length), "{head}");
                let expected = if method == "HEAD" {
                    String::new()
                } else {
                    answer
                };
                assert_eq!(String::from_utf8(body).unwrap(), expected, "{method}");
                let path = format!("{BASE}/{place}/proxy?method={method}");
                let (head, _) = proxy.ask(method, &path, "", b"").await;
                let redirected = matches!(method, "GET" | "HEAD");
                assert_eq!(status(&head), if redirected { 301 } else { 200 }, "{head}");
                let to = format!("location: {BASE}/{place}/proxy/?method={method}\r\n");
                assert_eq!(
                    head.to_ascii_lowercase().contains(&to.to_ascii_lowercase()),
                    redirected
                );
            }
        }
        headers_and_redirects(&proxy).await;
        bytes_pass_both_ways(&proxy).await;
        let raw = format!("{BASE}/services/svc:web/proxy/x");
        let (code, out, errors) = site.run(&["get", "--raw", &raw], None).await;
        let answer = "{\"Method\":\"GET\",\"Body\":\"foo\"}";
        assert_eq!(
            (code, &*String::from_utf8(out).unwrap()),
            (0, answer),
            "{errors}"
        );
    });
}

async fn headers_and_redirects(proxy: &Proxy) {
    let path = format!("{BASE}/pods/porter/proxy/head/a%2Fb?x=1&y=%20");
    let lines = "Cookie: own=1\r\nX-Remote-User: root\r\nTE: trailers\r\nX-Kept: yes\r\n";
    let (head, seen) = proxy.ask("GET", &path, lines, b"").await;
    assert_eq!(status(&head), 200, "{head}");
    let seen = String::from_utf8(seen).unwrap().to_ascii_lowercase();
    assert!(seen.starts_with("/head/a%2fb?x=1&y=%20\n"), "{seen}");
    for kept in [
        "cookie: own=1",
        "x-kept: yes",
        "x-forwarded-for: ",
        "x-forwarded-uri: ",
    ] {
        assert!(seen.contains(kept), "{kept}: {seen}");
    }
    for gone in ["x-remote-user", "\nte: ", "authorization", "\nconnection: "] {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    let (head, _) = proxy
        .ask(
            "GET",
            &format!("{BASE}/services/svc:web/proxy/moved"),
            "",
            b"",
        )
        .await;
    assert_eq!(status(&head), 302);
    let to = format!("\r\nlocation: {BASE}/services/svc:web/proxy/there?a=b\r\n");
    assert!(head.to_ascii_lowercase().contains(&to), "{head}");
}

async fn bytes_pass_both_ways(proxy: &Proxy) {
    let path = format!("{BASE}/pods/porter/proxy/back");
    let many = vec![b'e'; MANY];
    let (head, back) = proxy.ask("POST", &path, "", &many).await;
    assert!(
        status(&head) == 200 && back == many,
        "{} bytes: {head}",
        back.len()
    );

    let upgrade = format!(
        "GET {BASE}/services/svc:web/proxy/ws HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        proxy.port
    );
    let mut stream = proxy.open(&upgrade).await;
    let mut head = Vec::new();
    let reading = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"\x81\x85words").await.unwrap();
        let mut back = [0; 7];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"\x81\x85words");
    };
    timeout(LIMIT, reading).await.expect("in time");
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");
}

/// A program of the machine's own, which counts who calls.
async fn own(address: &str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::AcqRel);
            let secret = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";
            stream.write_all(secret).await.ok();
        }
    });
    (port, calls)
}

#[test]
fn nothing_but_pods_is_reached_through_the_proxy_whatever_slices_and_statuses_claim() {
    on_a_machine(|| async {
        let site = site().await;
        let proxy = Proxy::new(&site).await;
        let (port, calls) = own("0.0.0.0").await;
        let admin = &site.cluster.admin;
        let pod = site.cluster.pod("porter").await.unwrap();
        let address = pod.status.clone().unwrap().pod_ip.unwrap();
        let node = "10.1.0.1";
        let nowhere = |name: &str| format!("no endpoints available for service \\\"{name}\\\"");

        // Endpoints that no pod is, or not the pod that they name.
        let named = json!({"kind": "Pod", "name": "porter", "namespace": "default"});
        let elsewhere = json!({"kind": "Pod", "name": "porter", "namespace": "kube-system"});
        let older =
            json!({"kind": "Pod", "name": "porter", "namespace": "default", "uid": "older"});
        let a_node = json!({"kind": "Node", "name": "worker-1"});
        for (name, endpoint) in [
            ("free", json!({"addresses": [node]})),
            ("free-pod", json!({"addresses": [address]})),
            ("other", json!({"addresses": [node], "targetRef": named})),
            (
                "away",
                json!({"addresses": [address], "targetRef": elsewhere}),
            ),
            ("older", json!({"addresses": [address], "targetRef": older})),
            ("node", json!({"addresses": [node], "targetRef": a_node})),
        ] {
            post::<Service>(&site, service(name)).await;
            post::<EndpointSlice>(&site, slice(name, name, &endpoint, port)).await;
            let (code, said) = proxy
                .get(&format!("{BASE}/services/{name}:web/proxy/"))
                .await;
            assert!(
                code == 503 && said.contains(&nowhere(name)),
                "{name}: {code} {said}"
            );
        }
        let unready =
            json!({"addresses": [address], "targetRef": named, "conditions": {"ready": false}});
        post::<Service>(&site, service("unready")).await;
        post::<EndpointSlice>(&site, slice("unready", "unready", &unready, 8080)).await;
        for (path, code, words) in [
            ("services/unready:web", 503, nowhere("unready")),
            (
                "services/svc:82",
                503,
                "no service port 82 found for service".to_owned(),
            ),
            ("services/svc:nope", 503, nowhere("svc")),
            ("services/none:web", 404, "not found".to_owned()),
            ("pods/none:80", 404, "not found".to_owned()),
            // The pod's own loopback is its own.
            ("pods/porter:7000", 503, "connection refused".to_owned()),
            ("pods/ftp:porter:80", 400, "invalid pod request".to_owned()),
        ] {
            let (seen, said) = proxy.get(&format!("{BASE}/{path}/proxy/")).await;
            assert!(
                seen == code && said.contains(&words),
                "{path}: {seen} {said}"
            );
        }

        // A status that claims another address changes nothing: the pod is reached, or nothing is.
        for (claimed, code) in [(node, 503), ("127.0.0.1", 400), ("169.254.169.254", 400)] {
            let claim = json!({"status": {"podIP": claimed, "podIPs": [{"ip": claimed}]}});
            let claim = Patch::Merge(claim);
            let patched = admin.patch_status::<Pod>(Some("default"), "porter", &claim);
            patched.await.unwrap();
            let (seen, said) = proxy
                .get(&format!("{BASE}/pods/porter:{port}/proxy/"))
                .await;
            assert!(
                !said.contains("secret") && (seen == code || seen == 503),
                "{claimed}: {seen} {said}"
            );
        }
        assert_eq!(
            calls.load(Ordering::Acquire),
            0,
            "nobody called the machine's program"
        );
    });
}

#[test]
fn on_the_machines_network_only_declared_ports_are_proxied() {
    on_a_machine(|| async {
        let site = Site::over(with_addresses().await).await;
        let proxy = Proxy::new(&site).await;
        let (port, calls) = own("0.0.0.0").await;
        let (declared, _) = own("0.0.0.0").await;
        let mut main = shell("sleep 100000");
        main["ports"] = json!([{"containerPort": declared, "hostPort": declared}]);
        let spec = json!({"hostNetwork": true, "containers": [main]});
        site.cluster.create("host", spec).await;
        site.cluster
            .reaches("host", "/phase", json!("Running"))
            .await;
        // The lab's machine has no other address than its loopback: its status is no pod's.
        let claim = json!({"status": {"podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}});
        eventually("an answer by the pod's declared port", || async {
            let claim = Patch::Merge(claim.clone());
            let admin = &site.cluster.admin;
            let patched = admin.patch_status::<Pod>(Some("default"), "host", &claim);
            patched.await.unwrap();
            let (code, said) = proxy
                .get(&format!("{BASE}/pods/host:{declared}/proxy/"))
                .await;
            (code == 200 && said == "secret").then_some(())
        })
        .await;
        eventually("the refusal of another", || async {
            let claim = Patch::Merge(claim.clone());
            let admin = &site.cluster.admin;
            let patched = admin.patch_status::<Pod>(Some("default"), "host", &claim);
            patched.await.unwrap();
            let (code, said) = proxy.get(&format!("{BASE}/pods/host:{port}/proxy/")).await;
            (code == 403 && said.contains("that its containers declare")).then_some(())
        })
        .await;
        assert_eq!(calls.load(Ordering::Acquire), 0);
    });
}
