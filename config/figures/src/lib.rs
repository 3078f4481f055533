//! Figures of programs as monitoring reads them: Prometheus' text format, and what the kernel tells of a process. Pure: the
//! caller reads `/proc`.

mod process;
mod text;

pub use process::{FILES, Process};
pub use text::{Figure, Text};

/// The media type of [`Text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
