//! A CronJob: every minute or two a Job, which may be deleted soon.

use super::jobs::{self, Known};
use super::{Part, Start, Wish, object, owner};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::simulation::Worker;
use crate::world::World;
use config_kube::k8s_openapi::api::batch::v1::Job;
use jiff::Timestamp;
use master_control::controller::Controller as _;
use master_control_workloads::cron_job::CronJobs;
use master_control_workloads::job::{JobTtl, Jobs, OrphanPods};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CONTROLLERS: &[Start] = &[
    Worker::<CronJobs>::boxed,
    Worker::<Jobs>::boxed,
    Worker::<JobTtl>::boxed,
    Worker::<OrphanPods>::boxed,
];
pub(super) const NAME: &str = "tick";
/// The annotation with the time for which a Job was created.
pub(super) const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

pub(crate) struct Cron {
    spec: Value,
    pub(super) policy: &'static str,
    kept: [usize; 2],
    known: Known,
    /// The last Job of each time.
    times: BTreeMap<String, Made>,
}

/// A Job that was created for a time.
struct Made {
    uid: String,
    /// How often the controller had restarted before.
    restarts: usize,
    /// Whether the answer to it was lost.
    is_lost: bool,
}

impl Cron {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let policy = *dice.pick(&["Allow", "Forbid", "Replace"]).unwrap();
        let kept = *dice.pick(&[[0, 0], [1, 1], [3, 1]]).unwrap();
        let ttl = *dice.pick(&[None, Some(0), Some(20)]).unwrap();
        let job = jobs::spec(dice, NAME, ttl);
        let deadline = *dice.pick(&[None, Some(100)]).unwrap();
        let spec = json!({"schedule": *dice.pick(&["* * * * *", "*/2 * * * *"]).unwrap(),
            "concurrencyPolicy": policy, "startingDeadlineSeconds": deadline,
            "successfulJobsHistoryLimit": kept[0], "failedJobsHistoryLimit": kept[1],
            "jobTemplate": {"spec": job}});
        Self {
            spec,
            policy,
            kept,
            known: Known::default(),
            times: BTreeMap::new(),
        }
    }
}

/// The Jobs of a CronJob.
fn own(world: &World) -> Vec<&Job> {
    let Some(cron) = world.history.object("cronjobs", NAME) else {
        return Vec::new();
    };
    let mut all = jobs::jobs(world);
    all.retain(|job| owner(&job.metadata) == Some(cron.uid()));
    all
}

/// The last time that had its Job, by the CronJob's status.
pub(super) fn last_time(world: &World) -> Option<Timestamp> {
    let Some(Any::CronJob(cron)) = world.history.object("cronjobs", NAME) else {
        return None;
    };
    let last = cron.status.as_ref()?.last_schedule_time.as_ref()?;
    Some(last.0)
}

impl Part for Cron {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        vec![("cronjobs", object(NAME, &self.spec))]
    }

    fn wish(&mut self, dice: &mut Dice, history: &History) -> Option<Wish> {
        let suspend = |is: bool| json!({"spec": {"suspend": is}});
        let patch = match dice.below(6) {
            0 => suspend(true),
            1..4 => suspend(false),
            _ => {
                // Someone deletes an existing Job.
                let all = history.objects("jobs").iter();
                let all: Vec<_> = all.filter(|job| job.name().starts_with("tick-")).collect();
                let name = dice.pick(&all)?.name().to_owned();
                return Some(Wish::Delete("jobs", name));
            }
        };
        Some(Wish::Patch("cronjobs", NAME.to_owned(), patch))
    }

    fn last_wish(&self) -> Option<Wish> {
        Some(Wish::Patch(
            "cronjobs",
            NAME.to_owned(),
            json!({"spec": {"suspend": false}}),
        ))
    }

    fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]) {
        self.known.check(world, deleted);
        let now = world.processes.now.wall;
        let last = last_time(world);
        let restarts = world.processes.restarts(CronJobs::NAME);
        let mut running = 0;
        for job in own(world) {
            let notes = job.metadata.annotations.as_ref().unwrap();
            let (time, uid) = (&notes[SCHEDULED], job.metadata.uid.clone().unwrap());
            let due: Timestamp = time.parse().unwrap();
            let before = self.times.get(time);
            if before.is_none_or(|before| before.uid != uid) {
                // No time has two Jobs, even if the first was deleted, except (as upstream) if the
                // status does not have the time and the controller does not know it either, because
                // it restarted since or the answer was lost.
                let is_unknown = |before: &Made| before.is_lost || before.restarts < restarts;
                let may_be_second = |before| last < Some(due) && is_unknown(before);
                assert!(before.is_none_or(may_be_second), "{time} has a second Job");
                // No Job is created before its time.
                assert!(due <= now, "{time} has come before {now}");
                let is_lost = world.processes.api.has_lost_job();
                let made = Made {
                    uid,
                    restarts,
                    is_lost,
                };
                self.times.insert(time.clone(), made);
            }
            let is_leaving = job.metadata.deletion_timestamp.is_some();
            running += usize::from(jobs::finished(job).is_none() && !is_leaving);
        }
        // Unless it allows that, no two Jobs run at once.
        assert!(
            self.policy == "Allow" || running <= 1,
            "{running} Jobs run at once"
        );
    }

    /// It keeps as many finished Jobs as specified, none is missing from its status, and the last
    /// time that has passed has had its Job.
    fn rest(&self, world: &World) -> Result<(), String> {
        let all = own(world);
        let ended = |kind: &str| {
            let has = |job: &&&Job| {
                let status = job.status.as_ref();
                let mut all = status
                    .and_then(|status| status.conditions.as_ref())
                    .into_iter()
                    .flatten();
                all.any(|one| one.type_ == kind && one.status == "True")
            };
            all.iter().filter(has).count()
        };
        let found = [ended("Complete"), ended("Failed")];
        if found[0] > self.kept[0] || found[1] > self.kept[1] || found[0] + found[1] < all.len() {
            return Err(format!(
                "{found:?} of {} Jobs are finished, {:?} are kept",
                all.len(),
                self.kept
            ));
        }
        let Some(Any::CronJob(cron)) = world.history.object("cronjobs", NAME) else {
            return Err("the CronJob is gone".to_owned());
        };
        let status = cron.status.clone().unwrap_or_default();
        if status.active.is_some_and(|active| !active.is_empty()) {
            return Err("a finished Job counts as active".to_owned());
        }
        let last = status.last_schedule_time.map(|time| time.0);
        let passed = last.map(|last| world.processes.now.wall.duration_since(last));
        let is_late = passed.is_none_or(|passed| passed >= jiff::SignedDuration::from_mins(2));
        if is_late && cron.spec.starting_deadline_seconds.is_none() {
            return Err(format!("no Job since {last:?}"));
        }
        Ok(())
    }
}
