//! Tunnels through the server: who may open one, what passes, how many there are, and when one is
//! cut.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Identity, Local, Server};
use http::{Method, Request, Response, StatusCode};
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_client::{Body, BoxFuture, UserInfo};
use master_gateway::NodeLimits;
use master_listener::{DenyList, Extensions, Peer, ServeOptions};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const LIMIT: Duration = Duration::from_secs(60);
const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec?container=c&command=echo&command=a%20%26b&stdin=true&stdout=true&tty=false";
const AGREES: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nsec-websocket-protocol: v5.channel.k8s.io\r\nx-secret: 1\r\n\r\n";

/// A kubelet that answers a handshake with this, and then sends back what it gets.
#[derive(Debug, Clone)]
struct Echo {
    answer: &'static str,
    asked: Arc<Mutex<String>>,
    /// Set when the last connection is closed.
    closed: Arc<AtomicBool>,
}

impl Echo {
    fn new(answer: &'static str) -> Self {
        Self {
            answer,
            asked: Arc::default(),
            closed: Arc::default(),
        }
    }

    async fn speak(&self, mut stream: DuplexStream) -> std::io::Result<()> {
        let head = head(&mut stream).await;
        *self.asked.lock().unwrap() = head;
        stream.write_all(self.answer.as_bytes()).await?;
        let mut bytes = [0; 64];
        loop {
            match stream.read(&mut bytes).await? {
                0 => return Ok(()),
                count => stream.write_all(&bytes[..count]).await?,
            }
        }
    }

