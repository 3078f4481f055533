//! CronJobs.

use crate::{Scene, at, epoch, kept, key};
use config_kube::k8s_openapi::api::batch::v1::{CronJob, Job};
use master_client::Severity;
use master_control_workloads::cron_job::{self, CronJobs};
use master_control_workloads::workload::kept::Kept;
use serde_json::{Value, json};
use std::time::Duration;

type Cron = Scene<CronJobs>;

fn cron(spec: Value) -> Kept<CronJob> {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"template": {"spec": {"containers": []}}}});
    let mut cron = json!({
        "metadata": {"namespace": "default", "name": "tick", "uid": "tick-uid", "creationTimestamp": epoch().to_string()},
        "spec": {"schedule": "*/5 * * * *", "jobTemplate": template, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1},
    });
    for (field, value) in spec.as_object().unwrap() {
        cron["spec"][field] = value.clone();
    }
    kept(cron)
}

fn cron_steps(scene: &Cron, seconds: u64) -> Vec<cron_job::Step> {
    let plan = scene.plan(&key("tick"), seconds);
    plan.actions.into_iter().map(|action| action.step).collect()
}

/// A Job that the controller made for a minute after the beginning.
fn made(scene: &mut Cron, minute: i64, end: Option<&str>) {
    let time = at(minute * 60).to_string();
    let name = format!("tick-{}", at(minute * 60).as_second() / 60);
    let conditions =
        end.map(|kind| json!([{"type": kind, "status": "True", "lastTransitionTime": time}]));
    let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "tick-uid", "controller": true});
    let job: Kept<Job> = kept(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "ownerReferences": [owner],
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": time}},
        "spec": {"template": {}}, "status": {"conditions": conditions, "startTime": time, "completionTime": time},
    }));
    assert_eq!(scene.stand.set(key(&name), job), [key("tick")]);
}

fn created(steps: &[cron_job::Step]) -> Option<String> {
    steps.iter().find_map(|step| match step {
        cron_job::Step::Create(job) => job.metadata.name.clone(),
        cron_job::Step::Delete(..) | cron_job::Step::Event(..) | cron_job::Step::Status(_) => None,
    })
}

#[test]
fn each_time_of_a_schedule_gets_one_job_named_after_it() {
    let mut scene = Cron::new();
    scene.stand.set(key("tick"), cron(json!({})));
    let plan = scene.plan(&key("tick"), 250);
    assert_eq!(
        (plan.actions.len(), plan.requeue),
        (0, Some(Duration::from_millis(50_100)))
    );
    let minutes = at(300).as_second() / 60;
    assert_eq!(
        created(&cron_steps(&scene, 301)),
        Some(format!("tick-{minutes}"))
    );
    made(&mut scene, 5, None);
    let steps = cron_steps(&scene, 302);
    let [cron_job::Step::Status(status)] = steps.as_slice() else {
        unreachable!("{steps:?}")
    };
    assert_eq!((status.scheduled, status.active.len()), (Some(at(300)), 1));
    // Of several missed times only the last gets a Job.
    assert_eq!(
        created(&cron_steps(&scene, 1300)),
        Some(format!("tick-{}", at(1200).as_second() / 60))
    );
}

#[test]
fn a_clock_that_is_set_forward_delays_a_schedule_by_a_minute_at_most() {
    let mut scene = Cron::new();
    scene.stand.set(key("tick"), cron(json!({})));
    let plan = scene.plan(&key("tick"), 10);
    assert_eq!(
        (plan.actions.len(), plan.requeue),
        (0, Some(Duration::from_secs(60)))
    );
}

#[test]
fn an_interval_counts_from_the_last_scheduled_time() {
    let mut scene = Cron::new();
    let spec = json!({"schedule": "@every 10m"});
    scene.stand.set(key("tick"), cron(spec));
    let requeue = |scene: &Cron, seconds| scene.plan(&key("tick"), seconds).requeue;
    let left = |seconds: u64| Some(Duration::from_millis(seconds * 1000 + 100));
    assert_eq!(requeue(&scene, 550), left(50), "from its creation");
    assert!(created(&cron_steps(&scene, 601)).is_some());
    made(&mut scene, 10, Some("Complete"));
    for seconds in [1141, 1170, 1199] {
        assert_eq!(requeue(&scene, seconds), left(1200 - seconds));
    }
}

