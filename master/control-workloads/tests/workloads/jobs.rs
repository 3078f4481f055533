//! Jobs.

use crate::{Scene, at, epoch, kept, key, pod_of};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use master_control_workloads::job::{Jobs, Status, Step};
use master_control_workloads::workload::claim::OwnerChange;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::{JobPart, OwnedPod, Owner, PodId};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A Job with its pods, as an API would keep them.
struct World {
    scene: Scene<Jobs>,
    job: Job,
    pods: BTreeMap<String, OwnedPod>,
    made: usize,
    /// Statuses that were written.
    written: Vec<Status>,
    seconds: u64,
}

impl World {
    fn new(spec: Value) -> Self {
        let mut job = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
            "spec": {"parallelism": 1, "backoffLimit": 6, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"restartPolicy": "Never",
                    "containers": [{"name": "c"}]}}},
        });
        for (field, value) in spec.as_object().unwrap() {
            job["spec"][field] = value.clone();
        }
        let job: Kept<Job> = kept(job);
        Self {
            scene: Scene::new(),
            job: job.0,
            pods: BTreeMap::new(),
            made: 0,
            written: Vec::new(),
            seconds: 0,
        }
    }

    fn steps(&mut self) -> Vec<Step> {
        let stand = &mut self.scene.stand;
        stand.set(key("web"), Kept(self.job.clone()));
        for (name, pod) in &self.pods {
            stand.set(key(name), pod.clone());
        }
        let plan = self.scene.plan(&key("web"), self.seconds);
        plan.actions.into_iter().map(|action| action.step).collect()
    }

    fn requeue(&self) -> Option<Duration> {
        self.scene.plan(&key("web"), self.seconds).requeue
    }

    /// Carries out at most `most` planned steps, as a process may stop after each; returns whether
    /// there were any.
    fn act(&mut self, most: usize) -> bool {
        let steps = self.steps();
        for step in steps.iter().take(most) {
            self.apply(step);
        }
        !steps.is_empty()
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            if !self.act(usize::MAX) {
                return;
            }
        }
        unreachable!("it never comes to rest");
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Create(new) => {
                for new in new {
                    self.made += 1;
                    let name = format!("p{}", self.made);
                    let part = JobPart {
                        tracked: true,
                        index: new.index,
                        failures: new.failures.unwrap_or_default(),
                        ignored: new.ignored,
                        ..JobPart::default()
                    };
                    let owner = Owner {
                        api_version: "batch/v1".to_owned(),
                        kind: "Job".to_owned(),
                        name: "web".to_owned(),
                        uid: "web-uid".to_owned(),
                    };
                    let pod = OwnedPod {
                        owner: Some(Arc::new(owner)),
                        job: Some(Box::new(part)),
                        phase: "Pending".into(),
                        ready: None,
                        ..pod_of("Job", "web", &name)
                    };
                    self.pods.insert(name, pod);
                }
            }
            Step::Delete(pods) | Step::End(pods) => {
                let counts = matches!(step, Step::End(_));
                for PodId { key, .. } in pods {
                    if counts {
                        // Its containers end at SIGTERM.
                        let pod = self.pods.get_mut(&key.name).unwrap();
                        pod.deleted = Some(at(0));
                        pod.phase = "Failed".into();
                    } else {
                        self.forget(&key.name);
                    }
                }
            }
            Step::Untrack(pods) => {
                for PodId { key, .. } in pods {
                    let pod = self.pods.get_mut(&key.name).unwrap();
                    pod.job.as_mut().unwrap().tracked = false;
                    if pod.deleted.is_some() && pod.ended() {
                        self.forget(&key.name);
                    }
                }
            }
            Step::Status { status, .. } => {
                self.written.push((**status).clone());
                let list = |uids: &BTreeSet<String>| uids.clone();
                let conditions: Vec<Value> =
                    status.conditions.iter().map(|one| one.json(None)).collect();
                self.job.status = Some(serde_json::from_value(json!({
                    "active": status.active, "ready": status.ready, "terminating": status.terminating,
                    "succeeded": status.succeeded, "failed": status.failed,
                    "completedIndexes": status.completed_indexes, "failedIndexes": status.failed_indexes,
                    "startTime": status.started.map(|time| time.to_string()),
                    "completionTime": status.completed.map(|time| time.to_string()),
                    "uncountedTerminatedPods": {"succeeded": list(&status.uncounted.succeeded),
                        "failed": list(&status.uncounted.failed)},
                    "conditions": conditions,
                })).unwrap());
            }
            Step::Event(..) => {}
            Step::Own(_) => unreachable!("all are its own"),
        }
    }

    /// Deletes the Job, which a finalizer holds.
    fn delete(&mut self) {
        self.job.metadata.deletion_timestamp = Some(Time(at(0)));
    }

    fn set_phase(&mut self, phase: &str) {
        let pods = self.pods.values_mut();
        pods.for_each(|pod| pod.phase = phase.into());
    }

    fn tracks(&self) -> bool {
        let mut pods = self.pods.values();
        pods.any(|pod| pod.job.as_ref().unwrap().tracked)
    }

    fn forget(&mut self, name: &str) {
        self.pods.remove(name);
        self.scene.stand.remove::<OwnedPod>(&key(name));
    }

    fn running(&self) -> Vec<String> {
        let active = self.pods.iter().filter(|(_, pod)| pod.is_active());
        active.map(|(name, _)| name.clone()).collect()
    }

    fn end(&mut self, name: &str, code: i32) {
        let ended = at(i64::try_from(self.seconds).unwrap());
        let pod = self.pods.get_mut(name).unwrap();
        pod.phase = if code == 0 { "Succeeded" } else { "Failed" }.into();
        let part = pod.job.as_mut().unwrap();
        part.exits = vec![("c".to_owned(), code)];
        part.ended = Some(ended);
    }

    fn status(&self) -> Status {
        Status::of(&self.job)
    }

    /// The last condition that holds, with its reason.
    fn says(&self) -> (String, String) {
        let conditions = self.status().conditions;
        let last = conditions.iter().rfind(|one| one.status == "True");
        last.map(|one| (one.kind.clone(), one.reason.clone()))
            .unwrap_or_default()
    }

    fn indexes(&self) -> Vec<i32> {
        let active = self.pods.values().filter(|pod| pod.is_active());
        let mut all: Vec<i32> = active.filter_map(|pod| pod.job.as_ref()?.index).collect();
        all.sort_unstable();
        all
    }
}

