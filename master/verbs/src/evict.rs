//! Eviction: deletes a pod if its disruption budget allows it. The budget's counter changes in the
//! transaction that deletes the pod, so that neither happens without the other.

use super::answer::{Answer, success};
use super::call::Call;
use super::delete;
use super::turns::Turns;
use super::writer::ObjectWriter;
use http::StatusCode;
use master_client::Body;
use master_objects::deletion::Options;
use master_objects::store_error;
use master_schema::error::{ApiError, Cause, Reason, no_resource};
use master_schema::object::{meta_text, metadata};
use master_schema::selector::{Selector, label_text};
use master_schema::validate::{Fields, get, items, object as inner, object_mut, text};
use master_store::{Entry, ListQuery, Op, Reader, StoreError};
use serde_json::{Map, Value, json};

/// Attempts, as other writers may change the pod or its budget.
const TRIES: usize = 20;
/// Pods that may be counted in a budget without its controller having seen their deletion
/// (upstream: `MaxDisruptedPodSize`).
const MAX_UNCONFIRMED: usize = 2000;
const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Evicts a pod.
pub(super) async fn evict(call: &Call, writer: &ObjectWriter<'_>, content: Body) -> Answer {
    let eviction = call.document(content).await?.value;
    let name = eviction.pointer("/metadata/name").and_then(Value::as_str);
    if name.unwrap_or_default() != call.target.name {
        return Err(ApiError::new(
            Reason::BadRequest,
            "name in URL does not match name in Eviction object",
        ));
    }
    let mut options = Options::parse(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    options.dry_run |= call.dry_run()?;
    for _ in 0..TRIES {
        let entry = call.entry(writer.reader).await?;
        let mut pod = master_objects::decode_for_update(&call.kind, &entry)?;
        writer.reach(call, &pod)?;
        delete::preconditions(call, &entry, &pod, &options)?;
        let admitted = writer.admit_delete(call, &pod).await?;
        let mut ops = Vec::new();
        if !needs_no_budget(&pod) {
            ops = count_in_budget(call, writer.reader, &pod).await?;
        }
        set_disruption_target(&mut pod, &call.clock.text());
        ops.extend(delete::operation(call, &entry, &pod, &options)?);
        ops.extend(admitted.ops);
        if options.dry_run {
            return success(StatusCode::CREATED, None, call.accept()?);
        }
        match writer.store.commit(ops).await {
            Ok(_) => return success(StatusCode::CREATED, None, call.accept()?),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(ApiError::new(
        Reason::TooManyRequests,
        "the pod or its disruption budget changes too fast, try again",
    )
    .retry_after(10))
}

/// Whether deleting a pod disrupts nothing: it has ended, is pending, or is already being deleted.
fn needs_no_budget(pod: &Fields) -> bool {
    let phase = inner(pod, "status").map_or("", |status| text(status, "phase"));
    matches!(phase, "Succeeded" | "Failed" | "Pending")
        || !meta_text(pod, "deletionTimestamp").is_empty()
}

/// The operation that counts the pod in its budget; none if it has no budget or needs none.
async fn count_in_budget(
    call: &Call,
    reader: &dyn Reader,
    pod: &Fields,
) -> Result<Vec<Op>, ApiError> {
    let found = call.registry.find("policy", "v1", "poddisruptionbudgets");
    let kind = found.ok_or_else(no_resource)?;
    let query = ListQuery {
        prefix: kind.prefix(&call.target.namespace),
        ..ListQuery::default()
    };
    let listing = reader.list(query).await.map_err(store_error)?;
    let pod_value = Value::Object(pod.clone());
    let mut found: Option<(Entry, Fields)> = None;
    let mut turns = Turns::default();
    for entry in listing.entries {
        turns.pause(entry.value.len()).await;
        let budget = master_objects::decode_for_update(kind, &entry)?;
        let selector = inner(&budget, "spec").and_then(|spec| label_text(get(spec, "selector")));
        let Some(selector) = selector else { continue };
        if !Selector::parse(kind, &selector, "").is_ok_and(|selector| selector.matches(&pod_value))
        {
            continue;
        }
        if found.is_some() {
            let text = "Internal error occurred: This pod has more than one PodDisruptionBudget, which the eviction \
                        subresource does not support.";
            return Err(ApiError::new(Reason::InternalError, text));
        }
        found = Some((entry, budget));
    }
    let Some((entry, budget)) = found else {
        return Ok(Vec::new());
    };
    if !ready(pod) && unhealthy_may_go(&budget) {
        // Only while the pod stays unhealthy: the delete operation holds the pod's revision.
        return Ok(Vec::new());
    }
    let after = counted(budget, &call.target.name, &call.clock.text())?;
    let after = master_objects::encode(kind, after)?;
    Ok(vec![Op::update(&entry.key, entry.modified, after)])
}

fn ready(pod: &Fields) -> bool {
    let conditions = inner(pod, "status").map_or(&[][..], |status| items(status, "conditions"));
    let is_true = |condition: &Value| {
        condition
            .get("status")
            .is_some_and(|status| status == "True")
    };
    conditions
        .iter()
        .any(|one| is_type(one, "Ready") && is_true(one))
}

fn is_type(condition: &Value, name: &str) -> bool {
    condition.get("type").is_some_and(|kind| kind == name)
}

/// Whether a budget allows the eviction of pods that are not ready.
fn unhealthy_may_go(budget: &Fields) -> bool {
    let policy = inner(budget, "spec").map_or("", |spec| text(spec, "unhealthyPodEvictionPolicy"));
    if policy == "AlwaysAllow" {
        return true;
    }
    let healthy = count(budget, "desiredHealthy");
    count(budget, "currentHealthy") >= healthy && healthy > 0
}

fn count(budget: &Fields, key: &str) -> i64 {
    inner(budget, "status")
        .and_then(|status| get(status, key).as_i64())
        .unwrap_or_default()
}

/// The budget with the pod counted, or the reason why it does not allow the eviction.
fn counted(mut budget: Fields, pod: &str, now: &str) -> Result<Fields, ApiError> {
    let name = meta_text(&budget, "name").to_owned();
    let generation = get(metadata(&budget), "generation")
        .as_i64()
        .unwrap_or_default();
    if count(&budget, "observedGeneration") < generation {
        let text = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refusal(text).retry_after(10));
    }
    let forbidden = |why: &str| {
        let text = format!("poddisruptionbudget.policy {name:?} is forbidden: {why}");
        Err(ApiError::new(Reason::Forbidden, text).about("policy", "poddisruptionbudget", &name))
    };
    let allowed = count(&budget, "disruptionsAllowed");
    let unconfirmed = inner(&budget, "status")
        .and_then(|status| inner(status, "disruptedPods"))
        .map_or(0, Map::len);
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if unconfirmed > MAX_UNCONFIRMED {
        return forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed == 0 {
        return Err(refusal(why_not(&budget, &name)));
    }
    if let Some(status) = object_mut(&mut budget, "status") {
        status.insert("disruptionsAllowed".to_owned(), (allowed - 1).into());
        if let Some(disrupted) = object_mut(status, "disruptedPods") {
            disrupted.insert(pod.to_owned(), now.into());
        }
        if allowed == 1 {
            insufficient(status, generation, now);
        }
    }
    Ok(budget)
}

fn refusal(text: String) -> ApiError {
    let mut error = ApiError::new(Reason::TooManyRequests, WOULD_VIOLATE);
    error.details.causes = vec![Cause {
        reason: "DisruptionBudget".into(),
        message: text,
        field: String::new(),
    }];
    error
}

/// The reason why a budget allows nothing, in upstream's words.
fn why_not(budget: &Fields, name: &str) -> String {
    let conditions = inner(budget, "status").map_or(&[][..], |status| items(status, "conditions"));
    let condition = conditions
        .iter()
        .filter_map(Value::as_object)
        .find(|one| text(one, "type") == "DisruptionAllowed");
    let reported =
        condition.filter(|one| text(one, "status") == "False" && !text(one, "message").is_empty());
    let (wanted, found) = (
        count(budget, "desiredHealthy"),
        count(budget, "currentHealthy"),
    );
    match reported {
        Some(one) if text(one, "reason") == "SyncFailed" => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
            text(one, "message")
        ),
        _ if found <= wanted => {
            format!(
                "The disruption budget {name} needs {wanted} healthy pods and has {found} currently"
            )
        }
        Some(one) => format!(
            "The disruption budget {name} does not allow evicting pods currently ({}): {}",
            text(one, "reason"),
            text(one, "message")
        ),
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

/// Sets the condition that no further disruption is allowed.
fn insufficient(status: &mut Fields, generation: i64, now: &str) {
    let mut conditions = items(status, "conditions").to_vec();
    let before = conditions
        .iter()
        .position(|one| is_type(one, "DisruptionAllowed"))
        .map(|at| conditions.remove(at))
        .unwrap_or_default();
    let since = match before.get("status") {
        Some(status) if status == "False" => before
            .get("lastTransitionTime")
            .cloned()
            .unwrap_or_default(),
        Some(_) | None => now.into(),
    };
    conditions.push(json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": generation, "lastTransitionTime": since,
    }));
    status.insert("conditions".to_owned(), Value::Array(conditions));
}

/// Sets the pod's condition `DisruptionTarget`; where it holds already, it keeps its time.
fn set_disruption_target(pod: &mut Fields, now: &str) {
    let generation = get(metadata(pod), "generation").clone();
    let Some(status) = object_mut(pod, "status") else {
        return;
    };
    let mut conditions = items(status, "conditions").to_vec();
    let before = conditions
        .iter()
        .position(|one| is_type(one, "DisruptionTarget"))
        .map(|at| conditions.remove(at))
        .filter(|one| one.get("status").is_some_and(|status| status == "True"));
    let since = before.and_then(|one| one.get("lastTransitionTime").cloned());
    conditions.push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null,
        "lastTransitionTime": since.unwrap_or_else(|| now.into()),
        "observedGeneration": generation,
    }));
    status.insert("conditions".to_owned(), Value::Array(conditions));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn budget(status: &Value) -> Fields {
        let budget =
            json!({"metadata": {"name": "b", "generation": 2}, "spec": {}, "status": status});
        budget.as_object().unwrap().clone()
    }

    #[test]
    fn the_condition_of_an_evicted_pod_names_the_observed_generation() {
        let mut pod =
            json!({"metadata": {"generation": 3}, "status": {"conditions": [{"type": "Ready"}]}});
        set_disruption_target(pod.as_object_mut().unwrap(), NOW);
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions[1]["type"], "DisruptionTarget");
        assert_eq!(conditions[1]["observedGeneration"], 3);
        let first = pod.clone();
        set_disruption_target(pod.as_object_mut().unwrap(), "2026-01-01T00:01:00Z");
        assert_eq!(pod, first, "it holds since the first eviction");
    }

    #[test]
    fn a_budget_allows_evictions_one_by_one_until_it_is_spent() {
        let full =
            budget(&json!({"observedGeneration": 2, "disruptionsAllowed": 1, "desiredHealthy": 2}));
        let after = Value::Object(counted(full, "p", NOW).unwrap());
        assert_eq!(after["status"]["disruptionsAllowed"], 0);
        assert_eq!(after["status"]["disruptedPods"]["p"], NOW);
        assert_eq!(
            after["status"]["conditions"][0]["reason"],
            "InsufficientPods"
        );
        let spent = counted(after.as_object().unwrap().clone(), "q", NOW).unwrap_err();
        assert_eq!((spent.code, spent.message.as_str()), (429, WOULD_VIOLATE));
        assert_eq!(spent.details.causes[0].reason, "DisruptionBudget");
        assert_eq!(
            spent.details.causes[0].message,
            "The disruption budget b needs 2 healthy pods and has 0 currently"
        );
        let stale = counted(
            budget(&json!({"observedGeneration": 1, "disruptionsAllowed": 1})),
            "p",
            NOW,
        )
        .unwrap_err();
        assert_eq!((stale.code, stale.details.retry_after), (429, Some(10)));
    }
}
