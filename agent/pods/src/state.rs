//! One container's part of the pod's status: state, last state, readiness, resources.

use crate::backoff::between;
use crate::containers::{initial, latest, mains, previous};
use crate::machine::{ERROR_SHOWN, End, start_error};
use crate::notes::{Failure, HookProgress};
use crate::policy::waits;
use crate::recover::LOST;
use crate::resize::given;
use crate::status::StatusInput;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState as State, ExitCause, User};
use config_kube::k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser,
    ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::written::go_seconds;

/// Bytes of the termination messages of a pod's containers, for each of their two states.
const MAX_MESSAGES: usize = 12 << 10;
/// Bytes of the message of a container that waits, so that no fault, however long its words are,
/// makes a status that the API refuses.
const MAX_WAITING: usize = 4 << 10;
/// The message of a container that is lost, and that another attempt follows (upstream's).
const LOST_WHILE_RUNNING: &str = "The container could not be located when the pod was deleted.  The container used to be Running";
/// The message of one that none follows.
const LOST_AT_THE_END: &str = "The container could not be located when the pod was terminated";

impl StatusInput<'_> {
    pub(crate) fn container(&self, container: &Container, kind: ContainerKind) -> ContainerStatus {
        let seen = latest(self.facts.seen, &container.name);
        let before =
            previous(self.facts.seen, &container.name).and_then(|seen| self.terminated(seen));
        let verdict = seen
            .and_then(|seen| self.facts.notes.verdicts.get(&seen.id))
            .copied();
        // While its postStart hook runs, a container does not count as running (upstream's rule).
        let running = seen.is_some_and(|seen| {
            matches!(seen.state, State::Running { .. }) && !self.facts.notes.is_held(&seen.id)
        });
        let (mut state, last) = self.states(container, seen, before);
        if state.waiting.is_some() && self.was_due(container, kind) {
            state = unknown();
        }
        let ended_well =
            seen.is_some_and(|seen| matches!(seen.state, State::Exited { code: 0, .. }));
        ContainerStatus {
            name: container.name.clone(),
            image: seen.map_or_else(
                || container.image.clone().unwrap_or_default(),
                |seen| seen.image.clone(),
            ),
            image_id: seen.map(|seen| seen.image_id.clone()).unwrap_or_default(),
            container_id: seen.map(|seen| format!("containerd://{}", seen.id)),
            restart_count: seen.map_or(0, |seen| {
                i32::try_from(seen.key.attempt).unwrap_or(i32::MAX)
            }),
            // As upstream's prober manager: an init container is ready once it has succeeded, a
            // debugger never.
            ready: match kind {
                ContainerKind::Init => ended_well,
                ContainerKind::Ephemeral => false,
                ContainerKind::Sidecar | ContainerKind::Main => {
                    let unprobed =
                        container.startup_probe.is_none() && container.readiness_probe.is_none();
                    let ready = verdict.map_or(unprobed, |verdict| verdict.ready);
                    // One that is being deleted may serve to its end (KEP-1669).
                    let may_serve = matches!(self.end, None | Some(End::Deleted));
                    running && may_serve && ready
                }
            },
            started: Some(self.facts.has_started(container)),
            state: Some(state),
            // Upstream's type is a struct, which is written as `{}` also where it says nothing.
            last_state: Some(last.unwrap_or_default()),
            allocated_resources: self.allocated(container, kind).and_then(|own| own.requests),
            resources: self.resources(container, kind, seen),
            volume_mounts: volume_mounts(container),
            user: seen.and_then(|seen| seen.user.as_ref()).map(user),
            stop_signal: seen.and_then(|seen| seen.stop_signal.clone()),
            ..ContainerStatus::default()
        }
    }

    /// The resources that the node has admitted the container with: while a resize waits, those
    /// before it.
    fn allocated(
        &self,
        container: &Container,
        kind: ContainerKind,
    ) -> Option<ResourceRequirements> {
        let waits = self.facts.notes.pending.is_some();
        let latest = latest(self.facts.seen, &container.name).filter(|_| waits);
        (kind != ContainerKind::Ephemeral).then(|| {
            let given = latest.and_then(given);
            given
                .or_else(|| container.resources.clone())
                .unwrap_or_default()
        })
    }

    /// The resources that it has: those that were given to what runs.
    fn resources(
        &self,
        container: &Container,
        kind: ContainerKind,
        seen: Option<&Seen>,
    ) -> Option<ResourceRequirements> {
        let runs = seen.filter(|seen| matches!(seen.state, State::Running { .. }));
        match runs {
            Some(seen) => given(seen),
            None => self.allocated(container, kind),
        }
    }

    /// State and last state of a container.
    fn states(
        &self,
        container: &Container,
        seen: Option<&Seen>,
        before: Option<ContainerState>,
    ) -> (ContainerState, Option<ContainerState>) {
        let Some(seen) = seen else {
            return (self.not_started(container), None);
        };
        match &seen.state {
            State::Running { .. } if self.facts.notes.is_held(&seen.id) => {
                (self.held(container, seen), before)
            }
            State::Running { started_at } => {
                let running = ContainerStateRunning {
                    started_at: Some(Time(*started_at)),
                };
                (
                    ContainerState {
                        running: Some(running),
                        ..ContainerState::default()
                    },
                    before,
                )
            }
            State::Created => (self.not_started(container), before),
            State::Exited { .. } => {
                let ended = self.terminated(seen);
                match self.back_off(container, seen) {
                    Some(waiting) => (waiting, ended),
                    None => (ended.unwrap_or_default(), before),
                }
            }
        }
    }

    /// The state of a container whose postStart hook still runs, or failed, so that it is being
    /// ended.
    fn held(&self, container: &Container, seen: &Seen) -> ContainerState {
        if self.facts.notes.post_start.get(&seen.id) == Some(&HookProgress::Failed) {
            return waiting("PostStartHookError", "PostStartHook failed");
        }
        self.not_started(container)
    }

    fn not_started(&self, container: &Container) -> ContainerState {
        if let Some(failure) = self.facts.notes.failure(self.facts.pod, container) {
            return self.failed(failure);
        }
        // Every container of a pod with init containers is shown so, the init container that is
        // being started too (upstream's).
        let initializing = !initial(self.facts.pod).is_empty();
        waiting(
            if initializing {
                "PodInitializing"
            } else {
                "ContainerCreating"
            },
            "",
        )
    }

    fn failed(&self, failure: &Failure) -> ContainerState {
        let shown = between(failure.at, self.facts.now) < ERROR_SHOWN;
        if failure.reason == "ErrImagePull" && !shown {
            let message = format!(
                "Back-off pulling image {:?}: ErrImagePull: {}",
                failure.image, failure.message
            );
            return waiting("ImagePullBackOff", &message);
        }
        waiting(failure.reason, &failure.message)
    }

    /// The waiting state of a container between two attempts; `None` if there is no next attempt,
    /// or if the container ended by itself and the next comes at once. A container that the kubelet
    /// ended to restart it is shown as waiting, not as terminated (upstream's).
    fn back_off(&self, container: &Container, seen: &Seen) -> Option<ContainerState> {
        if self.facts.ends() {
            return None;
        }
        let (at, wait) = self.facts.next(seen)?;
        // The start after this exit has failed already: that is newer than the exit's back-off.
        if let Some(failure) = self.facts.notes.failure(self.facts.pod, container) {
            return Some(self.failed(failure));
        }
        let pod = &self.facts.pod.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        if let Some((why, _)) = start_error(seen, self.facts.now) {
            return Some(waiting("RunContainerError", why));
        }
        if self.facts.was_asked(seen) && !waits(at, wait, self.facts.now) {
            return Some(waiting("ContainerCreating", ""));
        }
        waits(at, wait, self.facts.now).then(|| {
            let place = format!(
                "{}_{}({})",
                text(&pod.name),
                text(&pod.namespace),
                text(&pod.uid)
            );
            let message = format!(
                "back-off {} restarting failed container={} pod={place}",
                go_seconds(wait),
                container.name
            );
            waiting("CrashLoopBackOff", &message)
        })
    }

    /// Why the attempt did not start, that it is lost, or its termination message. The containers
    /// of a pod share [`MAX_MESSAGES`] evenly (upstream's rule).
    fn message(&self, seen: &Seen, cause: &ExitCause) -> Option<String> {
        let message = match cause {
            ExitCause::NotStarted(why) => why.clone(),
            ExitCause::Lost if self.facts.next(seen).is_some() => LOST_WHILE_RUNNING.to_owned(),
            ExitCause::Lost => LOST_AT_THE_END.to_owned(),
            ExitCause::Own | ExitCause::OutOfMemory | ExitCause::Unseen => {
                (self.messages)(&seen.id)?
            }
        };
        let spec = self.facts.pod.spec.as_ref();
        let containers = spec.map_or(0, |spec| {
            let inits = spec.init_containers.as_ref().map_or(0, Vec::len);
            let debuggers = spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
            spec.containers.len() + inits + debuggers
        });
        Some(beginning(message, MAX_MESSAGES / containers.max(1)))
    }

    /// Of a pod that is over, a container that is known to have run, or whose turn had come: if it
    /// is not known how it ended, it counts as failed (upstream's rule).
    fn was_due(&self, container: &Container, kind: ContainerKind) -> bool {
        let (pod, seen) = (self.facts.pod, self.facts.seen);
        let inits = initial(pod);
        let ran = |one: &Container| {
            latest(seen, &one.name).is_some_and(|seen| seen.state != State::Created)
        };
        let due = match kind {
            ContainerKind::Main => {
                let succeeded = |one: &Container| {
                    latest(seen, &one.name)
                        .is_some_and(|seen| matches!(seen.state, State::Exited { code: 0, .. }))
                };
                inits.last().is_none_or(succeeded) || mains(pod).iter().any(ran)
            }
            ContainerKind::Init | ContainerKind::Sidecar => {
                let last = inits.iter().rposition(ran).unwrap_or_default();
                let mut due = inits.iter().take(last.saturating_add(1));
                due.any(|one| one.name == container.name)
            }
            ContainerKind::Ephemeral => false,
        };
        self.over && due
    }

    fn terminated(&self, seen: &Seen) -> Option<ContainerState> {
        let State::Exited {
            started_at,
            finished_at,
            code,
            cause,
        } = &seen.state
        else {
            return None;
        };
        let terminated = ContainerStateTerminated {
            container_id: Some(format!("containerd://{}", seen.id)),
            exit_code: *code,
            started_at: Some(Time(*started_at)),
            finished_at: Some(Time(*finished_at)),
            reason: Some(cause.reason(*code).to_owned()),
            message: self.message(seen, cause),
            signal: None,
        };
        Some(ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        })
    }
}

