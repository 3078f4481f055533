//! `NodeRestriction`: what a node may write. The Node authorizer decides which objects a node may
//! reach.

mod address_owners;
mod addresses;
mod events;
mod labels;
mod write_limits;

use crate::certificates::Subject;
use crate::plugin::{Admitted, Operation, Plugin, Request};
use crate::plugin_services::PluginServices;
use address_owners::AddressOwners;
use config_kube::identity;
use master_auth::Authorizer;
use master_client::BoxFuture;
use master_objects::Clock;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::registry::Subresource;
use master_schema::validate::{Fields, get, items, object, object_mut, text};
use serde_json::Value;
use std::sync::Arc;
use write_limits::WriteLimits;

/// The plugin.
#[derive(Debug)]
pub(crate) struct NodeRestriction {
    authorizer: Arc<Authorizer>,
    clock: Clock,
    write_limits: WriteLimits,
    address_owners: AddressOwners,
}

impl NodeRestriction {
    pub(crate) fn new(parts: &PluginServices) -> Self {
        Self {
            authorizer: parts.authorizer.clone(),
            clock: parts.clock.clone(),
            write_limits: WriteLimits::new(parts.clock.clone()),
            address_owners: AddressOwners::new(parts),
        }
    }
}

impl Plugin for NodeRestriction {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.user.node().is_some()
    }

    fn reach(&self, request: &Request<'_>, stored: &Fields) -> Result<(), ApiError> {
        match request.user.node() {
            Some(node) if request.kind.kind == "Pod" => own_pod(request, node, stored),
            Some(node) if request.kind.kind == "Event" => events::own(request, node, stored),
            Some(_) | None => Ok(()),
        }
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let Some(node) = request.user.node() else {
            return Box::pin(std::future::ready(Ok(())));
        };
        Box::pin(async move {
            match (request.operation, request.old) {
                (Operation::Create, _) => create(request, node, object)?,
                (Operation::Update, Some(old)) => update(request, node, object, old)?,
                (Operation::Update | Operation::Delete, _) => delete(request, node, object)?,
            }
            check_owners_and_finalizers(request, node, object)?;
            match (
                request.operation,
                request.kind.kind.as_str(),
                request.subresource,
                request.old,
            ) {
                (Operation::Create | Operation::Update, "Event", _, _) => {
                    let reporter = events::Reporter {
                        node,
                        authorizer: &self.authorizer,
                        now: self.clock.now(),
                    };
                    events::check(request, &reporter, object).await?;
                }
                (Operation::Create | Operation::Update, "Node", _, old) => {
                    labels::check(&self.address_owners, request, node, object, old).await?;
                }
                (Operation::Update, "Pod", Some(Subresource::Status), Some(old)) => {
                    addresses::check(&self.address_owners, request, node, object, old).await?;
                }
                _ => {}
            }
            match request.operation {
                Operation::Create | Operation::Update => {
                    self.write_limits.check(request, node, object).await
                }
                Operation::Delete => Ok(()),
            }
        })
    }
}

fn create(request: &Request<'_>, node: &str, fields: &Fields) -> Result<(), ApiError> {
    let name = meta_text(fields, "name");
    match request.kind.kind.as_str() {
        "Node" => register(request, node, name, fields),
        "CertificateSigningRequest" => certificate_request(request, fields, name),
        "Lease" => own_lease(request, node, name, meta_text(fields, "namespace")),
        "CSINode" => own_csi_node(request, node, name),
        "ResourceSlice" => own_slice(request, node, name, fields, "create"),
        // No default role lets a node create pods; if an admin's role does, only mirror pods pass.
        "Pod" => mirror_pod(request, node, name, fields),
        _ => Ok(()),
    }
}

fn own_csi_node(request: &Request<'_>, node: &str, name: &str) -> Result<(), ApiError> {
    if name == node {
        return Ok(());
    }
    Err(request.forbidden(
        name,
        &format!("can only access CSINode with the same name as the requesting node {node:?}"),
    ))
}

fn own_slice(
    request: &Request<'_>,
    node: &str,
    name: &str,
    slice: &Fields,
    verb: &str,
) -> Result<(), ApiError> {
    if object(slice, "spec").is_some_and(|spec| text(spec, "nodeName") == node) {
        return Ok(());
    }
    Err(request.forbidden(
        name,
        &format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"),
    ))
}

