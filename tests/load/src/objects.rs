//! Objects that load is made of, in sizes as real ones have.

use serde_json::{Value, json};

/// A ConfigMap with a kilobyte of data.
pub fn config_map(name: &str, version: &str) -> Value {
    let text = "the quick brown fox jumps over the lazy dog and packs five dozen jugs; ".repeat(14);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}});
    with_version(object, version)
}

fn with_version(mut object: Value, version: &str) -> Value {
    if !version.is_empty() {
        object["metadata"]["resourceVersion"] = version.into();
    }
    object
}

/// A ConfigMap that carries one value.
pub fn register(name: &str, value: u64, version: &str) -> Value {
    let data = json!({"value": value.to_string()});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    with_version(object, version)
}

/// A namespace.
pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A pod of one container, as a deployment makes them; bound to a node where one is named.
pub fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "web", "pod-template-hash": "7d4b9c5f6", "tier": "frontend"},
        },
        "spec": {
            "containers": [{
                "name": "web", "image": "registry.example/team/web:1.2.3",
                "ports": [{"containerPort": 8080, "name": "http"}],
                "env": [{"name": "MODE", "value": "production"}, {"name": "POOL", "value": "16"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
            }],
        },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

/// The event that the scheduler writes for a bound pod.
pub fn event(name: &str, pod: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "crowd"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "crowd", "name": pod},
        "type": "Normal", "reason": "Scheduled", "action": "Binding", "count": 1,
        "message": format!("Successfully assigned crowd/{pod} to {node}"),
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingComponent": "default-scheduler", "reportingInstance": "default-scheduler",
        "source": {"component": "default-scheduler"},
    })
}

/// A node's lease.
pub fn lease(node: &str, renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed},
    })
}

/// A node with the status that a kubelet reports.
pub fn node(name: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "kubelet has said so",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "allocatable": {"cpu": "8", "memory": "31Gi", "pods": "110"},
            // A closed port of this host: the address of a made-up node would be called outside of
            // it.
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.12.0", "osImage": "Pratique",
                "containerRuntimeVersion": "containerd://1.7.24", "kubeletVersion": "v1.36.0",
                "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}
