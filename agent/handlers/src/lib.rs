//! What probes and lifecycle hooks do: a command in the container, a request over HTTP or HTTPS,
//! TCP or gRPC, a sleep.
//!
//! Enter by [`Target`], which names the container and where its pod is reached: [`Target::probe`]
//! and [`Target::hook`] act once and return the result, in upstream's words. The kubelet decides
//! when to act, and what follows from a result.
//!
//! There are no tasks that outlive a call: the connection of a request ends with it. Answers are
//! bounded in size and in time. `http` and `grpc` talk to untrusted programs.

#[doc(hidden)]
pub mod decoders;
mod dial;
mod grpc;
mod http;
mod redirect;

use crate::http::{Answer, Failure};
use crate::redirect::Url;
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

/// How a request names its sender: upstream's words and the version that this node reports.
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
    /// The address of its pod; the loopback if that is not known.
    pub host: Option<IpAddr>,
}

/// How an action went.
type Outcome = Result<(), String>;

/// What an event may warn of though a probe passed.
pub type Warning = String;

impl Target {
    /// Acts as a probe says, once, within `limit`.
    ///
    /// # Errors
    /// Why the probe failed, as text for an event of the pod.
    pub async fn probe(&self, probe: &Probe, limit: Duration) -> Result<Option<Warning>, String> {
        let outcome = if let Some(exec) = &probe.exec {
            self.run(exec, limit).await
        } else if let Some(get) = &probe.http_get {
            let asked = timeout(limit, self.ask(get)).await;
            return asked.map_err(|_elapsed| late(limit))?;
        } else if let Some(tcp) = &probe.tcp_socket {
            self.connect(tcp, limit).await
        } else if let Some(grpc) = &probe.grpc {
            self.ask_health(grpc, limit).await
        } else {
            Err("the probe names no action that is available".to_owned())
        };
        outcome.map(|()| None)
    }

    /// Asks over HTTP. A redirect to another host is not followed and passes with a warning
    /// (upstream's rule).
    async fn ask(&self, get: &HTTPGetAction) -> Result<Option<Warning>, String> {
        let place = self.asked(get)?;
        let Answer { status, body, .. } = http::follow(get, place, PROBE_AGENT).await?;
        match status {
            200..=299 => Ok(None),
            300..=399 => Ok(Some(format!(
                "Probe terminated redirects, Response body: {body}"
            ))),
            _ => Err(format!("HTTP probe failed with statuscode: {status}")),
        }
    }

    /// Acts as a lifecycle hook says, within `limit`. An answer over HTTP is enough, whatever its
    /// status; `tcpSocket` is not a hook, although the API has it (both as upstream's).
    ///
    /// # Errors
    /// Why it failed; not for events, because a hook's output may be secret.
    pub async fn hook(&self, hook: &LifecycleHandler, limit: Duration) -> Outcome {
        if let Some(exec) = &hook.exec {
            self.run(exec, limit).await
        } else if let Some(get) = &hook.http_get {
            let asked = timeout(limit, self.get_by_hook(get)).await;
            asked.map_err(|_elapsed| late(limit))?.map(drop)
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

    /// What an action over HTTP asks for.
    fn asked(&self, get: &HTTPGetAction) -> Result<Url, String> {
        let port = self.port(&get.port)?;
        Ok(Url::of(get, &self.place(get.host.as_deref()), port))
    }

    /// A hook over HTTPS whose server does not speak TLS is sent in the clear, without its
    /// credentials (upstream's rule: hooks once ignored the scheme).
    async fn get_by_hook(&self, get: &HTTPGetAction) -> Result<Answer, String> {
        let asked = http::get(get, &self.asked(get)?, HOOK_AGENT).await;
        let Err(Failure::InTheClear(_)) = asked else {
            return Ok(asked?);
        };
        let get = http::in_the_clear(get);
        Ok(http::get(&get, &self.asked(&get)?, HOOK_AGENT).await?)
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
