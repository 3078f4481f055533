//! Queries: the parameters of upstream's node log query (KEP-2258), and `follow`, which is our own.

use crate::service::LoggedService;
use crate::source::{Line, Micros};
use config_http::percent;
use jiff::Timestamp;
use regex::{Regex, RegexBuilder};

/// Longest query in bytes, as it came.
const MAX_QUERY: usize = 8 << 10;
/// Most parameters.
const MAX_PARAMETERS: usize = 16;
/// Most lines from the end (upstream's limit).
pub(crate) const MAX_LINES: usize = 100_000;
/// Longest pattern in bytes.
const MAX_PATTERN: usize = 1 << 10;
/// Largest program that a pattern may become, and the largest table of states while it matches,
/// both in bytes. The first also bounds the cost of matching a line of 4 KiB.
const MAX_PROGRAM: usize = 256 << 10;
const MAX_TABLE: usize = 1 << 20;
/// Deepest nesting in a pattern.
const MAX_NESTING: u32 = 50;
/// The oldest boot that a query may name, counted back from this one.
const MAX_BOOTS_BACK: u32 = 1000;
const PARAMETERS: &str = "query, sinceTime, untilTime, tailLines, pattern, boot, follow";

/// Why a query is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not in the form of a query.
    #[error("the query is not understood: {0}")]
    Form(&'static str),
    /// There is no such parameter.
    #[error("no parameter {0:?}; there are: {PARAMETERS}")]
    Unknown(String),
    /// A parameter occurs twice.
    #[error("{0} occurs twice")]
    Twice(&'static str),
    /// A value is not what its parameter takes.
    #[error("{name}: {found:?} is not {wanted}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// The value.
        found: String,
        /// What may.
        wanted: &'static str,
    },
    /// There is no such service on any machine.
    #[error("no service {0:?}")]
    Service(String),
    /// No service is named.
    #[error("query: name a service")]
    Nobody,
    /// A pattern is not a regular expression of an acceptable size.
    #[error("pattern: {0}")]
    Pattern(String),
    /// The range of times is empty.
    #[error("untilTime is before sinceTime")]
    Order,
}

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Query {
    /// The services; at least one.
    pub services: Vec<LoggedService>,
    /// Lines from then on.
    pub since: Option<Timestamp>,
    /// Lines up to then.
    pub until: Option<Timestamp>,
    /// Only this many of the last matching lines.
    pub tail: Option<usize>,
    /// Lines whose text it matches.
    pub pattern: Option<Regex>,
    /// Only lines of this boot, counted back from the current one.
    pub boot: Option<u32>,
    /// Whether to follow the log.
    pub follow: bool,
}

impl Query {
    /// Parses a query; all its parts are bounded.
    ///
    /// # Errors
    /// The first fault, with the expected value.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if text.len() > MAX_QUERY {
            return Err(Fault::Form("it is longer than 8 KiB"));
        }
        let mut parameters = Parameters::default();
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        for (index, pair) in pairs.enumerate() {
            if index >= MAX_PARAMETERS {
                return Err(Fault::Form("it has more than 16 parameters"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let [name, value] = [name, value].map(percent::decode_query);
            let (Some(name), Some(value)) = (name, value) else {
                return Err(Fault::Form("it is not properly percent-encoded UTF-8"));
            };
            parameters.take(&name, value)?;
        }
        parameters.checked()
    }

    /// Whether a line is wanted.
    pub(crate) fn wants(&self, line: &Line) -> bool {
        let micros = |time: &Timestamp| -> Micros { time.as_microsecond() };
        self.since
            .as_ref()
            .is_none_or(|since| line.time >= micros(since))
            && self
                .until
                .as_ref()
                .is_none_or(|until| line.time <= micros(until))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(&line.text))
    }
}

/// The parameters as they came.
#[derive(Default)]
struct Parameters {
    services: Vec<LoggedService>,
    since: Option<String>,
    until: Option<String>,
    tail: Option<String>,
    pattern: Option<String>,
    boot: Option<String>,
    follow: Option<String>,
}

