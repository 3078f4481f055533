//! The service by which programs find the cluster's name server.

use crate::allocation::{create, options};
use crate::common::Local;
use http::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test]
async fn every_cluster_has_the_service_for_names_at_its_usual_address_where_that_is_free() {
    const KUBE_DNS: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
    let server = Local::with(options(&["10.96.0.0/24", "fd00:96::/112"], 30000..=32767)).await;
    let ask = |method| server.admin_ask(method, KUBE_DNS, &Value::Null);
    let (_, made) = ask(Method::GET).await;
    let both = json!(["10.96.0.10", "fd00:96::a"]);
    assert_eq!(made["spec"]["clusterIPs"], both);
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let labels = &made["metadata"]["labels"];
    assert_eq!(labels["k8s-app"], "kube-dns");
    // Nodes know it by this (`agent/proxy/src/view.rs`).
    let proxy = "service.kubernetes.io/service-proxy-name";
    assert_eq!(labels[proxy], "pratique-name-server");
    // It comes again, at another address where a service has taken its own.
    assert_eq!(ask(Method::DELETE).await.0, StatusCode::OK);
    server.api.prepare().await.unwrap();
    assert_eq!(ask(Method::GET).await.1["spec"]["clusterIPs"], both);
    assert_eq!(ask(Method::DELETE).await.0, StatusCode::OK);
    let taker = json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]});
    assert_eq!(
        create(&server, "taker", &taker).await.0,
        StatusCode::CREATED
    );
    server.api.prepare().await.unwrap();
    let (_, made) = ask(Method::GET).await;
    let given = made["spec"]["clusterIPs"].as_array().unwrap();
    assert_eq!(given.len(), 2, "{made}");
    assert_ne!(given[0], both[0]);
    // What is there stays.
    server.api.prepare().await.unwrap();
    assert_eq!(ask(Method::GET).await.1, made);
}

/// Else nobody could take the quota away.
#[tokio::test]
async fn a_master_starts_where_the_service_for_names_is_refused() {
    let server = Local::with(options(&["10.96.0.0/24"], 30000..=32767)).await;
    let quotas = "/api/v1/namespaces/kube-system/resourcequotas";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"services": "0"}}});
    let (status, made) = server.admin_ask(Method::POST, quotas, &quota).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let used = json!({"status": {"hard": {"services": "0"}, "used": {"services": "0"}}});
    let status = server
        .admin_ask(Method::PATCH, &format!("{quotas}/none/status"), &used)
        .await;
    assert_eq!(status.0, StatusCode::OK, "{}", status.1);
    let names = "/api/v1/namespaces/kube-system/services/kube-dns";
    let (status, _) = server.admin_ask(Method::DELETE, names, &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    server.api.prepare().await.unwrap();
    let (status, _) = server.admin_ask(Method::GET, names, &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
