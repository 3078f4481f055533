//! What every cluster has from the start: namespaces with their service accounts, classes, default
//! roles and bindings, flow schemas and priority levels.
//!
//! Enter by [`create`], which the API server calls when it starts. It is a client of the API like
//! any other, so that these objects pass defaults, admission and validation, and watches show them.
//!
//! No tasks, no channels.

mod fairness;
mod objects;
mod roles;

use futures_util::future::try_join;
use master_client::{ApiError, Client};
use master_rbac::{Binding, Role};

/// Creates what is missing, and brings defaults up to date that no admin took over. `parts` are the
/// roles of the master's own parts, with their bindings.
///
/// # Errors
/// The API refuses one of the writes; a later call creates what is missing.
pub async fn create(client: &Client, parts: &[(Role, Binding)]) -> Result<(), ApiError> {
    objects::create(client).await?;
    try_join(roles::reconcile(client, parts), fairness::reconcile(client)).await?;
    Ok(())
}
