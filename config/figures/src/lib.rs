//! Metrics of a program: Prometheus' text format, and the kernel's figures about a process. Pure:
//! the caller reads `/proc`.

mod process;
mod text;

pub use process::{FILES, Process};
pub use text::{Figure, Text};

/// The media type of [`Text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