impl Parameters {
    fn take(&mut self, name: &str, value: String) -> Result<(), Fault> {
        let (name, place) = match name {
            "query" => {
                let service = LoggedService::of(&value).ok_or(Fault::Service(value))?;
                if !self.services.contains(&service) {
                    self.services.push(service);
                }
                return Ok(());
            }
            "sinceTime" => ("sinceTime", &mut self.since),
            "untilTime" => ("untilTime", &mut self.until),
            "tailLines" => ("tailLines", &mut self.tail),
            "pattern" => ("pattern", &mut self.pattern),
            "boot" => ("boot", &mut self.boot),
            "follow" => ("follow", &mut self.follow),
            _ => return Err(Fault::Unknown(name.to_owned())),
        };
        match place.replace(value) {
            Some(_) => Err(Fault::Twice(name)),
            None => Ok(()),
        }
    }

    fn checked(self) -> Result<Query, Fault> {
        if self.services.is_empty() {
            return Err(Fault::Nobody);
        }
        let since = time("sinceTime", self.since)?;
        let until = time("untilTime", self.until)?;
        if let (Some(since), Some(until)) = (since, until)
            && until < since
        {
            return Err(Fault::Order);
        }
        Ok(Query {
            services: self.services,
            since,
            until,
            tail: value("tailLines", self.tail, "a number up to 100000", |text| {
                text.parse().ok().filter(|lines| *lines <= MAX_LINES)
            })?,
            pattern: self.pattern.as_deref().map(pattern).transpose()?,
            boot: value(
                "boot",
                self.boot,
                "0 for this boot, -1 for the one before, down to -1000",
                |text| {
                    let boot: i32 = text.parse().ok()?;
                    Some(boot.unsigned_abs()).filter(|back| boot <= 0 && *back <= MAX_BOOTS_BACK)
                },
            )?,
            follow: value("follow", self.follow, "true or false", |text| match text {
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                _ => None,
            })?
            .unwrap_or(false),
        })
    }
}

