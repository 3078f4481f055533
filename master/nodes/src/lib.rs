//! What the master sets on the Node of a Machine: labels and taints. Pure.
//!
//! Two writers use it: the admission of a node (`master/attest`) makes the Node, and a controller (`master/control-nodes`) keeps it as
//! the Machine's state and the policy's rules say.
//!
//! - `node`: labels of what is in the inventory and was proved, and the taint of the Machine's state
//! - `marks`: labels and taints that a rule of the policy gives, and what of them to add and to remove

pub mod marks;
pub mod node;
