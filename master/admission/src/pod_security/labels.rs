//! The labels of a namespace: level and version of the standard, for each mode (enforce, audit,
//! warn).

use master_schema::validate::{Faults, FieldPath, Fields};
use serde_json::Value;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// The newest version of the standard that this server implements.
const MINOR: u32 = 36;

/// The levels, each stricter than the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A level at a version; `None` is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(super) level: Level,
    pub(super) minor: Option<u32>,
}

impl Policy {
    /// `restricted:latest`.
    pub(super) fn name(&self) -> String {
        match self.minor {
            None => format!("{}:latest", self.level.name()),
            Some(minor) => format!("{}:v1.{minor}", self.level.name()),
        }
    }

    /// The version that applies.
    pub(super) fn version(&self) -> u32 {
        self.minor.unwrap_or(MINOR)
    }
}

/// The policies of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policies {
    pub(super) enforce: Policy,
    pub(super) audit: Policy,
    pub(super) warn: Policy,
}

impl Policies {
    /// Parses labels; a namespace with faults is refused.
    pub(super) fn of(labels: Option<&Fields>) -> (Self, Faults) {
        let mut faults = Faults::default();
        let mut mode = |mode: &str| policy(labels, mode, &mut faults);
        let (enforce, audit, warn) = (mode("enforce"), mode("audit"), mode("warn"));
        (
            Self {
                enforce,
                audit,
                warn,
            },
            faults,
        )
    }

    /// Whether neither `enforce` nor `warn` demands anything.
    pub(super) fn is_privileged(&self) -> bool {
        self.enforce.level == Level::Privileged && self.warn.level == Level::Privileged
    }
}

fn policy(labels: Option<&Fields>, mode: &str, faults: &mut Faults) -> Policy {
    let found = |key: &str| {
        labels
            .and_then(|labels| labels.get(key))
            .and_then(Value::as_str)
    };
    let at = FieldPath::root("metadata");
    let at = at.field("labels");
    let key = format!("{PREFIX}{mode}");
    let level = match found(&key) {
        None => Level::Privileged,
        Some(text) => Level::parse(text).unwrap_or_else(|| {
            faults.invalid(
                &at.key(&key),
                &text.into(),
                "must be one of privileged, baseline, restricted",
            );
            // An invalid level must not allow what was meant to be refused.
            Level::Restricted
        }),
    };
    let key = format!("{PREFIX}{mode}-version");
    let minor = match found(&key) {
        None | Some("latest") => None,
        Some(text) => match text.strip_prefix("v1.").map(str::parse::<u32>) {
            Some(Ok(minor)) if text == format!("v1.{minor}") => Some(minor),
            Some(_) | None => {
                faults.invalid(
                    &at.key(&key),
                    &text.into(),
                    "must be \"latest\" or \"v1.x\"",
                );
                None
            }
        },
    };
    Policy { level, minor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_read_and_wrong_ones_close_the_door() {
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.30", "pod-security.kubernetes.io/warn": "strict"});
        let (policies, faults) = Policies::of(labels.as_object());
        assert_eq!(
            policies.enforce,
            Policy {
                level: Level::Baseline,
                minor: Some(30)
            }
        );
        assert_eq!(policies.warn.level, Level::Restricted);
        let error = faults.into_error("", "Namespace", "a").unwrap_err();
        assert!(
            error.message.contains(
                "metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"strict\""
            ),
            "{error}"
        );
        assert!(Policies::of(None).0.is_privileged());
    }
}
