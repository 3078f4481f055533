//! `Priority`: resolves a pod's priority class to a number; at most one class is the default.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::validate::{Fields, get, object, text};
use serde_json::Value;

/// The plugin.
#[derive(Debug)]
pub(crate) struct Priority;

impl Plugin for Priority {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete
            && (request.writes("", "pods")
                || request.writes("scheduling.k8s.io", "priorityclasses"))
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if !request.is("", "pods") {
                return Ok(());
            }
            if let Some(old) = request.old {
                keep(pod, old);
                return Ok(());
            }
            let spec = object(pod, "spec");
            let class_name = spec
                .map_or("", |spec| text(spec, "priorityClassName"))
                .to_owned();
            let given = spec.and_then(|spec| get(spec, "priority").as_i64());
            let policy = spec
                .map_or("", |spec| text(spec, "preemptionPolicy"))
                .to_owned();
            let class = class(request, pod, &class_name).await?;
            if let Some(given) = given.filter(|given| *given != class.value) {
                let text = format!(
                    "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
                     controller computed {} from the given PriorityClass name",
                    class.value
                );
                return Err(request.forbidden(name_of(pod), &text));
            }
            if !policy.is_empty() && policy != class.policy {
                let text = format!(
                    "the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; priority admission \
                     controller computed {} from the given PriorityClass name",
                    class.policy
                );
                return Err(request.forbidden(name_of(pod), &text));
            }
            let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
                return Ok(());
            };
            if !class.name.is_empty() {
                spec.insert("priorityClassName".to_owned(), class.name.into());
            }
            spec.insert("priority".to_owned(), class.value.into());
            spec.insert("preemptionPolicy".to_owned(), class.policy.into());
            Ok(())
        })
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        class: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if !request.is("scheduling.k8s.io", "priorityclasses") || !is_default(class) {
                return Ok(());
            }
            let own = meta_text(class, "name");
            let others = request
                .stored("priorityclasses.scheduling.k8s.io", "")
                .await?;
            let other = others
                .iter()
                .map(|(_, fields)| fields)
                .find(|other| is_default(other) && meta_text(other, "name") != own);
            other.map_or(Ok(()), |other| {
                let text = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    meta_text(other, "name")
                );
                Err(request.forbidden(own, &text))
            })
        })
    }
}

fn is_default(class: &Fields) -> bool {
    get(class, "globalDefault") == &Value::Bool(true)
}

/// Whether a stored class has to be decoded to know whether it is the default: every pod without a
/// class asks.
fn may_be_default(stored: &[u8]) -> bool {
    std::str::from_utf8(stored).is_ok_and(|text| text.contains(r#""globalDefault":true"#))
}

/// Keeps the fields that a pod got at its creation if an update leaves them out.
fn keep(pod: &mut Fields, old: &Fields) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(before) = object(old, "spec") else {
        return;
    };
    for key in ["priority", "preemptionPolicy"] {
        if get(spec, key).is_null() && !get(before, key).is_null() {
            spec.insert(key.to_owned(), get(before, key).clone());
        }
    }
}

/// The content of a priority class.
#[derive(Debug, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    policy: String,
}

impl Class {
    fn of(fields: &Fields) -> Self {
        let policy = text(fields, "preemptionPolicy");
        Self {
            name: meta_text(fields, "name").to_owned(),
            value: get(fields, "value").as_i64().unwrap_or_default(),
            policy: if policy.is_empty() {
                "PreemptLowerPriority"
            } else {
                policy
            }
            .to_owned(),
        }
    }
}

/// The class of a name, or the default class, or none: priority 0.
async fn class(request: &Request<'_>, pod: &Fields, name: &str) -> Result<Class, ApiError> {
    if name.is_empty() {
        let all =
            master_objects::list(request.reader, "priorityclasses.scheduling.k8s.io/").await?;
        let possible = all
            .iter()
            .filter(|entry| may_be_default(&entry.value.bytes()));
        let defaults = possible.filter_map(read).filter(is_default);
        // Two can be created at the same time: the lower one counts (upstream).
        let lowest = defaults
            .map(|fields| Class::of(&fields))
            .min_by_key(|class| class.value);
        return Ok(lowest.unwrap_or_else(|| Class::of(&Fields::new())));
    }
    let key = format!("priorityclasses.scheduling.k8s.io/{name}");
    let found = request.get(&key).await?.as_ref().and_then(read);
    let unknown = || {
        request.forbidden(
            name_of(pod),
            &format!("no PriorityClass with name {name} was found"),
        )
    };
    found.map(|fields| Class::of(&fields)).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_class_that_may_be_the_default_is_decoded() {
        for (default, decoded) in [
            (json!(true), true),
            (json!(false), false),
            (json!(null), false),
        ] {
            let class = json!({"metadata": {"name": "c"}, "value": 1, "globalDefault": default});
            assert_eq!(may_be_default(class.to_string().as_bytes()), decoded);
        }
    }

    #[test]
    fn a_class_without_a_policy_preempts() {
        let class = Class::of(
            json!({"metadata": {"name": "a"}, "value": 7})
                .as_object()
                .unwrap(),
        );
        assert_eq!(
            class,
            Class {
                name: "a".into(),
                value: 7,
                policy: "PreemptLowerPriority".into()
            }
        );
    }

    #[test]
    fn updates_keep_the_priority_that_was_given() {
        let old = json!({"spec": {"priority": 5, "preemptionPolicy": "Never"}});
        let mut new = json!({"spec": {"preemptionPolicy": "PreemptLowerPriority"}})
            .as_object()
            .cloned()
            .unwrap();
        keep(&mut new, old.as_object().unwrap());
        assert_eq!(
            new["spec"],
            json!({"priority": 5, "preemptionPolicy": "PreemptLowerPriority"})
        );
    }
}
