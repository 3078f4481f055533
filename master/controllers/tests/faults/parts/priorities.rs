//! Pods of low priority fill the machines, and urgent ones preempt them.

use super::{Part, Start, Wish, is_active, object, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::machines::{ROOM, node_of};
use crate::pods::{app, name};
use crate::simulation::Worker;
use crate::world::World;
use config_kube::identity::SCHEDULER_USER;
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_control_workloads::deployment::Deployments;
use master_control_workloads::disruption_budget::DisruptionBudgets;
use master_control_workloads::replica_set::ReplicaSets;
use serde_json::{Value, json};

const CONTROLLERS: &[Start] = &[
    Worker::<Deployments>::boxed,
    Worker::<ReplicaSets>::boxed,
    Worker::<DisruptionBudgets>::boxed,
];
/// Thousandths of a CPU of a pod that fills the machines: two fit on each, beside all others.
const FILLS: usize = 300;

pub(crate) struct Priorities {
    cpu: usize,
    urgent: usize,
    filling: usize,
    /// The highest priority of a pod that has waited for a node.
    waited: Option<i32>,
}

impl Priorities {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Self {
            cpu: 300 + 50 * dice.below(5),
            urgent: dice.below(3),
            filling: 4 + dice.below(5),
            waited: None,
        }
    }

    fn of(app: &str, replicas: usize, cpu: usize) -> Value {
        let template = template(app, cpu, &json!({"priorityClassName": app}));
        object(
            app,
            &json!({"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template}),
        )
    }
}

fn priority(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.priority).unwrap_or_default()
}

impl Part for Priorities {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        let class = |name: &str, value: i32| json!({"metadata": {"name": name}, "value": value});
        let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "filling"}}});
        vec![
            ("priorityclasses", class("filling", -10)),
            ("priorityclasses", class("urgent", 1000)),
            ("poddisruptionbudgets", object("filling", &budget)),
            ("deployments", Self::of("filling", self.filling, FILLS)),
            ("deployments", Self::of("urgent", self.urgent, self.cpu)),
        ]
    }

    fn wish(&mut self, dice: &mut Dice, _: &History) -> Option<Wish> {
        let (name, replicas) = if dice.below(4) == 0 {
            self.filling = 3 + dice.below(6);
            ("filling", self.filling)
        } else {
            self.urgent = dice.below(3);
            ("urgent", self.urgent)
        };
        let patch = json!({"spec": {"replicas": replicas}});
        Some(Wish::Patch("deployments", name.to_owned(), patch))
    }

    /// A scheduler preempts a pod only for a waiting one of higher priority.
    fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]) {
        for (deletion, any) in deleted {
            let Any::Pod(pod) = any else { continue };
            if deletion.by == SCHEDULER_USER {
                let own = priority(pod);
                assert!(
                    self.waited.is_some_and(|waited| waited > own),
                    "{} of the priority {own} is ended for one of {:?}",
                    name(pod),
                    self.waited
                );
            }
        }
        let pods = world.history.pods().into_iter();
        let waiting = pods.filter(|pod| is_active(pod) && node_of(pod).is_empty());
        self.waited = self.waited.max(waiting.map(priority).max());
    }

    /// All urgent pods run, and of the others as many as there is room for.
    fn rest(&self, world: &World) -> Result<(), String> {
        let urgent = world.count("urgent");
        if urgent != self.urgent {
            return Err(format!("{urgent} of {} urgent pods run", self.urgent));
        }
        let filling = world.count("filling");
        let fills = i64::try_from(FILLS).unwrap();
        let mut free = world.machines.iter();
        let free = free.find(|one| world.asked_of(&one.name) + fills <= ROOM);
        let pods = world.history.pods().into_iter();
        let all = pods
            .filter(|pod| app(pod) == "filling" && is_active(pod))
            .count();
        if all != self.filling || filling < self.filling && free.is_some() {
            return Err(format!(
                "{filling} and {all} of {} that fill run, {free:?} has room",
                self.filling
            ));
        }
        Ok(())
    }
}