fn pair(one: &str, two: &str) -> (String, String) {
    (one.to_owned(), two.to_owned())
}

#[test]
fn a_job_runs_so_many_pods_at_once_until_enough_have_succeeded() {
    let mut world = World::new(json!({"completions": 3, "parallelism": 2}));
    world.settle();
    assert_eq!(world.running().len(), 2);
    assert_eq!(
        (world.status().active, world.status().started),
        (2, Some(epoch()))
    );
    for _ in 0..3 {
        let pod = world.running().remove(0);
        world.end(&pod, 0);
        world.settle();
    }
    assert_eq!((world.status().succeeded, world.made), (3, 3));
    assert_eq!(world.says(), pair("Complete", "CompletionsReached"));
    assert!(world.status().holds("SuccessCriteriaMet"));
    assert_eq!(world.status().completed, Some(epoch()));
    assert!(!world.tracks());
}

#[test]
fn failures_wait_longer_each_time_and_end_the_job_at_its_limit() {
    let mut world = World::new(json!({"completions": 1, "backoffLimit": 2}));
    world.settle();
    for (failure, wait) in [10, 20].into_iter().enumerate() {
        let pod = world.running().remove(0);
        world.end(&pod, 1);
        world.settle();
        assert_eq!(world.running(), Vec::<String>::new());
        assert_eq!(world.requeue(), Some(Duration::from_secs(wait)));
        assert_eq!(world.status().failed, i32::try_from(failure).unwrap() + 1);
        world.seconds += wait;
        world.settle();
        assert_eq!(world.running().len(), 1);
    }
    let pod = world.running().remove(0);
    world.end(&pod, 1);
    world.settle();
    assert_eq!(world.says(), pair("Failed", "BackoffLimitExceeded"));
    assert_eq!((world.status().failed, world.made), (3, 3));
    world.seconds += 1000;
    assert!(!world.act(9), "a failed Job rests");
}

