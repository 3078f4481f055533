//! A fuzz target for each decoder of bytes from outside, on stable Rust.
//!
//! cargo-fuzz wants a nightly compiler and a second workspace; this driver needs neither. It
//! mutates golden seeds (captured TPM evidence, valid documents, tables) with a seeded generator,
//! so that every finding is a target, a seed number and a case number:
//!
//! `cargo run -p tests-fuzz -- [TARGET…] --seconds 60 --seed 1`
//!
//! Finds are kept in `corpus/TARGET`, and every later run, including the tests, begins with them.
//!
//! A target fails when it panics, when a decoded value breaks an invariant that the target asserts,
//! or when one case takes longer than [`run::CASE_LIMIT`] of the processor's time. `cargo test -p
//! tests-fuzz` runs every target for a fixed number of cases. There are no tasks and no channels.
//! Enter by [`targets::all`] and [`run::run`].

#![allow(
    clippy::missing_errors_doc,
    reason = "in what tests share every error ends the test that meets it, and its text is for the reader of that test"
)]

pub mod mutate;
pub mod run;
pub mod targets;
