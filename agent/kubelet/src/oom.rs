//! Records upstream's event `SystemOOM` if the machine as a whole ran out of memory and the kernel
//! killed a process.

use crate::shared::Shared;
use agent_journal::oom::{Victim, Watch};
use config_errors::chain;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time between two reads of the kernel's log.
const PERIOD: Duration = Duration::from_secs(5);

/// Follows the kernel's log, for ever.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let mut log = match Watch::begin() {
        Ok(log) => log,
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "cannot read the kernel's log: no SystemOOM event will be recorded"
            );
            return std::future::pending().await;
        }
    };
    loop {
        // Reading never waits, and the kernel writes little.
        match log.victims() {
            Ok(all) => all.iter().for_each(|one| record(&shared, one)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => tracing::warn!(
                error = chain(&error),
                "cannot read the kernel's log; trying again"
            ),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn record(shared: &Shared, victim: &Victim) {
    let Victim { process, pid } = victim;
    let text = format!("System OOM encountered, victim process: {process}, pid: {pid}");
    shared.warn("SystemOOM", &text);
}
