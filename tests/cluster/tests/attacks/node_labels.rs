//! Labels and taints that a rule puts on Nodes, and nodes that make their own Node.

use crate::after_join::{ask, joined, own_node};
use crate::approval::eventually;
use crate::lab::Lab;
use crate::site::collection;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{CertificatePolicy, Machine};
use http::{Method, StatusCode};
use serde_json::{Value, json};

/// Sets `node` of the rule for machines.
async fn rule(lab: &Lab, node: Value) -> StatusCode {
    let path = format!("{}/cluster", collection::<CertificatePolicy>());
    let policy: CertificatePolicy = lab.site.get("cluster").await;
    let mut rules = serde_json::to_value(&policy.spec.rules).unwrap();
    rules[0]["node"] = node;
    let change = json!({ "spec": { "rules": rules } });
    let answer = lab
        .site
        .api(Method::PATCH, &path, serde_json::to_vec(&change).unwrap())
        .await;
    if answer.status == StatusCode::UNPROCESSABLE_ENTITY {
        let message = answer.json["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("spec.rules[0].node."),
            "the place is in the refusal: {message}"
        );
    }
    answer.status
}

/// Waits until a Node has exactly these of the labels and taints that this file uses, by key and
/// value.
async fn has(lab: &Lab, name: &str, labels: &[(&str, &str)], taints: &[&str]) -> Node {
    let ours = |key: &str| key.starts_with("example.com/");
    eventually("the Node's labels and taints", lab, || async {
        let node: Node = lab.site.get(name).await;
        let found = node.metadata.labels.clone().unwrap_or_default();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| ours(key))
            .collect();
        let on = node
            .spec
            .clone()
            .unwrap_or_default()
            .taints
            .unwrap_or_default();
        let mut on: Vec<String> = on
            .iter()
            .filter(|taint| ours(&taint.key))
            .map(|taint| {
                format!(
                    "{}={}:{}",
                    taint.key,
                    taint.value.as_deref().unwrap_or_default(),
                    taint.effect
                )
            })
            .collect();
        on.sort();
        (found == labels && on == taints).then_some(node.clone())
    })
    .await
}

/// What a rule gives, every Node of its machines has, and loses with it; an admin's own labels and
/// taints stay, and so does his role; what names the system's own is refused; a node changes none
/// of it.
pub(crate) async fn labels_and_taints_of_a_rule_go_with_it_and_an_admins_stay() {
    let lab = Lab::start().await;
    let (before, who) = joined(&lab).await;
    let taint =
        |value: &str| json!({ "key": "example.com/only", "value": value, "effect": "NoSchedule" });
    let first = json!({ "labels": { "example.com/pool": "a", "example.com/rack": "7" }, "taints": [taint("batch")] });
    assert_eq!(rule(&lab, first).await, StatusCode::OK);
    let marked = [("example.com/pool", "a"), ("example.com/rack", "7")];
    has(
        &lab,
        &before.node,
        &marked,
        &["example.com/only=batch:NoSchedule"],
    )
    .await;
    let (fresh, _) = joined(&lab).await;
    has(
        &lab,
        &fresh.node,
        &marked,
        &["example.com/only=batch:NoSchedule"],
    )
    .await;
    the_machine_shows_its_rule(&lab, &fresh.node).await;

    // An admin's own, beside and in place of the rule's; and what the node would have.
    let own = json!({ "metadata": { "labels": { "example.com/mine": "1", "node-role.kubernetes.io/gpu": "" } } });
    lab.site.patch::<Node>(&before.node, &own).await;
    let node: Node = lab.site.get(&before.node).await;
    let mut taints = serde_json::to_value(node.spec.unwrap_or_default().taints).unwrap();
    taints
        .as_array_mut()
        .unwrap()
        .push(json!({ "key": "example.com/mine", "effect": "NoExecute" }));
    lab.site
        .patch::<Node>(&before.node, &json!({ "spec": { "taints": taints } }))
        .await;
    let relabel = json!({ "metadata": { "labels": { "example.com/pool": "z" } } });
    assert_eq!(
        ask(&lab, &who, Method::PATCH, &own_node(&before), relabel).await,
        StatusCode::FORBIDDEN
    );
    let second = json!({ "labels": { "example.com/pool": "b" }, "taints": [taint("other")] });
    assert_eq!(rule(&lab, second).await, StatusCode::OK);
    let left = [("example.com/mine", "1"), ("example.com/pool", "b")];
    has(
        &lab,
        &before.node,
        &left,
        &[
            "example.com/mine=:NoExecute",
            "example.com/only=other:NoSchedule",
        ],
    )
    .await;
    assert_eq!(rule(&lab, json!({})).await, StatusCode::OK);
    let node = has(
        &lab,
        &before.node,
        &left[..1],
        &["example.com/mine=:NoExecute"],
    )
    .await;
    assert!(
        node.metadata
            .labels
            .unwrap_or_default()
            .contains_key("node-role.kubernetes.io/gpu"),
        "an admin's role stays"
    );

    bad_marks_are_refused(&lab).await;
    registers_itself(&lab).await;
    lab.site.stop();
}

