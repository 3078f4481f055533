//! Sets the owners of the PersistentVolumeClaims of a StatefulSet's pods. By
//! `persistentVolumeClaimRetentionPolicy` the owner is the StatefulSet, the pod that is scaled
//! down, or none; a claim is deleted with its owner.

use config_kube::k8s_openapi::api::apps::v1::StatefulSetSpec;
use config_kube::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use master_client::View;
use master_control::views::uid;
use serde_json::{Value, json};

/// The parts of a claim that its StatefulSet needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnedClaim {
    /// UID.
    pub uid: String,
    /// Its owner references.
    pub owners: Vec<OwnerReference>,
}

impl View for OwnedClaim {
    type Object = PersistentVolumeClaim;

    fn read(claim: PersistentVolumeClaim) -> Self {
        Self {
            uid: uid(&claim.metadata),
            owners: claim.metadata.owner_references.unwrap_or_default(),
        }
    }
}

/// A change of a claim's owners.
#[derive(Debug, Clone, PartialEq)]
pub struct Owners {
    /// The claim's name.
    pub claim: String,
    /// Its UID.
    pub uid: String,
    /// The owner that it gets.
    pub add: Option<OwnerReference>,
    /// The UIDs of the owners that it loses.
    pub remove: Vec<String>,
    /// The UIDs of its owners after the change. A new one comes last, as upstream's controller
    /// appends it.
    pub order: Vec<String>,
}

impl Owners {
    /// The change as a strategic merge patch, which leaves other owners alone.
    pub(super) fn patch(&self) -> Value {
        let removed = self.remove.iter();
        let removed = removed.map(|uid| json!({"$patch": "delete", "uid": uid}));
        let added = self.add.iter().map(|owner| json!(owner));
        let references: Vec<Value> = removed.chain(added).collect();
        let order = self.order.iter().map(|uid| json!({"uid": uid}));
        // A strategic merge puts new elements before the existing ones, unless the patch has the
        // order.
        json!({"metadata": {"uid": self.uid, "ownerReferences": references,
            "$setElementOrder/ownerReferences": order.collect::<Vec<Value>>()}})
    }
}

/// When claims are deleted automatically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    /// With their StatefulSet.
    deleted: bool,
    /// With the pod that a smaller number of replicas ends.
    scaled: bool,
}

impl Policy {
    pub(super) fn of(spec: &StatefulSetSpec) -> Self {
        let given = spec.persistent_volume_claim_retention_policy.as_ref();
        let is_delete = |word: Option<&String>| word.is_some_and(|word| word == "Delete");
        Self {
            deleted: is_delete(given.and_then(|one| one.when_deleted.as_ref())),
            scaled: is_delete(given.and_then(|one| one.when_scaled.as_ref())),
        }
    }
}

/// The change of the owners of a pod's claim. `spare`: the pod's ordinal is no longer wanted.
/// Claims that an earlier StatefulSet or pod of the name owns are left to garbage collection, and
/// no owner is added beside another controller.
pub(super) fn change(
    name: &str,
    claim: &OwnedClaim,
    policy: Policy,
    set: &OwnerReference,
    pod: &OwnerReference,
    spare: bool,
) -> Option<Owners> {
    let is_ours = |one: &&OwnerReference| one.uid == set.uid || one.uid == pod.uid;
    let is_namesake = |one: &OwnerReference, own: &OwnerReference| {
        (&one.kind, &one.name) == (&own.kind, &own.name) && group(one) == group(own)
    };
    let mut others = claim.owners.iter().filter(|one| !is_ours(one));
    if others
        .clone()
        .any(|one| is_namesake(one, set) || is_namesake(one, pod))
    {
        return None;
    }
    let is_free = !others.any(|one| one.controller == Some(true));
    let wanted = if policy.scaled && spare {
        Some(pod)
    } else {
        policy.deleted.then_some(set)
    };
    let wanted = wanted.filter(|_| is_free);
    let ours: Vec<&OwnerReference> = claim.owners.iter().filter(is_ours).collect();
    let is_wanted = |one: &OwnerReference| wanted.is_some_and(|wanted| wanted.uid == one.uid);
    let holds = ours
        .iter()
        .any(|one| is_wanted(one) && one.controller == Some(true));
    let remove: Vec<String> = ours
        .iter()
        .filter(|one| !is_wanted(one))
        .map(|one| one.uid.clone())
        .collect();
    let add = wanted.filter(|_| !holds).cloned();
    let kept = claim.owners.iter().map(|one| &one.uid);
    let kept = kept.filter(|uid| !remove.contains(uid));
    let mut order: Vec<String> = kept.cloned().collect();
    if let Some(added) = &add
        && !order.contains(&added.uid)
    {
        order.push(added.uid.clone());
    }
    (add.is_some() || !remove.is_empty()).then(|| Owners {
        claim: name.to_owned(),
        uid: claim.uid.clone(),
        add,
        remove,
        order,
    })
}