    async fn until_closed(&self) {
        timeout(LIMIT, async {
            while !self.closed.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
        .expect("the node's side is closed");
    }
}

impl NodeDialer for Echo {
    fn dial(&self, _target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, far) = tokio::io::duplex(1024);
        let kubelet = self.clone();
        tokio::spawn(async move {
            kubelet.speak(far).await.ok();
            kubelet.closed.store(true, Ordering::Release);
        });
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

/// A request's or an answer's head.
pub(crate) async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A server with a node, a pod on it, a pod without one, and this kubelet.
async fn server(kubelet: &Echo, limits: NodeLimits) -> Server {
    server_with(Arc::new(kubelet.clone()), limits).await
}

/// The same, with a kubelet of any kind.
pub(crate) async fn server_with(kubelet: Arc<dyn NodeDialer>, limits: NodeLimits) -> Server {
    let local = Local::with(Options {
        nodes: limits,
        ..Options::default()
    })
    .await;
    assert!(local.api.set_node_dialer(kubelet));
    let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": address}});
    let containers = json!([{"name": "c", "image": "x:1"}]);
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": containers}});
    let waits = json!({"metadata": {"name": "waits"}, "spec": {"containers": containers}});
    for (path, object) in [
        ("/api/v1/nodes", node),
        ("/api/v1/namespaces/default/pods", pod),
        ("/api/v1/namespaces/default/pods", waits),
    ] {
        let (status, answer) = local.admin_ask(Method::POST, path, &object).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    Server::over(local, ServeOptions::default()).await
}

/// A client that asks to upgrade, and the head of the answer.
async fn ask(server: &Server, who: &Identity, path: &str) -> (TlsStream<TcpStream>, String) {
    ask_with(server, who, path, "").await
}

/// The same with more headers.
async fn ask_with(
    server: &Server,
    who: &Identity,
    path: &str,
    headers: &str,
) -> (TlsStream<TcpStream>, String) {
    let tls = server.client_tls(Some(who), b"http/1.1");
    let mut stream = server.stream(tls).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nauthorization: Basic c2VjcmV0\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-extensions: permessage-deflate\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(LIMIT, head(&mut stream)).await.expect("an answer");
    (stream, head)
}

/// A client that asks for SPDY, as kubectl before 1.31 does.
async fn post(server: &Server, who: &Identity, path: &str) -> (TlsStream<TcpStream>, String) {
    let tls = server.client_tls(Some(who), b"http/1.1");
    let mut stream = server.stream(tls).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\ncontent-length: 0\r\n\
         x-stream-protocol-version: v5.channel.k8s.io\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(LIMIT, head(&mut stream)).await.expect("an answer");
    (stream, head)
}

/// The same where it is refused: status line and message.
async fn refused(server: &Server, who: &Identity, path: &str) -> (String, String) {
    let (mut stream, head) = ask(server, who, path).await;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok())
        .expect("a refusal has a length");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let status = head.lines().next().unwrap_or_default().to_owned();
    (
        status,
        body["message"].as_str().unwrap_or_default().to_owned(),
    )
}

async fn echoes(stream: &mut TlsStream<TcpStream>, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut back = vec![0; text.len()];
    let read = timeout(LIMIT, stream.read_exact(&mut back)).await;
    read.expect("in time").unwrap();
    assert_eq!(back, text.as_bytes());
}

/// Whether the server ended the connection.
async fn is_cut(stream: &mut TlsStream<TcpStream>) -> bool {
    let read = timeout(LIMIT, stream.read(&mut [0; 64])).await;
    matches!(read.expect("in time"), Ok(0) | Err(_))
}

#[tokio::test]
async fn a_page_of_another_origin_opens_nothing_with_its_readers_certificate() {
    let kubelet = Echo::new(AGREES);
    let server = server(&kubelet, NodeLimits::default()).await;
    let admin = server.admin_identity();
    let foreign = "origin: https://page.example\r\n";
    let pod = "/api/v1/namespaces/default/pods/p";
    for path in [
        EXEC,
        &format!("{pod}/attach?stdout=1"),
        &format!("{pod}/portforward?ports=80"),
        &format!("{pod}/proxy/"),
        "/api/v1/nodes/n/proxy/exec/default/p/c?command=sh&output=1",
        "/api/v1/namespaces/default/services/s/proxy/",
        &format!("{pod}/log"),
        "/api/v1/namespaces/default/configmaps?watch=1",
    ] {
        let (_stream, head) = ask_with(&server, &admin, path, foreign).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{path}: {head}");
    }
    assert_eq!(*kubelet.asked.lock().unwrap(), "", "the node is not asked");
    let own = "origin: https://x:6443\r\n";
    let (_stream, head) = ask_with(&server, &admin, EXEC, own).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    server.stop().await;
}

/// A service beside the API that notes whether it was asked.
#[derive(Debug, Default)]
struct Beside(AtomicBool);

impl Extensions for Beside {
    fn claims(&self, path: &str) -> bool {
        path.starts_with("/authority/")
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        self.0.store(true, Ordering::Release);
        Box::pin(std::future::ready(Response::new(master_client::body(""))))
    }
}

/// Sends what an admin's browser does, without a type, and returns the head of the answer.
async fn posted(server: &Server, path: &str, headers: &str, sent: &str) -> String {
    let tls = server.client_tls(Some(&server.admin_identity()), b"http/1.1");
    let mut stream = server.stream(tls).await.unwrap();
    let length = sent.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{sent}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    timeout(LIMIT, head(&mut stream)).await.expect("an answer")
}

#[tokio::test]
async fn a_page_of_another_origin_writes_nothing_with_its_readers_certificate() {
    let server = server(&Echo::new(AGREES), NodeLimits::default()).await;
    let beside = Arc::new(Beside::default());
    assert!(server.local.api.set_extensions(beside.clone()));
    let map = r#"{"metadata":{"name":"planted"}}"#;
    let rotate = "/authority/v1/root/rotate";
    for (path, sent) in [
        ("/api/v1/namespaces/default/configmaps", map),
        ("/api/v1/nodes/n/power?action=poweroff", ""),
        (rotate, ""),
        ("/authority/v1/root/finish?force=true", ""),
        ("/authority/v1/root/abandon", ""),
    ] {
        let head = posted(&server, path, "origin: https://page.example\r\n", sent).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{path}: {head}");
    }
    assert!(!beside.0.load(Ordering::Acquire), "the root is not rotated");
    let admin = UserInfo::admin("admin");
    let shown = server.local.send(&admin, Method::GET, "/metrics", &[], "");
    let (_, _, shown) = shown.await;
    let shown = String::from_utf8_lossy(&shown);
    let refused = r#"apiserver_request_total{code="403","#;
    let mut counted = shown.lines().filter(|line| line.starts_with(refused));
    let counted = counted.next().unwrap();
    assert!(counted.ends_with(" 5"), "{counted}");
    let head = posted(&server, rotate, "", "").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "no page asks: {head}");
    assert!(beside.0.load(Ordering::Acquire));
    server.stop().await;
}

/// What `kubectl port-forward` shows is at the loopback, as `kubectl proxy` is, at another port.
#[tokio::test]
async fn a_forwarded_page_of_a_pod_does_nothing_by_a_proxy_beside_it() {
    let server = server(&Echo::new(AGREES), NodeLimits::default()).await;
    let beside = Arc::new(Beside::default());
    assert!(server.local.api.set_extensions(beside.clone()));
    let admin = server.admin_identity();
    let secrets = "/api/v1/secrets?watch=1";
    let rotate = "/authority/v1/root/rotate";
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let planted = r#"{"metadata":{"name":"planted"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}}"#;
    for site in ["same-site", "cross-site"] {
        let page = format!("origin: http://localhost:8080\r\nsec-fetch-site: {site}\r\n");
        for path in [secrets, EXEC] {
            let (_stream, head) = ask_with(&server, &admin, path, &page).await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{path}: {head}");
        }
        for (path, sent) in [(bindings, planted), (rotate, "")] {
            let head = posted(&server, path, &page, sent).await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{path}: {head}");
        }
    }
    assert!(!beside.0.load(Ordering::Acquire), "the root is not rotated");
    let own = "origin: http://localhost:8001\r\nsec-fetch-site: same-origin\r\n";
    let (_stream, head) = ask_with(&server, &admin, EXEC, own).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let head = posted(&server, bindings, own, planted).await;
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn a_command_reaches_the_pods_node_and_bytes_pass_both_ways() {
    let kubelet = Echo::new(AGREES);
    let server = server(&kubelet, NodeLimits::default()).await;
    let (mut stream, head) = ask(&server, &server.admin_identity(), EXEC).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for line in [
        "upgrade: websocket",
        "connection: Upgrade",
        "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "sec-websocket-protocol: v5.channel.k8s.io",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    assert!(!head.contains("x-secret"), "{head}");
    let asked = kubelet.asked.lock().unwrap().clone();
    let path = "GET /exec/default/p/c?command=echo&command=a%20%26b&input=1&output=1 HTTP/1.1";
    assert_eq!(asked.lines().next(), Some(path));
    for kept in ["authorization", "extensions"] {
        assert!(!asked.contains(kept), "{asked}");
    }
    echoes(&mut stream, "one").await;
    echoes(&mut stream, "GET / HTTP/1.1\r\n\r\n").await;
    drop(stream);
    kubelet.until_closed().await;
    server.stop().await;
}

#[tokio::test]
async fn port_forward_and_attach_reach_the_pods_node() {
    let kubelet = Echo::new(AGREES);
    let server = server(&kubelet, NodeLimits::default()).await;
    for (path, nodes) in [
        ("portforward", "/portForward/default/p"),
        (
            "portforward?ports=80&ports=443",
            "/portForward/default/p?port=80&port=443",
        ),
        (
            "attach?stdin=true&stdout=true&tty=true",
            "/attach/default/p/c?input=1&output=1&tty=1",
        ),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/p/{path}");
        let (mut stream, head) = ask(&server, &server.admin_identity(), &path).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let asked = kubelet.asked.lock().unwrap().clone();
        let line = format!("GET {nodes} HTTP/1.1");
        assert_eq!(asked.lines().next(), Some(&*line));
        echoes(&mut stream, "one").await;
    }
    server.stop().await;
}

#[tokio::test]
async fn what_an_older_client_posts_reaches_the_node_with_its_protocols_and_needs_a_right_to_create()
 {
    let agrees = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: SPDY/3.1\r\n\
        x-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";
    let kubelet = Echo::new(agrees);
    let server = server(&kubelet, NodeLimits::default()).await;
    let (mut stream, head) = post(&server, &server.admin_identity(), EXEC).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for line in [
        "upgrade: SPDY/3.1",
        "connection: Upgrade",
        "x-stream-protocol-version: v4.channel.k8s.io",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    let asked = kubelet.asked.lock().unwrap().clone();
    let path = "POST /exec/default/p/c?command=echo&command=a%20%26b&input=1&output=1 HTTP/1.1\r\n";
    assert!(asked.starts_with(path), "{asked}");
    for offered in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let line = format!("x-stream-protocol-version: {offered}\r\n");
        assert!(asked.contains(&line), "{asked}");
    }
    echoes(&mut stream, "\u{0}\u{1}frames").await;
    let stranger = server.authority.issue("stranger", &[], &[]);
    let (_, head) = post(&server, &stranger, EXEC).await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn each_refusal_of_a_tunnel_has_its_reason() {
    let kubelet = Echo::new(AGREES);
    let limits = NodeLimits {
        tunnels_per_node: 1,
        ..NodeLimits::default()
    };
    let server = server(&kubelet, limits).await;
    let admin = server.admin_identity();
    let base = "/api/v1/namespaces/default/pods";
    for (path, status, message) in [
        (
            "none/exec?command=a&stdout=1",
            "404",
            "pods \"none\" not found",
        ),
        (
            "waits/exec?command=a&stdout=1",
            "400",
            "does not have a host assigned",
        ),
        (
            "p/exec?command=a&stdout=1&container=x",
            "400",
            "container x is not valid for pod p",
        ),
        ("p/exec?stdout=1", "400", "at least one command"),
        (
            "waits/attach?stdout=1",
            "400",
            "does not have a host assigned",
        ),
        (
            "p/attach?stdout=1&container=x",
            "400",
            "container x is not valid for pod p",
        ),
        ("none/portforward", "404", "pods \"none\" not found"),
        ("waits/portforward", "400", "does not have a host assigned"),
    ] {
        let (line, said) = refused(&server, &admin, &format!("{base}/{path}")).await;
        assert!(
            line.contains(status) && said.contains(message),
            "{path}: {line} {said}"
        );
    }
    let (status, body) = server.local.admin_ask(Method::GET, EXEC, &json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(body["message"], "Upgrade request required");

    let (mut first, head) = ask(&server, &admin, EXEC).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let (line, said) = refused(&server, &admin, EXEC).await;
    assert!(
        line.contains("429") && said.contains("too many tunnels of node n"),
        "{said}"
    );
    echoes(&mut first, "the first goes on").await;
    let logs = format!("{base}/p/log");
    let (status, _) = server.local.admin_ask(Method::GET, &logs, &json!({})).await;
    assert_ne!(
        status,
        StatusCode::TOO_MANY_REQUESTS,
        "logs have places of their own"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_right_to_get_is_no_right_to_run() {
    let kubelet = Echo::new(AGREES);
    let server = server(&kubelet, NodeLimits::default()).await;
    let group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    for (name, verbs) in [
        ("reader", json!(["get"])),
        ("runner", json!(["get", "create"])),
    ] {
        let rules = json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": verbs}]);
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let to = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        let who = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]);
        let binding = json!({"metadata": {"name": name}, "roleRef": to, "subjects": who});
        for (kind, object) in [("roles", role), ("rolebindings", binding)] {
            let path = format!("{group}/{kind}");
            let (status, said) = server.local.admin_ask(Method::POST, &path, &object).await;
            assert_eq!(status, StatusCode::CREATED, "{said}");
        }
    }
    let reader = server.authority.issue("reader", &[], &[]);
    let ports = "/api/v1/namespaces/default/pods/p/portforward";
    let own = "/api/v1/namespaces/default/pods/p/attach?stdout=1";
    for (path, resource) in [
        (EXEC, "pods/exec"),
        (ports, "pods/portforward"),
        (own, "pods/attach"),
    ] {
        let (line, said) = refused(&server, &reader, path).await;
        assert!(line.contains("403"), "{line}");
        let reason = format!("cannot create resource \"{resource}\"");
        assert!(said.contains(&reason), "{said}");
    }
    let runner = server.authority.issue("runner", &[], &[]);
    let (mut stream, head) = ask(&server, &runner, EXEC).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    echoes(&mut stream, "it runs").await;
    server.stop().await;
}

#[tokio::test]
async fn a_nodes_refusal_is_passed_on_and_an_invalid_answer_is_an_error() {
    for (answer, status, message) in [
        (
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 13\r\n\r\nis not there\n",
            "400",
            "is not there",
        ),
        (
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 5\r\n\r\nfull\n",
            "429",
            "full",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "500",
            "ok",
        ),
        (
            "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
            "500",
            "",
        ),
        ("SSH-2.0\r\n", "500", "the node did not answer"),
    ] {
        let server = server(&Echo::new(answer), NodeLimits::default()).await;
        let (line, said) = refused(&server, &server.admin_identity(), EXEC).await;
        assert!(
            line.contains(status) && said.contains(message),
            "{line} {said}"
        );
        server.stop().await;
    }
}

/// Denies users and nodes by these names.
#[derive(Debug)]
pub(crate) struct List(tokio::sync::watch::Sender<u64>, Mutex<Vec<&'static str>>);

impl List {
    pub(crate) fn new() -> Arc<Self> {
        let changed = tokio::sync::watch::Sender::new(0);
        Arc::new(Self(changed, Mutex::default()))
    }

    pub(crate) fn deny(&self, name: &'static str) {
        self.1.lock().unwrap().push(name);
        self.0.send_modify(|generation| *generation += 1);
    }

    fn has(&self, name: &str) -> Option<String> {
        let denied = self.1.lock().unwrap();
        denied.contains(&name).then(|| "it is retired".to_owned())
    }
}

impl DenyList for List {
    fn denied(&self, user: &UserInfo, _: &Peer) -> Option<String> {
        self.has(&user.name)
    }

    fn node_denied(&self, node: &str) -> Option<String> {
        self.has(node)
    }

    fn changed(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.subscribe()
    }
}

#[tokio::test]
async fn a_tunnel_ends_with_the_right_of_its_caller_of_its_node_and_with_the_server() {
    let kubelet = Echo::new(AGREES);
    let server = server(&kubelet, NodeLimits::default()).await;
    let list = List::new();
    assert!(server.local.api.set_deny_list(list.clone()));
    let bad = server.authority.issue("bad", &["system:masters"], &[]);
    let (mut denied, _) = ask(&server, &bad, EXEC).await;
    // Impersonation does not hide the denied caller.
    let actor = server.authority.issue("actor", &["system:masters"], &[]);
    let acting =
        "HTTP/1.1\r\nimpersonate-user: jane\r\nimpersonate-group: system:masters\r\nx-end:";
    let (mut acted, head) = ask(&server, &actor, &format!("{EXEC} {acting}")).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let (mut kept, _) = ask(&server, &server.admin_identity(), EXEC).await;
    echoes(&mut denied, "before").await;
    list.deny("bad");
    assert!(is_cut(&mut denied).await);
    echoes(&mut acted, "before").await;
    list.deny("actor");
    assert!(is_cut(&mut acted).await);
    echoes(&mut kept, "another's goes on").await;
    let (mut another, _) = ask(&server, &server.admin_identity(), EXEC).await;
    list.deny("n");
    assert!(is_cut(&mut kept).await && is_cut(&mut another).await);
    let (line, said) = refused(&server, &server.admin_identity(), EXEC).await;
    assert!(
        line.contains("503") && said.contains("it is retired"),
        "{line} {said}"
    );
    list.1.lock().unwrap().clear();
    let (mut stream, head) = ask(&server, &server.admin_identity(), EXEC).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    server.stop().await;
    assert!(is_cut(&mut stream).await);
}
