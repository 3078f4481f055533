//! Reads a node's `/metrics/resource`: Prometheus' text format (0.0.4), of which a handful of
//! families count; pure, and total over hostile bytes.

use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};

/// Containers of an answer at most: a node has some hundred pods.
const MAX_CONTAINERS: usize = 8192;
/// Bytes of a name of Kubernetes at most (RFC 1123 subdomain).
const MAX_NAME: usize = 253;
/// Seconds of CPU time at most: a thousand CPUs that are busy for thirty years.
const MAX_CPU: f64 = 1e12;
/// Bytes of memory at most: 2^60.
const MAX_MEMORY: f64 = 1_152_921_504_606_846_976.0;

/// The usage up to a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// Nanoseconds of CPU time since the beginning.
    pub(crate) cpu: u64,
    /// Bytes of the working set.
    pub(crate) memory: u64,
    /// When it was read, by the node's clock, in milliseconds since 1970.
    pub(crate) at: i64,
}

/// A container's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) point: Point,
    /// When it started, in milliseconds since 1970, if reported.
    pub(crate) started: Option<i64>,
}

/// A pod as a node's answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Pods, and their containers sorted by name: most pods have one, and a map takes a kilobyte for
/// that.
pub(crate) type Pods = HashMap<PodName, Box<[(String, Container)]>>;

/// A node's answer. A pod is left out if one of its containers has only a part of the figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub(crate) node: Option<Point>,
    pub(crate) pods: Pods,
}

/// An answer that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not UTF-8.
    #[error("the answer is no text")]
    NotText,
    /// A line of a family that counts is not in the format.
    #[error("line {0} is no figure")]
    Line(usize),
    /// More containers than a node has.
    #[error("the answer has more than {MAX_CONTAINERS} containers")]
    TooMany,
}

/// The families that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    NodeCpu,
    NodeMemory,
    Cpu,
    Memory,
    Started,
}

impl Family {
    fn of(name: &str) -> Option<Self> {
        match name {
            "node_cpu_usage_seconds_total" => Some(Self::NodeCpu),
            "node_memory_working_set_bytes" => Some(Self::NodeMemory),
            "container_cpu_usage_seconds_total" => Some(Self::Cpu),
            "container_memory_working_set_bytes" => Some(Self::Memory),
            "container_start_time_seconds" => Some(Self::Started),
            _ => None,
        }
    }
}

/// Figures in order, one at a time.
#[derive(Debug, Default)]
struct PartialFigures {
    cpu: Option<(f64, i64)>,
    memory: Option<f64>,
    started: Option<f64>,
}

impl PartialFigures {
    fn take(&mut self, family: Family, value: f64, at: i64) {
        match family {
            Family::NodeCpu | Family::Cpu => self.cpu = Some((value, at)),
            Family::NodeMemory | Family::Memory => self.memory = Some(value),
            Family::Started => self.started = Some(value),
        }
    }

    /// The figures, if they are whole. The time is that of the CPU counter, of which rates are
    /// made.
    fn whole(&self) -> Option<Container> {
        let (cpu, at) = self.cpu.filter(|(cpu, _)| *cpu <= MAX_CPU)?;
        let memory = self.memory.filter(|memory| *memory <= MAX_MEMORY)?;
        Some(Container {
            point: Point {
                cpu: whole(cpu * 1e9),
                memory: whole(memory),
                at,
            },
            started: self.started.and_then(|at| millis(at * 1000.0)),
        })
    }
}

/// A number without its fraction. It is finite and not negative: the format's reader saw to that.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts of floating-point numbers saturate, and negative ones are refused before"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Milliseconds since 1970 that are a time.
fn millis(value: f64) -> Option<i64> {
    let millis = i64::try_from(whole(value)).ok()?;
    is_time(millis).then_some(millis)
}

fn is_time(millis: i64) -> bool {
    millis >= 0 && Timestamp::from_millisecond(millis).is_ok()
}

