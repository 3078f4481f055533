//! Tunnels: exec, attach and port-forward, from a client's upgraded connection to the kubelet of
//! the pod's node.
//!
//! This server authorizes the request and forwards it, and takes no part in the protocol inside:
//! the node answers the client's handshake, and from then on bytes are passed on unchanged. A
//! tunnel ends with its client, with its node, when the caller or the node is denied, and with the
//! server.
//!
//! A tunnel has one buffer for each direction, and a slot among its node's tunnels. Its connection
//! is not read as HTTP again, so nothing in a tunnel can pass for a request or an answer.

use super::answer::Answer;
use super::call::Call;
use super::gateway::{self, NodeGateway, REFUSAL};
use super::log;
use bytes::Bytes;
use config_errors::chain;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use master_auth::Authorizer;
use master_client::body;
use master_gateway::{Driver, Expected, NodeBody, NodeCall, NodeTarget, relay};
use master_schema::error::{ApiError, Reason, shown};
use master_schema::validate::{Fields, object as inner, text};
use master_store::Reader;
use master_wire::path::{Query, Verb};
use std::fmt::Write as _;

/// The headers of a client's handshake that are passed on, besides `Connection` and `Upgrade`.
/// `Sec-WebSocket-Extensions` is not: no part of this cluster supports any.
const ASKED: [HeaderName; 4] = [
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
    SEC_WEBSOCKET_PROTOCOL,
    STREAM_PROTOCOL,
];
/// The headers of the node's answer that are passed back.
const AGREED: [HeaderName; 4] = [
    UPGRADE,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_PROTOCOL,
    STREAM_PROTOCOL,
];
/// The header that negotiates the protocol inside SPDY (Kubernetes, `httpstream`).
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Query parameters of the API, each with the kubelet's name for it.
const STREAMS: [(&str, &str); 4] = [
    ("stdin", "input"),
    ("stdout", "output"),
    ("stderr", "error"),
    ("tty", "tty"),
];

