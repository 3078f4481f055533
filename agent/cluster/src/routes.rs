//! Follows other nodes into routes to their pods.

use crate::{Peer, Sandboxes, Unreached};
use agent_proxy::{Known, Node, View};
use config_errors::chain;
use std::sync::Arc;
use std::time::Duration;

/// Pause after the kernel refused, and before nodes that are not reached are tried anew.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_ROUTES: Duration = Duration::from_secs(10);

/// Keeps routes to other nodes' pods over the machine's segment, until it is dropped.
///
/// `own`: this node's name.
pub async fn keep_routes(sandboxes: Arc<Sandboxes>, view: View, own: String) {
    let mut changes = view.changes();
    let mut known: Vec<Peer> = Vec::new();
    let mut logged: Vec<Unreached> = Vec::new();
    loop {
        let peers = peers(&changes.borrow_and_update(), &own);
        if let Some(peers) = peers.filter(|peers| *peers != known || !logged.is_empty()) {
            let (sandboxes, given) = (Arc::clone(&sandboxes), peers.clone());
            let outcome = tokio::task::spawn_blocking(move || sandboxes.give_peers(&given)).await;
            match outcome {
                Ok(Ok(unreached)) => {
                    for one in unreached.iter().filter(|one| !logged.contains(one)) {
                        let (node, reason) = (&one.name, &one.reason);
                        tracing::warn!(node, reason, "no route to a node's pods");
                    }
                    (known, logged) = (peers, unreached);
                }
                Ok(Err(error)) => {
                    tracing::error!(
                        error = error.chain(),
                        "cannot set routes to other nodes' pods; trying again"
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => tracing::error!(error = chain(&error), "the route task panicked"),
            }
        }
        // Cancel-safe: both arms only wait.
        tokio::select! {
            outcome = changes.changed() => if outcome.is_err() {
                return;
            },
            () = tokio::time::sleep(RETRY_ROUTES), if !logged.is_empty() => {}
        }
    }
}

/// The other nodes; none before they are known.
fn peers(known: &Known, own: &str) -> Option<Vec<Peer>> {
    let others = known
        .nodes
        .as_ref()?
        .iter()
        .filter(|(name, _)| *name != own);
    let peer = |(name, node): (&String, &Arc<Node>)| Peer {
        name: name.clone(),
        addresses: node.addresses.clone(),
        ranges: node.ranges.clone(),
    };
    Some(others.map(peer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_other_nodes_are_peers() {
        let node = |range: &str| {
            let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": [range]},
                "status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.1"}]}});
            Arc::new(Node::read(serde_json::from_value(node).unwrap()))
        };
        let mut known = Known::default();
        assert_eq!(peers(&known, "a"), None);
        let nodes = [("a", "10.1.0.0/24"), ("b", "10.1.1.0/24")];
        known.nodes = Some(
            nodes
                .map(|(name, range)| (name.to_owned(), node(range)))
                .into(),
        );
        let peers = peers(&known, "a").unwrap();
        let [peer] = peers.as_slice() else {
            unreachable!("{peers:?}")
        };
        assert_eq!(
            (peer.name.as_str(), peer.ranges[0].to_string().as_str()),
            ("b", "10.1.1.0/24")
        );
        assert_eq!(peer.addresses.len(), 1);
    }
}
