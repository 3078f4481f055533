//! Defaults and validation of certificate requests, nodes, data, events and flow control, as
//! upstream.

use crate::common::{
    change_faults, changed, checked, faults, fields, kind, made, starts, through_faults, warnings,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use master_schema::registry::Subresource;
use serde_json::{Value, json};

fn named(spec: &Value) -> Value {
    json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec})
}

#[test]
fn certificate_requests_are_read_and_their_signers_named_in_full() {
    let requests = kind("certificates.k8s.io", "certificatesigningrequests");
    let bad = json!({
        "request": STANDARD.encode("-----BEGIN RSA KEY-----\nAAAA\n-----END RSA KEY-----\n"),
        "usages": ["client auth", "cheese", "client auth"], "signerName": "a.B/c_d", "expirationSeconds": 599,
    });
    starts(
        &faults(&requests, &named(&bad)),
        &[
            "spec.request: Invalid value: \"LS0tLS1CRUdJTiBSU0EgS0VZL",
            "spec.usages[1]: Unsupported value: \"cheese\": supported values: \"any\", \"cert sign\"",
            "spec.usages[2]: Duplicate value: \"client auth\"",
            "spec.signerName: Invalid value: \"a.B\": validating label \"B\": a lowercase RFC 1123 label",
            "spec.signerName: Invalid value: \"c_d\": validating label \"c_d\": a lowercase RFC 1123 subdomain",
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
        ],
    );
    for (signer, fault) in [
        ("", "spec.signerName: Required value"),
        (
            "kubernetes.io/legacy-unknown",
            "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy",
        ),
        (
            "example.com",
            "spec.signerName: Invalid value: \"example.com\": must be a fully qualified domain and path",
        ),
        (
            "short/name",
            "spec.signerName: Invalid value: \"short\": should be a domain with at least two segments",
        ),
    ] {
        let messages = faults(
            &requests,
            &named(&json!({"usages": ["any"], "signerName": signer})),
        );
        starts(
            &messages,
            &[
                "spec.request: Invalid value: \"\": PEM block type must be CERTIFICATE REQUEST",
                fault,
            ],
        );
    }
    let old = named(&json!({"signerName": "a.b/c"}));
    let kept = changed(
        &requests,
        &named(&json!({"signerName": "x.y/z"})),
        &fields(&old),
    );
    assert_eq!(kept["spec"]["signerName"], "a.b/c", "what was asked stays");
}

