//! The plan for a Job: counts ended pods, creates missing pods, deletes surplus ones.

use super::indexes::{self, Indexes};
use super::policy::{self, Verdict, judge};
use super::status::{COMPLETE, CRITERIA_MET, FAILED, FAILURE_TARGET, SUSPENDED, Status, Uncounted};
use super::{Facts, severity};
use crate::workload::amount::sum;
use crate::workload::claim::OwnerChange;
use crate::workload::condition::{self, Condition, find, second};
use crate::workload::kept::is_leaving;
use crate::workload::make::BURST;
use crate::workload::pod::{JobPart, OwnedPod, PodId};
use crate::workload::rank::{Crowd, order};
use config_kube::k8s_openapi::api::batch::v1::JobSpec;
use jiff::{SignedDuration, Timestamp};
use master_client::{Key, Severity};
use master_control::controller::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Wait after the first failure of a pod, in seconds; it doubles with each (upstream).
const BACKOFF_FIRST: i64 = 10;
/// Longest wait after failures, in seconds.
const BACKOFF_LAST: i64 = 600;
/// UIDs that a status holds at most (upstream: `MaxUncountedPods`).
const MOST_UNCOUNTED: usize = 500;

/// A step of the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Adopts or releases a pod.
    Own(OwnerChange),
    /// Creates pods.
    Create(Vec<New>),
    /// Deletes pods, which do not count.
    Delete(Vec<PodId>),
    /// Deletes pods, which count as failures once they have ended.
    End(Vec<PodId>),
    /// Removes the Job's finalizer from pods that are counted, or never will be.
    Untrack(Vec<PodId>),
    /// An event about the Job.
    Event(Severity, &'static str, String),
    /// Writes the status, if the Job is still at this resource version.
    Status {
        /// The status.
        status: Box<Status>,
        /// The version of the Job that was planned for.
        version: Option<u64>,
    },
}

/// A pod to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct New {
    /// Its completion index.
    pub index: Option<i32>,
    /// Earlier failures of its index; `None` if the Job has no limit by index.
    pub failures: Option<i32>,
    /// Earlier failures of its index that the pod failure policy ignored.
    pub ignored: i32,
}

type Owned = (Arc<Key>, Arc<OwnedPod>);

/// A Job while its plan is made.
struct Work<'a> {
    spec: &'a JobSpec,
    pods: &'a [Owned],
    /// Whether the Job is being deleted: its pods are counted, but none are created.
    leaving: bool,
    now: Timestamp,
    status: Status,
    completed: Indexes,
    failed: Indexes,
    /// Pods whose finalizers are removed after the status is written.
    counted: Vec<PodId>,
    /// By index, the failed pod that keeps its finalizer until its successor exists: its
    /// annotations have the index's failures.
    waiting: BTreeMap<i32, Owned>,
    /// The message of the failed Job, if a rule of its pod failure policy matched.
    verdict: Option<String>,
    steps: Vec<Step>,
    wake: Option<SignedDuration>,
}

/// How a Job ends.
struct End {
    complete: bool,
    reason: String,
    message: String,
}

/// The steps for a Job.
pub(super) fn plan(facts: &Facts, now: Timestamp) -> Plan<Step> {
    let job = &facts.job.0;
    let Some(spec) = &job.spec else {
        return Plan::nothing();
    };
    let before = Status::of(job);
    if before.is_finished() {
        let tracked = facts.pods.iter().filter(|(_, pod)| is_tracked(pod));
        let tracked: Vec<_> = tracked.map(|(key, pod)| PodId::of(key, pod)).collect();
        let step = (!tracked.is_empty()).then_some(Step::Untrack(tracked));
        return step.into();
    }
    let completions = spec.completions.unwrap_or(i32::MAX);
    let failed = before.failed_indexes.clone().unwrap_or_default();
    let mut work = Work {
        spec,
        pods: &facts.pods,
        leaving: is_leaving(&job.metadata),
        now,
        completed: indexes::parse(&before.completed_indexes, completions),
        failed: indexes::parse(&failed, completions),
        status: before.clone(),
        counted: Vec::new(),
        waiting: BTreeMap::new(),
        verdict: None,
        steps: Vec::new(),
        wake: None,
    };
    work.count();
    if !work.is_suspended() {
        // Also if its pods ended before any status was written: the API requires a start time with
        // each completion time.
        work.status.started.get_or_insert(second(now));
    }
    match work.end(&before) {
        Some(end) => work.finish(&end),
        None if work.leaving => work.free(),
        None => work.go_on(),
    }
    work.close(&before, facts)
}

