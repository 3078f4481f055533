//! Defaults and validation of flow schemas, priority levels and devices, as upstream.

use crate::common::{change_faults, faults, kind, made, starts, through_faults};
use master_kinds::builtin::fairness_defaults::{levels, schemas};
use master_schema::registry::Subresource;
use serde_json::{Value, json};

fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[test]
fn default_objects_are_valid_and_unchanged_by_defaulting() {
    let (flows, level) = (
        kind("flowcontrol.apiserver.k8s.io", "flowschemas"),
        kind(
            "flowcontrol.apiserver.k8s.io",
            "prioritylevelconfigurations",
        ),
    );
    for (kind, all) in [(&flows, schemas()), (&level, levels())] {
        for (name, spec) in all {
            assert_eq!(faults(kind, &named(name, &spec)), [""; 0], "{name}");
            assert_eq!(
                made(kind, &named(name, &spec))["spec"],
                spec,
                "{name} is filled in"
            );
        }
    }
    assert_eq!((schemas().len(), levels().len()), (11, 8));
}

#[test]
fn flow_schemas() {
    let flows = kind("flowcontrol.apiserver.k8s.io", "flowschemas");
    assert_eq!(
        made(&flows, &named("a", &json!({})))["spec"]["matchingPrecedence"],
        1000
    );
    let rule = json!({"verbs": ["*", "get"], "apiGroups": ["*", "a"], "resources": [], "namespaces": ["A"]});
    let bad = json!({
        "matchingPrecedence": 1, "distinguisherMethod": {"type": "ByMood"}, "priorityLevelConfiguration": {"name": ""},
        "rules": [
            {"subjects": [
                {"kind": "User", "group": {"name": "g"}}, {"kind": "Robot"},
                {"kind": "ServiceAccount", "serviceAccount": {"name": "*"}},
             ],
             "resourceRules": [rule],
             "nonResourceRules": [{"verbs": ["look"], "nonResourceURLs": ["a", "/a b", "/*/c", "//", "/x/*"]}]},
            {"subjects": []},
        ],
    });
    starts(
        &faults(&flows, &named("a", &bad)),
        &[
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
            "spec.distinguisherMethod.type: Unsupported value: \"ByMood\": supported values: \"ByNamespace\", \"ByUser\"",
            "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
            "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
            "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
            "spec.rules[0].subjects[1].kind: Unsupported value: \"Robot\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
            "spec.rules[0].subjects[2].serviceAccount.namespace: Required value: must specify namespace for service account",
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs",
            "spec.rules[0].resourceRules[0].apiGroups: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other api",
            "spec.rules[0].resourceRules[0].resources: Required value: resource rules must supply at least one resource",
            "spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: \"A\": each member of this list must be '*' or a DNS-1123",
            "spec.rules[0].nonResourceRules[0].verbs: Unsupported value: [\"look\"]: supported values: \"create\", \"delete\"",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"a\": must start with slash",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[1]: Invalid value: \"/a b\": must not contain white-space",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[2]: Invalid value: \"/*/c\": wildcard can only do suffix matching",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[3]: Invalid value: \"//\": must not contain double slash",
            "spec.rules[1].subjects: Required value: subjects must contain at least one value",
            "spec.rules[1]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
        ],
    );
    let (_, mut exempt) = schemas().swap_remove(0);
    exempt["rules"] = json!([]);
    let messages = faults(&flows, &named("exempt", &exempt));
    assert!(
        messages.len() == 1 && messages[0].ends_with("spec of 'exempt' must equal the fixed value"),
        "{messages:?}"
    );
    let status = json!({"metadata": {"name": "a"}, "status": {"conditions": [{"type": "x"}, {"type": "x"}, {}]}});
    starts(
        &through_faults(
            &flows,
            Subresource::Status,
            &status,
            &named("a", &json!({})),
        ),
        &[
            "status.conditions[1].type: Duplicate value: \"x\"",
            "status.conditions[2].type: Required value: must not be empty",
        ],
    );
}

#[test]
fn priority_levels() {
    let kinds = kind(
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
    );
    let made = made(
        &kinds,
        &named(
            "a",
            &json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}),
        ),
    );
    assert_eq!(
        made["spec"]["limited"],
        json!({"nominalConcurrencyShares": 30, "lendablePercent": 0,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}}})
    );
    let queued = |queues: i64, hand: i64| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": -1});
        named(
            "a",
            &json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}}),
        )
    };
    let at = "spec.limited.limitResponse.queuing";
    let length = format!("{at}.queueLengthLimit: Invalid value: -1: must be positive");
    starts(
        &faults(&kinds, &queued(4, 5)),
        &[
            &length,
            &format!("{at}.handSize: Invalid value: 5: should not be greater than queues (4)"),
        ],
    );
    starts(
        &faults(&kinds, &queued(1_000_000, 8)),
        &[
            &length,
            &format!(
                "{at}.handSize: Invalid value: 8: required entropy bits of deckSize 1000000 and handSize 8 should not"
            ),
        ],
    );
    let bad = json!({"type": "Exempt", "limited": {}, "exempt": {"lendablePercent": 101}});
    starts(
        &faults(&kinds, &named("a", &bad)),
        &[
            "spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'",
            "spec.limited: Forbidden: must be nil if the type is not Limited",
            "spec.exempt.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
        ],
    );
    let own =
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 9, "lendablePercent": 0}});
    starts(&faults(&kinds, &named("exempt", &own)), &[]);
}

