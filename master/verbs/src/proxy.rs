//! The proxy subresource: the target of a path, and requests to nodes. `pod_proxy` handles those to
//! pods and services.

use super::answer::Answer;
use super::call::Call;
use super::gateway::{self, NodeGateway};
use super::pod_proxy;
use config_machine::power::is_order;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::BodyExt;
use master_client::{Body, Client};
use master_gateway::{Expected, NodeBody, NodeTarget, ProxyTarget, follows, for_node, with_slash};
use master_schema::error::{ApiError, Reason, shown};
use master_store::Reader;

/// Forwards a request.
pub(super) async fn run(
    call: &Call,
    nodes: &NodeGateway<'_>,
    client: &Client,
    content: Body,
) -> Answer {
    let place = ProxyTarget::parse(&call.target.name).ok_or_else(|| {
        ApiError::new(
            Reason::BadRequest,
            format!(
                "invalid {} request {:?}",
                call.kind.singular,
                shown(&call.target.name)
            ),
        )
    })?;
    if call.kind.kind != "Node" {
        return pod_proxy::run(call, nodes, client, &place, content).await;
    }
    if call.headers.contains_key(header::UPGRADE) {
        let text = "the proxy of a node does not forward upgraded connections; for a pod use its subresource exec, attach, portforward or proxy";
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    if call.target.rest.is_empty() && matches!(call.method, Method::GET | Method::HEAD) {
        return with_slash(&call.uri);
    }
    // The order has a right and a record of its own.
    if is_order(&call.target.rest) {
        let text = "the proxy does not forward orders to a machine; POST to the node's subresource `power`";
        return Err(ApiError::new(Reason::Forbidden, text));
    }
    let target = node(call, nodes.reader, &place).await?;
    let request = handed_on(call, &target, content)?;
    let expected = Expected {
        follow: follows(&call.target.rest, call.uri.query().unwrap_or_default()),
        at_most: None,
    };
    let answer = gateway::send(call, nodes, target, request, expected).await?;
    Ok(handed_back(answer, &call.uri, &call.target.rest))
}

/// The address of the node that the path names, with the path's port in place of its kubelet's.
async fn node(
    call: &Call,
    reader: &dyn Reader,
    place: &ProxyTarget<'_>,
) -> Result<NodeTarget, ApiError> {
    let mut target = gateway::target(call, reader, place.name).await?;
    if !place.port.is_empty() {
        target.port = place
            .port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| {
                ApiError::new(
                    Reason::BadRequest,
                    format!("invalid port {:?} in a node request", shown(place.port)),
                )
            })?;
    }
    if place.tls == Some(false) {
        let text =
            "nodes are reached over the cluster's own TLS only: use https:NAME:PORT or NAME:PORT";
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    Ok(target)
}

/// The caller's request as the node gets it: what follows the proxy's own path, without headers
/// that only concern this server.
fn handed_on(call: &Call, target: &NodeTarget, content: Body) -> Result<Request<Body>, ApiError> {
    let path = format!(
        "{}{}",
        call.target.rest,
        call.uri
            .query()
            .map_or(String::new(), |query| format!("?{query}"))
    );
    let mut request = Request::builder()
        .method(&call.method)
        .uri(if path.is_empty() { "/" } else { &path });
    for (name, value) in for_node(&call.headers) {
        request = request.header(name, value);
    }
    request
        .header(header::HOST, format!("{}:{}", target.name, target.port))
        .body(content)
        .map_err(|error| gateway::unreachable("the path cannot be forwarded", &error))
}

/// The target's answer; redirects are rewritten to lead through this server.
fn handed_back(answer: Response<NodeBody>, uri: &Uri, rest: &str) -> Response<Body> {
    let (parts, incoming) = answer.into_parts();
    let mut response = Response::new(incoming.boxed_unsync());
    *response.status_mut() = parts.status;
    for (name, value) in for_node(&parts.headers) {
        response.headers_mut().append(name, value.clone());
    }
    let base = uri.path().strip_suffix(rest).unwrap_or(uri.path());
    let location = parts
        .headers
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok());
    if let Some(location) = location.filter(|location| location.starts_with('/'))
        && let Ok(value) = HeaderValue::from_str(&format!("{base}{location}"))
    {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}
