//! `OwnerDuplicates`: an object names each owner once. Always enabled: upstream does so for every
//! kind, with any plugins.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::metadata_mut;
use master_schema::validate::Fields;
use serde_json::Value;
use std::collections::HashSet;

/// The plugin.
#[derive(Debug)]
pub(crate) struct OwnerDuplicates;

impl Plugin for OwnerDuplicates {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Fields,
        admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        once(request, object, &mut admitted.warnings);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Removes duplicate owners and warns the writer.
fn once(request: &Request<'_>, object: &mut Fields, warnings: &mut Vec<String>) {
    let Some(owners) = metadata_mut(object)
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    let (mut twice, mut known) = (Vec::new(), HashSet::new());
    owners.retain(|owner| {
        let first = known.insert(owner.clone());
        if !first {
            let uid = owner.get("uid").and_then(Value::as_str);
            twice.push(uid.unwrap_or_default().to_owned());
        }
        first
    });
    if twice.is_empty() {
        return;
    }
    // Of a patch, only the result is checked.
    let when = if request.patched {
        " after mutating admission happens"
    } else {
        ""
    };
    warnings.push(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        twice.join(", ")
    ));
}
