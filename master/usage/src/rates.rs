//! Usage between two answers of a node; pure.

use crate::parse::{Answer, Container, PodName, Point};

/// Milliseconds. A container younger than this has no rate: a process that starts uses more than
/// it will later (upstream: 10 s).
const MIN_CONTAINER_AGE: i64 = 10_000;
/// Milliseconds. A container older than this is compared with the answer before, and with nothing
/// else. One that started just after its node was scraped is two minutes old at the next scrape;
/// the rest is for the time that the answer takes.
const MAX_AGE_SINCE_START: i64 = 135_000;

/// A rate of CPU and a level of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Billionths of a CPU.
    pub(crate) cpu: u64,
    /// Bytes.
    pub(crate) memory: u64,
    /// When the time ended in which it was used, in milliseconds since 1970.
    pub(crate) at: i64,
    /// The length of that time in milliseconds.
    pub(crate) window: i64,
}

/// The usage between two points; `None` if the counter or the clock went back.
pub(crate) fn between(before: Point, last: Point) -> Option<Used> {
    let window = last
        .at
        .checked_sub(before.at)
        .filter(|window| *window > 0)?;
    let used = u128::from(last.cpu.checked_sub(before.cpu)?);
    let cpu = used * 1000 / u128::try_from(window).ok()?;
    Some(Used {
        cpu: u64::try_from(cpu).ok()?,
        memory: last.memory,
        at: last.at,
        window,
    })
}

/// A container's usage since the previous answer. One that started later is compared with its
/// start, if it is neither too young nor too old for that.
fn container(before: Option<Container>, last: Container) -> Option<Used> {
    let began = |point: Point| last.started.is_some_and(|started| started > point.at);
    if let Some(before) = before.filter(|before| !began(before.point)) {
        return between(before.point, last.point);
    }
    let start = Point {
        cpu: 0,
        memory: 0,
        at: last.started?,
    };
    let age = last.point.at.checked_sub(start.at)?;
    (MIN_CONTAINER_AGE..=MAX_AGE_SINCE_START)
        .contains(&age)
        .then(|| between(start, last.point))?
}

/// The node's usage.
pub(crate) fn node(before: &Answer, last: &Answer) -> Option<Used> {
    between(before.node?, last.node?)
}

/// The usage of a pod's containers, by name. A pod with a container whose usage is not known yet
/// has no figures: a part would look like the whole.
pub(crate) fn pod(
    before: Option<&Answer>,
    last: &Answer,
    name: &PodName,
) -> Option<Vec<(String, Used)>> {
    let before = before.and_then(|before| before.pods.get(name));
    let all = last.pods.get(name)?.iter();
    let used = all.map(|(name, last)| {
        let before = before.and_then(|before| {
            let at = before.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
            before.get(at).map(|(_, container)| *container)
        });
        Some((name.clone(), container(before, *last)?))
    });
    used.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(cpu: u64, at: i64) -> Point {
        Point {
            cpu,
            memory: 5,
            at: 1_700_000_000_000 + at,
        }
    }

    fn container_at(cpu: u64, at: i64, started: i64) -> Container {
        Container {
            point: point(cpu, at),
            started: Some(1_700_000_000_000 + started),
        }
    }

    fn rate(used: Option<Used>) -> Option<(u64, i64)> {
        used.map(|used| (used.cpu, used.window))
    }

    #[test]
    fn a_rate_is_usage_divided_by_time() {
        let found = between(point(1_000_000_000, 0), point(4_000_000_000, 15_000));
        assert_eq!(rate(found), Some((200_000_000, 15_000)));
        assert_eq!(found.unwrap().memory, 5);
        assert_eq!(
            between(point(2, 0), point(1, 1000)),
            None,
            "another counter"
        );
        assert_eq!(between(point(1, 1000), point(2, 1000)), None, "no time");
        assert_eq!(
            between(point(1, 1000), point(2, 0)),
            None,
            "a clock that went back"
        );
        let most = between(point(0, 0), point(u64::MAX, 1));
        assert_eq!(most, None, "more than can be said");
    }

    #[test]
    fn a_restarted_container_is_not_compared_with_the_one_before() {
        let before = container_at(900, 0, -5000);
        let same = container_at(1900, 1000, -5000);
        assert_eq!(rate(container(Some(before), same)), Some((1000, 1000)));
        // More than before, yet of another life.
        let other = container_at(3_000_000_000, 15_000, 3000);
        let found = container(Some(before), other);
        assert_eq!(rate(found), Some((250_000_000, 12_000)));
    }

    #[test]
    fn a_container_without_a_figure_before_has_one_when_it_is_neither_young_nor_old() {
        for (age, known) in [
            (9_999, false),
            (10_000, true),
            (135_000, true),
            (135_001, false),
        ] {
            let found = container(None, container_at(10, age, 0));
            assert_eq!(found.is_some(), known, "{age}");
        }
        let unknown = Container {
            started: None,
            ..container_at(10, 20_000, 0)
        };
        assert_eq!(container(None, unknown), None);
    }

    #[test]
    fn a_pod_with_a_container_that_is_not_known_has_no_figures() {
        let name = PodName {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
        };
        let with = |containers: &[(&str, Container)]| {
            let mut answer = Answer::default();
            let named = containers.iter();
            let named = named.map(|(name, one)| ((*name).to_owned(), *one));
            answer.pods.insert(name.clone(), named.collect());
            answer
        };
        let before = with(&[("a", container_at(0, 0, -199_000))]);
        let last = with(&[("a", container_at(1000, 1000, -199_000))]);
        let found = pod(Some(&before), &last, &name).unwrap();
        assert_eq!((found[0].0.as_str(), found[0].1.cpu), ("a", 1000));
        let more = with(&[
            ("a", container_at(1000, 1000, -199_000)),
            ("b", container_at(1, 1000, 900)),
        ]);
        assert_eq!(pod(Some(&before), &more, &name), None);
        assert_eq!(pod(Some(&last), &Answer::default(), &name), None);
        assert_eq!(pod(None, &last, &name), None, "one answer makes no rate");
    }
}
