//! A pod's sandbox as the pod's task keeps it: found, made before anything of the pod runs, and
//! removed after all has ended.

use crate::config::Config;
use crate::shared::Shared;
use agent_api::get;
use agent_cluster::{Sandbox, Sandboxes};
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

/// The handlers of RuntimeClasses that this node has: one runtime, by its own name and by that of
/// the runtime which most nodes with containerd have.
pub(crate) const HANDLERS: [&str; 2] = ["crun", "runc"];

/// The sandbox of one pod.
#[derive(Debug)]
pub(crate) struct Own {
    uid: String,
    found: Option<Sandbox>,
}

impl Own {
    /// That of an earlier agent, if there is one.
    pub(crate) fn find(shared: &Shared, uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            found: shared.sandboxes.find(uid),
        }
    }

    /// The sandbox, made where there is none.
    ///
    /// # Errors
    /// The sandbox cannot be created; an event is written, and the error class is retriable.
    pub(crate) async fn make(&mut self, shared: &Arc<Shared>, pod: &Pod) -> Result<Sandbox, Error> {
        if let Some(found) = &self.found {
            return Ok(found.clone());
        }
        if let Err(fault) = runs_in_class(shared, pod).await {
            return Err(failed(shared, pod, &fault));
        }
        let wanted =
            network::wanted(pod, &self.uid).map_err(|fault| failed(shared, pod, &fault))?;
        let own = shared.sandboxes.own_addresses().into_iter();
        let own: Vec<IpAddr> = own.map(|(address, _)| address).collect();
        if let Some(fault) = network::port_fault(pod, &own).filter(|_| !own.is_empty()) {
            return Err(failed(shared, pod, &fault));
        }
        let own_users = wanted.users;
        let (sandboxes, begun) = (shared.sandboxes.clone(), Instant::now());
        let made = tokio::task::spawn_blocking(move || sandboxes.make(&wanted))
            .await
            .map_err(|error| Error::caused(ErrorClass::Unavailable, "make the sandbox", error))?;
        let sandbox = made.map_err(|error| {
            shared.figures.done().sandbox_failed(own_users);
            let reason = if matches!(error, agent_cluster::Error::NoRange) {
                "NetworkNotReady"
            } else {
                "FailedCreatePodSandBox"
            };
            let message = error.chain();
            shared.events.warning(pod, reason, message.clone());
            Error::new(ErrorClass::Unavailable, message)
        })?;
        let done = shared.figures.done();
        done.took(TimedWork::Sandbox, begun.elapsed());
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
        done.pod(own_users);
        self.found = Some(sandbox.clone());
        self.publish(shared, pod);
        Ok(sandbox)
    }

    /// Removes it; nothing is done where there is none.
    ///
    /// # Errors
    /// If something of it is left; to be tried again.
    pub(crate) async fn remove(&mut self, shared: &Arc<Shared>) -> Result<(), Error> {
        shared.runtime.end_sharing(&self.uid).await?;
        let (sandboxes, uid) = (shared.sandboxes.clone(), self.uid.clone());
        let removed = tokio::task::spawn_blocking(move || sandboxes.remove(&uid)).await;
        match removed {
            Ok(Ok(())) => {
                shared.policies.dismiss(&self.uid);
                if let Some(view) = &shared.config.cluster {
                    view.publish(&self.uid, &[]);
                }
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

    /// Tells the service proxy which ports of the node the pod has.
    pub(crate) fn publish(&self, shared: &Shared, pod: &Pod) {
        let (Some(view), Some(sandbox), Some(spec)) =
            (&shared.config.cluster, &self.found, &pod.spec)
        else {
            return;
        };
        let ports = |address| HostPort::read(spec, address);
        let all = sandbox.addresses.iter().copied().flat_map(ports);
        view.publish(&self.uid, &all.collect::<Vec<_>>());
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
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

/// A sandbox that can't be made as the pod asks for it, told in upstream's words. Who made the pod
/// may change what it refers to, so that it is tried again.
fn failed(shared: &Shared, pod: &Pod, fault: &str) -> Error {
    let text = format!("Failed to create pod sandbox: {fault}");
    shared
        .events
        .warning(pod, "FailedCreatePodSandBox", text.clone());
    Error::new(ErrorClass::Unavailable, text)
}

/// Whether this node has the runtime of the pod's class: it runs all containers by crun.
async fn runs_in_class(shared: &Shared, pod: &Pod) -> Result<(), String> {
    let class = pod.spec.as_ref();
    let Some(name) = class.and_then(|spec| spec.runtime_class_name.as_deref()) else {
        return Ok(());
    };
    if !is_plain(name) {
        return Err(format!("{name:?} is no name of a RuntimeClass"));
    }
    let path = format!("/apis/node.k8s.io/v1/runtimeclasses/{name}");
    let class: RuntimeClass = get(&*shared.api, path)
        .await
        .map_err(|error| format!("RuntimeClass {name:?}: {}", error.chain()))?;
    handled(&class.handler)
}

fn handled(handler: &str) -> Result<(), String> {
    let known = HANDLERS.join(" and ");
    let fault = || format!("no runtime for {handler:?} is configured: this node has {known} alone");
    let found = HANDLERS.contains(&handler);
    found.then_some(()).ok_or_else(fault)
}

/// The node's address at which it answers names of the cluster, if it does.
pub(crate) fn resolver(config: &Config, sandboxes: &Sandboxes) -> Option<IpAddr> {
    config.cluster.as_ref()?;
    let of_node = sandboxes.own_addresses();
    of_node.first().map(|(address, _)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_names_the_runtime_by_its_own_name_or_by_that_of_most_nodes() {
        handled("crun").unwrap();
        handled("runc").unwrap();
        assert_eq!(
            handled("kata").unwrap_err(),
            "no runtime for \"kata\" is configured: this node has crun and runc alone"
        );
    }
}
