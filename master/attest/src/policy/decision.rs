//! What a join policy decides on a hello and on checked evidence.

use config_attest::policy::CheckedRule;
use config_attest::verifier::Approval;
use config_protocol::Code;
use jiff::Timestamp;

/// The decision on a hello (step 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelloDecision {
    /// The machine may attest; its evidence is checked by this rule.
    Attest(Box<CheckedRule>),
    /// Every machine is refused.
    Reject,
}

/// The decision on checked evidence (step 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PolicyDecision {
    /// Admit if every check of the rule passed.
    Verify,
    /// Admit by this approval, whatever the checks found.
    Approve(Approval),
    /// A person decides.
    Queue(QueuedRequest),
    /// Refuse with this code.
    Refuse(Code),
}

/// A request that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuedRequest {
    /// The request's name.
    pub(crate) name: String,
    /// The request to create first; `None` where it exists.
    pub(crate) to_create: Option<NewRequest>,
}

/// A request that is to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewRequest {
    /// When it is deleted if it is still undecided.
    pub(crate) expires: Timestamp,
    /// Differences from what was approved before.
    pub(crate) changes: Vec<String>,
    /// Whether the machine booted something else than was approved; false if it only asks for more
    /// names or addresses.
    pub(crate) is_other: bool,
    /// Requests to delete for it: earlier ones of the same machine that are undecided or admit
    /// nothing more, and, in a full queue, one of a lower rank.
    pub(crate) replaces: Vec<String>,
}
