//! Changes of workloads' statuses, as their controllers write them.

use crate::common::{checked, fields, kind, messages, short};
use master_schema::registry::{Kind, Subresource};
use master_schema::validate::{Faults, Fields};
use serde_json::{Value, json};

/// The faults of a change from one status to another, of an object with a specification.
fn restated(kind: &Kind, spec: &Value, status: &Value, before: &Value) -> Vec<String> {
    let of = |status: &Value| -> Fields { fields(&json!({"spec": spec, "status": status})) };
    let mut faults = Faults::default();
    (kind.strategy.validate_through)(Subresource::Status, &of(status), &of(before), &mut faults);
    short(messages(faults))
}

#[test]
fn a_jobs_start_time_is_reset_only_when_it_is_resumed() {
    let jobs = kind("batch", "jobs");
    let status = |started: Option<&str>, suspended: &str| {
        let condition = json!({"type": "Suspended", "status": suspended});
        json!({"startTime": started, "conditions": [condition]})
    };
    let (first, second) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:01:00Z"));
    let refused: &[&str] = &["status.startTime Required"];
    // Suspended by its specification, with statuses from before and after.
    let cases = [
        (
            false,
            status(None, "False"),
            status(first, "False"),
            &[][..],
        ),
        (false, status(first, "False"), status(first, "False"), &[]),
        (
            false,
            status(first, "False"),
            status(second, "False"),
            refused,
        ),
        (
            false,
            status(first, "False"),
            status(None, "False"),
            refused,
        ),
        (
            false,
            status(first, "True"),
            status(second, "True"),
            refused,
        ),
        (false, status(first, "True"), status(second, "False"), &[]),
        (true, status(first, "True"), status(None, "True"), &[]),
        (true, status(first, "False"), status(None, "True"), &[]),
    ];
    for (suspend, before, after, expected) in cases {
        let spec = json!({"suspend": suspend});
        let faults = restated(&jobs, &spec, &after, &before);
        assert_eq!(faults, expected, "{before} to {after}");
    }
}

#[test]
fn status_counts_are_validated() {
    let faults_of = |plural: &str, status: Value, before: Value| {
        restated(&kind("apps", plural), &json!({}), &status, &before)
    };
    let faults = faults_of(
        "deployments",
        json!({"replicas": 1, "readyReplicas": 2, "availableReplicas": 3}),
        json!({"collisionCount": 1}),
    );
    let expected = [
        "status.readyReplicas Invalid",
        "status.availableReplicas Invalid",
        "status.availableReplicas Invalid",
        "status.collisionCount Invalid",
    ];
    assert_eq!(faults, expected);
    assert_eq!(
        faults_of("daemonsets", json!({"numberReady": -1}), json!({})),
        ["status.numberReady Invalid"]
    );
    assert!(
        faults_of(
            "replicasets",
            json!({"replicas": 2, "readyReplicas": 2}),
            json!({})
        )
        .is_empty()
    );
}

#[test]
fn a_condition_of_a_budget_needs_the_time_of_its_transition() {
    let budgets = kind("policy", "poddisruptionbudgets");
    let required = &["status.conditions[0].lastTransitionTime Required"][..];
    for (time, expected) in [(None, required), (Some("2026-01-01T00:00:00Z"), &[])] {
        let condition = json!({"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "message": "m", "lastTransitionTime": time});
        let sent = checked(&budgets, &json!({"status": {"conditions": [condition]}}));
        let faults = restated(&budgets, &json!({}), &sent["status"], &json!({}));
        assert_eq!(faults, expected, "{time:?}");
    }
}

/// The labels of an object after its status was written with others.
fn labels_through_status(kind: &Kind, before: &Value, written: &Value) -> Value {
    let of = |labels: &Value| fields(&json!({"metadata": {"labels": labels}}));
    // The server has put the written labels into the result, as most kinds want it.
    let (mut result, written, old) = (of(written), of(written), of(before));
    (kind.strategy.through)(Subresource::Status, &mut result, &written, &old);
    Value::Object(result)["metadata"]["labels"].take()
}

#[test]
fn a_deployments_status_carries_no_labels_and_a_sets_does() {
    let (before, written) = (json!({"a": "1"}), json!({"a": "2"}));
    for (plural, expected) in [("deployments", &before), ("replicasets", &written)] {
        let labels = labels_through_status(&kind("apps", plural), &before, &written);
        assert_eq!(&labels, expected, "{plural}");
    }
    let none = labels_through_status(&kind("apps", "deployments"), &Value::Null, &written);
    assert_eq!(none, Value::Null, "there were none before");
}
