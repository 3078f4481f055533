//! Pods: defaults, what creation and updates set, grace of deletion.

use super::{pod_columns, pod_validate};
use crate::registry::{Kind, Strategy, Subresource};
use crate::validate::{Fields, default_to, get, items, object, object_mut, text};
use config_kube::k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

pub(super) fn pod() -> Kind {
    Kind {
        short_names: &["po"],
        categories: &["all"],
        subresources: &[Subresource::Binding, Subresource::Eviction, Subresource::Log, Subresource::Status],
        columns: pod_columns::COLUMNS,
        selectable: &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.restartPolicy", "/spec/restartPolicy"),
            ("spec.schedulerName", "/spec/schedulerName"),
            ("spec.serviceAccountName", "/spec/serviceAccountName"),
            ("spec.hostNetwork", "/spec/hostNetwork"),
            ("status.phase", "/status/phase"),
            ("status.podIP", "/status/podIP"),
            ("status.nominatedNodeName", "/status/nominatedNodeName"),
        ],
        strategy: Strategy {
            defaults,
            create,
            update: |_, _| (),
            validate: pod_validate::validate,
            validate_update: pod_validate::validate_update,
            status_at_creation: true,
            generation: true,
            graceful: true,
            ..Strategy::default()
        },
        ..Kind::of::<Pod>(true)
    }
}

/// Seconds that a pod gets to end, where it says nothing (upstream: `DefaultTerminationGracePeriodSeconds`).
const GRACE: i64 = 30;
/// Seconds that a pod stays on a node that is not ready or not reachable, where it says nothing.
const TOLERATION: i64 = 300;

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else { return };
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "terminationGracePeriodSeconds", GRACE);
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "enableServiceLinks", true);
    default_to(spec, "securityContext", Value::Object(Map::new()));
    let account = text(spec, "serviceAccountName").to_owned();
    if !account.is_empty() {
        spec.insert("serviceAccount".to_owned(), account.into());
    }
    let host_network = get(spec, "hostNetwork") == &Value::Bool(true);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            container_defaults(container, host_network);
        }
    }
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.iter_mut().filter_map(Value::as_object_mut).for_each(volume_defaults);
    }
}

fn container_defaults(container: &mut Fields, host_network: bool) {
    let image = text(container, "image");
    let latest = !image.contains('@')
        && image.rsplit('/').next().is_some_and(|last| !last.contains(':') || last.ends_with(":latest"));
    default_to(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", Value::Object(Map::new()));
    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            default_to(port, "protocol", "TCP");
            if host_network {
                let number = get(port, "containerPort").clone();
                default_to(port, "hostPort", number);
            }
        }
    }
    if let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) {
        for source in variables.iter_mut().filter_map(|variable| variable.pointer_mut("/valueFrom/fieldRef")) {
            if let Some(source) = source.as_object_mut() {
                default_to(source, "apiVersion", "v1");
            }
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            probe_defaults(probe);
        }
    }
    limits_are_requests(container);
}

fn probe_defaults(probe: &mut Fields) {
    for (key, value) in [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        default_to(probe, key, value);
    }
    if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
        default_to(get, "path", "/");
        default_to(get, "scheme", "HTTP");
    }
}

/// A limit without a request is a request too.
fn limits_are_requests(container: &mut Fields) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if let Some(requests) = object_mut(resources, "requests") {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn volume_defaults(volume: &mut Fields) {
    let sources = ["configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath"];
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".to_owned(), Value::Object(Map::new()));
    }
    for source in sources {
        let Some(fields) = volume.get_mut(source).and_then(Value::as_object_mut) else { continue };
        match source {
            "hostPath" => default_to(fields, "type", ""),
            "emptyDir" => {}
            _ => default_to(fields, "defaultMode", 0o644),
        }
    }
}

