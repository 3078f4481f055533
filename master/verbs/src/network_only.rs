//! The reduced form of other nodes' pods in answers to a node: only what its packet filter needs
//! for network policies.

use super::call::Call;
use crate::authorize;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::Fields;
use master_wire::{Form, Syntax};
use serde_json::{Map, Value, json};

/// The fields that remain of a pod's metadata, of its status, and of its containers.
const METADATA: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "labels",
    "resourceVersion",
    "deletionTimestamp",
];
const STATUS: [&str; 3] = ["phase", "podIP", "podIPs"];
const CONTAINER: [&str; 3] = ["name", "ports", "restartPolicy"];

impl Call {
    /// Whether each object of the answer is reduced.
    ///
    /// # Errors
    /// The selectors can't be read, or the request is for another form: metadata and tables would
    /// reveal more.
    pub(super) fn is_network_only(&self) -> Result<bool, ApiError> {
        if !authorize::is_network_only(&self.user, &self.target, &self.selector()?) {
            return Ok(false);
        }
        let accept = self.accept()?;
        if accept.form != Form::Object || accept.syntax != Syntax::Json {
            let text = "a node gets the pods of other nodes as application/json only";
            return Err(ApiError::new(Reason::NotAcceptable, text));
        }
        Ok(true)
    }
}

/// Reduces a pod.
pub(super) fn of_pod(pod: &Fields) -> Value {
    let part = |name: &str| pod.get(name).and_then(Value::as_object);
    let containers = |name: &str| {
        let list = part("spec").and_then(|spec| spec.get(name)?.as_array());
        let kept = list.into_iter().flatten();
        kept.map(|one| kept_of(one.as_object(), &CONTAINER))
            .collect::<Vec<Value>>()
    };
    let on_host = part("spec").and_then(|spec| spec.get("hostNetwork"));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept_of(part("metadata"), &METADATA),
        "spec": {
            "hostNetwork": on_host.cloned().unwrap_or(Value::Bool(false)),
            "containers": containers("containers"),
            "initContainers": containers("initContainers"),
        },
        "status": kept_of(part("status"), &STATUS),
    })
}

fn kept_of(object: Option<&Map<String, Value>>, names: &[&str]) -> Value {
    let found = names.iter().filter_map(|name| {
        let value = object?.get(*name)?;
        Some(((*name).to_owned(), value.clone()))
    });
    Value::Object(found.collect())
}
