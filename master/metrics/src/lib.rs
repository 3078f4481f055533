//! Metrics of the API server, in the Prometheus text format.
//!
//! [`Metrics`] counts requests; [`Text`] writes figures in the format. The figures of the process come from the kernel
//! (`/proc/self`), which is the only I/O here.

mod process;
mod requests;
mod text;

pub use requests::{About, LongRunning, Metrics};
pub use text::{Figure, Text};
