//! The figures of a node, and the requests for them.

use crate::candidates::DiskUse;
use crate::disks::Disks;
use crate::done::Done;
use crate::probed::Probed;
use crate::reading::{Reading, Sources};
use crate::subjects::Subjects;
use crate::{cadvisor, candidates, resource, summary};
use agent_pressure::Candidate;
use agent_sys::cgroup::Groups;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A reading younger than this is reused (upstream's housekeeping interval).
pub const LEAST: Duration = Duration::from_secs(10);

/// A request for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsRequest {
    /// `/stats/summary`.
    Summary {
        /// Without disk and process ids.
        only_cpu_and_memory: bool,
    },
    /// `/metrics/resource`.
    Resource,
    /// `/metrics/probes`.
    Probes,
    /// `/metrics/cadvisor`.
    Cadvisor,
}

impl MetricsRequest {
    /// The request of a path, in its parts, and a query.
    #[must_use]
    pub fn of(path: &[&str], query: Option<&str>) -> Option<Self> {
        let only = || {
            query.is_some_and(|query| {
                query
                    .split('&')
                    .any(|one| one == "only_cpu_and_memory=true")
            })
        };
        match path {
            ["stats", "summary"] => Some(Self::Summary {
                only_cpu_and_memory: only(),
            }),
            ["metrics", "resource"] => Some(Self::Resource),
            ["metrics", "probes"] => Some(Self::Probes),
            ["metrics", "cadvisor"] => Some(Self::Cadvisor),
            _ => None,
        }
    }

    /// The media type of its answer.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Summary { .. } => "application/json",
            Self::Resource | Self::Probes | Self::Cadvisor => config_figures::CONTENT_TYPE,
        }
    }
}

/// The figures of a node.
#[derive(Debug)]
pub struct Figures {
    node: String,
    sources: Sources,
    least: Duration,
    last: Mutex<Option<Arc<Reading>>>,
    /// Held by the request that reads; the others wait for its reading.
    turn: tokio::sync::Mutex<()>,
    probed: Probed,
    done: Done,
    disks: Disks,
}

impl Figures {
    /// The figures of this machine, which is the node with this name.
    #[must_use]
    pub fn of_machine(node: &str) -> Self {
        Self::new(node, Groups::mounted(), Path::new("/proc"), LEAST)
    }

    fn new(node: &str, groups: Groups, proc: &Path, least: Duration) -> Self {
        Self {
            node: node.to_owned(),
            sources: Sources {
                groups,
                proc: proc.to_owned(),
            },
            least,
            last: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            probed: Probed::default(),
            done: Done::default(),
            disks: Disks::default(),
        }
    }

    /// The counts of probes.
    #[must_use]
    pub fn probed(&self) -> Probed {
        self.probed.clone()
    }

    /// What the kubelet has done.
    #[must_use]
    pub fn done(&self) -> &Done {
        &self.done
    }

    /// The disk usage of pods.
    #[must_use]
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// The answer to a request. `subjects` lists the pods and containers to read, if a reading is
    /// needed.
    pub async fn answer<F>(&self, question: MetricsRequest, subjects: impl FnOnce() -> F) -> String
    where
        F: Future<Output = Subjects>,
    {
        match question {
            MetricsRequest::Summary {
                only_cpu_and_memory,
            } => {
                let reading = self.reading(subjects).await;
                let disks = (!only_cpu_and_memory).then_some(&self.disks);
                summary::text(&self.node, &reading, disks)
            }
            MetricsRequest::Resource => resource::text(&*self.reading(subjects).await),
            MetricsRequest::Cadvisor => cadvisor::text(&*self.reading(subjects).await),
            MetricsRequest::Probes => self.probed.text(),
        }
    }

    /// The pods among `pods` that have figures, as candidates for an eviction; `subjects` as in
    /// [`Self::answer`].
    pub async fn candidates<F>(
        &self,
        pods: &[Arc<Pod>],
        subjects: impl FnOnce() -> F,
        disks: &BTreeMap<String, DiskUse>,
    ) -> Vec<Candidate>
    where
        F: Future<Output = Subjects>,
    {
        candidates::of_reading(&*self.reading(subjects).await, pods, disks)
    }

