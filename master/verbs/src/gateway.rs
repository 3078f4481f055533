//! Requests to a node's kubelet: its address, a connection, and errors on the way.

use super::call::{Call, stored};
use bytes::Bytes;
use config_errors::chain;
use http::header::HOST;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use master_client::Body;
use master_gateway::{
    Driver, Expected, IdleConnections, NodeBody, NodeCalls, NodeConnection, NodeDialer, NodeLimits,
    NodeStream, NodeTarget,
};
use master_listener::{Denials, DenyList};
use master_objects::Shallow;
use master_schema::error::{ApiError, Reason, no_resource};
use master_store::Reader;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Bytes of a node's refusal that are shown.
pub(super) const REFUSAL: usize = 1024;
/// The kubelet's port if the Node object names none.
const PORT: u16 = 10250;
/// Bytes that a kept connection reads at once, which it holds while it waits; its answers have
/// small heads.
const IDLE_READ_BUFFER: usize = 8192;

/// The parts of the server that reach nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeGateway<'a> {
    pub(super) reader: &'a dyn Reader,
    pub(super) dialer: Option<&'a dyn NodeDialer>,
    pub(super) limits: &'a NodeLimits,
    /// Slots for answers of nodes.
    pub(super) answers: &'a Arc<NodeCalls>,
    /// Slots for tunnels to nodes.
    pub(super) tunnels: &'a Arc<NodeCalls>,
    pub(super) idle_connections: &'a Arc<IdleConnections>,
    pub(super) denials: &'a Denials,
    pub(super) draining: &'a CancellationToken,
}

/// The address of a node's kubelet, from its Node object.
pub(super) async fn target(
    call: &Call,
    reader: &dyn Reader,
    node: &str,
) -> Result<NodeTarget, ApiError> {
    let kind = call
        .registry
        .find("", "v1", "nodes")
        .ok_or_else(no_resource)?;
    let stored = stored(reader, &kind.key("", node)).await?;
    let missing = || {
        ApiError::new(Reason::NotFound, format!("nodes {node:?} not found"))
            .about("", "nodes", node)
    };
    let stored = stored.ok_or_else(missing)?;
    let bytes = stored.value.bytes();
    // Only two fields are decoded: images, conditions and managed fields are most of a Node, and
    // each request to a node would decode them.
    let object = Shallow::stored(&stored, &bytes)?;
    let status = object.object("status")?;
    let (addresses, endpoints): (Vec<Value>, Value) =
        (status.read("addresses")?, status.read("daemonEndpoints")?);
    // Upstream's server also connects to host names. Every kubelet reports an IP address.
    let address = |kind: &str| {
        let mut reported = addresses
            .iter()
            .filter(|address| address.get("type").is_some_and(|t| t == kind));
        reported.find_map(|reported| reported.get("address")?.as_str()?.parse().ok())
    };
    let found = address("InternalIP").or_else(|| address("ExternalIP"));
    let address: IpAddr = found.ok_or_else(|| {
        ApiError::new(
            Reason::ServiceUnavailable,
            format!("node {node} has no IP address in its status"),
        )
    })?;
    let port = endpoints
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

/// A request to a node without a body.
///
/// # Errors
/// `path` cannot be sent.
pub(super) fn request(
    method: &Method,
    to: &NodeTarget,
    path: &str,
) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, format!("{}:{}", to.name, to.port))
        .body(master_client::body(Bytes::new()))
        .map_err(|error| unreachable("no such request", &error))
}

/// Sends a request to a node and returns its answer with a streaming body.
///
/// # Errors
/// The node is denied, not reachable or has too many open answers; the header of its answer does
/// not come in time, is too large or cannot be forwarded.
pub(super) async fn send(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    request: Request<Body>,
    expected: Expected,
) -> Result<Response<NodeBody>, ApiError> {
    let slot = nodes.answers.begin(&target.name, call.owner())?;
    let (answer, driver, connection) = if is_own_request(call) {
        let node = target.name.clone();
        let asked = ask_reusing_connection(call, nodes, target, request);
        in_time(nodes, &node, asked).await?
    } else {
        let (answer, driver) = ask(call, nodes, target, request).await?;
        (answer, driver, None)
    };
    if answer.status().is_informational() {
        let text = format!(
            "node answered {}, though no upgrade was requested",
            answer.status()
        );
        let code = StatusCode::BAD_GATEWAY.as_u16();
        return Err(ApiError {
            code,
            ..ApiError::new(Reason::InternalError, text)
        });
    }
    let expected = expected.with(answer.status());
    Ok(answer.map(|incoming| {
        let body = NodeBody::new(incoming, driver, slot, nodes.limits.clone(), expected);
        match connection {
            Some(connection) => body.keep_connection(nodes.idle_connections.clone(), connection),
            None => body,
        }
    }))
}

/// Whether this server itself asks: for metrics, of all nodes again and again.
fn is_own_request(call: &Call) -> bool {
    call.peer.remote.is_none() && call.method == Method::GET
}

/// Sends a request to a node; returns the header of its answer, and the driver that moves the
/// connection's bytes.
///
/// # Errors
/// As [`send`], the number of open answers aside.
pub(super) async fn ask(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), ApiError> {
    let node = target.name.clone();
    in_time(nodes, &node, connect(call, nodes, target, request)).await
}

