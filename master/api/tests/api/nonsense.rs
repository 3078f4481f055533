//! Objects with random content: accepted or refused, never an internal error.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::k8s_openapi::api::core::v1::Pod;
use http::{Method, StatusCode};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Collections of every kind.
const PATHS: &[&str] = &[
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/serviceaccounts",
    "/api/v1/namespaces/default/events",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/pratique.dev/v1alpha1/machines",
    "/apis/pratique.dev/v1alpha1/imagereleases",
    "/apis/pratique.dev/v1alpha1/nodeattestations",
    "/apis/pratique.dev/v1alpha1/certificatepolicies",
];

/// Names of fields that exist somewhere, so that random content gets past the first checks.
const KEYS: &[&str] = &[
    "metadata",
    "name",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "spec",
    "status",
    "containers",
    "initContainers",
    "image",
    "env",
    "valueFrom",
    "ports",
    "containerPort",
    "resources",
    "limits",
    "requests",
    "cpu",
    "volumes",
    "emptyDir",
    "configMap",
    "volumeMounts",
    "mountPath",
    "tolerations",
    "taints",
    "key",
    "effect",
    "conditions",
    "type",
    "data",
    "stringData",
    "involvedObject",
    "regarding",
    "series",
    "count",
    "signerName",
    "usages",
    "request",
    "rules",
    "ek",
    "hashes",
    "role",
    "nodeSelector",
    "livenessProbe",
    "httpGet",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "deletionTimestamp",
    "generateName",
    "resourceVersion",
    "uid",
];

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z0-9./:-]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "1Gi",
            "NoSchedule",
            "Ready",
            "2026-01-01T00:00:00Z",
            "eA==",
            "TCP",
            "é"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(KEYS), inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(k, v)| (k.to_owned(), v))
                        .collect::<Map<_, _>>(),
                )
            }),
        ]
    })
}

static RUNTIME: LazyLock<(tokio::runtime::Runtime, Local)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let local = runtime.block_on(Local::new());
    (runtime, local)
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_input_is_accepted_or_refused(path in prop::sample::select(PATHS), spec in values(), more in values(), patch in values()) {
        let (runtime, server) = &*RUNTIME;
        let mut object = json!({"metadata": {"generateName": "x-"}, "spec": spec, "data": more, "involvedObject": {}});
        if let Value::Object(fields) = &more {
            object.as_object_mut().unwrap().extend(fields.clone());
        }
        runtime.block_on(async {
            let (status, made) = server.admin_ask(Method::POST, path, &object).await;
            prop_assert!(status.as_u16() < 500, "{path} {object}: {made}");
            if let Some(name) = made.pointer("/metadata/name").and_then(Value::as_str).filter(|_| status.is_success()) {
                for kind in ["application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json"] {
                    let admin = master_client::UserInfo::admin("a");
                    let headers = [("content-type", kind)];
                    let at = format!("{path}/{name}");
                    let (status, _, answer) = server.send(&admin, Method::PATCH, &at, &headers, patch.to_string()).await;
                    prop_assert!(status.as_u16() < 500, "{path} {patch}: {answer:?}");
                    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
                    let (status, _, _) = server.send(&admin, Method::GET, &at, &table, "").await;
                    prop_assert!(status.as_u16() < 500);
                }
            }
            Ok(())
        })?;
    }
}

