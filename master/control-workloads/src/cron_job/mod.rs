//! The CronJob controller: creates a Job for each time of a schedule.
//!
//! A Job's name contains the time for which it was created, and that time is written into the
//! status right after the Job, so that no time gets two Jobs, even if the first is deleted before
//! it is seen. If that write fails, the controller remembers the time and writes it later. As
//! upstream, a time gets a second Job only if the first is deleted before it is seen, and the
//! master stopped between the two writes or the answer to the first was lost. The rest of the
//! status is derived from the existing Jobs.

mod made;

use crate::job::{self, finished};
use crate::workload::action;
use crate::workload::amount::later;
use crate::workload::kept::{Kept, by_controller, controller, controls, is_leaving, owner_key};
use crate::workload::make::{self, record_event};
use config_kube::k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, Job};
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use jiff::{SignedDuration, Timestamp};
use made::LastMade;
use master_client::{ApiError, DeleteParams, Delta, Entries, Key, Lookup, Patch, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use master_cron::{Fault, MOST_MISSED, Schedule};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a Job was made.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// How long a schedule waits at most before its next time is compared with the clock again. Waits
/// are monotonic: a clock that is set forward meanwhile would reach that time unseen.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The controller. Its keys are CronJobs.
#[derive(Debug)]
pub struct CronJobs {
    all: Store<Kept<CronJob>>,
    jobs: Lookup<Kept<Job>>,
    made: LastMade,
}

/// A CronJob with the Jobs that it made.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The object.
    pub cron: Arc<Kept<CronJob>>,
    /// Its Jobs.
    pub jobs: Entries<Kept<Job>>,
    /// The last time for which this process created a Job; that Job may be deleted by now.
    pub made: Option<Timestamp>,
}

/// An action on the CronJob with a UID.
pub type Action = action::Action<Step>;

/// A write for a CronJob.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Creates a Job.
    Create(Box<Job>),
    /// Deletes a Job with this name and UID.
    Delete(String, String),
    /// Records an event.
    Event(Severity, &'static str, String),
    /// Writes the status.
    Status(Status),
}

/// A CronJob's status.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Jobs that are not finished.
    pub active: Vec<ObjectReference>,
    /// The last time for which a Job was created.
    pub scheduled: Option<Timestamp>,
    /// When the last Job was complete.
    pub succeeded: Option<Timestamp>,
}

