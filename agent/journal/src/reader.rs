//! Several logs merged in the order of time, filtered by a query.

use crate::query::Query;
use crate::service::LoggedService;
use crate::source::{Line, Source};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// Bytes that are sent in one piece.
const PIECE: usize = 32 << 10;
/// Bytes of the last lines that are held until all are read.
const TAIL: usize = 4 << 20;
/// Bytes of an answer that is not followed.
pub(crate) const MAX_ANSWER: usize = 16 << 20;

/// The result of a slice of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Whole lines.
    Text(Vec<u8>),
    /// Nothing yet; there is more to read.
    Busy,
    /// Everything written so far was read.
    Idle,
    /// Nothing more will come.
    Over,
}

struct Part {
    service: LoggedService,
    source: Box<dyn Source>,
    head: Option<Line>,
    /// It had no more lines at the last check.
    ended: bool,
}

/// Reads several logs as one.
pub(crate) struct Reader {
    query: Query,
    parts: Vec<Part>,
    /// The last lines so far; once `gathering` is over, the lines still to be sent.
    tail: VecDeque<String>,
    tail_bytes: usize,
    /// Whether lines are still collected to find the last ones.
    gathering: Option<usize>,
    /// Lines were left out of the tail for its size.
    too_large: bool,
    left: usize,
    over: bool,
}

