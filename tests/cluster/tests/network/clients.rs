//! Programs of pods that use the API as programs in a cluster do: by its Service, with the pod's
//! token and the cluster's root.

use crate::api::{IMAGE, PODS};
use crate::cluster::{Cluster, Machine, eventually};
use http::Method;
use serde_json::{Value, json};
use tests_support::programs::{PACKED, packed};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

/// Lets pods of the namespace ask and answer by config maps, and do nothing else.
fn give_rights(cluster: &Cluster) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch", "create"]}]);
    let account = json!([{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "answers"});
    let meta = json!({"name": "answers"});
    let api = &cluster.api;
    api.create(
        &format!("{RBAC}/roles"),
        &json!({"metadata": meta, "rules": rules}),
    );
    api.create(
        &format!("{RBAC}/rolebindings"),
        &json!({"metadata": meta, "subjects": account, "roleRef": role}),
    );
}

/// A pod with a network of its own that runs the client. Nothing in its manifest says where the API
/// is.
fn client(cluster: &Cluster, machine: &Machine, name: &str) {
    let container = json!({
        "name": "main", "image": IMAGE, "command": packed(&[name]),
        "volumeMounts": [{"name": "program", "mountPath": PACKED, "readOnly": true}],
    });
    let path = cluster.program().display().to_string();
    let spec = json!({
        "nodeName": machine.node, "restartPolicy": "Never", "containers": [container],
        "volumes": [{"name": "program", "hostPath": {"path": path, "type": "Directory"}}],
    });
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    cluster.api.create(PODS, &pod);
}

/// Waits until a pod is in a phase.
fn is(cluster: &Cluster, pod: &str, phase: &str) {
    let path = format!("{PODS}/{pod}");
    eventually(&format!("{pod} to be {phase}"), || {
        let found = cluster.api.ask(Method::GET, &path, &Value::Null).ok()?;
        (found["status"]["phase"] == phase).then_some(())
    });
}

pub(crate) fn kube_rs_in_pods_of_each_machine_uses_the_api_by_its_service(cluster: &Cluster) {
    give_rights(cluster);
    let api = &cluster.api;
    api.create(MAPS, &json!({"metadata": {"name": "question"}}));
    let names = ["asks-1", "asks-2", "asks-3"];
    for (name, machine) in names.iter().zip(&cluster.machines) {
        client(cluster, machine, name);
    }
    for name in names {
        is(cluster, name, "Running");
    }
    let question = format!("{MAPS}/question");
    let word = json!({"data": {"word": "hello"}});
    api.ask(Method::PATCH, &question, &word).unwrap();
    let user = "system:serviceaccount:default:default";
    let wanted = json!({"secrets": "403", "user": user, "word": "hello"});
    for name in names {
        is(cluster, name, "Succeeded");
        let path = format!("{MAPS}/{name}");
        let answer = api.ask(Method::GET, &path, &Value::Null).unwrap();
        assert_eq!(answer["data"], wanted, "{name}");
    }
}
