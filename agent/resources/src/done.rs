//! `/metrics`: what the kubelet has done since it began, under the names of upstream's own figures,
//! in Prometheus' text format.
//!
//! Bounded: every label is a word of this program, an exit code, or the handler of a RuntimeClass,
//! which only an admin makes.

use crate::timed::{Timed, TimedWork, Times};
use agent_runtime::{Container, ContainerKind, ContainerState};
use config_figures::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Roots of the paths that the kubelet answers; requests for others are counted together.
const ROOTS: [&str; 14] = [
    "attach",
    "configz",
    "containerLogs",
    "exec",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "runningpods",
    "stats/summary",
];
/// Those of them whose answers go on for long.
const LONG: [&str; 4] = ["attach", "containerLogs", "exec", "portForward"];

/// Counts by one label.
type ByWord = BTreeMap<&'static str, u64>;

#[derive(Debug, Clone, Default)]
struct Counts {
    pods: u64,
    pod_starts: Times,
    containers: ByWord,
    container_errors: ByWord,
    /// By container type, exit code and reason.
    terminated: BTreeMap<(&'static str, u8, &'static str), u64>,
    /// Attempts that were seen before they had ended, by id, and their pods' UIDs.
    alive: BTreeMap<String, String>,
    user_pods: u64,
    user_pod_errors: u64,
    evictions: ByWord,
    preemptions: BTreeMap<String, u64>,
    calls: BTreeMap<&'static str, Times>,
    call_errors: ByWord,
    pod_errors: u64,
    /// By the handler of the pod's RuntimeClass.
    sandbox_errors: BTreeMap<String, u64>,
    timed: Timed,
    /// By method and path.
    requests: BTreeMap<(&'static str, &'static str), u64>,
}

/// What the kubelet has done; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Done(Arc<Mutex<Counts>>);

fn one_more<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

/// Upstream's word for a kind of containers.
fn word(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Ephemeral => "ephemeral_container",
        ContainerKind::Main => "container",
    }
}

/// Upstream's word for an end.
fn reason(state: &ContainerState) -> &'static str {
    match state {
        ContainerState::Exited { code, cause, .. } => cause.reason(*code),
        ContainerState::Created | ContainerState::Running { .. } => "Error",
    }
}

impl Done {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a pod whose sandbox was made; with `own_users` it has a user namespace.
    pub fn pod(&self, own_users: bool) {
        let mut all = self.lock();
        all.pods = all.pods.saturating_add(1);
        if own_users {
            all.user_pods = all.user_pods.saturating_add(1);
        }
    }

    /// Counts a pod whose sandbox could not be made, as one that was started and as an error; with
    /// `own_users` it was to have a user namespace. `asked` is the handler of the pod's
    /// RuntimeClass (`""` for none) where the runtime was asked for the sandbox: then it is an
    /// error of the runtime, too. Where the pod asks for what no runtime has, it is not
    /// (upstream's rule).
    pub fn pod_failed(&self, own_users: bool, asked: Option<&str>) {
        self.pod(own_users);
        let mut all = self.lock();
        all.pod_errors = all.pod_errors.saturating_add(1);
        if let Some(handler) = asked {
            one_more(&mut all.sandbox_errors, handler.to_owned());
        }
        drop(all);
        if own_users {
            self.user_pod_failed();
        }
    }

    /// Counts the duration of a piece of work.
    pub fn took(&self, work: TimedWork, took: Duration) {
        self.lock().timed.add(work, took);
    }

    /// Counts a sandbox with a user namespace, or a container in one, that could not be made.
    pub fn user_pod_failed(&self) {
        let mut all = self.lock();
        all.user_pod_errors = all.user_pod_errors.saturating_add(1);
    }

    /// An attempt begins. Its end is counted later even if no listing shows it running.
    pub fn begins(&self, id: String, pod_uid: &str) {
        self.lock().alive.insert(id, pod_uid.to_owned());
    }

