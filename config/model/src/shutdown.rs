//! `[node] shutdown_grace…`: how long pods have to end with the machine, by their priority.

use crate::check::quoted;
use crate::defaults::{SHUTDOWN_GRACE, SHUTDOWN_GRACE_CRITICAL, SHUTDOWN_GRACE_MAX};
use crate::fault::{FaultKind, Sink};
use crate::format::HumanDuration;
use crate::read::{At, Entries};
use std::time::Duration;

/// Pods from this priority on are critical (upstream's `SystemCriticalPriority`).
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Time for pods to end when their machine is powered off or rebooted: groups by priority that end
/// one after another, the lowest first. There is one group at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownGrace(Vec<ShutdownGroup>);

/// Pods that end at the same time: those whose priority is not below this, but below that of the
/// next group. Pods below all groups are in the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// The lowest priority.
    pub from: i32,
    /// How long the group's pods have.
    pub time: Duration,
}

impl ShutdownGrace {
    /// Critical pods after all others.
    #[must_use]
    pub fn of(regular: Duration, critical: Duration) -> Self {
        let group = |from, time| ShutdownGroup { from, time };
        Self(vec![group(0, regular), group(CRITICAL_PRIORITY, critical)])
    }

    /// These groups; `None` where there is none.
    #[must_use]
    pub fn by_priority(mut groups: Vec<ShutdownGroup>) -> Option<Self> {
        groups.sort_by_key(|group| group.from);
        (!groups.is_empty()).then_some(Self(groups))
    }

    /// The groups in the order in which they end.
    #[must_use]
    pub fn groups(&self) -> &[ShutdownGroup] {
        &self.0
    }

    /// The place among [`Self::groups`] of a pod's group (upstream's rule).
    #[must_use]
    pub fn group_of(&self, priority: i32) -> usize {
        let above = self.0.partition_point(|group| group.from <= priority);
        above.saturating_sub(1)
    }
}

/// Checks the keys.
pub(crate) fn check(
    all: Option<&At<String>>,
    critical: Option<&At<String>>,
    by_priority: Option<At<Entries<String>>>,
    sink: &mut Sink<'_>,
) -> ShutdownGrace {
    if let Some(table) = by_priority {
        for other in [all, critical].into_iter().flatten() {
            let found = format!("{} beside shutdown_grace_by_priority", quoted(&other.value));
            let expected = "shutdown_grace_by_priority alone, which names the time of each group";
            sink.fault(FaultKind::Conflict, &other.place, found, expected);
        }
        return groups(table, sink);
    }
    let whole = all.and_then(|all| within(all, [Duration::from_secs(1), SHUTDOWN_GRACE_MAX], sink));
    // In the proportion of the defaults, and in whole seconds.
    let part = whole.map_or(SHUTDOWN_GRACE_CRITICAL, |whole| {
        Duration::from_secs(whole.as_secs() / 6)
    });
    let whole = whole.unwrap_or(SHUTDOWN_GRACE);
    let critical = critical.and_then(|text| within(text, [Duration::ZERO, whole], sink));
    let critical = critical.unwrap_or(part);
    ShutdownGrace::of(whole.saturating_sub(critical), critical)
}

fn groups(table: At<Entries<String>>, sink: &mut Sink<'_>) -> ShutdownGrace {
    let place = table.place;
    let Entries(entries) = table.value;
    let mut groups: Vec<ShutdownGroup> = Vec::new();
    let mut whole = Duration::ZERO;
    for (key, text) in &entries {
        let time = within(text, [Duration::ZERO, SHUTDOWN_GRACE_MAX], sink);
        let Ok(from) = key.value.parse::<i32>() else {
            let expected = "the lowest priority of a group, such as `0` or `2000000000`";
            sink.fault(
                FaultKind::BadValue,
                &key.place,
                quoted(&key.value),
                expected,
            );
            continue;
        };
        if groups.iter().any(|group| group.from == from) {
            let found = format!("the priority {from} a second time");
            sink.fault(FaultKind::Duplicate, &key.place, found, "a priority once");
            continue;
        }
        let time = time.unwrap_or_default();
        whole = whole.saturating_add(time);
        groups.push(ShutdownGroup { from, time });
    }
    let found = if groups.is_empty() {
        Some("no group".to_owned())
    } else {
        (whole > SHUTDOWN_GRACE_MAX).then(|| format!("{} together", HumanDuration(whole)))
    };
    if let Some(found) = found {
        let most = HumanDuration(SHUTDOWN_GRACE_MAX);
        let expected = format!("one group or more, of {most} together at most");
        sink.fault(FaultKind::BadValue, &place, found, &expected);
    }
    let default = || ShutdownGrace::of(SHUTDOWN_GRACE, Duration::ZERO);
    ShutdownGrace::by_priority(groups).unwrap_or_else(default)
}

fn within(
    text: &At<String>,
    [least, most]: [Duration; 2],
    sink: &mut Sink<'_>,
) -> Option<Duration> {
    let HumanDuration(given) = sink.parse(text)?;
    if !(least..=most).contains(&given) {
        let [least, most] = [least, most].map(HumanDuration);
        let expected = format!("a duration, {least} to {most}");
        let found = quoted(&text.value);
        sink.fault(FaultKind::BadValue, &text.place, found, &expected);
        return None;
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_in_the_last_group_that_it_is_not_below() {
        let group = |from| ShutdownGroup {
            from,
            time: Duration::ZERO,
        };
        let grace = ShutdownGrace::by_priority(vec![group(0), group(1000), group(-5)]).unwrap();
        for (priority, place) in [
            (i32::MIN, 0),
            (-6, 0),
            (-5, 0),
            (-1, 0),
            (0, 1),
            (999, 1),
            (1000, 2),
            (i32::MAX, 2),
        ] {
            assert_eq!(grace.group_of(priority), place, "{priority}");
        }
    }
}
