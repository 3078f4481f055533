//! Histories that break the invariants of the parts, one each; see [`crate::wrong`].

use super::{Part, claims, cron, daemons, jobs, priorities, quotas, scaling};
use crate::Scope;
use crate::dice::Dice;
use crate::wrong::{
    New, Step, Table, Wrong, meant_for, named, of_index, on, owned, pod, ready, with, wrong,
};
use config_kube::identity::SCHEDULER_USER;
use serde_json::{Value, json};

/// All parts with their histories.
pub(crate) fn tables() -> Vec<Table> {
    let table = |source, part: New, all| Table {
        source,
        scope: Scope::Parts,
        part: Some(part),
        all,
    };
    vec![
        table(include_str!("claims.rs"), new_disks, of_claims()),
        table(include_str!("cron.rs"), new_cron, of_cron()),
        table(include_str!("daemons.rs"), new_daemons, of_daemons()),
        table(include_str!("jobs.rs"), new_once, of_jobs()),
        table(
            include_str!("priorities.rs"),
            new_priorities,
            of_priorities(),
        ),
        table(include_str!("quotas.rs"), new_quota, of_quotas()),
        table(include_str!("scaling.rs"), new_scaling, of_scaling()),
    ]
}

/// An ordered StatefulSet from 0 on, whose claims are retained.
fn new_disks() -> Box<dyn Part> {
    let mut disks = claims::Disks::new(&mut Dice(0));
    (disks.first, disks.in_order, disks.scaled) = (0, true, false);
    Box::new(disks)
}

fn new_cron() -> Box<dyn Part> {
    let mut cron = cron::Cron::new(&mut Dice(0));
    cron.policy = "Forbid";
    Box::new(cron)
}

fn new_daemons() -> Box<dyn Part> {
    Box::new(daemons::Daemons::new(&mut Dice(0)))
}

fn new_once() -> Box<dyn Part> {
    Box::new(jobs::Once::new(&mut Dice(0)))
}

fn new_priorities() -> Box<dyn Part> {
    Box::new(priorities::Priorities::new(&mut Dice(0)))
}

fn new_quota() -> Box<dyn Part> {
    Box::new(quotas::Quota::new(&mut Dice(0)))
}

/// A number from 1 to 5.
fn new_scaling() -> Box<dyn Part> {
    let mut scaling = scaling::Scaling::new(&mut Dice(0));
    (scaling.least, scaling.most, scaling.before) = (1, 5, 1);
    Box::new(scaling)
}

/// A claim of the place 0 or 1, and its volume.
fn claim(place: usize, volume: &str) -> Step {
    let spec = json!({"spec": {"volumeName": volume}});
    Step::Is(
        "persistentvolumeclaims",
        named(&format!("data-disk-{place}"), &spec),
    )
}

fn of_claims() -> Vec<Wrong> {
    let none = json!({});
    let volume = |phase: &str| {
        let fields =
            json!({"metadata": {"name": "v", "uid": "v"}, "spec": {}, "status": {"phase": phase}});
        Step::Is("persistentvolumes", fields)
    };
    vec![
        wrong("v has two claims", [0, 1].map(|place| claim(place, "v"))),
        wrong(
            "a claim moved to w",
            ["v", "w"].map(|volume| claim(0, volume)),
        ),
        wrong(
            "disk-0 on n0 has None",
            [
                pod("disk", "disk-0", &none),
                pod("disk", "disk-0", &on("n0")),
            ],
        ),
        wrong(
            "it is kept",
            [
                claim(0, ""),
                Step::Deletes(
                    "system:controller:any",
                    "persistentvolumeclaims",
                    "data-disk-0",
                ),
            ],
        ),
        wrong(
            "a claim that is kept is gone",
            [
                claim(0, ""),
                Step::Gone("persistentvolumeclaims", "data-disk-0"),
            ],
        ),
        wrong("v has no folder", ["Available", "Bound"].map(volume)),
        wrong(
            "disk-1 came before {}",
            ["disk-0", "disk-1"].map(|name| pod("disk", name, &none)),
        ),
    ]
}

/// A Job that the CronJob created for a time: each case starts at the beginning of 2026.
fn tick(name: &str, time: &str) -> Step {
    let made =
        json!({"metadata": {"annotations": {cron::SCHEDULED: time}}, "spec": {"template": {}}});
    let made = with(owned("batch/v1", "CronJob", "tick"), &made);
    Step::Is("jobs", named(name, &made))
}

