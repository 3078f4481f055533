//! Keeps the statuses of releases and policies as the inventory has them. A policy that is not in
//! force is a draft: its status shows its dry run.

use crate::exchange::ExchangeService;
use crate::inventory::{ReferenceTables, Release};
use config_errors::chain;
use config_kube::CertificatePolicy;
use config_kube::policy::{CertificatePolicyStatus, POLICY_NAME};
use master_client::{ApiError, Client};
use std::time::Duration;

/// Statuses are compared at least this often, so that a status that was changed by someone else is
/// set again.
const RESYNC: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the statuses of releases and policies. Drop it to stop.
pub(crate) async fn keep_statuses(
    client: &Client,
    inventory: &ReferenceTables,
    exchange: &ExchangeService,
) {
    let mut changed = inventory.rules_changed();
    loop {
        let mut pause = RESYNC;
        for release in inventory.releases() {
            if let Err(error) = show_release(client, &release).await {
                tracing::warn!(error = chain(&error), "cannot set a release's status");
                pause = PAUSE;
            }
        }
        for policy in inventory.policies() {
            if let Err(error) = show_policy(client, exchange, &policy).await {
                tracing::warn!(error = chain(&error), "cannot set a policy's status");
                pause = PAUSE;
            }
        }
        drop(tokio::time::timeout(pause, changed.changed()).await);
    }
}

async fn show_release(client: &Client, release: &Release) -> Result<(), ApiError> {
    let wanted = release.status();
    if release.object.status.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let mut object = (*release.object).clone();
    object.status = Some(wanted);
    unless_changed(client.update_status(&object).await)
}

async fn show_policy(
    client: &Client,
    exchange: &ExchangeService,
    policy: &CertificatePolicy,
) -> Result<(), ApiError> {
    let draft = policy.metadata.name.as_deref() != Some(POLICY_NAME);
    let wanted = CertificatePolicyStatus {
        faults: crate::policy::faults(&policy.spec),
        unknown: exchange.facts.unknown_names(&policy.spec),
        dry_run: if draft {
            exchange.dry_run(&policy.spec)
        } else {
            Vec::new()
        },
    };
    if policy.status.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let mut object = policy.clone();
    object.status = Some(wanted);
    unless_changed(client.update_status(&object).await)
}

/// A conflict or a deletion is no failure: the watch delivers the change, and the object is
/// compared again.
fn unless_changed<T>(outcome: Result<T, ApiError>) -> Result<(), ApiError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
