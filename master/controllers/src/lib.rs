//! The list of all controllers: the master runs these and creates their roles.
//!
//! Each room has its own list, and tests of its pure plans. The tests here run all controllers
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
