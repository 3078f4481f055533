//! Servers on this host that probes and hooks ask: one of gRPC's health protocol, whose services
//! are as healthy as a test says, and one over TLS.

use crate::cluster::{Cluster, shell};
use crate::lifecycle::wait_for_event;
use crate::site::{LIMIT, eventually};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The server's state: the status of each service, and the last caller.
#[derive(Debug, Default)]
struct Known {
    services: BTreeMap<String, u8>,
    agent: Option<String>,
}

/// The server; it ends with the test's runtime.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) port: u16,
    known: Arc<Mutex<Known>>,
}

impl Health {
    pub(crate) async fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let known = Arc::new(Mutex::new(Known::default()));
        let all = known.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let known = all.clone();
                let service = service_fn(move |request| answer(request, known.clone()));
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        Self { port, known }
    }

    /// Sets the status of a service by its number in the protocol; `None`: the server does not know
    /// the protocol for it.
    pub(crate) fn set(&self, service: &str, status: Option<u8>) {
        let services = &mut self.known.lock().unwrap().services;
        match status {
            Some(status) => drop(services.insert(service.to_owned(), status)),
            None => drop(services.remove(service)),
        }
    }

    /// The last caller.
    pub(crate) fn agent(&self) -> Option<String> {
        self.known.lock().unwrap().agent.clone()
    }
}

type Answer = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    known: Arc<Mutex<Known>>,
) -> Result<Response<Answer>, Infallible> {
    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
    let agent = request.headers()["user-agent"].to_str().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // Five bytes of frame, then the field of the service's name: tag and length.
    let service = String::from_utf8(body[7..].to_vec()).unwrap();
    let mut known = known.lock().unwrap();
    known.agent = Some(agent);
    let mut trailers = HeaderMap::new();
    let body = if let Some(status) = known.services.get(&service) {
        trailers.insert("grpc-status", "0".parse().unwrap());
        vec![0, 0, 0, 0, 2, 8, *status]
    } else {
        trailers.insert("grpc-status", "12".parse().unwrap());
        trailers.insert("grpc-message", "unknown method".parse().unwrap());
        Vec::new()
    };
    let body = Full::from(body).with_trailers(async move { Some(Ok(trailers)) });
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(answer.body(body.boxed()).unwrap())
}

/// A server over TLS with a self-signed certificate for another name; it ends with the test's
/// runtime.
struct Secure {
    port: u16,
    /// The status of its answers.
    status: Arc<AtomicU16>,
    /// The last request: the path and the caller.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Secure {
    async fn serve() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secure = Self {
            port: listener.local_addr().unwrap().port(),
            status: Arc::new(AtomicU16::new(503)),
            asked: Arc::default(),
        };
        let (status, asked) = (secure.status.clone(), secure.asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, status, asked) = (tls.clone(), status.clone(), asked.clone());
                tokio::spawn(async move { one_request(stream, tls, &status, &asked).await });
            }
        });
        secure
    }

    fn was_asked(&self, line: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == line)
    }
}

