//! Why the agent ended, and the exit code for it.

use config_machine::state_key;
use std::path::PathBuf;

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The runtime could not be built.
    #[error("the agent's threads cannot be started")]
    Runtime(#[source] std::io::Error),
    /// A file that must be there cannot be used.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The configuration has faults, which were printed.
    #[error("the configuration {} has faults", .0.display())]
    Configuration(PathBuf),
    /// The configuration is valid, but not for an agent.
    #[error("the configuration cannot be used: {0}")]
    NotForAnAgent(String),
    /// The configuration is for another cluster than the machine's state.
    #[error(
        "this machine's state belongs to the cluster with the root {own}, and its user-data pins {pinned}: give it that \
         cluster's `ca_pins`, or write the whole image again, which starts a worker's state anew"
    )]
    OtherCluster {
        /// Pins of the roots that the state belongs to.
        own: String,
        /// Pins of the configuration.
        pinned: String,
    },
    /// The state belongs to a cluster, and nothing says to which.
    #[error(
        "this machine's state belongs to a cluster, and the record of which one ({}) is gone: its files are an older copy, \
         or damaged: write the whole image again, which starts a worker's state anew", .0.display()
    )]
    ClusterGone(PathBuf),
    /// The machine joins in another way than the one by which its state came to be.
    #[error(
        "this machine's state was made while it joined by {before}, and now it joins by {now}: give it its earlier user-data, \
         in which only `[identity]` and what names the masters may change, or write the whole image again, which starts a worker's state anew"
    )]
    OtherJoin {
        /// How it joined.
        before: String,
        /// How it joins now.
        now: String,
    },
    /// The TPM cannot be used.
    #[error("the TPM cannot be used")]
    Tpm(#[source] agent_tpm::Error),
    /// There is no usable TPM.
    #[error("{0}")]
    NoTpm(String),
    /// The enrolment cannot be tried.
    #[error("the machine cannot enrol")]
    Enroll(#[source] agent_enroll::Error),
    /// The identity that an admin issued cannot be used.
    #[error("this machine cannot be the node that its user-data names")]
    Identity(#[source] agent_enroll::Error),
    /// A part of the agent ended by itself.
    #[error("the agent's {0} ended")]
    Part(
        &'static str,
        #[source] Box<dyn std::error::Error + Send + Sync>,
    ),
}

impl Error {
    /// The class of the error as an exit code, in sysexits' numbers. 100 and 101 would ask init for
    /// a reboot or power-off.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Configuration(_)
            | Self::NotForAnAgent(_)
            | Self::OtherCluster { .. }
            | Self::ClusterGone(_)
            | Self::OtherJoin { .. }
            | Self::Identity(_) => 78,
            Self::Tpm(agent_tpm::Error::Authorization { .. }) => state_key::AUTHORIZATION,
            Self::Tpm(agent_tpm::Error::Full { .. }) => state_key::FULL,
            Self::Tpm(_) | Self::NoTpm(_) => 69,
            Self::File { .. } => 74,
            Self::Runtime(_) => 71,
            Self::Enroll(_) | Self::Part(..) => 70,
        }
    }
}
