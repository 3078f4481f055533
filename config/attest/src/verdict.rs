//! Verdicts: every check with what was expected and found, and refusals in two kinds that only the
//! verifier can tell apart.

use config_kube::pratique::Check;
use config_protocol::wire::Claims;
use config_protocol::{Code, Consequence};
use config_tpm::Digest;
use std::fmt;

/// Longest text of one side of a check; hostile values are cut there.
const MAX_TEXT: usize = 512;

/// Identifies one Machine object: a new object under the same name has another uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId {
    /// Name.
    pub name: String,
    /// metadata.uid.
    pub uid: String,
}

/// Holding one proves that evidence with a good HMAC(S, Q) and a good signature by the Machine's AK
/// was seen or, of a Machine without a TPM, a good signature by the key of its admission: only then
/// may the Machine's state be changed. Only the verifier makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenMachine {
    id: MachineId,
}

impl ProvenMachine {
    pub(crate) fn new(id: MachineId) -> Self {
        Self { id }
    }

    /// Which Machine.
    pub fn id(&self) -> &MachineId {
        &self.id
    }
}

/// The checks and claims of one exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Every check, in order.
    pub checks: Vec<Check>,
    /// SHA-256 of the SubjectPublicKeyInfo of the EK that the caller showed, once it could be read.
    pub ek_hash: Option<Digest>,
    /// The caller's claims.
    pub claims: Claims,
}

/// The name of the last check of those that show which machine it is: where it passed, all before
/// it did ([`Verdict::shows_possession`]).
pub(crate) const POSSESSION: &str = "NK policy";

impl Verdict {
    /// Whether the caller proved by a TPM which machine it is, whatever else failed.
    pub fn shows_possession(&self) -> bool {
        self.checks
            .iter()
            .any(|check| check.ok && check.name == POSSESSION)
    }

    /// What was not proved, for a person: name, expected and found value of every failed check.
    pub fn failed(&self) -> String {
        let failed = self.checks.iter().filter(|check| !check.ok);
        let all: Vec<String> = failed
            .map(|check| {
                let expected = if check.expected.is_empty() {
                    "nothing"
                } else {
                    &check.expected
                };
                format!(
                    "{} (expected {expected}, found {})",
                    check.name, check.actual
                )
            })
            .collect();
        all.join("; ")
    }
}

/// A refusal. Its kind says what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing was proved: it may be counted and recorded, and changes no Machine.
    Anonymous {
        /// The code of the reason.
        code: Code,
        /// The checks and claims of the exchange.
        verdict: Verdict,
    },
    /// The machine itself proved what is refused.
    Proven {
        /// Whose evidence it is.
        machine: ProvenMachine,
        /// Why: the first check that failed.
        code: Code,
        /// The checks and claims of the exchange.
        verdict: Verdict,
    },
}

impl Refusal {
    /// A refusal without any check, for reasons outside the verifier (rates, limits).
    pub fn anonymous(code: Code) -> Self {
        Self::Anonymous {
            code,
            verdict: Verdict::default(),
        }
    }

    /// The code of the reason.
    pub fn code(&self) -> Code {
        match self {
            Self::Anonymous { code, .. } | Self::Proven { code, .. } => *code,
        }
    }

    /// The checks and claims of the exchange.
    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Anonymous { verdict, .. } | Self::Proven { verdict, .. } => verdict,
        }
    }

    /// The Machine whose state may change, and how; `None` where nothing was proved or nothing
    /// follows.
    pub fn consequence(&self) -> Option<(&ProvenMachine, Consequence)> {
        match self {
            Self::Anonymous { .. } => None,
            Self::Proven { machine, code, .. } => match code.consequence() {
                Consequence::Nothing => None,
                consequence @ (Consequence::Suspect | Consequence::Untrusted) => {
                    Some((machine, consequence))
                }
            },
        }
    }

    /// One sentence for a person: the code's meaning and the failed check.
    pub fn message(&self) -> String {
        let code = self.code();
        let failed = self
            .verdict()
            .checks
            .iter()
            .find(|check| !check.ok && check.code == code.as_str());
        match failed {
            Some(check) => format!(
                "{} (check {}: expected {}, found {})",
                code.meaning(),
                check.name,
                check.expected,
                check.actual
            ),
            None => code.meaning().to_owned(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())
    }
}