#[test]
fn claims_of_devices() {
    let claims = kind("resource.k8s.io", "resourceclaims");
    let made = made(
        &claims,
        &named(
            "a",
            &json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}),
        ),
    );
    assert_eq!(
        made["spec"]["devices"]["requests"][0]["exactly"]["count"],
        1
    );
    let bad = json!({"devices": {
        "requests": [
            {"name": "A", "exactly": {"allocationMode": "All", "count": 2}},
            {"name": "r"}, {"name": "r", "exactly": {}, "firstAvailable": [{}]},
            {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c", "tolerations": [{"operator": "Exists", "value": "x"}]}]},
        ],
        "constraints": [{"requests": ["f/s", "f/x", "f/s/t", "r"], "matchAttribute": "model"}, {}],
        "config": [{"opaque": {"driver": "D_", "parameters": []}}, {"requests": ["r", "r"]}],
    }});
    starts(
        &faults(&claims, &named("a", &bad)),
        &[
            "spec.devices.requests[0].name: Invalid value: \"A\": a lowercase RFC 1123 label",
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
            "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
            "spec.devices.requests[1]: Required value: exactly one of `exactly` or `firstAvailable` is required",
            "spec.devices.requests[2]: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, but multiple",
            "spec.devices.requests[3].firstAvailable[0].tolerations[0].value: Invalid value: \"x\": must be empty for operator",
            "spec.devices.requests[2]: Duplicate value: \"r\"",
            "spec.devices.constraints[0].requests[1]: Invalid value: \"f/x\": must be the name of a request in the claim",
            "spec.devices.constraints[0].requests[2]: Invalid value: \"f/s/t\": must be the name of a request in the claim",
            "spec.devices.constraints[0].matchAttribute: Invalid value: \"model\": a fully qualified name must be a domain and",
            "spec.devices.constraints[1]: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\"",
            "spec.devices.config[0].opaque.driver: Invalid value: \"D_\": a lowercase RFC 1123 subdomain",
            "spec.devices.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
            "spec.devices.config[1].requests[1]: Duplicate value: \"r\"",
            "spec.devices.config[1].opaque: Required value",
        ],
    );
    let many: Vec<Value> = (0..33)
        .map(|number| json!({"name": format!("r{number}")}))
        .collect();
    starts(
        &faults(
            &claims,
            &named("a", &json!({"devices": {"requests": many}})),
        ),
        &["spec.devices.requests: Too many: 33: must have at most 32 items"],
    );
    let claim = |class: &str| {
        named(
            "a",
            &json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}}),
        )
    };
    starts(
        &change_faults(&claims, &claim("d"), &claim("c")),
        &["spec: Invalid value: {\"devices\""],
    );
}

#[test]
fn a_claims_allocation_stays_and_fits_its_request() {
    let claims = kind("resource.k8s.io", "resourceclaims");
    let with = |status: Value| json!({"metadata": {"name": "a"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {}}]}}, "status": status});
    let status_faults = |new: Value, old: Value| {
        through_faults(&claims, Subresource::Status, &with(new), &with(old))
    };
    let given = |device: &str| json!({"devices": {"results": [{"request": "r", "driver": "d.io", "pool": "p", "device": device}]}});
    starts(
        &status_faults(json!({"allocation": given("x")}), json!({})),
        &[],
    );
    starts(
        &status_faults(
            json!({"allocation": given("y")}),
            json!({"allocation": given("x")}),
        ),
        &["status.allocation: Invalid value: {\"devices\""],
    );
    let user = json!({"resource": "pods", "name": "p", "uid": "u"});
    starts(
        &status_faults(json!({"reservedFor": [user, user, {}]}), json!({})),
        &[
            "status.reservedFor[2].resource: Required value",
            "status.reservedFor[2].name: Required value",
            "status.reservedFor[2].uid: Required value",
            "status.reservedFor[1]: Duplicate value: \"u\"",
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
        ],
    );
    let device = |name: &str, rest: Value| {
        let mut device = json!({"driver": "d.io", "pool": "p", "device": name});
        device
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().cloned().unwrap());
        device
    };
    let devices = json!([
        device("x", json!({})),
        device("z", json!({})),
        device("x", json!({"networkData": {"ips": ["1.2.3.4"]}}))
    ]);
    starts(
        &status_faults(
            json!({"allocation": given("x"), "devices": devices}),
            json!({"allocation": given("x")}),
        ),
        &[
            "status.devices[1]: Invalid value: \"d.io/p/z\": must be an allocated device in the claim",
            "status.devices[2].networkData.ips[0]: Invalid value: \"1.2.3.4\": must be a valid address in CIDR form",
            "status.devices[2]: Duplicate value: \"d.io/p/x\"",
        ],
    );
}

