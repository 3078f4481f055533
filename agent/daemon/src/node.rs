//! The node itself, once the machine has an identity: the container engine, the kubelet, and the
//! kubelet's API.

use crate::RunArguments;
use crate::console::say;
use crate::ending::Ending;
use crate::error::Error;
use crate::glue::MasterApi;
use crate::machine::ImageDescription;
use crate::roots;
use crate::services::Services;
use crate::settings;
use crate::state_record;
use crate::time::Clock;
use crate::tunnel::Tunnel;
use agent_cluster::Sandboxes;
use agent_enroll::Identity;
use agent_images::{ClusterAddresses, Registries, Registry};
use agent_journal::{Journal, LogPaths};
use agent_kubelet::{Config, Drain, Drained, Kubelet, Least, Machine, Signal, Soft, Thresholds};
use agent_names::Names;
use agent_proxy::{Proxy, View};
use agent_runtime::{Containerd, Options, Programs};
use config_machine::end::REST_GRACE;
use config_machine::power::Order;
use config_machine::{kernel, programs, specification};
use config_model::MachineConfig;
use config_model::eviction::{Eviction, Left};
use config_model::format::HostPort;
use config_model::network::PodRoutes;
use config_tls::{CurrentClients, Strangers};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

/// Longest wait for kubelet and server to end; the next agent continues their work.
const DRAIN: Duration = Duration::from_secs(5);
/// Container images in the machine's image, imported at the start.
const ARCHIVES: &str = "/oci";

/// The machine's addresses as they are now.
type Addresses = watch::Receiver<Vec<IpAddr>>;

/// Why the node ends, other than by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The agent is asked to end.
    Asked,
    /// The master orders the end of the machine.
    Ordered(Order),
    /// A part of it has nothing more to do.
    Done,
}

/// A node that has its identity, and what runs already for it.
pub(crate) struct Identified {
    pub(crate) identity: Identity,
    /// Notified where the master's address may have changed.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) addresses: Addresses,
    pub(crate) names: Arc<Names>,
    /// Whether the machine is the agent's own; on a host it is not.
    pub(crate) on_machine: bool,
}

