//! Restores attempts that containerd has lost, from the pod's status in the API.

use crate::containers::find;
use crate::names::pod_ref;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState as State, ExitCause, User};
use config_kube::k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, ContainerUser, Pod,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

/// Exit code of a container that is lost (upstream's).
pub(crate) const LOST: i32 = 137;

/// Adds to `seen` an attempt for each container that has started by the pod's status and that
/// containerd does not have (its state was lost). All count as exited, so that a container that did
/// its work before is not run again.
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
        .or_else(|| status.last_state.as_ref()?.terminated.as_ref())
        .filter(|_| state.running.is_none());
    let time = |time: Option<&Time>| time.map_or(now, |time| time.0);
    let state = match (ended, &state.running) {
        (Some(ended), _) => State::Exited {
            started_at: time(ended.started_at.as_ref()),
            finished_at: time(ended.finished_at.as_ref()),
            code: ended.exit_code,
            cause: cause(ended),
        },
        // It ran when the status was written.
        (None, Some(running)) => State::Exited {
            started_at: time(running.started_at.as_ref()),
            finished_at: now,
            code: LOST,
            cause: ExitCause::Lost,
        },
        // It was made and had not started, so nothing was lost (upstream's rule). The machine
        // itself removes such an attempt when an earlier run of the agent has left it.
        (None, None) => return None,
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

/// The cause of an end, from the status.
fn cause(ended: &ContainerStateTerminated) -> ExitCause {
    match ended.reason.as_deref() {
        Some("StartError") => ExitCause::NotStarted(ended.message.clone().unwrap_or_default()),
        Some("OOMKilled") => ExitCause::OutOfMemory,
        Some("Unknown") => ExitCause::Unseen,
        Some("ContainerStatusUnknown") => ExitCause::Lost,
        Some(_) | None => ExitCause::Own,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The state of the container of a pod whose status says so, and of which containerd knows
    /// nothing.
    fn recovered(state: &Value, last: &Value) -> Option<State> {
        let status = json!({
            "name": "a", "containerID": "containerd://id", "image": "i", "imageID": "", "ready": false,
            "restartCount": 1, "state": state, "lastState": last,
        });
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "a"}]}, "status": {"containerStatuses": [status]},
        });
        let now = Timestamp::from_second(100).unwrap();
        let pod = serde_json::from_value(pod).unwrap();
        recover(&pod, Vec::new(), now).pop().map(|seen| seen.state)
    }

    fn ended(code: i32, cause: ExitCause) -> State {
        State::Exited {
            started_at: Timestamp::from_second(10).unwrap(),
            finished_at: Timestamp::from_second(20).unwrap(),
            code,
            cause,
        }
    }

    #[test]
    fn a_lost_container_ended_as_its_status_says_or_nobody_knows_how() {
        let of = |code: i32, reason: &str| {
            json!({"terminated": {
                "exitCode": code, "reason": reason, "message": "why",
                "startedAt": "1970-01-01T00:00:10Z", "finishedAt": "1970-01-01T00:00:20Z",
            }})
        };
        for (code, cause) in [
            (0, ExitCause::Own),
            (7, ExitCause::Own),
            (137, ExitCause::OutOfMemory),
            (128, ExitCause::NotStarted("why".to_owned())),
            (255, ExitCause::Unseen),
            (137, ExitCause::Lost),
        ] {
            let status = of(code, cause.reason(code));
            let expected = Some(ended(code, cause));
            assert_eq!(recovered(&status, &json!({})), expected);
            assert_eq!(recovered(&json!({"waiting": {}}), &status), expected);
        }
        let running = json!({"running": {"startedAt": "1970-01-01T00:00:30Z"}});
        let lost = State::Exited {
            started_at: Timestamp::from_second(30).unwrap(),
            finished_at: Timestamp::from_second(100).unwrap(),
            code: 137,
            cause: ExitCause::Lost,
        };
        assert_eq!(
            recovered(&running, &of(7, "Error")),
            Some(lost),
            "the attempt before"
        );
    }

    #[test]
    fn a_container_that_was_made_and_had_not_started_is_not_lost() {
        for reason in ["ContainerCreating", "PodInitializing"] {
            let waiting = json!({"waiting": {"reason": reason}});
            assert_eq!(recovered(&waiting, &json!({})), None);
        }
    }
}