impl Answer {
    /// Reads an answer. A figure without a time of its own is of `now`, in milliseconds since 1970.
    ///
    /// # Errors
    /// It is not in the format, or is of more containers than a node has.
    pub fn parse(bytes: &[u8], now: i64) -> Result<Self, ParseError> {
        let text = std::str::from_utf8(bytes).map_err(|_no_text| ParseError::NotText)?;
        let mut node = PartialFigures::default();
        let mut all: BTreeMap<[&str; 3], PartialFigures> = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let name = line.find(['{', ' ']).map_or(line, |end| &line[..end]);
            let Some(family) = Family::of(name) else {
                continue;
            };
            let fault = || ParseError::Line(number + 1);
            let sample = Sample::parse(&line[name.len()..]).ok_or_else(fault)?;
            let at = sample.at.unwrap_or(now);
            let parts = match family {
                Family::NodeCpu | Family::NodeMemory => &mut node,
                Family::Cpu | Family::Memory | Family::Started => {
                    let key = [sample.namespace, sample.pod, sample.container];
                    let fits = |name: &str| !name.is_empty() && name.len() <= MAX_NAME;
                    if !key.into_iter().all(fits) {
                        return Err(fault());
                    }
                    if all.len() >= MAX_CONTAINERS && !all.contains_key(&key) {
                        return Err(ParseError::TooMany);
                    }
                    all.entry(key).or_default()
                }
            };
            parts.take(family, sample.value, at);
        }
        Ok(Self {
            node: node.whole().map(|found| found.point),
            pods: by_pod(all),
        })
    }
}

/// The containers by pod. A pod is left out if one of its containers lacks a figure, as by
/// upstream's metrics server: the sum of the others would look like the whole, and an autoscaler
/// would compare it with what all of them request.
fn by_pod(all: BTreeMap<[&str; 3], PartialFigures>) -> Pods {
    let read = all.into_iter().map(|(names, parts)| (names, parts.whole()));
    let read: Vec<([&str; 3], Option<Container>)> = read.collect();
    let pods = read.chunk_by(|(one, _), (other, _)| one[..2] == other[..2]);
    let pods = pods.filter_map(|of_pod| {
        let ([namespace, pod, _], _) = of_pod.first()?;
        let named = of_pod.iter();
        let named = named.map(|([.., name], found)| Some(((*name).to_owned(), (*found)?)));
        let named: Option<Box<[(String, Container)]>> = named.collect();
        Some((
            PodName {
                namespace: (*namespace).to_owned(),
                name: (*pod).to_owned(),
            },
            named?,
        ))
    });
    pods.collect()
}

/// A line after its name.
#[derive(Debug, Default)]
struct Sample<'a> {
    namespace: &'a str,
    pod: &'a str,
    container: &'a str,
    value: f64,
    at: Option<i64>,
}

impl<'a> Sample<'a> {
    fn parse(rest: &'a str) -> Option<Self> {
        let mut sample = Self::default();
        let mut rest = rest;
        if let Some(labels) = rest.strip_prefix('{') {
            rest = labels;
            while !rest.starts_with('}') {
                let (name, after) = rest.split_once("=\"")?;
                // Names of Kubernetes need no escapes; a value that has one is of no label that
                // counts.
                let end = quote(after)?;
                let value = &after[..end];
                match name.trim() {
                    "namespace" => sample.namespace = value,
                    "pod" => sample.pod = value,
                    "container" => sample.container = value,
                    _ => {}
                }
                rest = &after[end + 1..];
                rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            rest = &rest[1..];
        }
        let mut words = rest.split_ascii_whitespace();
        sample.value = words.next()?.parse().ok()?;
        if let Some(at) = words.next() {
            sample.at = Some(at.parse().ok().filter(|at| is_time(*at))?);
        }
        let usual = sample.value.is_finite() && sample.value >= 0.0;
        (usual && words.next().is_none()).then_some(sample)
    }
}

/// Where the quote is that ends a label's value.
fn quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_800_000_000_000;
    const TEXT: &str = r#"# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1.5e3 1700000000000
node_memory_working_set_bytes 4096
container_cpu_usage_seconds_total{container="main",namespace="default",pod="a"} 2.5 1700000000001
container_memory_working_set_bytes{container="main",namespace="default",pod="a"} 1.048576e+06 1700000000002
container_start_time_seconds{container="main",namespace="default",pod="a"} 1.6999999e9
container_cpu_usage_seconds_total{container="half",namespace="default",pod="b"} 1 1700000000001
container_cpu_usage_seconds_total{container="main",namespace="default",pod="b"} 1 1700000000001
container_memory_working_set_bytes{container="main",namespace="default",pod="b"} 1 1700000000001
pod_cpu_usage_seconds_total{namespace="default",pod="a"} 2.5 1700000000001
unknown{x="a\"}b",} NaN
"#;

