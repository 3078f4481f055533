//! The connection to containerd's socket: one lazy channel that reconnects by itself, and its
//! errors.

use crate::error::{Error, ErrorClass};
use containerd_client::tonic::transport::{Channel, Endpoint};
use containerd_client::tonic::{Code, Request, Status};
use hyper_util::rt::TokioIo;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;

/// containerd's namespace of Kubernetes; other namespaces are not looked at.
const NAMESPACE: &str = "k8s.io";
/// A call that takes longer has failed; the longest are start and stop of a task on an emulated
/// machine.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);

/// A channel to the socket at `path`; connects at the first call and again after each loss.
pub fn channel(path: PathBuf) -> Channel {
    // The address is not used: the connector knows the socket.
    Endpoint::from_static("http://containerd.invalid").connect_with_connector_lazy(
        tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }),
    )
}

/// A request in our namespace, with the limit of ordinary calls.
pub fn request<T>(message: T) -> Request<T> {
    let mut request = unlimited(message);
    request.set_timeout(CALL_LIMIT);
    request
}

/// A request in our namespace that may last: streams and waits.
pub fn unlimited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("containerd-namespace", ascii(NAMESPACE));
    request
}

/// A request whose new content and snapshots are held by a lease.
pub fn leased<T>(message: T, lease: &str) -> Request<T> {
    let mut request = unlimited(message);
    request
        .metadata_mut()
        .insert("containerd-lease", ascii(lease));
    request
}

fn ascii(
    text: &str,
) -> containerd_client::tonic::metadata::MetadataValue<containerd_client::tonic::metadata::Ascii> {
    text.parse().unwrap_or_else(|_| {
        containerd_client::tonic::metadata::MetadataValue::from_static("invalid")
    })
}

/// An error of containerd during `doing`; `class` is its class unless containerd itself is
/// unreachable.
pub fn failed(class: ErrorClass, doing: impl Into<String>) -> impl FnOnce(Status) -> Error {
    move |status| {
        let code = status.code();
        let class = if matches!(code, Code::Unavailable | Code::Cancelled) {
            ErrorClass::Unavailable
        } else if class == ErrorClass::NotFound && code != Code::NotFound {
            ErrorClass::Create
        } else {
            class
        };
        Error::caused(class, doing, Refusal(status.message().to_owned()))
    }
}

/// containerd's own message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// True where the thing isn't there.
pub fn is_absent<T>(result: &Result<T, Status>) -> bool {
    matches!(result, Err(status) if status.code() == Code::NotFound)
}

/// Takes "not there" (or "there already") as done: the code `fine`.
///
/// # Errors
/// containerd answered with any status but `fine`.
pub fn settled<T>(result: Result<T, Status>, fine: Code) -> Result<(), Status> {
    match result {
        Ok(_) => Ok(()),
        Err(status) if status.code() == fine => Ok(()),
        Err(status) => Err(status),
    }
}
