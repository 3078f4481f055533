//! A Job's status.

use crate::workload::condition::{Condition, find};
use config_kube::k8s_openapi::api::batch::v1::Job;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) const COMPLETE: &str = "Complete";
pub(super) const FAILED: &str = "Failed";
pub(super) const SUSPENDED: &str = "Suspended";
/// Conditions of a Job that will fail or complete once all its pods have ended and are counted.
pub(super) const FAILURE_TARGET: &str = "FailureTarget";
pub(super) const CRITERIA_MET: &str = "SuccessCriteriaMet";

/// A Job's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Active pods.
    pub active: i32,
    /// Active pods that are ready.
    pub ready: i32,
    /// Pods that are being deleted.
    pub terminating: i32,
    /// Pods that succeeded and are counted.
    pub succeeded: i32,
    /// Pods that failed and are counted.
    pub failed: i32,
    /// Indexes that succeeded, as a list.
    pub completed_indexes: String,
    /// Indexes that failed, as a list; none where they are not followed.
    pub failed_indexes: Option<String>,
    /// Pods that ended and are counted once their finalizer is removed.
    pub uncounted: Uncounted,
    /// When it was started or resumed.
    pub started: Option<Timestamp>,
    /// When it completed.
    pub completed: Option<Timestamp>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// UIDs of pods that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uncounted {
    /// Those that succeeded.
    pub succeeded: BTreeSet<String>,
    /// Those that failed.
    pub failed: BTreeSet<String>,
}

impl Uncounted {
    /// Whether a pod is among them.
    pub fn has(&self, uid: &str) -> bool {
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failed.is_empty()
    }
}

impl Status {
    /// The status as stored.
    pub fn of(job: &Job) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let uids = |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().collect();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let conditions = conditions.map(|one| Condition {
            updated: one.last_probe_time.map(|time| time.0),
            ..Condition::read(
                one.type_,
                one.status,
                one.reason,
                one.message,
                one.last_transition_time,
            )
        });
        Self {
            active: status.active.unwrap_or_default(),
            ready: status.ready.unwrap_or_default(),
            terminating: status.terminating.unwrap_or_default(),
            succeeded: status.succeeded.unwrap_or_default(),
            failed: status.failed.unwrap_or_default(),
            completed_indexes: status.completed_indexes.unwrap_or_default(),
            failed_indexes: status.failed_indexes,
            uncounted: Uncounted {
                succeeded: uids(uncounted.succeeded),
                failed: uids(uncounted.failed),
            },
            started: status.start_time.map(|time| time.0),
            completed: status.completion_time.map(|time| time.0),
            conditions: conditions.collect(),
        }
    }

    /// As a merge patch.
    pub(super) fn json(&self) -> Value {
        let number = |number: i32| (number != 0).then_some(number);
        let list = |uids: &BTreeSet<String>| (!uids.is_empty()).then(|| uids.clone());
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let conditions = self.conditions.iter();
        let conditions: Vec<Value> = conditions
            .map(|one| one.json(Some("lastProbeTime")))
            .collect();
        let completed = Some(&self.completed_indexes).filter(|list| !list.is_empty());
        json!({
            "active": number(self.active),
            "ready": self.ready,
            "terminating": self.terminating,
            "succeeded": number(self.succeeded),
            "failed": number(self.failed),
            "completedIndexes": completed,
            "failedIndexes": self.failed_indexes,
            "uncountedTerminatedPods": {
                "succeeded": list(&self.uncounted.succeeded),
                "failed": list(&self.uncounted.failed),
            },
            "startTime": time(self.started),
            "completionTime": time(self.completed),
            "conditions": (!conditions.is_empty()).then_some(conditions),
        })
    }

    /// Whether a condition holds.
    pub fn holds(&self, kind: &str) -> bool {
        find(&self.conditions, kind).is_some_and(|one| one.status == "True")
    }

    /// Whether it will never make a pod again.
    pub fn is_finished(&self) -> bool {
        self.holds(COMPLETE) || self.holds(FAILED)
    }
}

/// When a Job was finished; none while it is not.
pub fn finished(job: &Job) -> Option<Timestamp> {
    let status = Status::of(job);
    let last = [COMPLETE, FAILED].map(|kind| find(&status.conditions, kind).cloned());
    let held = last.into_iter().flatten().find(|one| one.status == "True");
    held.and_then(|one| one.since)
}
