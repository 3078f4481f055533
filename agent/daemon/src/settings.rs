//! Converts the checked configuration into settings of the agent's components.

use crate::RunArguments;
use crate::console::say;
use crate::error::Error;
use agent_enroll::{Endpoint, Endpoints, Pin};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_model::image::METADATA_SERVICES;
use config_model::{Document, MachineConfig};
use config_protocol::wire::ConfigEvent;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The machine's own resolver file.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Most bytes of the configuration that are read; one more than allowed shows that it is too large.
const CONFIG_LIMIT: u64 = config_model::defaults::MAX_DOCUMENT_BYTES as u64 + 1;

/// Reads and checks the configuration; every fault is printed with its place.
pub(crate) fn load(path: &Path) -> Result<MachineConfig, Error> {
    let fault = |source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(fault)?
        .take(CONFIG_LIMIT)
        .read_to_end(&mut bytes)
        .map_err(fault)?;
    let document = config_model::parse(&bytes, &path.display().to_string()).map_err(|faults| {
        for line in faults.lines() {
            say(&format!("REFUSED CONFIGURATION: {line}"));
        }
        Error::Configuration(path.to_owned())
    })?;
    match document {
        Document::Machine(machine) => {
            // The node's name may come later; the manifests are looked at before the machine joins.
            static_pods(
                &machine,
                machine.name.as_ref().map_or("node", |name| name.as_str()),
            )?;
            Ok(*machine)
        }
        other @ (Document::Cluster(_) | Document::Image(_) | Document::Policy(_)) => {
            Err(Error::NotForAnAgent(format!(
                "{} is of kind `{}`, an agent needs `machine`",
                path.display(),
                other.kind()
            )))
        }
    }
}

/// The static pods of a machine.
pub(crate) fn static_pods(machine: &MachineConfig, node: &str) -> Result<Vec<Pod>, Error> {
    let read = |(index, manifest): (usize, &String)| {
        config_static_pods::read(manifest, node)
            .map_err(|fault| Error::NotForAnAgent(format!("node.static_pods[{index}]: {fault}")))
    };
    machine
        .node
        .static_pods
        .iter()
        .enumerate()
        .map(read)
        .collect()
}

/// Refuses registry credentials from a metadata service that pods can reach, and warns about all
/// others.
pub(crate) fn credentials(arguments: &RunArguments, machine: &MachineConfig) -> Result<(), Error> {
    if machine.registries.has_credentials() {
        let instead = "give pods imagePullSecrets, or provide the user-data by another source, and treat these credentials as leaked";
        not_from_a_service(arguments, "credentials of registries", instead)?;
        say(
            "WARNING: credentials of registries are in this machine's user-data: anyone who reads it can use them",
        );
    }
    Ok(())
}

/// Refuses a secret in user-data from a metadata service, which every pod of the machine can read.
pub(crate) fn not_from_a_service(
    arguments: &RunArguments,
    what: &str,
    instead: &str,
) -> Result<(), Error> {
    let record = arguments
        .config_event
        .clone()
        .unwrap_or_else(|| arguments.run.join("config-event.json"));
    let label = match std::fs::read(&record) {
        Ok(bytes) => serde_json::from_slice::<ConfigEvent>(&bytes)
            .map(|event| event.label)
            .ok(),
        // A host without init has no record, and no metadata service.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(_) => None,
    };
    match label {
        Some(label) if !METADATA_SERVICES.contains(&label.as_str()) => Ok(()),
        label => {
            let label =
                label.unwrap_or_else(|| format!("unknown, {} is unreadable", record.display()));
            Err(Error::NotForAnAgent(format!(
                "{what} came from a metadata service ({label}): {instead}"
            )))
        }
    }
}

/// The master's address, if the configuration has it.
pub(crate) fn master(machine: &MachineConfig) -> Result<Option<(Endpoints, Vec<Pin>)>, Error> {
    let Some(location) = machine.master() else {
        return Ok(None);
    };
    let endpoints = Endpoints::new(
        location
            .endpoints
            .iter()
            .map(endpoint)
            .collect::<Result<_, _>>()?,
    )
    .ok_or_else(|| Error::NotForAnAgent("`master.endpoints` is empty".to_owned()))?;
    Ok(Some((
        endpoints,
        location.ca_pins.iter().map(|pin| pin.0).collect(),
    )))
}

/// An address of a document in the form for TLS.
pub(crate) fn endpoint(address: &config_model::format::Endpoint) -> Result<Endpoint, Error> {
    Endpoint::new(&address.host.to_string(), address.port)
        .ok_or_else(|| Error::NotForAnAgent(format!("{address} is no address that TLS can name")))
}

/// The node's name: the configured one, else the host's if that is meaningful. A machine that joins
/// may have none: its name is derived from its endorsement key, or comes from the master.
pub(crate) fn node_name(machine: &MachineConfig) -> Result<String, Error> {
    if let Some(name) = &machine.name {
        return Ok(name.as_str().to_owned());
    }
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let name = host
        .parse::<config_model::format::NodeName>()
        .ok()
        .filter(|_| host != "localhost");
    if name.is_none() && machine.cluster().is_none() {
        return Ok(String::new());
    }
    name.map(|name| name.as_str().to_owned()).ok_or_else(|| {
        Error::NotForAnAgent(
            "the first master has no name: add `name = \"…\"` under `[machine]`".to_owned(),
        )
    })
}
