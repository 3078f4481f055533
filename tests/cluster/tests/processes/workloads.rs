//! Workloads by the real kubectl on a master without nodes: pods are marked as kubelets would mark
//! them.

use super::{LIMIT, Site};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tests_harness::process::Owned;
use tests_harness::wait::eventually;

/// The status of a ready pod.
const READY: &str = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;

/// Does something while a part is played again and again.
fn while_played<T>(play: impl Fn() + Sync, what: impl FnOnce() -> T) -> T {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                play();
            }
        });
        // Also where what is done panics, else the other thread would never end.
        let _stop = Stop(&stop);
        what()
    })
}

/// A master whose pods run as soon as they are seen.
struct Cluster {
    site: Site,
    master: Option<Owned>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(master) = self.master.take() {
            // It may have ended by itself; the test has its verdict already.
            let _ended = master.kill();
        }
    }
}

impl Cluster {
    fn start() -> Self {
        let site = Site::new();
        let master = Some(site.start());
        Self { site, master }
    }

    /// Creates what a manifest describes.
    fn create(&self, manifest: &str) {
        let file = self.site.dir.path().join("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.kubectl(&format!("create -f {}", file.display()));
    }

    fn kubectl(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.site.kubectl(&words).unwrap()
    }

    /// Names of pods in a phase that are not being deleted.
    fn pods(&self, phase: &str) -> Vec<String> {
        let words = [
            "get",
            "pods",
            "-o",
            r#"go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.status.phase}} {{.metadata.name}}{{"\n"}}{{end}}{{end}}"#,
        ];
        let printed = self.site.kubectl(&words).unwrap_or_default();
        let lines = printed.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter(|(found, _)| *found == phase);
        lines.map(|(_, name)| name.to_owned()).collect()
    }

    fn mark(&self, pod: &str, status: &str) {
        let words = [
            "patch",
            "pod",
            pod,
            "--subresource=status",
            "--type=merge",
            "-p",
            status,
        ];
        // It may have gone meanwhile.
        let _gone = self.site.kubectl(&words);
    }

    /// Does something while pods that are pending are marked as running and ready.
    fn while_pods_run<T>(&self, what: impl FnOnce() -> T) -> T {
        let play = || {
            for pod in self.pods("Pending") {
                self.mark(&pod, READY);
            }
        };
        while_played(play, what)
    }

    fn rolled_out(&self) {
        let printed = self.kubectl("rollout status deployment/web --timeout=300s");
        assert!(printed.contains("successfully rolled out"), "{printed}");
    }

    fn image(&self, workload: &str) -> String {
        let path = "jsonpath={.spec.template.spec.containers[0].image}";
        self.kubectl(&format!("get {workload} -o {path}"))
    }

    fn revisions(&self, workload: &str) -> Vec<String> {
        let printed = self.kubectl(&format!("rollout history {workload}"));
        let numbers = printed
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let numbers = numbers.filter(|word| word.parse::<u32>().is_ok());
        numbers.map(str::to_owned).collect()
    }

    fn until(&self, what: &str, words: &str, wanted: impl Fn(&str) -> bool) {
        let words: Vec<&str> = words.split_whitespace().collect();
        eventually(what, LIMIT, "", || {
            let printed = self.site.kubectl(&words).unwrap_or_default();
            Ok(wanted(printed.trim()).then_some(()))
        })
        .unwrap();
    }
}

#[test]
fn kubectl_rolls_out_undoes_pauses_scales_and_restarts_a_deployment() {
    let cluster = Cluster::start();
    cluster.create(&web("Deployment").replace("replicas: 2", "replicas: 3"));
    cluster.while_pods_run(|| {
        cluster.rolled_out();
        cluster.kubectl("set image deployment/web web=registry.example/web:2");
        cluster.rolled_out();
        assert_eq!(cluster.revisions("deployment/web"), ["1", "2"]);
        cluster.kubectl("rollout undo deployment/web");
        cluster.rolled_out();
        assert_eq!(cluster.image("deployment/web"), "registry.example/web:1");
        assert_eq!(cluster.revisions("deployment/web"), ["2", "3"]);

        cluster.kubectl("rollout pause deployment/web");
        cluster.kubectl("set image deployment/web web=registry.example/web:4");
        cluster.until(
            "the pause is seen",
            "get deployment web -o jsonpath={.status.conditions[?(@.type==\"Progressing\")].reason}",
            |reason| reason == "DeploymentPaused",
        );
        assert_eq!(cluster.revisions("deployment/web"), ["2", "3"], "a paused Deployment rolls nothing out");
        cluster.kubectl("rollout resume deployment/web");
        cluster.rolled_out();
        assert_eq!(cluster.revisions("deployment/web"), ["2", "3", "4"]);

        cluster.kubectl("scale deployment/web --replicas=5");
        cluster.kubectl("wait deployment/web --for=jsonpath={.status.availableReplicas}=5 --timeout=300s");
        cluster.kubectl("wait deployment/web --for=condition=Available --timeout=300s");
        cluster.kubectl("rollout restart deployment/web");
        cluster.rolled_out();
    });
    let described = cluster.kubectl("describe deployment web");
    for words in [
        "NewReplicaSetAvailable",
        "ScalingReplicaSet",
        "deployment-controller",
        "5 desired | 5 updated | 5 total | 5 available",
    ] {
        assert!(described.contains(words), "no {words} in\n{described}");
    }
    cluster.kubectl("delete deployment web");
    cluster.until(
        "nothing is left",
        "get pods,replicasets -o name",
        str::is_empty,
    );
}

#[test]
fn kubectl_says_that_a_deployment_is_past_its_progress_deadline_and_sees_it_go_on() {
    let cluster = Cluster::start();
    cluster.create(
        &web("Deployment").replace("replicas: 2", "replicas: 2, progressDeadlineSeconds: 1"),
    );
    let words = ["rollout", "status", "deployment/web", "--timeout=300s"];
    let failure = cluster.site.kubectl(&words).unwrap_err();
    let failure = format!("{failure:#}");
    assert!(
        failure.contains("deployment \"web\" exceeded its progress deadline"),
        "{failure}"
    );
    cluster.while_pods_run(|| {
        cluster.until(
            "it goes on",
            "get deployment web -o jsonpath={.status.conditions[?(@.type==\"Progressing\")].reason}",
            |reason| reason == "NewReplicaSetAvailable",
        );
        cluster.rolled_out();
    });
}

#[test]
fn kubectl_waits_for_jobs_that_succeed_or_fail_and_a_cron_job_makes_them() {
    const SUCCEEDED: &str = r#"{"status":{"phase":"Succeeded"}}"#;
    const FAILED: &str = r#"{"status":{"phase":"Failed"}}"#;
    let cluster = Cluster::start();
    let ends = |status: &str| {
        eventually("a pod is there", LIMIT, "", || {
            Ok(cluster.pods("Pending").pop())
        })
        .map(|pod| cluster.mark(&pod, status))
        .unwrap();
    };
    cluster.kubectl("create job good --image=registry.example/job:1");
    ends(SUCCEEDED);
    cluster.kubectl("wait job/good --for=condition=complete --timeout=300s");
    cluster.until(
        "its pod is free",
        "get pods -l job-name=good -o jsonpath={.items[*].metadata.finalizers[*]}",
        str::is_empty,
    );

    cluster.create(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bad}\nspec:\n  backoffLimit: 0\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers: [{name: c, image: registry.example/job:1}]\n",
    );
    ends(FAILED);
    cluster.kubectl("wait job/bad --for=condition=failed --timeout=300s");
    let reason = cluster
        .kubectl("get job bad -o jsonpath={.status.conditions[?(@.type==\"Failed\")].reason}");
    assert_eq!(reason, "BackoffLimitExceeded");