/// Pods that a node creates are mirrors of static pods on it, and reference no API objects.
fn mirror_pod(request: &Request<'_>, node: &str, name: &str, pod: &Fields) -> Result<(), ApiError> {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    let refuse = |why: String| Err(request.forbidden(name, &why));
    if !object(metadata(pod), "annotations")
        .is_some_and(|annotations| annotations.contains_key(MIRROR))
    {
        return refuse(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let spec = object(pod, "spec");
    if spec.map_or("", |spec| text(spec, "nodeName")) != node {
        return refuse(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = items(metadata(pod), "ownerReferences");
    let itself = |owner: &Value| is_node(owner, node) && owner["controller"] == true;
    match owners {
        [owner] if itself(owner) && owner["blockOwnerDeletion"] != true => {}
        [owner] if itself(owner) => {
            return refuse(format!(
                "node {node:?} must not set blockOwnerDeletion on an owner reference"
            ));
        }
        _ => {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
    }
    if !spec
        .map_or("", |spec| text(spec, "serviceAccountName"))
        .is_empty()
    {
        return refuse(format!(
            "node {node:?} can not create pods that reference a service account"
        ));
    }
    for (source, word) in [
        ("secret", "secrets"),
        ("configMap", "configmaps"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
    ] {
        let volumes = spec.map_or(&[][..], |spec| items(spec, "volumes"));
        if volumes.iter().any(|volume| volume.get(source).is_some()) {
            return refuse(format!(
                "node {node:?} can not create pods that reference {word}"
            ));
        }
    }
    Ok(())
}

/// Whether an owner is this Node.
fn is_node(owner: &Value, node: &str) -> bool {
    let is = |key: &str, value: &str| owner.get(key).is_some_and(|own| own == value);
    is("apiVersion", "v1") && is("kind", "Node") && is("name", node)
}

/// Objects with which a node describes itself must be deleted with its Node and must delay no other
/// deletion: the node may set no owner but its Node, no `blockOwnerDeletion` and no finalizer. What
/// others have set stays.
fn check_owners_and_finalizers(
    request: &Request<'_>,
    node: &str,
    new: &Fields,
) -> Result<(), ApiError> {
    let kind = &*request.kind.kind;
    if request.operation == Operation::Delete
        || !matches!(kind, "Lease" | "CSINode" | "ResourceSlice")
    {
        return Ok(());
    }
    let old = request.old.map(metadata);
    let kept = |key: &str| old.map_or(&[][..], |old| items(old, key));
    let name = meta_text(new, "name");
    let owners = items(metadata(new), "ownerReferences");
    let own = |owner: &Value| is_node(owner, node) && owner["blockOwnerDeletion"] != true;
    if owners != kept("ownerReferences") && !owners.iter().all(own) {
        let why = format!(
            "node {node:?} is not allowed to set an owner of a {kind} other than its Node, or blockOwnerDeletion"
        );
        return Err(request.forbidden(name, &why));
    }
    if items(metadata(new), "finalizers") != kept("finalizers") {
        let why = format!("node {node:?} is not allowed to set finalizers of a {kind}");
        return Err(request.forbidden(name, &why));
    }
    Ok(())
}

/// A node may request node certificates only, and only its own (upstream:
/// `AllowInsecureKubeletCertificateSigningRequests` off).
fn certificate_request(request: &Request<'_>, fields: &Fields, name: &str) -> Result<(), ApiError> {
    let spec = object(fields, "spec");
    let signer = spec.map_or("", |spec| text(spec, "signerName"));
    let signers = [
        identity::NODE_CLIENT_SIGNER,
        identity::NODE_SERVING_SIGNER,
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
    ];
    if !signers.contains(&signer) {
        return Err(request.forbidden(
            name,
            &format!("a node cannot request a certificate of signer {signer:?}"),
        ));
    }
    let own = Subject {
        users: vec![request.user.name.clone()],
        groups: vec![identity::NODES_GROUP.to_owned()],
    };
    let requested = spec.and_then(|spec| Subject::of_request(text(spec, "request")));
    if requested == Some(own) {
        return Ok(());
    }
    let subject = format!("O={}, CN={}", identity::NODES_GROUP, request.user.name);
    Err(request.forbidden(
        name,
        &format!("a node can only request certificates with the subject {subject}"),
    ))
}

fn own_lease(
    request: &Request<'_>,
    node: &str,
    name: &str,
    namespace: &str,
) -> Result<(), ApiError> {
    if name == node && namespace == identity::NODE_LEASE_NAMESPACE {
        return Ok(());
    }
    Err(request.forbidden(
        name,
        &format!("can only access node lease with the same name as the requesting node {node:?}"),
    ))
}

/// A node that creates its own Node object may set no taints of this project's group, owners or
/// finalizers. [`labels`] says which labels it may have.
fn register(
    request: &Request<'_>,
    node: &str,
    name: &str,
    fields: &Fields,
) -> Result<(), ApiError> {
    if name != node {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to modify node {name:?}"),
        ));
    }
    let taints = object(fields, "spec").map_or(&[][..], |spec| items(spec, "taints"));
    let masters = |taint: &&Value| {
        let key = taint.get("key").and_then(Value::as_str).unwrap_or_default();
        key.strip_prefix(identity::GROUP)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    if taints.iter().any(|taint| masters(&taint)) {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to set taints of the master"),
        ));
    }
    // Other nodes send what is for these ranges to the node that has them: the control plane gives
    // them.
    let spec = object(fields, "spec");
    if spec.is_some_and(|spec| {
        !text(spec, "podCIDR").is_empty() || !items(spec, "podCIDRs").is_empty()
    }) {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to set its ranges of pod addresses"),
        ));
    }
    if ["ownerReferences", "finalizers"]
        .iter()
        .any(|key| !items(metadata(fields), key).is_empty())
    {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to set owners or finalizers"),
        ));
    }
    Ok(())
}

