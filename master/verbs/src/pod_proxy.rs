//! Proxies requests to programs in pods, by the name of a pod or of a service.
//!
//! This server is not part of the pod network: a server that receives everyone's requests should
//! not be able to connect to every pod. A request takes the same way as logs and commands: to the
//! kubelet of the pod's node, over TLS with the master's certificate and the node's verified. The
//! node connects to the pod and passes bytes on; this server speaks HTTP with the program, over TLS
//! if the path says `https:`. The program's certificate is not verified, as with upstream: no CA of
//! the cluster issued it, and the verified node connects to the right pod.

use super::answer::Answer;
use super::call::Call;
use super::gateway::{self, NodeGateway, REFUSAL};
use super::tunnel::{self, NodeSide};
use bytes::Bytes;
use config_tunnel::port::{PROTOCOL, PortPath};
use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use master_client::{Body, Client, body};
use master_gateway::{
    Backend, Driver, Expected, NodeBody, NodeCall, NodeStream, Page, ProxiedRequest, ProxyTarget,
    ReverseProxy, Upload, is_page, of_pod, of_service, with_slash,
};
use master_schema::error::{ApiError, Reason};

/// Forwards a request to a program in a pod.
pub(super) async fn run(
    call: &Call,
    nodes: &NodeGateway<'_>,
    client: &Client,
    target: &ProxyTarget<'_>,
    content: Body,
) -> Answer {
    let namespace = &call.target.namespace;
    let backend = if call.kind.kind == "Pod" {
        of_pod(client, namespace, target).await?
    } else {
        of_service(client, namespace, target).await?
    };
    let upgrade = call.headers.contains_key(UPGRADE) && call.upgrade.is_some();
    if !upgrade && call.target.rest.is_empty() && matches!(call.method, Method::GET | Method::HEAD)
    {
        return with_slash(&call.uri);
    }
    let proxied = ProxiedRequest {
        plural: &call.kind.plural,
        rest: &call.target.rest,
        headers: &call.headers,
        uri: &call.uri,
        client: call.peer.remote.map(|remote| remote.ip()),
        upgrade,
    };
    let proxy = proxied.behind(target, &backend);
    let request = proxied
        .request(&proxy, call.method.clone())
        .map_err(|error| gateway::unreachable("the path cannot be forwarded", &error))?;
    let request = request.map(|()| content);
    let (answer, driver, slot) = ask(call, nodes, target, &backend, request, upgrade).await?;
    let side = NodeSide {
        node: backend.node,
        answer,
        driver,
        slot,
    };
    match (side.answer.status(), &call.upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(connection)) if upgrade => {
            let mut response = Response::new(body(Bytes::new()));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let received = side.answer.headers();
            *response.headers_mut() = proxy.answer(received);
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            if let Some(to) = received.get(UPGRADE) {
                headers.insert(UPGRADE, to.clone());
            }
            tunnel::join(call, nodes, connection.clone(), side);
            Ok(response)
        }
        (status, _) if status.is_informational() || (upgrade && status.as_u16() < 400) => {
            let text = format!("invalid upgrade response: status code {}", status.as_u16());
            Err(ApiError {
                code: StatusCode::BAD_GATEWAY.as_u16(),
                ..ApiError::new(Reason::InternalError, text)
            })
        }
        _ => Ok(handed_back(call, nodes, proxy, side)),
    }
}

/// An answer's header, the driver that moves its connection's bytes, and its slot among the node's.
type Answered = (Response<Incoming>, Driver, NodeCall);

