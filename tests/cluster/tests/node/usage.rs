//! What pods use, by the real control groups of the real containerd: at the kubelet's port, through
//! the master's API.

use crate::cluster::shell;
use crate::network::{create, on_a_machine, server, with_addresses};
use crate::site::{IMAGE, eventually, texts};
use crate::tunnels::Site;
use agent_runtime::Runtime as _;
use config_kube::identity::USAGE_USER;
use master_client::UserInfo;
use serde_json::{Value, json};

impl Site {
    /// The answer of the node's kubelet at a path.
    pub(crate) async fn kubelet_get(&self, path: &str) -> String {
        let path = format!("/api/v1/nodes/worker-1/proxy{path}");
        let (code, out, errors) = self.run(&["get", "--raw", &path], None).await;
        assert_eq!(code, 0, "{errors}");
        String::from_utf8(out).unwrap()
    }

    pub(crate) async fn summary(&self) -> Value {
        serde_json::from_str(&self.kubelet_get("/stats/summary").await).unwrap()
    }
}

/// The figures of the pod with this name.
pub(crate) fn of_pod<'a>(summary: &'a Value, name: &str) -> Option<&'a Value> {
    let pods = summary["pods"].as_array().unwrap();
    pods.iter().find(|pod| pod["podRef"]["name"] == name)
}

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_images_take_is_reported_before_the_first_pod() {
    let site = Site::new().await;
    let engine = site.cluster.engine();
    eventually("the image that came with the machine", || async {
        let images = engine.images().await.ok()?;
        images.iter().any(|image| image.size > 0).then_some(())
    })
    .await;
    let images = eventually("what images take", || async {
        let summary = site.summary().await;
        assert_eq!(summary["pods"], json!([]));
        summary.pointer("/node/runtime/imageFs").cloned()
    })
    .await;
    // Of its one layer: at least the program, its folder, and the names that lead to it.
    assert!(number(&images, "/usedBytes") > 1 << 19, "{images}");
    assert!(number(&images, "/inodesUsed") > 2, "{images}");
}

