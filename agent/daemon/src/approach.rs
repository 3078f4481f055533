//! The steps before the first request to the master: the network, the time, and the master's
//! address.

use crate::RunArguments;
use crate::discovery::{self, Location};
use crate::error::Error;
use crate::machine::ImageDescription;
use crate::network;
use crate::time::{Clock, ClockOptions};
use config_model::MachineConfig;
use std::sync::Arc;
use tokio::task::JoinSet;

/// A machine that can reach its master.
pub(crate) struct Approach {
    pub(crate) clock: Arc<Clock>,
    /// Where discovery found the master; `None` where the configuration has no discovery.
    pub(crate) found: Option<Location>,
}

/// Brings up the network (on a machine), sets the clock and finds the master; spawns a task for
/// each that keeps it up to date.
///
/// Cancel-safe: the network's task goes on in its set, or ends with it; a clock is set whole or not
/// at all; and a search for the master that is dropped has found nothing.
pub(crate) async fn approach(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    on_machine: bool,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Approach, Error> {
    let time_servers = if on_machine {
        network::bring_up(machine, &arguments.run, tasks).await?
    } else {
        Vec::new()
    };
    let options = ClockOptions {
        run: &arguments.run,
        ours: on_machine,
    };
    let clock = Clock::start(machine, &time_servers, image, options, tasks).await;
    let found = discovery::locate(arguments, machine, tasks).await?;
    Ok(Approach { clock, found })
}
