//! Probes: one task for each running container that has some; verdicts are read by the pod's own task.
//!
//! The startup probe comes first and alone; then liveness and readiness side by side. A failed liveness or
//! startup probe marks the container dead; ending it is the pod machine's work.

use crate::kubelet::Shared;
use crate::machine::{Verdict, containers};
use agent_runtime::{Container as Seen, ContainerState, Kind};
use config_http::{Connection, Limits};
use config_kube::k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Defaults of the API (upstream's).
const PERIOD: u64 = 10;
const TIMEOUT: u64 = 1;
const FAILURES: u32 = 3;

type Verdicts = Arc<Mutex<BTreeMap<String, Verdict>>>;

/// The probes of one pod's containers.
pub(crate) struct Probes {
    shared: Arc<Shared>,
    news: Arc<Notify>,
    verdicts: Verdicts,
    tasks: BTreeMap<String, AbortHandle>,
}

/// Which of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Startup,
    Liveness,
    Readiness,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

impl Probes {
    pub(crate) fn new(shared: Arc<Shared>, news: Arc<Notify>) -> Self {
        Self {
            shared,
            news,
            verdicts: Verdicts::default(),
            tasks: BTreeMap::new(),
        }
    }

    /// Starts probes for what runs and ends those of what doesn't.
    pub(crate) fn follow(&mut self, pod: &Arc<Pod>, seen: &[Seen], host: Option<IpAddr>) {
        let running = |id: &str| {
            seen.iter()
                .any(|seen| seen.id == id && matches!(seen.state, ContainerState::Running { .. }))
        };
        self.tasks.retain(|id, task| {
            let keep = running(id);
            if !keep {
                task.abort();
            }
            keep
        });
        lock(&self.verdicts).retain(|id, _| running(id));
        for seen in seen
            .iter()
            .filter(|seen| running(&seen.id) && seen.key.kind == Kind::Main)
        {
            let container = containers(pod, Kind::Main)
                .iter()
                .find(|container| container.name == seen.key.container);
            if let Some(container) = container.filter(|container| has_probe(container))
                && !self.tasks.contains_key(&seen.id)
            {
                self.begin(pod.clone(), container.clone(), seen.id.clone(), host);
            }
        }
    }

    fn begin(&mut self, pod: Arc<Pod>, container: Container, id: String, host: Option<IpAddr>) {
        let first = Verdict {
            started: container.startup_probe.is_none(),
            ready: container.startup_probe.is_none() && container.readiness_probe.is_none(),
            dead: false,
        };
        lock(&self.verdicts).insert(id.clone(), first);
        let prober = Prober {
            shared: self.shared.clone(),
            news: self.news.clone(),
            verdicts: self.verdicts.clone(),
            pod,
            container,
            id: id.clone(),
            host,
        };
        self.tasks
            .insert(id, tokio::spawn(prober.run()).abort_handle());
    }

    /// Ends all probes: the pod ends.
    pub(crate) fn stop_all(&mut self) {
        for task in std::mem::take(&mut self.tasks).into_values() {
            task.abort();
        }
    }

    /// What is known of the containers that are there.
    pub(crate) fn verdicts(&self, seen: &[Seen]) -> BTreeMap<String, Verdict> {
        let all = lock(&self.verdicts);
        seen.iter()
            .filter_map(|seen| all.get(&seen.id).map(|verdict| (seen.id.clone(), *verdict)))
            .collect()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn lock(verdicts: &Verdicts) -> std::sync::MutexGuard<'_, BTreeMap<String, Verdict>> {
    verdicts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_probe(container: &Container) -> bool {
    container.startup_probe.is_some()
        || container.liveness_probe.is_some()
        || container.readiness_probe.is_some()
}

/// The task of one container.
struct Prober {
    shared: Arc<Shared>,
    news: Arc<Notify>,
    verdicts: Verdicts,
    pod: Arc<Pod>,
    container: Container,
    id: String,
    /// Where the pod is reached.
    host: Option<IpAddr>,
}

impl Prober {
    async fn run(self) {
        if let Some(probe) = &self.container.startup_probe {
            self.repeat(Role::Startup, probe).await;
        }
        let readiness = async {
            if let Some(probe) = &self.container.readiness_probe {
                self.repeat(Role::Readiness, probe).await;
            }
        };
        let liveness = async {
            if let Some(probe) = &self.container.liveness_probe {
                self.repeat(Role::Liveness, probe).await;
            }
        };
        tokio::join!(readiness, liveness);
    }

    /// Probes until it is decided: a startup probe that passes, or one that declares the container dead.
    async fn repeat(&self, role: Role, probe: &Probe) {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(
                value
                    .and_then(|value| u64::try_from(value).ok())
                    .unwrap_or(default),
            )
        };
        let times = |value: Option<i32>, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(default)
                .max(1)
        };
        let (needed, allowed) = (
            times(probe.success_threshold, 1),
            times(probe.failure_threshold, FAILURES),
        );
        let limit = seconds(probe.timeout_seconds, TIMEOUT).max(Duration::from_secs(1));
        let period = seconds(probe.period_seconds, PERIOD).max(Duration::from_secs(1));
        sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let (mut good, mut bad) = (0_u32, 0_u32);
        loop {
            match self.once(probe, limit).await {
                Ok(()) => (good, bad) = (good.saturating_add(1), 0),
                Err(why) => {
                    (good, bad) = (0, bad.saturating_add(1));
                    let text = format!("{} probe failed: {why}", role.name());
                    self.shared.events.warning(&self.pod, "Unhealthy", text);
                }
            }
            if good >= needed && self.passed(role) {
                return;
            }
            if bad >= allowed && self.failed(role) {
                return;
            }
            sleep(period).await;
        }
    }

    /// True if that decides the probe.
    fn passed(&self, role: Role) -> bool {
        let ready_at_start = self.container.readiness_probe.is_none();
        self.change(|verdict| match role {
            Role::Startup => {
                verdict.started = true;
                verdict.ready = ready_at_start;
            }
            Role::Readiness => verdict.ready = true,
            Role::Liveness => {}
        });
        role == Role::Startup
    }

    fn failed(&self, role: Role) -> bool {
        self.change(|verdict| match role {
            Role::Startup | Role::Liveness => verdict.dead = true,
            Role::Readiness => verdict.ready = false,
        });
        role != Role::Readiness
    }

    fn change(&self, change: impl FnOnce(&mut Verdict)) {
        let mut all = lock(&self.verdicts);
        if let Some(verdict) = all.get_mut(&self.id) {
            let before = *verdict;
            change(verdict);
            if *verdict != before {
                self.news.notify_one();
            }
        }
    }

    async fn once(&self, probe: &Probe, limit: Duration) -> Result<(), String> {
        let host = self.host;
        let late = |_elapsed| format!("timed out after {} s", limit.as_secs());
        if let Some(exec) = &probe.exec {
            let command = exec.command.clone().unwrap_or_default();
            let done = self
                .shared
                .runtime
                .exec(&self.id, &command, limit)
                .await
                .map_err(|error| error.chain())?;
            return if done.code == 0 {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&done.output).into_owned())
            };
        }
        if let Some(get) = &probe.http_get {
            let port = self.port(&get.port)?;
            return timeout(limit, http_get(get, host, port))
                .await
                .map_err(late)?;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let port = self.port(&tcp.port)?;
            let place = address(tcp.host.as_deref(), host);
            let connected = timeout(limit, TcpStream::connect((place.as_str(), port)))
                .await
                .map_err(late)?;
            return connected
                .map(drop)
                .map_err(|error| format!("connect to {place}:{port}: {error}"));
        }
        Err("the probe names no action that is available".to_owned())
    }

    fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let named = |port: &&config_kube::k8s_openapi::api::core::v1::ContainerPort| {
                    port.name.as_deref() == Some(name)
                };
                let named = self
                    .container
                    .ports
                    .iter()
                    .flatten()
                    .find(named)
                    .map(|port| port.container_port);
                named.or_else(|| name.parse().ok())
            }
        };
        number
            .and_then(|number| u16::try_from(number).ok())
            .ok_or_else(|| format!("the container has no port {port:?}"))
    }
}

