//! Keeps a pod's sandbox for its task: finds it, makes it before a container runs, and removes it
//! after all have ended.

use crate::config::Config;
use crate::shared::Shared;
use agent_api::get;
use agent_cluster::{Sandbox, SandboxSpec, Sandboxes};
use agent_launch::network;
use agent_launch::resolver::Resolver;
use agent_pods::{Addresses, is_on_host, is_plain};
use agent_proxy::HostPort;
use agent_resources::TimedWork;
use agent_runtime::{Error, ErrorClass};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::api::node::v1::RuntimeClass;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// The RuntimeClass handlers of this node: one runtime (crun), by its own name and by the usual
/// name on nodes with containerd (runc).
pub(crate) const HANDLERS: [&str; 2] = ["crun", "runc"];

/// The sandbox of one pod.
#[derive(Debug)]
pub(crate) struct PodSandbox {
    uid: String,
    found: Option<Sandbox>,
    /// Whether it is being removed.
    is_leaving: bool,
}

impl PodSandbox {
    /// The sandbox of an earlier agent, if there is one.
    pub(crate) fn find(shared: &Shared, uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            found: shared.sandboxes.find(uid),
            is_leaving: false,
        }
    }

    /// The sandbox; made if there is none.
    ///
    /// # Errors
    /// The sandbox cannot be created; an event is written, and the error class is retriable.
    pub(crate) async fn make(&mut self, shared: &Arc<Shared>, pod: &Pod) -> Result<Sandbox, Error> {
        if let Some(found) = &self.found {
            return Ok(found.clone());
        }
        let class = runs_in_class(shared, pod).await;
        let handler =
            class.map_err(|unfit| failed(shared, pod, unfit.handler.as_deref(), &unfit.fault))?;
        let wanted = network::wanted(pod, &self.uid, &shared.config.machine.unsafe_sysctls);
        let wanted = wanted.map_err(|fault| failed(shared, pod, None, &fault))?;
        let own = shared.sandboxes.own_addresses().into_iter();
        let own: Vec<IpAddr> = own.map(|(address, _)| address).collect();
        if let Some(fault) = network::port_fault(pod, &own).filter(|_| !own.is_empty()) {
            return Err(failed(shared, pod, Some(handler), &fault));
        }
        let sandbox = make(shared, pod, wanted, handler).await?;
        if shared.config.cluster.is_some()
            && !sandbox.addresses.is_empty()
            && !shared.policies.admit(&self.uid, pod).await
        {
            let text = "the network policies that hold for this pod are not in force yet";
            let events = &shared.events;
            events.warning(pod, "NetworkNotReady", text.to_owned());
            return Err(Error::new(ErrorClass::Unavailable, text));
        }
        if shared.config.cluster.is_none() && network::wants_cluster_dns(pod) {
            let text = "this node does not answer names of the cluster, so that the pod can't have DNS policy \"ClusterFirst\". Falling back to \"Default\" policy.";
            shared
                .events
                .warning(pod, "MissingClusterDNS", text.to_owned());
        }
        let machines = std::fs::read_to_string(&shared.config.machine.resolv_conf);
        let dns = resolver(&shared.config, &shared.sandboxes);
        for text in Resolver::of(pod, &machines.unwrap_or_default(), dns).faults {
            shared.events.warning(pod, "DNSConfigForming", text);
        }
        shared.figures.done().pod(has_own_users(pod));
        self.found = Some(sandbox.clone());
        self.publish(shared, pod);
        Ok(sandbox)
    }

    /// Removes the sandbox, if there is one. Its host ports are closed first: another pod may get
    /// its addresses as soon as they are released.
    ///
    /// # Errors
    /// If something of it is left; to be tried again.
    pub(crate) async fn remove(&mut self, shared: &Arc<Shared>) -> Result<(), Error> {
        self.is_leaving = true;
        if let Some(view) = &shared.config.cluster {
            view.publish(&self.uid, &[]);
        }
        shared.runtime.end_sharing(&self.uid).await?;
        let (sandboxes, uid) = (shared.sandboxes.clone(), self.uid.clone());
        let removed = tokio::task::spawn_blocking(move || sandboxes.remove(&uid)).await;
        match removed {
            Ok(Ok(())) => {
                shared.policies.dismiss(&self.uid);
                self.found = None;
                Ok(())
            }
            Ok(Err(error)) => Err(Error::new(ErrorClass::Unavailable, error.chain())),
            Err(error) => Err(Error::caused(
                ErrorClass::Unavailable,
                "remove the sandbox",
                error,
            )),
        }
    }

    /// Publishes the pod's host ports to the service proxy, unless its sandbox is being removed.
    pub(crate) fn publish(&self, shared: &Shared, pod: &Pod) {
        if self.is_leaving {
            return;
        }
        let (Some(view), Some(sandbox), Some(spec)) =
            (&shared.config.cluster, &self.found, &pod.spec)
        else {
            return;
        };
        let ports = |address| HostPort::read(spec, address);
        let all = sandbox.addresses.iter().copied().flat_map(ports);
        view.publish(&self.uid, &all.collect::<Vec<_>>());
    }

    /// Whether the sandbox exists.
    pub(crate) fn exists(&self) -> bool {
        self.found.is_some()
    }

    /// The machine's addresses and the pod's.
    pub(crate) fn addresses(&self, shared: &Shared, pod: &Pod) -> Addresses {
        let host = shared.config.addresses.borrow().clone();
        let own = match &self.found {
            _ if is_on_host(pod) => host.clone(),
            Some(sandbox) => sandbox.addresses.clone(),
            None => Vec::new(),
        };
        Addresses {
            host,
            pod: own,
            sandbox: self.found.is_some(),
            dns: resolver(&shared.config, &shared.sandboxes),
        }
    }
}

