//! The log of a container, streamed from the kubelet of its node, over WebSocket where the client
//! asks for one.

use super::answer::Answer;
use super::call::Call;
use super::gateway::{self, NodeGateway, REFUSAL};
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use master_gateway::{Expected, NodeTarget, WebSocketContent};
use master_schema::error::{ApiError, Reason, shown};
use master_schema::validate::{Fields, items, object as inner, text};

/// Query parameters that the kubelet supports, under upstream's names.
const PARAMETERS: &[&str] = &[
    "follow",
    "previous",
    "sinceSeconds",
    "sinceTime",
    "timestamps",
    "tailLines",
    "limitBytes",
    "stream",
];

fn bad(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// Streams a container's log.
pub(super) async fn read(call: &Call, nodes: &NodeGateway<'_>) -> Answer {
    let carry = call.carrier(WebSocketContent::Log, nodes.denials, nodes.draining)?;
    let entry = call.entry(nodes.reader).await?;
    let pod = master_objects::decode_without_managed(&call.kind, &entry)?;
    let name = &call.target.name;
    let spec = inner(&pod, "spec").cloned().unwrap_or_default();
    let container = container(&spec, name, call.query.get("container"))?;
    let node = text(&spec, "nodeName");
    if node.is_empty() {
        return Err(bad(format!("pod {name} does not have a host assigned")));
    }
    let target = gateway::target(call, nodes.reader, node).await?;
    let path = log_path(call, &container)?;
    ask(call, nodes, target, &path).await.map(carry)
}

/// The requested container, which the pod must have.
pub(super) fn container(spec: &Fields, pod: &str, requested: &str) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        items(spec, list)
            .iter()
            .filter_map(|c| c.get("name")?.as_str())
            .map(str::to_owned)
            .collect()
    };
    let own = names("containers");
    let all: Vec<String> = ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| names(list))
        .collect();
    match (requested, own.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", several) => Err(bad(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            several.join(" ")
        ))),
        (requested, _) if all.iter().any(|name| name == requested) => Ok(requested.to_owned()),
        (requested, _) => Err(bad(format!(
            "container {requested} is not valid for pod {pod}"
        ))),
    }
}

/// The kubelet's path for the log, with the request's parameters.
fn log_path(call: &Call, container: &str) -> Result<String, ApiError> {
    let (namespace, pod) = (&call.target.namespace, &call.target.name);
    let mut path = format!("/containerLogs/{namespace}/{pod}/{container}");
    let mut separator = '?';
    for (key, value) in call.query.pairs() {
        if !PARAMETERS.contains(&key.as_str()) {
            continue;
        }
        if matches!(key.as_str(), "sinceSeconds" | "tailLines" | "limitBytes")
            && value
                .parse::<i64>()
                .map_or(true, |number| number < i64::from(key != "tailLines"))
        {
            return Err(ApiError::new(
                Reason::Invalid,
                format!(
                    "PodLogOptions is invalid: {key}: Invalid value: {:?}",
                    shown(value)
                ),
            ));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.');
        if !value.chars().all(plain) {
            return Err(bad(format!("{key}: Invalid value: {:?}", shown(value))));
        }
        path.push(separator);
        separator = '&';
        path.push_str(key);
        path.push('=');
        path.push_str(value);
    }
    Ok(path)
}

/// Asks the kubelet and streams its answer.
async fn ask(call: &Call, nodes: &NodeGateway<'_>, target: NodeTarget, path: &str) -> Answer {
    let request = gateway::request(&Method::GET, &target, path)?;
    let expected = Expected {
        follow: call
            .query
            .get("follow")
            .parse()
            .is_ok_and(|follow: bool| follow)
            || call.query.get("follow") == "1",
        at_most: call.query.get("limitBytes").parse().ok(),
    };
    let answer = gateway::send(call, nodes, target, request, expected).await?;
    let status = answer.status();
    if status != StatusCode::OK {
        let text = answer.into_body().beginning(REFUSAL).await;
        let reason = match status {
            StatusCode::NOT_FOUND => Reason::NotFound,
            StatusCode::BAD_REQUEST => Reason::BadRequest,
            _ => Reason::InternalError,
        };
        return Err(ApiError::new(reason, text));
    }
    let mut response = Response::new(answer.into_body().boxed_unsync());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
