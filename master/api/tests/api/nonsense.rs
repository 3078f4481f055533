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
    for (place, lists) in [
        ("/spec", json!({ "tolerations": keys })),
        ("/spec", json!({ "topologySpreadConstraints": spread })),
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
    let service = json!({"metadata": metadata(json!({})), "spec": {"ports": ports}});
    let (status, answer) = server.admin_ask(Method::POST, services, &service).await;
    assert!(status.as_u16() < 500, "{answer}");
}
