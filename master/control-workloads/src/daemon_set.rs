//! The DaemonSet controller: keeps a pod on each node that fits.

use crate::workload::action;
use crate::workload::amount::{Round, amount};
use crate::workload::claim::OwnerChange;
use crate::workload::kept::{Kept, Selects, controls, is_leaving};
use crate::workload::make::{self, BURST};
use crate::workload::node_facts::{NodeFacts, fits};
use crate::workload::pod::{OwnedPod, PodId, Pods};
use crate::workload::ready::ReadyTimes;
use crate::workload::revision::{self, HASH, Revisions};
use crate::workload::waits::{OfNodes, Version, Waits};
use config_kube::k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus,
};
use config_kube::k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, Pod,
    PodSpec, PodTemplateSpec, Toleration,
};
use config_kube::taints::{
    NO_EXECUTE, NO_SCHEDULE, NOT_READY, PRESSURES, UNREACHABLE, UNSCHEDULABLE,
};
use jiff::{SignedDuration, Timestamp};
use master_client::{ApiError, Delta, Entries, Key, Patch, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Label: the number of the template from which a pod was created.
const GENERATION: &str = "pod-template-generation";

/// The controller. Its keys are DaemonSets.
#[derive(Debug)]
pub struct DaemonSets {
    sets: Store<Kept<DaemonSet>>,
    revisions: Revisions,
    pods: Pods,
    nodes: Store<NodeFacts>,
    waits: Waits,
    ready: ReadyTimes,
}

/// A DaemonSet with its pods and all nodes.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub set: Arc<Kept<DaemonSet>>,
    /// Its revisions.
    pub revisions: Entries<Kept<ControllerRevision>>,
    /// Revisions that it adopts or releases.
    pub revision_changes: Vec<OwnerChange>,
    /// Its pods.
    pub pods: Entries<OwnedPod>,
    /// Pods that it adopts or releases.
    pub owner_changes: Vec<OwnerChange>,
    /// All nodes.
    pub nodes: Entries<NodeFacts>,
    /// Back-off of failed pods, by node.
    pub waits: OfNodes,
}

/// An action on the DaemonSet with a UID.
pub type Action = action::Action<Step>;

/// A write for a DaemonSet.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Adopts or releases a pod.
    Own(OwnerChange),
    /// Creates, renumbers or deletes a revision.
    Revision(revision::Step),
    /// Creates pods on these nodes, from the template with this hash.
    Create(Vec<String>, String),
    /// Records the event that a pod has ended by itself and will be replaced.
    Event(Ended),
    /// Deletes pods.
    Delete(Vec<PodId>),
    /// Writes the status.
    Status(Box<DaemonSetStatus>),
}

