//! `TaintNodesByCondition`: a new node is tainted until it is known to be ready.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::validate::{Fields, object_mut};
use serde_json::json;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The plugin.
#[derive(Debug)]
pub(crate) struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.writes("", "nodes")
    }

    fn admit<'a>(
        &'a self,
        _request: &'a Request<'a>,
        node: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if let Some(spec) = object_mut(node, "spec") {
            let taints = spec.entry("taints").or_insert_with(|| json!([]));
            if taints.is_null() {
                *taints = json!([]);
            }
            let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
            if let Some(taints) = taints.as_array_mut()
                && !taints
                    .iter()
                    .any(|known| known["key"] == taint["key"] && known["effect"] == taint["effect"])
            {
                taints.push(taint);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
