//! Metrics of a program: Prometheus' text format, the kernel's figures about a process, how checks
//! of health ended, and a client's requests. Pure: the caller reads `/proc` and the clock.

mod health;
mod histogram;
mod process;
mod requests;
mod text;

pub use health::{HEALTH, Health};
pub use histogram::Histogram;
pub use process::{FILES, Process};
pub use requests::Requests;
pub use text::{Figure, Text};

/// The media type of [`Text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
