//! Finds the master by a signed document from discovery endpoints that need not be trusted.
//!
//! [`Finder::find`] asks the endpoints in turn until one gives a document that `config-discovery`
//! accepts: signed by a pinned key, for this cluster, in force, and of no older generation than was
//! ever accepted, which [`Memory`] keeps on the state partition. [`Finder::follow`] fetches again
//! before the document expires, and when no master is reachable, for as long as it is polled. An
//! attacker who controls endpoint or network can keep a machine from joining, and no more. No task
//! is spawned here but the driver of each HTTP connection, which ends with it; progress goes to a
//! [`ProgressCallback`]; nothing here prints. [`read_pins`] reads the pins of a cluster's roots
//! from a file.

mod fetch;
mod finder;
mod memory;
mod pins;

pub use fetch::FetchError;
pub use finder::{Failure, Finder, Progress, ProgressCallback};
pub use memory::{Memory, MemoryError};
pub use pins::read_pins;
