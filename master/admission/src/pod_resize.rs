//! `PodResizeValidator`: a resize that a pod's node could never carry out is refused at once,
//! instead of waiting in the pod's status for ever.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use master_client::BoxFuture;
use master_schema::error::{ApiError, Cause};
use master_schema::object::metadata;
use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, get, object, text};

/// Label of a node that names its operating system.
const SYSTEM: &str = "kubernetes.io/os";

/// The plugin.
#[derive(Debug)]
pub(crate) struct PodResizeValidator;

impl Plugin for PodResizeValidator {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update
            && request
                .subresource
                .is_some_and(|subresource| subresource.name() == "resize")
            && request.is("", "pods")
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(check(request, pod))
    }
}

async fn check(request: &Request<'_>, pod: &Fields) -> Result<(), ApiError> {
    let Some(spec) = object(pod, "spec") else {
        return Ok(());
    };
    let name = text(spec, "nodeName");
    let before = request.old.map(|old| get(old, "spec"));
    if name.is_empty() || before == Some(get(pod, "spec")) {
        return Ok(());
    }
    let entry = request.get(&format!("nodes/{name}")).await?;
    let Some(node) = entry.as_ref().and_then(read) else {
        return Err(request.forbidden(name_of(pod), &format!("node {name:?} not found")));
    };
    refusal(spec, name, &node).map_or(Ok(()), |(reason, why)| {
        let mut error = request.forbidden(name_of(pod), &why);
        error.details.causes.push(Cause {
            reason: reason.into(),
            ..Cause::default()
        });
        Err(error)
    })
}

/// Why a node cannot give a pod what its spec requests: upstream's reason and text.
fn refusal(spec: &Fields, name: &str, node: &Fields) -> Option<(&'static str, String)> {
    let system = object(metadata(node), "labels").and_then(|labels| labels.get(SYSTEM));
    if let Some(system) = system.filter(|system| *system != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system}");
        return Some(("UnsupportedPlatform", why));
    }
    let status = object(node, "status");
    let room = Quantities::read(status.and_then(|status| object(status, "allocatable")));
    let requests = master_quota::pod_requests(spec);
    let lack = |resource: &str, unit: fn(Quantity) -> i64| {
        let requested = requests.get(resource).unwrap_or_default();
        let allocatable = room.get(resource).unwrap_or_default();
        (requested > allocatable).then(|| {
            let (requested, allocatable) = (unit(requested), unit(allocatable));
            format!("{resource}, requested: {requested}, allocatable: {allocatable}")
        })
    };
    let cpu = lack("cpu", |cpu| cpu.amount().ceil_milli());
    let memory = lack("memory", |memory| memory.amount().ceil_units());
    let lacking: Vec<String> = cpu.into_iter().chain(memory).collect();
    if lacking.is_empty() {
        return None;
    }
    let all = lacking.join("; ");
    let why = format!("node didn't have enough allocatable resources: {all}");
    Some(("NodeCapacity", why))
}