impl Reader {
    pub(crate) fn new(query: Query, sources: Vec<(LoggedService, Box<dyn Source>)>) -> Self {
        let part = |(service, source)| Part {
            service,
            source,
            head: None,
            ended: false,
        };
        let left = if query.follow { usize::MAX } else { MAX_ANSWER };
        Self {
            parts: sources.into_iter().map(part).collect(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            gathering: query.tail,
            too_large: false,
            left,
            over: false,
            query,
        }
    }

    pub(crate) fn query(&self) -> &Query {
        &self.query
    }

    /// Reads for about this long at most.
    ///
    /// # Errors
    /// One of the logs can't be opened or read any further. What was read in this call is lost.
    pub(crate) fn piece(&mut self, slice: Duration) -> io::Result<Piece> {
        let begun = Instant::now();
        let mut out = Vec::new();
        let none = loop {
            if self.over {
                break Piece::Over;
            }
            if out.len() >= PIECE || begun.elapsed() >= slice {
                break Piece::Busy;
            }
            if self.gathering.is_none()
                && let Some(line) = self.tail.pop_front()
            {
                self.send(&mut out, &line);
                continue;
            }
            match self.next()? {
                Some((service, line)) if self.query.wants(&line) => {
                    let text = rendered(service, &line);
                    match self.gathering {
                        Some(most) => self.gather(text, most),
                        None => self.send(&mut out, &text),
                    }
                }
                Some(_) => {}
                None => match self.gathering.take() {
                    Some(most) => self.gathered(most),
                    None => break Piece::Idle,
                },
            }
        };
        // A follower checks again in the next slice.
        for part in &mut self.parts {
            part.ended = false;
        }
        Ok(if out.is_empty() {
            none
        } else {
            Piece::Text(out)
        })
    }

    /// The line that comes next by time; for equal times, the line of the service that the query
    /// names first.
    fn next(&mut self) -> io::Result<Option<(LoggedService, Line)>> {
        for part in &mut self.parts {
            if part.head.is_none() && !part.ended {
                part.head = part.source.next()?;
                part.ended = part.head.is_none();
            }
        }
        let heads = self.parts.iter_mut();
        let first = heads
            .filter(|part| part.head.is_some())
            .min_by_key(|part| part.head.as_ref().map(|line| line.time));
        Ok(first.and_then(|part| Some((part.service, part.head.take()?))))
    }

    fn gather(&mut self, line: String, most: usize) {
        self.tail_bytes += line.len();
        self.tail.push_back(line);
        while self.tail.len() > most || self.tail_bytes > TAIL {
            self.too_large |= self.tail.len() <= most;
            self.tail_bytes -= self.tail.pop_front().map_or(0, |line| line.len());
        }
    }

    fn gathered(&mut self, most: usize) {
        if self.too_large && self.tail.len() < most {
            let count = self.tail.len();
            let note =
                format!("(the last {count} lines follow, and not {most}: they fill 4 MiB)\n");
            self.tail.push_front(note);
        }
    }

    fn send(&mut self, out: &mut Vec<u8>, line: &str) {
        if line.len() > self.left {
            self.over = true;
            let time = line.split(' ').next().unwrap_or_default();
            let note = format!("(this answer ends after 16 MiB: go on with sinceTime={time})\n");
            out.extend_from_slice(note.as_bytes());
            return;
        }
        self.left -= line.len();
        out.extend_from_slice(line.as_bytes());
    }
}

/// A line as it is sent.
fn rendered(service: LoggedService, line: &Line) -> String {
    let time = Timestamp::from_microsecond(line.time).unwrap_or_default();
    format!("{time:.6} {service}: {}\n", line.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Micros;
    use proptest::prelude::*;

    struct Given(VecDeque<Line>);

    impl Source for Given {
        fn next(&mut self) -> io::Result<Option<Line>> {
            Ok(self.0.pop_front())
        }
    }

    fn given(lines: &[(Micros, &str)]) -> Box<dyn Source> {
        let line = |(time, text): &(Micros, &str)| Line {
            time: *time,
            text: (*text).to_owned(),
        };
        Box::new(Given(lines.iter().map(line).collect()))
    }

    fn read(query: &str, sources: Vec<(LoggedService, Box<dyn Source>)>) -> String {
        let mut reader = Reader::new(Query::parse(query).unwrap(), sources);
        let mut all = Vec::new();
        loop {
            match reader.piece(Duration::from_secs(60)).unwrap() {
                Piece::Text(text) => all.extend(text),
                Piece::Busy => {}
                Piece::Idle | Piece::Over => return String::from_utf8(all).unwrap(),
            }
        }
    }

    fn both() -> Vec<(LoggedService, Box<dyn Source>)> {
        vec![
            (
                LoggedService::Kernel,
                given(&[(1, "a"), (3, "c"), (5, "e")]),
            ),
            (LoggedService::Agent, given(&[(2, "b"), (3, "d"), (6, "f")])),
        ]
    }

    fn texts(answer: &str) -> String {
        answer
            .lines()
            .filter_map(|line| line.chars().last())
            .collect()
    }

    #[test]
    fn services_are_merged_by_time_and_each_line_says_when_and_who() {
        let all = read("query=agent", both());
        assert_eq!(texts(&all), "abcdef");
        let line = all.lines().nth(3).unwrap();
        assert_eq!(line, "1970-01-01T00:00:00.000003Z agent: d");
    }

    #[test]
    fn the_last_lines_are_the_last_matching_ones() {
        for (query, wanted) in [
            ("tailLines=0", ""),
            ("tailLines=2", "ef"),
            ("tailLines=100000", "abcdef"),
            ("tailLines=2&pattern=[a-d]", "cd"),
            ("sinceTime=1970-01-01T00:00:00.000003Z&tailLines=9", "cdef"),
            ("untilTime=1970-01-01T00:00:00.000003Z", "abcd"),
        ] {
            let answer = read(&format!("query=agent&{query}"), both());
            assert_eq!(texts(&answer), wanted, "{query}");
        }
    }

    /// Endless lines of the maximum length.
    struct Endless(Micros);

    impl Source for Endless {
        fn next(&mut self) -> io::Result<Option<Line>> {
            self.0 += 1;
            let text = "x".repeat(4096);
            Ok((self.0 < 6000).then_some(Line { time: self.0, text }))
        }
    }

    #[test]
    fn an_answer_is_bounded_and_says_where_to_go_on() {
        let all = read(
            "query=agent",
            vec![(LoggedService::Agent, Box::new(Endless(0)))],
        );
        assert!(all.len() <= MAX_ANSWER + 100, "{}", all.len());
        let last = all.lines().last().unwrap();
        let next = last.strip_prefix("(this answer ends after 16 MiB: go on with sinceTime=");
        let next = next.and_then(|rest| rest.strip_suffix(')')).unwrap();
        let query = format!("query=agent&sinceTime={next}");
        let rest = read(&query, vec![(LoggedService::Agent, Box::new(Endless(0)))]);
        let count = |text: &str| text.lines().filter(|line| !line.starts_with('(')).count();
        assert_eq!(count(&all) + count(&rest), 5999, "{next}");
    }

    #[test]
    fn the_last_lines_are_held_within_a_bound() {
        let query = Query::parse("query=agent&tailLines=100000").unwrap();
        let mut reader = Reader::new(query, vec![(LoggedService::Agent, Box::new(Endless(0)))]);
        let Piece::Text(first) = reader.piece(Duration::from_secs(600)).unwrap() else {
            panic!("the tail begins");
        };
        assert!(reader.tail_bytes <= TAIL);
        let first = String::from_utf8(first).unwrap();
        assert!(first.starts_with("(the last "), "{}", &first[..100]);
    }

    #[test]
    fn a_slice_without_time_reads_nothing_and_a_follower_goes_on() {
        let query = Query::parse("query=agent&follow=true").unwrap();
        let mut reader = Reader::new(query, both());
        assert_eq!(reader.piece(Duration::ZERO).unwrap(), Piece::Busy);
        let slice = Duration::from_secs(60);
        assert!(matches!(reader.piece(slice).unwrap(), Piece::Text(_)));
        assert_eq!(reader.piece(slice).unwrap(), Piece::Idle);
        reader.parts[0].source = given(&[(9, "g")]);
        assert!(matches!(reader.piece(slice).unwrap(), Piece::Text(_)));
    }

    proptest! {
        /// Sorted logs give a sorted answer that holds each line once; with a tail it is the end of
        /// that answer.
        #[test]
        fn merging_keeps_order_and_lines(logs in proptest::collection::vec(proptest::collection::vec(0_i64..50, 0..20), 1..4), tail in 0_usize..30) {
            let sources = || {
                let sorted = logs.iter().zip(LoggedService::ALL).map(|(times, service)| {
                    let mut times = times.clone();
                    times.sort_unstable();
                    let lines: Vec<(Micros, &str)> = times.into_iter().map(|time| (time, "x")).collect();
                    (service, given(&lines))
                });
                sorted.collect()
            };
            let all = read("query=agent", sources());
            let lines: Vec<&str> = all.lines().collect();
            prop_assert_eq!(lines.len(), logs.iter().map(Vec::len).sum::<usize>());
            prop_assert!(lines.is_sorted_by_key(|line| &line[..27]));
            let last = read(&format!("query=agent&tailLines={tail}"), sources());
            let from = lines.len().saturating_sub(tail);
            prop_assert_eq!(last.lines().collect::<Vec<_>>(), &lines[from..]);
        }
    }
}
