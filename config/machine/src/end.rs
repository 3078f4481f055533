//! Time limits of a shutdown: those that the agent gives containers, and those that init gives the
//! agent.

use std::time::Duration;

/// The longest grace that a container gets when its machine is powered off or rebooted; a pod's own
/// `terminationGracePeriodSeconds` counts up to it. Clouds switch a machine off by force after two minutes and less
/// (Google Compute Engine: 90 s), and the file systems must be clean by then.
pub const LONGEST_GRACE: Duration = Duration::from_secs(60);
/// The agent's own time on top of it: to stop its tasks, and to wait for killed containers.
pub const AGENT_MARGIN: Duration = Duration::from_secs(20);
/// How long init waits for the agent before it asks the other services to end.
pub const AGENT_END: Duration =
    Duration::from_secs(LONGEST_GRACE.as_secs() + AGENT_MARGIN.as_secs());