/// Runs the node until the agent is asked to end, the master orders the machine's end, or a part of
/// it ends by itself. An order is returned, for init.
///
/// On a host the containers go on to run. On a machine init asks only before a power-off or reboot,
/// and an order of the master leads to one: then every pod gets its grace and fails, and init kills
/// the rest.
pub(crate) async fn serve(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    node: Identified,
    ending: &mut Ending,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Option<Order>, Error> {
    let config = config(arguments, machine, image, &node)?;
    let Identified {
        identity,
        doubt,
        clock,
        addresses,
        names,
        on_machine,
    } = node;
    if on_machine && machine.kernel.io_uring {
        open_io_uring(Path::new("/proc/sys"))?;
    }
    let tls = server_tls(&identity)?;
    let listener = listen(arguments.kubelet_port).await?;
    let (name, view) = (config.node_name.clone(), names.view());
    let engine = engine(arguments, machine, on_machine, &view);
    let engine = Arc::new(Containerd::new(engine));
    state_record::tell(&arguments.run, &clock.notices());
    let sandboxes = Arc::new(sandboxes(arguments, machine, on_machine)?);
    let tunnel = Tunnel::new(machine, &identity, &sandboxes, &view);
    let figures = identity.figures();
    let condition = roots::keep_condition(identity.pins, identity.certificate, clock.notices());
    let api = Arc::new(MasterApi {
        client: identity.client,
        figures,
        doubt,
        clock,
    });
    let services = Services {
        sandboxes: Arc::clone(&sandboxes),
        proxy: Proxy::new(view, name.clone(), addresses.clone()),
        node: name,
        api: api.clone(),
        names,
        addresses,
        tunnel,
    };
    let kubelet = Kubelet::new(config, api, engine.clone(), sandboxes);
    let (mut server, drain) = (kubelet.server(journal(arguments)), kubelet.drain());
    // One place: the first order counts.
    let (orders, mut ordered) = mpsc::channel(1);
    if arguments.ends_machine.unwrap_or(on_machine) {
        server = server.ending_by(orders);
    }
    let (end, ended) = watch::channel(false);
    let mut parts = NodeTasks::new(end);
    let serving = agent_server::serve(listener, tls, server, ended.clone());
    parts.spawn("kubelet's server", serving);
    parts.endless.spawn(async move { match condition.await {} });
    parts.endless.spawn(services.run());
    parts.spawn("kubelet", kubelet.run(ended));
    let following = tokio::spawn(async move { engine.run().await });
    say(&format!("node {} is served", identity.node));
    let drain = on_machine.then_some(drain);
    let order = parts.until_end(ending, &mut ordered, tasks, drain).await;
    following.abort();
    order
}

/// The tasks of a node that is served.
struct NodeTasks {
    /// Those that end once `end` is true.
    stoppable: JoinSet<&'static str>,
    /// Those that never end.
    endless: JoinSet<&'static str>,
    end: watch::Sender<bool>,
}

impl NodeTasks {
    fn new(end: watch::Sender<bool>) -> Self {
        Self {
            stoppable: JoinSet::new(),
            endless: JoinSet::new(),
            end,
        }
    }

    /// Runs a part that ends once `end` is true.
    fn spawn(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.stoppable.spawn(async move {
            part.await;
            name
        });
    }

    /// Waits until the node is to end, or a part of it ends by itself; then ends the others. Where
    /// the machine ends with the agent there is a `drain`, which ends its pods if that was asked
    /// for. An order of the master is returned.
    async fn until_end(
        &mut self,
        ending: &mut Ending,
        ordered: &mut mpsc::Receiver<Order>,
        tasks: &mut JoinSet<Result<(), Error>>,
        drain: Option<Drain>,
    ) -> Result<Option<Order>, Error> {
        let end = self.first_end(ending, ordered, tasks).await;
        let asked = matches!(end, Ok(End::Asked | End::Ordered(_)));
        self.stop(drain.filter(|_| asked)).await;
        end.map(|end| match end {
            End::Ordered(order) => Some(order),
            End::Asked | End::Done => None,
        })
    }

    /// Waits until the node is to end, or a part of it ends by itself.
    async fn first_end(
        &mut self,
        ending: &mut Ending,
        ordered: &mut mpsc::Receiver<Order>,
        tasks: &mut JoinSet<Result<(), Error>>,
    ) -> Result<End, Error> {
        // Cancel-safe: every arm only waits for an end.
        tokio::select! {
            () = ending.signal_came() => Ok(End::Asked),
            Some(order) = ordered.recv() => Ok(End::Ordered(order)),
            Some(part) = tasks.join_next() => {
                part.unwrap_or_else(|error| Err(Error::Part("identity", error.into()))).map(|()| End::Done)
            }
            Some(part) = self.stoppable.join_next() => Err(ended_early(part)),
            Some(part) = self.endless.join_next() => Err(ended_early(part)),
        }
    }

    /// Ends the parts: where the machine ends, after its pods, and before the rest of their
    /// containers.
    async fn stop(&mut self, drain: Option<Drain>) {
        if let Some(drain) = &drain {
            say("ending the pods before the machine ends");
            drain.end_pods().await;
        }
        self.end.send_replace(true);
        drain_parts(&mut self.stoppable).await;
        if let Some(drain) = drain {
            end_containers(drain).await;
        }
    }
}

/// The error of a part that ended before it was asked to.
fn ended_early(part: Result<&'static str, JoinError>) -> Error {
    match part {
        Ok(part) => Error::Part(part, "it should never end".into()),
        Err(error) => Error::Part("node", error.into()),
    }
}

async fn end_containers(drain: Drain) {
    let Drained { ran, killed, left } = drain.end_all(REST_GRACE).await;
    say(&format!(
        "the pods have ended; of {ran} containers that ran on, {killed} were killed and {left} still run"
    ));
}

/// The pods' sandboxes: those of an earlier agent are adopted, remains of a crash are removed.
fn sandboxes(
    arguments: &RunArguments,
    machine: &MachineConfig,
    on_machine: bool,
) -> Result<Sandboxes, Error> {
    let options = agent_cluster::SandboxOptions {
        run: arguments.run.join("pods"),
        ledger: arguments.data.join("pod-addresses.json"),
        kubernetes_only: on_machine,
        tunnel: machine.network.pod_routes == PodRoutes::WireGuard,
    };
    let sandboxes = Sandboxes::open(options);
    let sandboxes = sandboxes.map(|all| all.for_pods(machine.node.max_pods));
    sandboxes.map_err(|error| Error::Part("pod network", error.into()))
}

/// Lets processes use io_uring, as the machine's measured configuration asks; seccomp profiles
/// still decide for pods.
fn open_io_uring(settings: &Path) -> Result<(), Error> {
    let path = settings.join(kernel::IO_URING);
    std::fs::write(&path, kernel::IO_URING_ON).map_err(|source| Error::File {
        what: "write",
        path,
        source,
    })?;
    say("io_uring is open to processes, as this machine's configuration asks");
    Ok(())
}

/// The kubelet's port on every address, IPv4 through IPv6 if the kernel has both.
async fn listen(port: u16) -> Result<TcpListener, Error> {
    let fault = |source| Error::File {
        what: "listen on",
        path: PathBuf::from(format!("TCP port {port}")),
        source,
    };
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => Ok(listener),
        Err(_no_ipv6) => TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port)))
            .await
            .map_err(fault),
    }
}