/// A changed object; the new one comes first.
fn update(request: &Request<'_>, node: &str, new: &Fields, old: &Fields) -> Result<(), ApiError> {
    let name = request.name;
    match (request.kind.kind.as_str(), request.subresource) {
        ("Node", _) => own_node(request, node, new, old),
        ("Pod", Some(Subresource::Status)) => {
            own_pod(request, node, old)?;
            // Upstream lets a node write annotations. Controllers read there which index of a Job a
            // pod has, how often it failed and what its deletion costs, and by these a node would
            // end pods of other nodes; no agent writes any through the status.
            for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
                if get(metadata(new), key) != get(metadata(old), key) {
                    return Err(request.forbidden(
                        name,
                        &format!("node {node:?} cannot update {key} through pod status"),
                    ));
                }
            }
            // Through these fields a pod gets claims, and its node may read what they name: only
            // the control plane sets them.
            let status = |fields: &Fields, key| {
                object(fields, "status").map_or(Value::Null, |s| get(s, key).clone())
            };
            for key in ["resourceClaimStatuses", "extendedResourceClaimStatus"] {
                if status(new, key) != status(old, key) {
                    return Err(request.forbidden(
                        name,
                        &format!("node {node:?} cannot update {key} through pod status"),
                    ));
                }
            }
            Ok(())
        }
        ("PersistentVolumeClaim", Some(Subresource::Status))
            if claim_grown(new) != claim_grown(old) =>
        {
            let why = format!(
                "node {node:?} can only say how large the volume is, and how its growing goes"
            );
            Err(request.forbidden(name, &why))
        }
        ("Lease", _) => own_lease(request, node, name, request.namespace),
        ("CSINode", _) => own_csi_node(request, node, name),
        ("ResourceSlice", _) => own_slice(request, node, name, old, "update"),
        _ => Ok(()),
    }
}

/// A claim without the fields of volume expansion that the mounting node writes.
fn claim_grown(claim: &Fields) -> Fields {
    let mut claim = claim.clone();
    for key in ["managedFields", "resourceVersion"] {
        object_mut(&mut claim, "metadata").map(|metadata| metadata.remove(key));
    }
    let written_by_node = [
        "capacity",
        "conditions",
        "allocatedResources",
        "allocatedResourceStatuses",
        "modifyVolumeStatus",
        "currentVolumeAttributesClassName",
    ];
    if let Some(status) = object_mut(&mut claim, "status") {
        status.retain(|key, _| !written_by_node.contains(&key.as_str()));
    }
    claim
}

/// A node changes only its own Node object, and there neither taints nor the rest of the spec, and
/// few labels ([`labels`]).
fn own_node(request: &Request<'_>, node: &str, new: &Fields, old: &Fields) -> Result<(), ApiError> {
    let name = request.name;
    if name != node {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to modify node {name:?}"),
        ));
    }
    let taints = |fields: &Fields| {
        object(fields, "spec").map_or(Value::Null, |spec| get(spec, "taints").clone())
    };
    if taints(new) != taints(old) {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to modify taints"),
        ));
    }
    let spec = |fields: &Fields| {
        object(fields, "spec")
            .filter(|spec| !spec.is_empty())
            .cloned()
    };
    if spec(new) != spec(old) {
        return Err(request.forbidden(
            name,
            &format!("node {node:?} is not allowed to modify its spec"),
        ));
    }
    for key in ["ownerReferences", "finalizers"] {
        if get(metadata(new), key) != get(metadata(old), key) {
            return Err(request.forbidden(
                name,
                &format!("node {node:?} is not allowed to modify {key}"),
            ));
        }
    }
    Ok(())
}

fn own_pod(request: &Request<'_>, node: &str, pod: &Fields) -> Result<(), ApiError> {
    let bound = object(pod, "spec").map_or("", |spec| text(spec, "nodeName"));
    if bound == node {
        return Ok(());
    }
    let name = meta_text(pod, "name");
    Err(request.forbidden(
        name,
        &format!("node {node:?} can only touch pods with spec.nodeName set to itself"),
    ))
}

/// A deletion.
fn delete(request: &Request<'_>, node: &str, fields: &Fields) -> Result<(), ApiError> {
    let name = meta_text(fields, "name");
    match request.kind.kind.as_str() {
        "Pod" => own_pod(request, node, fields),
        "Lease" => own_lease(request, node, name, meta_text(fields, "namespace")),
        "CSINode" => own_csi_node(request, node, name),
        "ResourceSlice" => own_slice(request, node, name, fields, "delete"),
        "Event" => events::own(request, node, fields),
        _ => Ok(()),
    }
}
