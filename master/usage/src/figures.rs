//! The known usage of nodes, and the objects computed from it.

use crate::parse::{Answer, PodName};
use crate::rates::{self, Used};
use config_kube::metrics::{GROUP, VERSION};
use config_kube::written::go_duration;
use jiff::Timestamp;
use master_schema::object::meta_text;
use master_schema::quantity::Quantity;
use master_schema::validate::{Fields, object, text};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// One node's report.
#[derive(Debug, Default)]
struct NodeReport {
    last: Answer,
    before: Option<Answer>,
    /// It did not answer the last scrape.
    silent: bool,
    /// When a client last read its figures or those of a pod on it, in milliseconds since the
    /// [`Usage`] was made; 0 for never.
    read: AtomicU64,
}

/// For how long a node's figures are wanted after a client read them: several times the period of
/// an autoscaler.
const WANTED_AFTER_READ: Duration = Duration::from_secs(120);

/// The known usage. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Usage {
    made: Instant,
    nodes: Arc<RwLock<HashMap<String, NodeReport>>>,
    /// Nodes whose figures are wanted since a moment ago, until the scraper takes the names.
    newly_wanted: Arc<(Mutex<BTreeSet<String>>, Notify)>,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            nodes: Arc::default(),
            newly_wanted: Arc::default(),
        }
    }
}

/// Whether figures that were read at an age of the usage (0: never) are wanted at another.
fn read_recently(read: u64, age: u64) -> bool {
    read > 0 && Duration::from_millis(age.saturating_sub(read)) <= WANTED_AFTER_READ
}

/// When an answer was made, by the node's clock.
fn time(answer: &Answer) -> Option<i64> {
    let containers = answer.pods.values().flatten();
    let points = containers
        .map(|(_, container)| container.point)
        .chain(answer.node);
    points.map(|point| point.at).max()
}

impl Usage {
    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, NodeReport>> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, NodeReport>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the usage was made, at least 1.
    fn age(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.made).as_millis();
        u64::try_from(age).unwrap_or(u64::MAX).max(1)
    }

    /// Whether a node is scraped at the shorter period: a client has read its figures within
    /// [`WANTED_AFTER_READ`], or it has answered only once, which makes no rate.
    pub(crate) fn is_wanted(&self, node: &str, now: Instant) -> bool {
        let nodes = self.read();
        let Some(report) = nodes.get(node) else {
            return false;
        };
        let was_read = read_recently(report.read.load(Ordering::Relaxed), self.age(now));
        (report.before.is_none() && !report.silent) || was_read
    }

    /// What a node reported, unless it was silent since. It is wanted from then on.
    fn report<'a>(
        &self,
        nodes: &'a HashMap<String, NodeReport>,
        node: &str,
    ) -> Option<&'a NodeReport> {
        let report = nodes.get(node)?;
        let age = self.age(Instant::now());
        if !read_recently(report.read.swap(age, Ordering::Relaxed), age) {
            let (names, added) = &*self.newly_wanted;
            let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
            names.insert(node.to_owned());
            added.notify_one();
        }
        (!report.silent).then_some(report)
    }

    /// Waits until a client reads figures that were not wanted before, and takes the names of their
    /// nodes.
    ///
    /// Cancel-safe: names are taken only when they are returned.
    pub(crate) async fn newly_wanted(&self) -> BTreeSet<String> {
        let (names, added) = &*self.newly_wanted;
        added.notified().await;
        std::mem::take(&mut *names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a node's answer. Repeated figures do not count as new.
    pub fn answered(&self, node: &str, answer: Answer) {
        let mut nodes = self.write();
        let report = nodes.entry(node.to_owned()).or_default();
        report.silent = false;
        if time(&report.last) != time(&answer) {
            let last = std::mem::replace(&mut report.last, answer);
            report.before = Some(last).filter(|last| time(last).is_some());
        }
    }

    /// A node did not answer: neither it nor its pods have figures until it does. Its last report
    /// is kept for the next rate.
    pub fn silent(&self, node: &str) {
        if let Some(report) = self.write().get_mut(node) {
            report.silent = true;
        }
    }

    /// A node is gone.
    pub fn forget(&self, node: &str) {
        self.write().remove(node);
    }

    /// Only these nodes are there.
    pub fn retain(&self, nodes: &BTreeSet<String>) {
        self.write().retain(|node, _| nodes.contains(node));
    }

    /// The NodeMetrics of a Node, if its use is known.
    #[must_use]
    pub fn of_node(&self, node: &Fields) -> Option<Fields> {
        let used = {
            let nodes = self.read();
            let report = self.report(&nodes, meta_text(node, "name"))?;
            rates::node(report.before.as_ref()?, &report.last)?
        };
        let mut made = made("NodeMetrics", node, used)?;
        made.insert("usage".to_owned(), usage(used));
        Some(made)
    }

    /// The PodMetrics of a Pod that runs, if the use of all its containers is known: from the node
    /// to which it is bound; reports of others are ignored.
    #[must_use]
    pub fn of_pod(&self, pod: &Fields) -> Option<Fields> {
        let (spec, status) = (object(pod, "spec")?, object(pod, "status")?);
        if text(status, "phase") != "Running" {
            return None;
        }
        let name = PodName {
            namespace: meta_text(pod, "namespace").to_owned(),
            name: meta_text(pod, "name").to_owned(),
        };
        let used = {
            let nodes = self.read();
            let report = self.report(&nodes, text(spec, "nodeName"))?;
            rates::pod(report.before.as_ref(), &report.last, &name)?
        };
        // PodMetrics has one time for all containers: the earliest (as upstream's).
        let first = used.iter().map(|(_, used)| *used);
        let mut made = made("PodMetrics", pod, first.min_by_key(|used| used.at)?)?;
        let containers = used
            .iter()
            .map(|(name, used)| json!({"name": name, "usage": usage(*used)}));
        made.insert("containers".to_owned(), containers.collect());
        Some(made)
    }
}

/// The parts that both kinds have.
fn made(kind: &str, of: &Fields, used: Used) -> Option<Fields> {
    let second = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let at = Timestamp::from_millisecond(used.at).ok()?;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), meta_text(of, "name").into());
    let namespace = meta_text(of, "namespace");
    if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    metadata.insert(
        "creationTimestamp".to_owned(),
        second(Timestamp::now()).into(),
    );
    let labels = object(of, "metadata").and_then(|of| of.get("labels"));
    if let Some(labels) = labels {
        metadata.insert("labels".to_owned(), labels.clone());
    }
    let window = Duration::from_millis(used.window.unsigned_abs());
    let fields = [
        ("kind", kind.into()),
        ("apiVersion", format!("{GROUP}/{VERSION}").into()),
        ("metadata", Value::Object(metadata)),
        ("timestamp", second(at).into()),
        ("window", go_duration(window).into()),
    ];
    Some(Fields::from_iter(
        fields.map(|(name, value)| (name.to_owned(), value)),
    ))
}

