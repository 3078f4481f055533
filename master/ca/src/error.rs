//! Errors of the certificate authority.

use std::path::PathBuf;

/// A failure of the certificate authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the authority's folder could not be read or written.
    #[error("{what} {}", path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file of the authority's folder does not hold what it should.
    #[error("{} is damaged: {why}; restore the data folder, or recover the root key with the admin's recovery copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A key file opens, but holds another key than the known one.
    #[error(
        "{} holds another {purpose} than the cluster's: somebody put it there, and nothing is signed by it; restore the data folder, or \
         recover the root key with the admin's recovery copy", path.display()
    )]
    Planted {
        /// The file.
        path: PathBuf,
        /// What the key is for.
        purpose: &'static str,
    },
    /// A sealed key belongs to another keeper than the one in use.
    #[error("{} was kept by `{found}`, but this master keeps keys by `{using}`; start it {cure}", path.display())]
    OtherKeeper {
        /// The file.
        path: PathBuf,
        /// The keeper that sealed it.
        found: String,
        /// The keeper in use.
        using: &'static str,
        /// How to start the master with the other keeper.
        cure: &'static str,
    },
    /// The keeper's TPM operation failed.
    #[error("the key keeper cannot {what}")]
    Keeper {
        /// The operation.
        what: &'static str,
        /// The cause.
        #[source]
        source: crate::attestor::AttestorError,
    },
    /// A certificate could not be built.
    #[error("cannot build the {profile} certificate")]
    Build {
        /// The profile.
        profile: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A key could not be made or read.
    #[error("cannot use a key: {0}")]
    Key(&'static str),
    /// A request is not one that its signer allows.
    #[error("the certificate request is refused: {0}")]
    Request(String),
    /// The rotation cannot be begun or ended in this state.
    #[error("{0}")]
    Rotation(&'static str),
    /// The clock is more than a day before the time at which the authority's keys were made.
    #[error(
        "this machine's clock is wrong: it is more than a day before the time at which the cluster's own keys were made, and nothing is \
         signed by such a clock; set it (on a machine: name time servers in `network.ntp`)"
    )]
    Clock,
    /// The keys that came with a state from another board are not this authority's.
    #[error(
        "the keys that came with the state from another board can't be taken over: {0}; make the one-off key again \
         (`pratique recover-state`) with the recovery copy that belongs to this state"
    )]
    Restore(&'static str),
    /// A recovery copy could not be opened.
    #[error("the recovery copy cannot be opened: {0}")]
    Recovery(&'static str),
}

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, Error>;
