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
use master_rbac::ComponentRole;

/// A part of what every cluster begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The system's namespaces with their service accounts.
    Namespaces,
    /// Priority classes.
    Classes,
    /// Roles and bindings.
    Roles,
    /// Flow schemas and priority levels.
    Flows,
}

/// Creates what is missing, and brings defaults up to date that no admin took over. `parts` are the
/// roles of the master's own parts, with their bindings. `made` is called with each part that
/// exists.
///
/// # Errors
/// The API refuses one of the writes; a later call creates what is missing.
pub async fn create(
    client: &Client,
    parts: &[ComponentRole],
    made: impl Fn(Part),
) -> Result<(), ApiError> {
    objects::namespaces(client).await?;
    made(Part::Namespaces);
    objects::classes(client).await?;
    made(Part::Classes);
    let roles = async {
        roles::reconcile(client, parts).await?;
        made(Part::Roles);
        Ok(())
    };
    let flows = async {
        fairness::reconcile(client).await?;
        made(Part::Flows);
        Ok(())
    };
    try_join(roles, flows).await?;
    Ok(())
}
