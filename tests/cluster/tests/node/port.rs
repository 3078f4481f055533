//! The kubelet's port: it answers the master, and callers whose request the master allows.

use crate::cluster::{Cluster, shell};
use crate::site::eventually;
use agent_server::serve;
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::ServiceAccount;
use config_kube::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use master_client::DeleteParams;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

/// A cluster's root and what it signs.
pub(crate) struct Authority {
    root: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            root,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn sign(
        &self,
        name: &str,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        self.sign_as(name, &[])
    }

    /// The same for a member of groups.
    pub(crate) fn sign_as(
        &self,
        name: &str,
        groups: &[&str],
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let names = ["node.example", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            let kind = DnType::OrganizationName;
            params.distinguished_name.push(kind, *group);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        (
            vec![certificate],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        Arc::new(roots)
    }

    pub(crate) fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// Takes certificates of this root, and callers without one.
    pub(crate) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider);
        verifier.allow_unauthenticated().build().unwrap()
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = self.verifier();
        let (chain, key) = self.sign("system:node:worker-1");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        Arc::new(
            config
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain, key)
                .unwrap(),
        )
    }

    /// A client that trusts this root and shows a certificate of `signer`, if any.
    pub(crate) fn client(&self, shown: Option<(&Self, &str)>) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config.with_root_certificates(self.roots());
        Arc::new(match shown {
            Some((signer, name)) => {
                let (chain, key) = signer.sign(name);
                config.with_client_auth_cert(chain, key).unwrap()
            }
            None => config.with_no_client_auth(),
        })
    }
}

/// GET; an error where TLS itself turns the caller away.
async fn get(
    at: SocketAddr,
    tls: Arc<ClientConfig>,
    path: &str,
) -> Result<(StatusCode, String), String> {
    get_with(at, tls, path, "Basic nothing").await
}

/// Asks for each path, and compares the status.
async fn all_are(at: SocketAddr, tls: &Arc<ClientConfig>, answers: &[(&str, StatusCode)]) {
    for (path, status) in answers {
        let (seen, said) = get(at, tls.clone(), path).await.unwrap();
        assert_eq!(seen, *status, "{path}: {said}");
    }
}

/// The same as [`get`] with an `Authorization`.
async fn get_with(
    at: SocketAddr,
    tls: Arc<ClientConfig>,
    path: &str,
    authorization: &str,
) -> Result<(StatusCode, String), String> {
    let say = |error: &dyn std::error::Error| error.to_string();
    let tcp = TcpStream::connect(at).await.unwrap();
    let name = ServerName::try_from("node.example").unwrap();
    let tls = TlsConnector::from(tls)
        .connect(name, tcp)
        .await
        .map_err(|error| say(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
        .await
        .map_err(|error| say(&error))?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path)
        .header("host", "node.example")
        .header("authorization", authorization)
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| say(&error))?;
    let status = answer.status();
    let body = answer
        .into_body()
        .collect()
        .await
        .map_err(|error| say(&error))?
        .to_bytes();
    connection.abort();
    Ok((status, String::from_utf8(body.to_vec()).unwrap()))
}

