//! Programs behind the proxy as the API server sees them: which node gets which request, and
//! programs that speak TLS, lie or stall.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{HeaderMap, Method, StatusCode};
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_client::{BoxFuture, UserInfo};
use master_gateway::NodeLimits;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const PROXY: &str = "/api/v1/namespaces/default/pods";
const AGREES: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: pratique-pod-port\r\n\r\n";
const PAGE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 14\r\nconnection: close\r\n\r\n<a href=\"/x\">y";

/// A node that answers the master with this, and a program behind it that answers with that.
#[derive(Debug, Clone)]
struct Node {
    agreed: &'static str,
    program: &'static str,
    tls: Option<Arc<ServerConfig>>,
    /// The nodes that the master dialled, and the heads of all requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Node {
    fn new(agreed: &'static str, program: &'static str) -> Self {
        Self {
            agreed,
            program,
            tls: None,
            asked: Arc::default(),
        }
    }

    async fn speak(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        let head = head(&mut stream).await?;
        self.asked.lock().unwrap().push(head);
        stream.write_all(self.agreed.as_bytes()).await?;
        match &self.tls {
            Some(tls) => {
                let acceptor = tokio_rustls::TlsAcceptor::from(tls.clone());
                self.answer(acceptor.accept(stream).await?).await
            }
            None => self.answer(stream).await,
        }
    }

