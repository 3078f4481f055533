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
use agent_content::variables::expand_static;
use agent_runtime::Runtime;
use config_kube::k8s_openapi::api::core::v1::{
    Container, ContainerPort, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How a request names its sender: upstream's words and the version that this node reports.
const PROBE_AGENT: &str = "kube-probe/1.36";
const HOOK_AGENT: &str = "kube-lifecycle/1.36";
/// Why a pod can't be asked over the network.
const NO_ADDRESS: &str = "the pod has no address yet";

/// A running container to act upon.
#[derive(Debug, Clone)]
pub struct Target {
    /// The engine that runs it.
    pub runtime: Arc<dyn Runtime>,
    /// Its id at the engine.
    pub id: String,
    /// The container, with its named ports and its variables.
    pub container: Container,
    /// Where its pod is reached: the loopback on the machine's network, if no other address is
    /// known, and never where the pod has a network of its own. `None`: it has no address yet, and
    /// nothing but a host that the action names is asked.
    pub host: Option<IpAddr>,
}

/// Why a probe did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeFault {
    /// The container's program failed it, in words for an event of the pod.
    Failed(String),
    /// The program was not asked: the engine is away, say, or the container has no such port. This
    /// says nothing of the container.
    Unknown(String),
}

impl From<ProbeFault> for String {
    fn from(fault: ProbeFault) -> Self {
        match fault {
            ProbeFault::Failed(why) | ProbeFault::Unknown(why) => why,
        }
    }
}

/// How an action went.
type Outcome = Result<(), ProbeFault>;

/// What an event may warn of though a probe or hook passed.
pub type Warning = String;

