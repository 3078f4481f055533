//! The log of a container, handed on from the kubelet of its node.

use super::Call;
use crate::error::{ApiError, Reason};
use crate::hooks::NodeTarget;
use crate::object;
use crate::server::{Body, body};
use crate::validate::{Fields, get, items, object as inner, text};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;

/// Time to reach the node and get the answer's header.
const PATIENCE: Duration = Duration::from_secs(15);
/// The kubelet's port where the Node says nothing.
const PORT: u16 = 10250;
/// Parameters that the kubelet understands, as upstream names them on both sides.
const PARAMETERS: &[&str] =
    &["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];

fn bad(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// A container's log.
pub(super) async fn read(call: &Call) -> Result<Response<Body>, ApiError> {
    let entry = call.entry().await?;
    let pod = object::decode(&call.kind, &entry)?;
    let name = &call.target.name;
    let spec = inner(&pod, "spec").cloned().unwrap_or_default();
    let container = container(&spec, name, call.query.get("container"))?;
    let node = text(&spec, "nodeName");
    if node.is_empty() {
        return Err(bad(format!("pod {name} does not have a host assigned")));
    }
    let target = target(call, node).await?;
    let path = log_path(call, &container)?;
    let answer = tokio::time::timeout(PATIENCE, ask(call, target, &path)).await;
    answer.unwrap_or_else(|_elapsed| {
        Err(ApiError::new(Reason::Timeout, format!("node {node} did not answer within {} s", PATIENCE.as_secs())))
    })
}

/// The container meant, which the pod must have.
fn container(spec: &Fields, pod: &str, asked: &str) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        items(spec, list).iter().filter_map(|c| c.get("name")?.as_str()).map(str::to_owned).collect()
    };
    let own = names("containers");
    let all: Vec<String> =
        ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| names(list)).collect();
    match (asked, own.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", several) => Err(bad(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            several.join(" ")
        ))),
        (asked, _) if all.iter().any(|name| name == asked) => Ok(asked.to_owned()),
        (asked, _) => Err(bad(format!("container {asked} is not valid for pod {pod}"))),
    }
}

/// Where the node's kubelet listens.
async fn target(call: &Call, node: &str) -> Result<NodeTarget, ApiError> {
    let kind = call.api.inner.registry.find("", "v1", "nodes").ok_or_else(super::no_resource)?;
    let fetched = call.api.inner.store.get(&kind.key("", node)).await.map_err(super::store_error)?;
    let entry = fetched.entry.ok_or_else(|| ApiError::new(Reason::NotFound, format!("nodes {node:?} not found")))?;
    let fields = object::decode(kind, &entry)?;
    let status = inner(&fields, "status").cloned().unwrap_or_default();
    let address = |kind: &str| {
        let found =
            items(&status, "addresses").iter().find(|address| address.get("type").is_some_and(|t| t == kind))?;
        found.get("address")?.as_str().map(str::to_owned)
    };
    let found = ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"].into_iter().find_map(address);
    let address = found.ok_or_else(|| {
        ApiError::new(Reason::ServiceUnavailable, format!("node {node} has not told its address yet"))
    })?;
    let port = get(&status, "daemonEndpoints").pointer("/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(PORT);
    Ok(NodeTarget { name: node.to_owned(), address, port })
}

/// The kubelet's path for the log, with the parameters that were given.
fn log_path(call: &Call, container: &str) -> Result<String, ApiError> {
    let (namespace, pod) = (&call.target.namespace, &call.target.name);
    let mut path = format!("/containerLogs/{namespace}/{pod}/{container}");
    let mut separator = '?';
    for (key, value) in call.query.pairs() {
        if !PARAMETERS.contains(&key.as_str()) {
            continue;
        }
        if matches!(key.as_str(), "sinceSeconds" | "tailLines" | "limitBytes")
            && value.parse::<i64>().map_or(true, |number| number < i64::from(key != "tailLines"))
        {
            return Err(ApiError::new(
                Reason::Invalid,
                format!("PodLogOptions is invalid: {key}: Invalid value: {value:?}"),
            ));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.');
        if !value.chars().all(plain) {
            return Err(bad(format!("{key}: Invalid value: {value:?}")));
        }
        path.push(separator);
        separator = '&';
        path.push_str(key);
        path.push('=');
        path.push_str(value);
    }
    Ok(path)
}

/// Asks the kubelet and hands its answer on as it comes.
async fn ask(call: &Call, target: NodeTarget, path: &str) -> Result<Response<Body>, ApiError> {
    let unreachable = |what: &str, error: &dyn std::error::Error| {
        let mut text = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        ApiError::new(Reason::InternalError, text)
    };
    let dialer = call
        .api
        .node_dialer()
        .ok_or_else(|| ApiError::new(Reason::ServiceUnavailable, "this server has no way to nodes configured"))?;
    let (node, authority) = (target.name.clone(), format!("{}:{}", target.name, target.port));
    let stream = dialer.dial(target).await.map_err(|error| unreachable("the log cannot be had", &error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable("the node's kubelet does not speak HTTP", &error))?;
    let request = Request::get(path).header(header::HOST, authority).body(body(Bytes::new()));
    let request = request.map_err(|error| unreachable("no request path", &error))?;
    // The connection lives as long as its answer's body is read; it is driven by that body's own task here.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, node, "the connection to a kubelet broke off");
        }
    });
    let answer =
        sender.send_request(request).await.map_err(|error| unreachable("the kubelet did not answer", &error))?;
    let status = answer.status();
    if status != StatusCode::OK {
        let text = answer.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[..text.len().min(1024)]).into_owned();
        let reason = if status == StatusCode::NOT_FOUND { Reason::NotFound } else { Reason::InternalError };
        let reason = if status == StatusCode::BAD_REQUEST { Reason::BadRequest } else { reason };
        return Err(ApiError::new(reason, text));
    }
    let mut response = Response::new(answer.into_body().map_err(Into::into).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
