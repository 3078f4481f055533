//! What an admin does: pods and services by the master's API, from the host outside.

use crate::cluster::{Machine, eventually};
use agent_sys::namespace::Kind;
use http::Method;
use http::header::CONTENT_TYPE;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";
pub(crate) const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
pub(crate) const IMAGE: &str = "registry.example/busybox:1";
/// The port of a pod's program, where the network is the pod's own.
pub(crate) const HTTP: u16 = 8080;
/// The same on a machine's network.
pub(crate) const MACHINE_HTTP: u16 = 8081;

/// A pod's program. It serves its name, alone and with whom it takes the caller for, and tells what
/// another one says that is at the place in the query, which it finds as all programs of pods do.
const PROGRAM: &str = r#"mkdir -p /tmp/www/cgi-bin
echo "$NAME" > /tmp/www/name
cat > /tmp/www/cgi-bin/who <<'END'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n%s %s\n' "$NAME" "$REMOTE_ADDR"
END
cat > /tmp/www/cgi-bin/ask <<'END'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
exec wget -q -T 5 -O - "http://$QUERY_STRING/cgi-bin/who"
END
busybox chmod +x /tmp/www/cgi-bin/*
exec httpd -f -p "$PORT" -h /tmp/www"#;

/// A pod that is ready.
pub(crate) struct Pod {
    pub(crate) name: String,
    /// One of each family.
    pub(crate) addresses: [IpAddr; 2],
    /// Its network namespace, where it is not on the machine's network.
    pub(crate) network: PathBuf,
}

/// A service of both families, at a cluster address of each and at a port of the nodes.
pub(crate) struct Service {
    addresses: [IpAddr; 2],
    port: u16,
    node_port: u16,
}

impl Service {
    /// Where pods call it.
    pub(crate) fn inside(&self) -> [SocketAddr; 2] {
        let port = self.port;
        self.addresses.map(|address| (address, port).into())
    }

    /// Where a host outside calls it by this machine.
    pub(crate) fn at(&self, machine: &Machine) -> [SocketAddr; 2] {
        let port = self.node_port;
        machine.addresses.map(|address| (address, port).into())
    }
}

/// The API, to an admin.
pub(crate) struct Api {
    client: kube::Client,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    /// The API of a kubeconfig, once the file is there.
    pub(crate) fn open(kubeconfig: &Path) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let config = eventually("the admin's kubeconfig", || {
            Kubeconfig::read_from(kubeconfig).ok()
        });
        let client = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(config, &options).await;
            kube::Client::try_from(config.unwrap()).unwrap()
        });
        Self { client, runtime }
    }

    /// A request. A change is one by RFC 7386.
    pub(crate) fn ask(&self, method: Method, path: &str, body: &Value) -> kube::Result<Value> {
        let form = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into()
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header(CONTENT_TYPE, form).body(bytes).unwrap();
        self.runtime.block_on(self.client.request(request))
    }

    /// Makes an object.
    pub(crate) fn create(&self, path: &str, object: &Value) -> Value {
        let made = self.ask(Method::POST, path, object);
        made.unwrap_or_else(|error| panic!("{path}: {error}: {object}"))
    }

    /// Makes a pod with these labels, and one of its name, on a machine.
    pub(crate) fn create_pod(&self, name: &str, machine: &Machine, labels: &Value) {
        self.create_pod_with(name, machine, labels, HTTP, &json!({}));
    }

    /// The same with a program at this port and with more in the pod's spec.
    pub(crate) fn create_pod_with(
        &self,
        name: &str,
        machine: &Machine,
        labels: &Value,
        port: u16,
        more: &Value,
    ) {
        let mut labels = labels.clone();
        labels["pod"] = json!(name);
        let mut spec = json!({
            "nodeName": machine.node,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["sh", "-c", PROGRAM],
                "env": [{"name": "NAME", "value": name}, {"name": "PORT", "value": port.to_string()}],
                "readinessProbe": {"httpGet": {"path": "/cgi-bin/who", "port": port}, "periodSeconds": 1},
            }],
        });
        extend(&mut spec, more);
        let meta = json!({"name": name, "labels": labels});
        self.create(PODS, &json!({"metadata": meta, "spec": spec}));
    }

    /// Waits until a pod of a machine is ready.
    pub(crate) fn ready(&self, name: &str, machine: &Machine) -> Pod {
        let path = format!("{PODS}/{name}");
        let pod = eventually(&format!("{name} to be ready"), || {
            let pod = self.ask(Method::GET, &path, &Value::Null).ok()?;
            let mut conditions = pod["status"]["conditions"].as_array()?.iter();
            let ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True");
            ready.then_some(pod)
        });
        let ips = &pod["status"]["podIPs"];
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let sandbox = machine.sandboxes().join(uid);
        Pod {
            name: name.to_owned(),
            addresses: [0, 1].map(|at| ips[at]["ip"].as_str().unwrap().parse().unwrap()),
            network: sandbox.join(Kind::Network.name()),
        }
    }

    /// Makes a service of both families and of the nodes' ports, for the pods of a selector. `more`
    /// is added to its spec.
    pub(crate) fn service(&self, name: &str, selector: &Value, more: &Value) -> Service {
        let mut spec = json!({
            "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "selector": selector,
            "ports": [{"port": 80, "targetPort": HTTP}],
        });
        extend(&mut spec, more);
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let made = self.create(SERVICES, &object);
        let spec = &made["spec"];
        let number = |key: &str| {
            let number = spec["ports"][0][key].as_u64();
            number.and_then(|number| number.try_into().ok()).unwrap()
        };
        let addresses = &spec["clusterIPs"];
        Service {
            addresses: [0, 1].map(|at| addresses[at].as_str().unwrap().parse().unwrap()),
            port: number("port"),
            node_port: number("nodePort"),
        }
    }
}

/// Puts the fields of `more` into an object.
fn extend(object: &mut Value, more: &Value) {
    let more = more.as_object().unwrap().clone();
    object.as_object_mut().unwrap().extend(more);
}
