//! Time limits of a shutdown: those that the agent gives pods, and those that init gives the agent.

use std::time::Duration;

/// The longest time to end that a machine's configuration may give its pods when the machine is
/// powered off or rebooted.
pub const LONGEST_GRACE: Duration = Duration::from_secs(300);
/// Containers that still run when the pods' time is over get this time to end, and are then killed.
pub const REST_GRACE: Duration = Duration::from_secs(2);
/// The agent's own time on top of it: to stop its tasks, and to wait for killed containers.
pub const AGENT_MARGIN: Duration = Duration::from_secs(20);
/// How long init waits for the agent before it asks the other services to end; it asks them at once
/// when the agent has ended.
pub const AGENT_END: Duration =
    Duration::from_secs(LONGEST_GRACE.as_secs() + AGENT_MARGIN.as_secs());