impl Target {
    /// Acts as a probe says, once, within `limit`.
    ///
    /// # Errors
    /// It did not pass, or could not be made.
    pub async fn probe(
        &self,
        probe: &Probe,
        limit: Duration,
    ) -> Result<Option<Warning>, ProbeFault> {
        let outcome = if let Some(exec) = &probe.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            match expand_static(command, &self.container) {
                Ok(command) => self.run(&command, limit).await,
                Err(why) => Err(ProbeFault::Unknown(why)),
            }
        } else if let Some(get) = &probe.http_get {
            let asked = timeout(limit, self.ask(get)).await;
            return asked.map_err(|_elapsed| ProbeFault::Failed(late(limit)))?;
        } else if let Some(tcp) = &probe.tcp_socket {
            self.connect(tcp, limit).await
        } else if let Some(grpc) = &probe.grpc {
            self.ask_health(grpc, limit).await
        } else {
            let why = "the probe names no action that is available";
            Err(ProbeFault::Unknown(why.to_owned()))
        };
        outcome.map(|()| None)
    }

    /// Asks over HTTP. A redirect to another host is not followed and passes with a warning
    /// (upstream's rule).
    async fn ask(&self, get: &HTTPGetAction) -> Result<Option<Warning>, ProbeFault> {
        let place = self.asked(get).map_err(ProbeFault::Unknown)?;
        let answer = http::follow(get, place, PROBE_AGENT).await;
        let answer = answer.map_err(|failure| ProbeFault::Failed(failure.into()))?;
        let Answer { status, body, .. } = answer;
        match status {
            200..=299 => Ok(None),
            300..=399 => Ok(Some(format!(
                "Probe terminated redirects, Response body: {body}"
            ))),
            _ => {
                let why = format!("HTTP probe failed with statuscode: {status}");
                Err(ProbeFault::Failed(why))
            }
        }
    }

    /// Acts as a lifecycle hook says, within `limit`. A command is run as it is written, unlike a
    /// probe's, in which variables are replaced; an answer over HTTP is enough, whatever its
    /// status; `tcpSocket` is not a hook, although the API has it (all as upstream's).
    ///
    /// # Errors
    /// Why it failed; not for events, because a hook's output may be secret.
    pub async fn hook(
        &self,
        hook: &LifecycleHandler,
        limit: Duration,
    ) -> Result<Option<Warning>, String> {
        if let Some(exec) = &hook.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            self.run(command, limit).await?;
            Ok(None)
        } else if let Some(get) = &hook.http_get {
            let asked = timeout(limit, self.get_by_hook(get)).await;
            asked.map_err(|_elapsed| late(limit))?
        } else if let Some(sleep) = &hook.sleep {
            let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds).min(limit)).await;
            Ok(None)
        } else {
            Err("invalid handler: it is none of exec, httpGet and sleep".to_owned())
        }
    }

    async fn run(&self, command: &[String], limit: Duration) -> Outcome {
        let done = self
            .runtime
            .exec(&self.id, command, limit)
            .await
            .map_err(|error| ProbeFault::Unknown(error.chain()))?;
        let why = match done.code {
            Some(0) => return Ok(()),
            Some(_) => String::from_utf8_lossy(&done.output).into_owned(),
            // Upstream's words.
            None => format!(
                "command timed out: {:?} timed out after {}s",
                command.join(" "),
                limit.as_secs()
            ),
        };
        Err(ProbeFault::Failed(why))
    }

    /// What an action over HTTP asks for.
    fn asked(&self, get: &HTTPGetAction) -> Result<Url, String> {
        let port = self.port(&get.port)?;
        Ok(Url::of(get, &self.place(get.host.as_deref())?, port))
    }

    /// A hook follows redirects as a probe does. One over HTTPS whose server does not speak TLS is
    /// sent in the clear, without its credentials, and a warning says so (upstream's rule and
    /// words: hooks once ignored the scheme).
    async fn get_by_hook(&self, get: &HTTPGetAction) -> Result<Option<Warning>, String> {
        let place = self.asked(get)?;
        let server = address(&place.host, place.port);
        let why = match http::follow(get, place, HOOK_AGENT).await {
            Ok(_answer) => return Ok(None),
            Err(Failure::InTheClear(why)) => why,
            Err(Failure::Other(why)) => return Err(why),
        };
        let get = http::in_the_clear(get);
        let again = http::follow(&get, self.asked(&get)?, HOOK_AGENT).await;
        if again.is_err() {
            return Err(why);
        }
        let words = "got HTTP response, retry with HTTP succeeded";
        Ok(Some(format!(
            "request to HTTPS lifecycle hook {server} {words}"
        )))
    }

    async fn connect(&self, tcp: &TCPSocketAction, limit: Duration) -> Outcome {
        let port = self.port(&tcp.port).map_err(ProbeFault::Unknown)?;
        let place = self.place(tcp.host.as_deref());
        let place = place.map_err(ProbeFault::Unknown)?;
        let connected = timeout(limit, dial::connect(&place, port))
            .await
            .map_err(|_elapsed| ProbeFault::Failed(late(limit)))?;
        let failed = |error| ProbeFault::Failed(format!("connect to {place}:{port}: {error}"));
        connected.map(drop).map_err(failed)
    }

    async fn ask_health(&self, action: &GRPCAction, limit: Duration) -> Outcome {
        let port = port_number(action.port).map_err(ProbeFault::Unknown)?;
        let place = self.place(None).map_err(ProbeFault::Unknown)?;
        let service = action.service.as_deref().unwrap_or_default();
        let checked = grpc::check(&place, port, service, PROBE_AGENT, limit).await;
        checked.map_err(ProbeFault::Failed)
    }

    /// The host that an action names, or the pod's. A pod without an address is not looked for on
    /// the machine, whose own programs would answer in its place.
    fn place(&self, named: Option<&str>) -> Result<String, String> {
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            return Ok(named.to_owned());
        }
        let own = self.host.map(|host| host.to_string());
        own.ok_or_else(|| NO_ADDRESS.to_owned())
    }

    /// The number of a port, which may be named, or written as text; errors in upstream's words.
    fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let name = match port {
            IntOrString::Int(number) => return port_number(*number),
            IntOrString::String(name) => name,
        };
        let named = |port: &&ContainerPort| port.name.as_deref() == Some(name);
        let mut ports = self.container.ports.iter().flatten();
        let number = match ports.find(named) {
            Some(port) => port.container_port,
            None => name
                .parse()
                .map_err(|_no_number| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
        };
        port_number(number)
    }
}