#[test]
fn a_job_that_is_deleted_in_the_foreground_is_missed_once_it_is_gone() {
    let mut scene = Cron::new();
    made(&mut scene, 5, None);
    scene.stand.set(key("tick"), cron(json!({})));
    let status_of = |steps: Vec<cron_job::Step>| match steps.as_slice() {
        [cron_job::Step::Status(status)] => status.clone(),
        other => unreachable!("{other:?}"),
    };
    let active = status_of(cron_steps(&scene, 301)).active;
    let mut known = cron(json!({}));
    let status = json!({"active": active, "lastScheduleTime": at(300).to_string()});
    known.0.status = serde_json::from_value(status).unwrap();
    scene.stand.set(key("tick"), known);
    let name = active[0].name.clone().unwrap();
    let ending: Kept<Job> = kept(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "deletionTimestamp": at(302).to_string(),
            "finalizers": ["foregroundDeletion"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "tick-uid", "controller": true}]},
        "spec": {"template": {}},
    }));
    scene.stand.set(key(&name), ending);
    assert_eq!(cron_steps(&scene, 303), [], "it is there yet");
    scene.stand.remove::<Kept<Job>>(&key(&name));
    let message = format!("Active job went missing: {name}");
    let event = cron_job::Step::Event(Severity::Normal, "MissingJob", message);
    assert!(cron_steps(&scene, 304).contains(&event));
}

#[test]
fn running_jobs_forbid_or_are_replaced_and_late_times_are_missed() {
    let mut scene = Cron::new();
    made(&mut scene, 5, None);
    scene
        .stand
        .set(key("tick"), cron(json!({"concurrencyPolicy": "Forbid"})));
    assert_eq!(created(&cron_steps(&scene, 601)), None);
    scene
        .stand
        .set(key("tick"), cron(json!({"concurrencyPolicy": "Replace"})));
    let steps = cron_steps(&scene, 601);
    let old = format!("tick-{}", at(300).as_second() / 60);
    assert!(steps.contains(&cron_job::Step::Delete(old.clone(), old)));
    assert!(created(&steps).is_some());
    let is_active = |step: &cron_job::Step| matches!(step, cron_job::Step::Status(status) if !status.active.is_empty());
    assert!(!steps.iter().any(is_active), "it is not missed as it goes");
    scene
        .stand
        .set(key("tick"), cron(json!({"startingDeadlineSeconds": 20})));
    assert!(created(&cron_steps(&scene, 615)).is_some());
    assert_eq!(created(&cron_steps(&scene, 640)), None);
    scene.stand.set(key("tick"), cron(json!({"suspend": true})));
    assert_eq!(created(&cron_steps(&scene, 615)), None);
}

/// As by `kubectl create job --from=cronjob/tick`.
#[test]
fn a_job_that_was_created_by_hand_counts_as_no_run() {
    let words = "Saw a job that the controller did not create or forgot: by-hand";
    let event = cron_job::Step::Event(Severity::Warning, "UnexpectedJob", words.to_owned());
    let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "tick-uid", "controller": true});
    let by_hand = || -> Kept<Job> {
        kept(json!({
            "metadata": {"namespace": "default", "name": "by-hand", "uid": "by-hand-uid", "ownerReferences": [owner],
                "annotations": {"cronjob.kubernetes.io/instantiate": "manual"}},
            "spec": {"template": {}},
        }))
    };
    for policy in ["Forbid", "Replace"] {
        let mut scene = Cron::new();
        let policy = json!({"concurrencyPolicy": policy});
        scene.stand.set(key("by-hand"), by_hand());
        scene.stand.set(key("tick"), cron(policy.clone()));
        assert_eq!(
            cron_steps(&scene, 10),
            std::slice::from_ref(&event),
            "{policy}"
        );
        let steps = cron_steps(&scene, 301);
        let [first, cron_job::Step::Create(_)] = steps.as_slice() else {
            unreachable!("{policy}: {steps:?}")
        };
        assert_eq!(*first, event);
        // One that the status names is a run, whatever it says of itself.
        let mut known = cron(policy.clone());
        let active = json!([{"apiVersion": "batch/v1", "kind": "Job", "namespace": "default", "name": "by-hand", "uid": "by-hand-uid"}]);
        known.0.status = serde_json::from_value(json!({"active": active})).unwrap();
        scene.stand.set(key("tick"), known);
        let steps = cron_steps(&scene, 301);
        assert!(!steps.contains(&event), "{steps:?}");
        let (name, uid) = ("by-hand".to_owned(), "by-hand-uid".to_owned());
        let ends = steps.contains(&cron_job::Step::Delete(name, uid));
        let begins = created(&steps).is_some();
        assert_eq!(
            (ends, begins),
            if policy["concurrencyPolicy"] == "Replace" {
                (true, true)
            } else {
                (false, false)
            }
        );
    }
}

#[test]
fn too_many_missed_times_are_reported_in_upstreams_words() {
    let mut scene = Cron::new();
    scene
        .stand
        .set(key("tick"), cron(json!({"schedule": "* * * * *"})));
    let words = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    let event = cron_job::Step::Event(Severity::Warning, "TooManyMissedTimes", words.to_owned());
    assert!(!cron_steps(&scene, 100 * 60 + 1).contains(&event));
    assert!(cron_steps(&scene, 101 * 60 + 1).contains(&event));
}

