//! Reasons to refuse a signed document: one variant and one code each.

/// The reason why a signed document is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentFault {
    /// It has more bytes than allowed.
    #[error("it has {found} bytes, more than {}", crate::MAX_BYTES)]
    TooLarge {
        /// The number of bytes.
        found: usize,
    },
    /// It does not have the form that `WIRE.md` defines.
    #[error("it is not a signed document: {0}")]
    Malformed(String),
    /// Its key is not pinned.
    #[error("it is signed by the key {found}, which is not pinned")]
    PinUnknown {
        /// The key's hash, `sha256:…`.
        found: String,
    },
    /// The signature does not verify with the key.
    #[error("its signature does not verify with its key")]
    Signature,
    /// A version that this program does not support.
    #[error(
        "it is of version {found}; this program reads version {}",
        crate::VERSION
    )]
    Version {
        /// The version.
        found: u64,
    },
    /// It is for another cluster than the requested one.
    #[error("it is for the cluster {found}, not for {expected}")]
    OtherCluster {
        /// The cluster in the document.
        found: String,
        /// The requested cluster.
        expected: String,
    },
    /// It is older than one seen before, or than the configuration allows.
    #[error("its generation is {found}, below {least}, which was seen or is required")]
    GenerationBack {
        /// The document's generation.
        found: u64,
        /// The lowest accepted one.
        least: u64,
    },
    /// It was issued in the future.
    #[error("it was issued at {issued}, and it is {now} now (Unix seconds)")]
    NotYetValid {
        /// Time of issue, Unix seconds.
        issued: u64,
        /// The current time.
        now: u64,
    },
    /// It has expired.
    #[error("it expired at {expires}, and it is {now} now (Unix seconds)")]
    Expired {
        /// Expiry, Unix seconds.
        expires: u64,
        /// The current time.
        now: u64,
    },
}

impl DocumentFault {
    /// All codes.
    pub const CODES: [&'static str; 9] = [
        "TOO_LARGE",
        "MALFORMED",
        "PIN_UNKNOWN",
        "SIGNATURE",
        "VERSION",
        "OTHER_CLUSTER",
        "GENERATION_BACK",
        "NOT_YET_VALID",
        "EXPIRED",
    ];

    /// The code: stable, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "TOO_LARGE",
            Self::Malformed(_) => "MALFORMED",
            Self::PinUnknown { .. } => "PIN_UNKNOWN",
            Self::Signature => "SIGNATURE",
            Self::Version { .. } => "VERSION",
            Self::OtherCluster { .. } => "OTHER_CLUSTER",
            Self::GenerationBack { .. } => "GENERATION_BACK",
            Self::NotYetValid { .. } => "NOT_YET_VALID",
            Self::Expired { .. } => "EXPIRED",
        }
    }

    /// What an admin can do on the machine that refused the document.
    pub const fn cure(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::Malformed(_) | Self::Signature => {
                "check that the URI is that of a discovery endpoint; if it is, its content is being changed on the way"
            }
            Self::PinUnknown { .. } => {
                "compare `discovery.pins` with what `pratique discovery show` prints; if they agree, the endpoint is hostile"
            }
            Self::Version { .. } => "boot an image that is as new as the master's",
            Self::OtherCluster { .. } => {
                "compare `discovery.uris` with what `pratique discovery show` prints"
            }
            Self::GenerationBack { .. } => {
                "the endpoint serves an old document: see whether the master can publish (`pratique discovery show`)"
            }
            Self::NotYetValid { .. } => {
                "set this machine's clock, or give it time servers (`network.ntp`)"
            }
            Self::Expired { .. } => {
                "see whether the master can publish (`pratique discovery show`), and whether this machine's clock is right"
            }
        }
    }
}
