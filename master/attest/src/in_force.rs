//! Waits until exchanges and the deny list use what the API has stored. The answer to an admin's
//! write waits for this: once it says that a machine is retired, the machine is shut out.

use crate::inventory::{ReferenceKind, ReferenceTables, Stored};
use config_errors::chain;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::{CertificatePolicy, ImageRelease, Machine};
use master_client::{ApiError, Client, ListParams, Object};
use std::time::Duration;

/// How long the API's answer to a write of reference values waits until the inventory has it,
/// usually milliseconds. After this time the client gets an error instead.
const LIMIT: Duration = Duration::from_secs(20);
/// Pause before an object that could not be read is read again.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until the inventory has what the API has; false after a time limit. An empty name means
/// all objects of the kind.
pub(crate) async fn in_force(
    client: &Client,
    inventory: &ReferenceTables,
    kind: ReferenceKind,
    name: &str,
) -> bool {
    let mut changed = match kind {
        ReferenceKind::Machine => inventory.machines_changed(),
        ReferenceKind::Release | ReferenceKind::Policy => inventory.rules_changed(),
    };
    let settled = async {
        loop {
            changed.mark_unchanged();
            match stored(client, kind, name).await {
                Ok(wanted) if inventory.holds(kind, &wanted, name.is_empty()) => {
                    return true;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot read an object back after its write; trying again"
                    );
                    // A master that has just begun, or has much to do, answers later.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
            // The sender lives in the inventory.
            if changed.changed().await.is_err() {
                return false;
            }
        }
    };
    tokio::time::timeout(LIMIT, settled).await.unwrap_or(false)
}

/// Objects of a kind as the API has them, by name; `None` for one that does not exist.
async fn stored(client: &Client, kind: ReferenceKind, name: &str) -> Result<Vec<Stored>, ApiError> {
    match kind {
        ReferenceKind::Machine => stored_of::<Machine>(client, name).await,
        ReferenceKind::Release => stored_of::<ImageRelease>(client, name).await,
        ReferenceKind::Policy => stored_of::<CertificatePolicy>(client, name).await,
    }
}

/// The metadata of one object, or of all where the name is empty.
async fn stored_of<T: Object>(client: &Client, name: &str) -> Result<Vec<Stored>, ApiError> {
    if name.is_empty() {
        let all = client.list::<T>(None, &ListParams::default()).await?.items;
        return Ok(all
            .into_iter()
            .map(|object| named(object.metadata().clone()))
            .collect());
    }
    let found = client.get_opt::<T>(None, name).await?;
    Ok(vec![(
        name.to_owned(),
        found.map(|object| object.metadata().clone()),
    )])
}

fn named(metadata: ObjectMeta) -> Stored {
    (metadata.name.clone().unwrap_or_default(), Some(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deny::MachineDenyList;
    use crate::fake_api::FakeApi;
    use config_kube::MachineSpec;
    use master_client::{Change, Gone};
    use master_listener::DenyList as _;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Waker};

    fn machine(version: u64, retired: bool) -> Machine {
        let mut machine = Machine::named("m", MachineSpec::default());
        machine.spec.retired = retired;
        machine.metadata.uid = Some("u".to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    fn poll(waiting: Pin<&mut impl Future<Output = bool>>) -> Option<bool> {
        let answer = waiting.poll(&mut Context::from_waker(Waker::noop()));
        match answer {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        }
    }

    /// Machines of a list, a stored one, and the deny list that the API asks.
    fn scene(stored: Option<Machine>) -> (Client, ReferenceTables, Arc<MachineDenyList>) {
        let deny = Arc::new(MachineDenyList::default());
        let tables = ReferenceTables::new(Vec::new(), deny.clone());
        tables.take_machine(Change::Listed(vec![machine(3, false)]), 3);
        (FakeApi::client(stored), tables, deny)
    }

    #[tokio::test]
    async fn retired_is_in_force_once_the_deny_list_has_it() {
        let (client, tables, deny) = scene(Some(machine(7, true)));
        let mut waiting = pin!(in_force(&client, &tables, ReferenceKind::Machine, "m"));
        assert_eq!(poll(waiting.as_mut()), None);
        // What the watch reports late, and what it reports of others.
        tables.take_machine(Change::Set(machine(5, false)), 0);
        assert_eq!(poll(waiting.as_mut()), None);
        let mut other = machine(9, true);
        other.metadata.name = Some("other".to_owned());
        other.metadata.uid = Some("v".to_owned());
        tables.take_machine(Change::Set(other), 0);
        assert_eq!(poll(waiting.as_mut()), None);
        assert_eq!(deny.node_denied("m"), None);
        tables.take_machine(Change::Set(machine(7, true)), 0);
        assert_eq!(poll(waiting.as_mut()), Some(true));
        assert!(deny.node_denied("m").is_some());
    }

    #[tokio::test]
    async fn a_deletion_is_in_force_once_the_machine_is_gone() {
        let (client, tables, _) = scene(None);
        let mut waiting = pin!(in_force(&client, &tables, ReferenceKind::Machine, "m"));
        assert_eq!(poll(waiting.as_mut()), None);
        let gone = Gone::of(&machine(3, false).metadata);
        tables.take_machine(Change::Deleted(gone), 0);
        assert_eq!(poll(waiting.as_mut()), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_is_busy_for_a_while_is_asked_again() {
        let (_, tables, _) = scene(None);
        let ask = |unavailable| {
            let client = FakeApi::busy_client(Some(machine(3, false)), unavailable);
            let tables = &tables;
            async move { in_force(&client, tables, ReferenceKind::Machine, "m").await }
        };
        assert!(ask(5).await);
        assert!(!ask(1000).await, "it gives up at its time limit");
    }
}