#[test]
fn a_job_that_takes_too_long_ends_its_pods_and_fails_when_they_have_ended() {
    let mut world =
        World::new(json!({"completions": 2, "parallelism": 2, "activeDeadlineSeconds": 30}));
    world.settle();
    assert_eq!(world.requeue(), Some(Duration::from_secs(30)));
    world.seconds = 30;
    world.act(usize::MAX);
    assert_eq!(world.says(), pair("FailureTarget", "DeadlineExceeded"));
    world.settle();
    assert_eq!(world.says(), pair("Failed", "DeadlineExceeded"));
    assert_eq!((world.running().len(), world.status().failed), (0, 2));
}

#[test]
fn a_suspended_job_ends_its_pods_uncounted_and_begins_anew() {
    let mut world = World::new(json!({"completions": 2, "parallelism": 2}));
    world.settle();
    world.job.spec.as_mut().unwrap().suspend = Some(true);
    world.settle();
    assert_eq!(
        (
            world.running().len(),
            world.status().failed,
            world.status().active
        ),
        (0, 0, 0)
    );
    assert_eq!(world.says(), pair("Suspended", "JobSuspended"));
    assert_eq!(
        world.status().started,
        None,
        "it has not begun while it rests"
    );
    world.job.spec.as_mut().unwrap().suspend = Some(false);
    world.seconds = 60;
    world.settle();
    assert_eq!(
        (world.running().len(), world.status().started),
        (2, Some(at(60)))
    );
    assert!(!world.status().holds("Suspended"));
}

#[test]
fn each_index_runs_once_and_is_done_once() {
    let mut world =
        World::new(json!({"completions": 5, "parallelism": 3, "completionMode": "Indexed"}));
    world.settle();
    assert_eq!(world.indexes(), [0, 1, 2]);
    world.end("p2", 0);
    world.end("p3", 1);
    world.settle();
    assert_eq!(world.status().completed_indexes, "1");
    world.seconds = 10;
    world.settle();
    assert_eq!(world.indexes(), [0, 2, 3]);
    // A second pod of an index is deleted, also one that another client created.
    let twin = OwnedPod {
        uid: "twin".to_owned(),
        ..world.pods["p1"].clone()
    };
    world.pods.insert("twin".to_owned(), twin);
    world.settle();
    assert_eq!(world.indexes(), [0, 2, 3]);
}

#[test]
fn an_index_that_fails_too_often_fails_alone() {
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "backoffLimit": 2_147_483_647});
    let mut world = World::new(spec);
    world.settle();
    world.end("p1", 1);
    world.settle();
    assert_eq!(world.status().failed_indexes.as_deref(), Some(""));
    assert_eq!(world.indexes(), [1]);
    assert_eq!(world.requeue(), Some(Duration::from_secs(10)));
    world.seconds = 10;
    world.settle();
    assert_eq!(world.indexes(), [0, 1]);
    let second = world.pods["p3"].job.clone().unwrap();
    assert_eq!(second.failures, 1);
    assert_eq!(
        world.status().failed,
        1,
        "the first is counted as the second is there"
    );
    world.end("p3", 1);
    world.end("p2", 0);
    world.settle();
    let status = world.status();
    assert_eq!(
        (
            status.failed_indexes.as_deref(),
            status.completed_indexes.as_str(),
            status.failed
        ),
        (Some("0"), "1", 2)
    );
    assert_eq!(world.says(), pair("Failed", "FailedIndexes"));
}

#[test]
fn more_failed_indexes_than_are_allowed_fail_the_job() {
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 1, "backoffLimit": 2_147_483_647});
    let mut world = World::new(spec);
    world.settle();
    world.end("p1", 1);
    world.settle();
    assert_eq!(
        (world.says(), world.indexes()),
        (pair("", ""), vec![1, 2, 3])
    );
    assert_eq!(world.status().failed_indexes.as_deref(), Some("0"));
    world.end("p3", 1);
    world.settle();
    let reason = pair("Failed", "MaxFailedIndexesExceeded");
    assert_eq!((world.says(), world.indexes()), (reason, vec![]));
    let status = world.status();
    let failed = status.conditions.iter().find(|one| one.kind == "Failed");
    let words = "Job has exceeded the specified maximal number of failed indexes";
    assert_eq!(failed.unwrap().message, words);
}

