//! Attempts as containerd shows them, for tests.

use agent_runtime::{
    Container as Seen, ContainerKey, ContainerKind, ContainerState, ExitCause, PodRef,
};
use jiff::Timestamp;

/// The first attempt of a container of the pod `p` in the namespace `n`, whose UID is `u`, made
/// since the machine booted; its id is the container's name.
pub(crate) fn attempt(name: &str, kind: ContainerKind, state: ContainerState) -> Seen {
    let pod = PodRef {
        namespace: "n".into(),
        name: "p".into(),
        uid: "u".into(),
    };
    Seen {
        id: name.to_owned(),
        key: ContainerKey {
            pod,
            container: name.to_owned(),
            kind,
            attempt: 0,
        },
        image: String::new(),
        image_id: String::new(),
        state,
        backoff: None,
        round: 0,
        this_boot: true,
        stop_signal: None,
        needs: None,
        user: None,
    }
}

/// The state of one that has ended.
pub(crate) fn exited(finished_at: Timestamp, code: i32, cause: ExitCause) -> ContainerState {
    ContainerState::Exited {
        started_at: Timestamp::UNIX_EPOCH,
        finished_at,
        code,
        cause,
    }
}