/// 02:30 does not come on the morning of 28 March 2027, and comes twice on 31 October.
#[test]
fn a_job_of_a_named_zone_comes_when_its_clocks_say_so() {
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    assert!(
        bundled.get("Europe/Berlin").is_ok(),
        "an image has no other"
    );
    let spec = json!({"schedule": "30 2 * * *", "timeZone": "Europe/Berlin"});
    let mut scene = Cron::new();
    let seconds = |text: &str| {
        let time: jiff::Timestamp = text.parse().unwrap();
        u64::try_from(time.duration_since(epoch()).as_secs()).unwrap()
    };
    for (last, now, due) in [
        ("2027-03-27T01:30:00Z", "2027-03-28T23:00:00Z", None),
        (
            "2027-03-27T01:30:00Z",
            "2027-03-29T00:30:01Z",
            Some("2027-03-29T02:30:00+02:00"),
        ),
        (
            "2027-10-30T00:30:00Z",
            "2027-10-31T00:30:01Z",
            Some("2027-10-31T02:30:00+02:00"),
        ),
        (
            "2027-10-31T00:30:00Z",
            "2027-10-31T01:30:01Z",
            Some("2027-10-31T02:30:00+01:00"),
        ),
        ("2027-10-31T01:30:00Z", "2027-10-31T23:00:00Z", None),
    ] {
        let mut known = cron(spec.clone());
        known.0.status = serde_json::from_value(json!({"lastScheduleTime": last})).unwrap();
        scene.stand.set(key("tick"), known);
        let steps = cron_steps(&scene, seconds(now));
        let made = steps.iter().find_map(|step| match step {
            cron_job::Step::Create(job) => job.metadata.annotations.as_ref(),
            cron_job::Step::Delete(..) | cron_job::Step::Event(..) | cron_job::Step::Status(_) => {
                None
            }
        });
        let made = made.map(|all| all["batch.kubernetes.io/cronjob-scheduled-timestamp"].as_str());
        assert_eq!(made, due, "{now}");
    }
}

#[test]
fn history_is_kept_within_its_limits_and_the_last_success_is_known() {
    let mut scene = Cron::new();
    scene.stand.set(key("tick"), cron(json!({"suspend": true})));
    for (minute, end) in [
        (5, "Complete"),
        (10, "Failed"),
        (15, "Complete"),
        (20, "Failed"),
    ] {
        made(&mut scene, minute, Some(end));
    }
    let steps = cron_steps(&scene, 2000);
    let gone: Vec<_> = steps
        .iter()
        .filter(|step| matches!(step, cron_job::Step::Delete(..)))
        .collect();
    let name = |minute: i64| format!("tick-{}", at(minute * 60).as_second() / 60);
    assert_eq!(
        gone,
        [
            &cron_job::Step::Delete(name(5), name(5)),
            &cron_job::Step::Delete(name(10), name(10))
        ]
    );
    let status = steps.iter().find_map(|step| match step {
        cron_job::Step::Status(status) => Some(status.succeeded),
        cron_job::Step::Create(_) | cron_job::Step::Delete(..) | cron_job::Step::Event(..) => None,
    });
    assert_eq!(status, Some(Some(at(900))));
}

#[test]
fn a_schedule_that_cannot_be_followed_is_reported() {
    let mut scene = Cron::new();
    for (spec, reason, words) in [
        (
            json!({"schedule": "never"}),
            "UnparseableSchedule",
            "unparseable schedule: \"never\" : expected exactly 5 fields, found 1: [never]",
        ),
        (
            json!({"schedule": "TZ=Mars/Base 0 0 * * *"}),
            "UnparseableSchedule",
            "unparseable schedule: \"TZ=Mars/Base 0 0 * * *\" : provided bad location Mars/Base: unknown time zone Mars/Base",
        ),
        (
            json!({"timeZone": "Mars/Base"}),
            "UnknownTimeZone",
            "invalid timeZone: \"Mars/Base\": unknown time zone Mars/Base",
        ),
        (
            json!({"schedule": "59 23 31 2 *"}),
            "InvalidSchedule",
            "invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second",
        ),
    ] {
        scene.stand.set(key("tick"), cron(spec));
        let plan = scene.plan(&key("tick"), 301);
        let steps: Vec<_> = plan.actions.into_iter().map(|action| action.step).collect();
        let event = cron_job::Step::Event(Severity::Warning, reason, words.to_owned());
        assert_eq!((steps, plan.requeue), (vec![event], None));
    }
}

#[test]
fn a_start_may_be_late_by_any_time() {
    let mut scene = Cron::new();
    let spec = json!({"startingDeadlineSeconds": i64::MAX});
    scene.stand.set(key("tick"), cron(spec));
    assert!(created(&cron_steps(&scene, 615)).is_some());
}
