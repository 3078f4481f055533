//! The texts of events about containers that wait, are being ended or get other resources, as
//! upstream writes them.

use crate::notes::{Death, HookProgress, Notes};
use crate::policy::{has_new_image, is_replaced, restarts};
use agent_runtime::{Container as Seen, ContainerKind, Error, ErrorClass};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use serde_json::json;

/// An event of a container that waits between two attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitEvent<'a> {
    /// The container's name.
    pub container: &'a str,
    /// Its reason.
    pub reason: &'static str,
    /// It is a warning.
    pub warning: bool,
    /// Its message.
    pub message: String,
}

/// The events of the containers of a pod that wait between two attempts.
pub fn waits<'a>(status: &'a PodStatus, pod: &str) -> Vec<WaitEvent<'a>> {
    let all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let mut events = Vec::new();
    for container in all {
        let state = container.state.as_ref();
        let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) else {
            continue;
        };
        let name = container.name.as_str();
        let mut add = |reason, warning, message| {
            events.push(WaitEvent {
                container: name,
                reason,
                warning,
                message,
            });
        };
        match waiting.reason.as_deref() {
            Some("CrashLoopBackOff") => {
                let text = format!("Back-off restarting failed container {name} in pod {pod}");
                add("BackOff", true, text);
            }
            Some("ImagePullBackOff") => {
                let message = waiting.message.as_deref().unwrap_or_default();
                let text = message.split(": ErrImagePull").next().unwrap_or_default();
                add("BackOff", false, text.to_owned());
                add("Failed", true, "Error: ImagePullBackOff".to_owned());
            }
            Some(_) | None => {}
        }
    }
    events
}

/// The events of a container whose start failed, by reason and message; all are warnings. `image`
/// is the one that could not be fetched, if that is why.
pub fn start_failed(image: &str, error: &Error) -> Vec<(&'static str, String)> {
    let why = error.chain();
    let (cause, class) = match error.class {
        ErrorClass::ImagePull => {
            let text = format!("Failed to pull image {image:?}: {why}");
            (("Failed", text), "ErrImagePull")
        }
        ErrorClass::ImageNeverPull => (("ErrImageNeverPull", why), "ErrImageNeverPull"),
        ErrorClass::InvalidImageName => (("InspectFailed", why), "InvalidImageName"),
        ErrorClass::Unavailable
        | ErrorClass::Volume
        | ErrorClass::Config
        | ErrorClass::Create
        | ErrorClass::Start
        | ErrorClass::NotFound => return vec![("Failed", format!("Error: {why}"))],
    };
    vec![cause, ("Failed", format!("Error: {class}"))]
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

/// The message of an event about a pod's resize: `what` its state is, the resources that the spec
/// asks for, and why it waits if it does.
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
    fn a_resize_is_reported_with_what_the_spec_asks_for() {
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

    #[test]
    fn a_failed_start_has_upstreams_events() {
        let events = |class| {
            let found = start_failed("a:1", &Error::new(class, "why"));
            let found = found.into_iter();
            let texts = found.map(|(reason, message)| format!("{reason} {message}"));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            events(ErrorClass::ImagePull),
            [
                "Failed Failed to pull image \"a:1\": why",
                "Failed Error: ErrImagePull"
            ]
        );
        assert_eq!(
            events(ErrorClass::ImageNeverPull),
            ["ErrImageNeverPull why", "Failed Error: ErrImageNeverPull"]
        );
        assert_eq!(
            events(ErrorClass::InvalidImageName),
            ["InspectFailed why", "Failed Error: InvalidImageName"]
        );
        assert_eq!(events(ErrorClass::Start), ["Failed Error: why"]);
    }

    #[test]
    fn a_container_that_waits_for_its_image_has_two_events() {
        let state = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let status = |name: &str, state: serde_json::Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let pulls = state(
            "ImagePullBackOff",
            "Back-off pulling image \"a:1\": ErrImagePull: why",
        );
        let status = json!({"containerStatuses": [
            status("a", state("CrashLoopBackOff", "back-off 10s")),
            status("b", pulls),
            status("c", state("ContainerCreating", "")),
        ]});
        let status = serde_json::from_value(status).unwrap();
        let event = |container, reason, warning, message: &str| WaitEvent {
            container,
            reason,
            warning,
            message: message.to_owned(),
        };
        assert_eq!(
            waits(&status, "p"),
            [
                event(
                    "a",
                    "BackOff",
                    true,
                    "Back-off restarting failed container a in pod p"
                ),
                event("b", "BackOff", false, "Back-off pulling image \"a:1\""),
                event("b", "Failed", true, "Error: ImagePullBackOff"),
            ]
        );
    }
}