fn is_tracked(pod: &OwnedPod) -> bool {
    pod.job.as_ref().is_some_and(|part| part.tracked)
}

fn part(pod: &OwnedPod) -> JobPart {
    pod.job.as_deref().cloned().unwrap_or_default()
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Work<'_> {
    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    /// Whether a pod is replaced only when it has ended, and not already when it is being deleted.
    fn waits_for_ends(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
            || self.spec.pod_failure_policy.is_some()
    }

    fn has_failed(&self, pod: &OwnedPod) -> bool {
        let going = pod.deleted.is_some() && !self.waits_for_ends();
        &*pod.phase == "Failed" || (going && &*pod.phase != "Succeeded")
    }

    /// The index of a pod, where it is one of this Job's.
    fn index(&self, pod: &OwnedPod) -> Option<i32> {
        let index = part(pod).index?;
        let completions = self.spec.completions.unwrap_or(0);
        (0..completions).contains(&index).then_some(index)
    }

    fn active(&self) -> Vec<&Owned> {
        let pods = self.pods.iter();
        pods.filter(|(_, pod)| pod.is_active()).collect()
    }

    fn active_ids(&self) -> Vec<PodId> {
        let active = self.active().into_iter();
        active.map(|(key, pod)| PodId::of(key, pod)).collect()
    }

    /// Adds the UIDs of pods that ended to `uncountedTerminatedPods`, and turns UIDs whose pods
    /// have lost the finalizer into counts.
    fn count(&mut self) {
        let tracked = self.pods.iter().filter(|(_, pod)| is_tracked(pod));
        let tracked: BTreeSet<&str> = tracked.map(|(_, pod)| pod.uid.as_str()).collect();
        let Uncounted { succeeded, failed } = std::mem::take(&mut self.status.uncounted);
        let held = |uid: &String| tracked.contains(uid.as_str());
        let (succeeded, done): (BTreeSet<_>, BTreeSet<_>) = succeeded.into_iter().partition(held);
        self.status.succeeded += number(done.len());
        let (failed, done): (BTreeSet<_>, BTreeSet<_>) = failed.into_iter().partition(held);
        let done = number(done.len());
        self.status.failed = self.status.failed.saturating_add(done);
        self.status.uncounted = Uncounted { succeeded, failed };
        for owned in self.pods.iter().filter(|(_, pod)| is_tracked(pod)) {
            let pod = &owned.1;
            if self.status.uncounted.has(&pod.uid) {
                self.counted.push(PodId::of(&owned.0, pod));
                if self.status.uncounted.failed.contains(&pod.uid) {
                    self.fail_index(owned);
                }
            } else if &*pod.phase == "Succeeded" {
                self.succeeded(owned);
            } else if self.has_failed(pod) {
                self.failed(owned);
            }
        }
        if self.is_indexed() {
            self.status.succeeded = number(self.completed.len());
            self.status.completed_indexes = indexes::text(&self.completed);
        }
        if self.spec.backoff_limit_per_index.is_some() {
            self.wait_for_successors();
            self.status.failed_indexes = Some(indexes::text(&self.failed));
        }
    }

    fn succeeded(&mut self, owned: &Owned) {
        if self.is_indexed() {
            // `completedIndexes` shows that it is counted.
            if let Some(index) = self.index(&owned.1) {
                self.completed.insert(index);
            }
            self.counted.push(PodId::of(&owned.0, &owned.1));
        } else if self.has_room() {
            self.status.uncounted.succeeded.insert(owned.1.uid.clone());
            self.counted.push(PodId::of(&owned.0, &owned.1));
        }
    }

    fn has_room(&self) -> bool {
        let Uncounted { succeeded, failed } = &self.status.uncounted;
        succeeded.len() + failed.len() < MOST_UNCOUNTED
    }

    /// Notes what a failed pod means for its index, if the Job has `backoffLimitPerIndex`.
    fn fail_index(&mut self, owned: &Owned) {
        let pod = &owned.1;
        let Some((limit, index)) = self.spec.backoff_limit_per_index.zip(self.index(pod)) else {
            return;
        };
        let verdict = judge(self.spec, &owned.0, pod);
        let over = verdict == Verdict::Count && part(pod).failures >= limit;
        if over || verdict == Verdict::FailIndex {
            self.failed.insert(index);
        }
        let known = self.waiting.get(&index).map(|(_, known)| part(known));
        let rank = |part: &JobPart| part.failures.saturating_add(part.ignored);
        if known.is_none_or(|known| rank(&known) < rank(&part(pod))) {
            self.waiting.insert(index, owned.clone());
        }
    }

    fn failed(&mut self, owned: &Owned) {
        self.fail_index(owned);
        let pod = &owned.1;
        let index = self.index(pod);
        let verdict = judge(self.spec, &owned.0, pod);
        if let Verdict::FailJob(why) = &verdict {
            self.verdict.get_or_insert_with(|| why.clone());
        }
        if verdict == Verdict::Ignore || (self.is_indexed() && index.is_none()) {
            self.counted.push(PodId::of(&owned.0, pod));
        } else if self.has_room() {
            self.status.uncounted.failed.insert(pod.uid.clone());
            self.counted.push(PodId::of(&owned.0, pod));
        }
    }

    /// The last failed pod of an index that is retried keeps its finalizer until its successor
    /// exists; in a Job that is being deleted there is no successor.
    fn wait_for_successors(&mut self) {
        let active: BTreeSet<i32> = self
            .active()
            .iter()
            .filter_map(|(_, pod)| self.index(pod))
            .collect();
        let (completed, failed, leaving) = (&self.completed, &self.failed, self.leaving);
        self.waiting.retain(|index, _| {
            let goes_on =
                !active.contains(index) && !completed.contains(*index) && !failed.contains(*index);
            goes_on && !leaving
        });
        let kept = self.waiting.values().map(|(_, pod)| pod.uid.as_str());
        let kept: BTreeSet<&str> = kept.collect();
        self.counted.retain(|pod| !kept.contains(pod.uid.as_str()));
    }

    fn failures(&self) -> i32 {
        let uncounted = number(self.status.uncounted.failed.len());
        self.status.failed.saturating_add(uncounted)
    }

    fn successes(&self) -> i32 {
        let uncounted = number(self.status.uncounted.succeeded.len());
        self.status.succeeded.saturating_add(uncounted)
    }

    /// Whether and how the Job ends. An earlier decision is kept.
    fn end(&mut self, before: &Status) -> Option<End> {
        let end = |complete, reason: &str, message: &str| {
            Some(End {
                complete,
                reason: reason.to_owned(),
                message: message.to_owned(),
            })
        };
        for (kind, complete) in [(FAILURE_TARGET, false), (CRITERIA_MET, true)] {
            let held = find(&before.conditions, kind).filter(|one| one.status == "True");
            if let Some(held) = held {
                return end(complete, &held.reason, &held.message);
            }
        }
        if let Some(why) = &self.verdict {
            return end(false, "PodFailurePolicy", why);
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failures() > limit || self.restarted_too_often(limit) {
            let words = "Job has reached the specified backoff limit";
            return end(false, "BackoffLimitExceeded", words);
        }
        if self.is_too_late() {
            let words = "Job was active longer than specified deadline";
            return end(false, "DeadlineExceeded", words);
        }
        let failed = number(self.failed.len());
        if self
            .spec
            .max_failed_indexes
            .is_some_and(|most| failed > most)
        {
            let words = "Job has exceeded the specified maximal number of failed indexes";
            return end(false, "MaxFailedIndexesExceeded", words);
        }
        let ended = failed.saturating_add(number(self.completed.len()));
        if failed > 0 && self.spec.completions.is_some_and(|all| ended >= all) {
            return end(false, "FailedIndexes", "Job has failed indexes");
        }
        if let Some(rule) = policy::is_enough(self.spec, &self.completed) {
            return end(
                true,
                "SuccessPolicy",
                &format!("Matched rules at index {rule}"),
            );
        }
        if !self.active().is_empty() {
            return None;
        }
        let complete = match self.spec.completions {
            None => self.successes() > 0,
            Some(completions) => self.successes() >= completions,
        };
        let words = "Reached expected number of succeeded pods";
        if complete {
            return end(true, "CompletionsReached", words);
        }
        None
    }

    /// Container restarts count as failures if pods are restarted in place (`OnFailure`).
    fn restarted_too_often(&self, limit: i32) -> bool {
        let spec = self.spec.template.spec.as_ref();
        if spec.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let runs = |pod: &OwnedPod| matches!(&*pod.phase, "Running" | "Pending");
        let running = self.pods.iter().filter(|(_, pod)| runs(pod));
        let restarts = sum(running.map(|(_, pod)| part(pod).restarts));
        if limit == 0 {
            restarts > 0
        } else {
            restarts >= limit
        }
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    fn is_too_late(&mut self) -> bool {
        let (Some(seconds), Some(started)) =
            (self.spec.active_deadline_seconds, self.status.started)
        else {
            return false;
        };
        if self.is_suspended() {
            return false;
        }
        let passed = self.now.duration_since(started);
        let left = SignedDuration::from_secs(seconds).saturating_sub(passed);
        if left > SignedDuration::ZERO {
            self.wake_in(left);
        }
        left <= SignedDuration::ZERO
    }

    fn wake_in(&mut self, time: SignedDuration) {
        self.wake = Some(self.wake.map_or(time, |known| known.min(time)));
    }

    fn say(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let condition = Condition::new(kind, status, reason, message, self.now);
        condition::set(&mut self.status.conditions, condition);
    }

    /// Deletes active pods; finishes the Job once all pods have ended and are counted.
    fn finish(&mut self, end: &End) {
        let interim = if end.complete {
            CRITERIA_MET
        } else {
            FAILURE_TARGET
        };
        self.say(interim, "True", &end.reason, &end.message);
        for (key, pod) in std::mem::take(&mut self.waiting).into_values() {
            self.counted.push(PodId::of(&key, &pod));
        }
        let active = self.active_ids();
        let held = self
            .pods
            .iter()
            .any(|(_, pod)| is_tracked(pod) || pod.is_terminating());
        self.status.active = number(active.len());
        if !active.is_empty() {
            self.steps.push(Step::End(active));
        } else if !held && self.status.uncounted.is_empty() {
            let (kind, reason, message) = if end.complete {
                // The clock may have been set back: the API refuses a completion before the start.
                self.status.completed = Some(second(self.now)).max(self.status.started);
                (COMPLETE, "Completed", "Job completed")
            } else {
                (FAILED, "", end.message.as_str())
            };
            self.say(kind, "True", &end.reason, &end.message);
            let reason = if reason.is_empty() {
                failure_word(&end.reason)
            } else {
                reason
            };
            let event = Step::Event(severity(end.complete), reason, message.to_owned());
            self.steps.push(event);
        }
    }

    /// Removes the finalizer from the running pods of a Job that is being deleted, as upstream
    /// does: they do not count.
    fn free(&mut self) {
        let active = self.active_ids();
        self.status.active = number(active.len());
        for (key, pod) in self.pods.iter().filter(|(_, pod)| is_tracked(pod)) {
            let counts = pod.ended() || self.has_failed(pod) || self.status.uncounted.has(&pod.uid);
            if !counts {
                self.counted.push(PodId::of(key, pod));
            }
        }
    }

    /// Creates and deletes pods, or suspends the Job.
    fn go_on(&mut self) {
        let suspended = self.is_suspended();
        let was = find(&self.status.conditions, SUSPENDED).is_some_and(|one| one.status == "True");
        if suspended {
            let active = self.active_ids();
            self.status.active = 0;
            // Its deadline counts from the resumption.
            self.status.started = None;
            if !active.is_empty() {
                self.steps.push(Step::Delete(active));
            }
            if !was {
                self.say(SUSPENDED, "True", "JobSuspended", "Job suspended");
                let words = "Job suspended".to_owned();
                self.steps
                    .push(Step::Event(Severity::Normal, "Suspended", words));
            }
            return;
        }
        if was {
            self.say(SUSPENDED, "False", "JobResumed", "Job resumed");
            let words = "Job resumed".to_owned();
            self.steps
                .push(Step::Event(Severity::Normal, "Resumed", words));
            self.status.started = Some(second(self.now));
        }
        self.manage();
    }

    fn manage(&mut self) {
        let active: Vec<Owned> = self.active().into_iter().cloned().collect();
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            None if self.successes() > 0 => number(active.len()).min(parallelism),
            None => parallelism,
            Some(completions) => {
                let missing = completions.saturating_sub(self.successes());
                missing.clamp(0, parallelism)
            }
        };
        let wanted = usize::try_from(wanted).unwrap_or_default();
        let mut spare = self.spare(&active, active.len().saturating_sub(wanted));
        spare.truncate(BURST);
        self.status.active = number(active.len() - spare.len());
        if !spare.is_empty() {
            self.steps.push(Step::Delete(spare));
            return;
        }
        let going = if self.waits_for_ends() {
            self.pods
                .iter()
                .filter(|(_, pod)| pod.is_terminating())
                .count()
        } else {
            0
        };
        let missing = wanted.saturating_sub(active.len() + going).min(BURST);
        if missing == 0 {
            return;
        }
        let new = if self.is_indexed() {
            self.pending(missing)
        } else {
            vec![New::default(); missing]
        };
        if self.spec.backoff_limit_per_index.is_none()
            && let Some(left) = self.backoff(self.pods)
        {
            self.wake_in(left);
            return;
        }
        if !new.is_empty() {
            self.status.active += number(new.len());
            self.steps.push(Step::Create(new));
        }
    }

    /// Active pods to delete: first those of indexes that need none or have another, then others up
    /// to `least`.
    fn spare(&self, active: &[Owned], least: usize) -> Vec<PodId> {
        let mut sorted: Vec<&Owned> = active.iter().collect();
        let crowd = Crowd::new();
        sorted.sort_by(|(_, one), (_, other)| order(one, other, &crowd, self.now));
        let mut gone = Vec::new();
        if self.is_indexed() {
            let mut seen = BTreeSet::new();
            // Reversed, so that of several pods of an index the one that would be deleted last
            // stays.
            sorted.reverse();
            let (needed, spare): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|(_, pod)| {
                self.index(pod).is_some_and(|index| {
                    !self.completed.contains(index)
                        && !self.failed.contains(index)
                        && seen.insert(index)
                })
            });
            gone = spare;
            sorted = needed;
            sorted.reverse();
        }
        let more = least.saturating_sub(gone.len());
        gone.extend(sorted.into_iter().take(more));
        let gone = gone.into_iter();
        gone.map(|(key, pod)| PodId::of(key, pod)).collect()
    }

    /// The first indexes without a pod, with the failures that their new pods record.
    fn pending(&mut self, most: usize) -> Vec<New> {
        let going = self.waits_for_ends();
        let taken: BTreeSet<i32> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.is_active() || (going && pod.is_terminating()))
            .filter_map(|(_, pod)| self.index(pod))
            .collect();
        let followed = self.spec.backoff_limit_per_index.is_some();
        let mut all = Vec::new();
        let completions = self.spec.completions.unwrap_or(0);
        let mut next = 0;
        while next < completions && all.len() < most {
            let index = next;
            // Ended indexes are passed an interval at a time: they may be two billion.
            let ended = [&self.completed, &self.failed];
            let end = ended.into_iter().find_map(|known| known.end_of(index));
            next = end.unwrap_or(index).saturating_add(1);
            if end.is_some() || taken.contains(&index) {
                continue;
            }
            let last = self.waiting.get(&index).cloned();
            if let Some(last) = &last
                && let Some(left) = self.backoff_of(&last.1)
            {
                self.wake_in(left);
                continue;
            }
            all.push(self.successor(index, last.as_ref(), followed));
        }
        all
    }

    fn successor(&self, index: i32, last: Option<&Owned>, followed: bool) -> New {
        let known = last.map(|(_, pod)| part(pod)).unwrap_or_default();
        let ignored = last.is_some_and(|(key, pod)| judge(self.spec, key, pod) == Verdict::Ignore);
        let counts = last.is_some() && !ignored;
        New {
            index: Some(index),
            failures: followed.then_some(known.failures.saturating_add(counts.into())),
            ignored: known.ignored.saturating_add(ignored.into()),
        }
    }

    /// How long to wait after the failures since the last success.
    fn backoff(&self, pods: &[Owned]) -> Option<SignedDuration> {
        let ended = |phase: &'static str| {
            let ended = pods.iter().filter(move |(_, pod)| &*pod.phase == phase);
            ended.map(|(_, pod)| part(pod).ended.or(pod.deleted).or(pod.created))
        };
        let success = ended("Succeeded").flatten().max();
        let failures: Vec<Timestamp> = ended("Failed")
            .flatten()
            .filter(|at| success.is_none_or(|success| *at > success))
            .collect();
        self.left(failures.len(), *failures.iter().max()?)
    }

    /// How long an index still waits for its next pod; `pod` is its last failed one.
    fn backoff_of(&self, pod: &OwnedPod) -> Option<SignedDuration> {
        let known = part(pod);
        let before = known.failures.saturating_add(known.ignored);
        let before = usize::try_from(before).unwrap_or_default();
        self.left(before + 1, known.ended.or(pod.deleted).or(pod.created)?)
    }

    fn left(&self, failures: usize, last: Timestamp) -> Option<SignedDuration> {
        let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let wait =
            BACKOFF_FIRST.saturating_mul(1_i64.checked_shl(doublings.min(16)).unwrap_or(i64::MAX));
        let wait = SignedDuration::from_secs(wait.min(BACKOFF_LAST));
        let left = wait - self.now.duration_since(last);
        (left > SignedDuration::ZERO).then_some(left)
    }

    /// The steps in order: the status is written before finalizers are removed, so that no pod is
    /// counted twice or never.
    fn close(mut self, before: &Status, facts: &Facts) -> Plan<Step> {
        let ready = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.is_active() && pod.ready.is_some());
        self.status.ready = number(ready.count()).min(self.status.active);
        let going = self.pods.iter().filter(|(_, pod)| pod.is_terminating());
        self.status.terminating = number(going.count());
        let differs = self.status != *before;
        let written = differs.then(|| Step::Status {
            status: Box::new(self.status),
            version: facts.version,
        });
        let created = self
            .steps
            .iter()
            .any(|step| matches!(step, Step::Create(_)));
        let mut steps = self.steps;
        // The status counts the new pods, so it is written after them. If creating pods failed
        // before, it is written first, so that the rest of it is reported.
        let mut actions: Vec<Step> = Vec::new();
        if created && !facts.failing && self.counted.is_empty() {
            actions.append(&mut steps);
            actions.extend(written);
        } else {
            actions.extend(written);
            if !self.counted.is_empty() {
                actions.push(Step::Untrack(self.counted));
            }
            actions.append(&mut steps);
        }
        let requeue = self.wake.and_then(|wake| Duration::try_from(wake).ok());
        Plan { actions, requeue }
    }
}

/// The reason of the event about a failed Job.
fn failure_word(reason: &str) -> &'static str {
    match reason {
        "BackoffLimitExceeded" => "BackoffLimitExceeded",
        "DeadlineExceeded" => "DeadlineExceeded",
        "PodFailurePolicy" => "PodFailurePolicy",
        "MaxFailedIndexesExceeded" => "MaxFailedIndexesExceeded",
        "FailedIndexes" => "FailedIndexes",
        _ => "Failed",
    }
}
