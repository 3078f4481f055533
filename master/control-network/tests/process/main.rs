//! Controllers of the network against the real API server over the real store, in one process.

mod allocation_repair;
mod node_ipam;
