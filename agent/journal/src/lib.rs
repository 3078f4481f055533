//! The logs of a machine's own programs and of its kernel, by a query (upstream's node log query, KEP-2258): which services,
//! from when to when, which boot, how many of the last lines, which pattern. All of it is decided on the node.
//!
//! What there is: the files that init keeps of containerd, agent and master ([`config_machine::journal`]), on the state (which is
//! encrypted, or lasts as long as the boot), and the kernel's own log, in which init's lines are, too. No other file of the
//! machine can be named: a query names services, out of a closed list ([`Service`]).
//!
//! Guarantees:
//! - Lines of several services come in the order of time. Those of this boot have times by the clock of now, so that a clock that
//!   was set during the boot changes no order; older ones have the times with which they were written.
//! - A follower misses no line while files are put aside, unless all that are kept were replaced between two looks; then it is
//!   told so.
//! - No control character reaches the reader's terminal.
//! - An answer is limited in bytes and in time, a query in length, a pattern in size (matching is linear), and answers at once in
//!   number. A limit that cuts an answer is told at its end.
//!
//! Tasks and channels: none of its own. Reading blocks, and goes slice by slice to the runtime's blocking threads, so many at
//! once; nobody reads ahead of the client.
//!
//! Enter by [`Journal::answer`]. [`Query`], [`record`](fn@record) and the order of lines are pure.

mod answer;
mod files;
mod kmsg;
mod query;
mod reader;
mod service;
mod source;

pub use answer::{Journal, Places};
pub use kmsg::{Record, record};
pub use query::{Fault, Query};
pub use service::Service;