#[test]
fn certificate_requests_are_decided_once_and_by_the_right_subresource() {
    let requests = kind("certificates.k8s.io", "certificatesigningrequests");
    let with = |status: Value| json!({"metadata": {"name": "a"}, "spec": {}, "status": status});
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let decided = with(json!({"conditions": [condition("Approved")]}));
    let approve =
        |new: &Value, old: &Value| through_faults(&requests, Subresource::Approval, new, old);
    let sign = |new: &Value, old: &Value| through_faults(&requests, Subresource::Status, new, old);
    starts(&approve(&decided, &with(json!({}))), &[]);
    starts(
        &approve(&with(json!({})), &decided),
        &["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""],
    );
    let both = with(
        json!({"conditions": [condition("Approved"), condition("Denied"), {"type": "Failed", "status": "No"}]}),
    );
    starts(
        &approve(&both, &decided),
        &[
            "status.conditions[1].type: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive",
            "status.conditions[2].status: Unsupported value: \"No\": supported values: \"True\"",
        ],
    );
    starts(
        &sign(&decided, &with(json!({}))),
        &["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""],
    );
    let nonsense =
        with(json!({"conditions": [condition("Approved")], "certificate": STANDARD.encode("x")}));
    starts(
        &sign(&nonsense, &decided),
        &[
            "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
        ],
    );
    // A signer that resends an approval with other words changes nothing of it.
    let other = json!({"type": "Approved", "status": "True", "message": "mine"});
    starts(&sign(&with(json!({"conditions": [other]})), &decided), &[]);
}

#[test]
fn events_are_checked_by_their_version() {
    let old = kind("", "events");
    let new = kind("events.k8s.io", "events");
    let at = |namespace: &str, rest: Value| {
        let mut event = json!({"metadata": {"name": "e", "namespace": namespace}});
        event
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().cloned().unwrap());
        event
    };
    starts(
        &faults(
            &old,
            &at("a", json!({"involvedObject": {"namespace": "b"}})),
        ),
        &["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"],
    );
    starts(
        &faults(&old, &at("default", json!({"involvedObject": {}}))),
        &[],
    );
    let long = "x".repeat(129);
    let bad = json!({
        "regarding": {"namespace": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": long, "type": "Odd",
        "deprecatedCount": 1, "series": {"count": 1},
    });
    starts(
        &faults(&new, &at("a", bad)),
        &[
            "reportingController: Required value",
            "reportingController: Invalid value: \"\": name part must be non-empty",
            "reportingInstance: Required value",
            "action: Invalid value: \"\": can have at most 128 characters",
            "reason: Required value",
            "series.count: Invalid value: \"\": should be at least 2",
            "series.lastObservedTime: Required value",
            "type: Invalid value: \"\": has invalid value: Odd",
            "count: Invalid value: \"\": needs to be unset",
        ],
    );
    let good = |note: &str| {
        at(
            "a",
            json!({
                "regarding": {"namespace": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Do", "type": "Normal",
                "reason": "R", "note": note, "reportingController": "c", "reportingInstance": "i",
            }),
        )
    };
    starts(&faults(&new, &good("x")), &[]);
    starts(
        &change_faults(&new, &good("y"), &good("x")),
        &["message: Invalid value: \"y\": field is immutable"],
    );
}

/// The newer version requires the time, so its check adds the zero time.
#[test]
fn a_series_that_the_older_version_stored_without_a_time_may_stay() {
    let events = kind("events.k8s.io", "events");
    let of = |count: u32| {
        json!({
            "metadata": {"name": "e", "namespace": "a"}, "regarding": {"namespace": "a"}, "action": "Do",
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "note": "n",
            "reportingController": "c", "reportingInstance": "i", "series": {"count": count},
        })
    };
    let stored = of(2);
    let sent = checked(&events, &stored);
    assert_eq!(
        sent["series"]["lastObservedTime"],
        "0001-01-01T00:00:00.000000Z"
    );
    starts(&change_faults(&events, &sent, &stored), &[]);
    starts(
        &change_faults(&events, &checked(&events, &of(3)), &stored),
        &["series.lastObservedTime: Required value"],
    );
}

#[test]
fn nodes_keep_their_assigned_fields() {
    let nodes = kind("", "nodes");
    let made = Value::Object(made(
        &nodes,
        &named(&json!({"podCIDR": "10.1.0.0/24", "configSource": {}})),
    ));
    assert_eq!(
        made["spec"],
        json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]})
    );
    let taint = json!({"key": "a", "effect": "NoSchedule"});
    let bad = json!({
        "metadata": {"name": "a"},
        "spec": {"taints": [taint, taint, {"key": "-", "effect": "Never"}], "podCIDRs": ["10.0.0.0/8", "10.1.0.0/16"]},
        "status": {"capacity": {"pods": "1500m", "cpu": "-1"}},
    });
    starts(
        &faults(&nodes, &bad),
        &[
            "metadata.taints[1]: Duplicate value: {\"effect\":\"NoSchedule\",\"key\":\"a\"}: taints must be unique by key and effect",
            "metadata.taints[2].key: Invalid value: \"-\": name part must consist",
            "metadata.taints[2].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\"",
            "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
            "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
            "status.allocatable.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
            "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/8\",\"10.1.0.0/16\"]: may specify no more than one CIDR for each IP family",
        ],
    );
    let node = |range: &str, id: &str| named(&json!({"podCIDR": range, "providerID": id}));
    starts(
        &change_faults(&nodes, &node("10.2.0.0/24", "y"), &node("10.1.0.0/24", "x")),
        &[
            "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
            "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
        ],
    );
    starts(
        &change_faults(&nodes, &node("10.2.0.0/24", "y"), &node("", "")),
        &[],
    );
}

#[test]
fn secrets_hold_what_their_type_needs() {
    let secrets = kind("", "secrets");
    let secret = |kind: &str, data: Value| json!({"metadata": {"name": "a"}, "type": kind, "stringData": data});
    for (kind, data, expected) in [
        (
            "kubernetes.io/service-account-token",
            json!({}),
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"][..],
        ),
        (
            "kubernetes.io/basic-auth",
            json!({}),
            &[
                "data[username]: Required value",
                "data[password]: Required value",
            ],
        ),
        ("kubernetes.io/basic-auth", json!({"password": ""}), &[]),
        (
            "kubernetes.io/ssh-auth",
            json!({"ssh-privatekey": ""}),
            &["data[ssh-privatekey]: Required value"],
        ),
        (
            "kubernetes.io/tls",
            json!({"tls.crt": ""}),
            &["data[tls.key]: Required value"],
        ),
        (
            "kubernetes.io/dockercfg",
            json!({}),
            &["data[.dockercfg]: Required value"],
        ),
        (
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "[]"}),
            &["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\""],
        ),
        (
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "{}"}),
            &[],
        ),
    ] {
        starts(&faults(&secrets, &secret(kind, data)), expected);
    }
    assert_eq!(
        warnings(
            &secrets,
            &secret("kubernetes.io/tls", json!({"tls.crt": "x", "tls.key": "y"}))
        ),
        ["tls: failed to find any PEM data in certificate input"]
    );
}

