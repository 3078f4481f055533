//! Restores attempts that containerd has lost, from the pod's status in the API.

use crate::containers::find;
use crate::names::pod_ref;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState as State, User};
use config_kube::k8s_openapi::api::core::v1::{ContainerStatus, ContainerUser, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

/// Adds to `seen` an attempt for each container that the pod's status has and containerd does not
/// (its state was lost). All count as exited, so that a container that did its work before is not
/// run again.
pub fn recover(pod: &Pod, mut seen: Vec<Seen>, now: Timestamp) -> Vec<Seen> {
    let Some(status) = &pod.status else {
        return seen;
    };
    let initial = status.init_container_statuses.iter().flatten();
    let initial = initial.map(|status| (ContainerKind::Init, status));
    let mains = status.container_statuses.iter().flatten();
    let debuggers = status.ephemeral_container_statuses.iter().flatten();
    let debuggers = debuggers.map(|status| (ContainerKind::Ephemeral, status));
    let all = initial.chain(mains.map(|status| (ContainerKind::Main, status)));
    let round = seen.iter().map(|seen| seen.round).max();
    for (kind, status) in all.chain(debuggers) {
        let known = seen.iter().any(|seen| seen.key.container == status.name);
        // The status lists sidecars among the init containers: only the spec tells them apart.
        let kind = find(pod, &status.name).map_or(kind, |(kind, _)| kind);
        if let (false, Some(lost)) = (known, lost(pod, status, kind, now)) {
            // Of the round of the others: in an earlier round it would be started again at once.
            let round = round.unwrap_or_default();
            seen.push(Seen { round, ..lost });
        }
    }
    seen
}

fn lost(pod: &Pod, status: &ContainerStatus, kind: ContainerKind, now: Timestamp) -> Option<Seen> {
    let id = status
        .container_id
        .as_deref()?
        .strip_prefix("containerd://")?
        .to_owned();
    let state = status.state.as_ref()?;
    // While it waited for its next attempt, its exit was in `lastState`.
    let ended = state
        .terminated
        .as_ref()
        .or_else(|| status.last_state.as_ref()?.terminated.as_ref());
    let time = |time: &Option<Time>| time.as_ref().map_or(now, |time| time.0);
    let state = State::Exited {
        started_at: ended.map_or(now, |ended| time(&ended.started_at)),
        finished_at: ended.map_or(now, |ended| time(&ended.finished_at)),
        // A container that ran when the status was written: nobody saw its exit code.
        code: ended
            .filter(|_| state.running.is_none())
            .map_or(255, |ended| ended.exit_code),
        oom_killed: ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")),
        start_error: None,
    };
    Some(Seen {
        id,
        key: agent_runtime::ContainerKey {
            pod: pod_ref(pod)?,
            container: status.name.clone(),
            kind,
            attempt: u32::try_from(status.restart_count).unwrap_or_default(),
        },
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state,
        backoff: None,
        round: 0,
        // As after a reboot: init containers do their work again, and no back-off counts.
        this_boot: false,
        stop_signal: status.stop_signal.clone(),
        needs: None,
        user: status.user.as_ref().and_then(user),
    })
}

/// The user of the first process, from the status.
fn user(user: &ContainerUser) -> Option<User> {
    let user = user.linux.as_ref()?;
    let number = |id: i64| u32::try_from(id).ok();
    let groups = user.supplemental_groups.iter().flatten();
    Some(User {
        uid: number(user.uid)?,
        gid: number(user.gid)?,
        groups: groups.copied().map(number).collect::<Option<_>>()?,
    })
}