impl std::error::Error for Refusal {}

/// The error of a failed check on which all later checks depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) Code);

/// Collects checks.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    list: Vec<Check>,
    first: Option<Code>,
}

impl Checks {
    /// Continues a list of an earlier phase. Where the rule enforces, nothing in it may have
    /// failed: the rule may have been another when the list was made.
    pub(crate) fn resume(list: Vec<Check>, enforces: bool) -> Self {
        let failed = list
            .iter()
            .find(|check| enforces && !check.ok)
            .and_then(|check| check.code.parse().ok());
        Self {
            list,
            first: failed,
        }
    }

    /// Adds the checks of the machine's state. They decide under a rule that enforces; otherwise
    /// they are shown to the person who decides.
    pub(crate) fn judged(&mut self, judgement: Self, enforces: bool) {
        if enforces {
            self.extend(judgement);
        } else {
            // Without its first failure: the list is shown, and stops nothing.
            self.list.extend(judgement.list);
        }
    }

    /// How many checks failed.
    pub(crate) fn failures(&self) -> usize {
        self.list.iter().filter(|check| !check.ok).count()
    }

    /// Records a check; says whether it passed.
    pub(crate) fn test(
        &mut self,
        name: &str,
        code: Code,
        ok: bool,
        expected: impl fmt::Display,
        actual: impl fmt::Display,
    ) -> bool {
        // The first failure names the refusal; later ones are often its consequences.
        if !ok && self.first.is_none() {
            self.first = Some(code);
        }
        self.list.push(Check {
            name: name.to_owned(),
            ok,
            code: if ok {
                String::new()
            } else {
                code.as_str().to_owned()
            },
            expected: cut(expected),
            actual: cut(actual),
        });
        ok
    }

    /// Records a finding that cannot fail.
    pub(crate) fn pass(
        &mut self,
        name: &str,
        expected: impl fmt::Display,
        actual: impl fmt::Display,
    ) {
        let (expected, actual) = (cut(expected), cut(actual));
        self.list.push(Check {
            name: name.to_owned(),
            ok: true,
            code: String::new(),
            expected,
            actual,
        });
    }

    /// Records a check on which all later checks depend.
    pub(crate) fn must(
        &mut self,
        name: &str,
        code: Code,
        ok: bool,
        expected: impl fmt::Display,
        actual: impl fmt::Display,
    ) -> Result<(), Stop> {
        if self.test(name, code, ok, expected, actual) {
            Ok(())
        } else {
            Err(Stop(code))
        }
    }

    /// Records a failure on which all later checks depend.
    pub(crate) fn fail(
        &mut self,
        name: &str,
        code: Code,
        expected: impl fmt::Display,
        actual: impl fmt::Display,
    ) -> Stop {
        self.test(name, code, false, expected, actual);
        Stop(code)
    }

    /// Adds the checks of another list.
    pub(crate) fn extend(&mut self, other: Self) {
        self.first = self.first.or(other.first);
        self.list.extend(other.list);
    }

    /// Fails with the first failed check.
    pub(crate) fn all_passed(&self) -> Result<(), Stop> {
        match self.first {
            Some(code) => Err(Stop(code)),
            None => Ok(()),
        }
    }

    /// The code of the first failed check, which names the refusal.
    pub(crate) fn first_failure(&self, stop: Stop) -> Code {
        self.first.unwrap_or(stop.0)
    }

    pub(crate) fn list(&self) -> &[Check] {
        &self.list
    }

    pub(crate) fn into_list(self) -> Vec<Check> {
        self.list
    }
}

/// Text without control characters, of bounded length: values of the caller go from here to logs,
/// status and terminals.
fn cut(text: impl fmt::Display) -> String {
    text.to_string()
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(MAX_TEXT)
        .collect()
}