fn bad(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// Runs a command in a container.
pub(super) async fn exec(call: &Call, nodes: &NodeGateway<'_>, authorizer: &Authorizer) -> Answer {
    let spec = pod(call, nodes.reader, authorizer).await?;
    let container = log::container(&spec, &call.target.name, call.query.get("container"))?;
    let path = exec_path(call, &container)?;
    open(call, nodes, &spec, &path).await
}

/// Attaches to a container's own process.
pub(super) async fn attach(
    call: &Call,
    nodes: &NodeGateway<'_>,
    authorizer: &Authorizer,
) -> Answer {
    let spec = pod(call, nodes.reader, authorizer).await?;
    let name = &call.target.name;
    let container = log::container(&spec, name, call.query.get("container"))?;
    let mut path = format!("/attach/{}/{name}/{container}?", call.target.namespace);
    streams(&call.query, &mut path);
    open(call, nodes, &spec, &path).await
}

/// Connects to ports of a pod. kubectl names the ports inside the tunnel, where the node reads
/// them; clients without SPDY name them in the query.
pub(super) async fn port_forward(
    call: &Call,
    nodes: &NodeGateway<'_>,
    authorizer: &Authorizer,
) -> Answer {
    let spec = pod(call, nodes.reader, authorizer).await?;
    let (namespace, pod) = (&call.target.namespace, &call.target.name);
    let mut path = format!("/portForward/{namespace}/{pod}");
    let ports = call.query.all("ports").flat_map(|ports| ports.split(','));
    for (index, port) in ports.enumerate() {
        let wrong = |_| {
            bad(format!(
                "ports: {:?} is not the number of a port",
                shown(port)
            ))
        };
        let port: u16 = port.trim().parse().map_err(wrong)?;
        let before = if index == 0 { '?' } else { '&' };
        // Writing to a String cannot fail.
        write!(path, "{before}port={port}").ok();
    }
    open(call, nodes, &spec, &path).await
}

/// The specification of the pod that the caller may open a tunnel to.
///
/// The caller always needs the verb `create`. A WebSocket starts with GET, and with `get` alone the
/// right to read would become the right to run commands (upstream since 1.35:
/// `AuthorizePodWebsocketUpgradeCreatePermission`).
async fn pod(
    call: &Call,
    reader: &dyn Reader,
    authorizer: &Authorizer,
) -> Result<Fields, ApiError> {
    if call.target.verb != Verb::Create {
        call.may_create(authorizer).await?;
    }
    let entry = call.entry(reader).await?;
    let pod = master_objects::decode_without_managed(&call.kind, &entry)?;
    Ok(inner(&pod, "spec").cloned().unwrap_or_default())
}

/// Opens a tunnel to a path of the kubelet of the pod's node, and answers 101.
async fn open(call: &Call, nodes: &NodeGateway<'_>, spec: &Fields, path: &str) -> Answer {
    let node = text(spec, "nodeName");
    if node.is_empty() {
        let name = &call.target.name;
        return Err(bad(format!("pod {name} does not have a host assigned")));
    }
    let (Some(protocol), Some(upgrade)) = (call.headers.get(UPGRADE), &call.upgrade) else {
        return Err(bad("Upgrade request required".to_owned()));
    };
    let target = gateway::target(call, nodes.reader, node).await?;
    let node = ask(call, nodes, target, path, protocol).await?;
    let mut response = Response::new(body(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    copy(node.answer.headers(), &AGREED, headers);
    join(call, nodes, upgrade.clone(), node);
    Ok(response)
}

/// The kubelet's path for a command.
fn exec_path(call: &Call, container: &str) -> Result<String, ApiError> {
    let (namespace, pod) = (&call.target.namespace, &call.target.name);
    let mut path = format!("/exec/{namespace}/{pod}/{container}?");
    for word in call.query.all("command") {
        path.push_str("command=");
        for byte in word.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                write!(path, "%{byte:02X}").ok();
            }
        }
        path.push('&');
    }
    if path.ends_with('?') {
        return Err(bad(
            "you must specify at least one command for the container".to_owned(),
        ));
    }
    streams(&call.query, &mut path);
    Ok(path)
}

/// Appends the requested streams to a path that ends in `?` or `&`.
fn streams(query: &Query, path: &mut String) {
    for (name, kubelets) in STREAMS {
        if query.on(name) {
            // Writing to a String cannot fail.
            write!(path, "{kubelets}=1&").ok();
        }
    }
    path.pop();
}

fn copy(from: &HeaderMap, names: &[HeaderName], to: &mut HeaderMap) {
    for name in names {
        for value in from.get_all(name) {
            to.append(name, value.clone());
        }
    }
}

/// Forwards the client's handshake to the node, which accepts with 101.
///
/// # Errors
/// The node refuses, with its own text, or can't be reached.
async fn ask(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    path: &str,
    protocol: &HeaderValue,
) -> Result<NodeSide, ApiError> {
    let slot = nodes.tunnels.begin(&target.name, call.owner())?;
    let node = target.name.clone();
    let mut request = gateway::request(&call.method, &target, path)?;
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol.clone());
    copy(&call.headers, &ASKED, headers);
    let (answer, driver) = gateway::ask(call, nodes, target, request).await?;
    let reason = match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            return Ok(NodeSide {
                node,
                answer,
                driver,
                slot,
            });
        }
        StatusCode::NOT_FOUND => Reason::NotFound,
        StatusCode::BAD_REQUEST => Reason::BadRequest,
        StatusCode::TOO_MANY_REQUESTS => Reason::TooManyRequests,
        StatusCode::SERVICE_UNAVAILABLE => Reason::ServiceUnavailable,
        _ => Reason::InternalError,
    };
    let limits = nodes.limits.clone();
    let answer = answer.into_body();
    let refusal = NodeBody::new(answer, driver, slot, limits, Expected::default());
    let text = refusal.beginning(REFUSAL).await;
    Err(ApiError::new(reason, text.trim_end()))
}

/// A node, or a program in a pod on it, that has answered.
pub(super) struct NodeSide {
    pub(super) node: String,
    pub(super) answer: Response<Incoming>,
    /// Moves the connection's bytes until it is handed over.
    pub(super) driver: Driver,
    pub(super) slot: NodeCall,
}

/// Passes bytes on, in a task of its own, until one side ends or is denied.
pub(super) fn join(call: &Call, nodes: &NodeGateway<'_>, client: OnUpgrade, node: NodeSide) {
    let (call, denials) = (call.clone(), nodes.denials.clone());
    let (draining, buffer) = (nodes.draining.clone(), nodes.limits.tunnel_buffer);
    tokio::spawn(async move {
        let NodeSide {
            node,
            answer,
            driver,
            slot,
        } = node;
        let denied = denials.until(|list| list.node_denied(&node).or_else(|| call.denied(list)));
        let moving = async {
            let node = hyper::upgrade::on(answer).await?;
            let client = client.await?;
            let (client, node) = (TokioIo::new(client), TokioIo::new(node));
            relay(client, node, buffer).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        // Cancel-safe: a tunnel that is cut is dropped, with both of its connections.
        tokio::select! {
            moved = moving => if let Err(error) = moved {
                tracing::debug!(node, error = chain(error.as_ref()), "tunnel broke");
            },
            why = denied => tracing::info!(node, reason = why, "tunnel closed"),
            () = draining.cancelled() => tracing::debug!(node, "tunnel closed: the server ends"),
            () = call.peer.displaced() => tracing::debug!(node, "tunnel closed: another connection took its place"),
        }
        drop((driver, slot));
    });
}