    /// Takes a list of attempts from the engine, of one pod or of all, and counts those whose end
    /// is new. Attempts that had ended before this kubelet's first list were counted by the kubelet
    /// before it.
    pub fn looked(&self, pod_uid: Option<&str>, seen: &[Container]) {
        let mut all = self.lock();
        let all = &mut *all;
        let mut there = BTreeMap::new();
        for one in seen {
            let ContainerState::Exited { code, .. } = &one.state else {
                there.insert(one.id.clone(), one.key.pod.uid.clone());
                continue;
            };
            if all.alive.remove(&one.id).is_some() {
                // The kernel's exit codes have eight bits.
                let code = u8::try_from(*code).unwrap_or(u8::MAX);
                let key = (word(one.key.kind), code, reason(&one.state));
                one_more(&mut all.terminated, key);
            }
        }
        all.alive.extend(there);
        // What was removed before anybody saw its end has none to tell. A start that goes on is
        // shown soon.
        if let Some(pod_uid) = pod_uid.filter(|_| seen.is_empty()) {
            all.alive.retain(|_, uid| uid != pod_uid);
        }
    }

    /// A pod runs, so long after this kubelet saw it first.
    pub fn pod_runs(&self, after: Duration) {
        self.lock().pod_starts.add(after);
    }

    /// A container was started, or could not be.
    pub fn container(&self, kind: ContainerKind, well: bool) {
        let mut all = self.lock();
        let all = &mut *all;
        one_more(&mut all.containers, word(kind));
        if !well {
            one_more(&mut all.container_errors, word(kind));
        }
    }

    /// A pod is evicted, for what this signal measures.
    pub fn evicted(&self, signal: &'static str) {
        one_more(&mut self.lock().evictions, signal);
    }

    /// A pod ends for a critical one that lacked this resource.
    pub fn preempted(&self, resource: &str) {
        one_more(&mut self.lock().preemptions, resource.to_owned());
    }

    /// The engine was called.
    pub fn called(&self, operation: &'static str, well: bool, took: Duration) {
        let mut all = self.lock();
        all.calls.entry(operation).or_default().add(took);
        if !well {
            one_more(&mut all.call_errors, operation);
        }
    }

    /// Counts a request of an authorized caller.
    pub fn asked(&self, method: &str, path: &[&str]) {
        let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"];
        let method = methods.into_iter().find(|known| *known == method);
        let of = |number: usize| path.get(..number).map(|parts| parts.join("/"));
        let [whole, first] = [of(2), of(1)];
        let named = |root: &&str| {
            [&whole, &first]
                .into_iter()
                .flatten()
                .any(|path| path == root)
        };
        // The longer one, where both are.
        let root = ROOTS.into_iter().rfind(|root| named(root));
        let key = (method.unwrap_or("other"), root.unwrap_or_default());
        one_more(&mut self.lock().requests, key);
    }

    /// The figures of the node with this name, on which these containers are.
    #[must_use]
    pub fn text(&self, node: &str, seen: &[Container]) -> String {
        let all = self.lock().clone();
        let mut text = Text::default();
        let name = "kubelet_node_name";
        text.family(name, "gauge", "The node's name. The count is always 1.");
        text.sample(name, &format!("node=\"{node}\""), 1_u64);
        running(&mut text, seen);
        text.single(
            "kubelet_started_pods_total",
            "counter",
            "Cumulative number of pods started",
            all.pods,
        );
        text.single(
            "kubelet_started_pods_errors_total",
            "counter",
            "Cumulative number of errors when starting pods",
            all.pod_errors,
        );
        text.single(
            "kubelet_started_user_namespaced_pods_total",
            "counter",
            "Cumulative number of pods with user namespaces started",
            all.user_pods,
        );
        text.single(
            "kubelet_started_user_namespaced_pods_errors_total",
            "counter",
            "Cumulative number of errors when starting pods with user namespaces",
            all.user_pod_errors,
        );
        let name = "kubelet_terminated_containers_total";
        text.family(
            name,
            "counter",
            "Cumulative number of containers that ended",
        );
        for ((kind, code, reason), count) in &all.terminated {
            let labels =
                format!("container_type=\"{kind}\",exit_code=\"{code}\",reason=\"{reason}\"");
            text.sample(name, &labels, *count);
        }
        let name = "kubelet_pod_start_duration_seconds";
        let help = "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
        text.family(name, "histogram", help);
        all.pod_starts.tell(&mut text, name, "");
        words(&mut text, &all);
        let name = "kubelet_preemptions";
        let help = "Cumulative number of pod preemptions by preemption resource";
        text.family(name, "counter", help);
        for (resource, count) in &all.preemptions {
            text.sample(name, &format!("preemption_signal=\"{resource}\""), *count);
        }
        calls(&mut text, &all.calls);
        requests(&mut text, &all);
        let name = "kubelet_run_podsandbox_errors_total";
        let help = "Cumulative number of pods' sandboxes that could not be made, by the handler of the RuntimeClass";
        text.family(name, "counter", help);
        for (handler, count) in &all.sandbox_errors {
            text.sample(name, &format!("runtime_handler=\"{handler}\""), *count);
        }
        all.timed.tell(&mut text);
        text.finish()
    }
}

