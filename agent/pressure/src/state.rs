//! Which conditions hold: a condition stays for a while after its signals have recovered, so that
//! it doesn't flap.

use crate::thresholds::{Condition, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The pressure of a node.
#[derive(Debug, Default)]
pub struct Pressure {
    /// When a signal of the condition was last below its threshold.
    last: BTreeMap<Condition, Instant>,
}

impl Pressure {
    /// Takes a new measurement. A condition holds until all its signals have been above their
    /// thresholds for `transition`.
    pub fn observe(&mut self, met: &BTreeSet<Signal>, now: Instant, transition: Duration) {
        for signal in met {
            self.last.insert(signal.condition(), now);
        }
        self.last
            .retain(|_, at| *at == now || now.saturating_duration_since(*at) < transition);
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

    #[test]
    fn a_condition_holds_at_once_and_until_its_signals_recovered_for_long_enough() {
        let transition = Duration::from_secs(300);
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut after = |seconds, met: &[Signal]| {
            let met = met.iter().copied().collect();
            pressure.observe(&met, start + Duration::from_secs(seconds), transition);
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
    }

    #[test]
    fn without_a_time_a_condition_holds_as_long_as_it_is_met() {
        let now = Instant::now();
        let mut pressure = Pressure::default();
        pressure.observe(&BTreeSet::from([Signal::PidAvailable]), now, Duration::ZERO);
        assert_eq!(pressure.conditions().len(), 1);
        let later = now + Duration::from_millis(1);
        pressure.observe(&BTreeSet::new(), later, Duration::ZERO);
        assert!(pressure.conditions().is_empty());
    }
}
