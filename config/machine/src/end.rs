//! How long a machine's end takes: what the agent gives containers, and what init gives the agent.

use std::time::Duration;

/// The longest grace that a container gets when its machine is powered off or rebooted; a pod's own
/// `terminationGracePeriodSeconds` counts up to it. Clouds switch a machine off by force after two minutes and less
/// (Google Compute Engine: 90 s), and the file systems must be clean by then.
pub const LONGEST_GRACE: Duration = Duration::from_secs(60);
/// What the agent takes besides: to stop its own tasks, and to see killed containers gone.
pub const AGENT_MARGIN: Duration = Duration::from_secs(20);
/// How long init waits for the agent before it asks the other services to end.
pub const AGENT_END: Duration =
    Duration::from_secs(LONGEST_GRACE.as_secs() + AGENT_MARGIN.as_secs());
