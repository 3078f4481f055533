//! Links to containers' logs for programs that collect them. One is made with its container and
//! removed with its log; what an agent that ended in between has left is made good here.

use crate::shared::Shared;
use agent_launch::links;
use agent_runtime::ContainerKey;
use config_errors::chain;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at all of them.
const PERIOD: Duration = Duration::from_secs(300);
/// Pause after the engine could not be reached.
const RETRY: Duration = Duration::from_secs(2);

/// Makes the link to the log of an attempt that was started. A container runs without one, too.
pub(crate) async fn make(shared: &Arc<Shared>, key: ContainerKey) {
    let own = shared.clone();
    tell(move || links::make(&own.config.machine, &key)).await;
}

/// Keeps the links to the logs of all containers, for ever.
pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        let wait = match shared.runtime.list(None).await {
            Ok(seen) => {
                let own = shared.clone();
                let keys: Vec<_> = seen.into_iter().map(|seen| seen.key).collect();
                tell(move || links::settle(&own.config.machine, &keys)).await;
                PERIOD
            }
            // It may not be up yet.
            Err(_) => RETRY,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Does some work with files, and tells where it failed.
async fn tell(work: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let done = tokio::task::spawn_blocking(work).await;
    if let Err(error) = done.unwrap_or_else(|died| Err(io::Error::other(died))) {
        tracing::warn!(
            error = chain(&error),
            "the links to containers' logs are not complete"
        );
    }
}
