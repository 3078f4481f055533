//! All controllers in one list: what the master runs, and what roles it sets up for them.
//!
//! Each room has its own list; its tests are the plans' (pure). The tests here run all controllers
//! together, against the real API over the real store.

use master_control::Registration;

/// All controllers.
pub fn all() -> Vec<Registration> {
    [
        master_control_cluster::CONTROLLERS,
        master_control_network::CONTROLLERS,
        master_control_nodes::CONTROLLERS,
        master_control_workloads::CONTROLLERS,
        master_control_scaling::CONTROLLERS,
    ]
    .concat()
}
