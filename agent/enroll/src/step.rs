//! The steps of an exchange, as WIRE.md (`config/protocol`) numbers them.

use crate::Error;
use std::fmt;

/// A step of an exchange; displayed with its number: `step 3, evidence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The node makes and sends its hello.
    Hello,
    /// The master checks the hello and answers with a challenge.
    Challenge,
    /// The node makes and sends its evidence.
    Evidence,
    /// The master checks the evidence, and its policy decides.
    Verdict,
    /// The node takes its certificates.
    Certificates,
}

impl Step {
    /// The master's step in which it answers what the node sends in this one.
    pub(crate) fn answered(self) -> Self {
        match self {
            Self::Hello | Self::Challenge => Self::Challenge,
            Self::Evidence | Self::Verdict | Self::Certificates => Self::Verdict,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "step 1, hello",
            Self::Challenge => "step 2, challenge",
            Self::Evidence => "step 3, evidence",
            Self::Verdict => "step 4, verdict",
            Self::Certificates => "step 5, certificates",
        })
    }
}

/// Why an exchange failed, and in which step.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: Step,
    pub(crate) error: Error,
}