impl Controller for CronJobs {
    const NAME: &'static str = "cronjob-controller";
    const RIGHTS: &'static [Right] = &[
        right("batch", "cronjobs", &["get", "list", "watch"]),
        right("batch", "cronjobs/status", &["patch"]),
        right(
            "batch",
            "jobs",
            &["get", "list", "watch", "create", "delete"],
        ),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let all = setup.follow_keys();
        let jobs: Store<Kept<Job>> = setup.follow(|delta: &Delta<Kept<Job>>, keys| {
            let jobs = [&delta.before, &delta.after];
            let owners = jobs
                .into_iter()
                .flatten()
                .filter_map(|job| controller(&job.metadata));
            let ours = owners.filter(|owner| owner.kind == "CronJob");
            keys.extend(ours.map(|owner| owner_key(&delta.key.namespace, &owner.name)));
        });
        Self {
            all,
            jobs: jobs.index(&by_controller()),
            made: LastMade::default(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let Some(cron) = self.all.get(key) else {
            self.made.forget(key);
            return None;
        };
        let uid = cron.metadata.uid.clone().unwrap_or_default();
        Some(Facts {
            key: key.clone(),
            jobs: self.jobs.get(&uid),
            made: self.made.of(key, &uid),
            cron,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let steps = plan(facts, now.wall);
        Action::plan(&facts.key, &facts.cron.metadata, steps)
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Action { key, uid, step } = action;
        let Some(cron) = action::current(&self.all, &key, &uid) else {
            return Ok(());
        };
        let about = make::reference(&controls(&cron.0), &key.namespace);
        match step {
            Step::Create(job) => {
                create(writer, &about, &job).await?;
                // At once: the Job may be deleted before it is seen, and its time must not get
                // another.
                let made_for = made_for(&job.metadata);
                self.made.note(&key, &uid, made_for);
                let patch = json!({"metadata": {"uid": uid},
                    "status": {"lastScheduleTime": made_for.map(Time)}});
                let patch = Patch::Merge(patch);
                writer.patch_status::<CronJob>(&key, &patch).await.map(drop)
            }
            Step::Delete(name, id) => {
                let job = Key::new(&key.namespace, &name);
                let params = DeleteParams {
                    propagation: Some("Background"),
                    ..DeleteParams::of(id)
                };
                match writer.delete::<Job>(&job, &params).await {
                    Err(error) if error.is_not_found() => return Ok(()),
                    other => other?,
                }
                let message = format!("Deleted job {name}");
                record_event(
                    writer,
                    &about,
                    Severity::Normal,
                    "SuccessfulDelete",
                    message,
                )
                .await;
                Ok(())
            }
            Step::Event(severity, reason, message) => {
                record_event(writer, &about, severity, reason, message).await;
                Ok(())
            }
            Step::Status(status) => {
                let time = |time: Option<Timestamp>| time.map(|time| json!(Time(time)));
                let active = (!status.active.is_empty()).then_some(&status.active);
                let patch = json!({"metadata": {"uid": uid}, "status": {
                    "active": active, "lastScheduleTime": time(status.scheduled),
                    "lastSuccessfulTime": time(status.succeeded),
                }});
                let patch = Patch::Merge(patch);
                writer.patch_status::<CronJob>(&key, &patch).await.map(drop)
            }
        }
    }
}

/// Creates a Job, unless an earlier run created it.
async fn create(writer: &Writer, about: &ObjectReference, job: &Job) -> Result<(), ApiError> {
    match writer.create(job).await {
        Ok(made) => {
            let name = made.metadata.name.unwrap_or_default();
            let message = format!("Created job {name}");
            record_event(writer, about, Severity::Normal, "SuccessfulCreate", message).await;
            Ok(())
        }
        Err(error) if error.is_already_exists() => {
            let meta = &job.metadata;
            let name = meta.name.as_deref().unwrap_or_default();
            let there: Job = writer.client().get(meta.namespace.as_deref(), name).await?;
            // A Job of this name with another owner is an error.
            let is_own = controller(&there.metadata).map(|owner| &owner.uid)
                == controller(meta).map(|owner| &owner.uid);
            if is_own { Ok(()) } else { Err(error) }
        }
        Err(error) => {
            if !make::is_ending(&error) {
                let message = format!("Error creating job: {error}");
                record_event(writer, about, Severity::Warning, "FailedCreate", message).await;
            }
            Err(error)
        }
    }
}

fn plan(facts: &Facts, now: Timestamp) -> Plan<Step> {
    let spec = &facts.cron.spec;
    let before = status_of(&facts.cron);
    let (mut status, mut steps) = look(facts, &before);
    let begun = if is_leaving(&facts.cron.metadata) || spec.suspend == Some(true) {
        Plan::nothing()
    } else {
        let active = active(facts, &before);
        begin(facts, spec, status.scheduled, &active, now)
    };
    // A Job that is replaced leaves the status now, so that it is not reported as missing.
    let goes = |active: &ObjectReference| {
        let mut deleted = begun.actions.iter();
        deleted.any(|step| matches!(step, Step::Delete(_, uid) if active.uid.as_ref() == Some(uid)))
    };
    status.active.retain(|active| !goes(active));
    if status != before {
        steps.push(Step::Status(status));
    }
    steps.extend(beyond(spec, &facts.jobs));
    steps.extend(begun.actions);
    Plan {
        actions: steps,
        requeue: begun.requeue,
    }
}

/// A Job with its key.
type Run<'a> = &'a (Arc<Key>, Arc<Kept<Job>>);

/// Its runs that are not finished.
fn active<'a>(facts: &'a Facts, before: &Status) -> Vec<Run<'a>> {
    let runs = facts.jobs.iter();
    runs.filter(|(_, job)| finished(job).is_none() && is_run(&job.metadata, before))
        .collect()
}

/// The steps that are due by the schedule, and when the next time comes. `scheduled` is the last
/// time for which a Job was created, `active` the runs that are not finished.
fn begin(
    facts: &Facts,
    spec: &CronJobSpec,
    scheduled: Option<Timestamp>,
    active: &[Run<'_>],
    now: Timestamp,
) -> Plan<Step> {
    let warn = |reason, message| Plan::act(Step::Event(Severity::Warning, reason, message));
    match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
        Ok(schedule) => {
            let Some(next) = schedule.next(reached(facts, &schedule, scheduled, now)) else {
                // Upstream's message for a schedule without any time: it compares two such times.
                let text = &spec.schedule;
                return warn(
                    "InvalidSchedule",
                    format!(
                        "invalid schedule: {text} : time difference between two schedules is less than 1 second"
                    ),
                );
            };
            // A moment later, so that the time has come in spite of the clock's resolution.
            let left = next.duration_since(now) + SignedDuration::from_millis(100);
            let left = Duration::try_from(left).ok();
            Plan {
                actions: start(facts, spec, &schedule, scheduled, active, now),
                requeue: left.map(|left| left.min(LONGEST_WAIT)),
            }
        }
        Err(Fault::Unreadable(cause)) => warn(
            "UnparseableSchedule",
            format!("unparseable schedule: {:?} : {cause}", spec.schedule),
        ),
        Err(fault @ Fault::Zone(_)) => {
            let zone = spec.time_zone.as_deref().unwrap_or_default();
            let message = format!("invalid timeZone: {zone:?}: {fault}");
            warn("UnknownTimeZone", message)
        }
    }
}

/// The last scheduled time that has passed; before the first, the last time of a Job or the
/// creation. The next time is computed from it: `@every` from now would never come.
fn reached(
    facts: &Facts,
    schedule: &Schedule,
    scheduled: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let since = scheduled.unwrap_or_else(|| created(facts, now)).min(now);
    let last = schedule.last(since, now);
    last.map_or(since, |(due, _)| due)
}

fn created(facts: &Facts, now: Timestamp) -> Timestamp {
    let created = facts.cron.metadata.creation_timestamp.as_ref();
    created.map_or(now, |time| time.0)
}

fn status_of(cron: &CronJob) -> Status {
    let status = cron.status.clone().unwrap_or_default();
    Status {
        active: status.active.unwrap_or_default(),
        scheduled: status.last_schedule_time.map(|time| time.0),
        succeeded: status.last_successful_time.map(|time| time.0),
    }
}

/// The status from the existing Jobs, and the events about changes.
fn look(facts: &Facts, before: &Status) -> (Status, Vec<Step>) {
    let mut status = Status {
        active: Vec::new(),
        scheduled: before.scheduled.max(facts.made),
        ..before.clone()
    };
    let mut steps = Vec::new();
    let known = |uid: &Option<String>| before.active.iter().any(|active| active.uid == *uid);
    for (key, job) in &facts.jobs {
        let meta = &job.metadata;
        status.scheduled = status.scheduled.max(made_for(meta));
        if finished(job).is_none() {
            if !is_run(meta, before) {
                let name = &key.name;
                let message =
                    format!("Saw a job that the controller did not create or forgot: {name}");
                steps.push(Step::Event(Severity::Warning, "UnexpectedJob", message));
            } else if !is_leaving(meta) || known(&meta.uid) {
                // A Job that is being deleted is reported as missing only once it is gone.
                status.active.push(reference(key, job));
            }
            continue;
        }
        let ended = job::Status::of(job);
        if ended.holds("Complete") {
            status.succeeded = status.succeeded.max(ended.completed);
        }
        if known(&meta.uid) {
            let how = if ended.holds("Complete") {
                "Complete"
            } else {
                "Failed"
            };
            let message = format!("Saw completed job: {}, condition: {how}", key.name);
            steps.push(Step::Event(Severity::Normal, "SawCompletedJob", message));
        }
    }
    for active in &before.active {
        let there = facts
            .jobs
            .iter()
            .any(|(_, job)| job.metadata.uid == active.uid);
        if !there {
            let name = active.name.clone().unwrap_or_default();
            let message = format!("Active job went missing: {name}");
            steps.push(Step::Event(Severity::Normal, "MissingJob", message));
        }
    }
    (status, steps)
}

/// Whether a Job is a run of its CronJob: it has the annotation with its time, or the status names
/// it. A Job that was created by hand (`kubectl create job --from`) neither holds up the next run
/// nor is replaced by it.
fn is_run(meta: &ObjectMeta, before: &Status) -> bool {
    made_for(meta).is_some() || before.active.iter().any(|active| active.uid == meta.uid)
}

/// The time for which a Job was created.
fn made_for(meta: &ObjectMeta) -> Option<Timestamp> {
    let text = meta.annotations.as_ref()?.get(SCHEDULED)?;
    text.parse().ok()
}

fn reference(key: &Key, job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Deletes finished Jobs beyond the history limits, the oldest first.
fn beyond(spec: &CronJobSpec, jobs: &Entries<Kept<Job>>) -> Vec<Step> {
    let mut steps = Vec::new();
    let limits = [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ];
    for (kind, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            continue;
        };
        let ended =
            |job: &Kept<Job>| job::Status::of(job).holds(kind) && !is_leaving(&job.metadata);
        let mut ended: Vec<_> = jobs.iter().filter(|(_, job)| ended(job)).collect();
        ended.sort_by_key(|(key, job)| (job::Status::of(job).started, key.name.clone()));
        let spare = ended.len().saturating_sub(limit);
        steps.extend(ended[..spare].iter().map(|(key, job)| {
            Step::Delete(
                key.name.clone(),
                job.metadata.uid.clone().unwrap_or_default(),
            )
        }));
    }
    steps
}

/// Creates the Job of the last time that has passed, if it may start; `scheduled` and `active` as
/// in [`begin`].
fn start(
    facts: &Facts,
    spec: &CronJobSpec,
    schedule: &Schedule,
    scheduled: Option<Timestamp>,
    active: &[Run<'_>],
    now: Timestamp,
) -> Vec<Step> {
    let deadline = spec
        .starting_deadline_seconds
        .map(SignedDuration::from_secs);
    let mut since = scheduled.unwrap_or_else(|| created(facts, now));
    if let Some(deadline) = deadline {
        since = since.max(now.checked_sub(deadline).unwrap_or(since));
    }
    let Some((due, missed)) = schedule.last(since, now) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    if missed > MOST_MISSED {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        let message = message.to_owned();
        steps.push(Step::Event(
            Severity::Warning,
            "TooManyMissedTimes",
            message,
        ));
    }
    if deadline.is_some_and(|deadline| later(due, deadline) < now) {
        // As RFC 1123 writes it, with the offset from UTC.
        let due = due.strftime("%a, %d %b %Y %H:%M:%S +0000");
        let message = format!("Missed scheduled time to start a job: {due}");
        steps.push(Step::Event(Severity::Warning, "MissSchedule", message));
        return steps;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            steps.push(Step::Event(
                Severity::Normal,
                "JobAlreadyActive",
                message.to_owned(),
            ));
            return steps;
        }
        Some("Replace") => steps.extend(active.iter().map(|(key, job)| {
            Step::Delete(
                key.name.clone(),
                job.metadata.uid.clone().unwrap_or_default(),
            )
        })),
        _ => {}
    }
    steps.push(Step::Create(Box::new(job_of(facts, spec, schedule, due))));
    steps
}

fn job_of(facts: &Facts, spec: &CronJobSpec, schedule: &Schedule, due: Timestamp) -> Job {
    let template = spec.job_template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), schedule.shown(due));
    Job {
        metadata: ObjectMeta {
            // Minutes since 1970, as upstream names them.
            name: Some(format!("{}-{}", facts.key.name, due.as_second() / 60)),
            namespace: Some(facts.key.namespace.clone()),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controls(&facts.cron.0)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