/// A pod that has ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Whether it failed.
    pub failed: bool,
    /// When that was found.
    pub at: Instant,
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemonset-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "daemonsets", &["get", "list", "watch"]),
        right("apps", "daemonsets/status", &["patch"]),
        right(
            "apps",
            "controllerrevisions",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        right("", "nodes", &["list", "watch"]),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let sets: Store<Kept<DaemonSet>> = setup.follow_keys();
        let pods = Pods::follow(setup, &sets);
        let revisions = Revisions::follow(setup, &sets);
        let all = sets.clone();
        let nodes = setup.follow(move |_: &Delta<NodeFacts>, keys| {
            keys.extend(all.keys().iter().map(|key| (**key).clone()));
        });
        Self {
            sets,
            revisions,
            pods,
            nodes,
            waits: Waits::default(),
            ready: ReadyTimes::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let Some(set) = self.sets.get(key) else {
            self.waits.forget(key);
            self.ready.forget(key);
            return None;
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let spec = set.spec.as_ref();
        let least = spec.and_then(|spec| spec.min_ready_seconds);
        let pods = self.pods.of(&uid);
        let pods = self
            .ready
            .on_clock(key, least.unwrap_or_default(), pods, now);
        let revisions = self.revisions.of(&uid);
        let wants = |_: &Key, pod: &OwnedPod| set.wants(&pod.labels);
        Some(Facts {
            key: key.clone(),
            owner_changes: self.pods.owner_changes(&set.metadata, &pods, wants),
            revision_changes: self.revisions.owner_changes(&set.0, &revisions),
            revisions,
            nodes: self.nodes.all(),
            waits: self.waits.of(key, &version(&set)),
            set,
            pods,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let (key, meta) = (&facts.key, &facts.set.metadata);
        Action::after_owners(key, meta, &facts.owner_changes, Step::Own, || {
            plan(facts, now)
        })
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Action { key, uid, step } = action;
        let Some(set) = action::current(&self.sets, &key, &uid) else {
            return Ok(());
        };
        let owner = controls(&set.0);
        let about = make::reference(&owner, &key.namespace);
        match step {
            Step::Own(change) => change.carry_out::<DaemonSet, Pod>(writer, &owner).await,
            Step::Revision(step) => {
                let status = set.status.as_ref();
                let collisions = status.and_then(|status| status.collision_count);
                let namespace = &key.namespace;
                revision::carry_out::<DaemonSet>(writer, &owner, namespace, collisions, step).await
            }
            Step::Create(nodes, hash) => {
                let Some(spec) = &set.spec else { return Ok(()) };
                let template = template(&set, spec, &hash);
                let pod = make::pod_of(&template, &owner, &key.namespace);
                let pods = nodes.iter().map(|node| bound_for(&pod, node));
                make::create(writer, &about, pods.collect()).await
            }
            Step::Event(ended) => {
                if ended.failed {
                    self.waits.note(&key, &version(&set), &ended.node, ended.at);
                }
                let pod = Key::new(&key.namespace, &ended.pod);
                record_ended(writer, &about, &pod, &ended).await;
                Ok(())
            }
            Step::Delete(pods) => make::delete(writer, &about, &pods).await,
            Step::Status(status) => {
                let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": status}));
                writer
                    .patch_status::<DaemonSet>(&key, &patch)
                    .await
                    .map(drop)
            }
        }
    }
}

/// The specification to which a DaemonSet's back-off belongs.
fn version(set: &DaemonSet) -> Version {
    Version {
        uid: set.metadata.uid.clone().unwrap_or_default(),
        generation: set.metadata.generation.unwrap_or_default(),
    }
}

async fn record_ended(writer: &Writer, about: &ObjectReference, pod: &Key, ended: &Ended) {
    let (severity, reason, found, will) = if ended.failed {
        (Severity::Warning, "FailedDaemonPod", "failed", "kill")
    } else {
        (
            Severity::Normal,
            "SucceededDaemonPod",
            "succeeded",
            "delete",
        )
    };
    let node = &ended.node;
    let text = format!("Found {found} daemon pod {pod} on node {node}, will try to {will} it");
    make::record_event(writer, about, severity, reason, text).await;
}

/// The template with the additions for daemon pods: labels with its hash and number, and the
/// default tolerations.
fn template(set: &DaemonSet, spec: &DaemonSetSpec, hash: &str) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.to_owned());
    labels.insert(GENERATION.to_owned(), generation(set));
    if let Some(spec) = &mut template.spec {
        spec.tolerations = Some(tolerations(spec));
    }
    template
}

/// The number of the template: the API counts it in an annotation.
fn generation(set: &DaemonSet) -> String {
    let annotations = set.metadata.annotations.as_ref();
    let known = annotations.and_then(|all| all.get("deprecated.daemonset.template.generation"));
    let counted = || set.metadata.generation.unwrap_or_default().to_string();
    known.cloned().unwrap_or_else(counted)
}

fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut all = spec.tolerations.clone().unwrap_or_default();
    let host = spec.host_network == Some(true);
    let pressures = PRESSURES.iter().map(|(_, key)| *key);
    let pressures = pressures.filter(|key| host || !key.ends_with("network-unavailable"));
    let evicting = [NOT_READY, UNREACHABLE].map(|key| (key, NO_EXECUTE));
    let keeping = pressures
        .chain([UNSCHEDULABLE])
        .map(|key| (key, NO_SCHEDULE));
    for (key, effect) in evicting.into_iter().chain(keeping) {
        let own = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !all.contains(&own) {
            all.push(own);
        }
    }
    all
}

/// A pod with an affinity to one node only.
fn bound_for(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else {
        return pod;
    };
    let named = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm {
        match_fields: Some(vec![named]),
        match_expressions: None,
    };
    let affinity = spec.affinity.get_or_insert_default();
    let nodes: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    nodes.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
    pod
}

type Owned = (Arc<Key>, Arc<OwnedPod>);

