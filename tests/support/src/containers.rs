//! Containers as the engine shows them.

use agent_runtime::{Container, ContainerKey, ContainerKind, ContainerState, PodRef};

/// The first attempt of a main container, made since the machine booted; its id is `UID-NAME`.
pub fn container(pod: PodRef, name: &str, state: ContainerState) -> Container {
    Container {
        id: format!("{}-{name}", pod.uid),
        key: ContainerKey {
            pod,
            container: name.to_owned(),
            kind: ContainerKind::Main,
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