/// The result of `work` with a node, if the node is not denied and the result comes in time.
async fn in_time<T>(
    nodes: &NodeGateway<'_>,
    node: &str,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    if let Some(why) = nodes.denials.reason(|list| list.node_denied(node)) {
        return Err(ApiError::new(
            Reason::ServiceUnavailable,
            format!("no request is sent to node {node}: {why}"),
        ));
    }
    let limit = nodes.limits.header;
    let answer = tokio::time::timeout(limit, work).await;
    answer.unwrap_or_else(|_elapsed| {
        let text = format!("node {node} did not answer within {} s", limit.as_secs());
        Err(ApiError {
            code: StatusCode::GATEWAY_TIMEOUT.as_u16(),
            ..ApiError::new(Reason::Timeout, text)
        })
    })
}

fn dialer<'a>(nodes: &NodeGateway<'a>) -> Result<&'a dyn NodeDialer, ApiError> {
    nodes.dialer.ok_or_else(|| {
        ApiError::new(
            Reason::ServiceUnavailable,
            "this server is not configured to connect to nodes",
        )
    })
}

async fn connect(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), ApiError> {
    let node = target.name.clone();
    let stream = dialer(nodes)?
        .dial(target)
        .await
        .map_err(|error| unreachable("the node cannot be reached", &error))?;
    speak(call, nodes, node, stream, request)
        .await
        .map_err(|error| unreachable("the node did not answer", &error))
}

/// Sends a request over the connection that was kept from the last one, or over a new one, which
/// may be kept afterwards. If the kept connection has been closed since, the request is sent again,
/// as it has no body.
async fn ask_reusing_connection(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver, Option<NodeConnection>), ApiError> {
    let node = target.name.clone();
    let address = SocketAddr::new(target.address, target.port).to_string();
    if let Some((mut connection, driver)) = nodes.idle_connections.take(&node, &address) {
        let question = copy(&request);
        match connection.send(question).await {
            Ok(answer) => return Ok((answer, driver, Some(connection))),
            Err(error) => tracing::debug!(
                error = chain(&error),
                node,
                "kept connection to node failed"
            ),
        }
    }
    let (stream, check) = dialer(nodes)?
        .dial_reusable(target)
        .await
        .map_err(|error| unreachable("the node cannot be reached", &error))?;
    let Some(check) = check else {
        let spoken = speak(call, nodes, node, stream, request).await;
        let (answer, driver) =
            spoken.map_err(|error| unreachable("the node did not answer", &error))?;
        return Ok((answer, driver, None));
    };
    let asked = async {
        let still_valid = check.clone();
        let why = move |list: &dyn DenyList, node: &str| {
            list.node_denied(node).or_else(|| still_valid.objection())
        };
        let mut http = bounded(nodes.limits);
        http.read_buf_exact_size(Some(IDLE_READ_BUFFER));
        let (sender, driver) = begin(nodes.denials, node.clone(), stream, &http, why).await?;
        let mut connection = NodeConnection::new(node.clone(), address, sender, check);
        Ok::<_, hyper::Error>((connection.send(request).await?, driver, Some(connection)))
    };
    let asked = asked.await;
    asked.map_err(|error| unreachable("the node did not answer", &error))
}

/// A request without a body as another of its kind.
fn copy(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(master_client::body(Bytes::new()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// HTTP within the limits on heads.
fn bounded(limits: &NodeLimits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.max_buf_size(limits.header_bytes.max(8192))
        .max_headers(limits.header_fields);
    http
}

/// Sends a request over a stream to a node, or to a pod on it; returns the header of the answer,
/// and the driver that moves the connection's bytes.
///
/// # Errors
/// The other end does not speak HTTP, or its header is beyond the limits.
pub(super) async fn speak(
    call: &Call,
    nodes: &NodeGateway<'_>,
    node: String,
    stream: Box<dyn NodeStream>,
    request: Request<Body>,
) -> Result<(Response<Incoming>, Driver), hyper::Error> {
    let http = bounded(nodes.limits);
    // The connection lives while the answer's body is read and neither node nor caller is denied.
    let caller = call.clone();
    let why = move |list: &dyn DenyList, node: &str| {
        list.node_denied(node).or_else(|| caller.denied(list))
    };
    let (mut sender, driver) = begin(nodes.denials, node, stream, &http, why).await?;
    // From here on the connection ends with the call, and later with the answer's body.
    Ok((sender.send_request(request).await?, driver))
}

/// Starts HTTP on a stream. The connection ends with its driver, or as soon as `why` finds a reason
/// in the deny list.
async fn begin(
    denials: &Denials,
    node: String,
    stream: Box<dyn NodeStream>,
    http: &http1::Builder,
    why: impl Fn(&dyn DenyList, &str) -> Option<String> + Send + Sync + 'static,
) -> Result<(http1::SendRequest<Body>, Driver), hyper::Error> {
    let (sender, connection) = http.handshake::<_, Body>(TokioIo::new(stream)).await?;
    let connection = connection.with_upgrades();
    let denials = denials.clone();
    let driver = tokio::spawn(async move {
        // Cancel-safe: either end of the wait ends the connection.
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(error = chain(&error), node, "connection to node failed");
                }
            }
            why = denials.until(|list| why(list, &node)) => {
                tracing::info!(node, reason = why, "connection to node closed");
            }
        }
    });
    Ok((sender, Driver(driver.abort_handle())))
}

/// A failure on the way, with all its causes.
pub(super) fn unreachable(what: &str, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{what}: {}", chain(error));
    ApiError::new(Reason::InternalError, text)
}
