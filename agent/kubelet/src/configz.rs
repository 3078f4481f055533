//! Answers `/configz`: the settings of this kubelet, by the names of upstream's
//! `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`). Settings without a counterpart here
//! are left out; none is secret.

use crate::config::{Config, RESYNC};
use crate::node;
use crate::sandbox::resolver;
use agent_cluster::Sandboxes;
use agent_images::MIN_IMAGE_AGE;
use agent_port::{GRANTED, REFUSED};
use agent_pressure::Thresholds;
use agent_proxy::DOMAIN;
use agent_runtime::{KEPT_LOGS, LONGEST_LOG};
use config_kube::written::go_seconds;
use config_model::shutdown::{CRITICAL_PRIORITY, ShutdownGrace, ShutdownGroup};
use serde_json::{Map, Value, json};

/// The answer.
pub(crate) fn text(config: &Config, sandboxes: &Sandboxes) -> String {
    let mut shown = settings(config);
    shown.extend(shutdown(&config.shutdown));
    if config.cluster.is_some() {
        shown.insert("clusterDomain".to_owned(), json!(DOMAIN));
        // Pods query their own node.
        let resolver = json!(resolver(config, sandboxes).as_slice());
        shown.insert("clusterDNS".to_owned(), resolver);
    }
    json!({"kubeletconfig": shown}).to_string()
}

fn settings(config: &Config) -> Map<String, Value> {
    let shown = json!({
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": go_seconds(GRANTED)},
            "x509": {},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": go_seconds(GRANTED),
                "cacheUnauthorizedTTL": go_seconds(REFUSED),
            },
        },
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": true,
        "containerLogMaxFiles": KEPT_LOGS + 1,
        "containerLogMaxSize": format!("{}Mi", LONGEST_LOG >> 20),
        "enableDebuggingHandlers": true,
        "enforceNodeAllocatable": if config.owns_machine { ["pods"] } else { ["none"] },
        "evictionHard": config.thresholds.written(),
        "evictionMaxPodGracePeriod": config.thresholds.max_pod_grace.as_secs(),
        "evictionMinimumReclaim": config.thresholds.written_reclaim(),
        "evictionSoft": config.thresholds.written_soft(),
        "evictionSoftGracePeriod": graces(&config.thresholds),
        "evictionPressureTransitionPeriod": go_seconds(config.thresholds.transition),
        "enableServer": true,
        "imageGCHighThresholdPercent": config.thresholds.images.high,
        "imageGCLowThresholdPercent": config.thresholds.images.low,
        "imageMinimumGCAge": go_seconds(MIN_IMAGE_AGE),
        "localStorageCapacityIsolation": true,
        "maxParallelImagePulls": config.parallel_pulls,
        "maxPods": config.max_pods,
        "nodeLeaseDurationSeconds": node::LEASE_SECONDS,
        "nodeStatusMaxImages": node::MAX_IMAGES,
        "nodeStatusReportFrequency": go_seconds(node::REPORT),
        "nodeStatusUpdateFrequency": go_seconds(node::PERIOD),
        "podLogsDir": config.machine.logs,
        "port": config.port,
        // The master makes the Node, once the machine is proven.
        "registerNode": false,
        "resolvConf": config.machine.resolv_conf,
        "rotateCertificates": true,
        "seccompDefault": true,
        "serializeImagePulls": config.parallel_pulls == 1,
        "syncFrequency": go_seconds(RESYNC),
        "systemReserved": {
            "cpu": format!("{}m", config.reserved_cpu_millis),
            "ephemeral-storage": config.reserved_storage.to_string(),
            "memory": config.reserved_memory.to_string(),
        },
    });
    shown.as_object().cloned().unwrap_or_default()
}

/// The grace periods of node shutdown: upstream's two settings if there are two groups, the second
/// of critical pods; else its form by priority.
fn shutdown(grace: &ShutdownGrace) -> Map<String, Value> {
    let groups = grace.groups();
    let shown = match groups {
        [all, critical] if (all.from, critical.from) == (0, CRITICAL_PRIORITY) => json!({
            "shutdownGracePeriod": go_seconds(all.time + critical.time),
            "shutdownGracePeriodCriticalPods": go_seconds(critical.time),
        }),
        _ => {
            let one = |group: &ShutdownGroup| {
                let seconds = group.time.as_secs();
                json!({"priority": group.from, "shutdownGracePeriodSeconds": seconds})
            };
            let all: Vec<Value> = groups.iter().map(one).collect();
            json!({"shutdownGracePeriodByPodPriority": all})
        }
    };
    shown.as_object().cloned().unwrap_or_default()
}

