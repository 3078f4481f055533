//! Labels and taints that the master sets on the Node of a Machine. Pure.
//!
//! Two writers use it: the admission of a node (`master/attest`) makes the Node, and a controller
//! (`master/control-nodes`) keeps it as the Machine's state and the policy's rules say.
//!
//! - `node`: labels from the inventory and the proof, and the taint of the Machine's state
//! - `marks`: labels and taints from a rule of the policy, and which of them to add and to remove

pub mod marks;
pub mod node;
