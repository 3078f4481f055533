//! Builds everything, then starts it; at the end the listener drains first.

use crate::clients::{ClientDenyList, Clients, Sessions};
use crate::dialer::Dialer;
use crate::discovery::{self, Publisher};
use crate::rotation::{Paths, RotationPaths, Rotator};
use crate::serving::{Serving, keep_current};
use crate::settings::{self, Settings};
use crate::{Error, RunArgs, api, kubeconfig, served};
use config_attest::release::ReleaseKey;
use config_certificates::EkIssuer;
use config_kube::identity::{CONTROLLER_MANAGER_USER, SCHEDULER_USER, USAGE_USER};
use config_model::format::Endpoint;
use config_tpm::Digest;
use master_admission::services::Ranges;
use master_api::{ApiServer, Options};
use master_attest::{
    AttestationConfig, AttestationService, BootstrapConfig, Configurations, StateGeneration,
};
use master_ca::attestor::Attestor;
use master_ca::{AttestorKeeper, Authority, FileKeeper, Keeper};
use master_client::{ApiError, BoxFuture, ObjectEvent, UserInfo};
use master_control::Controllers;
use master_control::options::{Allocations, Discovery, Signing};
use master_control::pod_range::PodRange;
use master_journal::VerdictLog;
use master_listener::ServeOptions;
use master_schema::validate::net::Range;
use master_store::{EmbeddedStore, StoreError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long the master waits for the agent's socket: at boot both start together.
const ATTESTOR_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks at the services that every cluster has (upstream's).
const SERVICES_PERIOD: Duration = Duration::from_secs(10);
/// Open files at most: connections (see `ServeOptions`), twice, as each may go on to a node.
const DESCRIPTORS: u64 = 65_536;
/// The part of them for the store, the keys, the logs and the runtime itself.
const OWN_DESCRIPTORS: u64 = 256;
/// The configurations that the machine may boot with, in the data folder: init reads them before it
/// starts a service.
const CONFIGURATIONS: &str = "configurations";
/// The file in which the agent of a master machine expects the root's pin.
const CA_PIN: &str = "/run/pratique/ca-pin";

/// Runs the master until SIGTERM or SIGINT.
pub(crate) async fn run(args: RunArgs) -> Result<(), Error> {
    let settings = settings::load(&args.config)?;
    let admin_key = settings.cluster.admin_key.map(|pin| Digest(pin.0));
    check_admin(args.state_of.as_deref(), admin_key)?;
    let descriptors = raise_open_files_limit();
    make_folder(&args.data)?;
    let attestor = args.attestor.as_deref().map(Attestor::new);
    let authority = open_authority(&args, &settings, attestor.clone()).await?;
    let options = api_options(&settings, &authority).await?;
    let listener = bind(args.listen).await?;
    let listen = listener.local_addr().unwrap_or(args.listen);
    let (api, store_failed) = open_api(&args, &settings, listen, options).await?;
    // Before the bootstrap's paths are hung in: they let nothing else pass.
    api.prepare().await.map_err(Error::Prepare)?;
    let now = SystemTime::now();
    let serving =
        Serving::new(&authority, settings.api_names.clone(), now).map_err(Error::Serving)?;
    let serving = Arc::new(serving);
    let log = open_log(&args, authority.clone()).await?;
    let config = attestation_config(&args, &settings, &serving, attestor, log)?;
    let client = api.client(AttestationService::user());
    let service =
        AttestationService::new(&config, authority.clone(), client).map_err(Error::Attest)?;
    let rotator = Arc::new(Rotator::new(
        authority.clone(),
        serving.clone(),
        service.clone(),
        api.client(UserInfo::admin("system:apiserver")),
        admin_key,
    ));
    let own = discovery::endpoints(
        &settings.cluster.api_names,
        &ranges(&settings, listen).advertise,
        listen.port(),
    );
    let controllers = controllers(&settings, &api, &authority, &rotator, own);
    api.set_extensions(Arc::new(Paths {
        attestation: service.paths(),
        rotation: Arc::new(RotationPaths(rotator)),
        controllers: controllers.figures(),
    }));
    let clients = guard(&settings, &api, &authority, &service, listen.ip())?;
    if settings.cluster.admin_key.is_none() {
        write_admin_kubeconfig(&args, &settings, &authority, listen)?;
    }
    let limits = serve_options(descriptors);
    let parts = Parts {
        limits,
        api,
        authority,
        serving,
        service,
        scheduling: settings.scheduling(),
        controllers,
        listener,
        clients,
    };
    // Cancel-safe: either outcome ends the process, and what is dropped is not needed again.
    tokio::select! {
        outcome = operate(parts) => outcome,
        why = store_failed => {
            // Nothing is drained: every answer that depends on the store might be wrong.
            Err(Error::StoreFailed(why))
        }
    }
}

/// Gives the API its deny list and its way to nodes; returns which client certificates it accepts.
fn guard(
    settings: &Settings,
    api: &ApiServer,
    authority: &Arc<Authority>,
    service: &AttestationService,
    listen: IpAddr,
) -> Result<Arc<Clients>, Error> {
    let clients = Arc::new(api::clients(settings, authority.clone())?);
    api.set_deny_list(Arc::new(ClientDenyList {
        authority: authority.clone(),
        clients: clients.clone(),
        machines: service.deny_list(),
    }));
    api.set_node_dialer(Arc::new(Dialer::new(
        authority.clone(),
        service.deny_list(),
        listen,
    )?));
    Ok(clients)
}

/// Bound before it is announced, since the port may be chosen by the kernel; early connections wait
/// in the backlog.
async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

/// Writes the admin's kubeconfig of a development master, whose configuration names no admin key.
fn write_admin_kubeconfig(
    args: &RunArgs,
    settings: &Settings,
    authority: &Authority,
    listen: SocketAddr,
) -> Result<(), Error> {
    let path = args
        .admin_kubeconfig
        .clone()
        .unwrap_or_else(|| args.data.join("admin.kubeconfig"));
    kubeconfig::write(&path, authority, settings.cluster.name.as_str(), listen)?;
    tracing::warn!(
        kubeconfig = %path.display(),
        "DEVELOPMENT: the configuration names no admin_key, so anyone who reads this file is the admin"
    );
    Ok(())
}

/// Raises the soft limit of open files and returns it: each connection takes a descriptor, and the
/// usual soft limit of 1,024 is there for old programs alone.
fn raise_open_files_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most.min(DESCRIPTORS), most));
    if let Err(error) = raised {
        tracing::warn!(
            error = crate::chain(&error),
            "the limit of open files could not be raised"
        );
    }
    getrlimit(Resource::RLIMIT_NOFILE).map_or(OWN_DESCRIPTORS, |(now, _)| now)
}