/// A parameter's value, parsed.
fn value<T>(
    name: &'static str,
    given: Option<String>,
    wanted: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Fault> {
    let Some(found) = given else {
        return Ok(None);
    };
    match read(&found) {
        Some(value) => Ok(Some(value)),
        None => Err(Fault::Value {
            name,
            found,
            wanted,
        }),
    }
}

fn time(name: &'static str, given: Option<String>) -> Result<Option<Timestamp>, Fault> {
    let wanted = "a time of RFC 3339 such as 2026-11-24T03:00:00Z";
    value(name, given, wanted, |text| text.parse().ok())
}

/// A pattern that matches in linear time, with a small factor.
fn pattern(text: &str) -> Result<Regex, Fault> {
    if text.len() > MAX_PATTERN {
        return Err(Fault::Pattern("longer than 1 KiB".to_owned()));
    }
    let built = RegexBuilder::new(text)
        .size_limit(MAX_PROGRAM)
        .dfa_size_limit(MAX_TABLE)
        .nest_limit(MAX_NESTING)
        .build();
    built.map_err(|error| {
        if let regex::Error::CompiledTooBig(_) = error {
            let why = "it is too large once its repetitions are written out";
            return Fault::Pattern(why.to_owned());
        }
        // The last line of the error says what is wrong; those before it mark the position.
        let shown = error.to_string();
        let last = shown.lines().last().unwrap_or_default();
        Fault::Pattern(last.trim_start_matches("error: ").to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault(text: &str) -> String {
        Query::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_query_is_read_with_upstreams_parameters() {
        let query = Query::parse(
            "query=kubelet&query=kernel&query=agent&sinceTime=2026-11-24T03%3A00%3A00Z&untilTime=2026-11-24T04:00:00%2B00:00\
             &tailLines=5&pattern=a%5Bbc%5D+d&boot=-1&follow=true",
        )
        .unwrap();
        assert_eq!(
            query.services,
            [LoggedService::Agent, LoggedService::Kernel]
        );
        assert_eq!(query.since, "2026-11-24T03:00:00Z".parse().ok());
        assert_eq!(query.until, "2026-11-24T04:00:00Z".parse().ok());
        assert_eq!(
            (query.tail, query.boot, query.follow),
            (Some(5), Some(1), true)
        );
        let line = |time, text: &str| Line {
            time,
            text: text.to_owned(),
        };
        let hour = query.since.unwrap().as_microsecond();
        assert!(query.wants(&line(hour, "xab dx")));
        assert!(!query.wants(&line(hour - 1, "xab dx")));
        assert!(query.wants(&line(hour + 3_600_000_000, "ac d")));
        assert!(!query.wants(&line(hour + 3_600_000_001, "ac d")));
        assert!(!query.wants(&line(hour, "ab  d")));
    }

    #[test]
    fn each_fault_names_its_parameter_and_the_expected_value() {
        for (text, expected) in [
            ("", "name a service"),
            ("tailLines=1", "name a service"),
            ("query=/etc/shadow", "no service \"/etc/shadow\""),
            (
                "query=..%2F..%2Fetc%2Fshadow",
                "no service \"../../etc/shadow\"",
            ),
            ("query=agent%00", "no service"),
            ("query=Agent", "no service"),
            (
                "query=agent&since=1h",
                "no parameter \"since\"; there are: query, sinceTime",
            ),
            (
                "query=agent&sinceTime=yesterday",
                "sinceTime: \"yesterday\" is not a time of RFC 3339",
            ),
            (
                "query=agent&tailLines=-1",
                "tailLines: \"-1\" is not a number up to 100000",
            ),
            ("query=agent&tailLines=100001", "tailLines"),
            ("query=agent&boot=1", "boot: \"1\" is not 0 for this boot"),
            ("query=agent&boot=-2147483648", "boot"),
            ("query=agent&follow=yes", "follow"),
            ("query=agent&boot=0&boot=-1", "boot occurs twice"),
            ("query=agent&pattern=%zz", "percent-encoded UTF-8"),
            ("query=agent&pattern=%ff", "percent-encoded UTF-8"),
            (
                "query=agent&pattern=a%5B",
                "pattern: unclosed character class",
            ),
            ("query=agent&pattern=(%3F%3Da)", "pattern: look-around"),
            (
                "query=agent&sinceTime=2026-11-24T03:00:01Z&untilTime=2026-11-24T03:00:00Z",
                "untilTime is before sinceTime",
            ),
        ] {
            let said = fault(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn no_query_and_no_pattern_is_larger_than_its_limit() {
        let long = "a".repeat(MAX_PATTERN + 1);
        assert!(fault(&format!("query=agent&pattern={long}")).contains("longer than 1 KiB"));
        for bomb in [
            "((a{100}){100}){100}",
            "\\pL{1000}",
            "(?i)\\w{500}\\W{500}",
            "a{4294967295}",
        ] {
            let said = fault(&format!("query=agent&pattern={bomb}"));
            assert!(said.starts_with("pattern: "), "{bomb}: {said}");
        }
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        assert!(fault(&format!("query=agent&pattern={deep}")).contains("nest"));
        let many = "query=agent&".repeat(MAX_PARAMETERS + 1);
        assert!(fault(&many).contains("more than 16"));
        assert!(fault(&"x".repeat(MAX_QUERY + 1)).contains("8 KiB"));
        // A pattern that would take backtracking for ever.
        let query = Query::parse("query=agent&pattern=(a*)*$").unwrap();
        let text = "a".repeat(4000) + "b";
        assert!(query.wants(&Line { time: 0, text }));
    }

    proptest! {
        /// No text panics, and what is accepted names a service within all limits.
        #[test]
        fn any_text_is_a_query_within_limits_or_a_fault(text in "(query=(agent|kernel|x)&)?[ -~]{0,80}") {
            if let Ok(query) = Query::parse(&text) {
                prop_assert!(!query.services.is_empty() && query.services.len() <= LoggedService::ALL.len());
                prop_assert!(query.tail.is_none_or(|lines| lines <= MAX_LINES));
            }
        }

        /// A pattern reaches the expression as it was written.
        #[test]
        fn percent_encoding_is_undone(pattern in "a\\+[a-z &%=]{0,40}") {
            let encoded: Vec<String> = pattern.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let encoded = encoded.concat();
            let query = Query::parse(&format!("query=agent&pattern={encoded}")).unwrap();
            let shown = query.pattern.unwrap();
            prop_assert_eq!(shown.as_str(), pattern);
        }
    }
}
