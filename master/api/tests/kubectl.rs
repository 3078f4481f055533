//! An unmodified kubectl against the listener: what people do every day.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod common;

use common::kubectl::Cluster;
use master_api::UserInfo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  hostNetwork: true
  containers:
  - {name: c, image: 'reg/x:1', env: [{name: A, value: '1'}]}
";

#[tokio::test]
async fn apply_get_and_delete() {
    let cluster = Cluster::start().await;
    cluster.says("apply -f -", POD, &["pod/web created"]).await;
    cluster.says("apply -f -", POD, &["pod/web unchanged"]).await;
    cluster.says("diff -f -", POD, &[]).await;
    let changed = POD.replace("reg/x:1", "reg/x:2").replace("app: web", "app: web, tier: front");
    cluster.says("apply -f -", &changed, &["pod/web configured"]).await;
    cluster
        .says("get pod web -o jsonpath={.spec.containers[0].image}/{.metadata.labels.tier}", "", &["reg/x:2/front"])
        .await;
    cluster.says("apply -f -", POD, &["configured"]).await;
    let labels = cluster.says("get pod web -o jsonpath={.metadata.labels}", "", &["app"]).await;
    assert!(!labels.contains("tier"), "what was applied and is gone from the file goes: {labels}");
    cluster.says("get pods", "", &["NAME   READY   STATUS    RESTARTS   AGE", "web    0/1     Pending   0"]).await;
    cluster.says("get pods -o wide", "", &["NOMINATED NODE", "READINESS GATES"]).await;
    cluster.says("get pods -l app=web --field-selector status.phase=Pending -A -o name", "", &["pod/web"]).await;
    cluster
        .says("get pod web -o yaml", "", &["restartPolicy: Always", "kubectl.kubernetes.io/last-applied-configuration"])
        .await;
    cluster.says("describe pod web", "", &["Name:             web", "QoS Class:                   BestEffort"]).await;
    cluster.says("delete pod web", "", &["pod \"web\" deleted"]).await;
    cluster.refuses("get pod web", "", "Error from server (NotFound): pods \"web\" not found").await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn wrong_manifests_are_explained() {
    let cluster = Cluster::start().await;
    cluster
        .refuses("apply -f -", &POD.replace("hostNetwork", "hostNetwerk"), "unknown field \"spec.hostNetwerk\"")
        .await;
    let bad = POD.replace("image: 'reg/x:1'", "image: ''").replace("name: web", "name: Web");
    cluster.refuses("apply -f -", &bad, "* spec.containers[0].image: Required value").await;
    cluster.refuses("apply -f -", &bad, "* metadata.name: Invalid value: \"Web\"").await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn nodes_are_labelled_tainted_and_cordoned() {
    let cluster = Cluster::start().await;
    let node = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {node-role.kubernetes.io/control-plane: ''}}
";
    cluster.says("create -f -", node, &["node/n1 created"]).await;
    cluster.says("label node n1 a=b", "", &["labeled"]).await;
    cluster.says("annotate node n1 c=d", "", &["annotated"]).await;
    cluster.says("taint node n1 x=y:NoSchedule", "", &["tainted"]).await;
    cluster.says("cordon n1", "", &["cordoned"]).await;
    cluster.says("get nodes", "", &["SchedulingDisabled", "control-plane"]).await;
    cluster.says("describe node n1", "", &["x=y:NoSchedule", "Unschedulable:      true"]).await;
    cluster.says("uncordon n1", "", &["uncordoned"]).await;
    cluster.says("taint node n1 x-", "", &["untainted"]).await;
    cluster.refuses("label node n1 bad_key/=x", "", "metadata.labels: Invalid value: \"bad_key/\"").await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn the_projects_kinds_read_well() {
    let cluster = Cluster::start().await;
    let machine = "
apiVersion: pratique.dev/v1alpha1
kind: Machine
metadata: {name: m1}
spec: {role: worker, nodeName: worker-1}
";
    cluster.says("apply -f -", machine, &["machine.pratique.dev/m1 created"]).await;
    cluster.says("apply -f -", &machine.replace("worker-1", "worker-2"), &["configured"]).await;
    let status = json!({"status": {"state": "Untrusted", "reason": "IMAGE_UNKNOWN", "message": "why"}});
    let path = "/apis/pratique.dev/v1alpha1/machines/m1/status";
    let admin = UserInfo::admin("a");
    let (code, error) = cluster.server.local.ask(&admin, http::Method::PATCH, path, &status).await;
    assert_eq!(code.as_u16(), 200, "{error}");
    cluster
        .says(
            "get machines",
            "",
            &["NAME   STATE       ROLE     NODE       IMAGE    REASON", "Untrusted   worker   worker-2"],
        )
        .await;
    cluster.says("describe machine m1", "", &["Reason:", "IMAGE_UNKNOWN"]).await;
    cluster.says("explain machine.spec.nodeName", "", &["Name of its Node"]).await;
    cluster
        .refuses("apply -f -", &machine.replace("role: worker", "role: boss"), "spec.role: Unsupported value: \"boss\"")
        .await;
    for kind in ["imagereleases", "nodeattestations", "certificatepolicies"] {
        cluster.says(&format!("get {kind}"), "", &["No resources found"]).await;
    }
    cluster.server.stop().await;
}

#[tokio::test]
async fn discovery_and_documentation() {
    let cluster = Cluster::start().await;
    cluster.says("api-resources", "", &["pods                                po", "machines", "leases"]).await;
    cluster.says("api-versions", "", &["v1", "pratique.dev/v1alpha1", "certificates.k8s.io/v1"]).await;
    cluster.says("explain pod.spec.containers.env", "", &["FIELD: env <[]EnvVar>", "environment variables"]).await;
    cluster.says("explain pod --recursive", "", &["terminationGracePeriodSeconds	<integer>"]).await;
    cluster.says("version", "", &["Server Version: v1.36"]).await;
    cluster.says("get --raw /readyz?verbose", "", &["[+]store ok", "readyz check passed"]).await;
    cluster.says("get --raw /metrics", "", &["apiserver_request_total"]).await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn get_watch_shows_changes_as_they_come() {
    let cluster = Cluster::start().await;
    cluster.says("create -f -", POD, &["created"]).await;
    let mut watching = cluster.command(&["get", "pods", "--watch"]).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut line = async || {
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), lines.next_line()).await;
        next.expect("kubectl shows a line in time").unwrap().unwrap_or_default()
    };
    assert!(line().await.starts_with("NAME"));
    assert!(line().await.contains("Pending"));
    let running = json!({"status": {"phase": "Running"}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    let admin = UserInfo::admin("a");
    let (code, _): (_, Value) = cluster.server.local.ask(&admin, http::Method::PATCH, path, &running).await;
    assert_eq!(code.as_u16(), 200);
    assert!(line().await.contains("Running"));
    watching.kill().await.unwrap();
    cluster.server.stop().await;
}

#[tokio::test]
async fn typed_commands_create_and_approve() {
    let cluster = Cluster::start().await;
    cluster.says("create configmap cm --from-literal=a=b", "", &["configmap/cm created"]).await;
    cluster.says("get cm cm -o jsonpath={.data.a}", "", &["b"]).await;
    cluster.says("create secret generic s --from-literal=k=v", "", &["secret/s created"]).await;
    cluster.says("get secret s -o jsonpath={.data.k}", "", &["dg=="]).await;
    cluster.says("create namespace team", "", &["namespace/team created"]).await;
    cluster.says("create serviceaccount robot -n team", "", &["serviceaccount/robot created"]).await;
    cluster.says("create configmap x --from-literal=a=b --dry-run=server -o name", "", &["configmap/x"]).await;
    let request = format!(
        "
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {{name: r}}
spec: {{request: {}, signerName: example.com/s, usages: [client auth]}}
",
        common::signing_request("o")
    );
    cluster.says("create -f -", &request, &["created"]).await;
    cluster.says("certificate approve r", "", &["approved"]).await;
    cluster.says("get csr", "", &["example.com/s", "admin", "Approved"]).await;
    cluster.says("create -f -", POD, &["created"]).await;
    cluster.says("run other --image=x --restart=Never", "", &["pod/other created"]).await;
    cluster.says("delete pods --all", "", &["\"web\" deleted", "\"other\" deleted"]).await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn a_node_is_drained() {
    let cluster = Cluster::start().await;
    let node = "
apiVersion: v1
kind: Node
metadata: {name: n1}
";
    cluster.says("create -f -", node, &["created"]).await;
    let bound =
        POD.replace("hostNetwork: true", "hostNetwork: true\n  nodeName: n1\n  terminationGracePeriodSeconds: 0");
    cluster.says("create -f -", &bound, &["created"]).await;
    cluster.says("drain n1 --force --timeout=20s", "", &["evicting pod default/web", "node/n1 drained"]).await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn logs_are_shown_and_followed() {
    let cluster = Cluster::start().await;
    let kubelet = common::Kubelet::default();
    cluster.server.local.api.set_node_dialer(std::sync::Arc::new(kubelet.clone()));
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
    }});
    cluster.server.local.admin_ask(http::Method::POST, "/api/v1/nodes", &node).await;
    cluster
        .says("create -f -", &POD.replace("hostNetwork: true", "hostNetwork: true\n  nodeName: n1"), &["created"])
        .await;
    cluster.says("logs web", "", &["line 1\nline 2\n"]).await;
    cluster.says("logs web -f --tail=3 -c c", "", &["line 2"]).await;
    let asked = kubelet.asked.lock().unwrap().clone();
    assert_eq!(asked[1].1, "/containerLogs/default/web/c?follow=true&tailLines=3");
    cluster.refuses("logs web -c none", "", "container none is not valid for pod web").await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn objects_are_edited_in_every_way() {
    let cluster = Cluster::start().await;
    cluster.says("create -f -", POD, &["created"]).await;
    cluster.says("set image pod/web c=reg/x:9", "", &["image updated"]).await;
    cluster.says("patch pod web -p {\"metadata\":{\"labels\":{\"p\":\"1\"}}}", "", &["patched"]).await;
    cluster.says("patch pod web --type=merge -p {\"metadata\":{\"labels\":{\"q\":\"1\"}}}", "", &["patched"]).await;
    let operation = "[{\"op\":\"remove\",\"path\":\"/metadata/labels/q\"}]";
    cluster.says(&format!("patch pod web --type=json -p {operation}"), "", &["patched"]).await;
    let whole = cluster.says("get pod web -o json", "", &["reg/x:9"]).await;
    cluster.says("replace -f -", &whole.replace("\"p\": \"1\"", "\"p\": \"2\""), &["replaced"]).await;
    cluster.says("get pods -L p,app --show-labels", "", &["app=web,p=2"]).await;
    cluster.refuses("replace -f -", &whole, "the object has been modified").await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    let waiting = cluster.says("wait --for=condition=Ready pod/web --timeout=20s", "", &["condition met"]);
    let admin = UserInfo::admin("a");
    let patching = cluster.server.local.ask(&admin, http::Method::PATCH, path, &ready);
    let (_, (code, _)) = tokio::join!(waiting, patching);
    assert_eq!(code.as_u16(), 200);
    cluster.says("events", "", &["No events found"]).await;
    cluster.says("get all", "", &["web "]).await;
    cluster.says("delete -f - --grace-period=0 --force", POD, &["force deleted"]).await;
    cluster.server.stop().await;
}
