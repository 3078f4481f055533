//! The built-in kinds as the server treats them: defaults, validation, warnings, and the wire form.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]
#![allow(
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "cases are tables, written in place"
)]

mod cluster;
mod common;
mod fairness;
mod fixtures;
mod infrastructure;
mod services;
mod statuses;
mod workloads;
