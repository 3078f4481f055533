//! Claims, volumes and classes in the scheduler: takes their changes, and writes claims and volumes
//! for a pod whose node is chosen.
//!
//! A pod whose claims wait for its node is not bound yet: its place is kept, a volume is reserved
//! for each claim (`claimRef`) or the node is set on it (`selected-node`), and the pod is decided
//! again when the claim is bound. After a restart another process finds the same node on the claim.

use super::writes::{Outcome, Write, Written};
use super::{Followed, Scheduler};
use crate::capacity::{Capacity, Driver};
use crate::event::ClusterEvent;
use crate::plugins::volumes;
use crate::queue::Waiting;
use crate::storage::{Bindings, Limits};
use config_errors::chain;
use config_kube::k8s_openapi::Metadata;
use config_kube::k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use master_claims::{BOUND_BY_CONTROLLER, Claim, Class, SELECTED_NODE, Volume};
use master_client::{ApiError, Change, Client, Follower, Key, ListParams, Patch, View};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Instant;

/// Follows a kind and keeps its view of each object.
pub(crate) fn follow<V: View>(client: &Client) -> Follower<V::Object, (Key, V)> {
    let read = |object: V::Object| (Key::of(Metadata::metadata(&object)), V::read(object));
    Follower::reading(client.clone(), None, ListParams::default(), read)
}

impl Scheduler {
    pub(super) fn claim_changed(&mut self, change: Change<(Key, Claim)>, now: Instant) {
        let storage = self.snapshot.storage_mut();
        let event = match change {
            Change::Listed(all) => {
                let keys: BTreeSet<Key> = all.iter().map(|(key, _)| key.clone()).collect();
                storage.retain_claims(|key| keys.contains(key));
                for (key, claim) in all {
                    storage.set_claim(key, claim);
                }
                self.listed.insert(Followed::Claims);
                ClusterEvent::Anything
            }
            Change::Set((key, claim)) => {
                if !storage.set_claim(key.clone(), claim) {
                    return;
                }
                ClusterEvent::Claim(key)
            }
            Change::Deleted(gone) => return storage.remove_claim(&gone.key),
        };
        self.help(&event, now);
    }

