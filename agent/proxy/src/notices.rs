//! Records events on Services that this node does not serve for lack of room.

use crate::left_out::LeftOut;
use crate::view::{Key, Service, View};
use agent_api::events::Recorder;
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use std::time::Duration;
use tokio::sync::watch;

/// The event's reason.
const REASON: &str = "ServiceRulesLimitExceeded";
/// Least time between two rounds of events: a namespace at the edge of its share may be left out
/// again and again.
const PAUSE: Duration = Duration::from_secs(10);

/// Records an event on the Services that take most of the packet filter, each time that their
/// namespace is left out, until `left_out` has no sender or this is dropped. `node`: this node's
/// name.
pub async fn tell(
    mut left_out: watch::Receiver<LeftOut>,
    view: View,
    recorder: Recorder,
    node: String,
) {
    let mut before = LeftOut::default();
    loop {
        let now = left_out.borrow_and_update().clone();
        let known = view.now();
        for key in now.new_since(&before) {
            // A Service that was deleted meanwhile needs no event.
            if let Some(service) = known.services.as_ref().and_then(|all| all.get(key)) {
                recorder.record(reference(key, service), true, REASON, &message(key, &node));
            }
        }
        if now != before {
            tokio::time::sleep(PAUSE).await;
        }
        before = now;
        // Cancel-safe: it only waits.
        if left_out.changed().await.is_err() {
            return;
        }
    }
}

/// Always the same of a namespace and a node, so that repetitions are counted.
fn message(key: &Key, node: &str) -> String {
    format!(
        "node {node} does not serve this Service: the Services of namespace {} exceed its share of the nftables table, or of the memory for watched objects; use fewer Services, or Services with fewer ports",
        key.namespace
    )
}

fn reference(key: &Key, service: &Service) -> ObjectReference {
    ObjectReference {
        kind: Some("Service".to_owned()),
        api_version: Some("v1".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(service.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
#[path = "notices_tests.rs"]
mod tests;
