//! Mirrors: what a node shows of its static pods at the API, and how it keeps that right.

use crate::MIRROR;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// A mirror that the master has.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirror {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; not that of the static pod.
    pub uid: String,
    /// The UID of the static pod that it shows.
    pub of: String,
    /// It has a `deletionTimestamp`: it goes once its node confirms.
    pub deleted: bool,
    /// The phase and the conditions that the master shows of it, and nothing else.
    pub status: PodStatus,
}

impl Mirror {
    /// The mirror that an object is, if it is one.
    pub fn read(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let status = pod.status.as_ref();
        Some(Self {
            namespace: meta.namespace.clone()?,
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            of: meta.annotations.as_ref()?.get(MIRROR)?.clone(),
            deleted: meta.deletion_timestamp.is_some(),
            status: PodStatus {
                phase: status.and_then(|status| status.phase.clone()),
                conditions: status.and_then(|status| status.conditions.clone()),
                ..PodStatus::default()
            },
        })
    }

    /// Whether it shows this static pod: its annotation has the pod's UID, and it has the pod's
    /// name. The name is compared, too, because any user who may create pods can write the
    /// annotation.
    pub fn shows(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_ref() == Some(&self.of) && self.has_name_of(pod)
    }

    fn has_name_of(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        meta.namespace.as_ref() == Some(&self.namespace) && meta.name.as_ref() == Some(&self.name)
    }
}

/// One thing to do at the API.
#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// Make the mirror of a static pod ([`mirror_of`]).
    Create(&'a Pod),
    /// Delete a mirror at once: nothing of it runs here.
    Delete(&'a Mirror),
}

/// What is to be done so that there is one mirror of each static pod, and no other. A mirror that
/// blocks the name of another is deleted first, and the new one is a step of the next round.
pub fn steps<'a>(pods: &'a [Pod], mirrors: &'a [Mirror]) -> Vec<Step<'a>> {
    let wrong = |mirror: &&Mirror| mirror.deleted || !pods.iter().any(|pod| mirror.shows(pod));
    let deletions = mirrors.iter().filter(wrong).map(Step::Delete);
    let absent = |pod: &&Pod| !mirrors.iter().any(|mirror| mirror.has_name_of(pod));
    let creations = pods.iter().filter(absent).map(Step::Create);
    deletions.chain(creations).collect()
}

/// The mirror of a static pod, as the API server takes it from a node: it is the Node's, and names
/// what it shows.
pub fn mirror_of(pod: &Pod, node: &str, node_uid: &str) -> Pod {
    let mut mirror = pod.clone();
    let meta = &mut mirror.metadata;
    let of = meta.uid.take().unwrap_or_default();
    meta.annotations
        .get_or_insert_default()
        .insert(MIRROR.to_owned(), of);
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    if let Some(spec) = &mut mirror.spec {
        // A mirror gets no token: it has no account.
        spec.automount_service_account_token = Some(false);
    }
    mirror
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pod(name: &str, uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    /// The API after a step: a mirror of each name at most.
    fn done(mirrors: &mut Vec<Mirror>, step: &Step<'_>, serial: usize) {
        match step {
            Step::Delete(gone) => mirrors.retain(|mirror| mirror.uid != gone.uid),
            Step::Create(pod) => {
                let made = Mirror {
                    namespace: "default".to_owned(),
                    name: pod.metadata.name.clone().unwrap(),
                    uid: format!("made-{serial}"),
                    of: pod.metadata.uid.clone().unwrap(),
                    deleted: false,
                    status: PodStatus::default(),
                };
                assert!(
                    mirrors.iter().all(|other| other.name != made.name),
                    "a mirror of a name that is taken"
                );
                mirrors.push(made);
            }
        }
    }

    proptest! {
        #[test]
        fn two_rounds_lead_from_anything_to_one_right_mirror_of_each_pod(
            uids in prop::collection::btree_map("[a-d]", "[u-x]", 0..4),
            found in prop::collection::btree_map("[a-e]", ("[u-z]", any::<bool>()), 0..5),
        ) {
            let pods: Vec<Pod> = uids.iter().map(|(name, uid)| pod(name, uid)).collect();
            let mut mirrors: Vec<Mirror> = found
                .iter()
                .map(|(name, (of, deleted))| Mirror {
                    namespace: "default".to_owned(),
                    name: name.clone(),
                    uid: format!("found-{name}"),
                    of: of.clone(),
                    deleted: *deleted,
                    status: PodStatus::default(),
                })
                .collect();
            let right: Vec<Mirror> = mirrors
                .iter()
                .filter(|mirror| !mirror.deleted && uids.get(&mirror.name) == Some(&mirror.of))
                .cloned()
                .collect();
            for round in 0..2 {
                let before = mirrors.clone();
                for (at, step) in steps(&pods, &before).iter().enumerate() {
                    done(&mut mirrors, step, round * 10 + at);
                }
            }
            prop_assert!(steps(&pods, &mirrors).is_empty());
            prop_assert_eq!(mirrors.len(), pods.len());
            prop_assert!(right.iter().all(|mirror| mirrors.contains(mirror)), "a right one was replaced");
        }
    }

    #[test]
    fn a_mirror_is_its_nodes_and_names_what_it_shows() {
        let mirror = mirror_of(&pod("a", "u"), "worker-1", "n");
        assert_eq!(mirror.metadata.uid, None);
        let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()),
            ("Node", "worker-1", "n")
        );
        let mut stored = mirror;
        stored.metadata.uid = Some("m".to_owned());
        assert_eq!(Mirror::read(&stored).unwrap().of, "u");
        assert_eq!(Mirror::read(&pod("a", "u")), None);
    }
}
