//! The data in front of the encrypted state, which the machine and its admin both read: the header,
//! twice, the master's recovery copy, twice, and the one-off key that opens the state on another
//! board.
//!
//! Behind it lies what names the header's generation, authenticated by itself: [`generation`].
//!
//! No I/O. Enter at [`header::Header`]; the agent decides which of the two headers to trust.

#[doc(hidden)]
pub mod decoders;
pub mod generation;
pub mod header;
