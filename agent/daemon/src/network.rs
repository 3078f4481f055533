//! Brings the machine's network up, unless the host manages it.

use crate::console::say;
use crate::error::Error;
use agent_net::{Status, Task};
use config_model::MachineConfig;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest wait for all interfaces: a missing one must not keep the machine from its master for
/// ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Spawns the network's task, and waits until the machine can be reached: until everything
/// configured is set up, or after a while until it has any address. Returns the time servers from
/// DHCP.
pub(crate) async fn bring_up(
    machine: &MachineConfig,
    run: &Path,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Vec<IpAddr>, Error> {
    let task = Task {
        network: machine.network.clone(),
        host_name: machine.name.as_ref().map(|name| name.as_str().to_owned()),
        resolver_file: run.join("resolv.conf"),
    };
    let (status, mut reported) = watch::channel(Status::default());
    tasks.spawn(async move {
        let Err(error) = agent_net::run(task, status).await;
        Err(Error::Part("network", error.into()))
    });
    let lost = |_closed| Error::Part("network", "it ended before it was up".into());
    let ready = timeout(PATIENCE, async {
        reported
            .wait_for(|status| status.ready)
            .await
            .map(|status| status.clone())
    });
    let status = if let Ok(status) = ready.await {
        status.map_err(lost)?
    } else {
        say("the network is not as configured yet; going on with the first address that comes");
        reported
            .wait_for(|status| !status.addresses.is_empty())
            .await
            .map_err(lost)?
            .clone()
    };
    let addresses: Vec<String> = status
        .addresses
        .iter()
        .map(|address| format!("{} {}", address.interface, address.ip))
        .collect();
    say(&format!("network is up: {}", addresses.join(", ")));
    Ok(status.ntp)
}
