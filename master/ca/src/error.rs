//! What can go wrong with keys and certificates.

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
    /// A sealed key belongs to another keeper than the one in use.
    #[error("{} was kept by `{found}`, but this master keeps keys by `{using}`; start it {cure}", path.display())]
    OtherKeeper {
        /// The file.
        path: PathBuf,
        /// Who kept it.
        found: String,
        /// Who is in use.
        using: &'static str,
        /// What to do.
        cure: &'static str,
    },
    /// The keeper failed.
    #[error("the key keeper cannot {what}")]
    Keeper {
        /// What it was asked.
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
    /// A request is not one that the profile allows.
    #[error("the certificate request is refused: {0}")]
    Request(String),
    /// The root is not to be rotated so, or not now.
    #[error("{0}")]
    Rotation(&'static str),
    /// The clock is before the time at which the authority's keys were made.
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

/// Shorthand of this room.
pub type Result<T> = std::result::Result<T, Error>;