fn port_number(number: i32) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("invalid port number: {number}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::{Containerd, Options, Registries};
    use serde_json::{Value, json};
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    /// A container whose engine is away, and that has the port `web`.
    fn target(host: Option<IpAddr>) -> Target {
        let engine = Containerd::new(Options {
            socket: "/nowhere/containerd.sock".into(),
            state: "/nowhere/state".into(),
            fifos: "/nowhere/fifos".into(),
            logs: "/nowhere/logs".into(),
            registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
            programs: None,
            archives: Vec::new(),
        });
        let container = json!({"name": "a", "ports": [{"name": "web", "containerPort": 8080}]});
        Target {
            runtime: Arc::new(engine),
            id: "id".to_owned(),
            container: serde_json::from_value(container).unwrap(),
            host,
        }
    }

    /// What a probe finds of such a container.
    async fn probed_at(host: Option<IpAddr>, probe: Value) -> Result<Option<Warning>, ProbeFault> {
        let probe = serde_json::from_value(probe).unwrap();
        target(host).probe(&probe, Duration::from_secs(5)).await
    }

    async fn probed(probe: Value) -> Result<Option<Warning>, ProbeFault> {
        probed_at(Some(Ipv4Addr::LOCALHOST.into()), probe).await
    }

    /// The machine's own programs listen there, and some answer any question.
    #[tokio::test]
    async fn a_pod_without_an_address_is_not_looked_for_on_the_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for probe in [
            json!({"httpGet": {"port": port}}),
            json!({"httpGet": {"port": port, "host": ""}}),
            json!({"tcpSocket": {"port": port}}),
            json!({"grpc": {"port": port}}),
        ] {
            let found = probed_at(None, probe).await;
            assert_eq!(found, Err(ProbeFault::Unknown(NO_ADDRESS.to_owned())));
        }
        let hook = json!({"httpGet": {"port": port}});
        let hook = serde_json::from_value(hook).unwrap();
        let asked = target(None).hook(&hook, Duration::from_secs(5)).await;
        assert_eq!(asked, Err(NO_ADDRESS.to_owned()));
        let named = json!({"tcpSocket": {"port": port, "host": "127.0.0.1"}});
        assert_eq!(probed_at(None, named).await, Ok(None));
    }

    /// The first line of a request, which is read whole.
    async fn request_line(stream: &mut TcpStream) -> Option<String> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next_line().await.unwrap();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.is_empty() {
                break;
            }
        }
        first
    }

    #[tokio::test]
    async fn a_hook_follows_a_redirect_within_its_host_and_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = [
            "HTTP/1.1 302 Found\r\nlocation: /drained\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\ncontent-length: 0\r\n\r\n",
        ];
        let serving = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                asked.extend(request_line(&mut stream).await);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        let hook = json!({"httpGet": {"port": port, "path": "/drain"}});
        let hook = serde_json::from_value(hook).unwrap();
        let here = target(Some(Ipv4Addr::LOCALHOST.into()));
        let done = here.hook(&hook, Duration::from_secs(60)).await;
        assert_eq!(done, Ok(None), "an answer is enough, whatever its status");
        // Where the hook stopped at the first answer, nobody asks again.
        let asked = timeout(Duration::from_secs(5), serving).await;
        assert_eq!(
            asked.unwrap().unwrap(),
            ["GET /drain HTTP/1.1", "GET /drained HTTP/1.1"]
        );
    }

    #[tokio::test]
    async fn a_hook_over_tls_that_was_sent_in_the_clear_warns_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            // What the server takes the handshake for is no request.
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
            drop(stream.try_read(&mut [0; 4096]));
            stream.write_all(b"HTTP/1.1 400 It\r\n\r\n").await.unwrap();
            drop(stream);
            let (mut stream, _) = listener.accept().await.unwrap();
            request_line(&mut stream).await;
            let answer = b"HTTP/1.1 204 It\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        });
        let hook = json!({"httpGet": {"scheme": "HTTPS", "port": port}});
        let hook = serde_json::from_value(hook).unwrap();
        let here = target(Some(Ipv4Addr::LOCALHOST.into()));
        let done = here.hook(&hook, Duration::from_secs(60)).await;
        let words = format!(
            "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
        );
        assert_eq!(done, Ok(Some(words)));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_probe_that_cannot_be_made_says_nothing_of_the_container() {
        let away = probed(json!({"exec": {"command": ["true"]}})).await;
        assert!(matches!(away, Err(ProbeFault::Unknown(_))), "{away:?}");
        for (probe, why) in [
            (
                json!({"httpGet": {"port": "http"}}),
                "strconv.Atoi: parsing \"http\": invalid syntax",
            ),
            (
                json!({"tcpSocket": {"port": "http"}}),
                "strconv.Atoi: parsing \"http\": invalid syntax",
            ),
            (
                json!({"tcpSocket": {"port": "65536"}}),
                "invalid port number: 65536",
            ),
            (json!({"grpc": {"port": 0}}), "invalid port number: 0"),
            (json!({}), "the probe names no action that is available"),
        ] {
            let found = probed(probe).await;
            assert_eq!(found, Err(ProbeFault::Unknown(why.to_owned())));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        for probe in [
            json!({"httpGet": {"port": port}}),
            json!({"tcpSocket": {"port": port.to_string()}}),
            json!({"grpc": {"port": port}}),
        ] {
            let found = probed(probe).await;
            assert!(matches!(found, Err(ProbeFault::Failed(_))), "{found:?}");
        }
    }
}
