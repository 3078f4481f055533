//! The order of the start: configuration, TPM, network, proof, node; the shutdown goes in reverse.

use crate::approach::{Approach, approach};
use crate::attestor::AttestorSocket;
use crate::console::{self, refused, say};
use crate::discovery::Location;
use crate::ending::Ending;
use crate::error::Error;
use crate::machine::{self, ImageDescription};
use crate::state_cluster::StateCluster;
use crate::unproven::{self, Means};
use crate::{
    RunArguments, addresses, approvals, issued, names, node, roots, settings, state_record,
};
use agent_enroll::{Endpoint, Endpoints, Enroller, Identity, Milestone, Prover, Renewer, Settings};
use agent_tpm::Sealing;
use config_errors::chain;
use config_machine::power::Order;
use config_model::MachineConfig;
use config_state::generation::Joined;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Time between two checks for the pins that this machine's master writes.
const PIN_POLL: Duration = Duration::from_millis(250);

/// Runs the agent until it is asked to end, or its master orders the end of the machine; returns
/// that order.
///
/// On a machine, a failure that only another boot can fix (a faulty configuration, no TPM) is
/// printed on the console and the agent stays, so that init neither restarts it nor reboots the
/// machine, neither of which would help. On a host it is an error at once.
pub(crate) async fn run(arguments: RunArguments) -> Result<Option<Order>, Error> {
    let mut ending = Ending::new()?;
    let image = ImageDescription::read(&arguments.image);
    let on_machine = arguments.manage_network.unwrap_or(image.is_some());
    match operate(
        &arguments,
        image.unwrap_or_default(),
        on_machine,
        &mut ending,
    )
    .await
    {
        Err(error) if on_machine && code(&error).is_some() => {
            let code = code(&error).unwrap_or_default();
            refused(
                code,
                &format!(
                    "{}; the machine stays as it is until it is rebooted",
                    chain(&error)
                ),
            );
            ending.signal_came().await;
            Ok(None)
        }
        outcome => outcome,
    }
}

/// The code of a failure that only another boot, or other user-data, can fix.
fn code(error: &Error) -> Option<&'static str> {
    match error {
        Error::NoTpm(_) => Some("NO_TPM"),
        Error::Tpm(agent_tpm::Error::Lacks { .. }) => Some("TPM_LACKS"),
        Error::Tpm(_) => Some("TPM"),
        Error::Configuration(_) | Error::NotForAnAgent(_) => Some("CONFIGURATION"),
        Error::OtherCluster { .. } => Some("OTHER_CLUSTER"),
        Error::ClusterGone(_) => Some("CLUSTER_GONE"),
        Error::OtherJoin { .. } => Some("OTHER_JOIN"),
        Error::Identity(_) => Some("IDENTITY"),
        Error::Runtime(_) | Error::File { .. } | Error::Enroll(_) | Error::Part(..) => None,
    }
}

/// Runs the node with the identity that its user-data holds, or with one that its master gives it.
async fn operate(
    arguments: &RunArguments,
    image: ImageDescription,
    on_machine: bool,
    ending: &mut Ending,
) -> Result<Option<Order>, Error> {
    let machine = settings::load(&arguments.config)?;
    let name = settings::node_name(&machine)?;
    make_folders(arguments)?;
    settings::credentials(arguments, &machine)?;
    tracing::info!(name, image = image.os_image(), "starting");
    match machine.identity.clone() {
        Some(identity) => {
            issued::operate(
                arguments, &machine, &image, name, identity, on_machine, ending,
            )
            .await
        }
        None => operate_admitted(arguments, &machine, &image, name, on_machine, ending).await,
    }
}

/// Runs a node that the master admits, by an attestation or without a TPM, until it is asked to
/// end, or its master orders the end of the machine, which it returns then.
async fn operate_admitted(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    name: String,
    on_machine: bool,
    ending: &mut Ending,
) -> Result<Option<Order>, Error> {
    let mut tasks = JoinSet::new();
    let names = names::begin(arguments, machine, &name, &mut tasks)?;
    let means = unproven::means(arguments, machine).await?;
    let founds = machine.cluster().is_some();
    if let (true, Means::Tpm(prover)) = (founds, &means) {
        // Before the network: the master needs its keys, and sealing needs none.
        serve_attestor(arguments, machine, image, &name, prover, &mut tasks)?;
    }
    // Cancel-safe: the documentation of `approach` says why.
    let Approach { clock, found } = tokio::select! {
        ready = approach(arguments, machine, image, on_machine, &mut tasks) => ready?,
        () = ending.signal_came() => return Ok(None),
    };
    let doubt = found
        .as_ref()
        .map(|location| Arc::clone(&location.doubt))
        .unwrap_or_default();
    // A machine without a TPM is admitted by its master, too, and its state ends with the boot.
    let state = StateCluster::of(arguments, founds, Joined::Admitted);
    // Cancel-safe: a dropped enrolment leaves only a half-open session at the master.
    let (identity, keeper) = tokio::select! {
        enrolled = enroll(arguments, machine, &state, found, name, image, means) => enrolled?,
        () = ending.signal_came() => return Ok(None),
        Some(part) = tasks.join_next() => {
            let part = part.unwrap_or_else(|error| Err(Error::Part("attestor", error.into())));
            return part.map(|()| None);
        }
    };
    state_record::note_admission(&arguments.data, image.svn);
    if founds {
        follow_own_master(arguments, &identity, &mut tasks);
    }
    // Before the first pod: from here on the state is this cluster's.
    state.keep(&identity)?;
    state.spawn(&identity, &mut tasks);
    let addresses = addresses::follow(machine, on_machine, &mut tasks);
    tasks.spawn(async move {
        Err(Error::Part(
            "keeper of the identity",
            keeper.keep().await.into(),
        ))
    });
    let outcome = node::serve(
        arguments,
        machine,
        image,
        node::Identified {
            identity,
            doubt,
            clock,
            addresses,
            names,
            on_machine,
        },
        ending,
        &mut tasks,
    )
    .await;
    tasks.shutdown().await;
    outcome
}