/// How many connections the listener may hold, so that a flood takes no descriptor that the store
/// needs.
fn serve_options(descriptors: u64) -> ServeOptions {
    let connections =
        usize::try_from(descriptors.saturating_sub(OWN_DESCRIPTORS) / 2).unwrap_or(usize::MAX);
    let options = ServeOptions::default();
    ServeOptions {
        connections: options.connections.within(connections),
        ..options
    }
}

struct Parts {
    limits: ServeOptions,
    api: ApiServer,
    authority: Arc<Authority>,
    serving: Arc<Serving>,
    service: Arc<AttestationService>,
    scheduling: master_schedule::Options,
    controllers: Controllers,
    listener: TcpListener,
    clients: Arc<Clients>,
}

/// Starts the parts in order and ends them in order.
async fn operate(parts: Parts) -> Result<(), Error> {
    let Parts {
        limits,
        api,
        authority,
        serving,
        service,
        scheduling,
        controllers,
        listener,
        clients,
    } = parts;
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(keep_current(authority.clone(), serving.clone()));
    for part in control_plane(&api, &service, scheduling, controllers) {
        let service = service.clone();
        tasks.spawn(async move {
            service.bootstrapped().await;
            part.await;
        });
    }
    if service.is_bootstrapped() {
        // The deny list must be whole before the first request.
        service.ready().await;
    } else {
        tracing::info!(
            "not bootstrapped: only health and bootstrap are served; run `pratique bootstrap`"
        );
    }
    let mut tls = master_listener::tls_config(serving, clients).map_err(Error::ApiTls)?;
    tls.session_storage = Arc::new(Sessions::new(authority.clone()));
    let tls = Arc::new(tls);
    tracing::info!(address = %listener.local_addr().map(|a| a.to_string()).unwrap_or_default(), pins = authority.pins().join(" "), "serving");
    let mut server = tokio::spawn(master_listener::serve(
        listener,
        tls,
        Arc::new(api),
        limits,
        shutdown.clone(),
    ));
    // Cancel-safe: each arm waits for one event and ends the wait for good.
    let outcome = tokio::select! {
        () = asked_to_end() => Ok(()),
        broken = tasks.join_next() => broken.unwrap_or(Ok(())).map_err(Error::Task),
        ended = &mut server => return ended.map_err(Error::Task),
    };
    tracing::info!("shutting down: waiting for open requests");
    shutdown.cancel();
    server.await.map_err(Error::Task)?;
    tasks.shutdown().await;
    outcome
}

