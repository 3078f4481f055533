//! The thresholds below which the node is under pressure (upstream's `evictionHard` and
//! `evictionSoft`).

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The measured signals, in upstream's order of relief: memory before disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Bytes of memory that all pods together may use beside their working set, where the kernel
    /// keeps them within a limit. No configuration names it: it has the hard threshold of
    /// [`Self::MemoryAvailable`] (upstream's rule). It stands first: at that limit the kernel kills
    /// containers, whatever the machine has left, so a soft threshold of the machine's can wait.
    AllocatableMemoryAvailable,
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
    /// Those that have thresholds of their own.
    pub const CONFIGURED: [Self; 6] = [
        Self::MemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// That of a name in a configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::CONFIGURED.into_iter();
        all.find(|signal| signal.name() == name)
    }

    /// The signal whose hard threshold and least that is to be freed are this one's.
    fn configured(self) -> Self {
        if self == Self::AllocatableMemoryAvailable {
            Self::MemoryAvailable
        } else {
            self
        }
    }

    /// Upstream's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
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
            Self::AllocatableMemoryAvailable | Self::MemoryAvailable => Condition::MemoryPressure,
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

impl ImageMarks {
    /// Bytes to be freed to bring a disk of so many bytes below the lower mark; nothing below the
    /// higher.
    #[must_use]
    pub fn excess(self, size: u64, free: u64) -> u64 {
        let in_use = size.saturating_sub(free);
        let never = size == 0 || self.high >= 100;
        if never || in_use < size / 100 * self.high {
            return 0;
        }
        in_use.saturating_sub(size / 100 * self.low)
    }
}

/// A threshold below which the node may be for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soft {
    /// What must be left.
    pub least: Least,
    /// For how long less may be left before pods are evicted.
    pub grace: Duration,
}

/// How hard a threshold is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThresholdKind {
    /// Pods are evicted at once.
    Hard,
    /// Pods are evicted after a while, and have more time to end.
    Soft,
}

/// One threshold, in the order of relief: hard before soft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bound {
    /// Its signal.
    pub signal: Signal,
    /// Which of the signal's two.
    pub kind: ThresholdKind,
}

/// When the node is under pressure, and what it does before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thresholds {
    /// What must be left, at once and without grace.
    pub hard: BTreeMap<Signal, Least>,
    /// What must be left after a while (upstream's `evictionSoft` and `evictionSoftGracePeriod`).
    pub soft: BTreeMap<Signal, Soft>,
    /// How much more than a threshold is freed once pods were evicted for it (upstream's
    /// `evictionMinimumReclaim`).
    pub reclaim: BTreeMap<Signal, Least>,
    /// The longest grace of pods that are evicted for a soft threshold (upstream's
    /// `evictionMaxPodGracePeriod`).
    pub max_pod_grace: Duration,
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
            soft: BTreeMap::new(),
            reclaim: BTreeMap::new(),
            max_pod_grace: Duration::ZERO,
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
            soft: BTreeMap::new(),
            reclaim: BTreeMap::new(),
            max_pod_grace: Duration::ZERO,
            transition: Duration::ZERO,
            images: ImageMarks {
                high: 100,
                low: 100,
            },
        }
    }

    /// All thresholds.
    fn bounds(&self) -> impl Iterator<Item = Bound> + '_ {
        let of = |kind| {
            move |signal: &Signal| Bound {
                signal: *signal,
                kind,
            }
        };
        let hard = self.hard.keys().map(of(ThresholdKind::Hard));
        let own = hard.chain(self.soft.keys().map(of(ThresholdKind::Soft)));
        let of_pods = Bound {
            signal: Signal::AllocatableMemoryAvailable,
            kind: ThresholdKind::Hard,
        };
        own.chain(self.least(of_pods).map(|_| of_pods))
    }

    /// What a threshold says must be left.
    #[must_use]
    pub fn least(&self, bound: Bound) -> Option<Least> {
        match bound.kind {
            ThresholdKind::Hard => self.hard.get(&bound.signal.configured()).copied(),
            ThresholdKind::Soft => self.soft.get(&bound.signal).map(|soft| soft.least),
        }
    }

    /// For how long less may be left than a threshold says.
    pub(crate) fn grace(&self, bound: Bound) -> Duration {
        let soft = self.soft.get(&bound.signal);
        let soft = soft.filter(|_| bound.kind == ThresholdKind::Soft);
        soft.map_or(Duration::ZERO, |soft| soft.grace)
    }

    /// The thresholds below which the node is. Of those for which it `acts`, more must be free
    /// again.
    #[must_use]
    pub fn met(&self, levels: &Levels, acts: &BTreeSet<Bound>) -> BTreeSet<Bound> {
        let low = |bound: &Bound| {
            let level = levels.get(&bound.signal);
            let level = level.filter(|level| level.capacity > 0)?;
            let least = self.least(*bound)?.of(level.capacity);
            let reclaim = self.reclaim.get(&bound.signal.configured());
            let more = reclaim.filter(|_| acts.contains(bound));
            let more = more.map_or(0, |more| more.of(level.capacity));
            Some(level.available < least.saturating_add(more))
        };
        self.bounds()
            .filter(|bound| low(bound) == Some(true))
            .collect()
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
        written(self.hard.iter().map(|(signal, least)| (signal, *least)))
    }

    /// The soft ones, as [`Thresholds::written`].
    #[must_use]
    pub fn written_soft(&self) -> Value {
        written(self.soft.iter().map(|(signal, soft)| (signal, soft.least)))
    }

    /// What is freed beyond them, as [`Thresholds::written`].
    #[must_use]
    pub fn written_reclaim(&self) -> Value {
        written(self.reclaim.iter().map(|(signal, least)| (signal, *least)))
    }
}

