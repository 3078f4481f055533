//! `NamespaceLifecycle`: nothing is created in a namespace that is missing or terminating; some
//! namespaces cannot be deleted.

use crate::entry_cache::EntryCache;
use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::{ApiError, Cause, Reason};
use master_schema::object::meta_text;
use master_schema::validate::Fields;

/// Namespaces that cannot be deleted.
const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plugin.
#[derive(Debug, Default)]
pub(crate) struct NamespaceLifecycle {
    /// Whether a namespace is being deleted.
    terminating: EntryCache<bool>,
}

impl Plugin for NamespaceLifecycle {
    fn concerns(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Create => request.kind.namespaced,
            Operation::Delete => request.writes("", "namespaces"),
            Operation::Update => false,
        }
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Fields,
        admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let namespace = meta_text(object, "namespace");
            let Some(entry) = request.get(&format!("namespaces/{namespace}")).await? else {
                let message = format!("namespaces {namespace:?} not found");
                return Err(ApiError::new(Reason::NotFound, message).about(
                    "",
                    "namespaces",
                    namespace,
                ));
            };
            if self
                .terminating
                .of(&entry, |entry| terminating(&entry.value.bytes()))
            {
                return Err(refusal(request, meta_text(object, "name"), namespace));
            }
            // Held unchanged: if the namespace's deletion begins before the object is written, the
            // write must fail.
            admitted.hold(&entry);
            Ok(())
        })
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let name = meta_text(object, "name");
        let undeletable = request.operation == Operation::Delete && UNDELETABLE.contains(&name);
        let refusal =
            undeletable.then(|| request.forbidden(name, "this namespace may not be deleted"));
        Box::pin(std::future::ready(refusal.map_or(Ok(()), Err)))
    }
}

/// Whether a stored namespace is being deleted; decodes only `metadata.deletionTimestamp`.
fn terminating(stored: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Namespace<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        deletion_timestamp: Option<&'a str>,
    }
    serde_json::from_slice::<Namespace<'_>>(stored)
        .is_ok_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
}

fn refusal(request: &Request<'_>, name: &str, namespace: &str) -> ApiError {
    let text = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut error = request.forbidden(name, &text);
    error.details.causes.push(Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".to_owned(),
    });
    error
}
