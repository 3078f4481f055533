//! A DaemonSet that starts a new daemon before the old one ends.

use super::{CPU, Part, Start, Wish, another_image, is_active, object, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::pods::{app, is_ready};
use crate::rest::done;
use crate::simulation::Worker;
use crate::world::World;
use master_client::View as _;
use master_control_workloads::daemon_set::DaemonSets;
use master_control_workloads::workload::pod::OwnedPod;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const CONTROLLERS: &[Start] = &[Worker::<DaemonSets>::boxed];
const NAME: &str = "surge";

pub(crate) struct Daemons {
    ready: usize,
    images: usize,
    /// Nodes on which the DaemonSet knows an available daemon.
    served: BTreeSet<String>,
}

/// Daemons of a node.
#[derive(Debug, Default)]
struct OnNode {
    active: usize,
    ready: usize,
    revisions: BTreeSet<String>,
}

impl Daemons {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Self {
            ready: 5 * dice.below(2),
            images: 0,
            served: BTreeSet::new(),
        }
    }
}

impl Part for Daemons {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}});
        let spec = json!({"selector": {"matchLabels": {"app": NAME}}, "minReadySeconds": self.ready,
            "updateStrategy": rolling, "template": template(NAME, CPU, &Value::Null)});
        vec![("daemonsets", object(NAME, &spec))]
    }

    fn wish(&mut self, _: &mut Dice, _: &History) -> Option<Wish> {
        self.images += 1;
        let patch = another_image(self.images);
        Some(Wish::Patch("daemonsets", NAME.to_owned(), patch))
    }

    fn check(&mut self, world: &World, _: &[(Deletion, Any)]) {
        let mut nodes: BTreeMap<String, OnNode> = BTreeMap::new();
        for pod in world.history.pods() {
            if app(pod) != NAME {
                continue;
            }
            let node = OwnedPod::read(pod.clone()).meant_for.to_string();
            let one = nodes.entry(node).or_default();
            one.active += usize::from(is_active(pod));
            one.ready += usize::from(is_ready(pod));
            let labels = pod.metadata.labels.as_ref().unwrap();
            if is_active(pod) {
                // No node has two daemons of one revision.
                let revision = labels["controller-revision-hash"].clone();
                assert!(one.revisions.insert(revision), "two daemons of a revision");
            }
        }
        for (node, OnNode { active, .. }) in &nodes {
            // No node has more than an old and a new daemon.
            assert!(*active <= 2, "{active} daemons on {node}");
        }
        // The DaemonSet may delete daemons that it does not know to be available.
        let set = world.history.object("daemonsets", NAME);
        let known = set.and_then(|set| {
            if let Any::DaemonSet(set) = set {
                Some(set.status.as_ref()?.number_ready)
            } else {
                None
            }
        });
        let serving = nodes.iter().filter(|(_, one)| one.ready > 0);
        let serving: Vec<String> = serving.map(|(node, _)| node.clone()).collect();
        if known.is_some_and(|known| usize::try_from(known).unwrap() == world.machines.len()) {
            self.served.extend(serving);
        }
        if !world.is_stormy() {
            // A node with an available daemon always keeps one.
            let serves = |node: &String| nodes.get(node).is_some_and(|one| one.ready > 0);
            assert!(
                self.served.iter().all(serves),
                "daemons served on {:?}, and now {nodes:?}",
                self.served
            );
        }
    }

    fn rest(&self, world: &World) -> Result<(), String> {
        let set = world.history.object("daemonsets", NAME);
        set.map_or(Ok(()), done)?;
        let found = world.count(NAME);
        if found == world.machines.len() {
            Ok(())
        } else {
            Err(format!("{found} daemons serve"))
        }
    }
}
