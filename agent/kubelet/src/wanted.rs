//! What the master wants of a pod, as its task is told, and what people are told of it.

use agent_pods::{DEFAULT_GRACE, Death, Notes, Progress, grace, pod_ref, restarts};
use agent_runtime::{Container as Seen, Kind};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use std::sync::Arc;
use std::time::Duration;

/// What the master wants of a pod.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// This version of it.
    Pod(Arc<Pod>),
    /// The master doesn't know it: end it with this grace.
    Gone(Duration),
}

/// How long an orphan may take to end, by the last version of its pod that was known.
pub(crate) fn orphan_grace(wanted: &Wanted) -> Duration {
    match wanted {
        Wanted::Pod(pod) if pod_ref(pod).is_some() => grace(pod),
        Wanted::Pod(_) => DEFAULT_GRACE,
        Wanted::Gone(grace) => *grace,
    }
}

/// The events of containers that wait between two attempts: reason, words, and whether they are a warning.
pub(crate) fn waits(status: &PodStatus, pod: &str) -> Vec<(bool, String)> {
    let all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let told = all.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        match waiting.reason.as_deref()? {
            "CrashLoopBackOff" => Some((
                true,
                format!(
                    "Back-off restarting failed container {} in pod {pod}",
                    container.name
                ),
            )),
            "ImagePullBackOff" => Some((
                false,
                format!("Back-off pulling image {:?}", container.image),
            )),
            _ => None,
        }
    });
    told.collect()
}

/// Why a container is being ended, in upstream's words.
pub(crate) fn killing(pod: &Pod, notes: &Notes, seen: &Seen) -> String {
    let name = &seen.key.container;
    let verdict = notes.verdicts.get(&seen.id);
    let dead = verdict
        .and_then(|verdict| verdict.dead)
        .filter(|_| notes.ending.is_none());
    let failed = |probe: &str| match seen.key.kind {
        Kind::Main if restarts(pod, Kind::Main, name, 1) => {
            format!("Container {name} failed {probe} probe, will be restarted")
        }
        Kind::Main | Kind::Ephemeral => format!("Container {name} failed {probe} probe"),
        Kind::Init | Kind::Sidecar => format!("Init container {name} failed {probe} probe"),
    };
    match dead {
        Some(Death::Liveness) => failed("liveness"),
        Some(Death::Startup) => failed("startup"),
        None if notes.post_start.get(&seen.id) == Some(&Progress::Failed) => {
            "FailedPostStartHook".to_owned()
        }
        None => format!("Stopping container {name}"),
    }
}
