//! The service by which programs find the cluster's name server.

use crate::allocation::{create, options};
use crate::common::Local;
use crate::services_of_all::over_a_store;
use http::{Method, StatusCode};
use master_api::ApiServer;
use serde_json::{Value, json};

const KUBE_DNS: &str = "/api/v1/namespaces/kube-system/services/kube-dns";

#[tokio::test]
async fn every_cluster_has_the_service_for_names_at_its_usual_address_where_that_is_free() {
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
    // It comes again, and what is there stays.
    assert_eq!(ask(Method::DELETE).await.0, StatusCode::OK);
    server.api.prepare().await.unwrap();
    let (_, made) = ask(Method::GET).await;
    assert_eq!(made["spec"]["clusterIPs"], both);
    server.api.prepare().await.unwrap();
    assert_eq!(ask(Method::GET).await.1, made);
}

/// As where the cluster's range is configured anew.
#[tokio::test]
async fn the_service_for_names_has_another_address_where_a_service_has_its_own() {
    let six = "fd00:96::/112";
    let (server, store) = over_a_store(options(&["10.96.0.0/24", six], 30000..=32767)).await;
    let taker = json!({"clusterIP": "10.96.0.138", "ports": [{"port": 80}]});
    let (status, made) = create(&server, "taker", &taker).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let gone = server.admin_ask(Method::DELETE, KUBE_DNS, &Value::Null);
    assert_eq!(gone.await.0, StatusCode::OK);
    let next = ApiServer::new(store, options(&["10.96.0.128/25", six], 30000..=32767));
    next.prepare().await.unwrap();
    let (status, made) = server.admin_ask(Method::GET, KUBE_DNS, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    let given = made["spec"]["clusterIPs"].as_array().unwrap();
    assert_eq!(given.len(), 2, "{made}");
    assert_ne!(given[0], "10.96.0.138");
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
    let (status, _) = server
        .admin_ask(Method::DELETE, KUBE_DNS, &Value::Null)
        .await;
    assert_eq!(status, StatusCode::OK);
    server.api.prepare().await.unwrap();
    let (status, _) = server.admin_ask(Method::GET, KUBE_DNS, &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