    #[test]
    fn upstream_s_figures_are_read() {
        let answer = Answer::parse(TEXT.as_bytes(), NOW).unwrap();
        let node = Point {
            cpu: 1_500_000_000_000,
            memory: 4096,
            at: 1_700_000_000_000,
        };
        assert_eq!(answer.node, Some(node));
        let pod = PodName {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
        };
        let containers = &answer.pods[&pod];
        let [(name, found)] = &**containers else {
            unreachable!("one container has all figures: {containers:?}");
        };
        let main = Container {
            point: Point {
                cpu: 2_500_000_000,
                memory: 1 << 20,
                at: 1_700_000_000_001,
            },
            started: Some(1_699_999_900_000),
        };
        assert_eq!((name.as_str(), *found), ("main", main));
        assert_eq!(
            answer.pods.len(),
            1,
            "a pod that is known in part is left out"
        );
        let without_time = Answer::parse(
            b"node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 1",
            NOW,
        );
        assert_eq!(without_time.unwrap().node.unwrap().at, NOW);
    }

    #[test]
    fn a_malformed_figure_is_refused_with_its_line() {
        for bad in [
            "node_cpu_usage_seconds_total",
            "node_cpu_usage_seconds_total x",
            "node_cpu_usage_seconds_total -1",
            "node_cpu_usage_seconds_total NaN",
            "node_cpu_usage_seconds_total +Inf",
            "node_cpu_usage_seconds_total 1 2 3",
            "node_cpu_usage_seconds_total 1 99999999999999999",
            "node_cpu_usage_seconds_total{a=\"b 1",
            "node_cpu_usage_seconds_total{a=b} 1",
            "container_cpu_usage_seconds_total 1",
            "container_cpu_usage_seconds_total{container=\"\",namespace=\"n\",pod=\"p\"} 1",
        ] {
            let text = format!("# a comment\n{bad}\n");
            let found = Answer::parse(text.as_bytes(), NOW);
            assert_eq!(found, Err(ParseError::Line(2)), "{bad}");
        }
        assert_eq!(Answer::parse(&[0xff], NOW), Err(ParseError::NotText));
    }

    #[test]
    fn a_node_has_so_many_containers_and_no_more() {
        let of = |number| {
            format!(
                "container_cpu_usage_seconds_total{{container=\"c{number}\",namespace=\"n\",pod=\"p\"}} 1\n"
            )
        };
        let most: String = (0..MAX_CONTAINERS).map(of).collect();
        assert!(Answer::parse(most.as_bytes(), NOW).is_ok());
        let more = most + &of(MAX_CONTAINERS);
        assert_eq!(
            Answer::parse(more.as_bytes(), NOW),
            Err(ParseError::TooMany)
        );
    }

    #[test]
    fn numbers_beyond_any_machine_are_no_figures() {
        let text = "node_cpu_usage_seconds_total 1e300\nnode_memory_working_set_bytes 1\n";
        assert_eq!(Answer::parse(text.as_bytes(), NOW).unwrap().node, None);
        let text = "node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 1e300\n";
        assert_eq!(Answer::parse(text.as_bytes(), NOW).unwrap().node, None);
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            // The node may report anything about its pods.
            let _verdict = Answer::parse(&bytes, NOW);
        }

        #[test]
        fn no_line_of_a_family_harms_the_reader(rest in "[{}=\",\\\\a-z0-9. e+-]{0,40}") {
            for name in ["node_cpu_usage_seconds_total", "container_start_time_seconds"] {
                let _verdict = Answer::parse(format!("{name}{rest}").as_bytes(), NOW);
            }
        }
    }
}
