//! Certificate signing requests: whether they are decided, and since when.

use crate::views::{created, uid};
use config_kube::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use master_client::View;

/// Whether a request is neither approved nor denied nor failed.
pub fn is_undecided(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    conditions.is_none_or(<[_]>::is_empty)
}

/// A condition of a request that is true as of now.
pub fn condition(
    kind: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> CertificateSigningRequestCondition {
    let now = Some(Time(now));
    CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: now.clone(),
        last_transition_time: now,
    }
}

/// A certificate signing request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestView {
    /// UID.
    pub uid: String,
    /// When it was created or, if it is decided, when that was.
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