/// What creation sets: the status, and what upstream's admission adds to every pod.
fn create(fields: &mut Fields) {
    let qos = qos(fields);
    fields.insert("status".to_owned(), json!({"phase": "Pending", "qosClass": qos}));
    let Some(spec) = object_mut(fields, "spec") else { return };
    default_to(spec, "serviceAccountName", "default");
    let account = get(spec, "serviceAccountName").clone();
    spec.insert("serviceAccount".to_owned(), account);
    default_to(spec, "priority", 0);
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    let mut tolerations = items(spec, "tolerations").to_vec();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations.iter().filter_map(Value::as_object).any(|known| {
            matches!(text(known, "key"), "" | "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
                && (text(known, "key") == key || (text(known, "key").is_empty() && text(known, "operator") == "Exists"))
                && matches!(text(known, "effect"), "" | "NoExecute")
        });
        if !covered {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION,
            }));
        }
    }
    spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    if !items(spec, "schedulingGates").is_empty()
        && let Some(status) = object_mut(fields, "status")
    {
        status.insert(
            "conditions".to_owned(),
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]),
        );
    }
}

/// Quality of service class (upstream: `ComputePodQOS`).
fn qos(fields: &Fields) -> &'static str {
    let Some(spec) = object(fields, "spec") else { return "BestEffort" };
    let containers = items(spec, "containers").iter().chain(items(spec, "initContainers"));
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        for resource in ["cpu", "memory"] {
            let request = container.pointer(&format!("/resources/requests/{resource}"));
            let limit = container.pointer(&format!("/resources/limits/{resource}"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Seconds that deletion gives a pod: what was asked for or what it says, nothing where no kubelet has it.
pub fn grace(fields: &Fields, asked: Option<i64>) -> i64 {
    let spec = object(fields, "spec");
    let own = spec.and_then(|spec| get(spec, "terminationGracePeriodSeconds").as_i64()).unwrap_or(GRACE);
    let bound = spec.is_some_and(|spec| !text(spec, "nodeName").is_empty());
    let ended = object(fields, "status").is_some_and(|status| matches!(text(status, "phase"), "Succeeded" | "Failed"));
    if !bound || ended {
        return 0;
    }
    match asked.unwrap_or(own) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(pod: Value) -> Value {
        let Value::Object(mut fields) = pod else { panic!("not an object") };
        defaults(&mut fields);
        create(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn a_bare_pod_gets_upstreams_defaults() {
        let pod =
            defaulted(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "a/b"}]}}));
        for (pointer, value) in [
            ("/spec/restartPolicy", json!("Always")),
            ("/spec/terminationGracePeriodSeconds", json!(30)),
            ("/spec/dnsPolicy", json!("ClusterFirst")),
            ("/spec/schedulerName", json!("default-scheduler")),
            ("/spec/containers/0/imagePullPolicy", json!("Always")),
            ("/spec/containers/0/terminationMessagePath", json!("/dev/termination-log")),
            ("/spec/tolerations/1/key", json!("node.kubernetes.io/unreachable")),
            ("/spec/serviceAccount", json!("default")),
            ("/status/phase", json!("Pending")),
            ("/status/qosClass", json!("BestEffort")),
        ] {
            assert_eq!(pod.pointer(pointer), Some(&value), "{pointer}");
        }
    }

    #[test]
    fn a_tagged_image_is_pulled_only_if_absent_and_limits_make_requests() {
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        let pod = defaulted(json!({"spec": {"hostNetwork": true, "containers": [
            {"name": "c", "image": "r:5000/a:1", "resources": {"limits": limits}, "ports": [{"containerPort": 80}]},
        ]}}));
        assert_eq!(pod.pointer("/spec/containers/0/imagePullPolicy"), Some(&json!("IfNotPresent")));
        assert_eq!(pod.pointer("/spec/containers/0/resources/requests"), Some(&limits));
        assert_eq!(
            pod.pointer("/spec/containers/0/ports/0"),
            Some(&json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}))
        );
        assert_eq!(pod.pointer("/status/qosClass"), Some(&json!("Guaranteed")));
    }

    #[test]
    fn grace_is_nothing_where_no_kubelet_has_the_pod() {
        let of = |pod: Value, asked| grace(pod.as_object().unwrap(), asked);
        assert_eq!(of(json!({"spec": {}}), Some(10)), 0);
        assert_eq!(of(json!({"spec": {"nodeName": "n"}}), None), 30);
        assert_eq!(of(json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}), None), 5);
        assert_eq!(of(json!({"spec": {"nodeName": "n"}}), Some(0)), 0);
        assert_eq!(of(json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}), None), 0);
    }
}