/// A node with its daemon pods.
#[derive(Debug, Default)]
struct NodePods<'a> {
    /// Whether there is a node of this name.
    known: bool,
    /// Whether a daemon pod should run on it.
    should_run: bool,
    /// Whether a daemon pod that runs on it should continue to.
    should_continue: bool,
    pods: Vec<&'a Owned>,
}

/// The steps for a DaemonSet.
fn plan(facts: &Facts, now: Now) -> Plan<Step> {
    let set = &facts.set;
    let Some(spec) = set.spec.as_ref().filter(|_| !is_leaving(&set.metadata)) else {
        return Plan::nothing();
    };
    if !facts.revision_changes.is_empty() {
        let changes = facts.revision_changes.iter().cloned();
        let own = changes.map(|change| Step::Revision(revision::Step::Own(change)));
        return Plan::all(own.collect());
    }
    let status = set.status.as_ref();
    let collisions = status.and_then(|status| status.collision_count);
    let owner = controls(&set.0);
    let mut used: BTreeSet<&str> = facts.pods.iter().map(|(_, pod)| pod.label(HASH)).collect();
    let current = revision::current(
        &owner,
        &set.metadata,
        &spec.template,
        collisions,
        &facts.revisions,
        &used,
    );
    let nodes = nodes_to_pods(facts, spec);
    let mut work = Work {
        spec,
        hash: &current.hash,
        content_hash: &current.content_hash,
        now: now.wall,
        instant: now.instant,
        waits: &facts.waits,
        create: Vec::new(),
        delete: BTreeMap::new(),
        ended: Vec::new(),
        wake: None,
    };
    // The revision comes first, as pods are made of it once it is seen. The status does not wait
    // for that: clients look for the generation right after their change.
    if let Some(step) = current.step {
        let mut steps = vec![Step::Revision(step)];
        steps.extend(work.status_step(set, &nodes));
        return Plan::all(steps);
    }
    for (name, node) in &nodes {
        work.keep(name, node);
    }
    if work.create.is_empty() && work.delete.is_empty() {
        work.roll(&nodes);
    }
    let mut steps: Vec<Step> = work.status_step(set, &nodes).into_iter().collect();
    used.insert(&current.hash);
    let old = revision::beyond(&facts.revisions, &used, spec.revision_history_limit);
    steps.extend(old.into_iter().map(Step::Revision));
    work.done(steps)
}

/// The nodes with their daemon pods; nodes that are gone have pods only.
fn nodes_to_pods<'a>(facts: &'a Facts, spec: &DaemonSetSpec) -> BTreeMap<&'a str, NodePods<'a>> {
    let mut all: BTreeMap<&str, NodePods<'_>> = BTreeMap::new();
    let empty = PodSpec::default();
    let pod = spec.template.spec.as_ref().unwrap_or(&empty);
    let tolerations = tolerations(pod);
    for (key, place) in &facts.nodes {
        let (should_run, should_continue) = fits(pod, &tolerations, &key.name, place);
        let node = all.entry(&key.name).or_default();
        node.known = true;
        (node.should_run, node.should_continue) = (should_run, should_continue);
    }
    for owned in &facts.pods {
        let target = owned.1.target();
        // A pod without a node and without an affinity to one is not a daemon pod of any node.
        if !target.is_empty() {
            all.entry(target).or_default().pods.push(owned);
        }
    }
    // Where surplus pods are deleted, the first stays: a ready one comes before others, whatever
    // its age. Upstream keeps the oldest. After a second change of the template, that may be one
    // that is not ready yet, if the clock was set back or both were created in one second.
    for node in all.values_mut() {
        node.pods
            .sort_by_key(|(key, pod)| (pod.ready.is_none(), pod.created, key.name.clone()));
    }
    all
}

/// Whether the status counts a pod: all except those that have ended and are being deleted.
fn counts(pod: &OwnedPod) -> bool {
    !pod.ended() || pod.deleted.is_none()
}

/// Sort key: bound pods first, then the oldest.
fn age<'a>(key: &'a Key, pod: &OwnedPod) -> (bool, Option<Timestamp>, &'a str) {
    (pod.node.is_empty(), pod.created, &key.name)
}