/// Pods are on the host's network: the machine's first address, or the loopback where it has none.
fn address(named: Option<&str>, host: Option<IpAddr>) -> String {
    let host = || host.map_or_else(|| "127.0.0.1".to_owned(), |host| host.to_string());
    named
        .filter(|named| !named.is_empty())
        .map_or_else(host, str::to_owned)
}

async fn http_get(get: &HTTPGetAction, host: Option<IpAddr>, port: u16) -> Result<(), String> {
    if get
        .scheme
        .as_deref()
        .is_some_and(|scheme| !scheme.eq_ignore_ascii_case("http"))
    {
        return Err("https probes are not available yet".to_owned());
    }
    let place = address(get.host.as_deref(), host);
    let say = |error: &dyn std::error::Error| format!("Get \"http://{place}:{port}\": {error}");
    let path = get
        .path
        .as_deref()
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    let mut request = Request::get(path).header("user-agent", "kube-probe/1.36");
    let headers = get.http_headers.iter().flatten();
    if !headers
        .clone()
        .any(|header| header.name.eq_ignore_ascii_case("host"))
    {
        request = request.header("host", format!("{place}:{port}"));
    }
    request = headers.fold(request, |request, header| {
        request.header(&header.name, &header.value)
    });
    let request = request
        .body(bytes::Bytes::new())
        .map_err(|error| say(&error))?;
    let stream = TcpStream::connect((place.as_str(), port))
        .await
        .map_err(|error| say(&error))?;
    let exchange = async {
        let (stream, limits) = (TokioIo::new(stream), Limits::default());
        let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
        let mut connection = Connection::open(stream, &executor, timer, limits).await?;
        connection.send(request).await
    };
    // The words of the connection itself, as upstream shows them.
    let answer = exchange
        .await
        .map_err(|error| say(error.source().unwrap_or(&error)));
    let status = answer?.status();
    if (200..400).contains(&status.as_u16()) {
        Ok(())
    } else {
        Err(format!(
            "HTTP probe failed with statuscode: {}",
            status.as_u16()
        ))
    }
}
