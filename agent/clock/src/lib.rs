//! The machine's time: SNTP within bounds, and the master's time, which counts more.
//!
//! SNTP (RFC 4330, RFC 5905) proves nothing: anyone who sits between machine and server can answer
//! what he likes. So it may do little: [`step`] moves the clock once, before the machine enrols,
//! never before the image was built nor absurdly far; afterwards the clock is compared with the
//! master's Date header on the authenticated connection ([`Watch`]), and a server that disagrees
//! with it is not listened to. [`sntp`] is the pure codec, [`judge`] the pure decisions, [`ask`]
//! the driver, which spawns nothing. Nothing here sets a clock: the caller does, by `agent-sys`.

mod client;
mod judge;
pub mod sntp;
mod watch;

pub use client::{AskError, Server, ask};
pub use judge::{Bounds, Disagreement, Refusal, Step, judge, step};
pub use sntp::{Fault, Sample};
pub use watch::{Advice, Watch};