    cluster.kubectl("delete job good bad");
    cluster.until("their pods go with them", "get pods -o name", str::is_empty);
    let words = [
        "create",
        "cronjob",
        "tick",
        "--image=registry.example/job:1",
        "--schedule=@every 1s",
    ];
    cluster.site.kubectl(&words).unwrap();
    ends(SUCCEEDED);
    cluster.until(
        "its success is known",
        "get cronjob tick -o jsonpath={.status.lastSuccessfulTime}",
        |time| !time.is_empty(),
    );
    cluster.kubectl("patch cronjob tick -p {\"spec\":{\"suspend\":true}}");
    cluster.kubectl("create job by-hand --from=cronjob/tick");
    let owner = cluster.kubectl("get job by-hand -o jsonpath={.metadata.ownerReferences[*].kind}");
    assert_eq!(owner, "CronJob");
    let ended = || {
        for pod in cluster.pods("Pending") {
            cluster.mark(&pod, SUCCEEDED);
        }
    };
    while_played(ended, || {
        cluster.kubectl("wait job/by-hand --for=condition=complete --timeout=300s");
    });
    cluster.kubectl("delete cronjob tick");
    cluster.until(
        "its jobs go with it",
        "get jobs,pods -o name",
        str::is_empty,
    );
}

#[test]
fn kubectl_autoscales_and_reads_why_nothing_can_be_measured() {
    let cluster = Cluster::start();
    cluster.kubectl("create deployment web --image=registry.example/web:1 --replicas=2");
    cluster.kubectl("autoscale deployment web --min=1 --max=3 --cpu-percent=50");
    cluster.until(
        "it says that it is not active",
        "get hpa web -o jsonpath={.status.conditions[?(@.type==\"ScalingActive\")].reason}",
        |reason| reason == "FailedGetResourceMetric",
    );
    let described = cluster.kubectl("describe hpa web");
    for words in [
        "SucceededGetScale",
        "FailedGetResourceMetric",
        "no metrics returned from resource metrics API",
        "horizontal-pod-autoscaler",
        "2 current",
    ] {
        assert!(described.contains(words), "no {words} in\n{described}");
    }
}

