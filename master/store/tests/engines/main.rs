//! Engines and readers of stores: what each must do, and what only one does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod embedded;
mod replica;
mod suite;