/// Counts by one label.
fn words(text: &mut Text, all: &Counts) {
    let by_word = [
        (
            "kubelet_started_containers_total",
            "Cumulative number of containers started",
            "container_type",
            &all.containers,
        ),
        (
            "kubelet_started_containers_errors_total",
            "Cumulative number of errors when starting containers",
            "container_type",
            &all.container_errors,
        ),
        (
            "kubelet_evictions",
            "Cumulative number of pod evictions by eviction signal",
            "eviction_signal",
            &all.evictions,
        ),
        (
            "kubelet_runtime_operations_errors_total",
            "Cumulative number of runtime operation errors by operation type.",
            "operation_type",
            &all.call_errors,
        ),
    ];
    for (name, help, label, counts) in by_word {
        text.family(name, "counter", help);
        for (word, count) in counts {
            text.sample(name, &format!("{label}=\"{word}\""), *count);
        }
    }
}

/// What runs now.
fn running(text: &mut Text, seen: &[Container]) {
    let runs = |one: &&Container| matches!(one.state, ContainerState::Running { .. });
    let pods: BTreeSet<&str> = seen
        .iter()
        .filter(runs)
        .map(|one| one.key.pod.uid.as_str())
        .collect();
    text.single(
        "kubelet_running_pods",
        "gauge",
        "Number of pods that have a running pod sandbox",
        u64::try_from(pods.len()).unwrap_or(u64::MAX),
    );
    let mut states = BTreeMap::from([("created", 0), ("exited", 0), ("running", 0)]);
    for one in seen {
        let state = match one.state {
            ContainerState::Created => "created",
            ContainerState::Running { .. } => "running",
            ContainerState::Exited { .. } => "exited",
        };
        one_more(&mut states, state);
    }
    let name = "kubelet_running_containers";
    text.family(name, "gauge", "Number of containers currently running");
    for (state, count) in states {
        text.sample(name, &format!("container_state=\"{state}\""), count);
    }
}

fn calls(text: &mut Text, calls: &BTreeMap<&'static str, Times>) {
    let label = |operation: &str| format!("operation_type=\"{operation}\"");
    let name = "kubelet_runtime_operations_total";
    let help = "Cumulative number of runtime operations by operation type.";
    text.family(name, "counter", help);
    for (operation, times) in calls {
        text.sample(name, &label(operation), times.total());
    }
    let name = "kubelet_runtime_operations_duration_seconds";
    let help = "Duration in seconds of runtime operations. Broken down by operation type.";
    text.family(name, "histogram", help);
    for (operation, times) in calls {
        times.tell(text, name, &label(operation));
    }
}

