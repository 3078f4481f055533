//! The signed log of verdicts, and the records and events that attestation writes.
//!
//! [`VerdictLog`] is the log on disk: it appends signed records and serves them for download;
//! `config_verdicts` has its format and its verification. [`Journal`] writes one record for each
//! decision about a Machine, a policy, a release or the CA, together with the event that `kubectl
//! describe` shows, and counts them ([`VerdictCounters`]). [`spec_changes`] finds what an admin
//! changed in a Machine. [`Recorded`] is what the log last said of each object, for a master that
//! starts.
//!
//! There are no tasks and no channels. Writes to disk run on a blocking thread; concurrent callers
//! share one flush.
//!
//! Enter by [`VerdictLog::open`] and [`Journal::new`].

mod changes;
mod counters;
mod error;
mod journal;
mod log;
mod missing;
mod recorded;
mod repeats;

pub use changes::{MachineChange, SpecChange, spec_changes};
pub use counters::VerdictCounters;
pub use error::Error;
pub use journal::{Journal, RequestDecision};
pub use log::VerdictLog;
pub use recorded::{APPROVED_REQUEST, Known, Lacking, Recorded};