/// Makes the sandbox of a pod with this RuntimeClass handler.
async fn make(
    shared: &Arc<Shared>,
    pod: &Pod,
    wanted: SandboxSpec,
    handler: &'static str,
) -> Result<Sandbox, Error> {
    let (sandboxes, begun) = (shared.sandboxes.clone(), Instant::now());
    let made = tokio::task::spawn_blocking(move || sandboxes.make(&wanted)).await;
    let done = shared.figures.done();
    done.took(TimedWork::Sandbox(handler), begun.elapsed());
    if !matches!(made, Ok(Ok(_))) {
        done.pod_failed(has_own_users(pod), Some(handler));
    }
    let made =
        made.map_err(|error| Error::caused(ErrorClass::Unavailable, "make the sandbox", error))?;
    made.map_err(|error| {
        let reason = if matches!(error, agent_cluster::Error::NoRange) {
            "NetworkNotReady"
        } else {
            "FailedCreatePodSandBox"
        };
        let message = error.chain();
        shared.events.warning(pod, reason, message.clone());
        Error::new(ErrorClass::Unavailable, message)
    })
}

/// Whether the pod has a user namespace of its own.
fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

/// Reports a sandbox that can't be made as the pod specifies, with upstream's event, and counts it:
/// with the handler if upstream's kubelet would have called its runtime. The error is retriable,
/// since what the pod refers to may change.
fn failed(shared: &Shared, pod: &Pod, handler: Option<&str>, fault: &str) -> Error {
    let done = shared.figures.done();
    done.pod_failed(has_own_users(pod), handler);
    let text = format!("Failed to create pod sandbox: {fault}");
    shared
        .events
        .warning(pod, "FailedCreatePodSandBox", text.clone());
    Error::new(ErrorClass::Unavailable, text)
}

/// Why a pod's RuntimeClass is not available on this node.
#[derive(Debug)]
struct Unfit {
    /// The class's handler, if the class is known.
    handler: Option<String>,
    fault: String,
}

impl From<String> for Unfit {
    fn from(fault: String) -> Self {
        Self {
            handler: None,
            fault,
        }
    }
}

/// The handler of the pod's class, `""` if it names none; an error if this node does not have that
/// handler.
async fn runs_in_class(shared: &Shared, pod: &Pod) -> Result<&'static str, Unfit> {
    let class = pod.spec.as_ref();
    let Some(name) = class.and_then(|spec| spec.runtime_class_name.as_deref()) else {
        return Ok("");
    };
    if !is_plain(name) {
        return Err(format!("{name:?} is no name of a RuntimeClass").into());
    }
    let path = format!("/apis/node.k8s.io/v1/runtimeclasses/{name}");
    let class: RuntimeClass = get(&*shared.api, path)
        .await
        .map_err(|error| format!("RuntimeClass {name:?}: {}", error.chain()))?;
    handled(&class.handler)
}