/// Nodes without machines: they are alive, run each pod that is bound to them at once, and end each
/// that is deleted.
fn play_nodes(cluster: &Cluster, nodes: &[&str]) {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let size = r#"{"cpu":"8","memory":"8Gi","pods":"110"}"#;
    let alive = format!(
        r#"{{"status":{{"capacity":{size},"allocatable":{size},"conditions":[{{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":"{now}","lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}}}"#
    );
    for node in nodes {
        let words = [
            "patch",
            "node",
            node,
            "--subresource=status",
            "--type=merge",
            "-p",
            &alive,
        ];
        cluster.site.kubectl(&words).unwrap();
    }
    let words = [
        "get",
        "pods",
        "-o",
        r#"go-template={{range .items}}{{if .spec.nodeName}}{{if .metadata.deletionTimestamp}}Leaving{{else}}{{.status.phase}}{{end}} {{.metadata.name}}{{"\n"}}{{end}}{{end}}"#,
    ];
    let printed = cluster.site.kubectl(&words).unwrap_or_default();
    for (state, pod) in printed.lines().filter_map(|line| line.split_once(' ')) {
        match state {
            "Pending" => cluster.mark(pod, READY),
            "Leaving" => {
                // It may have gone meanwhile.
                let words = ["delete", "pod", pod, "--grace-period=0", "--force"];
                let _gone = cluster.site.kubectl(&words);
            }
            _ => {}
        }
    }
}

/// Does something on two such nodes.
fn with_nodes(cluster: &Cluster, what: impl FnOnce()) {
    const NODES: [&str; 2] = ["n1", "n2"];
    let node =
        |name: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n---\n");
    cluster.create(&NODES.map(node).concat());
    while_played(|| play_nodes(cluster, &NODES), what);
}

