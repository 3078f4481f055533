//! `[[cluster.scheduler]]`: names by which pods ask for the scheduler, and how each weighs the
//! resources of nodes.

use crate::check::{Names, named};
use crate::fault::{FaultKind, Sink};
use crate::format::{DnsLabel, DnsName, FormatError, one_of, text_type};
use crate::raw::RawScheduler;
use crate::read::{At, Entries};

/// The default resources of a profile, with their weights (upstream's).
const WEIGHTS: [(&str, i64); 2] = [("cpu", 1), ("memory", 1)];
/// Highest weight of a resource (upstream's).
const HIGHEST_WEIGHT: i64 = 100;
/// Highest score of a point (upstream's).
const HIGHEST_SCORE: i64 = 10;
/// What a shape is.
const SHAPE: &str = "points such as `[[0, 0], [100, 10]]`: used per cent and the score at it";

/// A profile of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerProfile {
    /// What pods say in `spec.schedulerName`.
    pub name: DnsLabel,
    /// How the use of one resource becomes a score.
    pub strategy: ScoringStrategy,
    /// The resources that count, and how much each does.
    pub weights: Vec<(ResourceName, i64)>,
}

/// How a node's use of a resource becomes a score (upstream's strategies of `NodeResourcesFit`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScoringStrategy {
    /// The more is left, the better.
    LeastAllocated,
    /// The less is left, the better.
    MostAllocated,
    /// By the line through these points; at least one, each further to the right.
    RequestedToCapacityRatio(Vec<ShapePoint>),
}

/// The score at a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapePoint {
    /// Used per cent of the resource, to 100.
    pub utilization: i64,
    /// From 0 to 10.
    pub score: i64,
}

text_type!(
    /// The name of a resource of nodes, such as `cpu` or `example.com/device`.
    ResourceName,
    resource_name
);

fn resource_name(text: &str) -> Result<(), FormatError> {
    let known = ["cpu", "memory", "ephemeral-storage"].contains(&text);
    let huge = text.strip_prefix("hugepages-");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let word = |name: &str| {
        let bytes = name.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        let ends = ends
            .iter()
            .all(|end| end.is_some_and(u8::is_ascii_alphanumeric));
        name.len() <= 63 && ends && bytes.iter().all(|byte| plain(*byte))
    };
    let of_domain = |(domain, name): (&str, &str)| domain.parse::<DnsName>().is_ok() && word(name);
    if known || huge.is_some_and(word) || text.split_once('/').is_some_and(of_domain) {
        return Ok(());
    }
    Err(FormatError::new(
        "`cpu`, `memory`, `ephemeral-storage`, or a device's name such as `example.com/device`",
    ))
}

/// How a strategy is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Least,
    Most,
    Ratio,
}

const WORDS: &[(&str, Word)] = &[
    ("LeastAllocated", Word::Least),
    ("MostAllocated", Word::Most),
    ("RequestedToCapacityRatio", Word::Ratio),
];

/// Checks all profiles.
pub(crate) fn check(
    raw: Option<At<Vec<At<RawScheduler>>>>,
    sink: &mut Sink<'_>,
) -> Vec<SchedulerProfile> {
    let mut names = Names::default();
    let entries = raw.map(|list| list.value).unwrap_or_default();
    entries
        .into_iter()
        .filter_map(|entry| profile(entry, &mut names, sink))
        .collect()
}

fn profile(
    entry: At<RawScheduler>,
    names: &mut Names,
    sink: &mut Sink<'_>,
) -> Option<SchedulerProfile> {
    let At { value: raw, place } = entry;
    let name = named(raw.name, &place, names, sink);
    let word = match &raw.strategy {
        Some(text) => sink.parsed(text, one_of(&text.value, WORDS)),
        None => Some(Word::Least),
    };
    let strategy = match word {
        Some(Word::Ratio) => {
            let shape = sink.required(raw.shape, &place, "shape", SHAPE);
            shape
                .and_then(|shape| points(&shape, sink))
                .map(ScoringStrategy::RequestedToCapacityRatio)
        }
        Some(word) => {
            refuse_shape(raw.shape.as_ref(), sink);
            Some(match word {
                Word::Least | Word::Ratio => ScoringStrategy::LeastAllocated,
                Word::Most => ScoringStrategy::MostAllocated,
            })
        }
        None => None,
    };
    // All three are checked before a fault of one ends the profile.
    let weights = weights(raw.resources, sink);
    Some(SchedulerProfile {
        name: name?,
        strategy: strategy?,
        weights,
    })
}

fn refuse_shape<T>(shape: Option<&At<T>>, sink: &mut Sink<'_>) {
    if let Some(shape) = shape {
        sink.fault(
            FaultKind::Conflict,
            &shape.place,
            "a shape for another strategy",
            "none, or `strategy = \"RequestedToCapacityRatio\"`",
        );
    }
}

/// The points of a shape, each further to the right than the one before.
fn points(shape: &At<Vec<At<Vec<At<i64>>>>>, sink: &mut Sink<'_>) -> Option<Vec<ShapePoint>> {
    sink.not_empty(shape, SHAPE);
    let mut points: Vec<ShapePoint> = Vec::new();
    for At { value: pair, place } in &shape.value {
        let [utilization, score] = pair.as_slice() else {
            let found = format!("{} numbers", pair.len());
            sink.fault(FaultKind::BadValue, place, found, "used per cent and score");
            return None;
        };
        let least = points.last().map_or(0, |last| last.utilization + 1);
        points.push(ShapePoint {
            utilization: sink.number(utilization, &(least..=100))?,
            score: sink.number(score, &(0..=HIGHEST_SCORE))?,
        });
    }
    (!points.is_empty()).then_some(points)
}

fn weights(raw: Option<At<Entries<i64>>>, sink: &mut Sink<'_>) -> Vec<(ResourceName, i64)> {
    let Some(At {
        value: Entries(entries),
        place,
    }) = raw
    else {
        let usual = |(name, weight): (&str, i64)| Some((name.parse().ok()?, weight));
        return WEIGHTS.into_iter().filter_map(usual).collect();
    };
    if entries.is_empty() {
        sink.fault(
            FaultKind::BadValue,
            &place,
            "no resource",
            "weights such as `{ cpu = 1, memory = 1 }`",
        );
    }
    let entry = |(name, weight): (At<String>, At<i64>)| {
        let (name, weight) = (
            sink.parse(&name),
            sink.number(&weight, &(1..=HIGHEST_WEIGHT)),
        );
        Some((name?, weight?))
    };
    entries.into_iter().filter_map(entry).collect()
}
