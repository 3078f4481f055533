//! Certificates of static machines, signed on an admin's approval.

use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::machine::CertificateRef;
use config_kube::{Machine, MachineState};
use jiff::Timestamp;
use master_ca::{
    Authority, Error, IssuedCertificate, StaticKind, StaticRequest, spki_hash, spki_of,
};
use master_client::{ApiError, ListParams};
use master_control::writer::Writer;
use std::time::SystemTime;

/// The text in status and condition of every static machine.
const NOTHING_PROVEN: &str = "static: nothing about image or configuration is proven";

/// Signs an approved request of a static machine; `Ok(None)` where the object isn't one.
pub(super) async fn sign(
    writer: &Writer,
    authority: &Authority,
    object: &CertificateSigningRequest,
) -> Result<Result<Option<IssuedCertificate>, Error>, ApiError> {
    let request = match StaticRequest::from_object(object) {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(Ok(None)),
        Err(error) => return Ok(Err(error)),
    };
    // Read from the API: the admin may have created the Machine a moment ago, before the watch
    // delivers it.
    let params = ListParams::default();
    let machines = writer.client().list::<Machine>(None, &params).await?;
    let own: Vec<&Machine> = machines
        .items
        .iter()
        .filter(|machine| machine.node_name() == request.node())
        .collect();
    let [machine] = own.as_slice() else {
        let why = format!(
            "there are {} Machines for node {}, not one",
            own.len(),
            request.node()
        );
        return Ok(Err(Error::Request(why)));
    };
    let now = SystemTime::now();
    let issued = match authority.issue_static(&request, machine, now) {
        Ok(issued) => issued,
        Err(error) => return Ok(Err(error)),
    };
    if request.kind() == StaticKind::Client {
        record(writer, machine, &issued, timestamp(now)).await?;
    }
    Ok(Ok(Some(issued)))
}

/// Records the client certificate in the Machine's status, before it leaves the master.
async fn record(
    writer: &Writer,
    machine: &Machine,
    issued: &IssuedCertificate,
    now: Timestamp,
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
    let leaf = issued.chain().into_iter().next();
    let spki = leaf.and_then(|leaf| spki_of(&leaf));
    status.node_key = spki.map(|spki| spki_hash(&spki));
    if status.state != MachineState::Untrusted {
        status.state = MachineState::Pending;
    }
    status.message = format!("{NOTHING_PROVEN}; its certificates end at {until}");
    status.set_attested(false, "Static", NOTHING_PROVEN, Time(now));
    let written = writer.update_subresource(&object, "status").await;
    written.map(drop)
}

/// A timestamp, which prints as RFC 3339.
fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}
