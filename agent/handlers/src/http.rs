//! A request over HTTP, as a probe or a hook describes it.

use bytes::Bytes;
use config_http::{Connection, Limits};
use config_kube::k8s_openapi::api::core::v1::HTTPGetAction;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::error::Error;
use tokio::net::TcpStream;

/// Asks, and returns the status of the answer; its body is not read.
///
/// # Errors
/// No answer came, or the request can't be made.
pub(crate) async fn get(
    get: &HTTPGetAction,
    place: &str,
    port: u16,
    agent: &str,
) -> Result<u16, String> {
    if get
        .scheme
        .as_deref()
        .is_some_and(|scheme| !scheme.eq_ignore_ascii_case("http"))
    {
        return Err("requests over https are not available yet".to_owned());
    }
    let say = |error: &dyn Error| format!("Get \"http://{place}:{port}\": {error}");
    let request = request(get, place, port, agent).map_err(|error| say(&error))?;
    let stream = TcpStream::connect((place, port))
        .await
        .map_err(|error| say(&error))?;
    let exchange = async {
        let (stream, limits) = (TokioIo::new(stream), Limits::default());
        let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
        let mut connection = Connection::open(stream, &executor, timer, limits).await?;
        connection.send(request).await
    };
    // The words of the connection itself, as upstream shows them.
    let answer = exchange
        .await
        .map_err(|error| say(error.source().unwrap_or(&error)));
    Ok(answer?.status().as_u16())
}

fn request(
    get: &HTTPGetAction,
    place: &str,
    port: u16,
    agent: &str,
) -> Result<Request<Bytes>, http::Error> {
    let path = get.path.as_deref().unwrap_or_default();
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    let named = |name: &str| {
        let mut headers = get.http_headers.iter().flatten();
        headers.any(|header| header.name.eq_ignore_ascii_case(name))
    };
    let mut request = Request::get(path);
    for (name, value) in [
        ("user-agent", agent.to_owned()),
        ("accept", "*/*".to_owned()),
        ("host", format!("{place}:{port}")),
    ] {
        // What the pod says of a header stands.
        if !named(name) {
            request = request.header(name, value);
        }
    }
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    request.body(Bytes::new())
}