/// Amounts in the notation of upstream's metrics server.
fn usage(used: Used) -> Value {
    let cpu = Quantity::parse(&format!("{}n", used.cpu)).unwrap_or_default();
    let memory = Quantity::bytes(i64::try_from(used.memory).unwrap_or(i64::MAX));
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_700_000_000;

    /// An answer of a node at a second: CPU time of the node and of the containers of its pods,
    /// each in seconds.
    fn answer(at: i64, node: f64, containers: &[(&str, &str, f64)]) -> Answer {
        let at = (SECOND + at) * 1000;
        let of_node = format!(
            "node_cpu_usage_seconds_total {node} {at}\nnode_memory_working_set_bytes 1048576 {at}\n"
        );
        let of_containers = containers.iter().map(|(pod, container, cpu)| {
            let labels =
                format!("{{container=\"{container}\",namespace=\"default\",pod=\"{pod}\"}}");
            format!(
                "container_cpu_usage_seconds_total{labels} {cpu} {at}\n\
                 container_memory_working_set_bytes{labels} 2048 {at}\n"
            )
        });
        let text = of_node + &of_containers.collect::<String>();
        Answer::parse(text.as_bytes(), 0).unwrap()
    }

    fn fields(value: Value) -> Fields {
        serde_json::from_value(value).unwrap()
    }

    fn node(name: &str) -> Fields {
        fields(json!({"metadata": {"name": name, "labels": {"zone": "a"}, "uid": "u"}}))
    }

    fn pod(name: &str, node: &str, phase: &str) -> Fields {
        fields(json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"nodeName": node}, "status": {"phase": phase},
        }))
    }

    fn report() -> Usage {
        let usage = Usage::default();
        let web = |cpu, side| [("web", "main", cpu), ("web", "side", side)];
        usage.answered("n1", answer(0, 10.0, &web(1.0, 0.0)));
        usage.answered("n1", answer(15, 40.0, &web(4.75, 0.0)));
        usage
    }

    #[test]
    fn objects_are_made_as_upstream_s_metrics_server_makes_them() {
        let usage = report();
        let mut node = Value::Object(usage.of_node(&node("n1")).unwrap());
        assert!(
            node["metadata"]["creationTimestamp"]
                .take()
                .as_str()
                .is_some()
        );
        let expected = json!({
            "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
            "metadata": {"name": "n1", "labels": {"zone": "a"}, "creationTimestamp": null},
            "timestamp": "2023-11-14T22:13:35Z", "window": "15s", "usage": {"cpu": "2", "memory": "1Mi"},
        });
        assert_eq!(node, expected);
        let pod = usage.of_pod(&pod("web", "n1", "Running")).unwrap();
        let containers = json!([
            {"name": "main", "usage": {"cpu": "250m", "memory": "2Ki"}},
            {"name": "side", "usage": {"cpu": "0", "memory": "2Ki"}},
        ]);
        assert_eq!(pod["containers"], containers);
        assert_eq!(pod["metadata"]["namespace"], "default");
    }

    #[test]
    fn a_node_reports_only_pods_that_are_bound_to_it() {
        let usage = report();
        assert!(usage.of_pod(&pod("web", "n1", "Running")).is_some());
        assert_eq!(usage.of_pod(&pod("web", "n2", "Running")), None);
        assert_eq!(usage.of_pod(&pod("web", "", "Running")), None);
        assert_eq!(usage.of_pod(&pod("web", "n1", "Pending")), None);
        assert_eq!(usage.of_node(&node("n2")), None);
    }

    #[test]
    fn a_node_that_does_not_answer_has_no_figures_until_it_does() {
        let usage = report();
        usage.silent("n1");
        assert_eq!(usage.of_node(&node("n1")), None);
        assert_eq!(usage.of_pod(&pod("web", "n1", "Running")), None);
        usage.answered("n1", answer(45, 70.0, &[]));
        let found = usage.of_node(&node("n1")).unwrap();
        assert_eq!(found["window"], "30s", "since it answered last");
        usage.forget("n1");
        usage.silent("n1");
        assert!(usage.read().is_empty(), "nothing is kept of what is gone");
        usage.answered("n1", answer(60, 80.0, &[]));
        assert_eq!(usage.of_node(&node("n1")), None, "one answer makes no rate");
        usage.retain(&BTreeSet::from(["n2".to_owned()]));
        assert!(usage.read().is_empty());
    }

    #[test]
    fn a_node_is_wanted_while_its_figures_are_read_and_until_it_has_a_rate() {
        let usage = Usage::default();
        let wanted = |usage: &Usage, after: u64| {
            let now = Instant::now() + Duration::from_secs(after);
            usage.is_wanted("n1", now)
        };
        assert!(!wanted(&usage, 0), "nothing is known of it");
        usage.answered("n1", answer(0, 10.0, &[]));
        assert!(wanted(&usage, 0), "one answer makes no rate");
        usage.answered("n1", answer(15, 40.0, &[("web", "main", 1.0)]));
        assert!(!wanted(&usage, 0), "nobody has asked for it");
        assert_eq!(usage.of_pod(&pod("other", "n1", "Running")), None);
        assert!(wanted(&usage, 30), "somebody asked for a pod on it");
        assert!(!wanted(&usage, 150), "that is long ago");
        usage.silent("n1");
        assert_eq!(usage.of_node(&node("n1")), None);
        assert!(wanted(&usage, 30), "somebody asked while it was silent");
    }

    #[tokio::test]
    async fn a_node_is_newly_wanted_once_while_its_figures_are_read() {
        let usage = report();
        assert!(usage.of_node(&node("n1")).is_some() && usage.of_node(&node("n2")).is_none());
        assert_eq!(
            usage.newly_wanted().await,
            BTreeSet::from(["n1".to_owned()])
        );
        assert!(usage.of_node(&node("n1")).is_some());
        let again = tokio::time::timeout(Duration::ZERO, usage.newly_wanted()).await;
        assert!(again.is_err(), "{again:?}");
    }

    #[test]
    fn repeated_figures_are_not_compared_with_themselves() {
        let usage = report();
        usage.answered("n1", answer(15, 40.0, &[]));
        assert_eq!(usage.of_node(&node("n1")).unwrap()["window"], "15s");
        let nothing = Answer::default();
        usage.answered("n1", nothing);
        assert_eq!(usage.of_node(&node("n1")), None);
    }
}