/// Grace periods of soft thresholds, by the signals' names.
fn graces(thresholds: &Thresholds) -> Value {
    let soft = thresholds.soft.iter();
    soft.map(|(signal, soft)| (signal.name().to_owned(), json!(go_seconds(soft.grace))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_pressure::{Least, Signal, Soft};
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn settings_are_shown_in_the_forms_of_upstream() {
        let soft = Soft {
            least: Least::Percent(20),
            grace: Duration::from_secs(90),
        };
        let thresholds = Thresholds {
            soft: BTreeMap::from([(Signal::NodefsAvailable, soft)]),
            max_pod_grace: Duration::from_secs(60),
            ..Thresholds::default()
        };
        let config = Config {
            thresholds,
            reserved_memory: 256 << 20,
            reserved_cpu_millis: 100,
            ..crate::config::tests::config(std::path::Path::new("/there"))
        };
        let mut shown = settings(&config);
        shown.extend(shutdown(&config.shutdown));
        let shown = Value::Object(shown);
        for (place, value) in [
            ("/authentication/anonymous/enabled", json!(false)),
            ("/authorization/webhook/cacheUnauthorizedTTL", json!("10s")),
            ("/containerLogMaxFiles", json!(5)),
            ("/containerLogMaxSize", json!("10Mi")),
            ("/evictionPressureTransitionPeriod", json!("5m0s")),
            ("/evictionHard/memory.available", json!("100Mi")),
            ("/evictionSoft", json!({"nodefs.available": "20%"})),
            (
                "/evictionSoftGracePeriod",
                json!({"nodefs.available": "1m30s"}),
            ),
            ("/evictionMaxPodGracePeriod", json!(60)),
            ("/evictionMinimumReclaim", json!({})),
            ("/imageGCHighThresholdPercent", json!(85)),
            ("/imageMinimumGCAge", json!("2m0s")),
            ("/maxPods", json!(10)),
            ("/port", json!(crate::PORT)),
            ("/shutdownGracePeriod", json!("1m0s")),
            ("/shutdownGracePeriodCriticalPods", json!("10s")),
            ("/nodeStatusReportFrequency", json!("5m0s")),
            ("/podLogsDir", json!("/there/logs")),
            ("/systemReserved/cpu", json!("100m")),
            ("/systemReserved/memory", json!("268435456")),
        ] {
            assert_eq!(shown.pointer(place), Some(&value), "{place}");
        }
        let group = |from, seconds| ShutdownGroup {
            from,
            time: Duration::from_secs(seconds),
        };
        let grace = ShutdownGrace::by_priority(vec![group(1000, 20), group(-1, 40)]);
        let shown = shutdown(&grace.unwrap());
        let all = json!([
            {"priority": -1, "shutdownGracePeriodSeconds": 40},
            {"priority": 1000, "shutdownGracePeriodSeconds": 20},
        ]);
        assert_eq!(shown.get("shutdownGracePeriodByPodPriority"), Some(&all));
        assert_eq!(shown.len(), 1);
        assert_eq!(go_seconds(Duration::from_secs(3_600)), "1h0m0s");
        assert_eq!(go_seconds(Duration::ZERO), "0s");
    }
    #[test]
    fn a_node_that_serves_no_dns_shows_no_resolver() {
        let dir = tempfile::tempdir().unwrap();
        let sandboxes = Sandboxes::open(agent_cluster::SandboxOptions {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        })
        .unwrap();
        let mut config = crate::config::tests::config(dir.path());
        let shown =
            |config: &Config| -> Value { serde_json::from_str(&text(config, &sandboxes)).unwrap() };
        assert!(shown(&config)["kubeletconfig"].get("clusterDNS").is_none());
        config.cluster = Some(agent_proxy::View::default());
        assert_eq!(shown(&config)["kubeletconfig"]["clusterDNS"], json!([]));
    }
}
