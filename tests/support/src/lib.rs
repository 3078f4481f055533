//! Shared by tests of several rooms: a master that certifies, images of release keys, two hosts on
//! one cable, containers.
//!
//! Enter by [`master::Master`] for tests of the agent against the real verifier, by
//! [`network::with_peer`] for tests of the agent's network, by [`network::with_addresses`] for
//! crowds of callers, by [`csi::Driver`] for a driver of volumes, and by [`containers::container`]
//! for a container of the engine. A software TPM and machines are in `tests-harness`.

#![allow(
    clippy::missing_errors_doc,
    reason = "in what tests share every error ends the test that meets it, and its text is for the reader of that test"
)]

pub mod containers;
pub mod csi;
pub mod images;
pub mod master;
pub mod network;