#[test]
fn failure_policies_fail_an_index_at_once_or_count_the_pod() {
    let rules = json!({"rules": [
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [3]}},
        {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
    ]});
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "backoffLimit": 2_147_483_647, "podFailurePolicy": rules});
    let mut world = World::new(spec);
    world.settle();
    // By the first rule, by none, and by the second.
    for (pod, code) in [("p1", 3), ("p2", 1), ("p3", 42)] {
        world.end(pod, code);
    }
    world.settle();
    assert_eq!(world.status().failed_indexes.as_deref(), Some("2"));
    world.seconds = 10;
    world.settle();
    assert_eq!(world.indexes(), [0, 1], "they have another try");
    assert_eq!(world.status().failed_indexes.as_deref(), Some("2"));
}

#[test]
fn failure_policies_fail_the_job_or_ignore_the_pod() {
    let rules = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]});
    let spec = json!({"completions": 2, "parallelism": 2, "podFailurePolicy": rules});
    let mut world = World::new(spec);
    world.settle();
    world.end("p1", 1);
    let part = world.pods.get_mut("p1").unwrap().job.as_mut().unwrap();
    part.conditions = vec![("DisruptionTarget".to_owned(), "True".to_owned())];
    world.settle();
    assert_eq!(
        (world.status().failed, world.status().uncounted.is_empty()),
        (0, true)
    );
    world.end("p2", 42);
    world.settle();
    assert_eq!(world.says(), pair("Failed", "PodFailurePolicy"));
    let failed = world.status().conditions;
    let message = &failed
        .iter()
        .find(|one| one.kind == "Failed")
        .unwrap()
        .message;
    let expected =
        "Container c for pod default/web failed with exit code 42 matching FailJob rule at index 0";
    assert_eq!(message, &expected.replace("default/web", "default/p2"));
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let policy = json!({"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]});
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "successPolicy": policy});
    let mut world = World::new(spec);
    world.settle();
    world.end("p3", 0);
    world.settle();
    assert_eq!(world.running().len(), 4 - 1);
    world.end("p2", 0);
    world.settle();
    assert_eq!(
        (world.says(), world.running().len()),
        (pair("Complete", "SuccessPolicy"), 0)
    );
    assert_eq!(world.status().completed_indexes, "1,2");
}

#[test]
fn a_job_whose_indexes_all_ended_with_a_failure_fails_despite_its_success_policy() {
    let policy = json!({"rules": [{"succeededIndexes": "1"}]});
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "successPolicy": policy,
        "backoffLimitPerIndex": 0, "backoffLimit": 2_147_483_647});
    // Which pod ends first, and how the Job ends: it is complete where the rule matches before the
    // other index fails.
    for (first, last, expected) in [
        ("p1", Some("p2"), pair("Failed", "FailedIndexes")),
        ("p2", None, pair("Complete", "SuccessPolicy")),
    ] {
        let mut world = World::new(spec.clone());
        world.settle();
        for name in [Some(first), last].into_iter().flatten() {
            world.end(name, i32::from(name == "p1"));
            world.settle();
        }
        assert_eq!(world.says(), expected, "{first} is first");
    }
}

#[test]
fn a_finished_job_adopts_and_releases_nothing() {
    let mut world = World::new(json!({"completions": 1}));
    world.settle();
    world.end("p1", 0);
    world.pods.get_mut("p1").unwrap().owner = None;
    let adopted = |step: &Step| matches!(step, Step::Own(OwnerChange::Adopt(..)));
    assert!(
        world.steps().iter().any(adopted),
        "until then it takes what it selects"
    );
    world.pods.get_mut("p1").unwrap().owner = pod_of("Job", "web", "p1").owner;
    world.settle();
    assert_eq!(world.says().0, "Complete");
    let pod = world.pods.get_mut("p1").unwrap();
    let owner = pod.owner.take();
    assert_eq!(world.steps(), [], "somebody wants to keep this pod");
    let pod = world.pods.get_mut("p1").unwrap();
    (pod.owner, pod.labels) = (owner, Arc::default());
    assert_eq!(world.steps(), []);
}

