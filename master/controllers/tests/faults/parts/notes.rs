//! A CronJob's time has one Job, also if a call about it fails.

use super::cron::{NAME, last_time};
use super::{CPU, Wish, object, template};
use crate::api::Fate;
use crate::simulation::Worker;
use crate::world::World;
use crate::{Scenario, Scope};
use jiff::Timestamp;
use master_control_workloads::cron_job::CronJobs;
use serde_json::json;
use std::time::Duration;

/// A world with a CronJob for every minute and only the CronJob controller, after the first minute.
async fn first_minute() -> World {
    let mut world = World::empty(0, Scenario::calm(Scope::Parts)).await;
    let process = Worker::<CronJobs>::boxed(&world.history);
    world.processes.all.push(process);
    let pods = template(NAME, CPU, &json!({"restartPolicy": "Never"}));
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": pods}}});
    let make = Wish::Make("cronjobs", object(NAME, &spec));
    world.carry_out(make).await;
    world.see_all();
    world.processes.pass(Duration::from_secs(61));
    world
}

/// People delete the only Job before the controller has seen it.
async fn lose_the_job(world: &mut World) {
    let jobs = world.history.objects("jobs");
    assert_eq!(jobs.len(), 1);
    let name = jobs[0].name().to_owned();
    world.carry_out(Wish::Delete("jobs", name)).await;
    world.see_all();
    world.processes.pass(Duration::from_secs(1));
    while world.run_process(0, None).await {}
}

fn first_time() -> Option<Timestamp> {
    "2026-01-01T00:01:00Z".parse().ok()
}

#[tokio::test]
async fn a_time_has_no_second_job_where_its_job_is_gone_and_the_controller_begins_anew() {
    let mut world = first_minute().await;
    assert!(world.run_process(0, None).await);
    assert_eq!(last_time(&world), first_time());
    world.processes.restart(0, &world.history);
    lose_the_job(&mut world).await;
    assert!(world.history.objects("jobs").is_empty());
}

#[tokio::test]
async fn a_time_has_no_second_job_where_the_note_of_it_was_refused_and_its_job_is_gone() {
    let mut world = first_minute().await;
    let refused = Fate::Refused(500, "InternalError");
    world.processes.api.decide("/cronjobs/tick/status", refused);
    assert!(world.run_process(0, None).await);
    assert_eq!(last_time(&world), None, "the note was refused");
    lose_the_job(&mut world).await;
    assert!(world.history.objects("jobs").is_empty());
    assert_eq!(last_time(&world), first_time());
}

#[tokio::test]
async fn a_time_is_noted_where_the_answer_to_its_job_was_lost_and_it_is_there() {
    let mut world = first_minute().await;
    world.processes.api.decide("/jobs", Fate::Lost);
    assert!(world.run_process(0, None).await);
    assert_eq!(last_time(&world), None, "no answer came");
    // It tries again, and has not seen the Job yet.
    world.processes.pass(Duration::from_secs(1));
    assert!(world.run_process(0, None).await);
    assert_eq!(last_time(&world), first_time());
    lose_the_job(&mut world).await;
    assert!(world.history.objects("jobs").is_empty());
}
