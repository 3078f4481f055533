//! Shared by tests of several rooms: a master that certifies, images of release keys, two hosts on
//! one cable, hosts on a switch, callers that notice a failure, programs, containers.
//!
//! Enter by [`master::Master`] for tests of the agent against the real verifier, by
//! [`network::with_peer`] for tests of the agent's network, by [`switch::Switch`] for tests of the
//! networks of several machines, by [`callers::Caller`] for calls that must not fail, by
//! [`network::with_addresses`] for crowds of callers, by [`csi::Driver`] for a driver of volumes,
//! by [`silent::Silent`] for a file system that never answers, by [`programs::shell`] for a program
//! that init could start, by [`programs::pack`] for one of this host in a container, and by
//! [`containers::container`] for a container of the engine. A software TPM and machines are in
//! `tests-harness`.

#![allow(
    clippy::missing_errors_doc,
    reason = "in what tests share every error ends the test that meets it, and its text is for the reader of that test"
)]

pub mod bus;
pub mod callers;
pub mod containers;
pub mod csi;
pub mod images;
pub mod master;
pub mod network;
pub mod programs;
pub mod silent;
pub mod switch;
