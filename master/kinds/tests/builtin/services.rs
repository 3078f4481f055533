//! Defaults and validation of services, as upstream.

use crate::common::{change_faults, changed, faults, fields, kind, made};
use serde_json::{Value, json};

fn service(spec: &Value) -> Value {
    json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec})
}

#[test]
fn missing_fields_get_defaults() {
    let made = made(
        &kind("", "services"),
        &service(&json!({"ports": [{"port": 80}], "selector": {"a": "b"}})),
    );
    let spec = Value::Object(made)["spec"].clone();
    assert_eq!(
        spec,
        json!({
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "selector": {"a": "b"},
        })
    );
}

#[test]
fn names_may_begin_with_a_digit() {
    let names = kind("", "services").strategy.names;
    for name in ["8ball", "1", "a-1"] {
        assert_eq!(names(name), Ok(()), "{name}");
    }
    for name in ["-a", "a.b", "A", ""] {
        assert!(names(name).is_err(), "{name}");
    }
}

#[test]
fn a_balancer_gets_its_own_defaults() {
    let made = made(
        &kind("", "services"),
        &service(
            &json!({"type": "LoadBalancer", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"}),
        ),
    );
    let spec = Value::Object(made)["spec"].clone();
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(
        spec["sessionAffinityConfig"],
        json!({"clientIP": {"timeoutSeconds": 10800}})
    );
}

#[test]
fn all_faults_are_reported_at_once_with_upstreams_paths() {
    let spec = json!({
        "type": "NodePort", "clusterIP": "None", "externalIPs": ["127.0.0.1", "x"], "sessionAffinity": "Both",
        "ports": [
            {"port": 0, "name": "a"}, {"port": 80, "protocol": "HTTP"},
            {"port": 81, "name": "a", "targetPort": "-x-"},
        ],
        "loadBalancerClass": "a.b/c", "healthCheckNodePort": 5,
    });
    let messages = faults(&kind("", "services"), &service(&spec));
    let starts = [
        "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        "spec.ports[1].name: Required value",
        "spec.ports[1].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        "spec.ports[2].name: Duplicate value: \"a\"",
        "spec.ports[2].targetPort: Invalid value: \"-x-\": must not begin or end with a hyphen",
        "spec.sessionAffinity: Unsupported value: \"Both\"",
        "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
        "spec.externalIPs[1]: Invalid value: \"x\": must be a valid IP address",
        "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        "spec.healthCheckNodePort: Invalid value: 5: may only be set when",
    ];
    for start in starts {
        assert!(
            messages.iter().any(|fault| fault.starts_with(start)),
            "{start} in {messages:#?}"
        );
    }
    assert!(
        faults(&kind("", "services"), &service(&json!({})))
            .contains(&"spec.ports: Required value".to_owned())
    );
    let external = json!({"type": "ExternalName", "externalName": "example.com."});
    assert_eq!(
        faults(&kind("", "services"), &service(&external)),
        Vec::<String>::new()
    );
}

#[test]
fn an_allocation_survives_a_writer_that_does_not_know_it() {
    let kind = kind("", "services");
    let old = fields(&service(&json!({
        "type": "NodePort", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30001}],
    })));
    let new = service(&json!({"type": "NodePort", "ports": [{"port": 81}, {"port": 80}]}));
    let spec = Value::Object(changed(&kind, &new, &old))["spec"].clone();
    assert_eq!(
        (&spec["clusterIP"], &spec["clusterIPs"]),
        (&json!("10.0.0.5"), &json!(["10.0.0.5"]))
    );
    assert_eq!(spec["ports"][1]["nodePort"], 30001);
    assert!(spec["ports"][0].get("nodePort").is_none());
    let plain = service(
        &json!({"type": "ClusterIP", "clusterIP": "10.0.0.5", "ports": [{"port": 80, "nodePort": 30001}]}),
    );
    let spec = Value::Object(changed(&kind, &plain, &old))["spec"].clone();
    assert!(
        spec["ports"][0].get("nodePort").is_none(),
        "the port goes with the type"
    );
}

#[test]
fn a_cluster_address_never_changes() {
    let kind = kind("", "services");
    let with = |address: &str| service(&json!({"clusterIP": address, "ports": [{"port": 80}]}));
    let messages = change_faults(&kind, &with("10.0.0.6"), &with("10.0.0.5"));
    assert_eq!(
        messages,
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.6\"]: may not change once set"]
    );
    assert_eq!(
        change_faults(&kind, &with(""), &with("10.0.0.5")),
        Vec::<String>::new()
    );
}
