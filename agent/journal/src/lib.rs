//! The logs of a machine's own programs and of its kernel, by a query (upstream's node log query,
//! KEP-2258): which services, from when to when, which boot, how many of the last lines, which
//! pattern. The node itself evaluates all of it.
//!
//! The sources are the files that init keeps of containerd, agent and master
//! ([`config_machine::journal`]), on the state (which is encrypted, or lasts as long as the boot),
//! and the kernel's own log, which also holds init's lines. No other file can be read: a query
//! names services from a closed list ([`LoggedService`]).
//!
//! Guarantees:
//! - Lines of several services come in the order of time. Those of this boot have times by the
//!   current clock, so that setting the clock during the boot changes no order; older ones have the
//!   times with which they were written.
//! - A follower misses no line while files are rotated, unless all kept files were replaced between
//!   two checks; then it gets a notice.
//! - No control character reaches the reader's terminal.
//! - Limits hold for the bytes and the time of an answer, the length of a query, the size of a
//!   pattern (matching is linear), and the number of concurrent answers. An answer that was cut by
//!   a limit ends with a notice.
//!
//! Tasks and channels: none of its own. Reading blocks, and runs slice by slice on a bounded number
//! of the runtime's blocking threads, never ahead of the client.
//!
//! Enter by [`Journal::answer`]. [`Query`], [`record`](fn@record) and the order of lines are pure.

mod answer;
mod files;
mod kmsg;
pub mod oom;
mod query;
mod reader;
mod service;
mod source;

pub use answer::{Journal, LogPaths};
pub use kmsg::{Record, record};
pub use query::{Fault, Query};
pub use service::LoggedService;
