//! Ranks requests, so that a full queue drops the cheapest to repeat.

use config_attest::verifier::Claimant;

/// The cost of asking again under another identity, the lowest first. In a full queue a request
/// displaces one of lower rank, so that an attacker cannot fill the queue with identities that cost
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueRank {
    /// Nothing: the identity is a key made in software.
    NoTpm,
    /// A TPM without a known manufacturer, which may be an emulator.
    Tpm,
    /// Another TPM of a manufacturer that the rule names.
    CertifiedTpm,
    /// An admin's write: a Machine of the inventory lists this TPM.
    Inventory,
}

impl QueueRank {
    const ALL: [Self; 4] = [Self::NoTpm, Self::Tpm, Self::CertifiedTpm, Self::Inventory];

    /// The rank of a claimant.
    pub(crate) fn of(claimant: &Claimant) -> Self {
        let certified = || {
            claimant
                .verdict()
                .checks
                .iter()
                .any(|check| check.ok && check.name == "EK certificate")
        };
        if !claimant.has_tpm() {
            Self::NoTpm
        } else if claimant.own_machine().is_some() {
            Self::Inventory
        } else if certified() {
            Self::CertifiedTpm
        } else {
            Self::Tpm
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoTpm => "no-tpm",
            Self::Tpm => "tpm",
            Self::CertifiedTpm => "certified-tpm",
            Self::Inventory => "inventory",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rank| rank.as_str() == text)
    }
}
