//! Metadata services of clouds as a source of user-data: which one a machine has, what is asked,
//! what answers mean.
//!
//! Pure: no I/O, no clock, no tasks. `init` asks [`platform::choose`] and starts `agent metadata`,
//! which brings up the only network before the measurement and has an unprivileged child of its own
//! drive a [`fetch::Fetch`] over it. The programs meet in exit codes ([`exit`]), in the limit of
//! the bytes ([`MAX_BYTES`]) and in the service's one address.
//!
//! Guarantees: nothing but the [`ADDRESS`] is asked, no redirect is followed, no answer is longer
//! than its limit, and no content reaches a message.

pub mod fetch;
pub mod platform;

use std::net::Ipv4Addr;

pub use fetch::{Answer, Fetch, Request, Step};
pub use platform::{Dmi, Platform, Setting};

/// Where every one of these services answers: link-local, so that no router hands it on (RFC 3927).
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Most bytes of user-data; the limit of every other source.
pub const MAX_BYTES: usize = 64 << 10;

/// How `agent metadata` ends.
pub mod exit {
    /// The bytes are in the file.
    pub const DONE: u8 = 0;
    /// The service answers, and this machine has no user-data.
    pub const NOTHING: u8 = 3;
    /// The service answered something that no later attempt will cure.
    pub const REFUSED: u8 = 4;
    /// Nothing usable came in time; a later attempt may do better.
    pub const LATER: u8 = 5;
}
