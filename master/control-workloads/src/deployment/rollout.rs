//! Plans the rollout from one ReplicaSet to the next (pure): it works on copies of the ReplicaSets,
//! and each change of one becomes a step for the API.

use super::Facts;
use super::set::{Change, DESIRED, HASH, HISTORY, MOST, REVISION, Set, plain};
use super::status::{self, PROGRESSING, Status, Wanted};
use crate::workload::amount::{bounds, later, sum};
use crate::workload::claim::OwnerChange;
use crate::workload::condition::{self, Condition, find};
use crate::workload::hash::hash;
use crate::workload::kept::{Labels, controls, is_leaving};
use config_kube::ToJson as _;
use config_kube::k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::{SignedDuration, Timestamp};
use master_control::controller::Plan;
use std::time::Duration;

/// The value of `progressDeadlineSeconds` that means no deadline (upstream: `math.MaxInt32`).
const NO_LIMIT: i32 = i32::MAX;
/// Longest list of former revisions, in bytes.
const LONGEST_HISTORY: usize = 2000;
/// Annotations of a Deployment that are not copied to its ReplicaSets.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
    "deprecated.deployment.rollback.to",
];

/// A write for a Deployment or its ReplicaSets.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Adopts or releases a ReplicaSet.
    Own(OwnerChange),
    /// Creates the ReplicaSet of the current template.
    Create(Box<ReplicaSet>),
    /// Changes a ReplicaSet with this name and UID.
    Change(String, String, Change),
    /// Deletes a ReplicaSet with this name and UID.
    Delete(String, String),
    /// Writes the Deployment's revision into its annotation.
    Revision(String),
    /// Writes the Deployment's status.
    Status(Status),
}

/// Whether the strategy is `Recreate`: all old pods end before the first new one is created.
pub(super) fn is_recreated(deployment: &Deployment) -> bool {
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// Time without progress after which a rollout counts as stuck; `None`: never.
pub(super) fn deadline(deployment: &Deployment) -> Option<SignedDuration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != NO_LIMIT).then(|| SignedDuration::from_secs(i64::from(seconds)))
}

/// A plan as it grows.
pub(super) struct Rollout<'a> {
    deployment: &'a Deployment,
    spec: DeploymentSpec,
    wanted: Wanted,
    surge: i32,
    sets: Vec<Set>,
    /// The index of the ReplicaSet with the current template.
    new: Option<usize>,
    status: Status,
    steps: Vec<Step>,
}

impl<'a> Rollout<'a> {
    pub(super) fn of(facts: &'a Facts, now: Timestamp) -> Self {
        let deployment = &facts.deployment.0;
        let spec = deployment.spec.clone().unwrap_or_default();
        let replicas = spec.replicas.unwrap_or(1);
        let rolling = spec.strategy.as_ref();
        let rolling = rolling.and_then(|strategy| strategy.rolling_update.as_ref());
        let (surge, missing) = match rolling {
            Some(rolling) if !is_recreated(deployment) => bounds(
                rolling.max_surge.as_ref(),
                rolling.max_unavailable.as_ref(),
                replicas,
            ),
            Some(_) | None => (0, 0),
        };
        let mut sets = facts.sets.clone();
        sets.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
        Self {
            new: sets.iter().position(|set| set.is_current),
            deployment,
            wanted: Wanted {
                name: facts.key.name.clone(),
                generation: deployment.metadata.generation.unwrap_or_default(),
                replicas,
                may_miss: missing.min(replicas),
                deadline: deadline(deployment),
                now,
            },
            spec,
            surge,
            sets,
            status: Status::of(deployment),
            steps: Vec::new(),
        }
    }

    /// The steps for a Deployment.
    pub(super) fn plan(mut self) -> Plan<Step> {
        let before = self.status.clone();
        if is_leaving(&self.deployment.metadata) {
            return self.end(&before, false);
        }
        self.pauses();
        let paused = self.spec.paused == Some(true);
        if paused || self.is_scaled() {
            self.renew();
            self.scale();
            if paused {
                self.clean();
            }
            return self.end(&before, false);
        }
        if is_recreated(self.deployment) {
            self.recreate();
        } else {
            self.roll();
        }
        self.end(&before, true)
    }

    fn end(mut self, before: &Status, judged: bool) -> Plan<Step> {
        let new = self.new.map(|at| self.sets[at].clone());
        self.status.count(&self.sets, new.as_ref(), &self.wanted);
        if judged {
            self.status.judge(before, new.as_ref(), &self.wanted);
            self.status.blame(&self.sets, new.as_ref(), self.wanted.now);
        }
        let requeue = self.deadline_left().filter(|_| judged);
        if self.status != *before {
            self.steps.push(Step::Status(self.status));
        }
        let actions = self.steps;
        Plan { actions, requeue }
    }

