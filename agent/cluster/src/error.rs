//! Errors of sandboxes and of the pod network.

use std::io;
use std::path::PathBuf;

/// Why a sandbox or the pod network can't be set up or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The master has not given this node a range of addresses for pods yet.
    #[error("this node has no range of pod addresses yet (spec.podCIDRs of its Node is empty)")]
    NoRange,
    /// All addresses of a range are in use.
    #[error("no pod address is free in {0}: end pods on this node")]
    Full(String),
    /// All ranges of ids are in use.
    #[error("no range of user ids is free: end pods with `hostUsers: false` on this node")]
    NoIds,
    /// A range that can't hold pods: its family is not available, or it has no room.
    #[error("{0} can't be used for pods: {1}")]
    Range(String, &'static str),
    /// A link of the tunnel has lost its key: another program removed it.
    #[error("a WireGuard link of the tunnel has lost its key")]
    NoKey,
    /// The kernel refused a step.
    #[error("cannot set up a sandbox or the pod network")]
    System(#[from] agent_sys::Error),
    /// A file of the agent's own.
    #[error("{what} {path}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// A fault with a file.
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// The whole chain of causes in one line, for an event.
    pub fn chain(&self) -> String {
        config_errors::chain(self)
    }
}