/// A plan as it grows.
struct Work<'a> {
    spec: &'a DaemonSetSpec,
    /// The hash in the label of new pods.
    hash: &'a str,
    /// Another hash of the same template that pods may have.
    content_hash: &'a str,
    now: Timestamp,
    instant: Instant,
    waits: &'a OfNodes,
    create: Vec<String>,
    /// UIDs of pods to delete, by key.
    delete: BTreeMap<Key, String>,
    /// Those of them that have ended by themselves.
    ended: Vec<Ended>,
    wake: Option<SignedDuration>,
}

impl Work<'_> {
    /// The plan: these steps, then deletions and creations of pods, at most [`BURST`] of each.
    fn done(self, mut actions: Vec<Step>) -> Plan<Step> {
        actions.extend(self.ended.into_iter().map(Step::Event));
        if !self.delete.is_empty() {
            let pods = self.delete.into_iter().take(BURST);
            let pods = pods.map(|(key, uid)| PodId { key, uid });
            actions.push(Step::Delete(pods.collect()));
        }
        let mut create = self.create;
        if !create.is_empty() {
            create.truncate(BURST);
            actions.push(Step::Create(create, self.hash.to_owned()));
        }
        let requeue = self.wake.and_then(|wake| Duration::try_from(wake).ok());
        Plan { actions, requeue }
    }

    fn end(&mut self, key: &Key, pod: &OwnedPod) {
        self.delete.insert(key.clone(), pod.uid.clone());
    }

    fn is_current(&self, pod: &OwnedPod) -> bool {
        [self.hash, self.content_hash].contains(&pod.label(HASH))
    }

    fn is_available(&mut self, pod: &OwnedPod) -> bool {
        let least = self.spec.min_ready_seconds.unwrap_or_default();
        match pod.available_in(least, self.now) {
            Some(left) if left > SignedDuration::ZERO => {
                self.wake_in(left);
                false
            }
            Some(_) => true,
            None => false,
        }
    }

    fn wake_in(&mut self, time: SignedDuration) {
        self.wake = Some(self.wake.map_or(time, |known| known.min(time)));
    }

    /// `maxSurge` and `maxUnavailable` as numbers.
    fn bounds(&self, nodes: usize) -> (i32, i32) {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|one| one.type_.as_deref()) == Some("OnDelete") {
            return (0, 0);
        }
        let rolling = strategy.and_then(|one| one.rolling_update.as_ref());
        let whole = i32::try_from(nodes).unwrap_or(i32::MAX);
        let share = |given: Option<&_>| given.map_or(0, |given| amount(given, whole, Round::Up));
        let surge = share(rolling.and_then(|one| one.max_surge.as_ref()));
        let missing = share(rolling.and_then(|one| one.max_unavailable.as_ref()));
        if surge == 0 && missing == 0 {
            (0, 1)
        } else {
            (surge, missing)
        }
    }

    /// Keeps one pod on each node that fits, none on others, and replaces pods that have ended.
    fn keep(&mut self, name: &str, node: &NodePods<'_>) {
        let present: Vec<_> = node
            .pods
            .iter()
            .filter(|(_, pod)| pod.deleted.is_none())
            .collect();
        if !node.should_continue {
            // The node may come back soon and its pods still run. Pod garbage collection waits for
            // that before it deletes them, but never deletes one that is not bound yet.
            for owned in present {
                if node.known || owned.1.node.is_empty() {
                    self.end(&owned.0, &owned.1);
                }
            }
            return;
        }
        let mut running = Vec::new();
        for owned in present {
            if !owned.1.ended() {
                running.push(owned);
                continue;
            }
            self.replace(name, owned);
        }
        // A pod that is being deleted still holds its node: its successor comes when it is gone.
        if node.should_run && node.pods.is_empty() {
            self.create.push(name.to_owned());
        }
        let (surge, _) = self.bounds(1);
        let mut kept = false;
        let mut kept_current = false;
        for owned in running {
            let current = self.is_current(&owned.1);
            let first = if surge > 0 && current {
                &mut kept_current
            } else {
                &mut kept
            };
            if std::mem::replace(first, true) {
                self.end(&owned.0, &owned.1);
            }
        }
    }

    /// Deletes a pod that has ended by itself; a failed one only after the node's back-off.
    fn replace(&mut self, node: &str, owned: &Owned) {
        let failed = &*owned.1.phase == "Failed";
        if failed {
            let known = self.waits.get(node);
            let left = known.map_or(Duration::ZERO, |wait| wait.left(self.instant));
            let again = self.ended.iter().any(|one| one.failed && one.node == node);
            if again || !left.is_zero() {
                self.wake_in(SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX));
                return;
            }
        }
        self.ended.push(Ended {
            pod: owned.0.name.clone(),
            node: node.to_owned(),
            failed,
            at: self.instant,
        });
        self.end(&owned.0, &owned.1);
    }

    /// Replaces pods of old templates, as many at once as `maxSurge` or `maxUnavailable` allows.
    fn roll(&mut self, nodes: &BTreeMap<&str, NodePods<'_>>) {
        let fitting = nodes.values().filter(|node| node.should_run).count();
        let (surge, missing) = self.bounds(fitting);
        let (mut beyond, mut down) = (0, 0);
        let mut candidates = Vec::new();
        for (name, node) in nodes.iter().filter(|(_, node)| node.should_run) {
            let running = node.pods.iter().filter(|(_, pod)| pod.is_active());
            let (current, old): (Vec<&Owned>, Vec<&Owned>) =
                running.copied().partition(|(_, pod)| self.is_current(pod));
            let serves = node
                .pods
                .iter()
                .any(|(_, pod)| pod.is_active() && self.is_available(pod));
            down += i32::from(!serves);
            let Some(old) = old.first().copied() else {
                continue;
            };
            // A failed pod of the current template waits for its back-off in `replace`.
            let failed = node
                .pods
                .iter()
                .any(|(_, pod)| pod.ended() && self.is_current(pod));
            match current.first().copied() {
                // A ready old pod stays until the new one is available.
                Some((_, new)) if surge > 0 => {
                    if old.1.ready.is_none() || self.is_available(new) {
                        self.end(&old.0, &old.1);
                    } else {
                        beyond += 1;
                    }
                }
                Some(_) => self.end(&old.0, &old.1),
                None if surge > 0 && failed => {}
                // A node without an available pod loses nothing by the replacement.
                None if !serves && surge > 0 => self.create.push((*name).to_owned()),
                None if !serves && missing > 0 => self.end(&old.0, &old.1),
                None => candidates.push(((*name).to_owned(), old)),
            }
        }
        for (name, old) in candidates {
            if surge > 0 && beyond < surge {
                beyond += 1;
                self.create.push(name);
            } else if surge == 0 && down < missing {
                down += 1;
                self.end(&old.0, &old.1);
            }
        }
    }

    /// The step that writes the status, if it differs.
    fn status_step(
        &mut self,
        set: &DaemonSet,
        nodes: &BTreeMap<&str, NodePods<'_>>,
    ) -> Option<Step> {
        let status = self.status(set, nodes);
        let differs = set.status.as_ref() != Some(&status);
        differs.then(|| Step::Status(Box::new(status)))
    }

    fn status(&mut self, set: &DaemonSet, nodes: &BTreeMap<&str, NodePods<'_>>) -> DaemonSetStatus {
        let before = set.status.clone().unwrap_or_default();
        let (mut desired, mut scheduled, mut misscheduled) = (0, 0, 0);
        let (mut ready, mut updated, mut available) = (0, 0, 0);
        for node in nodes.values().filter(|node| node.known) {
            // The oldest pod of a node counts (upstream): during a surge that is the old one, so
            // that a rollout is complete only once the old pods are gone.
            let counted = node.pods.iter().copied().filter(|(_, pod)| counts(pod));
            let oldest =
                counted.min_by(|one, other| age(&one.0, &one.1).cmp(&age(&other.0, &other.1)));
            let Some((_, pod)) = oldest else {
                desired += i32::from(node.should_run);
                continue;
            };
            if !node.should_run {
                misscheduled += 1;
                continue;
            }
            desired += 1;
            scheduled += 1;
            updated += i32::from(self.is_current(pod));
            if pod.ready.is_some() {
                ready += 1;
                available += i32::from(self.is_available(pod));
            }
        }
        DaemonSetStatus {
            collision_count: before.collision_count,
            conditions: before.conditions,
            current_number_scheduled: scheduled,
            desired_number_scheduled: desired,
            number_available: Some(available),
            number_misscheduled: misscheduled,
            number_ready: ready,
            number_unavailable: Some((desired - available).max(0)),
            observed_generation: set.metadata.generation,
            updated_number_scheduled: Some(updated),
        }
    }
}
