//! Tests of the engines and readers of stores: a common suite, and tests of single ones.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod embedded;
mod replica;
mod suite;
