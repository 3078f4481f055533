//! Workloads on machines: Jobs that fail, drains with a budget, and pods of a machine that is lost.

use crate::world::{Cluster, World, expect};
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Error, Result};

/// Pods under emulation, and a node that says nothing for as long as the master waits for it.
const LIMIT: Duration = Duration::from_secs(900);

/// Three indexes, of which one fails.
const JOB: &str = r#"apiVersion: batch/v1
kind: Job
metadata: {name: counted}
spec:
  completionMode: Indexed
  completions: 3
  parallelism: 3
  backoffLimitPerIndex: 1
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: registry.example/busybox:1
        command: [/bin/busybox, sh, -c, "[ $JOB_COMPLETION_INDEX != 1 ]"]
"#;

/// An index that failed as often as it may fails its Job, which says which one, and runs the others
/// to their end.
pub(crate) fn an_indexed_job_says_which_index_failed(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    cluster.apply("counted", JOB)?;
    let path = "jsonpath={.status.conditions[?(@.type=='Failed')].reason} {.status.completedIndexes} \
                {.status.failedIndexes} {.status.succeeded} {.status.failed}";
    let words = ["get", "job", "counted", "-o", path];
    let what = "the Job to fail by its second index";
    cluster.lab.kubectl_until(&words, what, LIMIT, |text| {
        text == "FailedIndexes 0,2 1 2 2"
    })?;
    let words = ["delete", "job", "counted", "--wait=false"];
    cluster.lab.kubectl(&words).map(drop)
}

/// A Deployment of pods that leave an unreachable machine after five seconds.
fn deployment(name: &str, replicas: usize) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}}
      - {{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}}
      containers:
      - name: main
        image: registry.example/busybox:1
        command: [/bin/busybox, sleep, "100000"]
"#
    )
}

/// Makes a Deployment whose pods run on `worker-2`, from where they may move to `worker-1`.
fn on_the_second(cluster: &Cluster, name: &str, replicas: usize) -> Result<()> {
    cluster.lab.kubectl(&["cordon", "worker-1"])?;
    let made = cluster
        .apply(name, &deployment(name, replicas))
        .and_then(|()| runs_on(cluster, name, "worker-2", replicas));
    cluster.lab.kubectl(&["uncordon", "worker-1"])?;
    made
}

/// Waits until a Deployment has as many ready pods as it should, all of them on one node, and no
/// other pod.
fn runs_on(cluster: &Cluster, name: &str, node: &str, replicas: usize) -> Result<()> {
    let label = format!("app={name}");
    let path =
        "jsonpath={range .items[*]}{.spec.nodeName}/{.status.containerStatuses[0].ready} {end}";
    let words = ["get", "pods", "-l", &label, "-o", path];
    let what = format!("{replicas} pods of {name} to run on {node}, and no other");
    let wanted = format!("{node}/true");
    cluster
        .lab
        .kubectl_until(&words, &what, LIMIT, |text| {
            let pods: Vec<&str> = text.split_whitespace().collect();
            pods.len() == replicas && pods.iter().all(|pod| *pod == wanted)
        })
        .map(drop)
}

/// `kubectl drain` moves both pods of an application to another machine, one after the other, as
/// its budget asks.
pub(crate) fn a_drain_waits_for_a_budget(world: &mut World) -> Result<()> {
    world.companion()?;
    let cluster = world.cluster()?;
    let lab = &cluster.lab;
    on_the_second(cluster, "budgeted", 2)?;
    let budget = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: budgeted}\nspec:\n  minAvailable: 1\n  \
                  selector: {matchLabels: {app: budgeted}}\n";
    cluster.apply("budget", budget)?;
    let words = [
        "get",
        "pdb",
        "budgeted",
        "-o",
        "jsonpath={.status.disruptionsAllowed}",
    ];
    lab.kubectl_until(&words, "the budget to allow one", LIMIT, |text| text == "1")?;
    let said = lab.typed(
        "kubectl drain worker-2 --pod-selector=app=budgeted --ignore-daemonsets --timeout=900s 2>&1",
    )?;
    expect(
        said.contains("would violate the pod's disruption budget"),
        &format!("both pods were evicted at once:\n{said}"),
    )?;
    runs_on(cluster, "budgeted", "worker-1", 2)?;
    lab.kubectl(&["uncordon", "worker-2"])?;
    let words = [
        "delete",
        "pdb/budgeted",
        "deployment/budgeted",
        "--wait=false",
    ];
    lab.kubectl(&words).map(drop)
}

/// A machine loses its power: its pod runs elsewhere. It gets its power back: it is Ready, and its
/// old pod runs on it no more.
pub(crate) fn pods_of_a_lost_machine_move_and_it_comes_back(world: &mut World) -> Result<()> {
    world.companion()?;
    on_the_second(world.cluster()?, "moved", 1)?;
    let words = [
        "get",
        "pods",
        "-l",
        "app=moved",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ];
    let old = world.cluster()?.lab.kubectl(&words)?;
    world.without_companion(|cluster| {
        let path = "jsonpath={range .items[*]}{.metadata.name}/{.spec.nodeName}/{.status.containerStatuses[0].ready} {end}";
        let words = ["get", "pods", "-l", "app=moved", "-o", path];
        let what = "another pod on the other machine";
        cluster
            .lab
            .kubectl_until(&words, what, LIMIT, |text| {
                let mut pods = text.split_whitespace();
                pods.any(|pod| !pod.starts_with(&old) && pod.ends_with("/worker-1/true"))
            })
            .map(drop)
    })?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-2", BOOT_LIMIT)?;
    runs_on(cluster, "moved", "worker-1", 1)?;
    let words = ["get", "pod", &old, "--ignore-not-found", "-o", "name"];
    let left = cluster.lab.kubectl(&words)?;
    if !left.is_empty() {
        return Err(Error::Missing(format!("{left} is still there")));
    }
    let words = ["delete", "deployment", "moved", "--wait=false"];
    cluster.lab.kubectl(&words).map(drop)
}
