//! Requests to a node's kubelet: its address, a connection, and errors on the way.

use super::Call;
use crate::hooks::{NodeStream, NodeTarget};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use master_client::Body;
use master_gateway::{Driver, Expected, NodeBody};
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::validate::{get, items, object as inner};
use serde_json::Value;

/// The kubelet's port if the Node object names none.
const PORT: u16 = 10250;

/// The address of a node's kubelet, from its Node object.
pub(super) async fn target(call: &Call, node: &str) -> Result<NodeTarget, ApiError> {
    let kind = call
        .registry
        .find("", "v1", "nodes")
        .ok_or_else(no_resource)?;
    let stored = call.stored(&kind.key("", node)).await?;
    let missing = || {
        ApiError::new(Reason::NotFound, format!("nodes {node:?} not found"))
            .about("", "nodes", node)
    };
    let fields = master_objects::decode_bare(kind, &stored.ok_or_else(missing)?)?;
    let status = inner(&fields, "status").cloned().unwrap_or_default();
    let address = |kind: &str| {
        let found = items(&status, "addresses")
            .iter()
            .find(|address| address.get("type").is_some_and(|t| t == kind))?;
        found.get("address")?.as_str().map(str::to_owned)
    };
    let found = ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"]
        .into_iter()
        .find_map(address);
    let address = found.ok_or_else(|| {
        ApiError::new(
            Reason::ServiceUnavailable,
            format!("node {node} has no address in its status yet"),
        )
    })?;
    let port = get(&status, "daemonEndpoints")
        .pointer("/kubeletEndpoint/Port")
        .and_then(Value::as_u64);
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .unwrap_or(PORT);
    Ok(NodeTarget {
        name: node.to_owned(),
        address,
        port,
    })
}

/// Sends a request to a node and returns its answer with a streaming body.
///
/// # Errors
/// The node is denied, not reachable or has too many open answers; the header of its answer does
/// not come in time, is too large or cannot be forwarded.
pub(super) async fn send(
    call: &Call,
    target: NodeTarget,
    request: Request<Body>,
    expected: Expected,
) -> Result<Response<NodeBody>, ApiError> {
    let limits = &call.api.inner.options.nodes;
    let place = call.api.inner.node_calls.begin(&target.name)?;
    let (answer, driver) = ask(call, target, request).await?;
    if answer.status().is_informational() {
        let text = format!("node answered {}, which was not asked for", answer.status());
        let code = StatusCode::BAD_GATEWAY.as_u16();
        return Err(ApiError {
            code,
            ..ApiError::new(Reason::InternalError, text)
        });
    }
    let expected = expected.with(answer.status());
    Ok(answer.map(|incoming| NodeBody::new((incoming, driver, place), limits.clone(), expected)))
}

/// Sends a request to a node: the header of its answer, and what moves the connection's bytes.
///
/// # Errors
/// As [`send`], the number of open answers aside.
pub(super) async fn ask(
    call: &Call,
    target: NodeTarget,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), ApiError> {
    let node = target.name.clone();
    if let Some(why) = call.api.node_denial(&node) {
        return Err(ApiError::new(
            Reason::ServiceUnavailable,
            format!("no request is sent to node {node}: {why}"),
        ));
    }
    let limit = call.api.inner.options.nodes.header;
    let answer = tokio::time::timeout(limit, connect(call, target, request)).await;
    answer.unwrap_or_else(|_elapsed| {
        let text = format!("node {node} did not answer within {} s", limit.as_secs());
        Err(ApiError {
            code: StatusCode::GATEWAY_TIMEOUT.as_u16(),
            ..ApiError::new(Reason::Timeout, text)
        })
    })
}

async fn connect(
    call: &Call,
    target: NodeTarget,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), ApiError> {
    let node = target.name.clone();
    let dialer = call.api.node_dialer().ok_or_else(|| {
        ApiError::new(
            Reason::ServiceUnavailable,
            "this server is not configured to connect to nodes",
        )
    })?;
    let stream = dialer
        .dial(target)
        .await
        .map_err(|error| unreachable("the node cannot be reached", &error))?;
    speak(call, node, stream, request)
        .await
        .map_err(|error| unreachable("the node did not answer", &error))
}

/// Sends a request over a stream that leads to a node, or to a pod on it: the header of the answer, and what moves the
/// connection's bytes.
///
/// # Errors
/// The other end does not speak HTTP, or its header is beyond the limits.
pub(super) async fn speak(
    call: &Call,
    node: String,
    stream: Box<dyn NodeStream>,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), hyper::Error> {
    let limits = &call.api.inner.options.nodes;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(limits.header_bytes.max(8192))
        .max_headers(limits.header_fields)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await?;
    let connection = connection.with_upgrades();
    // The connection lives while the answer's body is read and the node is not denied; its task
    // ends with it.
    let call = call.clone();
    let driver = tokio::spawn(async move {
        // Cancel-safe: either end of the wait ends the connection.
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, node, "connection to node failed");
                }
            }
            why = call.api.until_denied(|list| list.node_denied(&node).or_else(|| call.denial())) => {
                tracing::info!(node, reason = why, "connection to node closed");
            }
        }
    });
    // From here on the connection ends with the call, and later with the answer's body.
    let driver = Driver(driver.abort_handle());
    Ok((sender.send_request(request).await?, driver))
}

/// A failure on the way, with all its causes.
pub(super) fn unreachable(what: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{what}: {}", config_errors::chain(error));
    ApiError::new(Reason::InternalError, text)
}