/// On a master's machine: publishes the recovery copy of the state's key, and the pin of the roots
/// for the machine's own master.
fn follow_own_master(
    arguments: &RunArguments,
    identity: &Identity,
    tasks: &mut JoinSet<Result<(), Error>>,
) {
    let (run, data) = (arguments.run.clone(), arguments.data.clone());
    tasks.spawn(async move {
        state_record::publish_recovery_copy(run, data).await;
        // An idle task must not end the agent.
        std::future::pending().await
    });
    let (path, pins) = (arguments.run.join("ca-pin"), identity.pins.clone());
    tasks.spawn(async move { match roots::follow(path, pins).await {} });
}

/// The boots for which the master's keys are sealed; `None` if nothing says which, and then nothing
/// is sealed.
fn sealing(arguments: &RunArguments, image: &ImageDescription) -> Result<Option<Sealing>, Error> {
    if arguments.seal_for_any_boot {
        say(
            "WARNING: `--seal-for-any-boot`: the master's keys are sealed to the TPM alone, and any system on this machine opens them",
        );
        return Ok(Some(Sealing::AnyBoot));
    }
    let Some(partition) = &arguments.approvals else {
        return Ok(None);
    };
    let unlock = approvals::read(image, partition).map_err(|source| Error::File {
        what: "read",
        path: partition.clone(),
        source,
    })?;
    Ok(unlock.map(Sealing::Approved))
}

/// Makes the folders for persistent data and for data of this boot.
fn make_folders(arguments: &RunArguments) -> Result<(), Error> {
    for path in [&arguments.data, &arguments.run] {
        std::fs::create_dir_all(path).map_err(|source| Error::File {
            what: "make",
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Starts the socket through which this machine's master uses the TPM.
fn serve_attestor(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    name: &str,
    prover: &Prover,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<(), Error> {
    let addresses = machine::addresses(machine);
    let claims = machine::claims(name.to_owned(), image, &addresses, machine);
    let attestor = AttestorSocket::bind(
        &arguments.run.join("attestor.sock"),
        prover.clone(),
        claims,
        sealing(arguments, image)?,
    )?;
    tasks.spawn(async move {
        attestor.serve().await;
        Err(Error::Part("attestor", "it should never end".into()))
    });
    Ok(())
}

async fn enroll(
    arguments: &RunArguments,
    machine: &MachineConfig,
    state: &StateCluster,
    found: Option<Location>,
    name: String,
    image: &ImageDescription,
    means: Means,
) -> Result<(Identity, Renewer), Error> {
    let Location {
        endpoints,
        pins,
        doubt,
    } = match (found, settings::master(machine)?) {
        (Some(found), _) => found,
        (None, Some((endpoints, pins))) => Location::new(endpoints, pins),
        (None, None) => own_master(arguments).await?,
    };
    state.bind(&pins)?;
    let addresses = machine::addresses(machine);
    let claims = machine::claims(name, image, &addresses, machine);
    let settings = Settings {
        endpoints,
        pins,
        claims,
    };
    let report = move |milestone: &Milestone<'_>| {
        if matches!(milestone, Milestone::Failed { .. }) {
            doubt.notify_one();
        }
        console::milestone(milestone);
    };
    let report = Arc::new(report);
    let enroller = match means {
        Means::Tpm(prover) => Enroller::new(*prover, settings, report)
            .await
            .map_err(Error::Enroll)?,
        Means::Key(key) => Enroller::without_tpm(key, settings, report),
    };
    enroller.enroll().await.map_err(Error::Enroll)
}

/// This machine's master, after the admin has bootstrapped it and it has written its root's pin.
async fn own_master(arguments: &RunArguments) -> Result<Location, Error> {
    let path = arguments.run.join("ca-pin");
    say("waiting for this machine's master to be bootstrapped (`pratique bootstrap`)");
    let pins = loop {
        match agent_discover::read_pins(&path) {
            Some(pins) => break pins,
            None => sleep(PIN_POLL).await,
        }
    };
    let address = arguments.own_master;
    let endpoints = Endpoint::new(&address.ip().to_string(), address.port())
        .and_then(|endpoint| Endpoints::new(vec![endpoint]))
        .ok_or_else(|| {
            Error::NotForAnAgent(format!("{address} is no address that TLS can name"))
        })?;
    Ok(Location::new(endpoints, pins))
}