/// The parts of the control plane, to begin after the bootstrap. Each wants a task of its own: in
/// one task, a change that one of them follows would have all of them look at everything that they
/// follow.
fn control_plane(
    api: &ApiServer,
    service: &Arc<AttestationService>,
    scheduling: master_schedule::Options,
    controllers: Controllers,
) -> [BoxFuture<'static, ()>; 5] {
    let client = |user| api.client(UserInfo::authenticated(user, Vec::<String>::new()));
    let (attestation, usage) = (service.clone(), api.usage().clone());
    let server = api.clone();
    [
        Box::pin(async move { server.keep_services(SERVICES_PERIOD).await }),
        Box::pin(async move { Box::pin(attestation.run()).await }),
        Box::pin(master_usage::run(
            client(USAGE_USER),
            usage,
            master_usage::Options::default(),
            std::future::pending(),
        )),
        Box::pin(master_schedule::run(
            client(SCHEDULER_USER),
            scheduling,
            std::future::pending(),
        )),
        Box::pin(controllers.run(client(CONTROLLER_MANAGER_USER), std::future::pending())),
    ]
}

/// The API server as the one who repairs the allocations of services.
#[derive(Debug)]
struct Repairs(ApiServer);

impl Allocations for Repairs {
    fn repair(&self) -> BoxFuture<'_, Result<Vec<ObjectEvent>, ApiError>> {
        Box::pin(self.0.repair_allocations())
    }
}

/// The controllers, with the cluster's keys for those that sign and publish, and the ranges of
/// which nodes get parts.
fn controllers(
    settings: &Settings,
    api: &ApiServer,
    authority: &Arc<Authority>,
    rotator: &Rotator,
    endpoints: Vec<Endpoint>,
) -> Controllers {
    let signing = Signing {
        authority: authority.clone(),
        api_names: settings.api_names.clone(),
        decide: master_attest::ruling,
    };
    let discovery = Discovery {
        authority: authority.clone(),
        endpoints,
        publish: Arc::new(Publisher),
    };
    let part = |one: &config_model::pod_range::PodRange| {
        let range = Range::new(one.range.address, one.range.prefix)?;
        PodRange::new(range, one.node_prefix)
    };
    let ranges = settings.cluster.pod_ranges.iter();
    let allocations = Repairs(api.clone());
    let options = master_control::Options {
        allocations: Some(Arc::new(allocations)),
        pod_ranges: ranges.filter_map(part).collect(),
        root_ca: Some(rotator.published()),
        signing: Some(signing),
        discovery: Some(discovery),
        ..master_control::Options::default()
    };
    Controllers::of(&master_controllers::all(), options)
}

async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals cannot be received; only SIGKILL ends this process");
        return std::future::pending().await;
    };
    // Cancel-safe: a signal that is missed here is not needed.
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Checks that a state from another board was moved by the configured admin. An attacker can make a
/// state with known keys and have it opened on some board, but not in the name of the admin whose
/// key is in the measured configuration.
fn check_admin(brought_by: Option<&str>, configured: Option<Digest>) -> Result<(), Error> {
    let configured = configured.map(|digest| digest.to_text());
    match brought_by {
        Some(brought_by) if configured.as_deref() != Some(brought_by) => Err(Error::OtherAdmin {
            brought_by: brought_by.to_owned(),
            configured: configured.unwrap_or_else(|| "none".to_owned()),
        }),
        Some(_) | None => Ok(()),
    }
}

