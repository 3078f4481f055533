//! The texts of events about containers that wait or are being ended, as upstream writes them.

use crate::notes::{Death, HookProgress, Notes};
use crate::policy::{has_new_image, is_replaced, restarts};
use agent_runtime::{Container as Seen, ContainerKind};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};

/// The events of containers that wait between two attempts: the container's name, whether the event
/// is a warning, and its message.
pub fn waits<'a>(status: &'a PodStatus, pod: &str) -> Vec<(&'a str, bool, String)> {
    let all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let told = all.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let message = waiting.message.as_deref().unwrap_or_default();
        match waiting.reason.as_deref()? {
            "CrashLoopBackOff" => Some((
                container.name.as_str(),
                true,
                format!(
                    "Back-off restarting failed container {} in pod {pod}",
                    container.name
                ),
            )),
            "ImagePullBackOff" => Some((
                container.name.as_str(),
                false,
                message
                    .split(": ErrImagePull")
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )),
            _ => None,
        }
    });
    told.collect()
}

/// The message of the `Killing` event: why a container is being ended.
pub fn killing(pod: &Pod, notes: &Notes, seen: &Seen) -> String {
    let name = &seen.key.container;
    let verdict = notes.verdicts.get(&seen.id);
    let dead = verdict
        .and_then(|verdict| verdict.dead)
        .filter(|_| notes.ending.is_none());
    let failed = |probe: &str| match seen.key.kind {
        ContainerKind::Main if restarts(pod, ContainerKind::Main, name, 1) => {
            format!("Container {name} failed {probe} probe, will be restarted")
        }
        ContainerKind::Main | ContainerKind::Ephemeral => {
            format!("Container {name} failed {probe} probe")
        }
        ContainerKind::Init | ContainerKind::Sidecar => {
            format!("Init container {name} failed {probe} probe")
        }
    };
    match dead {
        Some(Death::Liveness) => failed("liveness"),
        Some(Death::Startup) => failed("startup"),
        None if notes.ending.is_none() && is_replaced(pod, notes, seen) => {
            if has_new_image(pod, seen) {
                format!("Container {name} definition changed, will be restarted")
            } else {
                format!("Container {name} resize requires restart")
            }
        }
        None if notes.post_start.get(&seen.id) == Some(&HookProgress::Failed) => {
            "FailedPostStartHook".to_owned()
        }
        None => format!("Stopping container {name}"),
    }
}
