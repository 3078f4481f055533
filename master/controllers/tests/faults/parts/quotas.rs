//! A quota of pods, and a ReplicaSet that wants more than it allows.

use super::{Part, Start, Wish, is_active, object, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::pods::{app, uid};
use crate::simulation::Worker;
use crate::world::World;
use master_control_cluster::quota::Quotas;
use master_control_workloads::replica_set::ReplicaSets;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CONTROLLERS: &[Start] = &[Worker::<Quotas>::boxed, Worker::<ReplicaSets>::boxed];
const NAME: &str = "many";

pub(crate) struct Quota {
    allowed: usize,
    replicas: usize,
    known: BTreeSet<String>,
}

impl Quota {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Self {
            allowed: 2 + dice.below(3),
            replicas: 3 + dice.below(4),
            known: BTreeSet::new(),
        }
    }
}

/// How many pods the quota allows by its spec and by its status, and the used number in its status.
fn said(world: &World) -> [Option<usize>; 3] {
    let Some(Any::Quota(quota)) = world.history.object("resourcequotas", NAME) else {
        return [None; 3];
    };
    let (spec, status) = (quota.spec.clone().unwrap_or_default(), quota.status.clone());
    let status = status.unwrap_or_default();
    [spec.hard, status.hard, status.used].map(|all| all?.get("pods")?.0.parse().ok())
}

impl Part for Quota {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        // Only these pods have no requests, so that only they count.
        let quota = json!({"hard": {"pods": self.allowed.to_string()}, "scopes": ["BestEffort"]});
        let set = json!({"replicas": self.replicas, "selector": {"matchLabels": {"app": NAME}},
            "template": template(NAME, 0, &Value::Null)});
        vec![
            ("resourcequotas", object(NAME, &quota)),
            ("replicasets", object(NAME, &set)),
        ]
    }

    fn wish(&mut self, dice: &mut Dice, _: &History) -> Option<Wish> {
        if dice.below(3) == 0 {
            self.allowed = 1 + dice.below(5);
            let hard = json!({"spec": {"hard": {"pods": self.allowed.to_string()}}});
            return Some(Wish::Patch("resourcequotas", NAME.to_owned(), hard));
        }
        self.replicas = dice.below(8);
        let patch = json!({"spec": {"replicas": self.replicas}});
        Some(Wish::Patch("replicasets", NAME.to_owned(), patch))
    }

    /// When a pod is created, there are no more than the quota allows.
    fn check(&mut self, world: &World, _: &[(Deletion, Any)]) {
        let pods = world.history.pods().into_iter();
        let own: BTreeSet<String> = pods
            .filter(|pod| app(pod) == NAME && is_active(pod))
            .map(uid)
            .collect();
        let is_new = own.difference(&self.known).next().is_some();
        let [spec, status, _] = said(world);
        let most = spec.max(status);
        assert!(
            !is_new || most.is_none_or(|most| own.len() <= most),
            "{} of {most:?} pods",
            own.len()
        );
        self.known.extend(own);
    }

    /// There are as many pods as it allows or the ReplicaSet wants, and the quota counts these.
    fn rest(&self, world: &World) -> Result<(), String> {
        let (ready, allowed) = (world.count(NAME), self.allowed);
        let pods = world.history.pods().into_iter();
        let there = pods
            .filter(|pod| app(pod) == NAME && is_active(pod))
            .count();
        // Pods from before the quota became smaller stay.
        let is_right = ready == self.replicas.min(allowed)
            || ready == there && allowed < ready && ready <= self.replicas;
        let said = said(world);
        if is_right && said == [Some(allowed), Some(allowed), Some(there)] {
            Ok(())
        } else {
            Err(format!(
                "{ready} of {} and {there} pods, allowed {allowed}; the quota says {said:?}",
                self.replicas
            ))
        }
    }
}
