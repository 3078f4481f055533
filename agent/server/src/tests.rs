//! The kubelet's port under strangers who hold what they can.

use crate::{KubeletState, Parts, Server};
use agent_api::{Answer, Api, Call, Lines};
use agent_claims::Folders;
use agent_cluster::{SandboxOptions, Sandboxes};
use agent_csi::Csi;
use agent_journal::Journal;
use agent_port::Limits;
use agent_resources::Figures;
use agent_resources::machine::Facts;
use agent_runtime::{Containerd, Options, PodRef, Registries};
use bytes::Bytes;
use config_kube::identity::APISERVER_KUBELET_USER;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use config_machine::power::Order;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest wait for what takes no time.
const LIMIT: Duration = Duration::from_secs(180);
/// Nothing in these tests ends because time passed.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// A master that knows no token and grants nothing.
#[derive(Debug)]
struct NoMaster;

impl Api for NoMaster {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        if call.path.ends_with("reviews") {
            let said = br#"{"status":{"allowed":false,"authenticated":false}}"#;
            return Box::pin(async { Ok(Bytes::from_static(said)) });
        }
        Box::pin(std::future::pending())
    }

    fn watch(&self, _path: String) -> Answer<'_, Lines> {
        Box::pin(std::future::pending())
    }

    fn figures(&self) -> String {
        "kubelet_server_expiration_renew_errors 3\n".to_owned()
    }
}

/// A kubelet without pods.
#[derive(Debug)]
struct Idle;

impl KubeletState for Idle {
    fn pods(&self) -> Vec<Arc<Pod>> {
        Vec::new()
    }

    fn uid_of(&self, shown: &str) -> String {
        shown.to_owned()
    }

    fn pod(&self, _namespace: &str, _name: &str) -> Option<PodRef> {
        None
    }

    fn status(&self, _pod: &PodRef) -> Option<PodStatus> {
        None
    }

    fn settings(&self) -> String {
        r#"{"kubeletconfig":{"maxPods":10}}"#.to_owned()
    }

    fn version(&self) -> &'static str {
        "v1.36.0"
    }
}

/// A kubelet's port, and the cluster's authority.
struct Lab {
    /// The orders that end the machine.
    orders: mpsc::Receiver<Order>,
    dir: tempfile::TempDir,
    root: CertifiedIssuer<'static, KeyPair>,
    address: SocketAddr,
    _end: watch::Sender<bool>,
}

impl Lab {
    async fn new(limits: Limits) -> Self {
        Self::on(limits, true).await
    }

    /// With `machine` on one that was booted from an image.
    async fn on(limits: Limits, machine: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let runtime = Containerd::new(Options {
            socket: dir.path().join("containerd.sock"),
            state: dir.path().join("state"),
            fifos: dir.path().join("fifos"),
            logs: dir.path().join("logs"),
            registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
            programs: None,
            archives: Vec::new(),
        });
        let sandboxes = Sandboxes::open(SandboxOptions {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        })
        .unwrap();
        let drivers = agent_csi::DriverOptions {
            data: dir.path().to_owned(),
            node: "node".to_owned(),
            allowed: false,
            call_limit: agent_csi::DriverOptions::CALL_LIMIT,
        };
        let server = Server::new(Parts {
            node: Arc::new(Idle),
            name: "node".to_owned(),
            addresses: watch::channel(Vec::new()).1,
            logs: dir.path().join("logs"),
            api: Arc::new(NoMaster),
            runtime: Arc::new(runtime),
            sandboxes: Arc::new(sandboxes),
            figures: Arc::new(Figures::of_machine("node")),
            facts: Facts::of_machine(dir.path()),
            folders: Arc::new(Folders::below(dir.path())),
            csi: Arc::new(Csi::open(drivers, Arc::new(NoMaster))),
            journal: Journal::new(agent_journal::LogPaths {
                folder: dir.path().join("machine"),
                kernel: dir.path().join("no-kernel"),
            }),
        });
        let (sender, orders) = mpsc::channel(1);
        let server = if machine {
            server.ending_by(sender)
        } else {
            server
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = watch::channel(false);
        let (certificate, key) = issue(&root, "node");
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(trust(&root)),
            Arc::new(rustls::crypto::ring::default_provider()),
        );
        let tls =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
                .with_single_cert(vec![certificate], key.into())
                .unwrap();
        tokio::spawn(agent_port::serve(
            limits,
            listener,
            Arc::new(tls),
            server,
            ended,
        ));
        Self {
            orders,
            dir,
            root,
            address,
            _end: end,
        }
    }

