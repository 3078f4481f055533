//! What a node under pressure acts for, and which conditions hold: a soft threshold is acted for
//! after a while, and a condition stays for a while after its signals have recovered, so that it
//! doesn't flap.

use crate::thresholds::{Bound, Condition, Levels, Thresholds};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The pressure of a node.
#[derive(Debug, Default)]
pub struct Pressure {
    /// When a signal of the condition was last below its threshold.
    last: BTreeMap<Condition, Instant>,
    /// The thresholds below which the node is, and since when.
    since: BTreeMap<Bound, Instant>,
    /// Those of them for which pods are evicted.
    acts: BTreeSet<Bound>,
}

impl Pressure {
    /// Takes a new measurement; returns the thresholds for which pods are to be evicted now. A
    /// condition holds at once, and until all its signals have been above their thresholds for the
    /// time of the transition.
    pub fn observe(
        &mut self,
        thresholds: &Thresholds,
        levels: &Levels,
        now: Instant,
    ) -> BTreeSet<Bound> {
        let met = thresholds.met(levels, &self.acts);
        self.since.retain(|bound, _| met.contains(bound));
        for bound in met {
            self.last.insert(bound.signal.condition(), now);
            self.since.entry(bound).or_insert(now);
        }
        let passed = |at: &Instant| now.saturating_duration_since(*at);
        self.last
            .retain(|_, at| *at == now || passed(at) < thresholds.transition);
        let due = |(bound, at): &(&Bound, &Instant)| passed(at) >= thresholds.grace(**bound);
        let due = self.since.iter().filter(due);
        self.acts = due.map(|(bound, _)| *bound).collect();
        self.acts.clone()
    }

    /// Those that hold.
    #[must_use]
    pub fn conditions(&self) -> BTreeSet<Condition> {
        self.last.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::{Least, Level, Signal, Soft, ThresholdKind};
    use std::time::Duration;

    /// Below no threshold but those of some signals.
    fn low(signals: &[Signal]) -> Levels {
        let level = |signal: &Signal| {
            let level = Level {
                available: 0,
                capacity: 1 << 40,
            };
            (*signal, level)
        };
        signals.iter().map(level).collect()
    }

    #[test]
    fn a_condition_holds_at_once_and_until_its_signals_recovered_for_long_enough() {
        let thresholds = Thresholds::default();
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut after = |seconds, met: &[Signal]| {
            let at = start + Duration::from_secs(seconds);
            pressure.observe(&thresholds, &low(met), at);
            pressure.conditions().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(after(0, &[]), []);
        let disk = [Condition::DiskPressure];
        assert_eq!(after(10, &[Signal::NodefsAvailable]), disk);
        assert_eq!(after(20, &[Signal::ImagefsInodesFree]), disk);
        assert_eq!(after(319, &[]), disk);
        assert_eq!(after(320, &[]), []);
        let memory = [Condition::MemoryPressure];
        assert_eq!(after(330, &[Signal::MemoryAvailable]), memory);
        assert_eq!(after(629, &[Signal::MemoryAvailable]), memory);
        assert_eq!(after(928, &[]), memory, "the time begins anew");
        assert_eq!(after(930, &[]), []);
        let of_pods = Signal::AllocatableMemoryAvailable;
        assert_eq!(after(940, &[of_pods]), memory);
    }

    #[test]
    fn without_a_time_a_condition_holds_as_long_as_it_is_met() {
        let thresholds = Thresholds {
            hard: BTreeMap::from([(Signal::PidAvailable, Least::Amount(500))]),
            ..Thresholds::none()
        };
        let now = Instant::now();
        let mut pressure = Pressure::default();
        pressure.observe(&thresholds, &low(&[Signal::PidAvailable]), now);
        assert_eq!(pressure.conditions().len(), 1);
        let later = now + Duration::from_millis(1);
        pressure.observe(&thresholds, &Levels::new(), later);
        assert!(pressure.conditions().is_empty());
    }

    #[test]
    fn a_soft_threshold_is_acted_for_when_its_time_without_a_break_is_over() {
        let soft = Soft {
            least: Least::Amount(1),
            grace: Duration::from_secs(90),
        };
        let signal = Signal::MemoryAvailable;
        let thresholds = Thresholds {
            soft: BTreeMap::from([(signal, soft)]),
            ..Thresholds::none()
        };
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut after = |seconds, met: &[Signal]| {
            let at = start + Duration::from_secs(seconds);
            let acts = pressure.observe(&thresholds, &low(met), at);
            (!acts.is_empty(), !pressure.conditions().is_empty())
        };
        assert_eq!(
            after(0, &[signal]),
            (false, true),
            "the condition is reported"
        );
        assert_eq!(after(80, &[signal]), (false, true));
        assert_eq!(after(85, &[]), (false, false));
        assert_eq!(after(90, &[signal]), (false, true), "it begins anew");
        assert_eq!(after(179, &[signal]), (false, true));
        assert_eq!(after(180, &[signal]), (true, true));
        assert_eq!(after(190, &[signal]), (true, true));
        assert_eq!(after(200, &[]), (false, false));
    }

    #[test]
    fn pods_go_until_the_least_that_is_to_be_freed_is_free() {
        let signal = Signal::MemoryAvailable;
        let thresholds = Thresholds {
            hard: BTreeMap::from([(signal, Least::Amount(100))]),
            reclaim: BTreeMap::from([(signal, Least::Amount(50))]),
            ..Thresholds::none()
        };
        let now = Instant::now();
        let mut pressure = Pressure::default();
        let mut acts = |available| {
            let level = Level {
                available,
                capacity: 1000,
            };
            let acts = pressure.observe(&thresholds, &Levels::from([(signal, level)]), now);
            acts.iter().map(|bound| bound.kind).collect::<Vec<_>>()
        };
        assert_eq!(acts(120), []);
        assert_eq!(acts(99), [ThresholdKind::Hard]);
        assert_eq!(acts(120), [ThresholdKind::Hard]);
        assert_eq!(acts(150), []);
        assert_eq!(acts(120), []);
    }
}