    async fn answer(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        let head = head(&mut stream).await?;
        self.asked.lock().unwrap().push(head);
        stream.write_all(self.program.as_bytes()).await?;
        stream.flush().await?;
        // Held until the master has had enough.
        stream.read_to_end(&mut Vec::new()).await.map(drop)
    }
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

impl NodeDialer for Node {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, far) = tokio::io::duplex(1024);
        let place = format!("{} {}:{}", target.name, target.address, target.port);
        self.asked.lock().unwrap().push(place);
        tokio::spawn(self.clone().speak(far));
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

fn tls() -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["nobody.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    Arc::new(config)
}

/// A server with a node and a pod on it with this address in its status.
async fn server(node: &Node, limits: NodeLimits) -> Local {
    let local = Local::with(Options {
        nodes: limits,
        ..Options::default()
    })
    .await;
    assert!(local.api.set_node_dialer(Arc::new(node.clone())));
    let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    let own = json!({"metadata": {"name": "n"}, "status": {"addresses": address}});
    let containers = json!([{"name": "c", "image": "x:1", "ports": [{"containerPort": 8080}]}]);
    let pod = |name: &str, node: &str| {
        let mut spec = json!({"containers": containers});
        if !node.is_empty() {
            spec["nodeName"] = json!(node);
        }
        json!({"metadata": {"name": name}, "spec": spec})
    };
    for (path, object) in [
        ("/api/v1/nodes", own),
        (PROXY, pod("p", "n")),
        (PROXY, pod("waits", "")),
    ] {
        let (status, answer) = local.admin_ask(Method::POST, path, &object).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    claim(&local, "10.1.0.2").await;
    local
}

/// Makes the pod's status claim an address, as its node may.
async fn claim(local: &Local, address: &str) -> String {
    let path = format!("{PROXY}/p/status");
    let (_, mut pod) = local
        .admin_ask(Method::GET, &format!("{PROXY}/p"), &Value::Null)
        .await;
    pod["status"]["podIP"] = json!(address);
    pod["status"]["podIPs"] = json!([{"ip": address}]);
    let (status, answer) = local.admin_ask(Method::PUT, &path, &pod).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn get(local: &Local, path: &str) -> (u16, HeaderMap, String) {
    let path = format!("{PROXY}/{path}");
    let admin = UserInfo::admin("a");
    let (status, headers, bytes) = local.send(&admin, Method::GET, &path, &[], "").await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (status.as_u16(), headers, text)
}

#[tokio::test]
async fn a_request_goes_to_the_pods_node_and_names_the_pod_and_no_address() {
    let node = Node::new(AGREES, PAGE);
    let local = server(&node, NodeLimits::default()).await;
    for claimed in ["10.1.0.2", "192.0.2.1", "10.96.0.1"] {
        let uid = claim(&local, claimed).await;
        let (status, headers, page) = get(&local, "p/proxy/x?a=b").await;
        let expected = format!("<a href=\"{PROXY}/p/proxy/x\">y");
        assert_eq!((status, page), (200, expected));
        assert!(!headers.contains_key("connection"));
        let asked = std::mem::take(&mut *node.asked.lock().unwrap());
        assert_eq!(asked[0], "n 192.0.2.1:10250", "only the node is dialled");
        let line = format!("GET /podPort/default/p/{uid}/8080 HTTP/1.1\r\n");
        assert!(asked[1].starts_with(&line), "{}", asked[1]);
        assert!(
            asked[2].starts_with("GET /x?a=b HTTP/1.1\r\n"),
            "{}",
            asked[2]
        );
        assert!(
            !asked
                .iter()
                .any(|asked| asked.contains(claimed) && claimed != "192.0.2.1")
        );
    }
    for claimed in ["127.0.0.1", "169.254.169.254", "::1"] {
        claim(&local, claimed).await;
        let (status, _, said) = get(&local, "p/proxy/").await;
        assert!(
            status == 400 && said.contains("address not allowed"),
            "{said}"
        );
    }
    for (path, code, words) in [
        ("waits/proxy/", 400, "does not have a host assigned"),
        ("none/proxy/", 404, "pods \\\"none\\\" not found"),
        ("p:0/proxy/", 400, "invalid port"),
        ("p:x/proxy/", 400, "invalid port"),
        ("p:1:2:3/proxy/", 400, "invalid pod request"),
    ] {
        let (status, _, said) = get(&local, path).await;
        assert!(
            status == code && said.contains(words),
            "{path}: {status} {said}"
        );
    }
    assert!(node.asked.lock().unwrap().is_empty(), "nobody was asked");
}

#[tokio::test]
async fn tls_is_spoken_with_the_program_where_the_path_says_so() {
    let mut node = Node::new(AGREES, PAGE);
    node.tls = Some(tls());
    let local = server(&node, NodeLimits::default()).await;
    let (status, _, page) = get(&local, "https:p:8080/proxy/").await;
    let expected = format!("<a href=\"{PROXY}/https:p:8080/proxy/x\">y");
    assert_eq!((status, page), (200, expected));
    let plain = server(&Node::new(AGREES, PAGE), NodeLimits::default()).await;
    let (status, _, _) = get(&plain, "http:p:8080/proxy/").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn refusals_and_invalid_answers_of_nodes_and_programs_have_reasons() {
    for (node, program, code, words) in [
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 47\r\n\r\ndial tcp 10.1.0.2:8080: connect: refused by all",
            "",
            503,
            "error trying to reach service: dial tcp 10.1.0.2:8080",
        ),
        (
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno!",
            "",
            403,
            "no!",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "",
            500,
            "ok",
        ),
        (AGREES, "SSH-2.0\r\n", 503, "error trying to reach service"),
        (
            AGREES,
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            502,
            "invalid upgrade response: status code 101",
        ),
    ] {
        let node = Node::new(node, program);
        let local = server(&node, NodeLimits::default()).await;
        let (status, _, said) = get(&local, "p/proxy/").await;
        assert!(status == code && said.contains(words), "{status} {said}");
    }
}

#[tokio::test]
async fn a_program_that_never_answers_is_given_up_and_its_place_is_free() {
    let limits = NodeLimits {
        program: Duration::from_millis(50),
        per_node: 1,
        ..NodeLimits::default()
    };
    let local = server(&Node::new(AGREES, ""), limits).await;
    for _ in 0..3 {
        let (status, _, said) = get(&local, "p/proxy/").await;
        assert!(
            status == 504 && said.contains("did not answer"),
            "{status} {said}"
        );
    }
}
