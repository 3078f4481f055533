//! Figures and what they are held against, as a table.

#![allow(clippy::print_stdout, reason = "the figures are for a person to read")]

use std::time::Duration;

/// A figure's target, and which direction is better.
#[derive(Debug, Clone, Copy)]
struct Held {
    key: &'static str,
    target: f64,
    upstream: Option<f64>,
    more_is_better: bool,
}

const fn low(key: &'static str, target: f64, upstream: Option<f64>) -> Held {
    Held {
        key,
        target,
        upstream,
        more_is_better: false,
    }
}

const fn high(key: &'static str, target: f64, upstream: Option<f64>) -> Held {
    Held {
        key,
        target,
        upstream,
        more_is_better: true,
    }
}

/// Targets, and upstream's figures on the same machine (Kubernetes v1.36.2 and etcd 3.6, both
/// processes together); milliseconds, MiB, operations a second.
const HELD: &[Held] = &[
    // Its API server, etcd, controllers and scheduler: ours are one process.
    low("idle", 30.0, Some(511.0)),
    low("start", 300.0, Some(2700.0)),
    high("create", 6000.0, Some(865.0)),
    low("create-cpu", 0.17, Some(1.33)),
    low("create-p50", 3.0, Some(16.0)),
    low("create-p99", 10.0, Some(64.0)),
    high("get", 14_000.0, Some(1860.0)),
    low("get-cpu", 0.07, Some(0.68)),
    high("update", 5500.0, Some(700.0)),
    low("update-cpu", 0.18, Some(1.62)),
    low("list", 6.0, Some(59.0)),
    low("list-cpu", 6.0, Some(61.0)),
    low("watch-p50", 0.5, Some(2.3)),
    low("watch-p99", 2.0, Some(7.5)),
    low("watchers", 50.0, None),
    low("collection", 1000.0, Some(25_000.0)),
    low("open", 2000.0, None),
];

/// The figures of one run.
#[derive(Debug, Default)]
pub(super) struct Report {
    rows: Vec<[String; 5]>,
}

fn number(value: f64) -> String {
    match value {
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

impl Report {
    /// A figure with its unit.
    pub(super) fn figure(&mut self, what: &str, key: &str, value: f64, unit: &str) {
        self.row(
            what,
            value,
            unit,
            HELD.iter().find(|held| held.key == key).copied(),
        );
    }

    /// A figure that must not be more than `most`.
    pub(super) fn against(&mut self, what: &str, value: f64, most: f64, unit: &str) {
        self.row(what, value, unit, Some(low("", most, None)));
    }

    fn row(&mut self, what: &str, value: f64, unit: &str, held: Option<Held>) {
        let ratio = |held: &Held, of: f64| {
            if held.more_is_better {
                value / of
            } else {
                of / value
            }
        };
        let target = held.map_or(String::new(), |held| {
            let verdict = if ratio(&held, held.target) >= 1.0 {
                "met"
            } else {
                "MISSED"
            };
            format!("{} {verdict}", number(held.target))
        });
        let upstream = held.and_then(|held| held.upstream.map(|of| (number(of), ratio(&held, of))));
        let (upstream, times) = upstream.map_or_else(Default::default, |(of, times)| {
            (of, format!("{times:.1} ×"))
        });
        let measured = format!("{} {unit}", number(value));
        println!("  {what}: {measured}  {target}");
        self.rows
            .push([what.to_owned(), measured, target, upstream, times]);
    }

    /// A figure without a target.
    pub(super) fn note(&mut self, what: &str, value: f64, unit: &str) {
        self.figure(what, "", value, unit);
    }

    /// A time, in milliseconds.
    pub(super) fn time(&mut self, what: &str, key: &str, value: Duration) {
        self.figure(what, key, value.as_secs_f64() * 1e3, "ms");
    }

    /// Memory, in MiB.
    pub(super) fn memory(&mut self, what: &str, key: &str, value: f64) {
        self.figure(what, key, value, "MiB");
    }

    /// Operations of one kind: rate, CPU for each, rate for each second of CPU, and times.
    pub(super) fn rate(&mut self, what: &str, key: &str, run: &mut Run) {
        let (count, seconds) = (float(run.times.len()), run.wall.as_secs_f64());
        self.figure(what, key, count / seconds, "/s");
        self.figure(
            &format!("{what}: CPU each"),
            &format!("{key}-cpu"),
            run.cpu / count * 1e3,
            "ms",
        );
        self.note(
            &format!("{what}: for each second of CPU"),
            count / run.cpu.max(0.01),
            "",
        );
        self.time(
            &format!("{what}: p50"),
            &format!("{key}-p50"),
            percentile(&mut run.times, 50),
        );
        self.time(
            &format!("{what}: p99"),
            &format!("{key}-p99"),
            percentile(&mut run.times, 99),
        );
    }

    /// Says something that is no figure.
    pub(super) fn say(text: &str) {
        println!("  {text}");
    }

    /// The whole as a table.
    pub(super) fn print(&self) {
        println!("\n| what | measured | target | upstream | better by |\n|---|---|---|---|---|");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

/// Operations that were run, with the time of each and the master's CPU for all.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) times: Vec<Duration>,
    pub(super) wall: Duration,
    pub(super) cpu: f64,
}

/// A count as a figure: exact far beyond what is counted here.
pub(super) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// A percentile of times.
pub(super) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times
        .get(times.len().saturating_sub(1) * percent / 100)
        .copied()
        .unwrap_or_default()
}
