//! Metrics of requests, under upstream's names.
//!
//! Labels (verb, kind, subresource, scope) take their values from small sets that no client can
//! enlarge: a path without a kind is counted under one of a few names.

use config_figures::{Health, Histogram, Process, Text};
use master_schema::registry::Kind;
use master_wire::path::{Target, Verb};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of durations, in seconds (upstream: `apiserver_request_duration_seconds`).
const BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The labels of a request.
#[derive(Debug, Clone)]
pub struct About {
    verb: &'static str,
    kind: Option<Arc<Kind>>,
    subresource: &'static str,
    scope: &'static str,
    dry_run: bool,
}

impl About {
    /// A request for a resource. An unknown subresource is counted as none.
    pub fn resource(target: &Target, kind: Option<&Arc<Kind>>, dry_run: bool) -> Self {
        let subresource = kind
            .and_then(|kind| kind.subresource(&target.subresource))
            .map_or("", |sub| sub.name());
        let connects = matches!(
            subresource,
            "proxy" | "exec" | "attach" | "portforward" | "log"
        );
        let verb = match target.verb {
            _ if connects => "CONNECT",
            Verb::Get => "GET",
            Verb::List => "LIST",
            Verb::Watch => "WATCH",
            Verb::Create => "POST",
            Verb::Update => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
            Verb::DeleteCollection => "DELETECOLLECTION",
        };
        let scope = match target {
            _ if !target.name.is_empty() || target.verb == Verb::Create => "resource",
            _ if !target.namespace.is_empty() => "namespace",
            _ => "cluster",
        };
        Self {
            verb,
            kind: kind.cloned(),
            subresource,
            scope,
            dry_run,
        }
    }

    /// A request for a path that is not a resource.
    pub fn path(verb: &'static str, path: &'static str) -> Self {
        Self {
            verb,
            kind: None,
            subresource: path,
            scope: "",
            dry_run: false,
        }
    }

    fn key(&self) -> Key {
        let kind = self
            .kind
            .as_ref()
            .map_or(0, |kind| Arc::as_ptr(kind) as usize);
        Key {
            verb: self.verb,
            kind,
            subresource: self.subresource,
            scope: self.scope,
            dry_run: self.dry_run,
        }
    }

    /// The labels that all metrics of a request share.
    fn labels(&self) -> String {
        let (group, version, resource) = self.kind.as_ref().map_or(("", "", ""), |kind| {
            (
                kind.group.as_str(),
                kind.version.as_str(),
                kind.plural.as_str(),
            )
        });
        let (verb, subresource, scope) = (self.verb, self.subresource, self.scope);
        format!(
            "component=\"apiserver\",dry_run=\"{}\",group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
             subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\"",
            if self.dry_run { "All" } else { "" },
        )
    }
}

/// What makes two requests count as one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    verb: &'static str,
    /// Address of the kind, which the series keeps alive; 0 for a path without one.
    kind: usize,
    subresource: &'static str,
    scope: &'static str,
    dry_run: bool,
}

/// The counters of one kind of request.
#[derive(Debug)]
struct Series {
    about: About,
    codes: BTreeMap<u16, u64>,
    times: Histogram<{ BOUNDS.len() }>,
    long_running: Arc<AtomicI64>,
}

impl Series {
    fn new(about: &About) -> Self {
        Self {
            about: about.clone(),
            codes: BTreeMap::new(),
            times: Histogram::default(),
            long_running: Arc::default(),
        }
    }
}

/// Counts an open watch or tunnel until it is dropped.
#[derive(Debug)]
pub struct LongRunning(Arc<AtomicI64>);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A kind, and the number of its events sent to watches.
type Events = (Arc<Kind>, Arc<AtomicU64>);

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Mutex<HashMap<Key, Series>>,
    /// Events sent to watches, by kind.
    events: Mutex<HashMap<usize, Events>>,
    refused: [AtomicU64; 2],
    health: Health,
}

impl Metrics {
    /// Counts one answered request. Watches and tunnels are not timed, as their duration says
    /// nothing about load.
    pub fn count(&self, about: &About, code: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = requests
            .entry(about.key())
            .or_insert_with(|| Series::new(about));
        *series.codes.entry(code).or_default() += 1;
        if !matches!(about.verb, "WATCH" | "CONNECT") {
            series.times.add(&BOUNDS, took);
        }
    }

    /// Counts a request as running.
    pub fn long_running(&self, about: &About) -> LongRunning {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = requests
            .entry(about.key())
            .or_insert_with(|| Series::new(about));
        series.long_running.fetch_add(1, Ordering::Relaxed);
        LongRunning(series.long_running.clone())
    }

