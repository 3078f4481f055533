//! `wait` and `get --watch`: changes while kubectl runs.

use super::{POD, play};
use crate::common::kubectl::Cluster;
use master_client::UserInfo;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test]
async fn a_wait_ends_at_once_if_its_condition_holds() {
    play(&[("pod", POD)], WAIT).await;
}

const WAIT: &str = "
$ create -f - < pod
$ wait --for=create pod/web --timeout=10s
    pod/web condition met
$ wait --for=jsonpath={.status.phase}=Pending pods -l app=web --timeout=10s
    pod/web condition met
$ wait --for=jsonpath={.status.qosClass} pods --all
    pod/web condition met
! wait --for=condition=Ready pod/web --timeout=100ms
    timed out waiting for the condition on pods/web
$ delete pod web
$ wait --for=delete pod/web --timeout=10s
! wait --for=condition=Ready pod/web --timeout=10s
    pods \"web\" not found
";

#[tokio::test]
async fn a_change_is_waited_for() {
    let cluster = Cluster::start().await;
    cluster.says("create -f -", POD, &["created"]).await;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let path = "/api/v1/namespaces/default/pods/web";
    let (status, admin) = (format!("{path}/status"), UserInfo::admin("a"));
    let local = &cluster.server.local;
    let (_, (code, _)) = tokio::join!(
        cluster.says(
            "wait --for=condition=Ready pod/web --timeout=20s",
            "",
            &["condition met"]
        ),
        local.ask(&admin, http::Method::PATCH, &status, &ready),
    );
    assert_eq!(code.as_u16(), 200);
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    local.ask(&admin, http::Method::PATCH, path, &held).await;
    let release = async {
        let gone = async || {
            let (_, pod) = local
                .ask(&admin, http::Method::GET, path, &json!(null))
                .await;
            pod["metadata"]["deletionTimestamp"].is_string()
        };
        while !gone().await {
            tokio::task::yield_now().await;
        }
        local
            .ask(
                &admin,
                http::Method::PATCH,
                path,
                &json!({"metadata": {"finalizers": null}}),
            )
            .await
    };
    tokio::join!(
        cluster.says("delete pod web --timeout=20s", "", &["deleted"]),
        release
    );
    cluster.refuses("get pod web", "", "not found").await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn changes_are_shown_as_they_come() {
    let cluster = Cluster::start().await;
    cluster.says("create -f -", POD, &["created"]).await;
    let mut watching = cluster
        .command(&["get", "pods", "--watch", "--output-watch-events"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut line = async || {
        let next =
            tokio::time::timeout(std::time::Duration::from_secs(120), lines.next_line()).await;
        next.expect("kubectl shows a line in time")
            .unwrap()
            .unwrap_or_default()
    };
    assert!(line().await.starts_with("EVENT"));
    assert!(line().await.contains("Pending"));
    let running = json!({"status": {"phase": "Running"}});
    let admin = UserInfo::admin("a");
    let path = "/api/v1/namespaces/default/pods/web/status";
    let (code, _) = cluster
        .server
        .local
        .ask(&admin, http::Method::PATCH, path, &running)
        .await;
    assert_eq!(code.as_u16(), 200);
    let shown = line().await;
    assert!(
        shown.starts_with("MODIFIED") && shown.contains("Running"),
        "{shown}"
    );
    cluster.says("delete pod web", "", &["deleted"]).await;
    let shown = line().await;
    assert!(shown.starts_with("DELETED"), "{shown}");
    watching.kill().await.unwrap();
    cluster.server.stop().await;
}
