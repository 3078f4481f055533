//! Level-triggered writers of what follows from the inventory: taints of nodes by their Machine's state, labels and taints
//! by the policy's rules, and the statuses of releases and policies. A policy that is not the one that decides is a draft: its status is its dry run.

use crate::exchange::ExchangeService;
use crate::inventory::{Inventory, Release};
use crate::{issued, marks, node};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::machine::NodeMarks;
use config_kube::policy::{CertificatePolicyStatus, POLICY_NAME};
use config_kube::{CertificatePolicy, Machine, MachineState};
use master_client::{ApiError, Client, Patch};
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A round is made at least this often, so that a change made behind the back is found.
const RESYNC: Duration = Duration::from_secs(60);
/// Pause after a failed round.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the taints of nodes as their Machines' states ask, what the rules say of Nodes, and the Nodes of static machines.
/// Drop it to stop.
pub(crate) async fn keep_nodes(client: &Client, inventory: &Inventory) {
    let (mut changed, mut rules) = (inventory.machines_changed(), inventory.rules_changed());
    // What was seen to: of a thousand machines that join at once each is looked at once, not a thousand times.
    let mut seen: HashMap<String, (MachineState, Option<NodeMarks>)> = HashMap::new();
    let mut whole = Instant::now();
    loop {
        let mut pause = RESYNC;
        if whole.elapsed() >= RESYNC {
            seen.clear();
            whole = Instant::now();
        }
        let policy = inventory.policy();
        for machine in inventory.machines().iter() {
            if let Err(error) = issued::ensure_node(client, machine).await {
                tracing::warn!(error = %error, node = machine.node_name(), "cannot make a static machine's Node");
                pause = PAUSE;
            }
            let state = standing(machine);
            let uid = machine.metadata.uid.clone().unwrap_or_default();
            let wanted = policy
                .as_ref()
                .and_then(|policy| marks::wanted(machine, &policy.spec));
            let target = (state, wanted);
            if seen.get(&uid) == Some(&target) {
                continue;
            }
            let comes = policy
                .as_ref()
                .is_some_and(|policy| marks::registers_itself(machine, &policy.spec));
            match see_to(client, inventory, machine, target.1.as_ref()).await {
                // It has no marks before it was looked at again, and nobody tells when it comes.
                Ok(false) if comes => pause = PAUSE,
                Ok(_) => drop(seen.insert(uid, target)),
                Err(error) => {
                    tracing::warn!(error = %error, node = machine.node_name(), "cannot set a node's labels and taints");
                    pause = PAUSE;
                }
            }
        }
        // Cancel-safe: a change that one arm saw makes a whole round. The senders live in the inventory.
        tokio::select! {
            _ = changed.changed() => {}
            _ = rules.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn see_to(
    client: &Client,
    inventory: &Inventory,
    machine: &Machine,
    wanted: Option<&NodeMarks>,
) -> Result<bool, ApiError> {
    taint(client, machine).await?;
    match wanted {
        Some(wanted) => marks::keep(client, inventory, machine, wanted).await,
        None => Ok(true),
    }
}

/// What a machine's Node is tainted for: a retired one is no better than an Untrusted one.
fn standing(machine: &Machine) -> MachineState {
    if machine.spec.retired {
        return MachineState::Untrusted;
    }
    machine
        .status
        .as_ref()
        .map_or(MachineState::Pending, |status| status.state)
}

async fn taint(client: &Client, machine: &Machine) -> Result<(), ApiError> {
    let state = standing(machine);
    let Some(node) = client.get_opt::<Node>(None, machine.node_name()).await? else {
        return Ok(());
    };
    let have = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let Some(taints) = node::retaint(&have, state) else {
        return Ok(());
    };
    // The version makes it a replacement of what was read, and of nothing newer.
    let patch = json!({ "metadata": { "resourceVersion": node.metadata.resource_version }, "spec": { "taints": taints } });
    client
        .patch::<Node>(None, machine.node_name(), &Patch::Merge(patch))
        .await
        .map(drop)
}

/// Keeps the statuses of releases and policies. Drop it to stop.
pub(crate) async fn keep_statuses(
    client: &Client,
    inventory: &Inventory,
    exchange: &ExchangeService,
) {
    let mut changed = inventory.rules_changed();
    loop {
        let mut pause = RESYNC;
        for release in inventory.releases() {
            if let Err(error) = show_release(client, &release).await {
                tracing::warn!(error = %error, "cannot set a release's status");
                pause = PAUSE;
            }
        }
        for policy in inventory.policies() {
            if let Err(error) = show_policy(client, exchange, &policy).await {
                tracing::warn!(error = %error, "cannot set a policy's status");
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
    unless_moved(client.update_status(&object).await)
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
    unless_moved(client.update_status(&object).await)
}

/// An object that changed or went meanwhile comes again by the watch.
fn unless_moved<T>(outcome: Result<T, ApiError>) -> Result<(), ApiError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