/// The beginning of a text, of at most so many bytes and whole characters.
fn beginning(mut text: String, most: usize) -> String {
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=most.min(text.len())).rev().find(fits);
    text.truncate(end.unwrap_or_default());
    text
}

/// The mounts of volumes. A read-only mount here is recursively read-only whatever the pod asks for
/// (KEP-3857); only a mount that the machine mounts below it later may be writable, where the
/// volume shows those.
fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let status = |mount: &VolumeMount| {
        let read_only = mount.read_only == Some(true);
        let later = matches!(
            mount.mount_propagation.as_deref(),
            Some("HostToContainer" | "Bidirectional")
        );
        let recursive = if later { "Disabled" } else { "Enabled" };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: read_only.then(|| recursive.to_owned()),
            ..VolumeMountStatus::default()
        }
    };
    let mounts = container.volume_mounts.as_ref()?;
    Some(mounts.iter().map(status).collect())
}

fn user(user: &User) -> ContainerUser {
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid.into(),
            gid: user.gid.into(),
            supplemental_groups: Some(user.groups.iter().copied().map(i64::from).collect()),
        }),
    }
}

/// The state of a container of which nothing is known, although it was to run (upstream's).
fn unknown() -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: LOST,
        reason: Some(ExitCause::Lost.reason(LOST).to_owned()),
        message: Some(LOST_AT_THE_END.to_owned()),
        ..ContainerStateTerminated::default()
    };
    ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = (!message.is_empty()).then(|| beginning(message.to_owned(), MAX_WAITING));
    let waiting = ContainerStateWaiting {
        reason: Some(reason.to_owned()),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PodFacts;
    use crate::attempts::{attempt, exited};
    use crate::notes::Notes;
    use crate::status::{Addresses, status};
    use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
    use jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn the_status_of_a_mount_says_that_read_only_means_all_of_it() {
        let mounts = json!([
            {"name": "a", "mountPath": "/a", "readOnly": true, "recursiveReadOnly": "IfPossible"},
            {"name": "b", "mountPath": "/b"},
            {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "d", "mountPath": "/d", "readOnly": true},
            {"name": "e", "mountPath": "/e", "readOnly": true, "mountPropagation": "HostToContainer"},
        ]);
        let container = json!({"name": "c", "volumeMounts": mounts});
        let reported = volume_mounts(&serde_json::from_value(container).unwrap());
        let wanted = json!([
            {"name": "a", "mountPath": "/a", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "b", "mountPath": "/b"},
            {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "d", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": "Disabled"},
        ]);
        assert_eq!(serde_json::to_value(reported).unwrap(), wanted);
    }

    #[test]
    fn the_containers_of_a_pod_share_what_their_messages_may_have() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {
                "restartPolicy": "Never",
                "initContainers": [{"name": "i"}],
                "containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
            },
        }))
        .unwrap();
        let ended = |(name, kind, cause): (&str, ContainerKind, ExitCause)| {
            let code = i32::from(kind == ContainerKind::Main);
            attempt(name, kind, exited(Timestamp::UNIX_EPOCH, code, cause))
        };
        let long = "x".repeat(4096);
        let (init, main) = (ContainerKind::Init, ContainerKind::Main);
        let seen = [
            ("i", init, ExitCause::Own),
            ("a", main, ExitCause::Own),
            ("b", main, ExitCause::Own),
            ("c", main, ExitCause::NotStarted(long.clone())),
        ]
        .map(ended);
        let facts = PodFacts {
            pod: &pod,
            seen: &seen,
            notes: &Notes::default(),
            refused: false,
            now: Timestamp::UNIX_EPOCH,
        };
        let message = |id: &str| {
            let text = if id == "b" { "short" } else { long.as_str() };
            Some(text.to_owned())
        };
        let (old, at) = (PodStatus::default(), Addresses::default());
        let reported = status(facts, &old, None, &at, &message);
        let lists = [
            reported.init_container_statuses,
            reported.container_statuses,
        ];
        let lengths = lists.into_iter().flatten().flatten().map(|own| {
            let ended = own.state.unwrap().terminated.unwrap();
            ended.message.unwrap().len()
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [3072, 3072, 5, 3072]);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(beginning("abc".to_owned(), 3), "abc");
        assert_eq!(beginning("abc".to_owned(), 2), "ab");
        assert_eq!(beginning("aäb".to_owned(), 2), "a");
        assert_eq!(beginning("ä".to_owned(), 1), "");
    }
}
