//! A machine with privileged pods: admitted only by a rule that allows it, shown wherever a person
//! looks, and refused at the next proof once the rule no longer allows it.

use crate::lab::{Lab, identity};
use config_kube::MachineState;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_protocol::Code;
use serde_json::json;

pub(crate) async fn machines_with_privileged_pods_join_only_where_the_rule_allows_them() {
    let lab = Lab::start_on("", "30m", |data| {
        let file = data.with_file_name("cluster.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let allowed = text.replace(
            "config = { measured = true,",
            "config = { privileged_pods = \"allow\", measured = true,",
        );
        assert_ne!(text, allowed, "the rule of the lab has another form");
        std::fs::write(file, allowed).unwrap();
    })
    .await;
    let label = |node: Node| {
        node.metadata
            .labels
            .unwrap_or_default()
            .remove("pratique.dev/privileged-pods")
    };
    let plain = lab.machine().await;
    lab.join(&plain).await.accepted();
    assert!(!lab.status(&plain.node).await.privileged_pods);
    assert_eq!(label(lab.site.get(&plain.node).await), None);

    let mut machine = lab.machine().await;
    machine.claims.privileged_pods = true;
    let certificates = lab.join(&machine).await.accepted();
    let status = lab.status(&machine.node).await;
    assert!(
        status.privileged_pods
            && status
                .checks
                .iter()
                .any(|check| check.ok && check.name == "privileged pods")
    );
    assert_eq!(
        label(lab.site.get(&machine.node).await).as_deref(),
        Some("true")
    );

    lab.change_rule(|rule| rule["config"]["privilegedPods"] = json!("refuse"))
        .await;
    let identity = identity(&machine, &certificates);
    lab.until(Code::PrivilegedPods, || lab.renew(&machine, &identity))
        .await;
    assert_eq!(
        lab.status(&machine.node).await.state,
        MachineState::Untrusted
    );
    lab.site.stop();
}