/// The manifest of a workload named `web`, with two pods where there are two nodes. Its template
/// has zero values, which kubectl, as a client with Go's types, leaves out of what it writes.
fn web(kind: &str) -> String {
    let (group, more) = match kind {
        "ReplicationController" => ("v1", "replicas: 2, selector: {app: web}"),
        "Job" => ("batch/v1", "parallelism: 2"),
        "DaemonSet" => ("apps/v1", "selector: {matchLabels: {app: web}}"),
        _ => (
            "apps/v1",
            "replicas: 2, selector: {matchLabels: {app: web}}",
        ),
    };
    let restart = if kind == "Job" {
        "restartPolicy: Never, "
    } else {
        ""
    };
    format!(
        "apiVersion: {group}\nkind: {kind}\nmetadata: {{name: web, annotations: {{kubernetes.io/change-cause: first}}}}\n\
         spec: {{{more}, template: {{metadata: {{labels: {{app: web}}}}, \
         spec: {{{restart}hostNetwork: false, tolerations: [], \
         containers: [{{name: web, image: \"registry.example/web:1\", tty: false, env: []}}]}}}}}}\n"
    )
}

#[test]
fn kubectl_rolls_out_undoes_and_restarts_stateful_sets_and_daemon_sets() {
    let cluster = Cluster::start();
    with_nodes(&cluster, || {
        for (kind, done) in [
            ("StatefulSet", "2 new pods have been updated"),
            ("DaemonSet", "successfully rolled out"),
        ] {
            let workload = format!("{}/web", kind.to_lowercase());
            let rolled_out = || {
                let printed = cluster.kubectl(&format!("rollout status {workload} --timeout=300s"));
                assert!(printed.contains(done), "{printed}");
            };
            cluster.create(&web(kind));
            rolled_out();
            cluster.kubectl(&format!("set image {workload} web=registry.example/web:2"));
            rolled_out();
            assert_eq!(cluster.revisions(&workload), ["1", "2"]);
            let history = cluster.kubectl(&format!("rollout history {workload}"));
            assert!(
                history.contains("first"),
                "no cause of a change in\n{history}"
            );
            let first = cluster.kubectl(&format!("rollout history {workload} --revision=1"));
            assert!(first.contains("registry.example/web:1"), "{first}");
            cluster.kubectl(&format!("rollout undo {workload}"));
            rolled_out();
            assert_eq!(cluster.image(&workload), "registry.example/web:1");
            assert_eq!(cluster.revisions(&workload), ["2", "3"]);
            cluster.kubectl(&format!("rollout restart {workload}"));
            rolled_out();
            assert_eq!(cluster.revisions(&workload), ["2", "3", "4"]);
            let described = cluster.kubectl(&format!("describe {workload}"));
            for words in [
                "SuccessfulCreate",
                "SuccessfulDelete",
                &format!("{}-controller", kind.to_lowercase()),
            ] {
                assert!(described.contains(words), "no {words} in\n{described}");
            }
            cluster.kubectl(&format!("delete {workload} --cascade=foreground"));
            let left = cluster.kubectl("get pods,controllerrevisions -o name");
            assert_eq!(left, "");
        }
    });
}

