//! A containerd without any object, for tests: it answers each call by `NotFound`.

use crate::containerd::{Containerd, Options};
use agent_images::Registries;
use containerd_client::tonic::Code;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::path::Path;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// Serves such a containerd in a folder; returns a client of it, and the task that serves. `each`
/// sees a call before it is answered, and may delay the answer.
pub(crate) fn empty_engine<F>(
    dir: &Path,
    each: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> (Containerd, JoinHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = UnixListener::bind(dir.join("socket")).unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let each = each.clone();
            let service = service_fn(move |request| {
                let seen = each(request);
                async move {
                    seen.await;
                    Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", Code::NotFound as i32)
                        .body(Empty::<Bytes>::new())
                }
            });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    let engine = Containerd::new(Options {
        socket: dir.join("socket"),
        state: dir.join("state"),
        fifos: dir.join("io"),
        logs: dir.join("logs"),
        registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
        programs: None,
        archives: Vec::new(),
    });
    (engine, serving)
}