    /// Time until the progress deadline has passed.
    fn deadline_left(&self) -> Option<Duration> {
        let deadline = self.wanted.deadline?;
        let Wanted {
            replicas,
            generation,
            ..
        } = self.wanted;
        let current = find(&self.status.conditions, PROGRESSING)?;
        if current.reason == status::TIMED_OUT || self.status.is_complete(replicas, generation) {
            return None;
        }
        let due = later(current.updated?, deadline);
        let left = due
            .duration_since(self.wanted.now)
            .max(SignedDuration::ZERO);
        // One second more, as times are written in whole seconds.
        Duration::try_from(left + SignedDuration::from_secs(1)).ok()
    }

    fn say(&mut self, status: &str, reason: &str, message: &str) {
        let now = self.wanted.now;
        let condition = Condition::new(PROGRESSING, status, reason, message, now);
        condition::set(&mut self.status.conditions, condition);
    }

    /// A paused Deployment does not progress, and its progress deadline starts again when it is
    /// resumed.
    fn pauses(&mut self) {
        if self.wanted.deadline.is_none() {
            return;
        }
        let reason = find(&self.status.conditions, PROGRESSING).map(|known| known.reason.clone());
        if reason.as_deref() == Some(status::TIMED_OUT) {
            return;
        }
        let was = reason.as_deref() == Some(status::PAUSED);
        match (self.spec.paused == Some(true), was) {
            (true, false) => self.say("Unknown", status::PAUSED, "Deployment is paused"),
            (false, true) => self.say("Unknown", status::RESUMED, "Deployment is resumed"),
            (true, true) | (false, false) => {}
        }
    }

    fn total(&self) -> i32 {
        sum(self.sets.iter().map(|set| set.replicas))
    }