/// What is deleted alone leaves its pods, and takes them over where it comes back; with
/// `foreground` it goes last, with `background` first.
#[test]
fn kubectl_deletes_workloads_with_each_propagation() {
    const OWNERS: &str =
        "get pods,replicasets -o jsonpath={.items[*].metadata.ownerReferences[*].kind}";
    const NOTHING: &str = "get pods,replicasets,controllerrevisions -o name";
    let cluster = Cluster::start();
    with_nodes(&cluster, || {
        // Owners of pods and ReplicaSets: of what was left alone, and of what has a workload.
        for (kind, orphans, owned) in [
            (
                "Deployment",
                "ReplicaSet ReplicaSet",
                "ReplicaSet ReplicaSet Deployment",
            ),
            ("ReplicaSet", "", "ReplicaSet ReplicaSet"),
            ("StatefulSet", "", "StatefulSet StatefulSet"),
            ("DaemonSet", "", "DaemonSet DaemonSet"),
            (
                "ReplicationController",
                "",
                "ReplicationController ReplicationController",
            ),
            // Each Job selects by its UID: another one takes over nothing.
            ("Job", "", "Job Job"),
        ] {
            let uids = || cluster.kubectl("get pods -o jsonpath={.items[*].metadata.uid}");
            let make = || {
                cluster.create(&web(kind));
                cluster.until("it has its pods", OWNERS, |owners| owners == owned);
                cluster.until(
                    "they run",
                    "get pods -o jsonpath={.items[*].status.phase}",
                    |phases| phases == "Running Running",
                );
            };
            let delete =
                |cascade: &str| cluster.kubectl(&format!("delete {kind} web --cascade={cascade}"));
            let nothing = || cluster.until("nothing is left", NOTHING, str::is_empty);
            make();
            let pods = uids();
            delete("orphan");
            assert_eq!(cluster.kubectl(OWNERS), orphans, "{kind}");
            assert_eq!(uids(), pods, "the pods of a {kind} stay");
            if kind == "Job" {
                cluster.kubectl("delete pods --all");
            } else {
                make();
                assert_eq!(uids(), pods, "a {kind} takes its pods over");
                if kind != "DaemonSet" {
                    cluster.kubectl(&format!(
                        "scale {kind}/web --current-replicas=2 --replicas=1"
                    ));
                    cluster.until(
                        "one is left",
                        "get pods -o jsonpath={.items[*].metadata.uid}",
                        |left| !left.is_empty() && !left.contains(' ') && pods.contains(left),
                    );
                }
                delete("foreground");
                assert_eq!(cluster.kubectl(NOTHING), "", "a {kind} goes last");
            }
            make();
            delete("background");
            nothing();
        }
    });
}

/// A CronJob that is deleted alone leaves its Jobs, and another one takes none of them over.
#[test]
fn kubectl_deletes_a_cron_job_with_each_propagation() {
    const ALL: &str = "get jobs,pods -o name";
    const OWNERS: &str = "get jobs,pods -o jsonpath={.items[*].metadata.ownerReferences[*].kind}";
    let cluster = Cluster::start();
    with_nodes(&cluster, || {
        let make = |owners: &str| {
            cluster
                .kubectl("create cronjob tick --image=registry.example/job:1 --schedule=@yearly");
            cluster.kubectl("create job by-hand --from=cronjob/tick");
            cluster.until("the Job has its pod", OWNERS, |found| found == owners);
        };
        let delete =
            |cascade: &str| cluster.kubectl(&format!("delete cronjob tick --cascade={cascade}"));
        make("CronJob Job");
        delete("orphan");
        assert_eq!(cluster.kubectl(OWNERS), "Job", "the Job stays with its pod");
        cluster.kubectl("create cronjob tick --image=registry.example/job:1 --schedule=@yearly");
        cluster.kubectl("delete cronjob tick");
        assert_eq!(cluster.kubectl(OWNERS), "Job", "it is nobody's");
        cluster.kubectl("delete job by-hand");
        cluster.until("its pod goes with it", ALL, str::is_empty);
        make("CronJob Job");
        // The CronJob need not go last: kubectl's reference of a Job by hand does not block it.
        delete("foreground");
        cluster.until("nothing is left", ALL, str::is_empty);
        make("CronJob Job");
        delete("background");
        cluster.until("nothing is left", ALL, str::is_empty);
    });
}

#[test]
fn kubectl_drains_a_node_within_a_budget() {
    let cluster = Cluster::start();
    with_nodes(&cluster, || {
        cluster.kubectl("create deployment web --image=registry.example/web:1 --replicas=4");
        cluster.rolled_out();
        cluster.kubectl("create poddisruptionbudget web --selector=app=web --min-available=3");
        cluster.until(
            "the budget is counted",
            "get poddisruptionbudget web -o jsonpath={.status.disruptionsAllowed}",
            |allowed| allowed == "1",
        );
        cluster.kubectl("drain n1 --timeout=300s");
        let left = cluster.kubectl("get pods --field-selector=spec.nodeName=n1 -o name");
        assert_eq!(left.trim(), "", "the node is empty");
        cluster.rolled_out();
        cluster.kubectl("uncordon n1");
    });
}