fn group(owner: &OwnerReference) -> &str {
    owner
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, uid: &str, controls: bool) -> OwnerReference {
        OwnerReference {
            api_version: if kind == "Pod" { "v1" } else { "apps/v1" }.to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
            uid: uid.to_owned(),
            controller: controls.then_some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// The UIDs of a claim's owners after the change; nothing where it stays as it is.
    fn owners(
        known: &[OwnerReference],
        deleted: bool,
        scaled: bool,
        spare: bool,
    ) -> Option<Vec<String>> {
        let (set, pod) = (owner("StatefulSet", "set", true), owner("Pod", "pod", true));
        let claim = OwnedClaim {
            uid: "claim".to_owned(),
            owners: known.to_vec(),
        };
        let policy = Policy { deleted, scaled };
        let change = change("c", &claim, policy, &set, &pod, spare)?;
        let added = change.add.iter().map(|one| one.uid.clone());
        let kept = known.iter().map(|one| one.uid.clone());
        let kept = kept.filter(|uid| !change.remove.contains(uid));
        let kept = kept.filter(|uid| change.add.as_ref().is_none_or(|add| add.uid != *uid));
        Some(kept.chain(added).collect())
    }

    #[test]
    fn claims_get_the_owner_that_the_retention_policy_names() {
        // Delete with the StatefulSet, delete when scaled down, whether this pod is spare: the
        // owner (upstream's table).
        let table = [
            (false, false, false, None),
            (false, false, true, None),
            (true, false, false, Some("set")),
            (true, false, true, Some("set")),
            (false, true, false, None),
            (false, true, true, Some("pod")),
            (true, true, false, Some("set")),
            (true, true, true, Some("pod")),
        ];
        for (deleted, scaled, spare, expected) in table {
            for before in [
                None,
                Some(owner("StatefulSet", "set", true)),
                Some(owner("Pod", "pod", true)),
            ] {
                let holds = before.as_ref().map(|one| one.uid.as_str()) == expected;
                let wanted = expected.map(str::to_owned).into_iter().collect::<Vec<_>>();
                let found = owners(before.as_slice(), deleted, scaled, spare);
                assert_eq!(
                    found,
                    (!holds).then_some(wanted),
                    "{before:?} {deleted} {scaled} {spare}"
                );
            }
        }
    }

    #[test]
    fn owners_of_others_stay_and_owners_that_are_gone_are_left_to_garbage_collection() {
        let other = || owner("Backup", "other", false);
        let stays = owners(
            &[other(), owner("StatefulSet", "set", true)],
            false,
            true,
            true,
        );
        assert_eq!(stays, Some(vec!["other".to_owned(), "pod".to_owned()]));
        assert_eq!(
            owners(&[owner("StatefulSet", "earlier", true)], true, false, false),
            None
        );
        assert_eq!(
            owners(&[owner("Pod", "earlier", true)], true, true, false),
            None
        );
        let controlled = || owner("Operator", "other", true);
        assert_eq!(
            owners(&[controlled()], true, true, false),
            None,
            "it has a controller"
        );
        let ours = vec![controlled(), owner("Pod", "pod", false)];
        assert_eq!(
            owners(&ours, true, true, false),
            Some(vec!["other".to_owned()])
        );
        let weak = vec![owner("StatefulSet", "set", false)];
        assert_eq!(
            owners(&weak, true, false, false),
            Some(vec!["set".to_owned()]),
            "it becomes its controller"
        );
    }

    #[test]
    fn a_new_owner_comes_after_those_that_a_claim_has() {
        let other = || owner("Backup", "other", false);
        let weak = || owner("StatefulSet", "set", false);
        let order = |owners: Vec<OwnerReference>| {
            let (set, pod) = (owner("StatefulSet", "set", true), owner("Pod", "pod", true));
            let claim = OwnedClaim {
                uid: "claim".to_owned(),
                owners,
            };
            let policy = Policy {
                deleted: true,
                scaled: false,
            };
            let change = change("c", &claim, policy, &set, &pod, false).unwrap();
            change.patch()["metadata"]["$setElementOrder/ownerReferences"].take()
        };
        let last = json!([{"uid": "other"}, {"uid": "set"}]);
        assert_eq!(order(vec![other()]), last);
        assert_eq!(order(vec![other(), owner("Pod", "pod", true)]), last);
        let first = json!([{"uid": "set"}, {"uid": "other"}]);
        assert_eq!(order(vec![weak(), other()]), first, "it keeps its place");
    }
}
