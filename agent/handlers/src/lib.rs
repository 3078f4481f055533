//! What probes and lifecycle hooks do: a command in the container, a request over HTTP or HTTPS, TCP or gRPC, a
//! sleep.
//!
//! Enter by [`Target`], which names the container and where its pod is reached: [`Target::probe`] and [`Target::hook`] act once
//! and say what came of it, in upstream's words. Who acts, how often, and what follows from it, is the kubelet's to decide.
//!
//! There are no tasks that outlive a call: the connection of a request ends with it. What comes back is bounded in size and in
//! time. `http` and `grpc` speak to programs that nobody trusts.

mod dial;
mod grpc;
mod http;

use crate::http::Failure;
use agent_runtime::Runtime;
use config_kube::k8s_openapi::api::core::v1::{
    Container, ContainerPort, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe,
    TCPSocketAction,
};
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How a request names its sender: upstream's words and the version that this node tells.
const PROBE_AGENT: &str = "kube-probe/1.36";
const HOOK_AGENT: &str = "kube-lifecycle/1.36";

/// A running container to act upon.
#[derive(Debug, Clone)]
pub struct Target {
    /// The engine that runs it.
    pub runtime: Arc<dyn Runtime>,
    /// Its id at the engine.
    pub id: String,
    /// The container's named ports.
    pub container: Container,
    /// Where its pod is reached; the loopback where that is not known.
    pub host: Option<IpAddr>,
}

/// How an action went.
type Outcome = Result<(), String>;

impl Target {
    /// Acts as a probe says, once, within `limit`.
    ///
    /// # Errors
    /// Why the container is not as it should be, in words for an event of the pod.
    pub async fn probe(&self, probe: &Probe, limit: Duration) -> Outcome {
        if let Some(exec) = &probe.exec {
            self.run(exec, limit).await
        } else if let Some(get) = &probe.http_get {
            let asked = timeout(limit, self.get(get, PROBE_AGENT)).await;
            let status = asked.map_err(|_elapsed| late(limit))??;
            if (200..400).contains(&status) {
                Ok(())
            } else {
                Err(format!("HTTP probe failed with statuscode: {status}"))
            }
        } else if let Some(tcp) = &probe.tcp_socket {
            self.connect(tcp, limit).await
        } else if let Some(grpc) = &probe.grpc {
            self.ask_health(grpc, limit).await
        } else {
            Err("the probe names no action that is available".to_owned())
        }
    }

    /// Acts as a lifecycle hook says, within `limit`. An answer over HTTP is enough, whatever its status; `tcpSocket` is no hook,
    /// though the API has it (both as upstream's).
    ///
    /// # Errors
    /// Why it failed; not for events, as what a hook prints may be secret.
    pub async fn hook(&self, hook: &LifecycleHandler, limit: Duration) -> Outcome {
        if let Some(exec) = &hook.exec {
            self.run(exec, limit).await
        } else if let Some(get) = &hook.http_get {
            let asked = timeout(limit, self.get_by_hook(get)).await;
            Ok(asked.map_err(|_elapsed| late(limit))?.map(drop)?)
        } else if let Some(sleep) = &hook.sleep {
            let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds).min(limit)).await;
            Ok(())
        } else {
            Err("invalid handler: it is none of exec, httpGet and sleep".to_owned())
        }
    }

    async fn run(&self, exec: &ExecAction, limit: Duration) -> Outcome {
        let command = exec.command.as_deref().unwrap_or_default();
        let done = self
            .runtime
            .exec(&self.id, command, limit)
            .await
            .map_err(|error| error.chain())?;
        if done.code == 0 {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&done.output).into_owned())
        }
    }

    /// The status of the answer.
    async fn get(&self, get: &HTTPGetAction, agent: &str) -> Result<u16, Failure> {
        let port = self.port(&get.port).map_err(Failure::Other)?;
        let place = self.place(get.host.as_deref());
        http::get(get, &place, port, agent).await
    }

    /// A hook over HTTPS whose server does not speak TLS is sent in the clear, without its credentials (upstream's rule: hooks
    /// once ignored the scheme).
    async fn get_by_hook(&self, get: &HTTPGetAction) -> Result<u16, Failure> {
        match self.get(get, HOOK_AGENT).await {
            Err(Failure::InTheClear(_)) => self.get(&http::in_the_clear(get), HOOK_AGENT).await,
            asked => asked,
        }
    }

    async fn connect(&self, tcp: &TCPSocketAction, limit: Duration) -> Outcome {
        let port = self.port(&tcp.port)?;
        let place = self.place(tcp.host.as_deref());
        let connected = timeout(limit, dial::connect(&place, port))
            .await
            .map_err(|_elapsed| late(limit))?;
        connected
            .map(drop)
            .map_err(|error| format!("connect to {place}:{port}: {error}"))
    }

    async fn ask_health(&self, action: &GRPCAction, limit: Duration) -> Outcome {
        let port = u16::try_from(action.port)
            .map_err(|error| format!("{} is no port: {error}", action.port))?;
        let service = action.service.as_deref().unwrap_or_default();
        grpc::check(&self.place(None), port, service, PROBE_AGENT, limit).await
    }

    /// The host that an action names, or the pod's.
    fn place(&self, named: Option<&str>) -> String {
        let own = || {
            self.host
                .map_or_else(|| "127.0.0.1".to_owned(), |host| host.to_string())
        };
        named
            .filter(|named| !named.is_empty())
            .map_or_else(own, str::to_owned)
    }

    fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let named = |port: &&ContainerPort| port.name.as_deref() == Some(name);
                let mut ports = self.container.ports.iter().flatten();
                let found = ports.find(named).map(|port| port.container_port);
                found.or_else(|| name.parse().ok())
            }
        };
        number
            .and_then(|number| u16::try_from(number).ok())
            .ok_or_else(|| format!("the container has no port {port:?}"))
    }
}

/// A place and a port as URLs and headers write them.
fn address(place: &str, port: u16) -> String {
    if place.contains(':') {
        format!("[{place}]:{port}")
    } else {
        format!("{place}:{port}")
    }
}

fn late(limit: Duration) -> String {
    format!("timed out after {} s", limit.as_secs())
}
