//! Events about a StatefulSet's pods and claims, with upstream's reasons and messages.

use crate::workload::make::{is_ending, record_event};
use config_kube::k8s_openapi::api::core::v1::ObjectReference;
use master_client::{ApiError, Severity};
use master_control::writer::Writer;

/// The action that an event is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verb {
    Create,
    Update,
    Delete,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// The reasons of success and failure.
    fn reasons(self) -> (&'static str, &'static str) {
        match self {
            Self::Create => ("SuccessfulCreate", "FailedCreate"),
            Self::Update => ("SuccessfulUpdate", "FailedUpdate"),
            Self::Delete => ("SuccessfulDelete", "FailedDelete"),
        }
    }
}

/// Records an event for the result of a write of a pod, and returns that result.
///
/// # Errors
/// What `done` holds: an event that can't be written is no error of the write.
pub(super) async fn of_pod(
    writer: &Writer,
    set: &ObjectReference,
    verb: Verb,
    pod: &str,
    done: Result<(), ApiError>,
) -> Result<(), ApiError> {
    let own = set.name.as_deref().unwrap_or_default();
    let what = format!("{} Pod {pod} in StatefulSet {own}", verb.word());
    let good = format!("{what} successful");
    finish(writer, set, verb, good, what, done).await
}

/// Records an event for the result of a write of a pod's claim, and returns that result.
///
/// # Errors
/// What `done` holds, as for [`of_pod`].
pub(super) async fn of_claim(
    writer: &Writer,
    set: &ObjectReference,
    verb: Verb,
    claim: &str,
    pod: &str,
    done: Result<(), ApiError>,
) -> Result<(), ApiError> {
    let (word, own) = (verb.word(), set.name.as_deref().unwrap_or_default());
    let good = format!("{word} Claim {claim} Pod {pod} in StatefulSet {own} success");
    let bad = format!("{word} Claim {claim} for Pod {pod} in StatefulSet {own}");
    finish(writer, set, verb, good, bad, done).await
}

async fn finish(
    writer: &Writer,
    set: &ObjectReference,
    verb: Verb,
    good: String,
    bad: String,
    done: Result<(), ApiError>,
) -> Result<(), ApiError> {
    let (success, failure) = verb.reasons();
    match &done {
        Ok(()) => record_event(writer, set, Severity::Normal, success, good).await,
        Err(error) if is_ending(error) => {}
        Err(error) => {
            let text = format!("{bad} failed error: {error}");
            record_event(writer, set, Severity::Warning, failure, text).await;
        }
    }
    done
}