/// Sends the request to the program.
async fn ask(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: &ProxyTarget<'_>,
    backend: &Backend,
    request: Request<Body>,
    upgrade: bool,
) -> Result<Answered, ApiError> {
    let slots = if upgrade {
        nodes.tunnels
    } else {
        nodes.answers
    };
    let slot = slots.begin(&backend.node, call.owner())?;
    let stream = connect(call, nodes, backend).await?;
    let stream: Box<dyn NodeStream> = if target.tls == Some(true) {
        let secured = master_gateway::connect_tls(stream);
        let secured = tokio::time::timeout(nodes.limits.header, secured);
        let secured = secured.await.map_err(|elapsed| failed(&elapsed))?;
        Box::new(secured.map_err(|error| failed(&error))?)
    } else {
        stream
    };
    let (parts, content) = request.into_parts();
    let (upload, progress) = Upload::new(content);
    let request = Request::from_parts(parts, upload.boxed_unsync());
    let limit = nodes.limits.program;
    // Cancel-safe: a request that is given up ends with its connection.
    let (answer, driver) = tokio::select! {
        answered = gateway::speak(call, nodes, backend.node.clone(), stream, request) => {
            answered.map_err(|error| failed(&error))?
        }
        () = progress.stalls(limit) => {
            let text = format!("the program in pod {} did not answer within {} s", backend.pod, limit.as_secs());
            return Err(ApiError {
                code: StatusCode::GATEWAY_TIMEOUT.as_u16(),
                ..ApiError::new(Reason::Timeout, text)
            });
        }
    };
    Ok((answer, driver, slot))
}

/// A failure between this server and the program, in upstream's words.
fn failed(error: &dyn std::error::Error) -> ApiError {
    let text = format!(
        "error trying to reach service: {}",
        config_errors::chain(error)
    );
    ApiError::new(Reason::ServiceUnavailable, text)
}

/// A connection to the pod's port, made by its node.
async fn connect(
    call: &Call,
    nodes: &NodeGateway<'_>,
    backend: &Backend,
) -> Result<Box<dyn NodeStream>, ApiError> {
    let node = gateway::target(call, nodes.reader, &backend.node).await?;
    let path = PortPath {
        namespace: &backend.namespace,
        pod: &backend.pod,
        uid: &backend.uid,
        port: backend.port,
    };
    let mut request = gateway::request(&Method::GET, &node, &path.to_string())?;
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    // The node's own answer holds a slot only while it is read.
    let (answer, driver) = gateway::ask(call, nodes, node, request).await?;
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let stream = hyper::upgrade::on(answer).await;
        let stream = stream
            .map_err(|error| gateway::unreachable("the node closed the connection", &error))?;
        return Ok(Box::new(TokioIo::new(stream)));
    }
    let slot = nodes.tunnels.begin(&backend.node, call.owner())?;
    let limits = nodes.limits.clone();
    let answer = answer.into_body();
    let refusal = NodeBody::new(answer, driver, slot, limits, Expected::default());
    let text = refusal.beginning(REFUSAL).await;
    let text = text.trim_end();
    Err(match status {
        StatusCode::FORBIDDEN => ApiError::new(Reason::Forbidden, text),
        StatusCode::NOT_FOUND => ApiError::new(Reason::NotFound, text),
        StatusCode::TOO_MANY_REQUESTS => {
            ApiError::new(Reason::TooManyRequests, text).retry_after(1)
        }
        StatusCode::SERVICE_UNAVAILABLE => ApiError::new(
            Reason::ServiceUnavailable,
            format!("error trying to reach service: {text}"),
        ),
        _ => ApiError::new(Reason::InternalError, text),
    })
}

/// The program's answer, with links rewritten to lead through this server.
fn handed_back(
    call: &Call,
    nodes: &NodeGateway<'_>,
    proxy: ReverseProxy,
    side: NodeSide,
) -> Response<Body> {
    let NodeSide {
        answer,
        driver,
        slot,
        ..
    } = side;
    let (parts, incoming) = answer.into_parts();
    // As long as the client reads: events of a program may be hours apart.
    let expected = Expected {
        follow: true,
        at_most: None,
    }
    .with(parts.status);
    let source = NodeBody::new(incoming, driver, slot, nodes.limits.clone(), expected);
    let mut headers = proxy.answer(&parts.headers);
    let content = if is_page(&parts.headers) {
        headers.remove(CONTENT_LENGTH);
        if call.method == Method::HEAD {
            source.boxed_unsync()
        } else {
            Page::new(source, proxy).boxed_unsync()
        }
    } else {
        source.boxed_unsync()
    };
    let mut response = Response::new(content);
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    response
}