fn written<'a>(all: impl Iterator<Item = (&'a Signal, Least)>) -> Value {
    all.map(|(signal, least)| (signal.name().to_owned(), json!(least.written())))
        .collect()
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
        let none = BTreeSet::new();
        assert!(Thresholds::none().met(&levels, &none).is_empty());
        assert_eq!(Thresholds::none().written(), json!({}));
        assert_eq!(Thresholds::none().kept(Signal::NodefsAvailable, 1000), 0);
        let met = Thresholds::default().met(&levels, &none).into_iter();
        let met: Vec<Signal> = met.map(|bound| bound.signal).collect();
        assert_eq!(met, Signal::CONFIGURED);
        assert_eq!(met, levels.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn pods_near_their_common_limit_are_below_the_machines_hard_threshold_of_memory() {
        let of_pods = Signal::AllocatableMemoryAvailable;
        // The machine has more than its own thresholds ask for.
        let levels = |left, limit| {
            let machine = (Signal::MemoryAvailable, level(1 << 35, 1 << 36));
            Levels::from([machine, (of_pods, level(left, limit))])
        };
        let bound = Bound {
            signal: of_pods,
            kind: ThresholdKind::Hard,
        };
        let met = |thresholds: &Thresholds, left, limit, acts: &[Bound]| {
            let acts = acts.iter().copied().collect();
            let met = thresholds.met(&levels(left, limit), &acts);
            met.into_iter().collect::<Vec<_>>()
        };
        let all = Thresholds::default();
        assert_eq!(met(&all, 100 * MIB - 1, 1 << 30, &[]), [bound]);
        assert_eq!(met(&all, 100 * MIB, 1 << 30, &[]), []);
        assert_eq!(met(&all, 0, 0, &[]), [], "a group without a limit");
        assert_eq!(all.least(bound), Some(Least::Amount(100 * MIB)));

        // A share is one of the pods' limit, not of the machine's memory.
        let share = Thresholds {
            hard: BTreeMap::from([(Signal::MemoryAvailable, Least::Percent(10))]),
            reclaim: BTreeMap::from([(Signal::MemoryAvailable, Least::Percent(5))]),
            ..Thresholds::none()
        };
        assert_eq!(met(&share, 99, 1000, &[]), [bound]);
        assert_eq!(met(&share, 100, 1000, &[]), []);
        assert_eq!(met(&share, 149, 1000, &[bound]), [bound]);
        assert_eq!(met(&share, 150, 1000, &[bound]), []);

        let soft = Soft {
            least: Least::Percent(10),
            grace: Duration::ZERO,
        };
        let soft = Thresholds {
            soft: BTreeMap::from([(Signal::MemoryAvailable, soft)]),
            ..Thresholds::none()
        };
        for thresholds in [Thresholds::none(), soft] {
            assert_eq!(met(&thresholds, 1, 1000, &[]), [], "{thresholds:?}");
        }
        assert_eq!(of_pods.condition(), Condition::MemoryPressure);
        assert_eq!(of_pods.name(), "allocatableMemory.available");
        assert_eq!(Signal::named(of_pods.name()), None, "no document has it");
    }

    #[test]
    fn what_is_left_must_be_less_than_the_threshold() {
        let met = |signal, available, capacity| {
            let levels = Levels::from([(signal, level(available, capacity))]);
            !Thresholds::default()
                .met(&levels, &BTreeSet::new())
                .is_empty()
        };
        assert!(met(Signal::MemoryAvailable, 100 * MIB - 1, 1 << 40));
        assert!(!met(Signal::MemoryAvailable, 100 * MIB, 1 << 40));
        assert!(met(Signal::NodefsAvailable, 99, 1000));
        assert!(!met(Signal::NodefsAvailable, 100, 1000));
        assert!(met(Signal::ImagefsAvailable, 149, 1000));
        assert!(met(Signal::PidAvailable, 499, 32_768));
        // A signal that can't be measured changes nothing.
        assert!(!met(Signal::NodefsInodesFree, 0, 0));
        let nothing = Thresholds::default().met(&Levels::new(), &BTreeSet::new());
        assert!(nothing.is_empty());
    }

    #[test]
    fn a_signal_has_a_hard_and_a_soft_threshold_and_is_known_by_its_name() {
        let soft = Soft {
            least: Least::Percent(50),
            grace: Duration::from_secs(90),
        };
        let thresholds = Thresholds {
            soft: BTreeMap::from([(Signal::NodefsAvailable, soft)]),
            ..Thresholds::default()
        };
        let met = |available| {
            let levels = Levels::from([(Signal::NodefsAvailable, level(available, 1000))]);
            let met = thresholds.met(&levels, &BTreeSet::new()).into_iter();
            met.map(|bound| bound.kind).collect::<Vec<_>>()
        };
        assert_eq!(met(500), []);
        assert_eq!(met(499), [ThresholdKind::Soft]);
        assert_eq!(met(99), [ThresholdKind::Hard, ThresholdKind::Soft]);
        assert_eq!(
            thresholds.written_soft(),
            json!({"nodefs.available": "50%"})
        );
        for signal in Signal::CONFIGURED {
            assert_eq!(Signal::named(signal.name()), Some(signal));
        }
        assert_eq!(Signal::named("memory"), None);
    }

    #[test]
    fn once_acted_for_a_threshold_is_met_until_more_is_free() {
        let signal = Signal::MemoryAvailable;
        let thresholds = Thresholds {
            reclaim: BTreeMap::from([(signal, Least::Amount(50 * MIB))]),
            ..Thresholds::default()
        };
        let bound = Bound {
            signal,
            kind: ThresholdKind::Hard,
        };
        let met = |available, acts: &[Bound]| {
            let levels = Levels::from([(signal, level(available, 1 << 40))]);
            let acts = acts.iter().copied().collect();
            !thresholds.met(&levels, &acts).is_empty()
        };
        assert!(!met(120 * MIB, &[]));
        assert!(met(120 * MIB, &[bound]));
        assert!(met(150 * MIB - 1, &[bound]));
        assert!(!met(150 * MIB, &[bound]));
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
