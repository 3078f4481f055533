//! The machine's time: SNTP within bounds, and the master's time, which counts more.
//!
//! SNTP (RFC 4330, RFC 5905) is not authenticated: anyone between machine and server can answer
//! with any time. So its effect is bounded: [`step`] moves the clock once, before the machine
//! enrols, never before the time of the image's build and at most ten years after it. Afterwards
//! the clock is compared with the master's Date header on the authenticated connection ([`Watch`]),
//! and a server that disagrees with it is ignored. [`sntp`] is the pure codec, [`judge`] the pure
//! decisions, [`ask`] the driver, which spawns nothing. Nothing here sets a clock: the caller does,
//! by `agent-sys`.

mod client;
mod judge;
pub mod sntp;
mod watch;

pub use client::{AskError, Server, ask};
pub use judge::{Bounds, Disagreement, Refusal, Step, judge, step};
pub use sntp::{Fault, Sample};
pub use watch::{Advice, Watch};
