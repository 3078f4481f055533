//! Finds the attempt of a container that exec and attach are meant for.

use crate::handshake::TunnelRefusal;
use agent_runtime::{Container as Seen, ContainerState, PodRef};
use http::StatusCode;

/// The container's newest attempt, by its id in the engine.
///
/// # Errors
/// It has ended or is being started (400), or no attempt of it was seen (404).
pub fn running(seen: &[Seen], pod: &PodRef, container: &str) -> Result<String, TunnelRefusal> {
    let newest = seen
        .iter()
        .filter(|seen| seen.key.container == container)
        .max_by_key(|seen| seen.key.attempt);
    let not = |status, why: &str| TunnelRefusal {
        status,
        message: format!("container {container:?} of pod {:?} {why}", pod.name),
    };
    match newest.map(|seen| (&seen.state, &seen.id)) {
        Some((ContainerState::Running { .. }, id)) => Ok(id.clone()),
        Some((ContainerState::Exited { code, .. }, _)) => Err(not(
            StatusCode::BAD_REQUEST,
            &format!("is not running: it ended with code {code}"),
        )),
        Some((ContainerState::Created, _)) => Err(not(
            StatusCode::BAD_REQUEST,
            "is not running: it is being started",
        )),
        None => Err(not(StatusCode::NOT_FOUND, "not found: it has not started")),
    }
}