async fn the_machine_shows_its_rule(lab: &Lab, node: &str) {
    let shown: Machine = lab.site.get(node).await;
    let shown = shown.status.unwrap_or_default().node.unwrap_or_default();
    assert_eq!(
        (shown.rule.as_str(), shown.labels.len(), shown.taints.len()),
        ("workers", 2, 1),
        "{shown:?}"
    );
}

async fn bad_marks_are_refused(lab: &Lab) {
    for bad in [
        json!({ "labels": { "pratique.dev/image": "x" } }),
        json!({ "labels": { "kubernetes.io/x": "y" } }),
        json!({ "labels": { "example.com/x": "not a value" } }),
        json!({ "taints": [{ "key": "pratique.dev/untrusted", "effect": "NoExecute" }] }),
        json!({ "taints": [{ "key": "x", "effect": "Sometimes" }] }),
    ] {
        assert_eq!(
            rule(lab, bad.clone()).await,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{bad}"
        );
    }
}

/// A node creates its own Node if the rule allows it, and only its own, without the fields that
/// only the master sets.
async fn registers_itself(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let all = collection::<Node>();
    let own = |labels: Value| json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": machine.node, "labels": labels } });
    assert!(
        lab.site
            .api(Method::DELETE, &own_node(&machine), Vec::new())
            .await
            .status
            .is_success()
    );
    let plain = own(json!({ "kubernetes.io/os": "linux" }));
    assert_eq!(
        ask(lab, &who, Method::POST, &all, plain.clone()).await,
        StatusCode::FORBIDDEN,
        "the master makes it"
    );
    let allowed = json!({ "registersItself": true, "labels": { "example.com/pool": "a" } });
    assert_eq!(rule(lab, allowed).await, StatusCode::OK);
    let another = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "another" } });
    let mut tainted = own(json!({}));
    tainted["spec"] =
        json!({ "taints": [{ "key": "pratique.dev/suspect", "effect": "NoSchedule" }] });
    eventually("the right to register", lab, || async {
        (ask(
            lab,
            &who,
            Method::POST,
            &format!("{all}?dryRun=All"),
            plain.clone(),
        )
        .await
            == StatusCode::CREATED)
            .then_some(())
    })
    .await;
    for bad in [
        another,
        own(json!({ "example.com/pool": "b" })),
        own(json!({ "pratique.dev/role": "master" })),
        tainted,
    ] {
        assert_eq!(
            ask(lab, &who, Method::POST, &all, bad.clone()).await,
            StatusCode::FORBIDDEN,
            "{bad}"
        );
    }
    assert_eq!(
        ask(lab, &who, Method::POST, &all, plain).await,
        StatusCode::CREATED
    );
    has(lab, &machine.node, &[("example.com/pool", "a")], &[]).await;
}
