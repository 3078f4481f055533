//! `DeviceAdminAccess`: a claim may ask for admin access, which includes devices that are in use by
//! other claims, only in a namespace with the label for it (KEP-5018; upstream: the strategies of
//! `ResourceClaim` and `ResourceClaimTemplate`). Always enabled.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Faults, FieldPath, Fields, items, object, text};
use serde_json::Value;

/// Label of a namespace in which claims may ask for admin access.
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// The plugin.
#[derive(Debug)]
pub(crate) struct DeviceAdminAccess;

impl Plugin for DeviceAdminAccess {
    fn concerns(&self, request: &Request<'_>) -> bool {
        let claims = request.writes("resource.k8s.io", "resourceclaims")
            || request.writes("resource.k8s.io", "resourceclaimtemplates");
        request.operation == Operation::Create && claims
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(check(request, object))
    }
}

/// Refuses a new claim or template that asks for admin access in a namespace without the label.
async fn check(request: &Request<'_>, new: &Fields) -> Result<(), ApiError> {
    let template = request.is("resource.k8s.io", "resourceclaimtemplates");
    let root = FieldPath::root("spec");
    let (spec, inner) = (object(new, "spec"), root.field("spec"));
    let (spec, at) = if template {
        (spec.and_then(|spec| object(spec, "spec")), &inner)
    } else {
        (spec, &root)
    };
    let faults = faults(spec, at);
    if faults.is_empty() {
        return Ok(());
    }
    let namespace = request
        .get(&format!("namespaces/{}", meta_text(new, "namespace")))
        .await?
        .as_ref()
        .and_then(read);
    let labels = namespace
        .as_ref()
        .and_then(|namespace| object(metadata(namespace), "labels"));
    if labels.is_some_and(|labels| text(labels, LABEL) == "true") {
        return Ok(());
    }
    faults.into_error(&request.kind.group, &request.kind.kind, name_of(new))
}

/// The places at which a claim asks for admin access.
fn faults(spec: Option<&Fields>, at: &FieldPath<'_>) -> Faults {
    let mut faults = Faults::default();
    let devices = spec.and_then(|spec| object(spec, "devices"));
    let at = at.field("devices");
    let at = at.field("requests");
    let requests = devices.map_or(&[][..], |devices| items(devices, "requests"));
    for (index, request) in requests.iter().enumerate() {
        if request
            .pointer("/exactly/adminAccess")
            .and_then(Value::as_bool)
            == Some(true)
        {
            let words = format!(
                "admin access to devices requires the `{LABEL}: true` label on the containing namespace"
            );
            faults.forbidden(
                &at.index(index).field("exactly").field("adminAccess"),
                words,
            );
        }
    }
    faults
}
