//! Builds the pods of StatefulSets and their volume claims.

use crate::workload::kept::controls;
use crate::workload::make;
use crate::workload::revision::HASH;
use config_kube::k8s_openapi::api::apps::v1::StatefulSet;
use config_kube::k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, PodTemplateSpec, Volume,
};
use std::collections::HashMap;

pub(super) const NAME: &str = "statefulset.kubernetes.io/pod-name";
pub(super) const INDEX: &str = "apps.kubernetes.io/pod-index";

/// The ordinal in a pod's name; `None` if the name is not one of this StatefulSet's pods.
pub fn ordinal(set: &str, pod: &str) -> Option<i32> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    // No leading zeroes: each ordinal has one name.
    let plain = number == "0" || !number.starts_with('0');
    number.parse().ok().filter(|_| digits && plain)
}

fn namespace(set: &StatefulSet) -> &str {
    set.metadata.namespace.as_deref().unwrap_or_default()
}

/// The pod of a place.
pub(super) fn pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    number: i32,
    revision: &str,
) -> Pod {
    let owner = controls(set);
    let mut pod = make::pod_of(template, &owner, namespace(set));
    let name = format!("{}-{number}", owner.name);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(NAME.to_owned(), name.clone());
    labels.insert(INDEX.to_owned(), number.to_string());
    labels.insert(HASH.to_owned(), revision.to_owned());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(name);
        spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
        add_claims(spec, set, number);
    }
    pod
}

/// Adds the volumes of a place's claims. A claim replaces a volume of the same name, and the last
/// of several claims of one name counts.
fn add_claims(spec: &mut PodSpec, set: &StatefulSet, number: i32) {
    let templates = set.spec.iter();
    let templates = templates.flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    let names: Vec<&str> = templates
        .map(|template| template.metadata.name.as_deref().unwrap_or_default())
        .collect();
    if names.is_empty() {
        return;
    }
    let last: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| !last.contains_key(&*volume.name));
    for ((place, name), claim) in names.iter().enumerate().zip(claims(set, number)) {
        if last.get(name) != Some(&place) {
            continue;
        }
        volumes.push(Volume {
            name: (*name).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.metadata.name.unwrap_or_default(),
                read_only: Some(false),
            }),
            ..Volume::default()
        });
    }
}

/// The name of a place's claim from a template.
pub(super) fn claim_name(set: &str, number: i32, template: &PersistentVolumeClaim) -> String {
    let name = template.metadata.name.as_deref().unwrap_or_default();
    format!("{name}-{set}-{number}")
}

/// The claims of a place, in the order of their templates.
pub(super) fn claims(set: &StatefulSet, number: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = &set.spec else {
        return Vec::new();
    };
    let own = set.metadata.name.as_deref().unwrap_or_default();
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let deleted = policy.and_then(|policy| policy.when_deleted.as_deref()) == Some("Delete");
    let owner = controls(set);
    let claim = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(own, number, template));
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim.metadata.owner_references = deleted.then(|| vec![owner.clone()]);
        claim.status = None;
        claim
    };
    spec.volume_claim_templates
        .iter()
        .flatten()
        .map(claim)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_name_has_one_ordinal_and_an_ordinal_one_pod_name() {
        let found = [
            "web-0", "web-12", "web-01", "web-", "web-x", "web-1-2", "other-1", "web--1",
        ];
        let found = found.map(|pod| ordinal("web", pod));
        assert_eq!(
            found,
            [Some(0), Some(12), None, None, None, None, None, None]
        );
    }

    /// A template's volumes are not validated, and each plan would compare them with each claim.
    #[test]
    fn many_claims_are_not_compared_with_many_volumes() {
        const COUNT: usize = 100_000;
        let named = |number: usize| format!("v{number}");
        let volume = |number: usize| Volume {
            name: named(number),
            ..Volume::default()
        };
        let claim = |number: usize| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.name = Some(named(number));
            claim
        };
        let mut spec = PodSpec {
            volumes: Some((0..COUNT).map(volume).collect()),
            ..PodSpec::default()
        };
        let mut set = StatefulSet::default();
        let templates = (10..COUNT).map(claim).chain([claim(COUNT - 1)]);
        set.spec.get_or_insert_default().volume_claim_templates = Some(templates.collect());
        add_claims(&mut spec, &set, 0);
        let volumes = spec.volumes.unwrap();
        assert_eq!(volumes.len(), COUNT, "the last two claims have one name");
        let claims = volumes.iter().map(|volume| &volume.persistent_volume_claim);
        assert_eq!(claims.filter(|claim| claim.is_some()).count(), COUNT - 10);
    }
}
