//! Metrics of the API server, under upstream's names: what was asked, how it was answered and how long that took. The figures
//! of the process come from the kernel (`/proc/self`), which is the only I/O here.

mod requests;

pub use requests::{About, LongRunning, Metrics};