/// A pod that no scheduler, controller or node could read would hold up all pods of the cluster,
/// and every user who may create pods could create it.
#[tokio::test]
async fn what_is_taken_can_be_read_as_its_kind() {
    let server = Local::new().await;
    let changes = [
        ("/metadata", "ownerReferences", json!([null])),
        ("/metadata", "finalizers", json!([null])),
        ("/spec", "tolerations", json!([null])),
        ("/spec", "imagePullSecrets", json!([null])),
        ("/spec", "volumes", json!([null])),
        (
            "/spec",
            "hostAliases",
            json!([{"ip": "10.0.0.1", "hostnames": [null]}]),
        ),
        ("/spec/containers/0", "args", json!(["a", null])),
        ("/spec/containers/0", "env", json!([null])),
        ("/spec/containers/0", "envFrom", json!([null])),
        ("/spec/containers/0", "volumeMounts", json!([null])),
        ("/spec", "activeDeadlineSeconds", json!(u64::MAX)),
        ("/spec", "terminationGracePeriodSeconds", json!(u64::MAX)),
        (
            "/spec",
            "tolerations",
            json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": u64::MAX}]),
        ),
        ("/spec/securityContext", "supplementalGroups", json!([null])),
        ("/spec/securityContext", "runAsUser", json!(u64::MAX)),
    ];
    let path = "/api/v1/namespaces/default/pods";
    for (place, key, value) in changes {
        let mut pod = json!({"metadata": {"generateName": "x-"}, "spec": {
            "securityContext": {}, "containers": [{"name": "a", "image": "i"}],
        }});
        pod.pointer_mut(place).unwrap()[key] = value.clone();
        let (status, answer) = server.admin_ask(Method::POST, path, &pod).await;
        assert!(status.as_u16() < 500, "{key} {value}: {answer}");
        if status.is_success() {
            let read = serde_json::from_value::<Pod>(answer.clone());
            assert!(read.is_ok(), "{key} {value}: {read:?} of {answer}");
        }
    }
}

/// Three bytes of a body are a value of some 64 in memory, several times while it is written.
#[tokio::test]
async fn a_body_of_more_values_than_an_object_has_is_refused() {
    let server = Local::new().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |env: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"x"}},
                "spec":{{"containers":[{{"name":"a","image":"i","env":[{env}]}}]}}}}"#
        )
    };
    let many = pod(&vec!["{}"; 300_000].join(","));
    let one = format!("{pods}/x");
    let applied = format!("{one}?fieldManager=a");
    let admin = master_client::UserInfo::admin("a");
    let json = [("content-type", "application/json")];
    let sent = server.send(&admin, Method::POST, pods, &json, pod(""));
    assert_eq!(sent.await.0, StatusCode::CREATED);
    for (method, path, kind) in [
        (Method::POST, pods, "application/json"),
        (Method::POST, pods, "application/yaml"),
        (Method::PUT, one.as_str(), "application/json"),
        (Method::PATCH, one.as_str(), "application/merge-patch+json"),
        (
            Method::PATCH,
            applied.as_str(),
            "application/apply-patch+yaml",
        ),
    ] {
        let headers = [("content-type", kind)];
        let sent = server.send(&admin, method, path, &headers, many.clone());
        let (status, _, answer) = sent.await;
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{kind}: {text}");
        assert!(
            text.contains("more than 262144 values in one document"),
            "{kind}: {text}"
        );
    }
}

