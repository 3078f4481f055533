//! `RuntimeClass`: adds the class' overhead, node selector and tolerations to a pod.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::validate::{Fields, get, items, object, object_mut, text};
use serde_json::{Value, json};
use std::collections::HashSet;

/// The plugin.
#[derive(Debug)]
pub(crate) struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.writes("", "pods")
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let Some(class) = class(request, pod).await? else {
                return Ok(());
            };
            let refused = pod
                .get_mut("spec")
                .and_then(Value::as_object_mut)
                .and_then(|spec| apply(spec, &class).err());
            refused.map_or(Ok(()), |why| Err(request.forbidden(name_of(pod), &why)))
        })
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let spec = object(pod, "spec");
        let bare = spec.is_some_and(|spec| {
            text(spec, "runtimeClassName").is_empty()
                && object(spec, "overhead").is_some_and(|all| !all.is_empty())
        });
        let text =
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        let answer = if bare {
            Err(request.forbidden(name_of(pod), text))
        } else {
            Ok(())
        };
        Box::pin(std::future::ready(answer))
    }
}

/// The pod's class, which must exist if the pod names one.
async fn class(request: &Request<'_>, pod: &Fields) -> Result<Option<Fields>, ApiError> {
    let name = object(pod, "spec").map_or("", |spec| text(spec, "runtimeClassName"));
    if name.is_empty() {
        return Ok(None);
    }
    let found = request
        .get(&format!("runtimeclasses.node.k8s.io/{name}"))
        .await?;
    let unknown = || {
        request.forbidden(
            name_of(pod),
            &format!("pod rejected: RuntimeClass {name:?} not found"),
        )
    };
    found.as_ref().and_then(read).map(Some).ok_or_else(unknown)
}

/// Copies overhead, node selector and tolerations of the class into the pod.
fn apply(spec: &mut Fields, class: &Fields) -> Result<(), String> {
    let empty = Fields::new();
    let overhead = object(class, "overhead").and_then(|overhead| object(overhead, "podFixed"));
    if let Some(own) = object(spec, "overhead").filter(|own| !own.is_empty())
        && Some(own) != overhead
    {
        return Err(
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned(),
        );
    }
    if let Some(overhead) = overhead {
        spec.insert("overhead".to_owned(), Value::Object(overhead.clone()));
    }
    let scheduling = object(class, "scheduling").unwrap_or(&empty);
    for (key, value) in object(scheduling, "nodeSelector").into_iter().flatten() {
        let Some(selector) = object_mut(spec, "nodeSelector") else {
            continue;
        };
        match selector.get(key) {
            Some(own) if own != value => {
                let (own, value) = (
                    own.as_str().unwrap_or_default(),
                    value.as_str().unwrap_or_default(),
                );
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own}"
                ));
            }
            Some(_) | None => drop(selector.insert(key.clone(), value.clone())),
        }
    }
    let more = items(scheduling, "tolerations");
    if !more.is_empty() {
        let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
        if let Some(tolerations) = tolerations.as_array_mut() {
            let known: HashSet<&Value> = tolerations.iter().collect();
            let new: Vec<Value> = more
                .iter()
                .filter(|toleration| !known.contains(toleration))
                .cloned()
                .collect();
            tolerations.extend(new);
        }
    }
    if get(spec, "tolerations").is_null() {
        spec.remove("tolerations");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: &Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_class_adds_its_overhead_and_its_nodes() {
        let class = fields(&json!({"overhead": {"podFixed": {"cpu": "10m"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm"}]}}));
        let mut spec = fields(&json!({"nodeSelector": {"a": "b"}}));
        apply(&mut spec, &class).unwrap();
        assert_eq!(spec["overhead"], json!({"cpu": "10m"}));
        assert_eq!(spec["nodeSelector"], json!({"a": "b", "vm": "yes"}));
        assert_eq!(spec["tolerations"], json!([{"key": "vm"}]));
    }

    #[test]
    fn a_pod_that_contradicts_its_class_is_refused() {
        let class = fields(
            &json!({"overhead": {"podFixed": {"cpu": "10m"}}, "scheduling": {"nodeSelector": {"vm": "yes"}}}),
        );
        let error = apply(&mut fields(&json!({"overhead": {"cpu": "1"}})), &class).unwrap_err();
        assert!(error.contains("Overhead doesn't match"), "{error}");
        let error = apply(&mut fields(&json!({"nodeSelector": {"vm": "no"}})), &class).unwrap_err();
        assert!(
            error.starts_with("conflict: runtimeClass.scheduling.nodeSelector[vm] = yes;"),
            "{error}"
        );
    }
}
