//! `CertificateSubjectRestriction`, `CertificateApproval`, `CertificateSigning`: a certificate
//! request cannot make its author an admin, and only callers with the right for the signer approve
//! and sign.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use crate::plugin_services::PluginServices;
use base64::Engine;
use config_kube::identity::MASTERS_GROUP;
use master_auth::Authorizer;
use master_client::BoxFuture;
use master_rbac::Resource;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::Subresource;
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;
use std::sync::Arc;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// The signer of client certificates that the API accepts.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The plugin.
#[derive(Debug)]
pub(crate) struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create
            && request.writes("certificates.k8s.io", "certificatesigningrequests")
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let spec = master_schema::validate::object(object, "spec");
        let restricted = spec.is_some_and(|spec| {
            text(spec, "signerName") == CLIENT_SIGNER && asks_for_masters(text(spec, "request"))
        });
        let text =
            format!("use of {CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed");
        let answer = if restricted {
            Err(request.forbidden(meta_text(object, "name"), &text))
        } else {
            Ok(())
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A plugin: a caller that decides on a request through a subresource needs a right for the
/// request's signer.
#[derive(Debug)]
pub(crate) struct Decision {
    authorizer: Arc<Authorizer>,
    subresource: Subresource,
    verb: &'static str,
}

/// `CertificateApproval`: approval and denial.
pub(crate) fn approval(parts: &PluginServices) -> Decision {
    Decision {
        authorizer: parts.authorizer.clone(),
        subresource: Subresource::Approval,
        verb: "approve",
    }
}

/// `CertificateSigning`: issuing the certificate, or failing the request.
pub(crate) fn signing(parts: &PluginServices) -> Decision {
    Decision {
        authorizer: parts.authorizer.clone(),
        subresource: Subresource::Status,
        verb: "sign",
    }
}

impl Plugin for Decision {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.is("certificates.k8s.io", "certificatesigningrequests")
            && request.subresource == Some(self.subresource)
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        new: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            // A caller that changes nothing that the signer writes needs no right for the signer.
            let unchanged =
                self.subresource == Subresource::Status && signed(Some(new)) == signed(request.old);
            if unchanged {
                Ok(())
            } else {
                self.allowed(request, new).await
            }
        })
    }
}

/// The fields that only the signer writes: the certificate and the condition `Failed`.
fn signed(request: Option<&Fields>) -> (Value, Vec<Value>) {
    let status = request
        .and_then(|request| object(request, "status"))
        .cloned()
        .unwrap_or_default();
    let failed = items(&status, "conditions")
        .iter()
        .filter(|condition| condition["type"] == "Failed")
        .cloned();
    (get(&status, "certificate").clone(), failed.collect())
}

impl Decision {
    /// Refuses a caller without the right for a request's signer: for its name, or for all names of
    /// its domain.
    async fn allowed(&self, request: &Request<'_>, fields: &Fields) -> Result<(), ApiError> {
        let signer = object(request.old.unwrap_or(fields), "spec")
            .map_or("", |spec| text(spec, "signerName"));
        let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
        for name in [signer.to_owned(), format!("{domain}/*")] {
            let resource = Resource {
                group: "certificates.k8s.io",
                resource: "signers",
                name: &name,
                ..Resource::default()
            };
            if self
                .authorizer
                .may(request.user, self.verb, resource)
                .await?
            {
                return Ok(());
            }
        }
        let verb = self.verb;
        let text = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(request.forbidden(request.name, &text))
    }
}

/// The subject of a request, as far as it is text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Common names.
    pub(crate) users: Vec<String>,
    /// Organizations.
    pub(crate) groups: Vec<String>,
}

impl Subject {
    /// Parses a request: base64 of PEM.
    pub(crate) fn of_request(request: &str) -> Option<Self> {
        let pem = base64::engine::general_purpose::STANDARD
            .decode(request)
            .ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        let subject = &parsed.certification_request_info.subject;
        let text =
            |value: &AttributeTypeAndValue<'_>| value.as_str().unwrap_or_default().to_owned();
        Some(Self {
            users: subject.iter_common_name().map(text).collect(),
            groups: subject.iter_organization().map(text).collect(),
        })
    }
}

/// Whether a request names the admins' group. The signer refuses an unreadable one.
fn asks_for_masters(request: &str) -> bool {
    Subject::of_request(request)
        .is_some_and(|subject| subject.groups.iter().any(|group| group == MASTERS_GROUP))
}
