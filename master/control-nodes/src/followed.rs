//! Followers for controllers whose keys are pods: the pods, and the nodes to which they are bound.

use master_client::{Delta, Key, Lookup, Store};
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::views::pod::{BY_NODE, PodView};

/// Follows pods as keys, and nodes: a change of a node's `aspect` concerns all pods that are bound
/// to it.
pub(crate) fn pods_and_nodes<F: PartialEq + 'static>(
    setup: &mut Setup<'_>,
    aspect: fn(&NodeView) -> F,
) -> (Store<PodView>, Store<NodeView>) {
    let pods: Store<PodView> = setup.follow_keys();
    let nodes = setup.follow(pods_of_node(pods.index(&BY_NODE), aspect));
    (pods, nodes)
}

/// The pods that are bound to a node of which `aspect` differs.
pub(crate) fn pods_of_node<F: PartialEq + 'static>(
    on_node: Lookup<PodView>,
    aspect: fn(&NodeView) -> F,
) -> impl Fn(&Delta<NodeView>, &mut Vec<Key>) + Send + 'static {
    move |delta, keys| {
        if delta.differs(aspect) {
            let pods = on_node.keys(&delta.key.name);
            keys.extend(pods.iter().map(|key| (**key).clone()));
        }
    }
}
