//! Finds the requests of a stranger that is about to get its Machine, in the API's copies of all.

use crate::request_queue::{QueueDecision, StoredRequest};
use config_attest::verifier::Approval;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;

/// The request by which a stranger gets its Machine, and the names of its others.
#[derive(Debug)]
pub(crate) struct StrangersRequests {
    pub(crate) approved: CertificateSigningRequest,
    pub(crate) others: Vec<String>,
}

impl StrangersRequests {
    /// Those of the stranger with this endorsement key among the API's copies of all requests.
    ///
    /// # Errors
    /// Why the approval makes no Machine: its request is gone, is another by now or is not
    /// approved, or a request of this stranger is denied, or used.
    pub(crate) fn of(
        all: Vec<CertificateSigningRequest>,
        ek: &str,
        approval: &Approval,
    ) -> Result<Self, String> {
        let (mut approved, mut others) = (None, Vec::new());
        for object in all {
            let Some(stored) = StoredRequest::of(&object).filter(|stored| stored.ek == ek) else {
                continue;
            };
            let name = object.metadata.name.clone().unwrap_or_default();
            if stored.decision == QueueDecision::Denied {
                return Err(format!("request {name} is denied"));
            }
            if stored.is_used() {
                return Err(format!("request {name} has made a Machine before"));
            }
            if stored.approval(&name).as_ref() == Some(approval) {
                approved = Some(object);
            } else {
                others.push(name);
            }
        }
        let approved = approved.ok_or("the request is no longer approved as it was")?;
        Ok(Self { approved, others })
    }
}