async fn open_authority(
    args: &RunArgs,
    settings: &Settings,
    attestor: Option<Attestor>,
) -> Result<Arc<Authority>, Error> {
    let (folder, cluster) = (args.data.join("ca"), settings.cluster.name.to_string());
    let (recovered, state_key) = (args.recovered_keys.clone(), args.state_recovery.clone());
    let open = move || {
        let sealed = attestor.is_some();
        let keeper: Arc<dyn Keeper> = if let Some(attestor) = attestor {
            attestor.wait(ATTESTOR_TIMEOUT).map_err(Error::Attestor)?;
            Arc::new(AttestorKeeper::new(attestor))
        } else {
            tracing::warn!(
                "INSECURE: no --attestor, so the cluster's private keys lie in plain files under {}; anyone who reads them is \
                 the cluster",
                folder.display()
            );
            Arc::new(FileKeeper)
        };
        let now = SystemTime::now();
        if let Some(recovered) = recovered
            && master_ca::restore(&folder, &cluster, keeper.as_ref(), &recovered, now)
                .map_err(Error::Authority)?
        {
            tracing::warn!(
                "the cluster's keys came with the state from another board; they are sealed to this one's TPM"
            );
        }
        let opened = Authority::open(&folder, &cluster, keeper, now).map_err(Error::Authority)?;
        match opened.kept_from() {
            Some(floor) => {
                tracing::info!(
                    floor,
                    "the cluster's keys open for images of the release key from this version on"
                );
            }
            None if sealed => tracing::warn!(
                "INSECURE: the agent seals for any boot, so any system on this machine opens the cluster's keys"
            ),
            None => {}
        }
        Ok(match state_key {
            Some(file) => opened.with_state_key(file),
            None => opened,
        })
    };
    tokio::task::spawn_blocking(open)
        .await
        .map_err(Error::Task)?
        .map(Arc::new)
}

/// The API server's options; the key that signs tokens may be in the TPM.
async fn api_options(settings: &Settings, authority: &Arc<Authority>) -> Result<Options, Error> {
    let (wanted, signer) = (settings.clone(), authority.clone());
    tokio::task::spawn_blocking(move || api::options(&wanted, &signer))
        .await
        .map_err(Error::Task)?
}

/// The log of verdicts; its key may be in the TPM.
async fn open_log(args: &RunArgs, authority: Arc<Authority>) -> Result<Arc<VerdictLog>, Error> {
    let folder = args.data.join("verdicts");
    let open = move || {
        let signer = authority
            .log_signer(SystemTime::now())
            .map_err(Error::Authority)?;
        VerdictLog::open(&folder, signer).map_err(Error::Journal)
    };
    tokio::task::spawn_blocking(open)
        .await
        .map_err(Error::Task)?
        .map(Arc::new)
}

/// The API server over its store, which was not set back, and what is ready once the store can't
/// write any more.
async fn open_api(
    args: &RunArgs,
    settings: &Settings,
    listen: SocketAddr,
    options: Options,
) -> Result<(ApiServer, impl Future<Output = Arc<StoreError>> + use<>), Error> {
    let path = args.data.join("store");
    make_folder(&path)?;
    let store = EmbeddedStore::open(&path).map_err(|source| Error::Store {
        path: path.clone(),
        source,
    })?;
    if let Some(generation) = state_generation(args) {
        served::check(&store, &path, &generation).await?;
    }
    let options = Options {
        ranges: ranges(settings, listen),
        ..options
    };
    let failed = store.failed();
    Ok((ApiServer::new(Arc::new(store), options), failed))
}

/// Where the machine's state names its generation, on a machine that was booted from an image.
fn state_generation(args: &RunArgs) -> Option<StateGeneration> {
    let (file, key) = (&args.state_generation, &args.state_generation_key);
    let (file, key) = (file.clone()?, key.clone()?);
    Some(StateGeneration { file, key })
}