    /// Opens a connection from an address of the loopback network and says nothing.
    async fn hold(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((IpAddr::V4(from), 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A request by the holder of a certificate with this name; the status line. `None` where it
    /// was cut.
    async fn ask(&self, from: Ipv4Addr, name: Option<&str>, path: &str) -> Option<String> {
        let answer = self.ask_whole(from, name, path).await?;
        answer.lines().next().map(str::to_owned)
    }

    /// The same, with all of the answer.
    async fn ask_whole(&self, from: Ipv4Addr, name: Option<&str>, path: &str) -> Option<String> {
        self.call(from, name, &format!("GET {path}")).await
    }

    /// The same, by a method, which stands before the path.
    async fn call(&self, from: Ipv4Addr, name: Option<&str>, asked: &str) -> Option<String> {
        let mut stream = self.connect(from, name).await?;
        let request = format!("{asked} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok();
        Some(answer)
    }

    /// A connection by the holder of a certificate with this name.
    async fn connect(&self, from: Ipv4Addr, name: Option<&str>) -> Option<TlsStream<TcpStream>> {
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(trust(&self.root));
        let tls = match name {
            Some(name) => {
                let (certificate, key) = issue(&self.root, name);
                builder
                    .with_client_auth_cert(vec![certificate], key.into())
                    .unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let stream = self.hold(from).await;
        let name = ServerName::try_from("node").unwrap();
        let connector = TlsConnector::from(Arc::new(tls));
        connector.connect(name, stream).await.ok()
    }

    async fn master(&self, from: Ipv4Addr, path: &str) -> String {
        let asked = timeout(LIMIT, self.ask(from, Some(APISERVER_KUBELET_USER), path)).await;
        asked
            .expect("the master's call is answered in time")
            .expect("it is not cut")
    }
}

fn trust(root: &CertifiedIssuer<'_, KeyPair>) -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add(root.as_ref().der().clone()).unwrap();
    store
}

fn issue(
    root: &CertifiedIssuer<'_, KeyPair>,
    name: &str,
) -> (CertificateDer<'static>, PrivatePkcs8KeyDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.signed_by(&key, root).unwrap();
    (certificate.der().clone(), key.serialize_der().into())
}

fn limits() -> Limits {
    Limits {
        patience: FOR_EVER,
        kept: FOR_EVER,
        ..Limits::default()
    }
}

/// Whether the kubelet closed a connection.
async fn cut(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn the_agents_figures_are_for_the_master_alone() {
    let lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    let figures = lab.ask_whole(own, Some(APISERVER_KUBELET_USER), "/metrics");
    let figures = figures.await.expect("an answer");
    assert!(figures.starts_with("HTTP/1.1 200 OK\r\n"), "{figures}");
    assert!(
        figures.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{figures}"
    );
    let memory = figures
        .lines()
        .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
        .and_then(|bytes| bytes.parse::<u64>().ok());
    assert!(memory.is_some_and(|bytes| bytes > 0), "{figures}");
    let of_api = "kubelet_server_expiration_renew_errors 3";
    assert!(figures.lines().any(|line| line == of_api), "{figures}");
    let other = lab.ask(own, Some("system:node:other"), "/metrics").await;
    assert_eq!(other.as_deref(), Some("HTTP/1.1 403 Forbidden"));
}

#[tokio::test]
async fn the_kubelet_s_settings_are_shown_to_the_master_and_not_to_all() {
    let lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    let answer = lab.ask_whole(own, Some(APISERVER_KUBELET_USER), "/configz");
    let answer = answer.await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("\r\ncontent-type: application/json\r\n"),
        "{answer}"
    );
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["kubeletconfig"]["maxPods"], 10);
    for (path, line) in [
        ("/statusz", "Binary version: 1.36.0"),
        ("/flagz", "kubelet flags"),
    ] {
        let answer = lab.ask_whole(own, Some(APISERVER_KUBELET_USER), path);
        let answer = answer.await.expect("an answer");
        assert!(answer.contains(line), "{answer}");
    }
    let other = lab.ask(own, Some("system:node:other"), "/configz").await;
    assert_eq!(other.as_deref(), Some("HTTP/1.1 403 Forbidden"));
}

#[tokio::test]
async fn the_machine_s_logs_are_for_who_may_and_no_other_file_is() {
    let lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    let folder = lab.dir.path().join("machine");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("agent.log"), "an earlier line\n").unwrap();
    let answer = lab.ask_whole(own, Some(APISERVER_KUBELET_USER), "/logs/?query=kubelet");
    let answer = answer.await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains(" agent: an earlier line\n"), "{answer}");
    for path in [
        "/logs/agent.log",
        "/logs/../../etc/shadow",
        "/logs/..%2f..%2fetc/shadow",
        "/logs//etc/shadow",
    ] {
        let status = lab.master(own, path).await;
        assert_eq!(status, "HTTP/1.1 404 Not Found", "{path}");
    }
    for query in [
        "query=/etc/shadow",
        "query=master",
        "query=agent&pattern=(",
        "quer=agent",
    ] {
        let status = lab.master(own, &format!("/logs/?{query}")).await;
        assert_eq!(status, "HTTP/1.1 400 Bad Request", "{query}");
    }
    for (name, status) in [
        (None, "HTTP/1.1 401 Unauthorized"),
        (Some("system:node:other"), "HTTP/1.1 403 Forbidden"),
    ] {
        let asked = lab.ask(own, name, "/logs/?query=agent").await;
        assert_eq!(asked.as_deref(), Some(status));
    }
}

/// The master's connection waits for its next request for a time of its own.
#[tokio::test]
async fn the_masters_connection_waits_for_its_next_request_for_a_while() {
    let kept = Duration::from_millis(100);
    let lab = Lab::new(Limits { kept, ..limits() }).await;
    let master = Some(APISERVER_KUBELET_USER);
    let mut stream = lab.connect(Ipv4Addr::LOCALHOST, master).await.unwrap();
    let mut answer = Vec::new();
    let ended = timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    ended
        .expect("the connection ends, and nothing else does here")
        .ok();
}

/// Strangers who hold every place in the handshake, and take each one again that they lose, keep
/// the master out of nothing: from one address, and from every address of the master's own network.
#[tokio::test]
async fn strangers_in_the_handshake_hold_no_place_of_the_masters() {
    let lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    assert_eq!(lab.master(own, "/healthz").await, "HTTP/1.1 200 OK");
    let mut held = Vec::new();
    for number in 0..600_u32 {
        let host = u8::try_from(2 + number % 100).unwrap();
        let one = Ipv4Addr::new(127, 0, 0, if number < 300 { 200 } else { host });
        held.push(lab.hold(one).await);
    }
    for path in ["/healthz", "/pods"] {
        assert_eq!(lab.master(own, path).await, "HTTP/1.1 200 OK");
    }
    let logs = "/containerLogs/default/none/main";
    assert_eq!(lab.master(own, logs).await, "HTTP/1.1 404 Not Found");
    // They lost places to each other, the oldest first, and not to time.
    assert!(timeout(LIMIT, cut(&mut held[0])).await.expect("in time"));
}

/// What the master holds (followed logs) and what strangers hold are two rooms.
#[tokio::test]
async fn the_masters_open_connections_cost_strangers_nothing_and_are_bounded() {
    let limits = Limits {
        master: 1,
        strangers: 2,
        per_host: 1,
        per_block: 2,
        ..limits()
    };
    let lab = Lab::new(limits).await;
    let own = Ipv4Addr::LOCALHOST;
    let tls = {
        let (certificate, key) = issue(&lab.root, APISERVER_KUBELET_USER);
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trust(&lab.root))
            .with_client_auth_cert(vec![certificate], key.into())
            .unwrap()
    };
    let connector = TlsConnector::from(Arc::new(tls));
    let name = ServerName::try_from("node").unwrap();
    let mut open = connector.connect(name, lab.hold(own).await).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n";
    open.write_all(request).await.unwrap();
    assert!(open.read(&mut [0; 512]).await.unwrap() > 0, "it is open");
    let busy = "HTTP/1.1 503 Service Unavailable";
    assert_eq!(lab.master(own, "/healthz").await, busy);
    for (name, status) in [
        (None, "HTTP/1.1 401 Unauthorized"),
        (Some("system:node:other"), "HTTP/1.1 403 Forbidden"),
    ] {
        let asked = timeout(LIMIT, lab.ask(own, name, "/healthz")).await;
        assert_eq!(asked.expect("in time").as_deref(), Some(status));
    }
    // Strangers push each other out, and not the master's connection.
    let mut strangers = Vec::new();
    for host in 2..12 {
        strangers.push(lab.hold(Ipv4Addr::new(127, 0, 0, host)).await);
    }
    assert!(
        timeout(LIMIT, cut(&mut strangers[0]))
            .await
            .expect("in time")
    );
    open.write_all(request).await.unwrap();
    assert!(open.read(&mut [0; 512]).await.unwrap() > 0, "it stays open");
}

#[tokio::test]
async fn the_machine_ends_by_the_masters_order_and_by_nobody_elses() {
    let mut lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    let (master, stranger) = (Some(APISERVER_KUBELET_USER), Some("system:node:other"));
    for (name, asked, status) in [
        (stranger, "POST /power/reboot", "403 Forbidden"),
        (Some("admin"), "POST /power/poweroff", "403 Forbidden"),
        (None, "POST /power/reboot", "403 Forbidden"),
        (stranger, "POST //power/reboot", "403 Forbidden"),
        (master, "GET /power/reboot", "405 Method Not Allowed"),
        (master, "POST /power/halt", "404 Not Found"),
        (master, "POST /power", "404 Not Found"),
        (master, "POST /power/reboot/x", "404 Not Found"),
    ] {
        let answer = lab.call(own, name, asked).await.expect("an answer");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{asked}: {answer}"
        );
    }
    assert!(lab.orders.try_recv().is_err(), "nobody ordered anything");
    for (asked, order) in [
        ("POST /power/reboot", Order::Reboot),
        ("POST /power/poweroff", Order::PowerOff),
    ] {
        let answer = lab.call(own, master, asked).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
        let ordered = timeout(LIMIT, lab.orders.recv()).await;
        assert_eq!(ordered.expect("in time"), Some(order));
    }

    let host = Lab::on(limits(), false).await;
    let answer = host.call(own, master, "POST /power/reboot").await;
    let answer = answer.expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
        "{answer}"
    );
    assert!(answer.contains("not booted from an image"), "{answer}");
}