    /// The counter of a kind's events sent to watches.
    pub fn watch_events(&self, kind: &Arc<Kind>) -> Arc<AtomicU64> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, counter) = events
            .entry(Arc::as_ptr(kind) as usize)
            .or_insert_with(|| (kind.clone(), Arc::default()));
        counter.clone()
    }

    /// Counts a request that was refused because of a concurrency limit.
    pub fn refuse(&self, mutating: bool) {
        self.refused[usize::from(mutating)].fetch_add(1, Ordering::Relaxed);
    }

    /// How the checks of health ended.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Writes the counters of requests and the kernel's figures of this process.
    pub fn write(&self, text: &mut Text) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<(String, &Series)> = requests
            .values()
            .map(|series| (series.about.labels(), series))
            .collect();
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        text.family(
            "apiserver_request_total",
            "counter",
            "Requests answered, by verb, resource and status.",
        );
        for (labels, series) in &all {
            for (code, count) in &series.codes {
                text.sample(
                    "apiserver_request_total",
                    &format!("code=\"{code}\",{labels}"),
                    *count,
                );
            }
        }
        let name = "apiserver_request_duration_seconds";
        text.family(
            name,
            "histogram",
            "Seconds from a request's header to its answer's, without watches and tunnels.",
        );
        for (labels, series) in all.iter().filter(|(_, series)| series.times.total() > 0) {
            series.times.write(text, name, labels, &BOUNDS);
        }
        let name = "apiserver_longrunning_requests";
        text.family(name, "gauge", "Watches and tunnels that are open.");
        for (labels, series) in &all {
            let open = series.long_running.load(Ordering::Relaxed);
            if matches!(series.about.verb, "WATCH" | "CONNECT") {
                text.sample(name, labels, open);
            }
        }
        drop(requests);
        self.write_events(text);
        let name = "apiserver_request_terminations_total";
        text.family(
            name,
            "counter",
            "Requests refused because of the limit on concurrent requests.",
        );
        for (mutating, kind) in ["readOnly", "mutating"].iter().enumerate() {
            let count = self.refused[mutating].load(Ordering::Relaxed);
            text.sample(
                name,
                &format!("code=\"429\",component=\"apiserver\",request_kind=\"{kind}\""),
                count,
            );
        }
        this_process().write(text);
    }

    fn write_events(&self, text: &mut Text) {
        let name = "apiserver_watch_events_total";
        text.family(name, "counter", "Events handed to watches.");
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = events.values().collect();
        all.sort_by_key(|(kind, _)| (&kind.group, &kind.version, &kind.plural));
        for (kind, count) in all {
            let (group, version, plural) = (&kind.group, &kind.version, &kind.plural);
            let labels = format!("group=\"{group}\",resource=\"{plural}\",version=\"{version}\"");
            text.sample(name, &labels, count.load(Ordering::Relaxed));
        }
    }
}

/// Writes how many requests run that read, and that write.
pub fn in_flight(text: &mut Text, running: [usize; 2]) {
    let name = "apiserver_current_inflight_requests";
    text.family(
        name,
        "gauge",
        "Requests in flight, without watches and tunnels.",
    );
    for (kind, running) in ["readOnly", "mutating"].iter().zip(running) {
        text.sample(name, &format!("request_kind=\"{kind}\""), running as u64);
    }
}

/// How many objects of a kind are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjects {
    /// Their group.
    pub group: String,
    /// The plural of their kind.
    pub plural: String,
    /// The number.
    pub count: u64,
}

/// Writes how many objects are stored, by their group and plural.
pub fn objects(text: &mut Text, stored: &[StoredObjects]) {
    let name = "apiserver_resource_objects";
    text.family(name, "gauge", "Objects stored, by resource.");
    for StoredObjects {
        group,
        plural,
        count,
    } in stored
    {
        let labels = format!("group=\"{group}\",resource=\"{plural}\"");
        text.sample(name, &labels, *count);
    }
    let name = "apiserver_storage_objects";
    text.family(name, "gauge", "Objects stored, by resource and group.");
    for StoredObjects {
        group,
        plural,
        count,
    } in stored
    {
        let dot = if group.is_empty() { "" } else { "." };
        text.sample(name, &format!("resource=\"{plural}{dot}{group}\""), *count);
    }
}

/// The kernel's figures about this process now.
fn this_process() -> Process {
    let descriptors = std::fs::read_dir("/proc/self/fd").map(|open| open.count() as u64);
    Process::of(
        |file| std::fs::read_to_string(file).unwrap_or_default(),
        descriptors.ok(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource_and_timed_in_upstreams_buckets() {
        let metrics = Metrics::default();
        let about = About::path("GET", "/version");
        metrics.count(&about, 200, Duration::from_millis(1));
        metrics.count(&about, 200, Duration::from_millis(30));
        metrics.count(&about, 404, Duration::from_secs(100));
        let watch = About {
            verb: "WATCH",
            ..About::path("GET", "")
        };
        let open = metrics.long_running(&watch);
        let mut text = Text::default();
        metrics.write(&mut text);
        let text = text.finish();
        for line in [
            "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",\
             scope=\"\",subresource=\"/version\",verb=\"GET\",version=\"\"} 2",
            "subresource=\"/version\",verb=\"GET\",version=\"\",le=\"0.005\"} 1",
            "subresource=\"/version\",verb=\"GET\",version=\"\",le=\"0.05\"} 2",
            "subresource=\"/version\",verb=\"GET\",version=\"\",le=\"60\"} 2",
            "subresource=\"/version\",verb=\"GET\",version=\"\",le=\"+Inf\"} 3",
            "verb=\"WATCH\",version=\"\"} 1",
            "# TYPE process_resident_memory_bytes gauge",
        ] {
            assert!(text.contains(line), "{line} is missing from:\n{text}");
        }
        drop(open);
        let mut text = Text::default();
        metrics.write(&mut text);
        assert!(text.finish().contains("verb=\"WATCH\",version=\"\"} 0"));
    }
}
