//! Deletes certificate signing requests that are no longer needed: an hour after the decision, a
//! day without one (upstream).

use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use master_client::{ApiError, DeleteParams, Key, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::request::RequestView;
use master_control::writer::Writer;
use std::sync::Arc;
use std::time::Duration;

/// How long a request is kept after the decision.
const KEPT_AFTER_DECISION: Duration = Duration::from_secs(3600);
/// How long a request is kept without a decision.
const KEPT_PENDING: Duration = Duration::from_secs(24 * 3600);

/// The controller. Its keys are requests.
#[derive(Debug)]
pub struct CsrCleaner {
    requests: Store<RequestView>,
}

/// A request and its facts.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    request: Arc<RequestView>,
}

/// Deletes the request.
#[derive(Debug, PartialEq, Eq)]
pub struct Delete {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

impl Controller for CsrCleaner {
    const NAME: &'static str = "csr-cleaner";
    const RIGHTS: &'static [Right] = &[right(
        "certificates.k8s.io",
        "certificatesigningrequests",
        &["list", "watch", "delete"],
    )];
    type Facts = Facts;
    type Action = Delete;

    fn new(setup: &mut Setup<'_>) -> Self {
        let requests = setup.follow_keys();
        Self { requests }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let (key, request) = (key.clone(), self.requests.get(key)?);
        Some(Facts { key, request })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Delete> {
        let lifetime = if facts.request.decided {
            KEPT_AFTER_DECISION
        } else {
            KEPT_PENDING
        };
        let left = lifetime.saturating_sub(now.since(facts.request.last));
        if left.is_zero() {
            let (key, uid) = (facts.key.clone(), facts.request.uid.clone());
            Plan::act(Delete { key, uid })
        } else {
            Plan::wait(left)
        }
    }

    async fn carry_out(&self, request: Delete, writer: &Writer) -> Result<(), ApiError> {
        let params = DeleteParams::of(request.uid);
        let deleted = writer.delete::<CertificateSigningRequest>(&request.key, &params);
        deleted.await
    }
}
