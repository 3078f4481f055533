//! Publishes the node's registered CSI drivers: in its CSINode object, and in upstream's annotation
//! of the Node.
//!
//! The labels of a driver's topology are not written: see [`crate::driver::fits`].

use crate::driver::Driver;
use crate::registry::Registry;
use agent_api::{Api, ApiError, JSON, MERGE, get, send};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use http::Method;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Upstream's annotation: the node's id by driver, as JSON.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
/// Pause after the master could not be reached.
const RETRY: Duration = Duration::from_secs(5);
/// Time after the agent's start in which drivers register again.
const SETTLE: Duration = Duration::from_secs(20);
/// Writes in a row at most; two are enough where nobody else writes.
const MAX_WRITES: usize = 4;

/// Keeps both objects up to date with the registered drivers; never returns.
pub(crate) async fn keep(registry: Arc<Registry>, node: String, api: Arc<dyn Api>) {
    let settled = Instant::now() + SETTLE;
    let mut registered = BTreeSet::new();
    timeout_at(settled, registry.changed.notified()).await.ok();
    loop {
        let drivers: Vec<_> = registry.all().iter().map(|driver| entry(driver)).collect();
        registered.extend(drivers.iter().map(|driver| driver.name.clone()));
        let settles = Instant::now() < settled;
        let since_start = settles.then_some(&registered);
        if let Err(error) = write(&*api, &node, &drivers, since_start).await {
            tracing::warn!(
                error = error.chain(),
                "cannot write the CSINode; trying again"
            );
            tokio::time::sleep(RETRY).await;
            continue;
        }
        if settles {
            timeout_at(settled, registry.changed.notified()).await.ok();
        } else {
            registry.changed.notified().await;
        }
    }
}

fn entry(driver: &Driver) -> CSINodeDriver {
    let keys: Vec<String> = driver.topology.keys().cloned().collect();
    CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: driver
            .most
            .map(|count| VolumeNodeResources { count: Some(count) }),
    }
}

/// The entries to write: those of the registered `drivers` and, while the agent has just started,
/// the present ones of drivers that have not registered `since_start`. Without these, pods with
/// their volumes could not be scheduled here until they register again.
fn wanted(
    drivers: &[CSINodeDriver],
    now: &[CSINodeDriver],
    since_start: Option<&BTreeSet<String>>,
) -> Vec<CSINodeDriver> {
    let is_awaited = |one: &&CSINodeDriver| {
        since_start.is_some_and(|registered| !registered.contains(&one.name))
    };
    let awaited = now.iter().filter(is_awaited);
    drivers.iter().chain(awaited).cloned().collect()
}

/// The next list of drivers on the way to the wanted one; `None` if it is reached. The API refuses
/// a changed entry, so one that differs is removed first and added by the next write.
fn next(now: &[CSINodeDriver], wanted: &[CSINodeDriver]) -> Option<Vec<CSINodeDriver>> {
    let as_wanted = |one: &&CSINodeDriver| {
        let same = wanted.iter().find(|other| other.name == one.name);
        same.is_none_or(|other| other == *one)
    };
    let kept: Vec<CSINodeDriver> = now.iter().filter(as_wanted).cloned().collect();
    if kept.len() < now.len() {
        return Some(kept);
    }
    let here = |one: &CSINodeDriver| now.contains(one);
    let reached = now.len() == wanted.len() && wanted.iter().all(here);
    (!reached).then(|| wanted.to_vec())
}

async fn write(
    api: &dyn Api,
    node: &str,
    drivers: &[CSINodeDriver],
    since_start: Option<&BTreeSet<String>>,
) -> Result<(), ApiError> {
    let all = "/apis/storage.k8s.io/v1/csinodes";
    let path = format!("{all}/{node}");
    for _ in 0..MAX_WRITES {
        match get::<CSINode>(api, path.clone()).await {
            Ok(mut found) => {
                let wanted = wanted(drivers, &found.spec.drivers, since_start);
                let Some(next) = next(&found.spec.drivers, &wanted) else {
                    return annotate(api, node, &wanted).await;
                };
                found.spec.drivers = next;
                match send(api, Method::PUT, path.clone(), JSON, &found).await {
                    Err(error) if error.is_conflict() => {}
                    done => done?,
                }
            }
            Err(error) if error.is_not_found() && drivers.is_empty() => return Ok(()),
            Err(error) if error.is_not_found() => {
                let owner: Node = get(api, format!("/api/v1/nodes/{node}")).await?;
                let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner.metadata.uid});
                let meta = json!({"name": node, "ownerReferences": [owner]});
                let made = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": meta,
                    "spec": {"drivers": drivers}});
                send(api, Method::POST, all.to_owned(), JSON, &made).await?;
            }
            Err(error) => return Err(error),
        }
    }
    let text = "another client changed the CSINode at each attempt";
    Err(ApiError::Transport(text.into()))
}

/// Writes the node's ids into its annotation.
async fn annotate(api: &dyn Api, node: &str, wanted: &[CSINodeDriver]) -> Result<(), ApiError> {
    let ids: BTreeMap<&str, &str> = wanted
        .iter()
        .map(|driver| (driver.name.as_str(), driver.node_id.as_str()))
        .collect();
    let ids = (!ids.is_empty()).then(|| json!(ids).to_string());
    let change = json!({"metadata": {"annotations": {NODE_ID: ids}}});
    send(
        api,
        Method::PATCH,
        format!("/api/v1/nodes/{node}"),
        MERGE,
        &change,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str, node_id: &str) -> CSINodeDriver {
        CSINodeDriver {
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            ..CSINodeDriver::default()
        }
    }

    #[test]
    fn drivers_have_time_to_register_again_after_the_agents_start() {
        let (a, b) = (driver("a", "1"), driver("b", "1"));
        let (here, now) = ([a.clone()], [a.clone(), b.clone()]);
        let mut registered = BTreeSet::from(["a".to_owned()]);
        assert_eq!(wanted(&here, &now, Some(&registered)), [a.clone(), b]);
        assert_eq!(wanted(&here, &now, None), here, "not for ever");
        registered.insert("b".to_owned());
        let gone = wanted(&here, &now, Some(&registered));
        assert_eq!(gone, [a], "it has registered, and is gone again");
    }

    #[test]
    fn an_entry_that_changes_goes_before_it_comes_again() {
        let (a, b) = (driver("a", "1"), driver("b", "1"));
        let changed = driver("a", "2");
        let wanted = [changed.clone(), b.clone()];
        let first = next(&[a.clone(), b.clone()], &wanted).unwrap();
        assert_eq!(first, std::slice::from_ref(&b));
        let second = next(&first, &wanted).unwrap();
        assert_eq!(second, wanted);
        assert_eq!(next(&second, &wanted), None);
        assert_eq!(next(&[b, changed], &wanted), None, "in any order");
        assert_eq!(next(&[a], &[]), Some(Vec::new()));
    }
}
