//! A pod's containers by kind and name, and their attempts.

use agent_runtime::{Container as Seen, Kind};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};

/// The pod's init containers, sidecars among them, in order.
pub fn initial(pod: &Pod) -> &[Container] {
    let inits = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_deref());
    inits.unwrap_or_default()
}

/// The pod's main containers.
pub fn mains(pod: &Pod) -> &[Container] {
    pod.spec
        .as_ref()
        .map_or(&[], |spec| spec.containers.as_slice())
}

/// Whether one of `spec.initContainers` does its work and ends, or is a sidecar that runs as long as the pod (KEP-753).
pub fn kind_of_initial(container: &Container) -> Kind {
    if container.restart_policy.as_deref() == Some("Always") {
        Kind::Sidecar
    } else {
        Kind::Init
    }
}

/// All containers of a pod in the order of their start.
pub fn all(pod: &Pod) -> impl Iterator<Item = (Kind, &Container)> {
    let inits = initial(pod)
        .iter()
        .map(|container| (kind_of_initial(container), container));
    inits.chain(mains(pod).iter().map(|container| (Kind::Main, container)))
}

/// A container by its name, which no two of a pod share.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<(Kind, &'a Container)> {
    all(pod).find(|(_, container)| container.name == name)
}

/// The newest attempt of a container.
pub fn latest<'a>(seen: &'a [Seen], name: &str) -> Option<&'a Seen> {
    attempts(seen, name).max_by_key(|container| container.key.attempt)
}

/// The attempt before the newest.
pub fn previous<'a>(seen: &'a [Seen], name: &str) -> Option<&'a Seen> {
    let newest = latest(seen, name)?.key.attempt;
    attempts(seen, name)
        .filter(|container| container.key.attempt < newest)
        .max_by_key(|container| container.key.attempt)
}

pub(crate) fn attempts<'a>(seen: &'a [Seen], name: &str) -> impl Iterator<Item = &'a Seen> {
    seen.iter()
        .filter(move |container| container.key.container == name)
}