#[test]
fn a_job_that_is_being_deleted_counts_its_ended_pods_and_makes_none() {
    let mut world = World::new(json!({"completions": 4, "parallelism": 3}));
    world.settle();
    world.end("p1", 0);
    world.end("p2", 1);
    world.delete();
    world.seconds = 1000;
    let steps = world.steps();
    let [Step::Status { .. }, Step::Untrack(freed)] = steps.as_slice() else {
        unreachable!("{steps:?}")
    };
    assert_eq!(freed.len(), 3, "also the one that has not ended");
    world.settle();
    let status = world.status();
    assert_eq!((status.succeeded, status.failed, status.active), (1, 1, 1));
    assert!(status.uncounted.is_empty());
    world.end("p3", 0);
    world.settle();
    let status = world.status();
    assert_eq!((status.succeeded, status.active), (1, 0), "p3 was freed");
    assert_eq!((world.made, world.says()), (3, pair("", "")));
}

#[test]
fn a_job_that_is_being_deleted_still_ends_by_its_rules() {
    let spec = json!({"completions": 2, "parallelism": 2, "activeDeadlineSeconds": 30,
        "podReplacementPolicy": "Failed"});
    let mut complete = World::new(spec.clone());
    complete.settle();
    complete.end("p1", 0);
    complete.end("p2", 0);
    complete.delete();
    complete.settle();
    assert_eq!(complete.says(), pair("Complete", "CompletionsReached"));
    let mut late = World::new(spec);
    late.settle();
    late.delete();
    late.seconds = 30;
    late.act(usize::MAX);
    assert_eq!(late.says(), pair("FailureTarget", "DeadlineExceeded"));
    late.set_phase("Running");
    late.settle();
    assert!(
        late.tracks(),
        "pods that are ending count once they have ended"
    );
    late.set_phase("Failed");
    late.settle();
    assert_eq!(late.says(), pair("Failed", "DeadlineExceeded"));
    assert_eq!((late.running().len(), late.status().failed), (0, 2));
}