/// A slice of a node's devices with further fields.
fn slice(rest: &Value) -> Value {
    let pool = json!({"name": "p", "resourceSliceCount": 1, "generation": 0});
    let mut spec = json!({"driver": "d.io", "pool": pool, "nodeName": "n"});
    spec.as_object_mut()
        .unwrap()
        .extend(rest.as_object().cloned().unwrap());
    named("a", &spec)
}

#[test]
fn slices_of_devices() {
    let slices = kind("resource.k8s.io", "resourceslices");
    let taint = json!({"key": "k", "effect": "NoExecute"});
    let made = made(
        &slices,
        &slice(&json!({"devices": [{"name": "x", "taints": [taint]}]})),
    );
    assert!(made["spec"]["devices"][0]["taints"][0]["timeAdded"].is_string());
    starts(
        &faults(
            &slices,
            &slice(
                &json!({"pool": {"name": "A/b", "generation": -1}, "allNodes": true, "perDeviceNodeSelection": false}),
            ),
        ),
        &[
            "spec.pool.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
            "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
            "spec.perDeviceNodeSelection: Invalid value: false: must be either unset or set to true",
            "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`,",
        ],
    );
    let device = json!({
        "name": "x", "allNodes": true,
        "attributes": {"1a": {"int": 1}, "a/b/c": {"int": 1}, "v": {"version": "1.0"}, "two": {"int": 1, "string": "x"}, "none": {}},
        "capacity": {"mem": {"value": "1Gi", "requestPolicy": {}}},
        "taints": [{"key": "", "effect": "Never"}],
        "bindingConditions": ["a"], "consumesCounters": [{"counterSet": "S"}],
    });
    starts(
        &faults(
            &slices,
            &slice(&json!({"devices": [device, {"name": "x"}]})),
        ),
        &[
            "spec.devices[0].attributes: Invalid value: \"1a\": a valid C identifier must start",
            "spec.devices[0].attributes: Invalid value: \"a/b/c\": must not contain more than one slash",
            "spec.devices[0].attributes[none]: Invalid value: \"\": exactly one value must be specified",
            "spec.devices[0].attributes[two]: Invalid value: {\"int\":1,\"string\":\"x\"}: exactly one value must be specified",
            "spec.devices[0].attributes[v].version: Invalid value: \"1.0\": must be a string compatible with semver.org",
            "spec.devices[0].capacity[mem].requestPolicy: Forbidden: allowMultipleAllocations must be true",
            "spec.devices[0].taints[0].key: Invalid value: \"\": name part must be non-empty",
            "spec.devices[0].taints[0].effect: Unsupported value: \"Never\"",
            "spec.devices[0].consumesCounters[0].counterSet: Invalid value: \"S\": a lowercase RFC 1123 label",
            "spec.devices[0].consumesCounters[0].counters: Required value",
            "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if",
            "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use",
            "spec.devices[1]: Duplicate value: \"x\"",
        ],
    );
}

#[test]
fn requested_parts_of_devices_are_validated() {
    let slices = kind("resource.k8s.io", "resourceslices");
    let policy = |policy: Value| {
        let capacity = json!({"mem": {"value": "10", "requestPolicy": policy}});
        slice(
            &json!({"devices": [{"name": "x", "allowMultipleAllocations": true, "capacity": capacity}]}),
        )
    };
    let at = "spec.devices[0].capacity[mem].requestPolicy";
    starts(
        &faults(
            &slices,
            &policy(json!({"default": "3", "validValues": ["2", "1", "11"]})),
        ),
        &[
            &format!(
                "{at}.validValues[1]: Invalid value: \"1\": values must be sorted in ascending order"
            ),
            &format!(
                "{at}.validValues[2]: Invalid value: \"11\": option is larger than capacity value: 10"
            ),
            &format!(
                "{at}.validValues: Invalid value: \"3\": default value is not valid according to the requestPolicy"
            ),
        ],
    );
    starts(
        &faults(
            &slices,
            &policy(json!({"default": "4", "validRange": {"min": "1", "max": "9", "step": "2"}})),
        ),
        &[&format!(
            "{at}.validRange.step: Invalid value: \"4\": value is not a multiple of a given step (2) from (1)"
        )],
    );
    starts(
        &change_faults(
            &slices,
            &slice(&json!({"driver": "e.io", "nodeName": "m"})),
            &slice(&json!({})),
        ),
        &[
            "spec.driver: Invalid value: \"e.io\": field is immutable",
            "spec.nodeName: Invalid value: \"m\": field is immutable",
        ],
    );
}
