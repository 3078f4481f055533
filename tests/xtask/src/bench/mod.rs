//! `cargo xtask bench`: the figures of tests/FIGURES.md, measured in one run and printed with what they are held against.

mod api;
mod control;
mod disk;
mod guest;
mod image;
mod join;

pub(crate) use api::soak;

use crate::steps::{Failure, Outcome};

const USAGE: &str = "usage: cargo xtask bench image|join [--built]|api [--only NAME[,NAME]…]|control [--pods N]|disk [rates|unlock] [--built]";

/// Measures what is named.
pub(crate) fn bench(words: &[String]) -> Outcome {
    match words.first().map(String::as_str) {
        Some("image") => image::image(),
        Some("join") => join::join(&words[1..]),
        Some("api") => api::api(&words[1..]),
        Some("control") => control::control(&words[1..]),
        Some("disk") => disk::disk(&words[1..]),
        // In the guest of `disk`.
        Some("disk-guest") => guest::guest(),
        other => Err(Failure::usage(
            &format!("bench does not know {:?}", other.unwrap_or_default()),
            USAGE,
        )),
    }
}
