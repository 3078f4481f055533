//! The thresholds below which the node is under pressure (upstream's `evictionHard`).

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The measured signals, in upstream's order of relief: memory before disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Bytes of memory beside the working set.
    MemoryAvailable,
    /// Free bytes of the file system with the pods' data.
    NodefsAvailable,
    /// Free inodes of it.
    NodefsInodesFree,
    /// Free bytes of the file system with images and containers' layers.
    ImagefsAvailable,
    /// Free inodes of it.
    ImagefsInodesFree,
    /// Free process ids.
    PidAvailable,
}

/// A pressure condition of the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// Memory.
    MemoryPressure,
    /// A disk: bytes or inodes.
    DiskPressure,
    /// Process ids.
    PidPressure,
}

impl Condition {
    /// Its name in the Node's status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl Signal {
    /// Its name in upstream's configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The Node's condition while it is below its threshold.
    #[must_use]
    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable => Condition::MemoryPressure,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree => Condition::DiskPressure,
            Self::PidAvailable => Condition::PidPressure,
        }
    }
}

/// How much must be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Least {
    /// Bytes, inodes or ids.
    Amount(u64),
    /// Hundredths of the capacity.
    Percent(u64),
}

impl Least {
    /// The amount, where the capacity is `whole`.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Percent(percent) => {
                let share = u128::from(whole) * u128::from(percent) / 100;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }

    fn written(self) -> String {
        match self {
            Self::Amount(amount) => quantity(amount),
            Self::Percent(percent) => format!("{percent}%"),
        }
    }
}

/// An amount as upstream writes it: by the largest binary suffix that leaves it whole.
pub(crate) fn quantity(amount: u64) -> String {
    let suffixes = ["Ti", "Gi", "Mi", "Ki"].into_iter().zip([40, 30, 20, 10]);
    let mut whole = suffixes.filter(|(_, bits)| amount > 0 && amount.trailing_zeros() >= *bits);
    whole.next().map_or_else(
        || amount.to_string(),
        |(suffix, bits)| format!("{}{suffix}", amount >> bits),
    )
}

/// What was measured for a signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// What is left.
    pub available: u64,
    /// The total; 0 if it can't be measured, and then the signal is ignored.
    pub capacity: u64,
}

/// What was measured.
pub type Levels = BTreeMap<Signal, Level>;

/// When unused images are removed, in percent of the disk in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageMarks {
    /// From here on they are removed; never with 100 or more.
    pub high: u64,
    /// Down to here.
    pub low: u64,
}

/// When the node is under pressure, and what it does before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thresholds {
    /// What must be left, at once and without grace.
    pub hard: BTreeMap<Signal, Least>,
    /// How long a condition stays after its last signal was below its threshold.
    pub transition: Duration,
    /// When unused images are removed.
    pub images: ImageMarks,
}

impl Default for Thresholds {
    /// Upstream's defaults; for process ids, as many as the agent and the engine need to end a pod.
    fn default() -> Self {
        Self {
            hard: BTreeMap::from([
                (Signal::MemoryAvailable, Least::Amount(100 << 20)),
                (Signal::NodefsAvailable, Least::Percent(10)),
                (Signal::NodefsInodesFree, Least::Percent(5)),
                (Signal::ImagefsAvailable, Least::Percent(15)),
                (Signal::ImagefsInodesFree, Least::Percent(5)),
                (Signal::PidAvailable, Least::Amount(500)),
            ]),
            transition: Duration::from_secs(300),
            images: ImageMarks { high: 85, low: 80 },
        }
    }
}

impl Thresholds {
    /// No thresholds: the node is never under pressure, and keeps its images.
    #[must_use]
    pub fn none() -> Self {
        Self {
            hard: BTreeMap::new(),
            transition: Duration::ZERO,
            images: ImageMarks {
                high: 100,
                low: 100,
            },
        }
    }

    /// The signals that are below their thresholds.
    #[must_use]
    pub fn met(&self, levels: &Levels) -> BTreeSet<Signal> {
        let low = |signal: &Signal, least: &Least| {
            levels.get(signal).is_some_and(|level| {
                level.capacity > 0 && level.available < least.of(level.capacity)
            })
        };
        let met = self
            .hard
            .iter()
            .filter(|(signal, least)| low(signal, least));
        met.map(|(signal, _)| *signal).collect()
    }

    /// The reserved part of a signal's capacity.
    #[must_use]
    pub fn kept(&self, signal: Signal, capacity: u64) -> u64 {
        let least = self.hard.get(&signal);
        least.map_or(0, |least| least.of(capacity))
    }

    /// In the form of upstream's configuration: quantities and percentages by the signals' names.
    #[must_use]
    pub fn written(&self) -> Value {
        let all = self.hard.iter();
        all.map(|(signal, least)| (signal.name().to_owned(), json!(least.written())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn level(available: u64, capacity: u64) -> Level {
        Level {
            available,
            capacity,
        }
    }

    /// A machine without any free resource.
    fn exhausted() -> Levels {
        let all = Thresholds::default().hard.into_keys();
        all.map(|signal| (signal, level(0, 1 << 30))).collect()
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let defaults = Thresholds::default();
        assert_eq!(
            defaults.written(),
            json!({
                "memory.available": "100Mi",
                "nodefs.available": "10%",
                "nodefs.inodesFree": "5%",
                "imagefs.available": "15%",
                "imagefs.inodesFree": "5%",
                "pid.available": "500",
            })
        );
        assert_eq!((defaults.images.high, defaults.images.low), (85, 80));
        assert_eq!(defaults.transition, Duration::from_secs(5 * 60));
    }

    #[test]
    fn without_thresholds_an_exhausted_machine_has_no_pressure() {
        let levels = exhausted();
        assert!(Thresholds::none().met(&levels).is_empty());
        assert_eq!(Thresholds::none().written(), json!({}));
        assert_eq!(Thresholds::none().kept(Signal::NodefsAvailable, 1000), 0);
        let met: Vec<Signal> = Thresholds::default().met(&levels).into_iter().collect();
        assert_eq!(met, levels.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn what_is_left_must_be_less_than_the_threshold() {
        let met = |signal, available, capacity| {
            let levels = Levels::from([(signal, level(available, capacity))]);
            !Thresholds::default().met(&levels).is_empty()
        };
        assert!(met(Signal::MemoryAvailable, 100 * MIB - 1, 1 << 40));
        assert!(!met(Signal::MemoryAvailable, 100 * MIB, 1 << 40));
        assert!(met(Signal::NodefsAvailable, 99, 1000));
        assert!(!met(Signal::NodefsAvailable, 100, 1000));
        assert!(met(Signal::ImagefsAvailable, 149, 1000));
        assert!(met(Signal::PidAvailable, 499, 32_768));
        // A signal that can't be measured changes nothing.
        assert!(!met(Signal::NodefsInodesFree, 0, 0));
        assert!(Thresholds::default().met(&Levels::new()).is_empty());
    }

    #[test]
    fn amounts_are_written_as_upstream_writes_them() {
        for (amount, text) in [
            (0, "0"),
            (500, "500"),
            (52 << 10, "52Ki"),
            (100 << 20, "100Mi"),
            (3 << 30, "3Gi"),
            ((1 << 30) + 1, "1073741825"),
        ] {
            assert_eq!(quantity(amount), text);
        }
        assert_eq!(Least::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Least::Percent(u64::MAX).of(u64::MAX), u64::MAX);
    }
}
