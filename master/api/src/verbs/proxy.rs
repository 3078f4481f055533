//! The proxy subresource: forwards a request to a node, and refuses targets that the server cannot
//! reach.

use super::{Call, gateway};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
};
use http_body_util::BodyExt;
use master_client::{Body, body};
use master_gateway::{Expected, NodeBody};
use master_schema::error::{ApiError, Reason, no_resource};

/// Hop-by-hop headers (RFC 9110, 7.6.1), and those with the caller's credentials.
const OWN: [HeaderName; 10] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
];

/// The target that a path names: `NAME`, `NAME:PORT`, `SCHEME:NAME:PORT`.
#[derive(Debug, PartialEq, Eq)]
struct ProxyTarget<'a> {
    tls: Option<bool>,
    name: &'a str,
    port: &'a str,
}

impl<'a> ProxyTarget<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let place = match text.split(':').collect::<Vec<_>>().as_slice() {
            [name] => Self {
                tls: None,
                name,
                port: "",
            },
            [name, port] => Self {
                tls: None,
                name,
                port,
            },
            ["https", name, port] => Self {
                tls: Some(true),
                name,
                port,
            },
            ["http" | "", name, port] => Self {
                tls: Some(false),
                name,
                port,
            },
            _ => return None,
        };
        (!place.name.is_empty()).then_some(place)
    }
}

/// Forwards a request.
pub(super) async fn run(
    call: &Call,
    method: Method,
    uri: &Uri,
    content: Body,
) -> Result<Response<Body>, ApiError> {
    let place = ProxyTarget::parse(&call.target.name).ok_or_else(|| {
        ApiError::new(
            Reason::BadRequest,
            format!(
                "invalid {} request {:?}",
                call.kind.singular, call.target.name
            ),
        )
    })?;
    if call.headers.contains_key(header::UPGRADE) {
        let text = "connections that are upgraded are not handed on by a proxy: exec has a subresource of its own";
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    if call.kind.kind != "Node" {
        return Err(no_path(call, place.name).await?);
    }
    if call.target.rest.is_empty() && matches!(method, Method::GET | Method::HEAD) {
        return with_slash(uri);
    }
    let mut target = gateway::target(call, place.name).await?;
    if !place.port.is_empty() {
        target.port = place
            .port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| {
                ApiError::new(
                    Reason::BadRequest,
                    format!("invalid port {:?} in a node request", place.port),
                )
            })?;
    }
    if place.tls == Some(false) {
        let text =
            "nodes are reached over the cluster's own TLS only: use https:NAME:PORT or NAME:PORT";
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    let path = format!(
        "{}{}",
        call.target.rest,
        uri.query()
            .map_or(String::new(), |query| format!("?{query}"))
    );
    let mut request =
        Request::builder()
            .method(method)
            .uri(if path.is_empty() { "/" } else { &path });
    for (name, value) in passed(&call.headers) {
        request = request.header(name, value);
    }
    let request = request
        .header(header::HOST, format!("{}:{}", target.name, target.port))
        .body(content)
        .map_err(|error| gateway::unreachable("this is no path that can be handed on", &error))?;
    let expected = Expected {
        follow: follows(&call.target.rest, uri.query().unwrap_or_default()),
        at_most: None,
    };
    let answer = gateway::send(call, target, request, expected).await?;
    Ok(handed_back(answer, uri, &call.target.rest))
}

/// Whether a path of the kubelet answers for as long as a container runs: followed logs.
fn follows(path: &str, query: &str) -> bool {
    path.starts_with("/containerLogs/")
        && query
            .split('&')
            .any(|pair| matches!(pair, "follow=true" | "follow=1"))
}

/// The headers that are forwarded.
fn passed(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    headers
        .iter()
        .filter(|(name, _)| !OWN.contains(name) && !name.as_str().starts_with("impersonate-"))
}

/// The target's answer; redirects are rewritten to lead through this server.
fn handed_back(answer: Response<NodeBody>, uri: &Uri, rest: &str) -> Response<Body> {
    let (parts, incoming) = answer.into_parts();
    let mut response = Response::new(incoming.boxed_unsync());
    *response.status_mut() = parts.status;
    for (name, value) in passed(&parts.headers) {
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

/// Redirects the client to the same path with a trailing slash, so that relative links resolve.
fn with_slash(uri: &Uri) -> Result<Response<Body>, ApiError> {
    let query = uri
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let mut response = Response::new(body(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(&format!("{}/{query}", uri.path()))
        .map_err(|_not_a_header| no_resource())?;
    response.headers_mut().insert(header::LOCATION, to);
    Ok(response)
}

/// The error for a pod or service: it does not exist, or the master has no connection to the pod
/// network.
async fn no_path(call: &Call, name: &str) -> Result<ApiError, ApiError> {
    let key = call.kind.key(&call.target.namespace, name);
    if call.stored(&key).await?.is_none() {
        let text = format!("{} {name:?} not found", call.kind.qualified());
        return Ok(ApiError::new(Reason::NotFound, text).about(
            &call.kind.group,
            &call.kind.plural,
            name,
        ));
    }
    let plural = &call.kind.plural;
    let text = format!(
        "{plural} {name:?} cannot be reached: this server has no path into the pods' network; ask from inside the \
         cluster"
    );
    Ok(ApiError::new(Reason::ServiceUnavailable, text).about(&call.kind.group, plural, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_in_all_their_forms() {
        let place = |tls, name, port| Some(ProxyTarget { tls, name, port });
        assert_eq!(ProxyTarget::parse("n1"), place(None, "n1", ""));
        assert_eq!(ProxyTarget::parse("n1:10250"), place(None, "n1", "10250"));
        assert_eq!(
            ProxyTarget::parse("https:n1:10250"),
            place(Some(true), "n1", "10250")
        );
        assert_eq!(
            ProxyTarget::parse("http:n1:web"),
            place(Some(false), "n1", "web")
        );
        for bad in ["", "ftp:n1:1", "a:b:c:d", ":80"] {
            assert_eq!(ProxyTarget::parse(bad), None, "{bad}");
        }
    }
}
