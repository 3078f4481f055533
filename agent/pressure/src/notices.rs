//! Conditions and events of the Node that report what other parts of the agent know about the
//! machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Conditions that others set, by type. Clones share them; the kubelet writes them with the Node's
/// status, and an event where one changes.
#[derive(Debug, Clone, Default)]
pub struct Notices(Arc<Mutex<BTreeMap<&'static str, Notice>>>);

/// The state of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whether the condition holds. Those of [`Notices`] are all of something bad.
    pub on: bool,
    /// One word in camel case.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Notices {
    /// Sets a condition.
    pub fn set(&self, condition: &'static str, notice: Notice) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(condition, notice);
    }

    /// All conditions as they are now.
    #[must_use]
    pub fn all(&self) -> BTreeMap<&'static str, Notice> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The conditions to report: those that hold and were not reported so, and those that ceased to
/// hold.
#[must_use]
pub fn news(
    reported: &BTreeMap<&'static str, Notice>,
    now: &BTreeMap<&'static str, Notice>,
) -> Vec<Notice> {
    let changed = now.iter().filter(|(condition, notice)| {
        let before = reported.get(*condition);
        before != Some(*notice) && (notice.on || before.is_some_and(|before| before.on))
    });
    changed.map(|(_, notice)| notice.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_and_what_never_held_is_not() {
        let notice = |on, message: &str| Notice {
            on,
            reason: "Why",
            message: message.to_owned(),
        };
        let of = |notice| BTreeMap::from([("Bad", notice)]);
        let (good, bad, worse) = (
            of(notice(false, "good")),
            of(notice(true, "bad")),
            of(notice(true, "worse")),
        );
        assert_eq!(news(&BTreeMap::new(), &good), []);
        for (before, after) in [
            (&good, &bad),
            (&bad, &worse),
            (&worse, &good),
            (&BTreeMap::new(), &bad),
        ] {
            assert_eq!(
                news(before, after),
                after.values().cloned().collect::<Vec<_>>()
            );
            assert_eq!(news(after, after), []);
        }
    }
}
