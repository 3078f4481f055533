//! Objects with random content: accepted or refused, never an internal error.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::Method;
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
