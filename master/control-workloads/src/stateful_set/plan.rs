//! The plan for a StatefulSet: creates pods from the first ordinal, deletes and replaces them from
//! the last.

use super::Facts;
use super::claims::{self, Owners, Policy};
use super::pod::{INDEX, NAME, claim_name, ordinal};
use crate::workload::amount::{Round, amount};
use crate::workload::claim::OwnerChange;
use crate::workload::kept::{controls, is_leaving};
use crate::workload::make::BURST;
use crate::workload::pod::OwnedPod;
use crate::workload::revision::{self, HASH};
use config_kube::k8s_openapi::api::apps::v1::{StatefulSetSpec, StatefulSetStatus};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use jiff::{SignedDuration, Timestamp};
use master_client::Key;
use master_control::controller::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A write for a StatefulSet.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Adopts or releases a pod.
    Own(OwnerChange),
    /// Creates, renumbers or deletes a revision.
    Revision(revision::Step),
    /// Creates the pod of a place, from a revision.
    Create(i32, String),
    /// Creates the missing claims of a place, for which its pod waits.
    Demand(i32),
    /// Sets the owner of a place's claim by the retention policy.
    Claim(i32, Owners),
    /// Restores the labels with the place of a pod with this name and UID.
    Label(String, String),
    /// Deletes a pod with this name and UID.
    Delete(String, String),
    /// Writes the status.
    Status(Box<StatefulSetStatus>),
}

/// A plan as it grows.
struct Work<'a> {
    spec: &'a StatefulSetSpec,
    facts: &'a Facts,
    now: Timestamp,
    /// Pods by their place.
    places: BTreeMap<i32, &'a Arc<OwnedPod>>,
    first: i32,
    replicas: i32,
    /// The revision of new pods below the partition, and the one to which all are updated.
    current: String,
    update: String,
    steps: Vec<Step>,
    wake: Option<SignedDuration>,
}

/// The steps for a StatefulSet.
pub(super) fn plan(facts: &Facts, now: Timestamp) -> Plan<Step> {
    let set = &facts.set;
    let Some(spec) = &set.spec else {
        return Plan::nothing();
    };
    if !facts.revision_changes.is_empty() {
        let changes = facts.revision_changes.iter().cloned();
        let own = changes.map(|change| Step::Revision(revision::Step::Own(change)));
        return Plan::all(own.collect());
    }
    let before = set.status.clone().unwrap_or_default();
    let owner = controls(&set.0);
    let update = revision::current(
        &owner,
        &set.metadata,
        &spec.template,
        before.collision_count,
        &facts.revisions,
        // No hashes in use: as upstream, the newest revision of this content counts.
        &BTreeSet::new(),
    );
    let revised = update.step.map(Step::Revision);
    let known = before.current_revision.clone().unwrap_or_default();
    let is_known = facts.revisions.iter().any(|(key, _)| key.name == known);
    let mut work = Work {
        places: places(facts),
        first: spec
            .ordinals
            .as_ref()
            .and_then(|one| one.start)
            .unwrap_or_default(),
        replicas: spec.replicas.unwrap_or(1),
        current: if is_known { known } else { update.name.clone() },
        update: update.name,
        spec,
        facts,
        now,
        steps: Vec::new(),
        wake: None,
    };
    let status = work.status(&before);
    if status != before {
        work.steps.push(Step::Status(Box::new(status)));
    }
    // A StatefulSet that is being deleted only gets its status.
    if is_leaving(&set.metadata) {
        return work.done();
    }
    // The revision comes first, as the status names it, and pods are made once it is seen. The
    // status does not wait for that: clients look for the generation right after their change.
    if let Some(revised) = revised {
        work.steps.insert(0, revised);
        return Plan::all(work.steps);
    }
    work.forget();
    work.mend();
    if work.fill() && work.empty() {
        work.renew();
    }
    work.done()
}

/// Pods by the ordinal in their names.
fn places(facts: &Facts) -> BTreeMap<i32, &Arc<OwnedPod>> {
    let pods = facts.pods.iter();
    let place = |(key, _): &&(Arc<Key>, Arc<OwnedPod>)| ordinal(&facts.key.name, &key.name);
    pods.filter_map(|owned| Some((place(&owned)?, &owned.1)))
        .collect()
}

