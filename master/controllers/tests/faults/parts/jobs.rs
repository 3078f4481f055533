//! A Job that is suspended, resumed, deleted by its TTL, and created again.

use super::{CPU, Part, Start, Wish, is_active, object, owner, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::pods::uid;
use crate::simulation::Worker;
use crate::world::World;
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::{SignedDuration, Timestamp};
use master_control_workloads::job::{JobTtl, Jobs, OrphanPods};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The controllers of Jobs.
pub(super) const CONTROLLERS: &[Start] = &[
    Worker::<Jobs>::boxed,
    Worker::<JobTtl>::boxed,
    Worker::<OrphanPods>::boxed,
];
const NAME: &str = "once";

/// The spec of a Job.
pub(super) fn spec(dice: &mut Dice, app: &str, ttl: Option<usize>) -> Value {
    let mode = *dice.pick(&["Indexed", "NonIndexed"]).unwrap();
    let template = template(app, CPU, &json!({"restartPolicy": "Never"}));
    json!({"completions": 1 + dice.below(3), "parallelism": 1 + dice.below(3), "backoffLimit": 1000,
        "completionMode": mode, "ttlSecondsAfterFinished": ttl, "template": template})
}

/// When a Job was finished, if it is.
pub(super) fn finished(job: &Job) -> Option<Timestamp> {
    let status = job.status.as_ref()?;
    let mut all = status.conditions.iter().flatten();
    let end =
        all.find(|one| matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True");
    end?.last_transition_time.as_ref().map(|time| time.0)
}

/// The Jobs of a world.
pub(super) fn jobs(world: &World) -> Vec<&Job> {
    let all = world.history.objects("jobs").iter();
    let jobs = all.filter_map(|any| {
        if let Any::Job(job) = any {
            Some(&**job)
        } else {
            None
        }
    });
    jobs.collect()
}

/// The known facts about all Jobs of a world.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By UID.
    said: BTreeMap<String, Said>,
}

/// The known facts about a Job.
#[derive(Debug, Default)]
struct Said {
    /// The most pods that it ever allowed at once.
    allowed: usize,
    succeeded: i32,
}

impl Known {
    /// Checks what must hold for every Job.
    pub(super) fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]) {
        for job in jobs(world) {
            self.check_one(world, job);
        }
        // No Job is deleted by its TTL before it is finished and the TTL is over.
        for (deletion, any) in deleted {
            let Any::Job(job) = any else { continue };
            if deletion.by == "system:controller:ttl-after-finished-controller" {
                let spec = job.spec.as_ref();
                let seconds = spec.and_then(|spec| spec.ttl_seconds_after_finished);
                let wait = SignedDuration::from_secs(i64::from(seconds.unwrap_or(i32::MAX)));
                let due = finished(job).map(|end| end + wait);
                let now = world.processes.now.wall;
                assert!(
                    due.is_some_and(|due| due <= now),
                    "{deletion:?}: too early, due {due:?}"
                );
            }
        }
    }

    fn check_one(&mut self, world: &World, job: &Job) {
        let (id, spec) = (
            job.metadata.uid.clone().unwrap_or_default(),
            job.spec.as_ref().unwrap(),
        );
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let status = job.status.clone().unwrap_or_default();
        let allowed = usize::try_from(spec.parallelism.unwrap_or(1)).unwrap();
        let known = self.said.entry(id.clone()).or_default();
        known.allowed = known.allowed.max(allowed);
        let said = status.succeeded.unwrap_or_default();
        // A success is counted once, and never taken back.
        assert!(
            said >= known.succeeded,
            "{name}: {said} successes after {}",
            known.succeeded
        );
        known.succeeded = said;
        let is_indexed = spec.completion_mode.as_deref() == Some("Indexed");
        let wanted = spec.completions.unwrap_or(1);
        assert!(
            said <= wanted || world.scenario.disruption && !is_indexed,
            "{name}: {said} of {wanted}"
        );
        let pods = world.history.pods().into_iter();
        let own: Vec<&Pod> = pods
            .filter(|pod| owner(&pod.metadata) == Some(&id) && is_active(pod))
            .collect();
        // No more pods run at once than it allows, no two for an index, and none of a finished Job.
        assert!(
            own.len() <= known.allowed,
            "{name}: {} run at once, {} may",
            own.len(),
            known.allowed
        );
        assert!(
            finished(job).is_none() || own.is_empty(),
            "{name} is finished and runs"
        );
        let mut indexes = BTreeSet::new();
        for pod in own {
            let notes = pod.metadata.annotations.as_ref();
            let index = notes.and_then(|all| all.get("batch.kubernetes.io/job-completion-index"));
            if let Some(index) = index.filter(|_| is_indexed) {
                assert!(
                    indexes.insert(index),
                    "{name}: {} is the second of {index}",
                    uid(pod)
                );
            }
        }
    }
}

pub(crate) struct Once {
    spec: Value,
    known: Known,
}

impl Once {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let ttl = dice.below(40);
        Self {
            spec: spec(dice, NAME, Some(ttl)),
            known: Known::default(),
        }
    }
}

impl Part for Once {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        vec![("jobs", object(NAME, &self.spec))]
    }

    fn wish(&mut self, dice: &mut Dice, history: &History) -> Option<Wish> {
        if history.object("jobs", NAME).is_none() {
            return Some(Wish::Make("jobs", object(NAME, &self.spec)));
        }
        let patch = match dice.below(4) {
            0 => json!({"spec": {"parallelism": 1 + dice.below(3)}}),
            1 => json!({"spec": {"suspend": true}}),
            _ => json!({"spec": {"suspend": false}}),
        };
        Some(Wish::Patch("jobs", NAME.to_owned(), patch))
    }

    fn last_wish(&self) -> Option<Wish> {
        let patch = json!({"spec": {"suspend": false}});
        Some(Wish::Patch("jobs", NAME.to_owned(), patch))
    }

    fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]) {
        self.known.check(world, deleted);
    }

    /// In the end it is deleted after its TTL, with its pods.
    fn rest(&self, world: &World) -> Result<(), String> {
        let left = world.history.object("jobs", NAME);
        left.map_or(Ok(()), |job| Err(format!("{job:?}")))
    }
}
