//! Applies the node's pod CIDRs to the pod network: the master writes them into the Node
//! (`spec.podCIDRs`), and the watch of Nodes reports them. Pods that need an address wait for them;
//! pods with `hostNetwork` don't.

use crate::shared::Shared;
use agent_proxy::{Known, View};
use config_model::format::Cidr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Pause before ranges that could not be applied are tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Applies the ranges, until the view's sender is gone.
pub(crate) async fn keep(shared: Arc<Shared>, view: View) {
    let name = shared.config.node_name.clone();
    follow(&view, &name, |ranges| give(shared.clone(), ranges)).await;
}

/// Applies the ranges of the node of this name when they change. If the Node is deleted, or has no
/// ranges, the last ones stay.
async fn follow<F>(view: &View, name: &str, mut give: impl FnMut(Vec<Cidr>) -> F)
where
    F: Future<Output = Result<(), String>>,
{
    let mut changes = view.changes();
    let mut known = Vec::new();
    let mut logged = String::new();
    loop {
        let ranges = own(&changes.borrow_and_update(), name);
        let mut failed = false;
        if !ranges.is_empty() && ranges != known {
            match give(ranges.clone()).await {
                Ok(()) => {
                    let list: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                    tracing::info!(ranges = list.join(","), "applied the node's pod CIDRs");
                    known = ranges;
                }
                Err(error) => {
                    failed = true;
                    if error != logged {
                        tracing::error!(error, "cannot apply the node's pod CIDRs");
                        logged = error;
                    }
                }
            }
        }
        let next = changes.changed();
        let outcome = if failed {
            timeout(RETRY, next).await.unwrap_or(Ok(()))
        } else {
            next.await
        };
        if outcome.is_err() {
            return;
        }
    }
}

fn own(known: &Known, name: &str) -> Vec<Cidr> {
    let nodes = known.nodes.as_ref();
    let own = nodes.and_then(|nodes| nodes.get(name));
    own.map(|own| own.ranges.clone()).unwrap_or_default()
}

async fn give(shared: Arc<Shared>, ranges: Vec<Cidr>) -> Result<(), String> {
    let sandboxes = shared.sandboxes.clone();
    tokio::task::spawn_blocking(move || sandboxes.give_ranges(&ranges))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| error.chain())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_proxy::Node;
    use tokio::sync::mpsc;

    fn knows(view: &View, nodes: &[(&str, &str)]) {
        let node = |(name, range): &(&str, &str)| {
            let ranges = range.split_whitespace().map(|one| one.parse().unwrap());
            let ranges = ranges.collect();
            let node = Node {
                ranges,
                ..Node::default()
            };
            ((*name).to_owned(), Arc::new(node))
        };
        let nodes = nodes.iter().map(node).collect();
        view.change(|_| true, |known| known.nodes = Some(nodes));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_of_nodes_gives_the_ranges_of_the_own_node() {
        let view = View::default();
        let (sender, mut gives) = mpsc::unbounded_channel();
        let own = view.clone();
        let mut refusals = 1;
        let task = tokio::spawn(async move {
            let give = |ranges: Vec<Cidr>| {
                let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                sender.send(texts.join(" ")).unwrap();
                let refused = ranges.len() == 2 && refusals > 0;
                refusals -= i32::from(refused);
                std::future::ready(if refused {
                    Err("busy".to_owned())
                } else {
                    Ok(())
                })
            };
            follow(&own, "n1", give).await;
        });
        knows(&view, &[("a2", "10.1.2.0/24")]);
        tokio::task::yield_now().await;
        knows(&view, &[("n1", ""), ("a2", "10.1.2.0/24")]);
        knows(&view, &[("n1", "10.1.1.0/24"), ("a2", "10.1.2.0/24")]);
        assert_eq!(gives.recv().await.unwrap(), "10.1.1.0/24");
        // Neither the same again, nor those of a Node that is gone.
        knows(&view, &[("n1", "10.1.1.0/24")]);
        knows(&view, &[]);
        tokio::task::yield_now().await;
        knows(&view, &[("n1", "10.1.1.0/24 fd00::/64")]);
        assert_eq!(gives.recv().await.unwrap(), "10.1.1.0/24 fd00::/64");
        // What was refused is tried again without a change.
        assert_eq!(gives.recv().await.unwrap(), "10.1.1.0/24 fd00::/64");
        tokio::time::sleep(RETRY * 3).await;
        assert!(gives.try_recv().is_err());
        task.abort();
    }
}
