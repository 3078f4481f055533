//! The runtime of one command.

use crate::error::{Error, Result};
use std::future::Future;

/// Runs a command's work on this thread, to its end.
///
/// # Errors
/// This host lacks the resources for a runtime, or the work fails.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|e| Error::input("this host", e.to_string(), "free some of its resources"))?;
    runtime.block_on(work)
}