/// Managed fields whose indexes come before the values that belong before them, and keys to retain
/// as many as fields: both fit a body. To move each field behind each, or to compare each key with
/// each field, would take minutes.
#[tokio::test]
async fn many_keys_in_any_order_are_neither_moved_nor_compared_each_with_each() {
    let server = Local::new().await;
    let admin = master_client::UserInfo::admin("a");
    let maps = "/api/v1/namespaces/default/configmaps";
    let fields: Map<String, Value> = (0..100_000)
        .flat_map(|n| [format!("i:{n}"), format!("v:{n}")])
        .map(|key| (key, json!({})))
        .collect();
    let managed = json!([{"manager": "m", "operation": "Update", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:finalizers": fields}}}]);
    let object = json!({"metadata": {"name": "x", "managedFields": managed}});
    let (status, answer) = server.admin_ask(Method::POST, maps, &object).await;
    assert!(status.as_u16() < 500, "{answer}");

    let object = json!({"metadata": {"name": "y"}, "data": {"a": ""}});
    let (status, answer) = server.admin_ask(Method::POST, maps, &object).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let keys: Vec<String> = (0..174_000).map(|n| format!("k{n}")).collect();
    let named = keys[88_000..].iter();
    let mut data: Map<String, Value> = named.map(|key| (key.clone(), "".into())).collect();
    data.insert("$retainKeys".to_owned(), json!(keys));
    let body = json!({ "data": data }).to_string();
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    let path = format!("{maps}/y");
    let sent = server.send(&admin, Method::PATCH, &path, &headers, body);
    let (status, _, answer) = sent.await;
    let text = String::from_utf8_lossy(&answer);
    assert!(status.as_u16() < 500, "{text}");
}

/// Small bodies that would take a hundred thousand times their bytes of memory, or more levels of
/// the stack than there are.
#[tokio::test]
async fn no_body_grows_by_aliases_paths_or_levels_beyond_the_memory() {
    let server = Local::new().await;
    let admin = master_client::UserInfo::admin("a");
    let maps = "/api/v1/namespaces/default/configmaps";
    let text = "x".repeat(1 << 20);
    let aliases: Vec<String> = (0..100_000).map(|n| format!("  k{n}: *a\n")).collect();
    let aliases = aliases.concat();
    let yaml = format!("metadata: {{name: x}}\ndata:\n  k: &a {text}\n{aliases}");
    let headers = [("content-type", "application/yaml")];
    let sent = server.send(&admin, Method::POST, maps, &headers, yaml);
    assert_eq!(sent.await.0, StatusCode::BAD_REQUEST);

    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = json!({"spec": {"user": "u", "extra": {text: vec![1; 200_000]}}});
    let (status, answer) = server.admin_ask(Method::POST, reviews, &review).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(answer.to_string().len() < 200_000);

    let object = json!({"metadata": {"name": "y"}});
    let (status, answer) = server.admin_ask(Method::POST, maps, &object).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let level = (0..90).fold(json!(0), |inner, _| json!({ "a": inner }));
    // Each begins where the one before ends.
    let deeper = |n: usize| {
        let path = format!("/d{}", "/a".repeat(90 * n));
        json!({"op": "add", "path": path, "value": level})
    };
    let body = json!((0..170).map(deeper).collect::<Vec<_>>()).to_string();
    let headers = [("content-type", "application/json-patch+json")];
    let path = format!("{maps}/y");
    let sent = server.send(&admin, Method::PATCH, &path, &headers, body);
    assert_eq!(sent.await.0, StatusCode::UNPROCESSABLE_ENTITY);
}

/// Each of these lists fits a body. An answer that compares each element with each would take
/// minutes.
#[tokio::test]
async fn long_lists_are_taken_or_refused_without_comparing_each_with_each() {
    const COUNT: usize = 40_000;
    let server = Local::new().await;
    let all = |one: &dyn Fn(usize) -> Value| (0..COUNT).map(one).collect::<Vec<Value>>();
    let metadata = |more: Value| {
        let mut metadata = json!({"generateName": "x-"});
        metadata
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        metadata
    };
    let owners =
        all(&|n| json!({"apiVersion": "v1", "kind": "k", "name": "n", "uid": n.to_string()}));
    let maps = "/api/v1/namespaces/default/configmaps";
    let object = json!({ "metadata": metadata(json!({ "ownerReferences": owners })) });
    let (status, answer) = server.admin_ask(Method::POST, maps, &object).await;
    assert!(status.as_u16() < 500, "{answer}");

    let pods = "/api/v1/namespaces/default/pods";
    let keys = all(&|n| json!({"key": format!("k{n}"), "operator": "Exists"}));
    let spread = all(
        &|n| json!({"topologyKey": format!("k{n}"), "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}),
    );
    let mounts = all(&|n| json!({"name": "v", "mountPath": format!("/{n}")}));
    let devices = all(&|n| json!({"name": format!("d{n}"), "devicePath": "/d"}));
    let texts = |letter: &str| all(&|n| format!("{letter}{n}").into());
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = json!({"topologyKey": "k", "labelSelector": {"matchExpressions": keys},
        "matchLabelKeys": texts("a"), "mismatchLabelKeys": texts("b")});
    for (place, lists) in [
        ("/spec", json!({ "tolerations": keys })),
        ("/spec", json!({ "topologySpreadConstraints": spread })),
        (
            "/spec",
            json!({"affinity": {"podAffinity": {required: [term]}}}),
        ),
        (
            "/spec/containers/0",
            json!({ "volumeMounts": mounts[..30_000], "volumeDevices": devices[..30_000] }),
        ),
    ] {
        let container = json!({"name": "a", "image": "i"});
        let mut pod = json!({"metadata": metadata(json!({})), "spec": {"containers": [container]}});
        let into = pod.pointer_mut(place).unwrap().as_object_mut().unwrap();
        into.extend(lists.as_object().unwrap().clone());
        let (status, made) = server.admin_ask(Method::POST, pods, &pod).await;
        assert!(status.as_u16() < 500, "{made}");
        if let Some(name) = made
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .filter(|_| status.is_success())
        {
            let mut changed = made.clone();
            if let Some(list) = changed
                .pointer_mut("/spec/tolerations")
                .and_then(Value::as_array_mut)
            {
                list.reverse();
            }
            let path = format!("{pods}/{name}");
            let (status, answer) = server.admin_ask(Method::PUT, &path, &changed).await;
            assert!(status.as_u16() < 500, "{answer}");
        }
    }

    let services = "/api/v1/namespaces/default/services";
    let ports = all(&|n| json!({"name": format!("p{n}"), "port": n + 1}));
    for spec in [
        json!({ "ports": ports }),
        json!({ "type": "NodePort", "ports": ports }),
        json!({ "ports": [{"port": 1}], "ipFamilies": texts("IPv") }),
    ] {
        let service = json!({"metadata": metadata(json!({})), "spec": spec});
        let (status, answer) = server.admin_ask(Method::POST, services, &service).await;
        assert!(status.as_u16() < 500, "{answer}");
    }
}

/// Lists with limits, one a line: collection, object, an item, the limit, how many items the object
/// has already, and the field as a refusal names it. In an item `#` is its number, and `@` two
/// parts of an address.
const LISTS: &str = r##"
/api/v1/namespaces/default/configmaps | {"metadata":{"ownerReferences":[LIST]}} | {"apiVersion":"v1","kind":"Pod","name":"n","uid":"#"} | 100 | 0 | metadata.ownerReferences
/api/v1/namespaces/default/configmaps | {"metadata":{"finalizers":[LIST]}} | "example.com/f#" | 1000 | 0 | metadata.finalizers
/api/v1/namespaces/default/pods | {"spec":{"tolerations":[{"operator":"Exists"},LIST]}} | {"key":"k#","operator":"Exists"} | 1000 | 1 | spec.tolerations
/api/v1/namespaces/default/pods | {"spec":{"topologySpreadConstraints":[LIST]}} | {"topologyKey":"k#","maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway"} | 100 | 0 | spec.topologySpreadConstraints
/api/v1/namespaces/default/pods | {"spec":{"topologySpreadConstraints":[{"topologyKey":"k","maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway","labelSelector":{},"matchLabelKeys":[LIST]}]}} | "k#" | 100 | 0 | spec.topologySpreadConstraints[0].matchLabelKeys
/api/v1/namespaces/default/pods | {"spec":{"volumes":[LIST]}} | {"name":"v#","emptyDir":{}} | 1000 | 0 | spec.volumes
/api/v1/namespaces/default/pods | {"spec":{"containers":[LIST]}} | {"name":"c#","image":"i"} | 1000 | 0 | spec.containers
/api/v1/namespaces/default/pods | {"spec":{"initContainers":[LIST]}} | {"name":"c#","image":"i"} | 1000 | 0 | spec.initContainers
/api/v1/namespaces/default/pods | {"spec":{"hostAliases":[LIST]}} | {"ip":"10.1.@","hostnames":["a"]} | 1000 | 0 | spec.hostAliases
/api/v1/namespaces/default/pods | {"spec":{"imagePullSecrets":[LIST]}} | {"name":"s#"} | 1000 | 0 | spec.imagePullSecrets
/api/v1/namespaces/default/pods | {"spec":{"readinessGates":[LIST]}} | {"conditionType":"example.com/g#"} | 1000 | 0 | spec.readinessGates
/api/v1/namespaces/default/pods | {"spec":{"schedulingGates":[LIST]}} | {"name":"example.com/g#"} | 1000 | 0 | spec.schedulingGates
/api/v1/namespaces/default/pods | {"spec":{"resourceClaims":[LIST]}} | {"name":"r#","resourceClaimName":"c"} | 1000 | 0 | spec.resourceClaims
/api/v1/namespaces/default/pods | {"spec":{"securityContext":{"sysctls":[LIST]}}} | {"name":"net.s#","value":"1"} | 1000 | 0 | spec.securityContext.sysctls
/api/v1/namespaces/default/pods | {"spec":{"securityContext":{"supplementalGroups":[LIST]}}} | # | 1000 | 0 | spec.securityContext.supplementalGroups
/api/v1/namespaces/default/pods | {"spec":{"containers":[{"name":"a","image":"i","ports":[LIST]}]}} | {"containerPort":#} | 1000 | 0 | spec.containers[*].ports
/api/v1/namespaces/default/pods | {"spec":{"containers":[{"name":"a","image":"i","env":[LIST]}]}} | {"name":"E#","value":"v"} | 10000 | 0 | spec.containers[0].env
/api/v1/namespaces/default/pods | {"spec":{"containers":[{"name":"a","image":"i","envFrom":[LIST]}]}} | {"configMapRef":{"name":"m#"}} | 1000 | 0 | spec.containers[0].envFrom
/api/v1/namespaces/default/pods | {"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"a","image":"i","volumeMounts":[LIST]}]}} | {"name":"v","mountPath":"/m#"} | 1000 | 0 | spec.containers[0].volumeMounts
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[LIST]}}}} | {"topologyKey":"k#","labelSelector":{}} | 100 | 0 | spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[LIST]}}}} | {"weight":1,"podAffinityTerm":{"topologyKey":"k#","labelSelector":{}}} | 100 | 0 | spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[LIST]}}}} | {"weight":1,"preference":{"matchExpressions":[{"key":"k#","operator":"Exists"}]}} | 100 | 0 | spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[LIST]}}}}} | {"matchFields":[{"key":"metadata.name","operator":"In","values":["n#"]}]} | 1000 | 0 | spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"k","namespaces":[LIST]}]}}}} | "n#" | 1000 | 0 | spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"k","labelSelector":{},"matchLabelKeys":[LIST]}]}}}} | "k#" | 100 | 0 | spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys
/api/v1/namespaces/default/pods | {"spec":{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"k","labelSelector":{},"mismatchLabelKeys":[LIST]}]}}}} | "k#" | 100 | 0 | spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].mismatchLabelKeys
/api/v1/namespaces/default/services | {"spec":{"ports":[LIST]}} | {"name":"p#","port":#} | 1000 | 0 | spec.ports
/api/v1/namespaces/default/services | {"spec":{"type":"NodePort","ports":[LIST]}} | {"name":"p#","port":#} | 1000 | 0 | spec.ports
/api/v1/namespaces/default/services | {"spec":{"type":"LoadBalancer","ports":[{"port":1}],"loadBalancerSourceRanges":[LIST]}} | "10.@.0/24" | 1000 | 0 | spec.loadBalancerSourceRanges
/api/v1/namespaces/default/endpoints | {"subsets":[LIST]} | {"addresses":[{"ip":"10.1.@"}]} | 1000 | 0 | subsets
/api/v1/namespaces/default/endpoints | {"subsets":[{"addresses":[LIST]}]} | {"ip":"10.1.@"} | 10000 | 0 | subsets[0].addresses
/api/v1/namespaces/default/endpoints | {"subsets":[{"addresses":[{"ip":"10.1.0.1"}],"ports":[LIST]}]} | {"name":"p#","port":#} | 1000 | 0 | subsets[0].ports
/apis/discovery.k8s.io/v1/namespaces/default/endpointslices | {"addressType":"IPv4","endpoints":[],"ports":[LIST]} | {"name":"p#","port":#} | 20000 | 0 | ports
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{},"ingress":[LIST]}} | {} | 1000 | 0 | spec.ingress
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{},"egress":[{"to":[LIST]}]}} | {"ipBlock":{"cidr":"10.1.@/32"}} | 1000 | 0 | spec.egress[0].to
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{},"ingress":[{"ports":[LIST]}]}} | {"port":#} | 1000 | 0 | spec.ingress[0].ports
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":[LIST]}}]}]}} | "10.1.@/32" | 1000 | 0 | spec.ingress[0].from[0].ipBlock.except
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{"matchExpressions":[LIST]}}} | {"key":"k#","operator":"Exists"} | 1000 | 0 | spec.podSelector.matchExpressions
/apis/networking.k8s.io/v1/namespaces/default/networkpolicies | {"spec":{"podSelector":{"matchExpressions":[{"key":"k","operator":"In","values":[LIST]}]}}} | "v#" | 10000 | 0 | spec.podSelector.matchExpressions[0].values
/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers | {"spec":{"maxReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"d"},"metrics":[LIST]}} | {"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":#}}} | 100 | 0 | spec.metrics
/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers | {"spec":{"maxReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"d"},"behavior":{"scaleUp":{"policies":[LIST]}}}} | {"type":"Pods","value":#,"periodSeconds":15} | 100 | 0 | spec.behavior.scaleUp.policies
/apis/apps/v1/namespaces/default/statefulsets | {"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i"}]}},"volumeClaimTemplates":[LIST]}} | {"metadata":{"name":"c#"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}} | 1000 | 0 | spec.volumeClaimTemplates
/api/v1/namespaces/default/persistentvolumeclaims | {"spec":{"resources":{"requests":{"storage":"1Gi"}},"accessModes":[LIST]}} | "ReadWriteOnce" | 100 | 0 | spec.accessModes
/api/v1/nodes | {"spec":{"taints":[{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"},LIST]}} | {"key":"k#","effect":"NoSchedule"} | 1000 | 1 | metadata.taints
/apis/node.k8s.io/v1/runtimeclasses | {"handler":"h","scheduling":{"tolerations":[LIST]}} | {"key":"k#","operator":"Exists"} | 1000 | 0 | scheduling.tolerations
/apis/storage.k8s.io/v1/storageclasses | {"provisioner":"example.com/p","allowedTopologies":[LIST]} | {"matchLabelExpressions":[{"key":"k","values":["v#"]}]} | 1000 | 0 | allowedTopologies
/apis/storage.k8s.io/v1/csinodes | {"spec":{"drivers":[LIST]}} | {"name":"d#.example.com","nodeID":"n"} | 1000 | 0 | spec.drivers
/apis/authentication.k8s.io/v1/tokenreviews | {"spec":{"token":"t","audiences":[LIST]}} | "a#" | 1000 | 0 | spec.audiences
/apis/authorization.k8s.io/v1/subjectaccessreviews | {"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"},"groups":[LIST]}} | "g#" | 1000 | 0 | spec.groups
"##;

/// An object of a line of [`LISTS`] whose list has so many items.
fn object_of(body: &str, item: &str, items: usize) -> Value {
    let item = |number: usize| {
        let parts = format!("{}.{}", number / 250, number % 250 + 1);
        item.replace('#', &number.to_string()).replace('@', &parts)
    };
    let items: Vec<String> = (1..=items).map(item).collect();
    let mut object: Value = serde_json::from_str(&body.replace("LIST", &items.join(","))).unwrap();
    object["metadata"]["generateName"] = "x-".into();
    object
}

/// A limit above what anybody uses, which the answer names.
#[tokio::test]
async fn lists_that_are_compared_or_multiplied_are_taken_up_to_their_limits() {
    let server = Local::new().await;
    for line in LISTS.trim().lines() {
        let row: Vec<&str> = line.split(" | ").collect();
        let [path, body, item, limit, known, field] = row.as_slice() else {
            unreachable!("{line}")
        };
        let [limit, known] = [limit, known].map(|number| number.parse::<usize>().unwrap());
        let at = format!("{path}?dryRun=All");
        for (count, expected) in [
            (limit, StatusCode::CREATED),
            (limit + 1, StatusCode::UNPROCESSABLE_ENTITY),
        ] {
            let mut object = object_of(body, item, count - known);
            if path.ends_with("/pods") {
                let spec = object["spec"].as_object_mut().unwrap();
                let one = json!([{"name": "main", "image": "i"}]);
                spec.entry("containers").or_insert(one);
                spec.insert("automountServiceAccountToken".to_owned(), false.into());
            }
            let (status, answer) = server.admin_ask(Method::POST, &at, &object).await;
            let text = answer["message"].as_str().unwrap_or_default();
            assert_eq!(status, expected, "{count} of {field}: {text}");
            let told = format!("{field}: Too many: {count}: must have at most {limit} items");
            assert_eq!(text.contains(&told), count > limit, "{told}: {text}");
        }
    }
}
