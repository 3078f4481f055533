//! `CertificateSubjectRestriction`: nobody becomes an admin by a certificate request.

use super::{Admitted, Operation, Plugin, Request};
use crate::error::ApiError;
use crate::hooks::BoxFuture;
use crate::object::meta_text;
use crate::validate::{Fields, text};
use base64::Engine;
use config_kube::identity::MASTERS_GROUP;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// The signer whose certificates the API believes.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The plugin.
#[derive(Debug)]
pub(super) struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.writes("certificates.k8s.io", "certificatesigningrequests")
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let spec = crate::validate::object(object, "spec");
        let restricted = spec
            .is_some_and(|spec| text(spec, "signerName") == CLIENT_SIGNER && asks_for_masters(text(spec, "request")));
        let text = format!("use of {CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed");
        let answer = if restricted { Err(request.call.forbidden(meta_text(object, "name"), &text)) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }
}

/// Whether a request (PEM, and that in base64) names the admins' group. What can't be read is refused by its signer.
fn asks_for_masters(request: &str) -> bool {
    let engine = base64::engine::general_purpose::STANDARD;
    let Ok(pem) = engine.decode(request) else { return false };
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&pem) else { return false };
    let Ok((_, parsed)) = X509CertificationRequest::from_der(&pem.contents) else { return false };
    let mut groups = parsed.certification_request_info.subject.iter_organization();
    groups.any(|group| group.as_str().is_ok_and(|group| group == MASTERS_GROUP))
}
