//! `[node.eviction]`: the thresholds below which the node is under pressure and evicts pods.

use crate::check::quoted;
use crate::defaults::{EVICTION_MAX_POD_GRACE, EVICTION_TRANSITION};
use crate::fault::{FaultKind, Sink};
use crate::format::{FormatError, HumanDuration, one_of};
use crate::raw::{RawEviction, RawThreshold};
use crate::read::{At, Entries};
use config_kube::Amount;
use std::time::Duration;

/// The signals that can have thresholds, by upstream's names.
pub const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];

/// When the node evicts pods. A setting that is absent has upstream's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The thresholds: at most a hard and a soft one for each signal. A signal without a hard one
    /// has the default.
    pub thresholds: Vec<Threshold>,
    /// How far above a threshold the node frees the resource once it evicts, by signal (upstream:
    /// `evictionMinimumReclaim`).
    pub minimum_reclaim: Vec<(&'static str, Left)>,
    /// The longest grace period of pods that are evicted for a soft threshold.
    pub max_pod_grace: Duration,
    /// How long the Node's condition stays after the signal has recovered.
    pub transition: Duration,
}

impl Default for Eviction {
    fn default() -> Self {
        Self {
            thresholds: Vec::new(),
            minimum_reclaim: Vec::new(),
            max_pod_grace: EVICTION_MAX_POD_GRACE,
            transition: EVICTION_TRANSITION,
        }
    }
}

/// A threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// One of [`SIGNALS`].
    pub signal: &'static str,
    /// The least that must be left; 0 %: the signal has no threshold.
    pub value: Left,
    /// For how long less may be left; a hard threshold has none.
    pub grace: Option<Duration>,
}

/// What is left of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Bytes, inodes or process ids.
    Amount(u64),
    /// Hundredths of the capacity, below 100.
    Percent(u64),
}

/// Checks the table.
pub(crate) fn check(raw: Option<At<RawEviction>>, sink: &mut Sink<'_>) -> Eviction {
    let raw = raw.map(|table| table.value).unwrap_or_default();
    let mut thresholds: Vec<Threshold> = Vec::new();
    for entry in raw.threshold.map(|list| list.value).unwrap_or_default() {
        let place = entry.place.clone();
        let Some(one) = threshold(entry, sink) else {
            continue;
        };
        let same = |other: &Threshold| {
            other.signal == one.signal && other.grace.is_some() == one.grace.is_some()
        };
        if thresholds.iter().any(same) {
            let sort = if one.grace.is_some() { "soft" } else { "hard" };
            let found = format!("a {sort} threshold of {} a second time", quoted(one.signal));
            let expected =
                "one hard and one soft threshold of a signal at most; a soft one has a `grace`";
            sink.fault(FaultKind::Duplicate, &place, found, expected);
            continue;
        }
        thresholds.push(one);
    }
    let reclaim = raw.minimum_reclaim.map(|table| table.value);
    let Entries(reclaim) = reclaim.unwrap_or_default();
    let entry = |(name, value): (At<String>, At<String>)| {
        let (name, value) = (signal(&name, sink), left(&value, sink));
        Some((name?, value?))
    };
    let minimum_reclaim = reclaim.into_iter().filter_map(entry).collect();
    let mut duration = |text: Option<At<String>>, default| {
        let given = text.and_then(|text| sink.parse(&text));
        given.map_or(default, |HumanDuration(given)| given)
    };
    Eviction {
        thresholds,
        minimum_reclaim,
        max_pod_grace: duration(raw.max_pod_grace, EVICTION_MAX_POD_GRACE),
        transition: duration(raw.transition, EVICTION_TRANSITION),
    }
}

fn threshold(entry: At<RawThreshold>, sink: &mut Sink<'_>) -> Option<Threshold> {
    let At { value: raw, place } = entry;
    let name = sink.required(raw.signal, &place, "signal", "what is measured");
    let value = sink.required(raw.value, &place, "value", "how much must be left");
    let grace = raw.grace.map(|text| {
        let HumanDuration(grace) = sink.parse(&text)?;
        if grace.is_zero() {
            let expected = "a duration of a second or more; a threshold without `grace` is hard";
            let found = quoted(&text.value);
            sink.fault(FaultKind::BadValue, &text.place, found, expected);
            return None;
        }
        Some(grace)
    });
    let name = name.and_then(|name| signal(&name, sink));
    let value = value.and_then(|value| left(&value, sink));
    Some(Threshold {
        signal: name?,
        value: value?,
        grace: match grace {
            Some(grace) => Some(grace?),
            None => None,
        },
    })
}

fn signal(name: &At<String>, sink: &mut Sink<'_>) -> Option<&'static str> {
    let words = SIGNALS.map(|name| (name, name));
    sink.parsed(name, one_of(&name.value, &words))
}

fn left(text: &At<String>, sink: &mut Sink<'_>) -> Option<Left> {
    let percent = |number: &str| {
        let number: u64 = number.parse().ok()?;
        (number < 100).then_some(Left::Percent(number))
    };
    let amount = |text: &str| {
        let amount = text.parse::<Amount>().ok()?.ceil_units();
        let amount = u64::try_from(amount).ok().filter(|amount| *amount > 0);
        amount.map(Left::Amount)
    };
    let value = text.value.as_str();
    let parsed = match value.strip_suffix('%') {
        Some(number) => percent(number),
        None => amount(value),
    };
    let expected = "a quantity above zero such as `300Mi`, or whole per cent of the capacity from `0%` to `99%`";
    sink.parsed(text, parsed.ok_or_else(|| FormatError::new(expected)))
}
