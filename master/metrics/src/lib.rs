//! Metrics of the API server, under upstream's names: requests, answers and durations, checks of
//! health. The figures of the process come from the kernel (`/proc/self`), which is the only I/O
//! here.

mod requests;

pub use config_figures::{HEALTH, Health};
pub use requests::{About, LongRunning, Metrics, StoredObjects, in_flight, objects};
