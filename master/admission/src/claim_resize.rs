//! `PersistentVolumeClaimResize`: a claim may grow only if its storage class allows volume
//! expansion.

use crate::plugin::{Admitted, Operation, Plugin, Request, read};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::quantity::Quantity;
use master_schema::validate::{Fields, get, object, text};
use serde_json::Value;

/// The plugin.
#[derive(Debug)]
pub(crate) struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update && request.writes("", "persistentvolumeclaims")
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        claim: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let Some(old) = request.old else {
                return Ok(());
            };
            if size(claim) <= size(old) {
                return Ok(());
            }
            let refuse = |why: &str| Err(request.forbidden(meta_text(claim, "name"), why));
            if object(old, "status").map_or("", |status| text(status, "phase")) != "Bound" {
                return refuse("Only bound persistent volume claims can be expanded");
            }
            let class = object(claim, "spec").map_or("", |spec| text(spec, "storageClassName"));
            let grows = match class {
                "" => false,
                name => {
                    let found = request
                        .get(&format!("storageclasses.storage.k8s.io/{name}"))
                        .await?;
                    let found = found.as_ref().and_then(read).unwrap_or_default();
                    get(&found, "allowVolumeExpansion") == &Value::Bool(true)
                }
            };
            if grows {
                return Ok(());
            }
            refuse(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            )
        })
    }
}

fn size(claim: &Fields) -> Option<Quantity> {
    let resources = object(claim, "spec").and_then(|spec| object(spec, "resources"));
    Quantity::read(get(
        resources.and_then(|resources| object(resources, "requests"))?,
        "storage",
    ))
}
