//! The signals by which the agent is asked to end.

use crate::error::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM or SIGINT.
pub(crate) struct Ending {
    term: Signal,
    int: Signal,
}

impl Ending {
    /// Begins to listen to both signals.
    pub(crate) fn new() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Runtime);
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits until one of the signals has come.
    pub(crate) async fn signal_came(&mut self) {
        // Cancel-safe: both arms only wait, and a received signal ends every later wait.
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
