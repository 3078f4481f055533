//! `StorageObjectInUseProtection`: adds finalizers that keep volumes and claims until nothing uses
//! them.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::metadata_mut;
use master_schema::validate::Fields;
use serde_json::json;

/// The plugin.
#[derive(Debug)]
pub(crate) struct StorageObjectInUseProtection;

/// The finalizer of a kind, which its controller removes.
fn finalizer(request: &Request<'_>) -> Option<&'static str> {
    if request.writes("", "persistentvolumes") {
        Some("kubernetes.io/pv-protection")
    } else if request.writes("", "persistentvolumeclaims") {
        Some("kubernetes.io/pvc-protection")
    } else {
        None
    }
}

impl Plugin for StorageObjectInUseProtection {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && finalizer(request).is_some()
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let finalizers = metadata_mut(object)
            .entry("finalizers")
            .or_insert_with(|| json!([]));
        if let (Some(finalizers), Some(own)) = (finalizers.as_array_mut(), finalizer(request))
            && !finalizers.iter().any(|known| known == own)
        {
            finalizers.push(own.into());
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