/// The machine's own logs, for the kubelet's server.
fn journal(arguments: &RunArguments) -> Journal {
    Journal::new(LogPaths {
        folder: arguments.machine_logs.clone(),
        ..LogPaths::default()
    })
}

/// Waits for the node's parts to end, for a limited time.
async fn drain_parts(parts: &mut JoinSet<&'static str>) {
    if timeout(DRAIN, async { while parts.join_next().await.is_some() {} })
        .await
        .is_err()
    {
        tracing::warn!("the kubelet did not stop in time; going on without it");
    }
}

/// TLS of the kubelet's API: the current serving certificate, and only callers from the cluster's
/// roots.
fn server_tls(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let fault = |error: rustls::Error| Error::Part("kubelet's TLS", error.into());
    let callers = CurrentClients::new(identity.roots.clone(), Strangers::Anonymous)
        .map_err(|error| Error::Part("kubelet's TLS", error.into()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(fault)?
        .with_client_cert_verifier(Arc::new(callers))
        .with_cert_resolver(identity.serving.clone());
    Ok(Arc::new(config))
}

fn engine(
    arguments: &RunArguments,
    machine: &MachineConfig,
    on_machine: bool,
    view: &View,
) -> Options {
    let view = view.clone();
    let cluster = ClusterAddresses::new(move |address| view.now().is_in_cluster(address));
    Options {
        socket: arguments.containerd.clone(),
        state: arguments.containerd_root.clone(),
        fifos: if on_machine {
            specification::FOLDER.into()
        } else {
            arguments.run.join("io")
        },
        logs: arguments.pod_logs.clone(),
        registries: registries(&machine.registries).outside_of(&cluster),
        // On a host containerd finds the shims by its own configuration.
        programs: on_machine.then(|| Programs {
            shim: programs::SHIM.into(),
            runtime: programs::RUNTIME.into(),
        }),
        archives: vec![PathBuf::from(ARCHIVES), arguments.data.join("images")],
    }
}

/// The configuration's registries, in the engine's form.
fn registries(said: &config_model::registry::Registries) -> Registries {
    let roots = |ca: &[Vec<u8>]| {
        ca.iter()
            .map(|der| CertificateDer::from(der.clone()))
            .collect()
    };
    // Token services use https, whose default port is 443.
    let with_port = |host: &HostPort| {
        HostPort {
            port: host.port.or(Some(443)),
            ..host.clone()
        }
        .to_string()
    };
    let list = said.list.iter().map(|registry| Registry {
        host: registry.host.to_string(),
        mirrors: registry.mirrors.iter().map(ToString::to_string).collect(),
        mirrors_only: registry.mirrors_only,
        insecure: registry.insecure,
        roots: roots(&registry.ca),
        credential: registry.credential.clone(),
        token_hosts: registry.token_hosts.iter().map(with_port).collect(),
    });
    Registries::new(list.collect(), &said.default, roots(&said.ca))
}

/// Upstream's thresholds where the configuration says nothing else.
fn thresholds(said: &Eviction) -> Thresholds {
    let least = |left| match left {
        Left::Amount(amount) => Least::Amount(amount),
        Left::Percent(percent) => Least::Percent(percent),
    };
    let mut all = Thresholds {
        max_pod_grace: said.max_pod_grace,
        transition: said.transition,
        ..Thresholds::default()
    };
    for one in &said.thresholds {
        let Some(signal) = Signal::named(one.signal) else {
            continue;
        };
        let value = least(one.value);
        // Upstream's word for none.
        let none = value == Least::Percent(0);
        match one.grace {
            None if none => drop(all.hard.remove(&signal)),
            None => drop(all.hard.insert(signal, value)),
            Some(_) if none => {}
            Some(grace) => {
                let soft = Soft {
                    least: value,
                    grace,
                };
                all.soft.insert(signal, soft);
            }
        }
    }
    let reclaim = said.minimum_reclaim.iter();
    let reclaim = reclaim.filter_map(|(name, left)| Some((Signal::named(name)?, least(*left))));
    all.reclaim = reclaim.collect();
    all
}

fn config(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    node: &Identified,
) -> Result<Config, Error> {
    let name = &node.identity.node;
    let reserved = &machine.node.reserved;
    let natural = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(Config {
        node_name: name.clone(),
        addresses: node.addresses.clone(),
        port: arguments.kubelet_port,
        machine: Machine {
            data: arguments.kubelet_data.clone(),
            run: arguments.run.join("kubelet"),
            logs: arguments.pod_logs.clone(),
            host_paths: machine.node.host_paths.clone(),
            privileged: machine.node.privileged,
            pids: machine.node.pids_per_container,
            unsafe_sysctls: machine.node.unsafe_sysctls.clone(),
            resolv_conf: settings::RESOLV_CONF.into(),
            hosts: Path::new("/etc/hosts").to_owned(),
        },
        parallel_pulls: machine.node.max_parallel_image_pulls,
        owns_machine: node.on_machine,
        max_pods: machine.node.max_pods,
        reserved_memory: natural(reserved.memory.ceil_units()),
        reserved_cpu_millis: natural(reserved.cpu.ceil_milli()),
        reserved_storage: natural(reserved.ephemeral_storage.ceil_units()),
        thresholds: thresholds(&machine.node.eviction),
        shutdown: machine.node.shutdown.clone(),
        os_image: image.os_image(),
        notices: node.clock.notices(),
        cluster: Some(node.names.view()),
        static_pods: settings::static_pods(machine, name)?,
        pod_routes: machine.network.pod_routes == PodRoutes::Plain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_kubelet::ImageMarks;
    use config_model::eviction::SIGNALS;
    use config_model::{Document, parse};
    use std::collections::BTreeMap;

    fn thresholds_of(table: &str) -> Thresholds {
        let pin = "7d2f0a9d5be0a2b7c1a9d4f1f0c3d6e9b2a5c8f1e4d7c0b3a6f9e2d5c8b1a4f7";
        let text = format!(
            "version = 1\n[master]\nendpoints = [\"https://192.0.2.1:6443\"]\nca_pins = [\"sha256:{pin}\"]\n{table}"
        );
        let Ok(Document::Machine(machine)) = parse(text, "test") else {
            unreachable!("the document is one of a machine")
        };
        thresholds(&machine.node.eviction)
    }

    #[test]
    fn a_machine_has_upstreams_thresholds_but_for_what_its_configuration_says() {
        assert_eq!(thresholds_of(""), Thresholds::default());
        let said = thresholds_of(
            r#"
            [node.eviction]
            max_pod_grace = "1m"
            transition = "30s"
            minimum_reclaim = { "imagefs.available" = "2Gi" }
            threshold = [
                { signal = "memory.available", value = "5%" },
                { signal = "memory.available", value = "512Mi", grace = "1m30s" },
                { signal = "pid.available", value = "0%" },
            ]"#,
        );
        let mut hard = Thresholds::default().hard;
        hard.insert(Signal::MemoryAvailable, Least::Percent(5));
        hard.remove(&Signal::PidAvailable);
        let soft = Soft {
            least: Least::Amount(512 << 20),
            grace: Duration::from_secs(90),
        };
        let wanted = Thresholds {
            hard,
            soft: BTreeMap::from([(Signal::MemoryAvailable, soft)]),
            reclaim: BTreeMap::from([(Signal::ImagefsAvailable, Least::Amount(2 << 30))]),
            max_pod_grace: Duration::from_secs(60),
            transition: Duration::from_secs(30),
            images: ImageMarks { high: 85, low: 80 },
        };
        assert_eq!(said, wanted);
    }

    #[test]
    fn the_node_measures_every_signal_of_a_document() {
        assert_eq!(SIGNALS, Signal::CONFIGURED.map(Signal::name));
    }
}
