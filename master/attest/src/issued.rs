//! Static machines: their certificates, signed on an admin's approval, and the Nodes that they have for it.

use crate::time::timestamp;
use crate::{node, record};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::machine::CertificateRef;
use config_kube::{Machine, MachineState};
use master_ca::{Authority, Error, Issued, StaticKind, StaticRequest, spki_hash, spki_of};
use master_client::{ApiError, Client, ListParams};
use std::time::SystemTime;

/// The text in status and condition of every static machine.
pub(crate) const NOTHING_PROVEN: &str = "static: nothing about image or configuration is proven";

/// Signs an approved request of a static machine; `Ok(None)` where the object isn't one.
pub(crate) async fn sign(
    client: &Client,
    authority: &Authority,
    object: &CertificateSigningRequest,
) -> Result<Result<Option<Issued>, Error>, ApiError> {
    let asked = match StaticRequest::from_object(object) {
        Ok(Some(asked)) => asked,
        Ok(None) => return Ok(Ok(None)),
        Err(error) => return Ok(Err(error)),
    };
    // From the API, not from the inventory: the admin may have created the Machine a moment ago, before the watch delivers it.
    let machines = client.list::<Machine>(None, &ListParams::default()).await?;
    let own: Vec<&Machine> = machines
        .items
        .iter()
        .filter(|machine| machine.node_name() == asked.node())
        .collect();
    let [machine] = own.as_slice() else {
        let why = format!(
            "there are {} Machines for node {}, not one",
            own.len(),
            asked.node()
        );
        return Ok(Err(Error::Request(why)));
    };
    let now = SystemTime::now();
    let issued = match authority.issue_static(&asked, machine, now) {
        Ok(issued) => issued,
        Err(error) => return Ok(Err(error)),
    };
    if asked.kind() == StaticKind::Client {
        record(client, machine, &issued, now).await?;
    }
    Ok(Ok(Some(issued)))
}

/// Records the client certificate in the Machine, before it leaves the master.
async fn record(
    client: &Client,
    machine: &Machine,
    issued: &Issued,
    now: SystemTime,
) -> Result<(), ApiError> {
    let mut object = machine.clone();
    let status = object.status.get_or_insert_default();
    let until = timestamp(issued.not_after);
    status.certificate = Some(CertificateRef {
        serial: issued.serial.clone(),
        not_after: until.to_string(),
    });
    status.bound_ek = object.spec.ek.hashes.first().cloned();
    // Certificates over any earlier key are denied from now on.
    status.node_key = issued
        .chain()
        .first()
        .and_then(|leaf| spki_of(leaf))
        .map(|spki| spki_hash(&spki));
    if status.state != MachineState::Untrusted {
        status.state = MachineState::Pending;
    }
    status.message = format!("{NOTHING_PROVEN}; its certificates end at {until}");
    record::condition(status, false, "Static", NOTHING_PROVEN, now);
    client.update_status(&object).await.map(drop)
}

/// Makes the Node of a static machine that has a certificate and no Node yet.
pub(crate) async fn ensure_node(client: &Client, machine: &Machine) -> Result<(), ApiError> {
    let holds = machine
        .status
        .as_ref()
        .is_some_and(|status| status.certificate.is_some());
    if !machine.spec.is_static || machine.spec.retired || !holds {
        return Ok(());
    }
    if client
        .get_opt::<Node>(None, machine.node_name())
        .await?
        .is_some()
    {
        return Ok(());
    }
    match client.create(&node::fresh_static(machine)).await {
        Err(error) if !error.is_already_exists() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