async fn everybody_else_is_refused(at: SocketAddr, authority: &Authority) {
    let nobody = get(at, authority.client(None), "/healthz").await.unwrap();
    assert_eq!(nobody.0, StatusCode::UNAUTHORIZED);
    for name in ["admin", "system:node:worker-1", "system:kube-apiserver "] {
        for path in ["/pods", "/stats/summary", "/metrics/resource"] {
            let other = get(at, authority.client(Some((authority, name))), path);
            assert_eq!(other.await.unwrap().0, StatusCode::FORBIDDEN, "{name}");
        }
    }
    let foreign = Authority::new();
    let tls = authority.client(Some((&foreign, "system:kube-apiserver")));
    assert!(
        get(at, tls, "/healthz").await.is_err(),
        "an API server of another root is refused"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubelets_port_answers_the_master_alone_and_gives_it_logs() {
    let cluster = Cluster::new().await;
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (_shutdown, ended) = watch::channel(false);
    tokio::spawn(serve(
        listener,
        authority.server(),
        cluster.port.clone().unwrap(),
        ended,
    ));

    everybody_else_is_refused(at, &authority).await;

    let master = authority.client(Some((&authority, "system:kube-apiserver")));
    let ask = |path: &'static str| {
        let master = master.clone();
        async move { get(at, master, path).await.unwrap() }
    };
    assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok".to_owned()));
    assert_eq!(
        ask("/exec/default/talks/main?command=sh").await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        ask("/containerLogs/default/none/main").await.0,
        StatusCode::NOT_FOUND
    );

    let script = "for n in 1 2 3; do echo out $n; echo err $n >&2; sleep 0.3; done";
    cluster
        .create(
            "talks",
            json!({"restartPolicy": "Never", "containers": [shell(script)]}),
        )
        .await;
    eventually("the log to begin", || async {
        (ask("/containerLogs/default/talks/main").await.0 == StatusCode::OK).then_some(())
    })
    .await;
    let (_, followed) = ask("/containerLogs/default/talks/main?follow=true").await;
    let out: Vec<&str> = followed
        .lines()
        .filter(|line| line.starts_with("out"))
        .collect();
    assert_eq!(out, ["out 1", "out 2", "out 3"], "{followed}");
    assert_eq!(followed.lines().count(), 6);
    let (_, last) = ask("/containerLogs/default/talks/main?tailLines=1&timestamps=true").await;
    assert!(
        last.starts_with("20") && last.lines().count() == 1,
        "{last}"
    );
    assert_eq!(
        ask("/containerLogs/default/talks/main?previous=true")
            .await
            .0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        ask("/containerLogs/default/talks/..%2f").await.0,
        StatusCode::BAD_REQUEST
    );
    assert!(ask("/pods").await.1.contains("\"talks\""));
    logs_between_attempts(&cluster, |path| {
        let master = master.clone();
        async move { get(at, master, path).await.unwrap() }
    })
    .await;
}

/// Logs of a container that waits for its next attempt, and why one that never started has none.
async fn logs_between_attempts<F: Future<Output = (StatusCode, String)>>(
    cluster: &Cluster,
    ask: impl Fn(&'static str) -> F,
) {
    let script =
        "n=$(cat /v/n 2>/dev/null || echo 0); echo attempt $n; echo $((n+1)) > /v/n; exit 7";
    let mut crashes = shell(script);
    crashes["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let spec = json!({"containers": [crashes], "volumes": volumes});
    cluster.create("crashes", spec).await;
    let waits = || async {
        let status = cluster.pod("crashes").await?.status?;
        let own = status.container_statuses?.into_iter().next()?;
        own.state?.waiting?;
        let last = own.last_state?.terminated?;
        Some((own.restart_count, last.container_id))
    };
    let (attempt, [whole, previous]) = eventually("a look between two attempts", || async {
        let before = waits().await?;
        let whole = ask("/containerLogs/default/crashes/main").await;
        let previous = ask("/containerLogs/default/crashes/main?previous=true").await;
        // The next attempt may have begun meanwhile.
        (waits().await? == before).then_some((before.0, [whole, previous]))
    })
    .await;
    let wanted = (StatusCode::OK, format!("attempt {attempt}\n"));
    assert_eq!((&whole, &previous), (&wanted, &wanted));

    let mut absent = shell("true");
    absent["image"] = json!("registry.example/absent:1");
    cluster
        .create("absent", json!({"containers": [absent]}))
        .await;
    let reason = "/containerStatuses/0/state/waiting/reason";
    cluster
        .reaches("absent", reason, json!("ErrImagePull"))
        .await;
    let (code, answer) = ask("/containerLogs/default/absent/main").await;
    assert_eq!(code, StatusCode::BAD_REQUEST, "{answer}");
    let waits = r#"container "main" in pod "absent" is waiting to start: "#;
    let why = answer.trim_end().strip_prefix(waits);
    let whys = ["image can't be pulled", "trying and failing to pull image"];
    assert!(why.is_some_and(|why| whys.contains(&why)), "{answer}");
}

/// Gives a subject the right to read these subresources of nodes.
async fn grant(cluster: &Cluster, name: &str, resources: &[&str], subject: Value) {
    let rules = json!([{"apiGroups": [""], "resources": resources, "verbs": ["get"]}]);
    let role: ClusterRole =
        serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).unwrap();
    cluster.admin.create(&role).await.unwrap();
    let reference =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let binding: ClusterRoleBinding = serde_json::from_value(
        json!({"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}),
    )
    .unwrap();
    cluster.admin.create(&binding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_with_a_certificate_or_a_token_get_what_the_master_grants_and_no_more() {
    let cluster = Cluster::new().await;
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (_shutdown, ended) = watch::channel(false);
    let port = cluster.port.clone().unwrap();
    tokio::spawn(serve(listener, authority.server(), port, ended));

    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "watcher"});
    grant(&cluster, "figures", &["nodes/metrics", "nodes/stats"], user).await;
    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"});
    grant(&cluster, "logs", &["nodes/log"], user).await;
    let account = json!({"kind": "ServiceAccount", "name": "scraper", "namespace": "default"});
    grant(&cluster, "everything", &["nodes/proxy"], account).await;

    let watcher = authority.client(Some((&authority, "watcher")));
    let answers = [
        ("/metrics", StatusCode::OK),
        ("/metrics/cadvisor", StatusCode::OK),
        ("/metrics/probes", StatusCode::OK),
        ("/stats/summary", StatusCode::OK),
        ("/configz", StatusCode::FORBIDDEN),
        ("/logs/?query=kubelet", StatusCode::FORBIDDEN),
        ("/pods", StatusCode::FORBIDDEN),
        ("/containerLogs/default/a/b", StatusCode::FORBIDDEN),
        ("/exec/default/a/b?command=sh", StatusCode::FORBIDDEN),
    ];
    all_are(at, &watcher, &answers).await;

    let reader = authority.client(Some((&authority, "reader")));
    let answers = [
        ("/logs/", StatusCode::OK),
        ("/logs/?query=nothing", StatusCode::BAD_REQUEST),
        ("/metrics", StatusCode::FORBIDDEN),
        ("/pods", StatusCode::FORBIDDEN),
        ("/containerLogs/default/a/b", StatusCode::FORBIDDEN),
    ];
    all_are(at, &reader, &answers).await;

    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": "scraper", "namespace": "default"}}))
            .unwrap();
    cluster.admin.create(&account).await.unwrap();
    let request = Request::post("/api/v1/namespaces/default/serviceaccounts/scraper/token")
        .header("content-type", "application/json")
        .body(master_client::body(
            r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}"#,
        ))
        .unwrap();
    let answer = cluster.admin.call(request).await;
    let answer = answer.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    let nobody = authority.client(None);
    let good = format!("Bearer {token}");
    for (authorization, path, status) in [
        (&*good, "/pods", StatusCode::OK),
        (&good, "/healthz", StatusCode::OK),
        (&good, "/configz", StatusCode::OK),
        // The right to read nodes/proxy reads, and neither figures nor runs anything.
        (&good, "/metrics", StatusCode::FORBIDDEN),
        (&good, "/metrics/probes", StatusCode::FORBIDDEN),
        (&good, "/logs/?query=kubelet", StatusCode::FORBIDDEN),
        (&good, "/exec/default/a/b?command=sh", StatusCode::FORBIDDEN),
        (&good, "/portForward/default/a", StatusCode::FORBIDDEN),
        ("Bearer forged", "/pods", StatusCode::UNAUTHORIZED),
        ("Basic abc", "/pods", StatusCode::UNAUTHORIZED),
    ] {
        let seen = get_with(at, nobody.clone(), path, authorization).await;
        let (seen, said) = seen.unwrap();
        assert_eq!(seen, status, "{path}: {said}");
    }
    let now = DeleteParams::default();
    let admin = &cluster.admin;
    let ended = admin.delete::<ClusterRoleBinding>(None, "figures", &now);
    ended.await.unwrap();
    eventually("the end of a right", || async {
        let (seen, _) = get(at, watcher.clone(), "/metrics").await.unwrap();
        (seen == StatusCode::FORBIDDEN).then_some(())
    })
    .await;
}