async fn one_request(
    stream: TcpStream,
    tls: TlsAcceptor,
    status: &AtomicU16,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = tls.accept(stream).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut lines = request.lines();
    let agent = lines.find_map(|line| line.strip_prefix("user-agent: "));
    let line = format!("{path} {}", agent.unwrap_or_default());
    asked.lock().unwrap().push(line);
    let status = status.load(Ordering::SeqCst);
    let answer = format!("HTTP/1.1 {status} It\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_hooks_ask_over_tls_whatever_certificate_the_server_has() {
    let cluster = Cluster::new().await;
    let secure = Secure::serve().await;
    let get =
        |path: &str| json!({"httpGet": {"scheme": "HTTPS", "port": secure.port, "path": path}});
    let mut main = shell("trap 'exit 0' TERM; while :; do sleep 0.1; done");
    main["lifecycle"] = json!({"postStart": get("/started"), "preStop": get("/stopping")});
    let mut probe = get("/ready");
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(60);
    main["readinessProbe"] = probe;
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 300});
    cluster.create("secure", spec).await;
    let unready = "Readiness probe failed: HTTP probe failed with statuscode: 503";
    wait_for_event(&cluster, "Unhealthy", unready).await;
    assert!(secure.was_asked("/started kube-lifecycle/1.36"));
    secure.status.store(204, Ordering::SeqCst);
    cluster
        .reaches("secure", "/containerStatuses/0/ready", json!(true))
        .await;
    assert!(secure.was_asked("/ready kube-probe/1.36"));
    cluster.delete("secure", 300).await;
    eventually("the pod to be gone", || async {
        cluster.pod("secure").await.is_none().then_some(())
    })
    .await;
    assert!(secure.was_asked("/stopping kube-lifecycle/1.36"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probes_command_has_the_containers_own_variables_and_a_hooks_is_as_written() {
    let cluster = Cluster::new().await;
    let says = |word: &str| {
        let script = format!("[ '$(WORD)' = {word} ]");
        json!({"exec": {"command": ["/bin/sh", "-c", script]}})
    };
    let mut main = shell("while :; do sleep 0.1; done");
    main["env"] = json!([{"name": "WORD", "value": "ready"}]);
    main["lifecycle"] = json!({"postStart": says("'$''(WORD)'")});
    let mut probe = says("ready");
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(60);
    main["readinessProbe"] = probe;
    cluster.create("named", json!({"containers": [main]})).await;
    let status = cluster
        .reaches("named", "/containerStatuses/0/ready", json!(true))
        .await;
    let restarts = &status["containerStatuses"][0]["restartCount"];
    assert_eq!(*restarts, 0, "{status}");
}

/// A server without TLS: it answers what is no request with 400, as servers do, and writes down the
/// heads of requests.
async fn plain() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; 16 << 10];
            let count = stream.read(&mut bytes).await.unwrap_or_default();
            let head = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let status = if head.starts_with("GET ") {
                seen.lock().unwrap().push(head);
                204
            } else {
                400
            };
            let answer = format!("HTTP/1.1 {status} It\r\nconnection: close\r\n\r\n");
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    (port, heads)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_to_a_server_without_it_a_hook_is_sent_in_the_clear_and_a_probe_fails() {
    let cluster = Cluster::new().await;
    let (port, heads) = plain().await;
    let get = |path: &str| {
        let secret = json!([{"name": "Authorization", "value": "Bearer secret"}, {"name": "x-own", "value": "1"}]);
        json!({"httpGet": {"scheme": "HTTPS", "port": port, "path": path, "httpHeaders": secret}})
    };
    let mut main = shell("sleep 600");
    main["lifecycle"] = json!({"postStart": get("/started")});
    let mut probe = get("/ready");
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(60);
    main["readinessProbe"] = probe;
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    cluster.create("plain", spec).await;
    let words = format!(
        "Readiness probe failed: Get \"https://127.0.0.1:{port}/ready\": http: server gave HTTP response to HTTPS client"
    );
    wait_for_event(&cluster, "Unhealthy", &words).await;
    let words = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    );
    wait_for_event(&cluster, "LifecycleHTTPFallback", &words).await;
    let heads = heads.lock().unwrap().clone();
    let [head] = heads.as_slice() else {
        panic!("the hook alone is sent, and once: {heads:?}");
    };
    assert!(head.starts_with("GET /started HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-own: 1\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("secret"), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_fails_its_liveness_probe_has_the_grace_of_the_probe() {
    let cluster = Cluster::new().await;
    let mut main = shell("trap '' TERM; while :; do sleep 0.1; done");
    main["livenessProbe"] = json!({
        "exec": {"command": ["/bin/sh", "-c", "exit 1"]},
        "periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1,
    });
    // The pod's own is longer than this test waits for anything.
    let grace = 2 * LIMIT.as_secs();
    let spec = json!({"terminationGracePeriodSeconds": grace, "containers": [main]});
    cluster.create("stubborn", spec).await;
    let code = "/containerStatuses/0/lastState/terminated/exitCode";
    cluster.reaches("stubborn", code, json!(137)).await;
    let words = "Container main failed liveness probe, will be restarted";
    wait_for_event(&cluster, "Killing", words).await;
}
