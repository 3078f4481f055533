//! Symlinks to containers' logs, for log collectors. One is made with its container and removed
//! with its log; [`keep`] repairs those that a stopped agent left missing or stale.

use crate::shared::Shared;
use agent_launch::links;
use agent_runtime::ContainerKey;
use config_errors::chain;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks of all of them.
const PERIOD: Duration = Duration::from_secs(300);
/// Pause after the engine could not be reached.
const RETRY: Duration = Duration::from_secs(2);

/// Makes the symlink to the log of a started attempt. A failure is only logged: the container runs
/// without it.
pub(crate) async fn make(shared: &Arc<Shared>, key: ContainerKey) {
    let own = shared.clone();
    let (pod, container) = (key.pod.name.clone(), key.container.clone());
    let made = blocking(move || links::make(&own.config.machine, &key)).await;
    if let Err(error) = made {
        tracing::warn!(
            pod,
            container,
            error = chain(&error),
            "cannot make the link to a container's log"
        );
    }
}

/// Keeps the links to the logs of all containers, for ever.
pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        let wait = match shared.runtime.list(None).await {
            Ok(seen) => {
                let own = shared.clone();
                let keys: Vec<_> = seen.into_iter().map(|seen| seen.key).collect();
                let settled = blocking(move || links::settle(&own.config.machine, &keys)).await;
                if let Err(error) = settled {
                    tracing::warn!(
                        error = chain(&error),
                        "the links to containers' logs are not complete"
                    );
                }
                PERIOD
            }
            // The engine may not be up yet.
            Err(_) => RETRY,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Runs work with files on a thread that may wait for the disk.
async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|died| Err(io::Error::other(died)))
}
