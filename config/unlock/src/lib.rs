//! Which boots may open what a machine keeps, and the key that opens a master's state once on another board. No I/O.

pub mod approvals;
pub mod one_off;