fn handled(handler: &str) -> Result<&'static str, Unfit> {
    let known = HANDLERS.join(" and ");
    let unfit = || Unfit {
        // It becomes a label of metrics: an invalid one is reported as no handler.
        handler: Some(if is_plain(handler) { handler } else { "" }.to_owned()),
        fault: format!("no runtime for {handler:?} is configured: this node has only {known}"),
    };
    let found = HANDLERS.into_iter().find(|own| *own == handler);
    found.ok_or_else(unfit)
}

/// The node's address at which its DNS server answers, if it serves DNS.
pub(crate) fn resolver(config: &Config, sandboxes: &Sandboxes) -> Option<IpAddr> {
    config.cluster.as_ref()?;
    let of_node = sandboxes.own_addresses();
    of_node.first().map(|(address, _)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::{beside_sandbox, shared_of, with_host_port};
    use agent_api::{Answer, Api, ApiError, Call, Lines};
    use bytes::Bytes;
    use serde_json::json;

    #[test]
    fn a_class_names_the_runtime_by_its_own_name_or_by_that_of_most_nodes() {
        assert_eq!(handled("crun").unwrap(), "crun");
        assert_eq!(handled("runc").unwrap(), "runc");
        let unfit = handled("kata").unwrap_err();
        assert_eq!(
            (unfit.fault.as_str(), unfit.handler.as_deref()),
            (
                "no runtime for \"kata\" is configured: this node has only crun and runc",
                Some("kata")
            )
        );
        let unfit = handled("a\"b").unwrap_err();
        assert_eq!(unfit.handler.as_deref(), Some(""), "it is a label");
    }

    /// A master that has one RuntimeClass.
    #[derive(Debug)]
    struct OneClass;

    impl Api for OneClass {
        fn call(&self, call: Call) -> Answer<'_, Bytes> {
            let known = call.path.ends_with("/sealed");
            Box::pin(async move {
                if !known {
                    return Err(ApiError::from_answer(404, b""));
                }
                Ok(Bytes::from_static(
                    br#"{"metadata":{"name":"sealed"},"handler":"kata"}"#,
                ))
            })
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn each_pod_that_gets_no_sandbox_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared_of(dir.path(), Vec::new(), Arc::new(OneClass));
        for (uid, spec) in [
            ("a", json!({"runtimeClassName": "absent"})),
            (
                "b",
                json!({"runtimeClassName": "sealed", "hostUsers": false}),
            ),
            (
                "c",
                json!({"hostname": "x".repeat(80), "setHostnameAsFQDN": true, "subdomain": "y"}),
            ),
            // This node has no range of addresses.
            ("d", json!({})),
        ] {
            let mut pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": uid}});
            pod["spec"] = spec;
            pod["spec"]["containers"] = json!([]);
            let pod = serde_json::from_value(pod).unwrap();
            let mut own = PodSandbox::find(&shared, uid);
            own.make(&shared, &pod).await.unwrap_err();
        }
        let metrics = shared.figures.done().text("n", &[]);
        for line in [
            "kubelet_started_pods_total 4",
            "kubelet_started_pods_errors_total 4",
            "kubelet_started_user_namespaced_pods_errors_total 1",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"kata\"} 1",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"\"} 1",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"} 1",
        ] {
            assert!(
                metrics.lines().any(|sample| sample == line),
                "{line}:\n{metrics}"
            );
        }
    }

    /// Needs root.
    #[test]
    fn host_ports_are_closed_before_another_pod_gets_their_pods_addresses() {
        beside_sandbox(Vec::new(), |shared, _| async move {
            let pod = with_host_port("a");
            let ports = || shared.config.cluster.as_ref().unwrap().now();
            let mut own = PodSandbox::find(&shared, "a");
            own.publish(&shared, &pod);
            assert_eq!(ports().host_ports.len(), 1);
            // The engine does not answer, so that the sandbox stays for now; the pod's next step
            // runs before another try.
            assert!(own.remove(&shared).await.is_err() && own.exists());
            own.publish(&shared, &pod);
            assert_eq!(ports().host_ports, []);
        });
    }
}
