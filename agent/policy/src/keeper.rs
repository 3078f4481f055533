//! Keeps NetworkPolicies in force on this node. A pod with a network of its own starts only after
//! the policies that select it are in force; until then nftables drops its packets.

use crate::model::Pod as Known;
use crate::{Policies, World};
use agent_cluster::Sandboxes;
use agent_proxy::View;
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a pod waits before it gets the reason and tries again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Poll interval for the node's pod CIDRs.
const POLL: Duration = Duration::from_millis(500);
/// Pause after the kernel refused.
const RETRY: Duration = Duration::from_secs(2);

/// The cluster's objects for policies, the pods of this node, and those of them that nftables has
/// rules for.
#[derive(Debug, Default)]
pub struct PolicyKeeper {
    world: View<World>,
    /// Pods that have or get a sandbox here, by uid, as their tasks know them.
    reported: View<BTreeMap<String, Arc<Known>>>,
    /// Uids of pods for which policies are in force.
    in_force: watch::Sender<BTreeSet<String>>,
    policies: Arc<Policies>,
}

impl PolicyKeeper {
    /// The watched Pods, Namespaces and NetworkPolicies.
    pub fn view(&self) -> &View<World> {
        &self.world
    }

    /// Waits until the policies that select a pod are in force; false if that takes too long. To be
    /// called once the pod has its sandbox.
    pub async fn admit(&self, uid: &str, pod: &Pod) -> bool {
        let (_, known) = Known::read(pod.clone());
        let known = Arc::new(known);
        self.reported.change(
            |reported| reported.get(uid) != Some(&known),
            |reported| drop(reported.insert(uid.to_owned(), Arc::clone(&known))),
        );
        let mut in_force = self.in_force.subscribe();
        let there = in_force.wait_for(|uids| uids.contains(uid));
        matches!(tokio::time::timeout(PATIENCE, there).await, Ok(Ok(_)))
    }

    /// To be called when the pod's sandbox has been removed.
    pub fn dismiss(&self, uid: &str) {
        self.reported.change(
            |reported| reported.contains_key(uid),
            |reported| drop(reported.remove(uid)),
        );
        // A pod of an earlier agent was never reported, and another pod may get its address next.
        self.in_force.send_if_modified(|uids| uids.remove(uid));
    }

    /// The pods of this node by address, and their uids. Labels from the API are newer than those
    /// that the pod's task has reported. A pod that is in neither is left out, and stays cut off.
    fn own(
        &self,
        world: &World,
        sandboxes: Vec<(String, Vec<IpAddr>)>,
    ) -> (BTreeMap<IpAddr, Arc<Known>>, BTreeSet<String>) {
        let reported = self.reported.now();
        let mut own = BTreeMap::new();
        let mut uids = BTreeSet::new();
        for (uid, addresses) in sandboxes {
            let of_master = world.pods.as_ref().and_then(|pods| pods.get(&uid));
            let Some(pod) = of_master.or_else(|| reported.get(&uid)) else {
                continue;
            };
            let addresses = addresses.into_iter();
            own.extend(addresses.map(|address| (address, Arc::clone(pod))));
            uids.insert(uid);
        }
        (own, uids)
    }

    /// Applies changes of pods, namespaces and policies to nftables, until it is dropped. Before
    /// all three have been listed, an earlier agent's table stays.
    pub async fn run(self: Arc<Self>, sandboxes: Arc<Sandboxes>) {
        let (mut world, mut reported) = (self.world.changes(), self.reported.changes());
        // A node without pod CIDRs has no pods with a network of their own, and needs no table.
        while sandboxes.own_addresses().is_empty() {
            tokio::time::sleep(POLL).await;
        }
        loop {
            let known = Arc::clone(&world.borrow_and_update());
            reported.mark_unchanged();
            let (own, uids) = self.own(&known, sandboxes.addresses());
            let policies = Arc::clone(&self.policies);
            let families = sandboxes.families();
            let apply = move || policies.follow(&families, &known, &own);
            match tokio::task::spawn_blocking(apply).await {
                Ok(Ok(true)) => drop(self.in_force.send_replace(uids)),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::error!(
                        error = chain(&error),
                        "cannot apply NetworkPolicies to nftables; trying again"
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(error = chain(&error), "the NetworkPolicy task panicked");
                }
            }
            // Cancel-safe: both arms only wait for a change, and none is lost.
            let there = tokio::select! {
                there = world.changed() => there,
                there = reported.changed() => there,
            };
            if there.is_err() {
                return;
            }
        }
    }
}

/// Keeps the DNS server's list of namespaces up to date, until it is dropped.
pub async fn name_namespaces(world: &View<World>, view: &View) {
    let mut changes = world.changes();
    loop {
        let now = Arc::clone(&changes.borrow_and_update());
        if let Some(all) = &now.namespaces {
            let differs = |known: &agent_proxy::Known| {
                let named = known.namespaces.as_ref();
                named.is_none_or(|named| !named.iter().eq(all.keys()))
            };
            let names = || Some(all.keys().cloned().collect());
            view.change(differs, |known| known.namespaces = names());
        }
        // The next change would copy the whole world if it were still in use here.
        drop(now);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_list_of_namespaces_holds_no_world_while_it_waits() {
        let (world, view) = (View::<World>::default(), View::default());
        world.change(|_| true, |world| world.namespaces = Some(BTreeMap::new()));
        let waits = name_namespaces(&world, &view);
        tokio::pin!(waits);
        tokio::select! {
            biased;
            () = &mut waits => unreachable!("the view is still there"),
            () = std::future::ready(()) => {}
        }
        assert!(view.now().namespaces.is_some());
        let now = world.now();
        assert_eq!(Arc::strong_count(&now), 2, "the view's, and this one");
    }
}
