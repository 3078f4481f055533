//! The node's ranges of pod addresses: the master writes them into the Node (`spec.podCIDRs`), and
//! the pod network has them from there. Pods that need an address wait for them; pods on the
//! machine's network don't.

use crate::shared::Shared;
use agent_api::{ApiError, get};
use agent_cluster::ranges;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_model::format::Cidr;
use std::sync::Arc;
use std::time::Duration;

/// How often the Node is asked for while it has none.
const HASTE: Duration = Duration::from_millis(500);
/// How often it is looked at afterwards: ranges change only with a Node that is made anew.
const PERIOD: Duration = Duration::from_secs(60);

/// Hands the ranges on, for ever.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let mut known = Vec::new();
    let mut told = String::new();
    loop {
        match look(&shared).await {
            Ok(ranges) if ranges.is_empty() || ranges == known => {}
            Ok(ranges) => match give(&shared, &ranges).await {
                Ok(()) => {
                    let list: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                    tracing::info!(ranges = list.join(","), "applied the node's pod CIDRs");
                    known = ranges;
                }
                Err(reason) if reason != told => {
                    tracing::error!(reason, "cannot apply the node's pod CIDRs");
                    told = reason;
                }
                Err(_) => {}
            },
            Err(reason) => tracing::debug!(reason, "cannot read the node's pod CIDRs"),
        }
        tokio::time::sleep(if known.is_empty() { HASTE } else { PERIOD }).await;
    }
}

async fn look(shared: &Shared) -> Result<Vec<Cidr>, String> {
    let path = format!("/api/v1/nodes/{}", shared.config.node_name);
    let node: Node = get(&*shared.api, path)
        .await
        .map_err(|error: ApiError| error.chain())?;
    ranges(&node)
}

async fn give(shared: &Shared, ranges: &[Cidr]) -> Result<(), String> {
    let (sandboxes, ranges) = (shared.sandboxes.clone(), ranges.to_vec());
    tokio::task::spawn_blocking(move || sandboxes.give_ranges(&ranges))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| error.chain())
}
