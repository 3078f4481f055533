//! Signs what a person approved under upstream's signers, and records why where it can't.

use crate::issued;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use master_api::{ApiError, Change, Client, Follower, ListParams};
use master_ca::{ApprovedRequest, Authority};
use std::time::SystemTime;

/// Follows the requests. Drop it to stop.
pub(crate) async fn sign_approved(client: &Client, authority: &Authority) {
    let mut follower = Follower::<CertificateSigningRequest>::new(client.clone(), None, ListParams::default());
    loop {
        let objects = match follower.next().await {
            Change::Listed(objects) => objects,
            Change::Set(object) => vec![object],
            Change::Gone(_) => continue,
        };
        for object in objects {
            match sign(client, authority, &object).await {
                Ok(()) => {}
                // It changed meanwhile, and comes again.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(error = %error, request = object.metadata.name, "an approved request is not signed");
                }
            }
        }
    }
}

async fn sign(client: &Client, authority: &Authority, object: &CertificateSigningRequest) -> Result<(), ApiError> {
    let issued = match ApprovedRequest::from_object(object) {
        Ok(None) => match issued::sign(client, authority, object).await? {
            Ok(None) => return Ok(()),
            Ok(Some(issued)) => Ok(issued),
            Err(error) => Err(error),
        },
        Ok(Some(approved)) => authority.issue_approved(&approved, SystemTime::now()),
        Err(error) => Err(error),
    };
    let mut object = object.clone();
    let status = object.status.get_or_insert_default();
    match issued {
        Ok(issued) => status.certificate = Some(ByteString(issued.chain_pem().into_bytes())),
        Err(error) => status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
            type_: "Failed".to_owned(),
            status: "True".to_owned(),
            reason: Some("SignerValidationFailure".to_owned()),
            message: Some(crate::error::chain(&error)),
            last_update_time: Some(crate::request::now()),
            last_transition_time: Some(crate::request::now()),
        }),
    }
    client.update_status(&object).await.map(drop)
}