fn requests(text: &mut Text, all: &Counts) {
    let name = "kubelet_http_requests_total";
    let help = "Number of the http requests received since the server started";
    text.family(name, "counter", help);
    for ((method, path), count) in &all.requests {
        let long = LONG.contains(path);
        let labels = format!(
            "long_running=\"{long}\",method=\"{method}\",path=\"{path}\",server_type=\"readwrite\""
        );
        text.sample(name, &labels, *count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::{ExitCause, PodRef};
    use jiff::Timestamp;
    use tests_support::containers;

    #[test]
    fn what_was_done_is_reported_under_upstreams_names() {
        let done = Done::default();
        done.pod(false);
        done.pod(true);
        done.pod_failed(true, Some(""));
        done.pod_failed(false, Some("kata"));
        done.pod_failed(false, None);
        done.pod_runs(Duration::from_millis(700));
        done.container(ContainerKind::Main, true);
        done.container(ContainerKind::Sidecar, false);
        done.evicted("memory.available");
        done.preempted("cpu");
        done.called("start_container", true, Duration::from_millis(20));
        done.called("start_container", false, Duration::from_millis(3));
        done.asked("GET", &["metrics"]);
        done.asked("GET", &["metrics", "cadvisor"]);
        done.asked("POST", &["exec", "default", "p", "c"]);
        done.asked("BREW", &["coffee"]);
        let metrics = done.text("n", &[]);
        for line in [
            "kubelet_node_name{node=\"n\"} 1",
            "kubelet_running_pods 0",
            "kubelet_running_containers{container_state=\"running\"} 0",
            "kubelet_started_pods_total 5",
            "kubelet_started_pods_errors_total 3",
            "kubelet_started_user_namespaced_pods_total 2",
            "kubelet_started_user_namespaced_pods_errors_total 1",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"\"} 1",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"kata\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"1\"} 1",
            "kubelet_pod_start_duration_seconds_count 1",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_containers_errors_total{container_type=\"init_container\"} 1",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
            "kubelet_preemptions{preemption_signal=\"cpu\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"start_container\"} 2",
            "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"start_container\",le=\"0.005\"} 1",
            "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",path=\"metrics\",server_type=\"readwrite\"} 1",
            "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",path=\"metrics/cadvisor\",server_type=\"readwrite\"} 1",
            "kubelet_http_requests_total{long_running=\"true\",method=\"POST\",path=\"exec\",server_type=\"readwrite\"} 1",
            "kubelet_http_requests_total{long_running=\"false\",method=\"other\",path=\"\",server_type=\"readwrite\"} 1",
        ] {
            assert!(
                metrics.lines().any(|sample| sample == line),
                "{line}:\n{metrics}"
            );
        }
        assert_eq!(metrics.matches("# TYPE ").count(), 23);
    }

    fn container(id: &str, state: ContainerState) -> Container {
        let pod = PodRef {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
        };
        Container {
            id: id.to_owned(),
            ..containers::container(pod, "c", state)
        }
    }

    #[test]
    fn each_end_counts_once_and_those_of_earlier_kubelets_do_not() {
        let done = Done::default();
        let (began, ended) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let exited = |code, cause| ContainerState::Exited {
            started_at: began,
            finished_at: ended,
            code,
            cause,
        };
        let running = ContainerState::Running { started_at: began };
        let old = container("old", exited(1, ExitCause::Own));
        done.looked(None, &[old.clone(), container("a", running)]);
        done.begins("quick".to_owned(), "u");
        let all = [
            old,
            container("a", exited(137, ExitCause::OutOfMemory)),
            container("quick", exited(0, ExitCause::Own)),
        ];
        for _ in 0..3 {
            done.looked(Some("u"), &all);
        }
        let metrics = done.text("n", &[]);
        let name = "kubelet_terminated_containers_total{container_type=\"container\"";
        for line in [
            format!("{name},exit_code=\"137\",reason=\"OOMKilled\"}} 1"),
            format!("{name},exit_code=\"0\",reason=\"Completed\"}} 1"),
        ] {
            assert!(
                metrics.lines().any(|sample| sample == line),
                "{line}:\n{metrics}"
            );
        }
        assert_eq!(metrics.matches(name).count(), 2, "{metrics}");
    }
}
