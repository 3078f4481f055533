//! Finds a pod's containers by kind and name, and the attempts of a container: each start makes a
//! container of its own in containerd.

use agent_runtime::{Container as Seen, ContainerKind};
use config_kube::k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use std::borrow::Cow;

/// Whether a pod is on the machine's network.
pub fn is_on_host(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.host_network == Some(true))
}

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

/// Whether one of `spec.initContainers` does its work and ends, or is a sidecar that runs as long
/// as the pod (KEP-753).
pub fn kind_of_initial(container: &Container) -> ContainerKind {
    if container.restart_policy.as_deref() == Some("Always") {
        ContainerKind::Sidecar
    } else {
        ContainerKind::Init
    }
}

/// All containers of a pod in the order of their start, but the ephemeral ones.
pub fn all(pod: &Pod) -> impl Iterator<Item = (ContainerKind, &Container)> {
    let inits = initial(pod)
        .iter()
        .map(|container| (kind_of_initial(container), container));
    inits.chain(
        mains(pod)
            .iter()
            .map(|container| (ContainerKind::Main, container)),
    )
}

/// The pod's ephemeral containers, which may be added while it runs, in the form of the others.
pub fn ephemeral(pod: &Pod) -> impl Iterator<Item = Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.ephemeral_containers.iter().flatten())
        .map(as_container)
}

/// What an ephemeral container has in common with the others: all but its target. The API allows it
/// no ports, probes and hooks.
fn as_container(one: &EphemeralContainer) -> Container {
    let one = one.clone();
    Container {
        name: one.name,
        image: one.image,
        command: one.command,
        args: one.args,
        working_dir: one.working_dir,
        env: one.env,
        env_from: one.env_from,
        volume_mounts: one.volume_mounts,
        volume_devices: one.volume_devices,
        termination_message_path: one.termination_message_path,
        termination_message_policy: one.termination_message_policy,
        image_pull_policy: one.image_pull_policy,
        security_context: one.security_context,
        stdin: one.stdin,
        stdin_once: one.stdin_once,
        tty: one.tty,
        ..Container::default()
    }
}

/// The name of the container whose processes an ephemeral one is to see.
pub fn target_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let mut all = pod
        .spec
        .iter()
        .flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let own = all.find(|one| one.name == name)?;
    own.target_container_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

/// A container by its name, which is unique among all kinds of containers of a pod.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    let lasting = all(pod).map(|(kind, container)| (kind, Cow::Borrowed(container)));
    let debuggers =
        ephemeral(pod).map(|container| (ContainerKind::Ephemeral, Cow::Owned(container)));
    lasting
        .chain(debuggers)
        .find(|(_, container)| container.name == name)
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
