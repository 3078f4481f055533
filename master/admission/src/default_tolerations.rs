//! `DefaultTolerationSeconds`: how long a pod without its own tolerations stays on a node that is
//! not ready or unreachable.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::validate::{Fields, text};
use serde_json::{Value, json};

/// Upstream's default, for both taints.
const SECONDS: i64 = 300;
const TAINTS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// The plugin.
#[derive(Debug)]
pub(crate) struct DefaultTolerationSeconds;

impl Plugin for DefaultTolerationSeconds {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.writes("", "pods")
    }

    fn admit<'a>(
        &'a self,
        _request: &'a Request<'a>,
        pod: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            add(spec);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn add(spec: &mut Fields) {
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    let tolerates = |key: &str, tolerations: &[Value]| {
        tolerations
            .iter()
            .filter_map(Value::as_object)
            .any(|toleration| {
                (text(toleration, "key") == key || text(toleration, "key").is_empty())
                    && matches!(text(toleration, "effect"), "" | "NoExecute")
            })
    };
    for key in TAINTS {
        if !tolerates(key, tolerations) {
            tolerations
                .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_tolerations_are_added() {
        let added = |tolerations: Value| {
            let mut spec = json!({"tolerations": tolerations})
                .as_object()
                .cloned()
                .unwrap();
            let before = spec["tolerations"].as_array().map_or(0, Vec::len);
            add(&mut spec);
            spec["tolerations"].as_array().unwrap().len() - before
        };
        assert_eq!(added(Value::Null), 2);
        assert_eq!(added(json!([{"operator": "Exists"}])), 0);
        assert_eq!(
            added(json!([{"operator": "Exists", "effect": "NoSchedule"}])),
            2
        );
        assert_eq!(
            added(json!([{"key": TAINTS[0], "operator": "Exists", "effect": "NoExecute"}])),
            1
        );
    }
}