#[tokio::test]
async fn what_the_kubelet_does_not_serve_is_not_found_by_any_method() {
    let lab = Lab::new(limits()).await;
    let own = Ipv4Addr::LOCALHOST;
    for (asked, status) in [
        ("POST /checkpoint/default/pod/container", "404 Not Found"),
        ("PUT /nothing", "404 Not Found"),
        ("POST /containerLogs/default/pod", "404 Not Found"),
        ("POST /healthz", "405 Method Not Allowed"),
        ("POST /healthz/ping", "405 Method Not Allowed"),
        ("GET /healthz/nothing", "404 Not Found"),
        ("POST /stats/summary", "405 Method Not Allowed"),
        ("DELETE /metrics/cadvisor", "405 Method Not Allowed"),
    ] {
        let answer = lab.call(own, Some(APISERVER_KUBELET_USER), asked).await;
        let answer = answer.expect("an answer");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{asked}: {answer}"
        );
    }
}

#[tokio::test]
async fn checks_of_health_are_counted_under_upstreams_names() {
    let lab = Lab::new(limits()).await;
    let ask = async |asked: &str| {
        let answer = lab.call(Ipv4Addr::LOCALHOST, Some(APISERVER_KUBELET_USER), asked);
        answer.await.expect("an answer")
    };
    for asked in ["GET /healthz", "GET /healthz/ping"] {
        let answer = ask(asked).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n"),
            "{asked}: {answer}"
        );
    }
    let answer = ask("GET /metrics/slis").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for line in [
        "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 3\n",
    ] {
        assert!(answer.contains(line), "{answer}");
    }
}