    /// A reading that is young enough.
    async fn reading<F>(&self, subjects: impl FnOnce() -> F) -> Arc<Reading>
    where
        F: Future<Output = Subjects>,
    {
        let _turn = self.turn.lock().await;
        let last = self.last();
        if let Some(last) = &last
            && last.taken.elapsed() < self.least
        {
            return last.clone();
        }
        let subjects = subjects().await;
        let sources = self.sources.clone();
        let read = move || Reading::take(&sources, subjects, last.as_deref());
        // Thousands of small files on a full node: not on a thread that serves others.
        let taken = tokio::task::spawn_blocking(read).await;
        let taken = match taken {
            Ok(taken) => Arc::new(taken),
            // The runtime is ending; no one waits for the answer.
            Err(_) => return std::future::pending().await,
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken.clone());
        taken
    }

    fn last(&self) -> Option<Arc<Reading>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Drops the probes and disks of pods that are gone, and the last reading if it contains one of
    /// them, by UID.
    pub fn retain(&self, is_here: impl Fn(&str) -> bool) {
        self.probed.retain(&is_here);
        self.disks.retain(&is_here);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reading) = last.as_mut() else {
            return;
        };
        if let Some(reading) = Arc::get_mut(reading) {
            reading.pods.retain(|pod| is_here(&pod.uid));
        } else if !reading.pods.iter().all(|pod| is_here(&pod.uid)) {
            // A request is still using it.
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::{ContainerSubject, Disk, PodSubject};
    use jiff::Timestamp;
    use serde_json::Value;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const POD: &str = "kubepods/poduid-a";

    /// A fake machine in files: one pod with one container.
    struct Lab {
        dir: tempfile::TempDir,
        figures: Figures,
        asked: AtomicUsize,
    }

    impl Lab {
        fn new(least: Duration) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| write(dir.path(), file, text);
            write("groups/cgroup.controllers", "cpu memory");
            write(
                "proc/stat",
                "cpu  100 0 0 900\ncpu0 50 0 0 450\ncpu1 50 0 0 450\nbtime 1700000000\n",
            );
            write(
                "proc/meminfo",
                "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            );
            for group in [POD.to_owned(), format!("{POD}/id")] {
                write(&format!("groups/{group}/cpu.stat"), "usage_usec 1000000\n");
                write(&format!("groups/{group}/memory.current"), "5000\n");
                write(
                    &format!("groups/{group}/memory.stat"),
                    "anon 3000\ninactive_file 1000\npgfault 7\npgmajfault 2\n",
                );
            }
            let groups = Groups::at(&dir.path().join("groups"));
            let figures = Figures::new("node-1", groups, &dir.path().join("proc"), least);
            Self {
                dir,
                figures,
                asked: AtomicUsize::new(0),
            }
        }

        fn subjects(&self) -> Subjects {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let container = ContainerSubject {
                name: "main".into(),
                image: "registry.example/a:1".into(),
                group: format!("/{POD}/id"),
                started: Timestamp::from_second(1_700_000_100).unwrap(),
            };
            Subjects {
                pods: vec![PodSubject {
                    namespace: "default".into(),
                    name: "a".into(),
                    uid: "uid-a".into(),
                    group: format!("/{POD}"),
                    link: "pod-a".into(),
                    started: None,
                    containers: vec![container],
                }],
                links_of_pods: "pod-",
                disk: Disk {
                    size: 100,
                    free: 30,
                    inodes: 10,
                    free_inodes: 4,
                },
                incomplete: false,
            }
        }

        async fn ask(&self, question: MetricsRequest) -> String {
            self.figures
                .answer(question, || std::future::ready(self.subjects()))
                .await
        }

        async fn summary(&self) -> Value {
            let whole = MetricsRequest::Summary {
                only_cpu_and_memory: false,
            };
            serde_json::from_str(&self.ask(whole).await).unwrap()
        }
    }

    fn write(dir: &Path, file: &str, text: &str) {
        let path: PathBuf = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn questions_are_upstream_s_paths() {
        let summary = |only_cpu_and_memory| {
            Some(MetricsRequest::Summary {
                only_cpu_and_memory,
            })
        };
        assert_eq!(
            MetricsRequest::of(&["stats", "summary"], None),
            summary(false)
        );
        let only = Some("only_cpu_and_memory=true");
        assert_eq!(
            MetricsRequest::of(&["stats", "summary"], only),
            summary(true)
        );
        let resource = MetricsRequest::of(&["metrics", "resource"], None);
        assert_eq!(resource, Some(MetricsRequest::Resource));
        let probes = MetricsRequest::of(&["metrics", "probes"], None);
        assert_eq!(probes, Some(MetricsRequest::Probes));
        let cadvisor = MetricsRequest::of(&["metrics", "cadvisor"], None);
        assert_eq!(cadvisor, Some(MetricsRequest::Cadvisor));
        for other in [&["stats"][..], &["metrics"], &["metrics", "slis"]] {
            assert_eq!(MetricsRequest::of(other, None), None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn the_summary_has_upstream_s_fields() {
        let lab = Lab::new(Duration::ZERO);
        let first = lab.summary().await;
        assert_eq!(first["node"]["nodeName"], "node-1");
        assert_eq!(first["node"]["startTime"], "2023-11-14T22:13:20Z");
        assert_eq!(first["node"]["cpu"]["usageCoreNanoSeconds"], 1_000_000_000);
        assert_eq!(first["node"]["memory"]["workingSetBytes"], 500 << 10);
        assert_eq!(first["node"]["memory"]["availableBytes"], 500 << 10);
        assert_eq!(first["node"]["fs"]["usedBytes"], 70);
        assert_eq!(first["node"]["fs"]["inodesUsed"], 6);
        let pod = &first["pods"][0];
        assert_eq!(pod["podRef"]["name"], "a");
        assert_eq!(pod["podRef"]["uid"], "uid-a");
        let container = &pod["containers"][0];
        assert_eq!(container["name"], "main");
        assert_eq!(container["startTime"], "2023-11-14T22:15:00Z");
        assert_eq!(container["cpu"]["usageCoreNanoSeconds"], 1_000_000_000);
        let memory = &container["memory"];
        assert_eq!(
            (&memory["usageBytes"], &memory["workingSetBytes"]),
            (&5000.into(), &4000.into())
        );
        assert_eq!(memory["rssBytes"], 3000);
        assert!(memory.get("availableBytes").is_none(), "it has no limit");
        let first_rate = container["cpu"].get("usageNanoCores");
        assert_eq!(first_rate, None, "one reading makes no rate");
    }

    #[tokio::test]
    async fn cpu_per_second_needs_two_readings() {
        let lab = Lab::new(Duration::ZERO);
        lab.summary().await;
        // Time must pass between two readings.
        tokio::time::sleep(crate::rate::SHORTEST).await;
        write(
            lab.dir.path(),
            &format!("groups/{POD}/id/cpu.stat"),
            "usage_usec 9000000\n",
        );
        let found = lab.summary().await;
        let cpu = &found["pods"][0]["containers"][0]["cpu"];
        assert_eq!(cpu["usageCoreNanoSeconds"], 9_000_000_000_u64);
        let rate = cpu["usageNanoCores"].as_u64().unwrap();
        // Eight seconds of CPU in the time that passed, which is at least that of the sleep.
        assert!(rate > 0 && rate <= 8_000_000_000 * 10, "{rate}");
        let idle = &found["pods"][0]["cpu"];
        assert_eq!(
            idle["usageNanoCores"], 0,
            "its pod's own counter stood still"
        );
    }

    #[tokio::test]
    async fn questions_in_a_row_cost_one_reading() {
        let lab = Lab::new(Duration::from_secs(24 * 3600));
        let (first, second) = tokio::join!(
            lab.ask(MetricsRequest::Resource),
            lab.ask(MetricsRequest::Resource)
        );
        assert_eq!(first, second);
        lab.summary().await;
        assert_eq!(lab.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_figures_of_a_pod_are_dropped_with_it() {
        let lab = Lab::new(Duration::from_secs(24 * 3600));
        assert!(
            lab.ask(MetricsRequest::Resource)
                .await
                .contains("container=")
        );
        let pod = serde_json::json!({"metadata": {"name": "a", "uid": "uid-a"}});
        let pod = serde_json::from_value(pod).unwrap();
        let took = Duration::from_millis(1);
        lab.figures
            .probed()
            .count(&pod, "main", "Liveness", true, took);
        lab.figures.retain(|uid| uid == "uid-a");
        assert!(lab.ask(MetricsRequest::Probes).await.contains("uid-a"));
        assert_eq!(lab.figures.last().unwrap().pods.len(), 1);
        lab.figures.retain(|_| false);
        assert!(lab.figures.last().unwrap().pods.is_empty());
        for question in [MetricsRequest::Resource, MetricsRequest::Probes] {
            let metrics = lab.ask(question).await;
            assert!(!metrics.contains("container="), "{metrics}");
        }
    }

    #[tokio::test]
    async fn the_resource_metrics_have_upstream_s_names() {
        let lab = Lab::new(Duration::ZERO);
        let text = lab.ask(MetricsRequest::Resource).await;
        let value = |sample: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(sample));
            line.map(|line| line.split_whitespace().collect::<Vec<_>>())
        };
        let of = "{container=\"main\",namespace=\"default\",pod=\"a\"}";
        let cpu = value(&format!("container_cpu_usage_seconds_total{of} ")).unwrap();
        assert_eq!(cpu[0], "1");
        let at: i64 = cpu[1].parse().expect("milliseconds since 1970");
        assert!(at > 1_700_000_000_000);
        let memory = value(&format!("container_memory_working_set_bytes{of} ")).unwrap();
        assert_eq!(memory[0], "4000");
        let started = value(&format!("container_start_time_seconds{of} ")).unwrap();
        assert_eq!(started, ["1700000100"]);
        let pod = "{namespace=\"default\",pod=\"a\"}";
        assert_eq!(
            value(&format!("pod_cpu_usage_seconds_total{pod} ")).unwrap()[0],
            "1"
        );
        assert_eq!(
            value(&format!("pod_memory_working_set_bytes{pod} ")).unwrap()[0],
            "4000"
        );
        assert_eq!(value("node_cpu_usage_seconds_total ").unwrap()[0], "1");
        assert_eq!(
            value("node_memory_working_set_bytes ").unwrap()[0],
            "512000"
        );
        assert_eq!(value("node_swap_usage_bytes ").unwrap()[0], "0");
        assert_eq!(value("resource_scrape_error ").unwrap(), ["0"]);
        assert_eq!(value("scrape_error ").unwrap(), ["0"]);
    }

    #[tokio::test]
    async fn the_figures_also_have_cadvisor_s_names() {
        let lab = Lab::new(Duration::ZERO);
        write(
            lab.dir.path(),
            &format!("groups/{POD}/id/memory.max"),
            "6000\n",
        );
        let text = lab.ask(MetricsRequest::Cadvisor).await;
        let value = |sample: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(sample));
            line.and_then(|line| line.split_whitespace().next())
        };
        let of = format!(
            "container=\"main\",id=\"/{POD}/id\",image=\"registry.example/a:1\",name=\"id\",namespace=\"default\",pod=\"a\""
        );
        let of_pod = format!(
            "container=\"\",id=\"/{POD}\",image=\"\",name=\"\",namespace=\"default\",pod=\"a\""
        );
        let of_node = "container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"";
        let fault = |kind: &str| format!("failure_type=\"{kind}\",scope=\"hierarchy\",{of}");
        for (family, labels, expected) in [
            (
                "cpu_usage_seconds_total",
                &*format!("cpu=\"total\",{of}"),
                "1",
            ),
            (
                "cpu_usage_seconds_total",
                &*format!("cpu=\"total\",{of_pod}"),
                "1",
            ),
            ("memory_usage_bytes", &of, "5000"),
            ("memory_working_set_bytes", &of, "4000"),
            ("memory_working_set_bytes", &of_pod, "4000"),
            ("memory_working_set_bytes", of_node, "512000"),
            ("memory_rss", &of, "3000"),
            ("memory_failures_total", &fault("pgfault"), "7"),
            ("memory_failures_total", &fault("pgmajfault"), "2"),
            ("spec_memory_limit_bytes", &of, "6000"),
            ("spec_memory_limit_bytes", &of_pod, "0"),
            ("start_time_seconds", &of, "1700000100"),
            ("start_time_seconds", of_node, "1700000000"),
            ("fs_usage_bytes", of_node, "70"),
            ("fs_inodes_free", of_node, "4"),
        ] {
            let sample = format!("container_{family}{{{labels}}} ");
            assert_eq!(value(&sample), Some(expected), "{sample} in\n{text}");
        }
        let machine_limit = format!("container_spec_memory_limit_bytes{{{of_node}}}");
        assert_eq!(value(&machine_limit), None, "nobody set one");
        assert_eq!(value("machine_cpu_cores "), Some("2"));
        assert_eq!(value("machine_memory_bytes "), Some("1024000"));
        assert_eq!(value("container_scrape_error "), Some("0"));
        let mut families: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("# T"))
            .collect();
        let all = families.len();
        families.dedup();
        assert_eq!(families.len(), all, "each family occurs once");
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_is_reported_as_an_error() {
        let lab = Lab::new(Duration::ZERO);
        let broken = Subjects {
            incomplete: true,
            ..lab.subjects()
        };
        let text = lab
            .figures
            .answer(MetricsRequest::Resource, || std::future::ready(broken))
            .await;
        assert!(text.contains("\nresource_scrape_error 1\n"), "{text}");
        assert!(text.contains("\nscrape_error 1\n"), "{text}");
    }
}
