//! CertificateSigningRequest objects of admitted nodes: the record of each certificate that was
//! signed.

use crate::policy::policy_of;
use crate::request_queue::revision;
use config_kube::Decides;
use config_kube::identity::{ATTESTATION_USER, NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use config_kube::machine::Admission;
use master_client::{ApiError, Client, DeleteParams, ListParams};
use std::collections::BTreeMap;

/// Label of requests that belong to a Machine: its name.
const MACHINE_LABEL: &str = "pratique.dev/machine";
/// Requests of each signer that are kept for a Machine.
const KEPT: usize = 2;

/// A request that was signed.
#[derive(Debug, Clone)]
pub(crate) struct SignedRequest<'a> {
    pub(crate) machine: &'a str,
    pub(crate) signer: &'static str,
    pub(crate) request: &'a [u8],
    pub(crate) issued: &'a master_ca::IssuedCertificate,
    pub(crate) admission: &'a Admission,
    pub(crate) rule: &'a str,
    pub(crate) seconds: u64,
}

/// Writes the object, its approval and its certificate.
pub(crate) async fn record(client: &Client, signed: &SignedRequest<'_>) -> Result<(), ApiError> {
    let mut object = client.create(&object(signed)).await?;
    let rule = signed.rule;
    let Admission {
        policy,
        request,
        by,
        ..
    } = signed.admission;
    let message = match policy.decides() {
        Decides::Verifier => format!("rule `{rule}` verified the machine's evidence"),
        Decides::Person => format!("rule `{rule}`: request {request} was approved by {by}"),
        Decides::Always | Decides::Never => {
            format!("rule `{rule}` approves every request without a check")
        }
    };
    let condition = condition("Approved", policy_of(*policy).reason(), message);
    object.status = Some(CertificateSigningRequestStatus {
        conditions: Some(vec![condition]),
        certificate: None,
    });
    let mut object = client.update_subresource(&object, "approval").await?;
    object.status.get_or_insert_default().certificate =
        Some(ByteString(signed.issued.chain_pem().into_bytes()));
    client.update_status(&object).await.map(drop)
}

/// A condition that is true as of now.
pub(crate) fn condition(
    kind: &str,
    reason: &str,
    message: String,
) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(now()),
        last_transition_time: Some(now()),
    }
}

/// Writes the certificate into the request that a person approved, if it has none; an empty `name`
/// means there is no request.
pub(crate) async fn answer(
    client: &Client,
    name: &str,
    issued: &master_ca::IssuedCertificate,
) -> Result<(), ApiError> {
    if name.is_empty() {
        return Ok(());
    }
    let Some(mut object) = client
        .get_opt::<CertificateSigningRequest>(None, name)
        .await?
    else {
        return Ok(());
    };
    let status = object.status.get_or_insert_default();
    if status.certificate.is_some() {
        return Ok(());
    }
    status.certificate = Some(ByteString(issued.chain_pem().into_bytes()));
    client.update_status(&object).await.map(drop)
}

fn object(signed: &SignedRequest<'_>) -> CertificateSigningRequest {
    let tail = signed
        .issued
        .serial
        .get(..8)
        .unwrap_or(&signed.issued.serial);
    let (kind, usage) = match signed.signer {
        NODE_SERVING_SIGNER => ("serving", "server auth"),
        _ => ("client", "client auth"),
    };
    let pem = master_ca::pem("CERTIFICATE REQUEST", signed.request);
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("{}-{kind}-{tail}", signed.machine)),
            labels: Some(BTreeMap::from([(
                MACHINE_LABEL.to_owned(),
                signed.machine.to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: signed.signer.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), usage.to_owned()]),
            expiration_seconds: i32::try_from(signed.seconds.max(600)).ok(),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// Deletes all but the latest requests of a Machine.
pub(crate) async fn prune(client: &Client, machine: &str) -> Result<(), ApiError> {
    let params = ListParams {
        labels: Some(format!("{MACHINE_LABEL}={machine}")),
        ..ListParams::default()
    };
    let list = client
        .list::<CertificateSigningRequest>(None, &params)
        .await?;
    for signer in [NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER] {
        // Any user who may create requests may set the label: only requests of this service are
        // counted and deleted.
        let written = |object: &&CertificateSigningRequest| {
            object.spec.signer_name == signer
                && object.spec.username.as_deref() == Some(ATTESTATION_USER)
        };
        let mut own: Vec<_> = list.items.iter().filter(written).collect();
        own.sort_by_key(|object| std::cmp::Reverse(revision(object)));
        for old in own.into_iter().skip(KEPT) {
            let name = old.metadata.name.as_deref().unwrap_or_default();
            match client
                .delete::<CertificateSigningRequest>(None, name, &DeleteParams::default())
                .await
            {
                Err(error) if !error.is_not_found() => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

pub(crate) fn now() -> Time {
    Time(jiff::Timestamp::now())
}