impl Work<'_> {
    fn done(self) -> Plan<Step> {
        let requeue = self.wake.and_then(|wake| Duration::try_from(wake).ok());
        let actions = self.steps;
        Plan { actions, requeue }
    }

    fn is_wanted(&self, place: i32) -> bool {
        (self.first..self.end()).contains(&place)
    }

    /// The ordinal after the last.
    fn end(&self) -> i32 {
        self.first.saturating_add(self.replicas)
    }

    fn name(&self, place: i32) -> String {
        format!("{}-{place}", self.facts.key.name)
    }

    fn is_ordered(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    /// Whether a pod is available and is not being deleted.
    fn is_available(&mut self, pod: &OwnedPod) -> bool {
        pod.deleted.is_none() && self.serves(pod)
    }

    /// Whether a pod has been ready for `minReadySeconds`, even if it is being deleted.
    fn serves(&mut self, pod: &OwnedPod) -> bool {
        if &*pod.phase != "Running" {
            return false;
        }
        let least = self.spec.min_ready_seconds.unwrap_or_default();
        match pod.available_in(least, self.now) {
            Some(left) if left > SignedDuration::ZERO => {
                self.wake = Some(self.wake.map_or(left, |known| known.min(left)));
                false
            }
            Some(_) => true,
            None => false,
        }
    }

    /// The first ordinal that gets the new revision; pods below keep theirs. `None` for `OnDelete`.
    fn partition(&self) -> Option<i32> {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|one| one.type_.as_deref()) == Some("OnDelete") {
            return None;
        }
        let rolling = strategy.and_then(|one| one.rolling_update.as_ref());
        let partition = rolling.and_then(|one| one.partition).unwrap_or_default();
        Some(self.first.saturating_add(partition))
    }

    fn revision_of(&self, place: i32) -> String {
        let kept = self.partition().is_some_and(|partition| place < partition);
        if kept {
            self.current.clone()
        } else {
            self.update.clone()
        }
    }

    /// Restores labels of pods and sets owners of their claims. Claims of spare pods get theirs
    /// before the pods are deleted.
    fn mend(&mut self) {
        let policy = Policy::of(self.spec);
        let set = controls(&self.facts.set.0);
        let templates = self.spec.volume_claim_templates.iter().flatten();
        let templates: Vec<_> = templates.collect();
        let places = self.places.clone();
        for (place, pod) in places {
            let name = self.name(place);
            let named = pod.label(NAME) == name && pod.label(INDEX) == place.to_string();
            if !named && pod.deleted.is_none() {
                self.steps.push(Step::Label(name.clone(), pod.uid.clone()));
            }
            let owner = OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name,
                uid: pod.uid.clone(),
                ..set.clone()
            };
            let spare = !self.is_wanted(place);
            let mut is_missing = false;
            for template in &templates {
                let claim = claim_name(&self.facts.key.name, place, template);
                let Some(known) = self.facts.claims.get(&claim) else {
                    is_missing = true;
                    continue;
                };
                let change = claims::change(&claim, known, policy, &set, &owner, spare);
                self.steps
                    .extend(change.map(|change| Step::Claim(place, change)));
            }
            let waits = &*pod.phase == "Pending" && pod.deleted.is_none();
            if is_missing && waits && !spare {
                self.steps.push(Step::Demand(place));
            }
        }
    }

    /// Creates missing pods from the first place on; returns whether all exist and, if ordered, are
    /// available.
    fn fill(&mut self) -> bool {
        let mut whole = true;
        let mut made = 0;
        for place in self.first..self.end() {
            // The others are created once these are seen.
            if made == BURST {
                return false;
            }
            let pod = self.places.get(&place).copied().cloned();
            let serves = match pod {
                None => {
                    self.steps
                        .push(Step::Create(place, self.revision_of(place)));
                    made += 1;
                    false
                }
                Some(pod) if pod.ended() && pod.deleted.is_none() => {
                    self.steps
                        .push(Step::Delete(self.name(place), pod.uid.clone()));
                    false
                }
                Some(pod) => self.is_available(&pod),
            };
            whole &= serves;
            if !serves && self.is_ordered() {
                return false;
            }
        }
        whole || !self.is_ordered()
    }

    /// Deletes pods of places that are no longer wanted, from the last; returns whether none are
    /// left. If ordered, an unavailable pod stays while one before it is unavailable, too, so that
    /// people find a fault as it was (upstream).
    fn empty(&mut self) -> bool {
        let places = self.places.iter().rev();
        let places = places.map(|(place, pod)| (*place, Arc::clone(pod)));
        let spare: Vec<_> = places
            .filter(|(place, _)| !self.is_wanted(*place))
            .collect();
        let mut down = spare.iter().rev();
        let first_down = down.find(|(_, pod)| !pod.ended() && !self.is_available(pod));
        let first_down = first_down.map(|(place, _)| *place);
        for (place, pod) in &spare {
            let waits = first_down.is_some_and(|first| first < *place)
                && !pod.ended()
                && !self.is_available(pod);
            if pod.deleted.is_none() && !(waits && self.is_ordered()) {
                self.steps
                    .push(Step::Delete(self.name(*place), pod.uid.clone()));
            }
            if self.is_ordered() {
                return false;
            }
        }
        spare.is_empty()
    }

    /// Deletes pods of other revisions from the last: first unavailable ones, as that costs
    /// nothing, then others as `maxUnavailable` allows. All wanted places count for that, also
    /// those below the partition and those without a pod (upstream from 1.37).
    fn renew(&mut self) {
        let Some(partition) = self.partition() else {
            return;
        };
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|one| one.rolling_update.as_ref());
        let most = rolling.and_then(|one| one.max_unavailable.as_ref());
        let most = most.map_or(1, |given| amount(given, self.replicas, Round::Down).max(1));
        let places = self.places.iter().rev();
        let places = places.filter(|(place, _)| self.is_wanted(**place));
        let places: Vec<(i32, Arc<OwnedPod>)> = places
            .map(|(place, pod)| (*place, Arc::clone(pod)))
            .collect();
        let (serving, others): (Vec<_>, Vec<_>) = places
            .into_iter()
            .partition(|(_, pod)| self.is_available(pod));
        let serve = i32::try_from(serving.len()).unwrap_or(i32::MAX);
        let spare = most.saturating_sub(self.replicas.saturating_sub(serve));
        let spare = usize::try_from(spare).unwrap_or_default();
        // A pod that ended by itself is deleted anyway, when its place is filled again.
        let is_old = |(place, pod): &(i32, Arc<OwnedPod>)| {
            *place >= partition
                && pod.label(HASH) != self.update
                && pod.deleted.is_none()
                && !pod.ended()
        };
        let others = others.into_iter().filter(is_old);
        let ends = others.chain(serving.into_iter().filter(is_old).take(spare));
        let ends = ends.map(|(place, pod)| Step::Delete(self.name(place), pod.uid.clone()));
        let ends: Vec<Step> = ends.collect();
        self.steps.extend(ends);
    }

    fn forget(&mut self) {
        let pods = self.facts.pods.iter();
        let mut used: BTreeSet<&str> = pods.map(|(_, pod)| pod.label(HASH)).collect();
        used.extend([self.current.as_str(), self.update.as_str()]);
        let old = revision::beyond(
            &self.facts.revisions,
            &used,
            self.spec.revision_history_limit,
        );
        let old: Vec<Step> = old.into_iter().map(Step::Revision).collect();
        self.steps.extend(old);
    }

    fn status(&mut self, before: &StatefulSetStatus) -> StatefulSetStatus {
        let pods: Vec<Arc<OwnedPod>> = self.places.values().copied().cloned().collect();
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        for pod in &pods {
            let runs = &*pod.phase == "Running" && pod.ready.is_some();
            ready += i32::from(runs);
            available += i32::from(self.serves(pod));
            if pod.deleted.is_none() {
                current += i32::from(pod.label(HASH) == self.current);
                updated += i32::from(pod.label(HASH) == self.update);
            }
        }
        let replicas = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        let rolls = self.partition().is_some();
        let done = [updated, ready, replicas]
            .iter()
            .all(|count| *count == self.replicas);
        if rolls && done {
            self.current.clone_from(&self.update);
            current = updated;
        }
        StatefulSetStatus {
            available_replicas: Some(available),
            collision_count: before.collision_count,
            conditions: before.conditions.clone(),
            current_replicas: Some(current),
            current_revision: Some(self.current.clone()),
            observed_generation: self.facts.set.metadata.generation,
            ready_replicas: Some(ready),
            replicas,
            update_revision: Some(self.update.clone()),
            updated_replicas: Some(updated),
        }
    }
}
