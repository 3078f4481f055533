//! Defaults and validation of kinds of network, storage, access and limits, as upstream.

use crate::common::{change_faults, faults, fields, kind, made, starts};
use master_schema::registry::Subresource;
use serde_json::{Value, json};

fn named(spec: &Value) -> Value {
    json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec})
}

#[test]
fn network_policies() {
    let policies = kind("networking.k8s.io", "networkpolicies");
    let made = Value::Object(made(
        &policies,
        &named(&json!({"egress": [{"ports": [{"port": 53}]}]})),
    ));
    assert_eq!(made["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(made["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
    let bad = json!({
        "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
        "ingress": [{
            "from": [{}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}, "podSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}],
            "ports": [{"port": "http", "endPort": 5}, {"port": 80, "endPort": 79}, {"endPort": 5}, {"port": 70000}],
        }],
        "policyTypes": ["Both"],
    });
    starts(
        &faults(&policies, &named(&bad)),
        &[
            "spec.podSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In'",
            "spec.ingress[0].ports[0].endPort: Invalid value: 5: may not be specified when `port` is non-numeric",
            "spec.ingress[0].ports[1].endPort: Invalid value: 80: must be greater than or equal to `port`",
            "spec.ingress[0].ports[2].endPort: Invalid value: 5: may not be specified when `port` is not specified",
            "spec.ingress[0].ports[3].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.ingress[0].from[0]: Required value: must specify a peer",
            "spec.ingress[0].from[1]: Forbidden: may not specify both ipBlock and another peer",
            "spec.ingress[0].from[2].ipBlock.except[0]: Invalid value: \"11.0.0.0/9\": must be a strict subset of `cidr`",
            "spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Egress\", \"Ingress\"",
        ],
    );
}

#[test]
fn ingresses() {
    let ingresses = kind("networking.k8s.io", "ingresses");
    let backend = json!({"service": {"name": "a", "port": {"number": 80}}});
    let good = json!({"rules": [{"host": "*.a.example", "http": {"paths": [
        {"path": "/a", "pathType": "Prefix", "backend": backend},
    ]}}]});
    starts(&faults(&ingresses, &named(&good)), &[]);
    let mut digit = good.clone();
    digit["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("1a");
    starts(&faults(&ingresses, &named(&digit)), &[]);
    let bad = json!({
        "tls": [{"hosts": ["A"]}],
        "rules": [{"host": "10.0.0.1", "http": {"paths": [
            {"path": "a//b", "pathType": "Exact", "backend": {}},
            {"backend": {"service": {"name": "A", "port": {"name": "x", "number": 1}}}},
        ]}}],
    });
    starts(
        &faults(&ingresses, &named(&bad)),
        &[
            "spec.tls[0].hosts[0]: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
            "spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address",
            "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must be an absolute path",
            "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must not contain '//'",
            "spec.rules[0].http.paths[0].backend: Invalid value: \"\": resource or service backend is required",
            "spec.rules[0].http.paths[1].pathType: Required value: pathType must be specified",
            "spec.rules[0].http.paths[1].backend.service.name: Invalid value: \"A\": a lowercase RFC 1123 label",
            "spec.rules[0].http.paths[1].backend.service.port: Invalid value: \"\": cannot set both port name & port number",
        ],
    );
    starts(
        &faults(&ingresses, &named(&json!({}))),
        &["spec: Invalid value: null: either `defaultBackend` or `rules`"],
    );
    let class = kind("networking.k8s.io", "ingressclasses");
    let with = |controller: &str| {
        named(&json!({"controller": controller, "parameters": {"kind": "K", "name": "n"}}))
    };
    starts(
        &change_faults(&class, &with("a.b/c"), &with("a.b/d")),
        &["spec.controller: Invalid value: \"a.b/c\": field is"],
    );
    starts(
        &faults(&class, &with("a")),
        &["spec.controller: Invalid value: \"a\": must be a domain-prefixed path"],
    );
}

#[test]
fn endpoint_slices() {
    let slices = kind("discovery.k8s.io", "endpointslices");
    let bad = json!({
        "metadata": {"name": "a"}, "addressType": "IPv4",
        "endpoints": [{"addresses": []}, {"addresses": ["::1", "127.0.0.1"], "hostname": "A"}],
        "ports": [{"port": 80}, {"port": 81}, {"name": "A_", "protocol": "X"}],
    });
    starts(
        &faults(&slices, &bad),
        &[
            "endpoints[0].addresses: Required value: must contain at least 1 address",
            "endpoints[1].addresses[0]: Invalid value: \"::1\": must be a valid IPv4 address",
            "endpoints[1].addresses[1]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
            "endpoints[1].hostname: Invalid value: \"A\": a lowercase RFC 1123 label",
            "ports[1].name: Duplicate value: \"\"",
            "ports[2].name: Invalid value: \"A_\": a lowercase RFC 1123 label",
            "ports[2].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    let endpoints = kind("", "endpoints");
    let bad = json!({"metadata": {"name": "a"}, "subsets": [{}, {"addresses": [{"ip": "x"}], "ports": [{"port": 0}]}]});
    starts(
        &faults(&endpoints, &bad),
        &[
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
            "subsets[1].addresses[0].ip: Invalid value: \"x\": must be a valid IP address",
            "subsets[1].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    );
}

#[test]
fn addresses_and_ranges() {
    let addresses = kind("networking.k8s.io", "ipaddresses");
    assert!(
        (addresses.strategy.names)("2001:db8::1").is_ok()
            && (addresses.strategy.names)("2001:DB8::1").is_err()
    );
    starts(
        &faults(&addresses, &named(&json!({}))),
        &["spec.parentRef: Required value"],
    );
    let ranges = kind("networking.k8s.io", "servicecidrs");
    let of = |cidrs: &[&str]| named(&json!({"cidrs": cidrs}));
    starts(
        &faults(&ranges, &of(&[])),
        &["spec.cidrs: Required value: at least one CIDR required"],
    );
    starts(
        &faults(&ranges, &of(&["10.0.0.1/8"])),
        &["spec.cidrs[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond"],
    );
    starts(
        &faults(&ranges, &of(&["FD00::/64"])),
        &["spec.cidrs[0]: Invalid value: \"FD00::/64\": must be in canonical form"],
    );
    starts(
        &change_faults(
            &ranges,
            &of(&["10.0.0.0/8", "fd00::/64"]),
            &of(&["10.0.0.0/8"]),
        ),
        &[],
    );
    let messages = change_faults(&ranges, &of(&["11.0.0.0/8"]), &of(&["10.0.0.0/8"]));
    starts(
        &messages,
        &["spec.cidrs[0]: Invalid value: \"11.0.0.0/8\": field is immutable"],
    );
}

#[test]
fn volumes() {
    let volumes = kind("", "persistentvolumes");
    let good = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
    let made = Value::Object(made(&volumes, &named(&good)));
    assert_eq!(
        (
            &made["spec"]["persistentVolumeReclaimPolicy"],
            &made["status"]["phase"]
        ),
        (&json!("Retain"), &json!("Pending"))
    );
    assert_eq!(made["spec"]["hostPath"]["type"], "");
    starts(&faults(&volumes, &named(&good)), &[]);
    let bad = json!({
        "capacity": {"storage": "0", "x": "1"}, "accessModes": ["ReadWriteOncePod", "Never"], "local": {"path": "a/.."},
        "nfs": {"server": "s", "path": "/"}, "persistentVolumeReclaimPolicy": "Burn", "volumeMode": "Tape",
    });
    starts(
        &faults(&volumes, &named(&bad)),
        &[
            "spec.accessModes: Unsupported value: \"Never\"",
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            "spec.capacity: Unsupported value",
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\"",
            "spec.local.path: Invalid value: \"a/..\": must not contain '..'",
            "spec.nfs: Forbidden: may not specify more than 1 volume type",
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
            "spec.volumeMode: Unsupported value: \"Tape\"",
        ],
    );
    let mut moved = good.clone();
    moved["hostPath"]["path"] = json!("/b");
    let messages = change_faults(&volumes, &named(&moved), &named(&good));
    starts(
        &messages,
        &[
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
        ],
    );
}

#[test]
fn the_time_of_a_volumes_last_change_of_phase_is_noted() {
    let volumes = kind("", "persistentvolumes");
    let at = "2020-01-01T00:00:00Z";
    let with = |status: Value| fields(&json!({"status": status}));
    let time = |status: Value| {
        let old = with(json!({"phase": "Available", "lastPhaseTransitionTime": at}));
        let mut new = with(status);
        let sent = new.clone();
        (volumes.strategy.through)(Subresource::Status, &mut new, &sent, &old);
        let time = new["status"]["lastPhaseTransitionTime"].as_str();
        time.unwrap_or_default().to_owned()
    };
    let same = json!({"phase": "Available", "message": "m", "lastPhaseTransitionTime": at});
    assert_eq!(time(same), at);
    for bound in [
        json!({"phase": "Bound"}),
        json!({"phase": "Bound", "lastPhaseTransitionTime": at}),
    ] {
        assert!(*time(bound) > *at, "the phase changed now");
    }
    let own = "2021-01-01T00:00:00Z";
    let said = json!({"phase": "Bound", "lastPhaseTransitionTime": own});
    assert_eq!(time(said), own);
}

#[test]
fn claims() {
    let claims = kind("", "persistentvolumeclaims");
    let claim = |size: &str| json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    starts(&faults(&claims, &named(&claim("1Gi"))), &[]);
    starts(
        &faults(
            &claims,
            &named(&json!({"dataSource": {"kind": "Pod", "name": "p"}})),
        ),
        &[
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value",
            "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            "spec.dataSourceRef: Invalid value: \"Pod\"",
        ],
    );
    let messages = change_faults(&claims, &named(&claim("2Gi")), &named(&claim("1Gi")));
    starts(
        &messages,
        &["spec: Forbidden: spec is immutable after creation except resources.requests"],
    );
    let mut bound = made(&claims, &named(&claim("1Gi")));
    bound.insert(
        "status".to_owned(),
        json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}),
    );
    let faults_at = |size: &str| {
        let new = crate::common::changed(&claims, &named(&claim(size)), &bound);
        let mut faults = master_schema::validate::Faults::default();
        (claims.strategy.validate_update)(&new, &bound, &mut faults);
        crate::common::messages(faults)
    };
    starts(&faults_at("2Gi"), &[]);
    starts(
        &faults_at("512Mi"),
        &["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"],
    );
}

#[test]
fn storage_classes() {
    let classes = kind("storage.k8s.io", "storageclasses");
    let class = |provisioner: &str| json!({"metadata": {"name": "a"}, "provisioner": provisioner});
    let made = Value::Object(made(&classes, &class("a.b/c")));
    assert_eq!(
        (&made["reclaimPolicy"], &made["volumeBindingMode"]),
        (&json!("Delete"), &json!("Immediate"))
    );
    starts(
        &faults(&classes, &class("")),
        &["provisioner: Required value"],
    );
    let messages = change_faults(&classes, &class("x.y/z"), &class("a.b/c"));
    starts(
        &messages,
        &["provisioner: Forbidden: updates to provisioner are forbidden."],
    );
    let drivers = kind("storage.k8s.io", "csidrivers");
    let made = Value::Object(crate::common::made(&drivers, &named(&json!({}))));
    assert_eq!(made["spec"]["volumeLifecycleModes"], json!(["Persistent"]));
    assert_eq!(made["spec"]["attachRequired"], true);
    let bad =
        json!({"tokenRequests": [{"audience": "a", "expirationSeconds": 5}, {"audience": "a"}]});
    starts(
        &faults(&drivers, &named(&bad)),
        &[
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
        ],
    );
    let attachments = kind("storage.k8s.io", "volumeattachments");
    let messages = faults(
        &attachments,
        &named(&json!({"attacher": "a.b", "nodeName": "n", "source": {}})),
    );
    starts(
        &messages,
        &["spec.source: Required value: must specify exactly one of inlineVolumeSpec and"],
    );
}

#[test]
fn roles_and_bindings() {
    let roles = kind("rbac.authorization.k8s.io", "roles");
    let role = json!({"rules": [{"verbs": []}, {"verbs": ["get"], "nonResourceURLs": ["/"], "resources": ["a"]}]});
    starts(
        &faults(&roles, &role),
        &[
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[0].resources: Required value: resource rules must supply at least one resource",
            "rules[1].nonResourceURLs: Invalid value: [\"/\"]: namespaced rules cannot apply to non-resource URLs",
            "rules[1].nonResourceURLs: Invalid value: [\"/\"]: rules cannot apply to both regular resources and non-resource",
        ],
    );
    let bindings = kind("rbac.authorization.k8s.io", "clusterrolebindings");
    let bound = |role: &str| json!({"roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": "u"}]});
    starts(&faults(&bindings, &bound("r")), &[]);
    starts(
        &change_faults(&bindings, &bound("s"), &bound("r")),
        &["roleRef: Invalid value"],
    );
    let bad = json!({
        "roleRef": {"kind": "Role", "name": ""},
        "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "Robot", "name": "b"}],
    });
    starts(
        &faults(&bindings, &bad),
        &[
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
            "roleRef.name: Required value",
            "subjects[0].namespace: Required value",
            "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ],
    );
}

#[test]
fn limits_and_quotas() {
    let ranges = kind("", "limitranges");
    let limit =
        json!({"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]});
    let made = Value::Object(made(&ranges, &named(&limit)));
    assert_eq!(made["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
    assert_eq!(
        made["spec"]["limits"][0]["defaultRequest"],
        json!({"cpu": "2", "memory": "1Mi"})
    );
    let bad = json!({"limits": [
        {"type": "Pod", "default": {"cpu": "1"}, "min": {"cpu": "2"}},
        {"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "1100m"}},
        {"type": "PersistentVolumeClaim"}, {"type": "Other"},
    ]});
    starts(
        &faults(&ranges, &named(&bad)),
        &[
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[0].default[cpu]: Invalid value: \"1\": min value 2 is greater than default value 1",
            "spec.limits[1].type: Duplicate value: \"Pod\"",
            "spec.limits[1].min[cpu]: Invalid value: \"1100m\": min value 1100m is greater than max value 1",
            "spec.limits[2].limits: Required value: either minimum or maximum storage value is required",
            "spec.limits[3].type: Invalid value: \"Other\": must be a standard limit type or fully qualified",
        ],
    );
    let quotas = kind("", "resourcequotas");
    let bad = json!({
        "hard": {"pods": "1.5", "dogs": "1", "cpu": "-1", "count/dogs.example": "2"},
        "scopes": ["BestEffort", "NotBestEffort"],
    });
    let messages = faults(&quotas, &named(&bad));
    for start in [
        "spec.hard[pods]: Invalid value: \"1.5\": must be an integer",
        "spec.hard[dogs]: Invalid value: \"dogs\": must be a standard resource for quota",
        "spec.hard[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
        "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
    ] {
        assert!(
            messages.iter().any(|fault| fault.starts_with(start)),
            "{start} in {messages:#?}"
        );
    }
    assert_eq!(messages.len(), 6, "{messages:#?}");
}

#[test]
fn classes_of_priority_and_runtime() {
    let classes = kind("scheduling.k8s.io", "priorityclasses");
    let class = |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value});
    starts(
        &faults(&classes, &class("system-node-critical", 2_000_001_000)),
        &[],
    );
    starts(
        &faults(&classes, &class("system-x", 1)),
        &["metadata.name: Forbidden: priority class names with 'system-'"],
    );
    starts(
        &faults(&classes, &class("a", 1_000_000_001)),
        &["value: Forbidden: maximum allowed value of a user defined"],
    );
    starts(
        &change_faults(&classes, &class("a", 2), &class("a", 1)),
        &["value: Forbidden: may not be changed in an update."],
    );
    let runtimes = kind("node.k8s.io", "runtimeclasses");
    let runtime = |handler: &str| json!({"metadata": {"name": "a"}, "handler": handler});
    starts(
        &faults(&runtimes, &runtime("")),
        &["handler: Invalid value: \"\": a lowercase RFC 1123 label"],
    );
    starts(
        &change_faults(&runtimes, &runtime("b"), &runtime("a")),
        &["handler: Invalid value: \"b\": field is immutable"],
    );
    let mut intolerant = runtime("a");
    intolerant["scheduling"] = json!({"tolerations": [{"key": "a", "operator": "Like"}]});
    starts(
        &faults(&runtimes, &intolerant),
        &["scheduling.tolerations[0].operator: Unsupported value: \"Like\""],
    );
}

#[test]
fn webhooks_and_policies_say_that_nothing_enforces_them() {
    let hooks = kind(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
    );
    let hook = json!({"webhooks": [{
        "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}],
    }]});
    starts(&faults(&hooks, &hook), &[]);
    let mut warnings = Vec::new();
    (hooks.strategy.warn)(&made(&hooks, &hook), None, &mut warnings);
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("nothing is enforced")),
        "{warnings:?}"
    );
    starts(
        &faults(
            &hooks,
            &json!({"webhooks": [{"name": "a", "clientConfig": {"url": "http://x"}}]}),
        ),
        &[
            "webhooks[0].name: Invalid value: \"a\": should be a domain with at least three segments separated by dots",
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
            "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format:",
            "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
        ],
    );
    let resources = ["pods", "*", "a/*", "a/b", "*/c", "d/c", ""];
    let bad = json!({"webhooks": [{
        "name": "a.b.c", "sideEffects": "Some", "admissionReviewVersions": ["v2", "v2", "V"],
        "clientConfig": {"service": {"namespace": "n", "port": 0, "path": "/a//B"}},
        "rules": [{"apiGroups": ["*", "a"], "apiVersions": [""], "resources": resources, "operations": ["*", "DO"]}],
        "matchConditions": [{"name": "-", "expression": " "}, {}],
    }]});
    starts(
        &faults(&hooks, &bad),
        &[
            "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"DO\"]: if '*' is present, must not specify other operations",
            "webhooks[0].rules[0].operations[1]: Unsupported value: \"DO\"",
            "webhooks[0].rules[0].apiGroups: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other API groups",
            "webhooks[0].rules[0].apiVersions[0]: Required value",
            "webhooks[0].rules[0].resources[3]: Invalid value: \"a/b\": if 'a/*' is present, must not specify a/b",
            "webhooks[0].rules[0].resources[5]: Invalid value: \"d/c\": if '*/c' is present, must not specify d/c",
            "webhooks[0].rules[0].resources[6]: Required value",
            "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            "webhooks[0].clientConfig.service.name: Required value",
            "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535",
            "webhooks[0].clientConfig.service.path: Invalid value: \"/a//B\": segment[1] may not be empty",
            "webhooks[0].clientConfig.service.path: Invalid value: \"/a//B\": segment[2]: a lowercase RFC 1123 subdomain",
            "webhooks[0].matchConditions[0].expression: Required value",
            "webhooks[0].matchConditions[0].name: Invalid value: \"-\": name part must consist",
            "webhooks[0].matchConditions[1].expression: Required value",
            "webhooks[0].matchConditions[1].name: Required value",
            "webhooks[0].admissionReviewVersions[1]: Invalid value: \"v2\": duplicate version",
            "webhooks[0].admissionReviewVersions[2]: Invalid value: \"V\": a DNS-1035 label",
            "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\",\"v2\",\"V\"]: must include at least one of v1, v1beta1",
        ],
    );
}

#[test]
fn policies_of_admission() {
    let kinds = |plural: &str| kind("admissionregistration.k8s.io", plural);
    let bindings = kinds("validatingadmissionpolicybindings");
    let messages = faults(
        &bindings,
        &named(&json!({"policyName": "p", "validationActions": ["Deny", "Warn"]})),
    );
    starts(
        &messages,
        &[
            "spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn",
        ],
    );
    let both = json!({"policyName": "", "paramRef": {"name": "a/b", "selector": {}}});
    starts(
        &faults(&bindings, &named(&both)),
        &[
            "spec.policyName: Required value",
            "spec.paramRef.name: Invalid value: \"a/b\": may not contain '/'",
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.parameterNotFoundAction: Required value",
            "spec.validationActions: Required value: at least one validation action is required",
        ],
    );
    let policies = kinds("validatingadmissionpolicies");
    let bad = json!({
        "paramKind": {"apiVersion": "a/b/c", "kind": "K_"}, "matchConstraints": {},
        "variables": [{"name": "in", "expression": "x"}, {"name": " "}],
        "validations": [{"expression": " ", "message": "a\nb", "messageExpression": " ", "reason": "Gone"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "x"}, {"key": "k"}],
    });
    starts(
        &faults(&policies, &named(&bad)),
        &[
            "spec.paramKind.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            "spec.paramKind.kind: Invalid value: \"K_\": may have mixed case, but should otherwise match: a DNS-1035 label",
            "spec.matchConstraints.resourceRules: Required value",
            "spec.variables[0].name: Invalid value: \"in\": name is not a valid CEL identifier",
            "spec.variables[1].name: Required value: name is not specified",
            "spec.variables[1].expression: Required value: expression is not specified",
            "spec.validations[0].expression: Required value: expression is not specified",
            "spec.validations[0].messageExpression: Invalid value: \" \": must be non-empty if specified",
            "spec.validations[0].message: Invalid value: \"a\\nb\": message must not contain line breaks",
            "spec.validations[0].reason: Unsupported value: \"Gone\"",
            "spec.auditAnnotations[1].valueExpression: Required value: valueExpression is not specified",
            "spec.auditAnnotations[1].key: Duplicate value: \"k\"",
        ],
    );
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"]});
    let bad = json!({
        "matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "applyConfiguration": {"expression": "x"}}, {}],
    });
    starts(
        &faults(&kinds("mutatingadmissionpolicies"), &named(&bad)),
        &[
            "spec.matchConstraints.resourceRules[0].operations[0]: Unsupported value: \"DELETE\": supported values: \"CREATE\",",
            "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
            "spec.mutations[0].applyConfiguration: Invalid value: {\"expression\":\"x\"}: must not be specified when patchType is",
            "spec.mutations[1].patchType: Required value",
        ],
    );
}
