//! A server of gRPC's health protocol on this host, whose services are as healthy as a test says.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// What the server knows: the status of each service, and who asked last.
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

    /// Sets the status of a service by its number in the protocol; `None`: the server does not know the protocol for it.
    pub(crate) fn set(&self, service: &str, status: Option<u8>) {
        let services = &mut self.known.lock().unwrap().services;
        match status {
            Some(status) => drop(services.insert(service.to_owned(), status)),
            None => drop(services.remove(service)),
        }
    }

    /// Who asked last.
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