#[test]
fn a_failed_pod_waits_for_no_successor_where_its_job_is_being_deleted() {
    let spec = json!({"completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
    let mut world = World::new(spec);
    world.settle();
    world.end("p1", 1);
    world.settle();
    assert!(world.tracks(), "its annotations have the index's failures");
    world.delete();
    world.settle();
    assert!(!world.tracks());
    assert_eq!((world.status().failed, world.made), (1, 1));
}

#[test]
fn a_job_of_another_controller_is_left_alone() {
    let mut world = World::new(json!({"completions": 1, "managedBy": "example.com/own"}));
    assert_eq!(world.steps(), []);
}

#[test]
fn a_status_is_for_the_version_of_the_job_that_was_planned_for() {
    let mut world = World::new(json!({"completions": 1}));
    for version in [7, 8] {
        world.job.metadata.resource_version = Some(version.to_string());
        world.scene.stand.see::<Kept<Job>>(world.job.clone());
        let plan = world.scene.plan(&key("web"), 0);
        let last = plan.actions.last().map(|action| &action.step);
        let Some(Step::Status { version: found, .. }) = last else {
            unreachable!("{last:?}")
        };
        assert_eq!(*found, Some(version));
    }
}

proptest! {
    /// Each pod that ended is counted exactly once, wherever the process stops between two steps.
    #[test]
    fn every_ended_pod_of_a_job_is_counted_once(
        completions in 1_i32..6, parallelism in 1_i32..4, indexed: bool,
        events in proptest::collection::vec((0_usize..4, 0_i32..3), 1..60),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut world = World::new(json!({"completions": completions, "parallelism": parallelism,
            "completionMode": mode, "backoffLimit": 1000}));
        let (mut succeeded, mut failed) = (BTreeSet::new(), 0);
        for (stop, code) in events {
            world.act(stop);
            if stop == 0 && let Some(name) = world.running().first().cloned() {
                world.end(&name, code / 2);
                if code / 2 == 0 {
                    let index = world.pods[&name].job.as_ref().unwrap().index;
                    succeeded.insert(index.map_or(name, |index| index.to_string()));
                } else {
                    failed += 1;
                }
            }
            prop_assert!(world.running().len() <= usize::try_from(parallelism).unwrap());
            let mut indexes = world.indexes();
            indexes.dedup();
            prop_assert!(!indexed || indexes.len() == world.running().len());
            world.seconds += 1000;
        }
        for _ in 0..20 {
            world.settle();
            let Some(name) = world.running().first().cloned() else { break };
            world.end(&name, 0);
            let index = world.pods[&name].job.as_ref().unwrap().index;
            succeeded.insert(index.map_or(name, |index| index.to_string()));
            world.seconds += 1000;
        }
        prop_assert_eq!(world.says().0, "Complete");
        prop_assert_eq!(world.status().failed, failed);
        prop_assert_eq!(usize::try_from(world.status().succeeded).unwrap(), succeeded.len());
        // Nothing was ever taken back.
        for pair in world.written.windows(2) {
            prop_assert!(pair[0].succeeded <= pair[1].succeeded && pair[0].failed <= pair[1].failed);
        }
    }
}

#[test]
fn a_job_whose_pods_ended_before_its_first_status_has_a_beginning() {
    let mut world = World::new(json!({"completions": 1}));
    // The process ends as soon as the pod is made.
    world.act(1);
    world.end("p1", 0);
    world.settle();
    assert_eq!(world.says().0, "Complete");
    assert!(world.status().started.is_some());
}

#[test]
fn a_job_ends_no_earlier_than_it_began_where_the_clock_was_set_back() {
    let mut world = World::new(json!({"completions": 1}));
    world.seconds = 100;
    world.settle();
    world.end("p1", 0);
    world.seconds = 0;
    world.settle();
    assert_eq!(world.says().0, "Complete");
    assert_eq!(world.status().completed, Some(at(100)));
}

#[test]
fn indexes_of_pods_that_are_not_the_jobs_count_nothing() {
    let spec = json!({"completions": 2, "completionMode": "Indexed"});
    let mut world = World::new(spec);
    world.settle();
    world.end("p1", 0);
    let pod = world.pods.get_mut("p1").unwrap();
    pod.job.as_mut().unwrap().index = Some(7);
    world.settle();
    assert_eq!(world.status().completed_indexes, "");
}

#[test]
fn the_next_index_after_two_billion_ended_ones_is_found_at_once() {
    let mut world = World::new(json!({"completions": i32::MAX, "completionMode": "Indexed",
        "parallelism": 2, "backoffLimitPerIndex": 1}));
    let status =
        json!({"completedIndexes": "0-1999999999", "failedIndexes": "2000000000-2147483644"});
    world.job.status = Some(serde_json::from_value(status).unwrap());
    world.settle();
    assert_eq!(world.indexes(), [2_147_483_645, 2_147_483_646]);
}

#[test]
fn no_number_in_a_job_makes_the_controllers_panic() {
    let spec = json!({"completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": i32::MAX,
        "backoffLimit": i32::MAX});
    let mut world = World::new(spec);
    world.settle();
    // Any user who may write pods can write the annotations of its pods.
    let part = world.pods.get_mut("p1").unwrap().job.as_mut().unwrap();
    (part.failures, part.ignored) = (1, i32::MAX);
    world.end("p1", 1);
    world.settle();
    world.seconds = 100_000;
    world.settle();
    let mut world = World::new(json!({"activeDeadlineSeconds": i64::MAX}));
    world.settle();
    // By a clock that was set back the Job began later than now.
    let later = serde_json::from_value(json!(at(200_000).to_string()));
    world.job.status.as_mut().unwrap().start_time = later.unwrap();
    assert!(world.requeue().is_some());
}
