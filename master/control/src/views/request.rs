//! Certificate signing requests: whether they are decided, and since when.

use crate::views::{created, uid};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use jiff::Timestamp;
use master_client::View;

/// A certificate signing request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestView {
    /// UID.
    pub uid: String,
    /// When it came or was decided.
    pub last: Timestamp,
    /// Whether it is decided.
    pub decided: bool,
    /// The signer.
    pub signer: String,
}

impl View for RequestView {
    type Object = CertificateSigningRequest;

    fn read(request: CertificateSigningRequest) -> Self {
        let conditions = request.status.and_then(|status| status.conditions);
        let conditions = conditions.unwrap_or_default();
        let decided = conditions.iter().filter_map(|condition| {
            let time = condition.last_update_time.as_ref();
            time.or(condition.last_transition_time.as_ref())
        });
        let last = created(&request.metadata)
            .into_iter()
            .chain(decided.map(|time| time.0))
            .max();
        Self {
            uid: uid(&request.metadata),
            last: last.unwrap_or(Timestamp::UNIX_EPOCH),
            decided: !conditions.is_empty(),
            signer: request.spec.signer_name,
        }
    }
}
