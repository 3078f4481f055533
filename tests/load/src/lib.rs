//! Load on a master, by clients that cost little themselves, and the check that what they saw could
//! be true.
//!
//! [`site::Site`] is a master as a process on loopback, [`client::Connection`] one HTTPS connection
//! to it; [`linear`] decides whether a history of concurrent calls has an order that explains every
//! answer; [`workload`] makes such histories over the API; [`bench`] measures the figures of
//! tests/FIGURES.md. All of it runs on one thread, so that the load takes as little as can be of
//! the machine that it shares with the master.

#![allow(
    clippy::missing_errors_doc,
    reason = "in what tests share every error ends the test that meets it, and its text is for the reader of that test"
)]

pub mod bench;
pub mod client;
pub mod linear;
pub mod objects;
pub mod register;
pub mod site;
pub mod workload;

/// Errors between a client and a master.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process or file of the harness.
    #[error(transparent)]
    Harness(#[from] tests_harness::Error),
    /// A connection broke off or never came about.
    #[error("the connection failed")]
    Connection(#[from] std::io::Error),
    /// The kubeconfig is not as the master writes it.
    #[error("the kubeconfig cannot be used: {0}")]
    Access(String),
    /// The other end does not speak HTTP/1.1 as we do.
    #[error("the answer is not understood: {0}")]
    Protocol(String),
    /// An answer that ends the measurement.
    #[error("{method} {path} was answered {status}: {body}")]
    Refused {
        /// The method.
        method: String,
        /// The path.
        path: String,
        /// The status.
        status: u16,
        /// The start of the body.
        body: String,
    },
    /// The observed history is impossible.
    #[error("the history is wrong: {0}")]
    History(String),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;