/// The ranges for services, and the addresses at which pods reach this server: the machine's own,
/// or the one on which it listens.
fn ranges(settings: &Settings, listen: SocketAddr) -> Ranges {
    let mut addresses: Vec<IpAddr> = settings
        .addresses
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect();
    if addresses.is_empty() {
        // Only this machine could use these two: as upstream, its own address is published instead.
        let own = listen.ip().is_unspecified() || listen.ip().is_loopback();
        addresses.extend(if own {
            outbound_address(listen.ip())
        } else {
            Some(listen.ip())
        });
        // There it listens for both families.
        if listen.ip() == Ipv6Addr::UNSPECIFIED {
            addresses.extend(outbound_address(Ipv4Addr::UNSPECIFIED.into()));
        }
    }
    let services = settings.cluster.service_cidrs.iter();
    Ranges {
        services: services
            .filter_map(|cidr| Range::new(cidr.address, cidr.prefix))
            .collect(),
        node_ports: settings.cluster.node_ports.clone(),
        advertise: addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, listen.port()))
            .collect(),
    }
}

/// The address that this machine has towards others, if it has a route there. Nothing is sent for
/// it.
fn outbound_address(like: IpAddr) -> Option<IpAddr> {
    // Addresses for documentation, which no machine has (RFC 5737, RFC 3849).
    let (any, there) = if like.is_ipv4() {
        ("0.0.0.0:0", "192.0.2.1:9")
    } else {
        ("[::]:0", "[2001:db8::1]:9")
    };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(there).ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

fn attestation_config(
    args: &RunArgs,
    settings: &Settings,
    serving: &Serving,
    attestor: Option<Attestor>,
    log: Arc<VerdictLog>,
) -> Result<AttestationConfig, Error> {
    let cluster = &settings.cluster;
    let release_keys = cluster.release_keys.iter().map(|key| {
        let pem = master_ca::pem("PUBLIC KEY", &key.public_key.spki_der);
        ReleaseKey::from_pem(key.name.as_str(), &pem).map_err(|e| Error::Verifier(e.to_string()))
    });
    let ek_issuers = cluster.ek_issuers.iter().map(|issuer| {
        EkIssuer::from_der(issuer.name.as_str(), issuer.certificates.clone())
            .map_err(|e| Error::Verifier(e.to_string()))
    });
    let ca_pin = args
        .ca_pin
        .clone()
        .or_else(|| args.attestor.as_ref().map(|_| PathBuf::from(CA_PIN)));
    let generation = state_generation(args);
    let list = args.data.join(CONFIGURATIONS);
    let open = |event| Configurations::open(list, event, generation.as_ref());
    let configurations = args.config_event.as_deref().map(open).transpose();
    let configurations = configurations.map_err(Error::Attest)?;
    Ok(AttestationConfig {
        cluster: cluster.name.to_string(),
        api_names: settings.api_names.clone(),
        release_keys: release_keys.collect::<Result<_, _>>()?,
        ek_issuers: ek_issuers.collect::<Result<_, _>>()?,
        policy: cluster.policy.clone(),
        server_spki: serving.spki_hash(),
        bootstrap: BootstrapConfig {
            admin_key: cluster.admin_key.map(|pin| Digest(pin.0)),
            record: args.data.join("bootstrap.json"),
            ca_pin,
            attestor,
            name: settings.name.clone().unwrap_or_default(),
            addresses: settings.addresses.clone(),
            configurations,
        },
        exchanges: usize::try_from(cluster.api.limits.exchanges).unwrap_or(usize::MAX),
        log,
    })
}

pub(crate) fn make_folder(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| Error::File {
            what: "make",
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::check_admin;
    use config_tpm::Digest;

    #[test]
    fn a_state_from_another_board_is_served_only_for_its_admin() {
        let (own, other) = (Digest::of(b"own"), Digest::of(b"other"));
        assert!(check_admin(None, None).is_ok() && check_admin(None, Some(own)).is_ok());
        let text = own.to_text();
        assert!(check_admin(Some(&text), Some(own)).is_ok());
        for configured in [None, Some(other)] {
            let error = check_admin(Some(&text), configured).err();
            let message = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(
                message.contains(&text) && message.contains("user-data"),
                "{message}"
            );
        }
    }
}
