//! Node ports in updates of a service.

use crate::allocation::{create, options};
use crate::common::Local;
use http::{Method, StatusCode};
use serde_json::json;

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test]
async fn an_update_gives_both_protocols_of_a_port_another_node_port() {
    let server = Local::with(options(&["10.96.0.0/24"], 30000..=32767)).await;
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol, "nodePort": 30_053});
    let spec = json!({"type": "NodePort", "ports": [port("t", "TCP"), port("u", "UDP")]});
    let (status, mut made) = create(&server, "a", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    for number in 0..2_usize {
        made["spec"]["ports"][number]["nodePort"] = json!(30_054);
    }
    let (status, moved) = server
        .admin_ask(Method::PUT, &format!("{SERVICES}/a"), &made)
        .await;
    assert_eq!(status, StatusCode::OK, "{moved}");
    for number in 0..2_usize {
        assert_eq!(moved["spec"]["ports"][number]["nodePort"], 30_054);
    }
    let other = |node: u16| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": node}]});
    assert_eq!(
        create(&server, "b", &other(30_053)).await.0,
        StatusCode::CREATED,
        "the port before is free again"
    );
    assert_eq!(
        create(&server, "c", &other(30_054)).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}
