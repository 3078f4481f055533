//! Computes a Deployment's status, and whether its rollout is stuck.

use super::set::Set;
use crate::workload::amount::{later, sum};
use crate::workload::condition::{self, Condition, find, second};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub(super) const AVAILABLE: &str = "Available";
pub(super) const PROGRESSING: &str = "Progressing";
const FAILURE: &str = "ReplicaFailure";
/// Reasons of the condition `Progressing`.
pub(super) const COMPLETE: &str = "NewReplicaSetAvailable";
pub(super) const UPDATED: &str = "ReplicaSetUpdated";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const PAUSED: &str = "DeploymentPaused";
pub(super) const RESUMED: &str = "DeploymentResumed";
pub(super) const FOUND: &str = "FoundNewReplicaSet";
pub(super) const CREATED: &str = "NewReplicaSetCreated";

/// A Deployment's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// `observedGeneration`.
    pub observed: i64,
    /// Pods of all ReplicaSets.
    pub replicas: i32,
    /// Pods of the current template.
    pub updated: i32,
    /// Ready pods.
    pub ready: i32,
    /// Available pods.
    pub available: i32,
    /// Pods that are wanted and not available.
    pub unavailable: i32,
    /// Pods that are being deleted.
    pub terminating: Option<i32>,
    /// Number of hash collisions.
    pub collisions: Option<i32>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

impl Status {
    /// The status as stored.
    pub fn of(deployment: &Deployment) -> Self {
        let status = deployment.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let conditions = conditions.map(|one| Condition {
            updated: one.last_update_time.map(|time| time.0),
            ..Condition::read(
                one.type_,
                one.status,
                one.reason,
                one.message,
                one.last_transition_time,
            )
        });
        Self {
            observed: status.observed_generation.unwrap_or_default(),
            replicas: status.replicas.unwrap_or_default(),
            updated: status.updated_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            unavailable: status.unavailable_replicas.unwrap_or_default(),
            terminating: status.terminating_replicas,
            collisions: status.collision_count,
            conditions: conditions.collect(),
        }
    }

    /// As a merge patch. Optional numbers are omitted if they are 0, as upstream does.
    pub(super) fn json(&self) -> Value {
        let number = |number: i32| (number != 0).then_some(number);
        let conditions = self.conditions.iter();
        let conditions: Vec<Value> = conditions
            .map(|one| one.json(Some("lastUpdateTime")))
            .collect();
        json!({
            "observedGeneration": self.observed,
            "replicas": number(self.replicas),
            "updatedReplicas": number(self.updated),
            "readyReplicas": number(self.ready),
            "availableReplicas": number(self.available),
            "unavailableReplicas": number(self.unavailable),
            "terminatingReplicas": self.terminating,
            "collisionCount": self.collisions,
            "conditions": (!conditions.is_empty()).then_some(conditions),
        })
    }

    /// Whether all pods are of the current template and available.
    pub(super) fn is_complete(&self, replicas: i32, generation: i64) -> bool {
        self.updated == replicas
            && self.replicas == replicas
            && self.available == replicas
            && self.observed >= generation
    }

    /// Whether the rollout has come further than in the status before.
    fn has_progressed(&self, before: &Self) -> bool {
        self.updated > before.updated
            || self.replicas.saturating_sub(self.updated)
                < before.replicas.saturating_sub(before.updated)
            || self.ready > before.ready
            || self.available > before.available
    }

    /// Counts pods, and sets the condition `Available`.
    pub(super) fn count(&mut self, all: &[Set], new: Option<&Set>, wanted: &Wanted) {
        let sum = |number: fn(&Set) -> i32| sum(all.iter().map(number));
        self.observed = wanted.generation;
        self.replicas = sum(|set| set.actual);
        self.updated = new.map_or(0, |new| new.actual);
        self.ready = sum(|set| set.ready);
        self.available = sum(|set| set.available);
        let wanted_now = sum(|set| set.replicas);
        self.unavailable = wanted_now.saturating_sub(self.available).max(0);
        self.terminating = Some(sum(|set| set.terminating));
        let enough = self.available >= wanted.replicas - wanted.may_miss;
        let (status, reason, message) = if enough {
            (
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
            )
        } else {
            (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        };
        let condition = Condition::new(AVAILABLE, status, reason, message, wanted.now);
        condition::set(&mut self.conditions, condition);
    }

    /// Sets the condition `Progressing`, by comparison with the status before.
    pub(super) fn judge(&mut self, before: &Self, new: Option<&Set>, wanted: &Wanted) {
        let Some(deadline) = wanted.deadline else {
            condition::unset(&mut self.conditions, PROGRESSING);
            return;
        };
        let current = find(&self.conditions, PROGRESSING).cloned();
        let was_complete = self.replicas == self.updated
            && current
                .as_ref()
                .is_some_and(|known| known.reason == COMPLETE);
        if was_complete {
            return;
        }
        let what = new.map_or_else(
            || format!("Deployment {:?}", wanted.name),
            |new| format!("ReplicaSet {:?}", new.name),
        );
        let say = |status, reason, words: &str| {
            let message = format!("{what} {words}.");
            Condition::new(PROGRESSING, status, reason, &message, wanted.now)
        };
        if self.is_complete(wanted.replicas, wanted.generation) {
            let done = say("True", COMPLETE, "has successfully progressed");
            condition::set(&mut self.conditions, done);
        } else if self.has_progressed(before) {
            let mut going = say("True", UPDATED, "is progressing");
            if let Some(current) = current.filter(|current| current.status == "True") {
                going.since = current.since;
            }
            // Removed first, so that its update time changes: the deadline counts from that.
            condition::unset(&mut self.conditions, PROGRESSING);
            condition::set(&mut self.conditions, going);
        } else if current.is_some_and(|current| has_timed_out(&current, deadline, wanted.now)) {
            let stuck = say("False", TIMED_OUT, "has timed out progressing");
            condition::set(&mut self.conditions, stuck);
        }
    }

    /// Sets the condition `ReplicaFailure` to why a ReplicaSet cannot create or delete pods.
    pub(super) fn blame(&mut self, all: &[Set], new: Option<&Set>, now: Timestamp) {
        let own = new.and_then(|new| new.failure.as_ref());
        let failure = own.or_else(|| all.iter().find_map(|set| set.failure.as_ref()));
        match failure {
            Some(failure) => {
                let mut failure = failure.clone();
                failure.updated = Some(second(now));
                condition::set(&mut self.conditions, failure);
            }
            None => condition::unset(&mut self.conditions, FAILURE),
        }
    }
}

/// The specification that a status is compared with.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) generation: i64,
    pub(super) replicas: i32,
    /// `maxUnavailable` as a number.
    pub(super) may_miss: i32,
    /// Time without progress after which a rollout is stuck.
    pub(super) deadline: Option<SignedDuration>,
    pub(super) now: Timestamp,
}

fn has_timed_out(progressing: &Condition, deadline: SignedDuration, now: Timestamp) -> bool {
    match progressing.reason.as_str() {
        COMPLETE => false,
        TIMED_OUT => true,
        _ => progressing
            .updated
            .is_some_and(|updated| later(updated, deadline) < now),
    }
}
