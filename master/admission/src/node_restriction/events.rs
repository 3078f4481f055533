//! Restricts the events that nodes write. Admins trust events, so a node may report only on its own
//! Node, its pods and their claims, and only in its own name.

use super::write_limits;
use crate::plugin::{Operation, Request, read};
use jiff::{SignedDuration, Timestamp};
use master_auth::Authorizer;
use master_rbac::Resource;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, get, items, object, text};

/// The names of the object that an event is about, and of the one beside it, in either version.
const ABOUT: [&str; 3] = ["involvedObject", "regarding", "related"];
/// The names of the reporter, in either version.
const SOURCES: [&str; 2] = ["source", "deprecatedSource"];

/// For how long after the creation of another node's pod a node may report on its own former pod of
/// the same name: as long as events are kept.
const PREDECESSOR: SignedDuration = SignedDuration::from_hours(1);

/// A node that writes an event, and what decides whether it may.
pub(super) struct Reporter<'a> {
    pub(super) node: &'a str,
    pub(super) authorizer: &'a Authorizer,
    pub(super) now: Timestamp,
}

/// Whether the event was reported by the node.
pub(super) fn own(request: &Request<'_>, node: &str, event: &Fields) -> Result<(), ApiError> {
    let hosts = SOURCES
        .iter()
        .filter_map(|key| object(event, key))
        .map(|source| text(source, "host"));
    let mut names = hosts
        .chain([text(event, "reportingInstance")])
        .filter(|name| !name.is_empty())
        .peekable();
    if names.peek().is_some() && names.all(|name| name == node) {
        return Ok(());
    }
    let why = format!(
        "node {node:?} can only write events that it reports itself: source.host or reportingInstance must be its name"
    );
    Err(request.forbidden(meta_text(event, "name"), &why))
}

/// Whether a node may write an event.
pub(super) async fn check(
    request: &Request<'_>,
    reporter: &Reporter<'_>,
    event: &Fields,
) -> Result<(), ApiError> {
    let node = reporter.node;
    own(request, node, event)?;
    let before = request
        .old
        .filter(|_| request.operation == Operation::Update);
    if let Some(before) = before {
        own(request, node, before)?;
    }
    for key in ["ownerReferences", "finalizers"] {
        let kept = before.map_or(&[][..], |before| items(metadata(before), key));
        if items(metadata(event), key) != kept {
            let why = format!("node {node:?} is not allowed to set {key} of an event");
            return Err(request.forbidden(meta_text(event, "name"), &why));
        }
    }
    if write_limits::annotates(event, before) {
        let why = format!(
            "node {node:?} is not allowed to set other annotations of an event than those of evictions"
        );
        return Err(request.forbidden(meta_text(event, "name"), &why));
    }
    for key in ABOUT {
        let Some(about) = object(event, key) else {
            continue;
        };
        let is_known = before.is_some_and(|before| get(before, key) == get(event, key));
        belongs(request, reporter, event, about, is_known).await?;
    }
    Ok(())
}

/// Whether the object that an event is about belongs to the node. Updates of an event are checked
/// like new ones, because each can report something new. `is_known`: the stored event is already
/// about this object.
async fn belongs(
    request: &Request<'_>,
    reporter: &Reporter<'_>,
    event: &Fields,
    about: &Fields,
    is_known: bool,
) -> Result<(), ApiError> {
    let node = reporter.node;
    let (kind, namespace, name) = (
        text(about, "kind"),
        text(about, "namespace"),
        text(about, "name"),
    );
    let core = matches!(text(about, "apiVersion"), "" | "v1");
    let here = namespace == meta_text(event, "namespace");
    let is_own = match kind {
        "Node" => name == node && meta_text(event, "namespace") == "default",
        "Pod" if here => is_pod_of_node(request, reporter, about, is_known).await?,
        "PersistentVolumeClaim" if here => {
            let claim = Resource {
                resource: "persistentvolumeclaims",
                namespace,
                name,
                ..Resource::default()
            };
            reporter.authorizer.may(request.user, "get", claim).await?
        }
        _ => false,
    };
    if is_own && core {
        return Ok(());
    }
    let why = format!(
        "node {node:?} can only write events about its own Node (in the namespace default), the pods that it runs and their \
         claims, and not about {kind} {namespace}/{name}"
    );
    Err(request.forbidden(meta_text(event, "name"), &why))
}

/// Whether a pod is the node's. The last events of a pod may come after its deletion: they are
/// accepted if they name a UID, or if the stored event is already about the pod and is counted
/// again.
///
/// If a pod of another node has the name now, they are accepted only for [`PREDECESSOR`] after its
/// creation: the UIDs of deleted pods are unknown, so the node could invent one, and a reader who
/// looks for events by name sees them beside those of the present pod.
async fn is_pod_of_node(
    request: &Request<'_>,
    reporter: &Reporter<'_>,
    about: &Fields,
    is_known: bool,
) -> Result<bool, ApiError> {
    let uid = text(about, "uid");
    let key = format!("pods/{}/{}", text(about, "namespace"), text(about, "name"));
    let stored = request.get(&key).await?.as_ref().and_then(read);
    let Some(pod) = stored else {
        return Ok(is_known || !uid.is_empty());
    };
    let runs_on = object(&pod, "spec").map_or("", |spec| text(spec, "nodeName"));
    let made = meta_text(&pod, "creationTimestamp").parse::<Timestamp>();
    let is_young = made.is_ok_and(|made| reporter.now.duration_since(made) < PREDECESSOR);
    let of_another = !uid.is_empty() && uid != meta_text(&pod, "uid");
    Ok(runs_on == reporter.node || (of_another && is_young))
}