fn of_cron() -> Vec<Wrong> {
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {}}}});
    let cron = || Step::Is("cronjobs", named("tick", &json!({"spec": spec})));
    vec![
        wrong(
            "2025-12-31T23:59:00Z has a second Job",
            [
                cron(),
                tick("a", "2025-12-31T23:59:00Z"),
                Step::Gone("jobs", "a"),
                tick("b", "2025-12-31T23:59:00Z"),
            ],
        ),
        wrong(
            "2026-01-01T00:01:00Z has come before 2026-01-01T00:00:00Z",
            [cron(), tick("a", "2026-01-01T00:01:00Z")],
        ),
        wrong(
            "2 Jobs run at once",
            [
                cron(),
                tick("a", "2025-12-31T23:58:00Z"),
                tick("b", "2025-12-31T23:59:00Z"),
            ],
        ),
    ]
}

/// A daemon of a revision on a node.
fn daemon(name: &str, node: &str, revision: &str, more: &Value) -> Step {
    let labels = json!({"metadata": {"labels": {"controller-revision-hash": revision}}});
    pod("surge", name, &with(with(meant_for(node), &labels), more))
}

fn of_daemons() -> Vec<Wrong> {
    let none = json!({});
    let all = json!({"currentNumberScheduled": 3, "desiredNumberScheduled": 3,
        "numberMisscheduled": 0, "numberReady": 3});
    let set = json!({"spec": {"selector": {}, "template": {}}, "status": all});
    vec![
        wrong(
            "two daemons of a revision",
            ["a", "b"].map(|name| daemon(name, "n0", "1", &none)),
        ),
        wrong(
            "3 daemons on n0",
            ["1", "2", "3"].map(|revision| daemon(revision, "n0", revision, &none)),
        ),
        wrong(
            "daemons served on {\"n0\", \"n1\", \"n2\"}, and now",
            [
                daemon("a", "n0", "1", &ready()),
                daemon("b", "n1", "1", &ready()),
                daemon("c", "n2", "1", &ready()),
                Step::Is("daemonsets", named("surge", &set)),
                daemon("c", "n2", "1", &none),
            ],
        ),
    ]
}

/// A Job with two completions, and its pods at once.
fn once(at_once: usize, more: &Value) -> Step {
    let spec = json!({"spec": {"template": {}, "completions": 2, "parallelism": at_once,
        "ttlSecondsAfterFinished": 20, "completionMode": "Indexed"}});
    Step::Is("jobs", with(named("once", &spec), more))
}

fn of_jobs() -> Vec<Wrong> {
    let none = json!({});
    let succeeded = |number: usize| once(1, &json!({"status": {"succeeded": number}}));
    let own = |name: &str, more: &Value| {
        let own = owned("batch/v1", "Job", "once");
        pod("once", name, &with(own, more))
    };
    let complete =
        json!({"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let complete = json!({"status": {"conditions": [complete]}});
    vec![
        wrong(
            "too early, due None",
            [
                once(1, &none),
                Step::Deletes(
                    "system:controller:ttl-after-finished-controller",
                    "jobs",
                    "once",
                ),
            ],
        ),
        wrong("once: 0 successes after 1", [1, 0].map(succeeded)),
        wrong("once: 3 of 2", [2, 3].map(succeeded)),
        wrong(
            "once: 2 run at once, 1 may",
            [once(1, &none), own("a", &none), own("b", &none)],
        ),
        wrong(
            "once is finished and runs",
            [once(1, &none), own("a", &none), once(1, &complete)],
        ),
        wrong(
            "once: b is the second of 0",
            [
                once(2, &none),
                own("a", &of_index("0")),
                own("b", &of_index("0")),
            ],
        ),
    ]
}

fn of_priorities() -> Vec<Wrong> {
    vec![wrong(
        "a of the priority 0 is ended for one of Some(0)",
        [
            pod("filling", "a", &on("n0")),
            pod("urgent", "b", &json!({})),
            Step::Deletes(SCHEDULER_USER, "pods", "a"),
        ],
    )]
}

fn of_quotas() -> Vec<Wrong> {
    let quota = json!({"spec": {"hard": {"pods": "1"}}});
    let mut steps = vec![Step::Is("resourcequotas", named("many", &quota))];
    steps.extend(["a", "b"].map(|name| pod("many", name, &json!({}))));
    vec![wrong("2 of Some(1) pods", steps)]
}

fn of_scaling() -> Vec<Wrong> {
    let replicas = |number: usize| {
        let fields = json!({"spec": {"replicas": number, "selector": {}, "template": {}}});
        Step::Is("deployments", named("auto", &fields))
    };
    vec![
        wrong("6 replicas, and not 1..=5", [1, 6].map(replicas)),
        wrong("4 replicas after 1", [1, 4].map(replicas)),
    ]
}
