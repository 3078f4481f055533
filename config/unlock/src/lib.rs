//! Which boots may open a machine's secrets, and the key that opens a master's state once on
//! another board. No I/O.

pub mod approvals;
pub mod one_off;
