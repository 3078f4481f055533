//! Metrics of a program: Prometheus' text format, the kernel's figures about a process, and how
//! checks of health ended. Pure: the caller reads `/proc`.

mod health;
mod process;
mod text;

pub use health::{HEALTH, Health};
pub use process::{FILES, Process};
pub use text::{Figure, Text};

/// The media type of [`Text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
