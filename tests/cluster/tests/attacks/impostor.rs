//! Impostor servers: at a node's address with another's certificate, and between an admin and a
//! fresh master.

use crate::after_join::{ask, own_node};
use crate::lab::{Lab, identity, serving_identity};
use crate::wire::Identity;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A server on the loopback, which ends with this.
pub(crate) struct Impostor {
    pub(crate) address: SocketAddr,
    /// Requests that came.
    pub(crate) asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Impostor {
    /// Shows a certificate, and answers each request of method, path and body by `answer`.
    pub(crate) async fn start<F, A>(shown: &Identity, answer: F) -> Self
    where
        F: Fn(Method, String, Bytes) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Vec<u8>> + Send,
    {
        let chain = shown
            .chain
            .iter()
            .map(|der| CertificateDer::from(der.clone()))
            .collect();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(shown.key.clone()));
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, acceptor) = (
            listener.local_addr().unwrap(),
            TlsAcceptor::from(Arc::new(config)),
        );
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, count, answer) = (acceptor.clone(), count.clone(), answer.clone());
                tokio::spawn(async move {
                    // A client that refuses the certificate ends the connection, as expected.
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(|request: Request<Incoming>| {
                        count.fetch_add(1, Ordering::Relaxed);
                        let answer = answer.clone();
                        async move {
                            let (head, body) = request.into_parts();
                            let body = body.collect().await.unwrap().to_bytes();
                            let bytes = answer(head.method, head.uri.path().to_owned(), body).await;
                            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(bytes))))
                        }
                    });
                    let server = hyper::server::conn::http1::Builder::new();
                    server
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Self {
            address,
            asked,
            task,
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A self-signed certificate for a name.
pub(crate) fn self_made(name: &str) -> Identity {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    Identity {
        chain: vec![params.self_signed(&key).unwrap().der().to_vec()],
        key: key.serialize_der(),
    }
}

/// What the master gets for a pod's log is the node's own or nothing: at the node's address another
/// node's serving certificate, the node's own client certificate and a self-signed one are refused,
/// and the master sends their servers nothing.
pub(crate) async fn the_master_sends_nothing_to_an_impostor_at_a_nodes_address(lab: &Lab) {
    let (machine, other) = (lab.machine().await, lab.machine().await);
    let certificates = lab.join(&machine).await.accepted();
    let who = identity(&machine, &certificates);
    let others = serving_identity(&other, &lab.join(&other).await.accepted());
    crate::drift::token(lab, &machine.node).await;
    let path = format!("/api/v1/namespaces/default/pods/{}/log", machine.node);
    let own = serving_identity(&machine, &certificates);
    let impostors = [
        others,
        who.clone(),
        self_made(&format!("system:node:{}", machine.node)),
    ];
    for (shown, good) in impostors
        .into_iter()
        .map(|shown| (shown, false))
        .chain([(own, true)])
    {
        let kubelet =
            Impostor::start(&shown, |_, _, _| async { b"what the pod said".to_vec() }).await;
        let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": kubelet.address.port() } } } });
        let at = format!("{}/status", own_node(&machine));
        assert_eq!(
            ask(lab, &who, Method::PATCH, &at, status).await,
            StatusCode::OK
        );
        let answer = lab.site.text(&path).await;
        if good {
            assert_eq!((answer.as_str(), kubelet.asked()), ("what the pod said", 1));
        } else {
            assert!(answer.contains("the node cannot be reached"), "{answer}");
            assert_eq!(kubelet.asked(), 0, "an impostor was asked");
        }
    }
}