#[test]
fn data_is_measured_in_decoded_bytes() {
    const MOST: usize = 1 << 20;
    let maps = kind("", "configmaps");
    let map = |plain: usize, binary: usize| json!({"metadata": {"name": "a"}, "data": {"p": "x".repeat(plain)}, "binaryData": {"b": STANDARD.encode(vec![0; binary])}});
    starts(&faults(&maps, &map(MOST - 5, 5)), &[]);
    starts(
        &faults(&maps, &map(MOST - 5, 6)),
        &[": Too long: may not be more than 1048576 bytes"],
    );
    let both = json!({"metadata": {"name": "a"}, "data": {"k": ""}, "binaryData": {"k": ""}});
    starts(
        &faults(&maps, &both),
        &[
            "data[k]: Invalid value: \"k\": duplicate of key present in binaryData",
            "binaryData[k]: Invalid value: \"k\": duplicate of key present in data",
        ],
    );
    let secrets = kind("", "secrets");
    let secret = |size: usize| json!({"metadata": {"name": "a"}, "data": {"s": STANDARD.encode(vec![0; size])}});
    starts(&faults(&secrets, &secret(MOST)), &[]);
    starts(
        &faults(&secrets, &secret(MOST + 1)),
        &["data: Too long: may not be more than 1048576 bytes"],
    );
}

#[test]
fn namespaces_are_held_until_they_are_emptied() {
    let namespaces = kind("", "namespaces");
    let object = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let made = Value::Object(made(
        &namespaces,
        &object("a", json!({"finalizers": ["x.y/z"]})),
    ));
    assert_eq!(made["spec"]["finalizers"], json!(["x.y/z", "kubernetes"]));
    assert_eq!(
        made["metadata"]["labels"]["kubernetes.io/metadata.name"],
        "a"
    );
    starts(
        &through_faults(
            &namespaces,
            Subresource::Finalize,
            &object("a", json!({"finalizers": ["x"]})),
            &made,
        ),
        &["spec.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name"],
    );
    let phase = |phase: &str| json!({"metadata": {"name": "a"}, "status": {"phase": phase}});
    starts(
        &through_faults(
            &namespaces,
            Subresource::Status,
            &phase("Terminating"),
            &made,
        ),
        &[
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
        ],
    );
}

#[test]
fn accounts_and_leases() {
    let accounts = kind("", "serviceaccounts");
    let account = json!({"metadata": {"name": "a", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "secrets": [{"name": "s", "namespace": "x", "uid": "u"}]});
    assert_eq!(
        Value::Object(made(&accounts, &account))["secrets"],
        json!([{"name": "s"}])
    );
    assert_eq!(
        warnings(&accounts, &account),
        [
            "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces \
          to isolate access to mounted secrets"
        ]
    );
    let leases = kind("coordination.k8s.io", "leases");
    let bad = json!({"leaseDurationSeconds": 0, "leaseTransitions": -1, "strategy": "Mine", "preferredHolder": "x"});
    starts(
        &faults(&leases, &named(&bad)),
        &[
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            "spec.strategy.strategy: Unsupported value: \"Mine\": supported values: \"OldestEmulationVersion\"",
        ],
    );
    starts(
        &faults(&leases, &named(&json!({"preferredHolder": "x"}))),
        &["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"],
    );
}

#[test]
fn a_service_gets_a_warning_of_what_nodes_do_not_do() {
    let services = kind("", "services");
    let mut service = named(&json!({"clusterIP": "10.96.0.1", "ports": [
        {"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "SCTP"},
    ]}));
    service["metadata"]["annotations"] = json!({"service.kubernetes.io/topology-mode": "Auto"});
    starts(
        &warnings(&services, &service),
        &[
            "spec.ports[1].protocol: nodes lead no SCTP to endpoints",
            "annotation service.kubernetes.io/topology-mode: Auto has no effect here",
        ],
    );
}

#[test]
fn deprecated_fields_cause_warnings() {
    let services = kind("", "services");
    let spec = json!({"clusterIP": "None", "ports": [{"port": 1}], "externalIPs": ["::FFFF"], "externalName": "x"});
    assert_eq!(
        warnings(&services, &named(&spec)),
        [
            "spec.externalIPs is ignored for headless services",
            "spec.externalIPs[0]: IPv6 address \"::FFFF\" should be in RFC 5952 canonical format (\"::ffff\")",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ]
    );
    let jobs = kind("batch", "cronjobs");
    let template =
        json!({"spec": {"containers": [], "nodeSelector": {"beta.kubernetes.io/arch": "x"}}});
    let job = json!({"metadata": {"name": "a.b"}, "spec": {"schedule": "TZ=UTC * * * * *", "jobTemplate": {"spec": {"template": template}}}});
    starts(
        &warnings(&jobs, &job),
        &[
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is",
            "spec.jobTemplate.spec.template.spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use",
            "CRON_TZ or TZ used in spec.schedule is not officially supported, see",
        ],
    );
    let deployments = kind("apps", "deployments");
    let object = |replicas: i64| json!({"metadata": {"name": "a"}, "spec": {"replicas": replicas, "template": template}});
    let warned = |new: &Value, old: &Value| {
        let mut all = Vec::new();
        (deployments.strategy.warn)(
            &made(&deployments, new),
            Some(&made(&deployments, old)),
            &mut all,
        );
        all
    };
    assert!(
        warned(&object(1), &object(1)).is_empty(),
        "nothing of the spec changed"
    );
    assert_eq!(warned(&object(2), &object(1)).len(), 1);
}
