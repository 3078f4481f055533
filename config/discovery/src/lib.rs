//! The signed document by which a machine finds its master, without I/O.
//!
//! The cluster's discovery key signs where masters are and by which roots they are known. Whoever hands the document on
//! (the discovery endpoint, a proxy, a file) need not be trusted: [`check`] accepts only what a pinned key signed, for the
//! cluster that was asked for, at or above a generation, within its time. [`Document::sign`] is the other side. The wire
//! is in `WIRE.md`. No clock and no randomness: time is passed in, signatures are deterministic (RFC 6979).

mod document;
mod envelope;
mod fault;
mod object;

pub use document::Document;
pub use envelope::{Expected, Trust, VerifiedDocument, check, pin_of};
pub use fault::Fault;
pub use object::parse as parse_object;

/// What is signed before the document's bytes, so that a signature is good for nothing else.
pub const LABEL: &[u8] = b"pratique discovery/v1\0";
/// The only version of the document.
pub const VERSION: u64 = 1;
/// Largest signed document: full lists of the longest names fit.
pub const MAX_BYTES: usize = 16 * 1024;
/// Most endpoints, and most pins.
pub const MAX_LIST: usize = 16;
/// Longest time between `issued` and `expires`, in seconds: 31 days.
pub const MAX_LIFE: u64 = 31 * 24 * 3600;
/// How far `issued` may lie in the future, in seconds: clocks differ.
pub const SKEW: u64 = 300;
