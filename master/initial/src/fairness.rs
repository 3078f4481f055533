//! Brings the default FlowSchemas and PriorityLevelConfigurations up to date at start: mandatory
//! ones always, suggested ones unless an admin took them over. An annotation says whether an object
//! is kept up to date; without it, an object that was never changed is.

use config_kube::k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use futures_util::future::join_all;
use master_client::{Client, ListParams, Object};
use master_kinds::builtin::fairness_defaults::{
    AUTO_UPDATE, EXEMPT, is_mandatory, levels, schemas,
};
use master_schema::error::{ApiError, Reason};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Writes what is missing or out of date and returns the first error.
pub(crate) async fn reconcile(client: &Client) -> Result<(), ApiError> {
    settle::<PriorityLevelConfiguration>(client, levels()).await?;
    settle::<FlowSchema>(client, schemas()).await
}

async fn settle<T: Object>(client: &Client, wanted: Vec<(&str, Value)>) -> Result<(), ApiError> {
    let found = client.list::<T>(None, &ListParams::default()).await?.items;
    let found: Result<HashMap<String, Value>, ApiError> = found
        .iter()
        .map(|object| {
            Ok((
                object.metadata().name.clone().unwrap_or_default(),
                object.to_tree().map_err(|error| unreadable(&error))?,
            ))
        })
        .collect();
    let mut found = found?;
    // Concurrently, so that the store commits them together.
    let each = wanted
        .into_iter()
        .map(|(name, spec)| one::<T>(client, name, spec, found.remove(name)));
    join_all(each).await.into_iter().collect()
}

async fn one<T: Object>(
    client: &Client,
    name: &str,
    spec: Value,
    found: Option<Value>,
) -> Result<(), ApiError> {
    let written = match found {
        None => {
            let metadata = json!({"name": name, "annotations": {AUTO_UPDATE: "true"}});
            client
                .create(&read::<T>(&json!({"metadata": metadata, "spec": spec}))?)
                .await
                .map(drop)
        }
        Some(found) => match updated(name, spec, found) {
            Some(object) => client.update(&read::<T>(&object)?).await.map(drop),
            None => Ok(()),
        },
    };
    match written {
        // Another API server of the cluster wrote it first.
        Err(error) if error.is_already_exists() || error.is_conflict() => Ok(()),
        other => other,
    }
}

/// The updated object; `None` if nothing changes.
fn updated(name: &str, mut spec: Value, mut object: Value) -> Option<Value> {
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|notes| notes.get(AUTO_UPDATE))
        .and_then(Value::as_str);
    let untouched = object
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
        == Some(1);
    let (follows, unannotated) = (
        annotation.map_or(untouched, |annotation| annotation == "true"),
        annotation.is_none(),
    );
    if !follows && !is_mandatory(name) {
        return None;
    }
    if !follows
        && name == EXEMPT
        && let Some(own) = object.pointer("/spec/exempt")
        && spec.get("exempt").is_some()
    {
        spec["exempt"] = own.clone();
    }
    if object.get("spec") == Some(&spec) && !unannotated {
        return None;
    }
    object["spec"] = spec;
    if unannotated {
        object["metadata"]["annotations"][AUTO_UPDATE] = follows.to_string().into();
    }
    Some(object)
}

fn read<T: Object>(object: &Value) -> Result<T, ApiError> {
    T::from_tree(object).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> ApiError {
    let text = format!("a flow schema or priority level cannot be read as its own kind: {error}");
    ApiError::new(Reason::InternalError, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: i64, notes: &Value, spec: &Value) -> Value {
        json!({"metadata": {"generation": generation, "annotations": notes}, "spec": spec})
    }

    #[test]
    fn objects_that_an_admin_took_over_stay_unchanged() {
        let (old, new) = (json!({"a": 1}), json!({"a": 2}));
        let follows = json!({AUTO_UPDATE: "true"});
        let own = json!({AUTO_UPDATE: "false"});
        let update = |object| updated("probes", new.clone(), object);
        assert_eq!(update(object(3, &follows, &old)).unwrap()["spec"], new);
        assert_eq!(
            update(object(1, &follows, &new)),
            None,
            "it is what it should be"
        );
        assert_eq!(update(object(1, &own, &old)), None);
        assert_eq!(
            update(object(2, &json!({}), &old)),
            None,
            "a changed object without the annotation is kept"
        );
        let fresh = update(object(1, &json!({}), &old)).unwrap();
        assert_eq!(fresh["metadata"]["annotations"][AUTO_UPDATE], "true");
    }

    #[test]
    fn mandatory_ones_are_put_right_but_for_the_shares_of_the_exempt() {
        let own = json!({AUTO_UPDATE: "false"});
        let spec = json!({"type": "Exempt", "exempt": {"lendablePercent": 0}});
        let found = object(
            5,
            &own,
            &json!({"type": "Limited", "exempt": {"lendablePercent": 7}}),
        );
        let fixed = updated(EXEMPT, spec.clone(), found).unwrap();
        assert_eq!(
            fixed["spec"],
            json!({"type": "Exempt", "exempt": {"lendablePercent": 7}})
        );
        let found = object(5, &own, &json!({"type": "x"}));
        assert_eq!(
            updated("catch-all", spec.clone(), found).unwrap()["spec"],
            spec
        );
    }
}
