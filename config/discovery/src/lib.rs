//! The signed document through which a machine finds its master. No I/O.
//!
//! The cluster's discovery key signs where the masters are and which roots identify them. The
//! distributor of the document (the discovery endpoint, a proxy, a file) need not be trusted:
//! [`check`] accepts only what a pinned key signed, for the requested cluster, at or above a
//! generation, within its validity. [`Document::sign`] is the other side. `WIRE.md` defines the
//! encoding. No clock and no randomness: time is an argument, signatures are deterministic (RFC
//! 6979).

mod document;
mod envelope;
mod fault;
mod object;

pub use document::Document;
pub use envelope::{Expected, Trust, VerifiedDocument, check, pin_of};
pub use fault::DocumentFault;
pub use object::parse as parse_object;

/// Prefix of the signed bytes, so that a signature cannot be used for anything else.
pub const LABEL: &[u8] = b"pratique discovery/v1\0";
/// The only version of the document.
pub const VERSION: u64 = 1;
/// Bytes of a signed document: full lists of the longest names fit.
pub const MAX_BYTES: usize = 16 * 1024;
/// Number of endpoints, and of pins.
pub const MAX_LIST: usize = 16;
/// Maximum time between `issued` and `expires` in seconds: 31 days.
pub const MAX_LIFE: u64 = 31 * 24 * 3600;
/// How far in the future `issued` may be, in seconds: clocks differ.
pub const SKEW: u64 = 300;
