//! The texts of events about containers that wait, are being ended or get other resources, as
//! upstream writes them.

use crate::notes::{Death, HookProgress, Notes};
use crate::policy::{has_new_image, is_replaced, restarts};
use agent_runtime::{Container as Seen, ContainerKind};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use serde_json::json;

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

/// The message of an event about a pod's resize: `what` has become of it, the resources that the
/// spec asks for, and why it waits if it does.
pub fn resize(pod: &Pod, what: &str, error: Option<&str>) -> String {
    // By hand, as the order of the fields is part of the text.
    let one = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        let resources = serde_json::to_string(&resources).unwrap_or_default();
        format!(
            "{{\"name\":{},\"resources\":{resources}}}",
            json!(container.name)
        )
    };
    let list = |name: &str, all: &[Container]| {
        let all: Vec<String> = all.iter().map(one).collect();
        (!all.is_empty()).then(|| format!("\"{name}\":[{}]", all.join(",")))
    };
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref());
    let mains = spec.map(|spec| spec.containers.as_slice());
    let generation = pod.metadata.generation.unwrap_or_default();
    let fields = [
        list("initContainers", inits.unwrap_or_default()),
        list("containers", mains.unwrap_or_default()),
        Some(format!("\"generation\":{generation}")),
        error.map(|error| format!("\"error\":{}", json!(error))),
    ];
    let fields: Vec<String> = fields.into_iter().flatten().collect();
    format!("Pod resize {what}: {{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_is_told_with_what_the_spec_asks_for() {
        let resources =
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "memory": "1Gi"}});
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"generation": 2},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        }))
        .unwrap();
        let asked = r#"{"limits":{"cpu":"1"},"requests":{"cpu":"500m","memory":"1Gi"}}"#;
        assert_eq!(
            resize(&pod, "started", None),
            format!(
                r#"Pod resize started: {{"containers":[{{"name":"c","resources":{asked}}}],"generation":2}}"#
            )
        );
        let mut init = pod.spec.as_ref().unwrap().containers[0].clone();
        (init.name, init.resources) = ("i".to_owned(), None);
        pod.spec.as_mut().unwrap().init_containers = Some(vec![init]);
        let init = r#""initContainers":[{"name":"i","resources":{}}]"#;
        let text = format!(
            r#"Pod resize Deferred: {{{init},"containers":[{{"name":"c","resources":{asked}}}],"generation":2,"error":"too \"much\""}}"#
        );
        assert_eq!(resize(&pod, "Deferred", Some("too \"much\"")), text);
    }
}
