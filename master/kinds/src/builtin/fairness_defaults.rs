//! The default FlowSchemas and PriorityLevelConfigurations (apiserver `flowcontrol/bootstrap`):
//! mandatory ones, which are immutable, and suggested ones, which an admin may change.

use serde_json::{Value, json};

/// Annotation that says whether the server keeps an object's spec up to date.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// The flow schema and priority level of requests that are never limited.
pub const EXEMPT: &str = "exempt";
/// The flow schema and priority level of requests that match no other.
pub const CATCH_ALL: &str = "catch-all";

/// All users, authenticated or not.
const EVERYBODY: &[&str] = &["system:unauthenticated", "system:authenticated"];

/// Whether the spec of the object with this name is immutable.
pub fn is_mandatory(name: &str) -> bool {
    matches!(name, EXEMPT | CATCH_ALL)
}

/// Names and specs of the priority levels, mandatory ones first.
pub fn levels() -> Vec<(&'static str, Value)> {
    let queued = |shares: i32, lendable: i32, queues: i32, hand: i32| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        }})
    };
    let rejected = json!({
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
    });
    vec![
        (
            EXEMPT,
            json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        ),
        (CATCH_ALL, json!({"type": "Limited", "limited": rejected})),
        ("system", queued(30, 33, 64, 6)),
        ("node-high", queued(40, 25, 64, 6)),
        ("leader-election", queued(10, 0, 16, 4)),
        ("workload-high", queued(40, 50, 128, 6)),
        ("workload-low", queued(100, 90, 128, 6)),
        ("global-default", queued(20, 50, 128, 6)),
    ]
}

/// A flow schema's name and its spec.
type Flow = (&'static str, Value);

/// Names and specs of the flow schemas, mandatory ones first.
pub fn schemas() -> Vec<(&'static str, Value)> {
    let masters = groups(&["system:masters"]);
    let mut all = vec![
        (EXEMPT, schema(EXEMPT, 1, "", &everything(masters))),
        (
            CATCH_ALL,
            schema(CATCH_ALL, 10_000, "ByUser", &everything(groups(EVERYBODY))),
        ),
    ];
    all.extend(of_the_system());
    all.extend(of_everybody_else());
    all
}

/// Nodes, probes, and the control plane's own parts.
fn of_the_system() -> [Flow; 6] {
    let nodes = || groups(&["system:nodes"]);
    let leaders = [
        user("system:kube-controller-manager"),
        user("system:kube-scheduler"),
        system_accounts(),
    ];
    // A probe that waits behind other requests would call a busy server dead.
    let probes = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]);
    [
        (
            "system-nodes",
            schema("system", 500, "ByUser", &everything(nodes())),
        ),
        (
            "system-node-high",
            schema("node-high", 400, "ByUser", &{
                let own = resources(&["*"], "", &["nodes", "nodes/status"], true);
                let leases = resources(&["*"], "coordination.k8s.io", &["leases"], false);
                json!({"subjects": nodes(), "resourceRules": [own, leases]})
            }),
        ),
        (
            "probes",
            schema(
                EXEMPT,
                2,
                "",
                &json!({"subjects": groups(EVERYBODY), "nonResourceRules": probes}),
            ),
        ),
        (
            "system-leader-election",
            schema("leader-election", 100, "ByUser", &{
                let leases = resources(
                    &["get", "create", "update"],
                    "coordination.k8s.io",
                    &["leases"],
                    false,
                );
                json!({"subjects": leaders, "resourceRules": [leases]})
            }),
        ),
        (
            "kube-controller-manager",
            of_user("system:kube-controller-manager"),
        ),
        ("kube-scheduler", of_user("system:kube-scheduler")),
    ]
}

/// Pods' accounts, and the flow of all that has no other.
fn of_everybody_else() -> [Flow; 3] {
    [
        (
            "kube-system-service-accounts",
            schema(
                "workload-high",
                900,
                "ByNamespace",
                &everything(json!([system_accounts()])),
            ),
        ),
        (
            "service-accounts",
            schema(
                "workload-low",
                9000,
                "ByUser",
                &everything(groups(&["system:serviceaccounts"])),
            ),
        ),
        (
            "global-default",
            schema(
                "global-default",
                9900,
                "ByUser",
                &everything(groups(EVERYBODY)),
            ),
        ),
    ]
}

fn of_user(name: &str) -> Value {
    schema(
        "workload-high",
        800,
        "ByNamespace",
        &everything(json!([user(name)])),
    )
}

fn schema(level: &str, precedence: i32, distinguisher: &str, rule: &Value) -> Value {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
    });
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    spec
}

/// A rule for all requests of these subjects.
fn everything(subjects: Value) -> Value {
    let mut rule = json!({
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    rule["subjects"] = subjects;
    rule
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster: bool) -> Value {
    let mut rule =
        json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn groups(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({"kind": "Group", "group": {"name": name}}))
        .collect()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}})
}