    fn active(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sets.len()).filter(|at| self.sets[*at].replicas > 0)
    }

    fn old(&self) -> Vec<usize> {
        (0..self.sets.len())
            .filter(|at| self.new != Some(*at))
            .collect()
    }

    /// Whether the Deployment's replicas changed since the ReplicaSets were scaled.
    fn is_scaled(&self) -> bool {
        let differs = |set: &Set| {
            let known = set.number(DESIRED);
            known.is_some_and(|known| known != i64::from(self.wanted.replicas))
        };
        self.sets.iter().any(|set| set.replicas > 0 && differs(set))
    }

    /// Changes a ReplicaSet's number of pods and its annotations with the Deployment's numbers;
    /// returns whether the number of pods changed.
    fn scale_to(&mut self, at: usize, replicas: i32) -> bool {
        let marks = self.marks();
        let set = &mut self.sets[at];
        let mut change = Change::default();
        if set.replicas != replicas {
            change.scaled = Some((set.replicas, replicas));
            set.replicas = replicas;
        }
        for (key, value) in marks {
            if set.annotations.get(&key) != Some(&value) {
                set.annotations.insert(key.clone(), value.clone());
                change.annotations.insert(key, value);
            }
        }
        let scaled = change.scaled.is_some();
        // A ReplicaSet that is yet to be created gets its numbers with the creation.
        if !change.is_empty() && !set.uid.is_empty() {
            let step = Step::Change(set.name.clone(), set.uid.clone(), change);
            self.steps.push(step);
        }
        scaled
    }

    /// The most pods that may be wanted: `replicas` plus `maxSurge`.
    fn most(&self) -> i32 {
        self.wanted.replicas.saturating_add(self.surge)
    }

    fn marks(&self) -> [(String, String); 2] {
        let most = self.most();
        [
            (DESIRED.to_owned(), self.wanted.replicas.to_string()),
            (MOST.to_owned(), most.to_string()),
        ]
    }

    /// The next number of pods of the current ReplicaSet.
    fn next(&self, current: i32) -> i32 {
        let replicas = self.wanted.replicas;
        if is_recreated(self.deployment) {
            return replicas;
        }
        let room = self.most() - self.total();
        if room <= 0 {
            return current;
        }
        current + room.min(replicas - current)
    }

    /// Brings the current ReplicaSet's revision, annotations and `minReadySeconds` up to date, if
    /// it exists.
    fn renew(&mut self) {
        let Some(at) = self.new else { return };
        let next = self.next_revision();
        let copied = self.copied();
        let least_ready = self.spec.min_ready_seconds.unwrap_or_default();
        let set = &mut self.sets[at];
        let mut change = Change::default();
        for (key, value) in copied {
            if set.annotations.get(&key) != Some(&value) {
                change.annotations.insert(key, value);
            }
        }
        if set.revision() < next {
            if let Some(former) = set.annotations.get(REVISION) {
                let history = history(set.annotations.get(HISTORY), former);
                change.annotations.insert(HISTORY.to_owned(), history);
            }
            change
                .annotations
                .insert(REVISION.to_owned(), next.to_string());
        }
        set.annotations.extend(change.annotations.clone());
        if set.least_ready != least_ready {
            set.least_ready = least_ready;
            change.least_ready = Some(least_ready);
        }
        let (name, revision) = (set.name.clone(), set.revision().to_string());
        if !change.is_empty() {
            self.steps
                .push(Step::Change(name.clone(), set.uid.clone(), change));
        }
        self.number(&revision);
        if self.wanted.deadline.is_some() && find(&self.status.conditions, PROGRESSING).is_none() {
            self.say(
                "True",
                status::FOUND,
                &format!("Found new replica set {name:?}"),
            );
        }
    }

    fn number(&mut self, revision: &str) {
        let known = self.deployment.metadata.annotations.as_ref();
        let known = known.and_then(|all| all.get(REVISION));
        if known.map(String::as_str) != Some(revision) {
            self.steps.push(Step::Revision(revision.to_owned()));
        }
    }

    fn next_revision(&self) -> i64 {
        let old = self.old();
        let last = old.iter().map(|at| self.sets[*at].revision()).max();
        last.unwrap_or_default().saturating_add(1)
    }

    fn copied(&self) -> Labels {
        let own = self.deployment.metadata.annotations.clone();
        let mut own = own.unwrap_or_default();
        own.retain(|key, _| !NOT_COPIED.contains(&key.as_str()));
        own
    }

    /// As [`Self::renew`]; creates the ReplicaSet of the current template if there is none.
    fn renew_or_create(&mut self) {
        if self.new.is_some() {
            return self.renew();
        }
        let revision = self.next_revision().to_string();
        let replicas = self.next(0);
        let mut annotations = self.copied();
        annotations.insert(REVISION.to_owned(), revision.clone());
        annotations.extend(self.marks());
        let set = self.made(replicas, annotations);
        let name = set.metadata.name.clone().unwrap_or_default();
        let mut counted = Set::of(&set, self.deployment);
        counted.is_current = true;
        self.new = Some(self.sets.len());
        self.sets.push(counted);
        self.steps.push(Step::Create(Box::new(set)));
        self.number(&revision);
        if self.wanted.deadline.is_some() {
            self.say(
                "True",
                status::CREATED,
                &format!("Created new replica set {name:?}"),
            );
        }
    }

    fn made(&self, replicas: i32, annotations: Labels) -> ReplicaSet {
        let canonical = plain(&self.spec.template).to_tree().unwrap_or_default();
        let hash = hash(&canonical, self.status.collisions);
        let mut template = self.spec.template.clone();
        let labels = &mut template.metadata.get_or_insert_default().labels;
        labels
            .get_or_insert_default()
            .insert(HASH.to_owned(), hash.clone());
        let labels = labels.clone();
        let mut selector = self.spec.selector.clone();
        selector
            .match_labels
            .get_or_insert_default()
            .insert(HASH.to_owned(), hash.clone());
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{}-{hash}", self.wanted.name)),
                namespace: self.deployment.metadata.namespace.clone(),
                labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controls(self.deployment)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                min_ready_seconds: self.spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        }
    }

    fn roll(&mut self) {
        self.renew_or_create();
        let Some(new) = self.new else { return };
        let current = self.sets[new].replicas;
        let replicas = self.wanted.replicas;
        let next = if current > replicas {
            replicas
        } else {
            self.next(current)
        };
        if current != next && self.scale_to(new, next) {
            return;
        }
        if self.shrink(new) {
            return;
        }
        if self.status.is_complete(replicas, self.wanted.generation) {
            self.clean();
        }
    }

    /// Scales old ReplicaSets down, as far as `maxUnavailable` allows; returns whether it did.
    fn shrink(&mut self, new: usize) -> bool {
        let old: Vec<usize> = self.active().filter(|at| *at != new).collect();
        if old.is_empty() {
            return false;
        }
        let least = self.wanted.replicas - self.wanted.may_miss;
        let coming = self.sets[new].replicas - self.sets[new].serving();
        let room = (self.total() - least).saturating_sub(coming);
        if room <= 0 {
            return false;
        }
        // Unavailable pods go first: deleting them costs no availability.
        let mut gone = 0;
        for at in old.iter().copied() {
            let take = self.sets[at].broken().min(room - gone);
            if take > 0 {
                gone += take;
                self.scale_to(at, self.sets[at].replicas - take);
            }
        }
        let serving = old.iter().chain([&new]).map(|at| self.sets[*at].serving());
        let mut spare = sum(serving) - least;
        for at in old {
            let replicas = self.sets[at].replicas;
            let take = replicas.min(spare);
            if take > 0 {
                spare -= take;
                gone += take;
                self.scale_to(at, replicas - take);
            }
        }
        gone > 0
    }

    fn recreate(&mut self) {
        self.renew();
        let old: Vec<usize> = self.active().filter(|at| self.new != Some(*at)).collect();
        let mut any = false;
        for at in old {
            any |= self.scale_to(at, 0);
        }
        let runs = |at: &usize| self.sets[*at].actual > 0 || self.sets[*at].runs;
        if any || self.old().iter().any(runs) {
            return;
        }
        if self.new.is_none() {
            self.renew_or_create();
        }
        if let Some(new) = self.new {
            self.scale_to(new, self.wanted.replicas);
        }
        if self
            .status
            .is_complete(self.wanted.replicas, self.wanted.generation)
        {
            self.clean();
        }
    }

    /// Deletes old ReplicaSets beyond the limit of history, the oldest revisions first.
    fn clean(&mut self) {
        let Some(limit) = self.spec.revision_history_limit else {
            return;
        };
        let mut old: Vec<usize> = self.old();
        old.retain(|at| !self.sets[*at].leaving);
        old.sort_by_key(|at| self.sets[*at].revision());
        let spare = old
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        for set in old.iter().take(spare).map(|at| &self.sets[*at]) {
            if set.actual == 0 && set.replicas == 0 && set.observed {
                let step = Step::Delete(set.name.clone(), set.uid.clone());
                self.steps.push(step);
            }
        }
    }

    /// Distributes a changed number of replicas over the ReplicaSets: all to the only active one,
    /// else to each in proportion to its size.
    fn scale(&mut self) {
        let active: Vec<usize> = self.active().collect();
        let only = match active.as_slice() {
            [] => self.new.or_else(|| self.sets.len().checked_sub(1)),
            [only] => Some(*only),
            _ => None,
        };
        let replicas = self.wanted.replicas;
        if let Some(only) = only {
            // Also if it has that many: its annotation with the Deployment's replicas must follow.
            // Otherwise each later plan would be a scaling, and the rollout would never continue.
            self.scale_to(only, replicas);
            return;
        }
        if self.new.is_some_and(|new| self.is_saturated(new)) {
            let new = self.new;
            for at in active.into_iter().filter(|at| new != Some(*at)) {
                self.scale_to(at, 0);
            }
        } else if !is_recreated(self.deployment) {
            self.spread(active);
        }
    }

    fn is_saturated(&self, at: usize) -> bool {
        let set = &self.sets[at];
        let replicas = self.wanted.replicas;
        set.replicas == replicas
            && set.number(DESIRED) == Some(i64::from(replicas))
            && set.serving() == replicas
    }

    fn spread(&mut self, mut active: Vec<usize>) {
        let replicas = self.wanted.replicas;
        let allowed = if replicas > 0 { self.most() } else { 0 };
        let total = sum(active.iter().map(|at| self.sets[*at].replicas));
        let add = allowed - total;
        // The largest first; of two equal ones the newer grows first, and the older shrinks first.
        // `active` is in order of age.
        active.sort_by_key(|at| {
            let age = i64::try_from(*at).unwrap_or_default();
            (-self.sets[*at].replicas, if add > 0 { -age } else { age })
        });
        let mut added = 0;
        let mut sizes = Vec::new();
        for at in &active {
            let set = &self.sets[*at];
            let share = if add == 0 { 0 } else { self.share(set) };
            let left = add - added;
            let share = if add > 0 {
                share.min(left)
            } else {
                share.max(left)
            };
            added += share;
            sizes.push(set.replicas.saturating_add(share));
        }
        if let Some(first) = sizes.first_mut() {
            *first = first.saturating_add(add - added).max(0);
        }
        for (at, size) in active.into_iter().zip(sizes) {
            self.scale_to(at, size);
        }
    }

    /// By how much a ReplicaSet grows or shrinks to keep its proportion.
    fn share(&self, set: &Set) -> i32 {
        if self.wanted.replicas == 0 {
            return -set.replicas;
        }
        let before = set.number(MOST).filter(|most| *most > 0);
        let before = i128::from(before.unwrap_or_else(|| i64::from(self.status.replicas)));
        if before <= 0 {
            return 0;
        }
        let most = i128::from(self.most());
        // Rounded to the nearest, halves up.
        let size = (2 * i128::from(set.replicas) * most + before).div_euclid(2 * before);
        i32::try_from(size).unwrap_or(i32::MAX) - set.replicas
    }
}

/// The list of former revisions with one more; drops the oldest if it becomes too long.
fn history(known: Option<&String>, former: &str) -> String {
    let mut all: Vec<&str> = known.iter().flat_map(|known| known.split(',')).collect();
    all.retain(|one| !one.is_empty());
    all.push(former);
    while all.len() > 1 && all.iter().map(|one| one.len() + 1).sum::<usize>() > LONGEST_HISTORY {
        all.remove(0);
    }
    all.join(",")
}
