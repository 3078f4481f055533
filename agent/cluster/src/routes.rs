//! The task that keeps routes to the pods of other nodes.

use crate::{Peer, Sandboxes, Unreached};
use agent_proxy::{Known, Node, View};
use config_errors::chain;
use std::sync::Arc;
use std::time::Duration;

/// Pause after the kernel refused, and before nodes that are not reached are tried again.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_ROUTES: Duration = Duration::from_secs(10);

/// Keeps routes to other nodes' pods over the machine's segment, until it is dropped.
///
/// `own`: this node's name.
pub async fn keep_routes(sandboxes: Arc<Sandboxes>, view: View, own: String) {
    let mut changes = view.changes();
    // Unknown, not empty: an earlier agent may have left routes.
    let mut known: Option<Vec<Peer>> = None;
    let mut logged: Vec<Unreached> = Vec::new();
    loop {
        let peers = peers(&changes.borrow_and_update(), &own);
        if let Some(peers) =
            peers.filter(|peers| known.as_ref() != Some(peers) || !logged.is_empty())
        {
            let (sandboxes, given) = (Arc::clone(&sandboxes), peers.clone());
            let outcome = tokio::task::spawn_blocking(move || sandboxes.give_peers(&given)).await;
            match outcome {
                Ok(Ok(unreached)) => {
                    for one in unreached.iter().filter(|one| !logged.contains(one)) {
                        let (node, reason) = (&one.name, &one.reason);
                        tracing::warn!(node, reason, "no route to a node's pods");
                    }
                    (known, logged) = (Some(peers), unreached);
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

/// The other nodes; `None` before they are known.
fn peers(known: &Known, own: &str) -> Option<Vec<Peer>> {
    let others = known.nodes.as_ref()?.iter();
    let others = others.filter(|(name, _)| *name != own);
    let peer = |(name, node): (&String, &Arc<Node>)| Peer {
        name: name.clone(),
        addresses: node.addresses.clone(),
        ranges: node.ranges.clone(),
        trusted: node.trusted,
    };
    Some(others.map(peer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SandboxOptions;
    use agent_sys::namespace::{Kind, in_new};
    use agent_sys::netlink::links::Links;
    use serde_json::json;

    const PATIENCE: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_millis(10);

    fn node(range: &str, taint: Option<&str>) -> Arc<Node> {
        let taint = taint.map(|key| json!({"key": key, "effect": "NoExecute"}));
        let node = json!({
            "metadata": {"name": "n"},
            "spec": {"podCIDRs": [range], "taints": Vec::from_iter(taint)},
            "status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.1"}]},
        });
        Arc::new(Node::read(serde_json::from_value(node).unwrap()))
    }

    fn known<const N: usize>(nodes: [(&str, Arc<Node>); N]) -> Known {
        let nodes = nodes.map(|(name, node)| (name.to_owned(), node));
        Known {
            nodes: Some(nodes.into()),
            ..Known::default()
        }
    }

    #[test]
    fn the_other_nodes_are_peers() {
        assert_eq!(peers(&Known::default(), "a"), None);
        let nodes = [
            ("a", node("10.1.0.0/24", None)),
            ("b", node("10.1.1.0/24", None)),
        ];
        let peers = peers(&known(nodes), "a").unwrap();
        let [peer] = peers.as_slice() else {
            unreachable!("{peers:?}")
        };
        assert_eq!(
            (peer.name.as_str(), peer.ranges[0].to_string().as_str()),
            ("b", "10.1.1.0/24")
        );
        assert_eq!(peer.addresses.len(), 1);
    }

    #[test]
    fn an_agent_that_starts_removes_the_routes_of_deleted_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let agent = || {
            Sandboxes::open(SandboxOptions {
                run: dir.path().join("pods"),
                ledger: dir.path().join("addresses.json"),
                kubernetes_only: true,
                tunnel: false,
            })
        };
        in_new(&[Kind::Network], || {
            let peer = Peer {
                name: "b".to_owned(),
                addresses: vec!["192.0.2.1".parse().unwrap()],
                ranges: vec!["10.1.1.0/24".parse().unwrap()],
                trusted: false,
            };
            agent().unwrap().give_peers(&[peer]).unwrap();
            let routes = || Links::open().unwrap().routes_by_routers().unwrap();
            assert_eq!(routes().len(), 1);
            let view = View::default();
            view.take(Arc::new(known([("a", node("10.1.0.0/24", None))])));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let kept = keep_routes(Arc::new(agent().unwrap()), view, "a".to_owned());
                let gone = async {
                    while !routes().is_empty() {
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                // Cancel-safe: the test ends with either.
                tokio::select! {
                    () = kept => unreachable!("it ends with its view"),
                    outcome = tokio::time::timeout(PATIENCE, gone) => outcome.unwrap(),
                }
            });
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_node_is_not_trusted_while_a_taint_marks_its_machine() {
        let held = [
            (None, true),
            (Some("example.com/full"), true),
            (Some("pratique.dev/untrusted"), false),
            (Some("pratique.dev/suspect"), false),
        ];
        for (taint, is_trusted) in held {
            let known = known([("b", node("10.1.1.0/24", taint))]);
            let peers = peers(&known, "a").unwrap();
            assert!(
                peers.len() == 1 && peers[0].trusted == is_trusted,
                "{taint:?}"
            );
        }
    }
}