    pub(super) fn volume_changed(&mut self, change: Change<(Key, Volume)>, now: Instant) {
        let storage = self.snapshot.storage_mut();
        match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(key, _)| key.name.clone()).collect();
                storage.retain_volumes(|name| names.contains(name));
                for (key, volume) in all {
                    storage.set_volume(key.name, volume);
                }
                self.listed.insert(Followed::Volumes);
            }
            Change::Set((key, volume)) => {
                if !storage.set_volume(key.name, volume) {
                    return;
                }
            }
            Change::Deleted(gone) => return storage.remove_volume(&gone.key.name),
        }
        self.help(&ClusterEvent::Volume, now);
    }

    pub(super) fn class_changed(&mut self, change: Change<(Key, Class)>, now: Instant) {
        let storage = self.snapshot.storage_mut();
        match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(key, _)| key.name.clone()).collect();
                storage.retain_classes(|name| names.contains(name));
                for (key, class) in all {
                    storage.set_class(key.name, class);
                }
                self.listed.insert(Followed::Classes);
            }
            Change::Set((key, class)) => {
                if !storage.set_class(key.name, class) {
                    return;
                }
            }
            Change::Deleted(gone) => return storage.remove_class(&gone.key.name),
        }
        self.help(&ClusterEvent::Class, now);
    }

    pub(super) fn driver_changed(&mut self, change: Change<(Key, Driver)>, now: Instant) {
        let capacities = self.snapshot.storage_mut().capacities_mut();
        let is_new = match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(key, _)| key.name.clone()).collect();
                capacities.retain_drivers(|name| names.contains(name));
                for (key, driver) in all {
                    capacities.set_driver(key.name, driver);
                }
                self.listed.insert(Followed::Drivers);
                true
            }
            Change::Set((key, driver)) => capacities.set_driver(key.name, driver),
            Change::Deleted(gone) => capacities.remove_driver(&gone.key.name),
        };
        if is_new {
            self.help(&ClusterEvent::Capacity, now);
        }
    }

    pub(super) fn capacity_changed(&mut self, change: Change<(Key, Capacity)>, now: Instant) {
        let capacities = self.snapshot.storage_mut().capacities_mut();
        let is_new = match change {
            Change::Listed(all) => {
                let keys: BTreeSet<Key> = all.iter().map(|(key, _)| key.clone()).collect();
                capacities.retain(|key| keys.contains(key));
                for (key, capacity) in all {
                    capacities.set(key, capacity);
                }
                self.listed.insert(Followed::Capacities);
                true
            }
            Change::Set((key, capacity)) => capacities.set(key, capacity),
            Change::Deleted(gone) => return capacities.remove(&gone.key),
        };
        if is_new {
            self.help(&ClusterEvent::Capacity, now);
        }
    }

    pub(super) fn limits_changed(&mut self, change: Change<(Key, Limits)>, now: Instant) {
        let storage = self.snapshot.storage_mut();
        let is_new = match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(key, _)| key.name.clone()).collect();
                storage.retain_limits(|name| names.contains(name));
                for (key, limits) in all {
                    storage.set_limits(key.name, limits);
                }
                self.listed.insert(Followed::Limits);
                true
            }
            Change::Set((key, limits)) => storage.set_limits(key.name, limits),
            Change::Deleted(gone) => storage.remove_limits(&gone.key.name),
        };
        // Drivers come and go rarely.
        if is_new {
            self.help(&ClusterEvent::Anything, now);
        }
    }

    /// Keeps a pod's place on its node until its claims are bound, and makes the writes that they
    /// need for that. `seen` is the number that the queue returned with the pod.
    pub(super) fn claim(
        &mut self,
        waiting: &Waiting,
        node: &str,
        mut bindings: Bindings,
        seen: u64,
        now: Instant,
    ) -> Option<Write> {
        let request = &waiting.request;
        self.snapshot.reserve(request.clone(), node);
        self.queue.unschedulable(&request.key, volumes(), seen, now);
        let storage = self.snapshot.storage_mut();
        // Claims that already have the node are not written again.
        bindings.provisioned.retain(|key| {
            let claim = storage.claim(key);
            claim.is_some_and(|claim| claim.node.is_empty())
        });
        if bindings == Bindings::default() {
            return None;
        }
        for (claim, volume) in &bindings.volumes {
            storage.assume(volume.clone(), claim.clone());
        }
        tracing::debug!(pod = %request.key, node, ?bindings, "reserving volumes for a pod's claims");
        let claims = bindings.provisioned.iter();
        let versions: Vec<(Key, String)> = claims
            .filter_map(|key| Some((key.clone(), storage.claim(key)?.version.clone())))
            .collect();
        let uids: Vec<String> = bindings
            .volumes
            .iter()
            .map(|(key, _)| {
                storage
                    .claim(key)
                    .map_or(String::new(), |claim| claim.uid.clone())
            })
            .collect();
        let (client, node) = (self.client.clone(), node.to_owned());
        Some(Box::pin(async move {
            let result = async {
                for ((claim, volume), uid) in bindings.volumes.iter().zip(&uids) {
                    keep(&client, volume, claim, uid).await?;
                }
                for (claim, version) in &versions {
                    name_node(&client, claim, version, &node).await?;
                }
                Ok(())
            };
            let result = result.await;
            Written(Outcome::Claimed { result, bindings })
        }))
    }

    /// Takes the result of these writes. A success shows in the claims; after a failure the pods
    /// that wait for the claims are tried again.
    pub(super) fn claimed(
        &mut self,
        result: Result<(), ApiError>,
        bindings: &Bindings,
        now: Instant,
    ) {
        let Err(error) = result else { return };
        tracing::debug!(
            error = chain(&error),
            "cannot reserve volumes for a pod's claims; trying again"
        );
        let storage = self.snapshot.storage_mut();
        for (_, volume) in &bindings.volumes {
            storage.forget(volume);
        }
        let claims = bindings.volumes.iter().map(|(claim, _)| claim);
        for claim in claims.chain(&bindings.provisioned) {
            self.help(&ClusterEvent::Claim(claim.clone()), now);
        }
    }
}

/// Reserves a volume for a claim, if it is still free; the volume binder does the rest.
async fn keep(client: &Client, name: &str, claim: &Key, uid: &str) -> Result<(), ApiError> {
    let mut volume: PersistentVolume = client.get(None, name).await?;
    let spec = volume.spec.get_or_insert_default();
    match &spec.claim_ref {
        Some(of) if of.uid.as_deref() == Some(uid) => return Ok(()),
        Some(of)
            if of.uid.as_ref().is_some_and(|uid| !uid.is_empty())
                || of.namespace != claim.namespace().map(str::to_owned)
                || of.name.as_deref() != Some(&claim.name) =>
        {
            let text = format!("volume {name:?} already bound to a different claim.");
            return Err(ApiError::new(master_client::Reason::Conflict, text));
        }
        // An admin has reserved it for a claim of this name.
        Some(_) => {}
        None => {
            let notes = volume.metadata.annotations.get_or_insert_default();
            notes.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
    }
    spec.claim_ref = Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    });
    client.update(&volume).await.map(drop)
}

/// Sets the node on which a claim's volume is to be provisioned.
async fn name_node(
    client: &Client,
    claim: &Key,
    version: &str,
    node: &str,
) -> Result<(), ApiError> {
    let change =
        json!({"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}});
    let (namespace, patch) = (claim.namespace(), Patch::Merge(change));
    client
        .patch::<PersistentVolumeClaim>(namespace, &claim.name, &patch)
        .await
        .map(drop)
}