/// How often the kubelet did its own work, of which the times are reported.
async fn work_is_reported(site: &Site) {
    let own = site.kubelet_get("/metrics").await;
    let count = |sample: &str| {
        let found = own.lines().find_map(|line| line.strip_prefix(sample));
        let count = found.and_then(|count| count.trim().parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("no {sample}:\n{own}"))
    };
    // Two pods, whose image was there or was pulled for one of them.
    for (sample, least) in [
        (
            r#"pod_worker_duration_seconds_count{operation_type="create"}"#,
            2,
        ),
        (
            r#"pod_worker_duration_seconds_count{operation_type="sync"}"#,
            1,
        ),
        (
            r#"run_podsandbox_duration_seconds_count{runtime_handler=""}"#,
            2,
        ),
        ("started_pods_total", 2),
        ("started_pods_errors_total", 0),
        (
            r#"cgroup_manager_duration_seconds_count{operation_type="update"}"#,
            2,
        ),
        ("pod_status_sync_duration_seconds_count", 2),
    ] {
        assert!(
            count(&format!("kubelet_{sample}")) >= least,
            "{sample}:\n{own}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubelet_reports_what_its_containers_use() {
    let site = Site::new().await;
    site.runs("busy", "while true; do :; done").await;
    site.runs("idle", "sleep 100000").await;
    let rate = "/containers/0/cpu/usageNanoCores";
    let summary = eventually("two readings of the busy container", || async {
        let summary = site.summary().await;
        let busy = of_pod(&summary, "busy")?;
        let both =
            busy.pointer(rate).is_some() && of_pod(&summary, "idle")?.pointer(rate).is_some();
        both.then_some(summary)
    })
    .await;
    assert_eq!(summary["node"]["nodeName"], "worker-1");
    let (busy, idle) = (
        of_pod(&summary, "busy").unwrap(),
        of_pod(&summary, "idle").unwrap(),
    );
    assert!(
        number(busy, rate) > number(idle, rate),
        "a loop uses more than a sleep: {busy} {idle}"
    );
    let total = "/cpu/usageCoreNanoSeconds";
    assert!(number(busy, &format!("/containers/0{total}")) > 0);
    assert!(number(&summary["node"], total) > number(busy, total));
    let of_machine = number(&summary["node"], "/memory/workingSetBytes");
    for pod in [busy, idle] {
        let set = number(pod, "/containers/0/memory/workingSetBytes");
        assert!(set > 0 && set < of_machine, "{pod}");
        let usage = number(pod, "/containers/0/memory/usageBytes");
        assert!(set <= usage, "{pod}");
        assert!(number(pod, "/process_stats/process_count") > 0);
        assert!(pod["containers"][0]["startTime"].is_string(), "{pod}");
    }

    work_is_reported(&site).await;
    let resource = site.kubelet_get("/metrics/resource").await;
    for name in ["busy", "idle"] {
        let of = format!("{{container=\"main\",namespace=\"default\",pod=\"{name}\"}}");
        for family in [
            "container_cpu_usage_seconds_total",
            "container_memory_working_set_bytes",
            "container_start_time_seconds",
        ] {
            assert!(resource.contains(&format!("\n{family}{of} ")), "{resource}");
        }
    }
    assert!(
        resource.contains("\nresource_scrape_error 0\n"),
        "{resource}"
    );

    let cadvisor = site.kubelet_get("/metrics/cadvisor").await;
    let has = |family: &str, labels: &[&str]| {
        let name = format!("container_{family}{{");
        let mut lines = cadvisor.lines().filter(|line| line.starts_with(&name));
        let has = lines.any(|line| labels.iter().all(|label| line.contains(label)));
        assert!(has, "{family} {labels:?} in {cadvisor}");
    };
    for name in ["busy", "idle"] {
        let pod = format!("namespace=\"default\",pod=\"{name}\"");
        for family in [
            "cpu_usage_seconds_total",
            "cpu_user_seconds_total",
            "memory_cache",
            "memory_working_set_bytes",
            "oom_events_total",
            "threads",
        ] {
            has(family, &[&pod, "container=\"main\"", IMAGE]);
            has(family, &[&pod, "container=\"\""]);
        }
        has("processes", &[&pod, "container=\"main\""]);
    }
    has("memory_rss", &["id=\"/\""]);
    has("fs_usage_bytes", &["id=\"/\""]);
    assert!(cadvisor.contains("\nmachine_cpu_cores "), "{cadvisor}");

    site.cluster.delete("busy", 0).await;
    eventually("the figures of a pod that went to go with it", || async {
        of_pod(&site.summary().await, "busy")
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_summary_has_what_a_pods_layer_logs_and_volumes_take() {
    let site = Site::new().await;
    let fill = |file: &str, mib: u32| {
        format!("busybox dd if=/dev/zero of={file} bs=1048576 count={mib} 2>/dev/null; ")
    };
    let script = format!(
        "{}{}busybox ln -s / /scratch/out; echo filled; exec sleep 100000",
        fill("/tmp/f", 2),
        fill("/scratch/f", 4)
    );
    let mut main = shell(&script);
    main["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let spec = json!({"containers": [main], "volumes": [{"name": "scratch", "emptyDir": {}}]});
    site.cluster.create("fills", spec).await;
    eventually("the pod to have written", || async {
        let pod = site.cluster.pod("fills").await?;
        texts(&site.cluster.log(&pod, 0))
            .contains(&"filled")
            .then_some(())
    })
    .await;
    let pod = eventually("a look at its part of the disk", || async {
        let summary = site.summary().await;
        let pod = of_pod(&summary, "fills")?;
        pod.pointer("/containers/0/rootfs")?;
        Some(pod.clone())
    })
    .await;
    let mib = |pointer: &str| number(&pod, pointer) >> 20;
    assert!(
        (2..4).contains(&mib("/containers/0/rootfs/usedBytes")),
        "{pod}"
    );
    assert!(number(&pod, "/containers/0/logs/usedBytes") > 0, "{pod}");
    assert_eq!(pod["volume"][0]["name"], "scratch");
    // The link in it leads to the machine's files, which are none of the pod's.
    assert!((4..6).contains(&mib("/volume/0/usedBytes")), "{pod}");
    assert_eq!(number(&pod, "/volume/0/inodesUsed"), 2);
    assert!(pod["volume"][0].get("pvcRef").is_none(), "{pod}");
    assert!(
        (6..10).contains(&mib("/ephemeral-storage/usedBytes")),
        "{pod}"
    );
    let all = number(&pod, "/containers/0/rootfs/capacityBytes");
    assert!(number(&pod, "/containers/0/rootfs/availableBytes") < all);
}

#[test]
fn a_pods_link_is_counted_as_the_pod_counts_it() {
    on_a_machine(|| async {
        let site = Site::over(with_addresses().await).await;
        create(&site.cluster, "web", server()).await;
        // Its probe's questions and answers pass over the link.
        let ready = "/containerStatuses/0/ready";
        site.cluster.reaches("web", ready, json!(true)).await;
        let network = eventually("the link to have carried something", || async {
            let summary = site.summary().await;
            let network = of_pod(&summary, "web")?.get("network")?.clone();
            (number(&network, "/rxBytes") > 0 && number(&network, "/txBytes") > 0)
                .then_some(network)
        })
        .await;
        assert_eq!(network["name"], "eth0");
        assert_eq!(network["interfaces"].as_array().unwrap().len(), 1);
        let cadvisor = site.kubelet_get("/metrics/cadvisor").await;
        for family in ["receive_bytes", "transmit_packets"] {
            let name = format!("container_network_{family}_total{{interface=\"eth0\",");
            let mut lines = cadvisor.lines().filter(|line| line.starts_with(&name));
            let line = lines.find(|line| line.contains("pod=\"web\"")).unwrap();
            let value = line.split(' ').nth(1).unwrap();
            assert!(value.parse::<u64>().unwrap() > 0, "{line}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubelet_counts_the_results_of_probes() {
    let site = Site::new().await;
    let probe = |command: &str| json!({"exec": {"command": ["/bin/sh", "-c", command]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 100_000});
    let mut main = shell("sleep 100000");
    main["readinessProbe"] = probe("true");
    main["livenessProbe"] = probe("false");
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    site.cluster.create("probed", spec).await;
    let of = "container=\"main\",namespace=\"default\",pod=\"probed\",probe_type=";
    let metrics = eventually("a result of each probe", || async {
        let metrics = site.kubelet_get("/metrics/probes").await;
        let has = |role: &str, result: &str| {
            let labels = format!("prober_probe_total{{{of}\"{role}\",");
            let result = format!("result=\"{result}\"}} ");
            metrics
                .lines()
                .any(|line| line.starts_with(&labels) && line.contains(&result))
        };
        let both = has("Readiness", "successful") && has("Liveness", "failed");
        assert!(!has("Readiness", "failed") && !has("Liveness", "successful"));
        both.then_some(metrics)
    })
    .await;
    let times = format!("prober_probe_duration_seconds_count{{{of}");
    let times: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(&times))
        .collect();
    assert!(
        times.len() == 1 && times[0].starts_with("\"Readiness\"} "),
        "times of probes that passed: {times:?}"
    );

    site.cluster.delete("probed", 0).await;
    eventually("the figures of the pod to go with it", || async {
        let metrics = site.kubelet_get("/metrics/probes").await;
        (!metrics.contains("probed")).then_some(())
    })
    .await;
}

/// A text with one space between two words.
fn collapse_spaces(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_top_shows_what_real_nodes_pods_and_containers_use() {
    let site = Site::new().await;
    let server = &site.cluster.server;
    let user = UserInfo::authenticated(USAGE_USER, Vec::<String>::new());
    let asking = tokio::spawn(master_usage::run(
        server.client(user),
        server.usage().clone(),
        master_usage::Options::default(),
        std::future::pending(),
    ));
    site.runs("busy", "while true; do :; done").await;
    site.runs("idle", "sleep 100000").await;
    let top = async |words: &[&str]| {
        let words = [&["top"], words].concat();
        let (code, out, errors) = site.run(&words, None).await;
        (code == 0).then(|| collapse_spaces(&out)).ok_or(errors)
    };
    let pods = eventually("both pods to have figures", || async {
        let pods = top(&["pods", "--sort-by=cpu", "--no-headers"]).await.ok()?;
        (pods.contains("busy") && pods.contains("idle")).then_some(pods)
    })
    .await;
    let words: Vec<&str> = pods.split(' ').collect();
    let [busy, cpu, memory, idle, less, _] = words.as_slice() else {
        panic!("two lines of three words: {pods}");
    };
    let milli = |text: &str| text.strip_suffix('m').unwrap().parse::<u64>().unwrap();
    assert_eq!((*busy, *idle), ("busy", "idle"), "sorted by CPU");
    assert!(milli(cpu) > milli(less), "{pods}");
    assert!(memory.ends_with("Mi"), "{pods}");
    let containers = top(&["pods", "busy", "--containers", "--no-headers"]).await;
    assert!(containers.unwrap().starts_with("busy main "));
    let node = top(&["nodes", "--no-headers"]).await.unwrap();
    let words: Vec<&str> = node.split(' ').collect();
    assert!(words.len() == 5 && words[0] == "worker-1", "{node}");
    assert!(milli(words[1]) > 0 && words[2].ends_with('%'), "{node}");

    // A node that is gone for its master tells nothing, and neither do its pods.
    site.stop_port();
    eventually("the figures to go", || async {
        let errors = top(&["pod", "busy"]).await.err()?;
        errors
            .contains("podmetrics.metrics.k8s.io \"default/busy\" not found")
            .then_some(())
    })
    .await;
    asking.abort();
}
