//! What lies in front of the encrypted state, as the machine and its admin both read it: the header, twice, the master's
//! recovery copy, twice, and the one-off key that opens the state on another board.
//!
//! No I/O. Enter at [`header::Header`]; which header is believed is the agent's to decide.

pub mod header;
