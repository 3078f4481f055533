//! A client's requests to the API, under the names of upstream's clients (client-go).

use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of durations in seconds (upstream's).
const BOUNDS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
/// The methods that are reported by name.
const METHODS: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];

/// Durations.
#[derive(Debug, Default)]
struct Times {
    /// By [`BOUNDS`]; the last counts what is above all of them.
    counts: [u64; BOUNDS.len() + 1],
    /// Seconds.
    sum: f64,
}

#[derive(Debug, Default)]
struct Counts {
    /// By the status code of the answer, host and method; without a code where none came.
    answers: BTreeMap<(Option<u16>, String, &'static str), u64>,
    /// By host and method.
    times: BTreeMap<(String, &'static str), Times>,
}

/// The requests of one client. Bounded by the hosts that it is made to ask.
#[derive(Debug, Default)]
pub struct Requests(Mutex<Counts>);

impl Requests {
    /// A request was answered with this status code, or not at all.
    pub fn answered(&self, host: &str, method: &str, code: Option<u16>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (code, host.to_owned(), known(method));
        let count = all.answers.entry(key).or_default();
        *count = count.saturating_add(1);
    }

    /// So long a request took, with its whole answer or without one. As with upstream's clients a
    /// watch is none of these.
    pub fn took(&self, host: &str, method: &str, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = all.times.entry((host.to_owned(), known(method)));
        let times = times.or_default();
        let took = took.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| took <= *bound);
        if let Some(count) = times.counts.get_mut(at.unwrap_or(BOUNDS.len())) {
            *count = count.saturating_add(1);
        }
        times.sum += took;
    }

    /// Writes them.
    pub fn write(&self, text: &mut Text) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "rest_client_requests_total";
        let help = "Number of HTTP requests, partitioned by status code, method, and host.";
        text.family(name, "counter", help);
        for ((code, host, method), count) in &all.answers {
            let code = code.map_or("<error>".to_owned(), |code| code.to_string());
            let labels = format!("code=\"{code}\",host=\"{host}\",method=\"{method}\"");
            text.sample(name, &labels, *count);
        }
        let name = "rest_client_request_duration_seconds";
        let help = "Request latency in seconds. Broken down by verb, and host.";
        text.family(name, "histogram", help);
        for ((host, method), times) in &all.times {
            let labels = format!("host=\"{host}\",verb=\"{method}\"");
            text.histogram(name, &labels, &BOUNDS, &times.counts, times.sum);
        }
    }
}

fn known(method: &str) -> &'static str {
    let found = METHODS.into_iter().find(|known| *known == method);
    found.unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_reported_with_upstreams_labels() {
        let requests = Requests::default();
        for code in [Some(200), Some(200), Some(404), None] {
            requests.answered("m:6443", "GET", code);
        }
        requests.answered("m:6443", "BREW", Some(418));
        requests.took("m:6443", "GET", Duration::from_millis(20));
        requests.took("m:6443", "GET", Duration::from_secs(90));
        let mut text = Text::default();
        requests.write(&mut text);
        let metrics = text.finish();
        for line in [
            r#"rest_client_requests_total{code="200",host="m:6443",method="GET"} 2"#,
            r#"rest_client_requests_total{code="404",host="m:6443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="<error>",host="m:6443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="418",host="m:6443",method="other"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="m:6443",verb="GET",le="0.005"} 0"#,
            r#"rest_client_request_duration_seconds_bucket{host="m:6443",verb="GET",le="0.025"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="m:6443",verb="GET",le="60"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="m:6443",verb="GET",le="+Inf"} 2"#,
            r#"rest_client_request_duration_seconds_sum{host="m:6443",verb="GET"} 90.02"#,
            r#"rest_client_request_duration_seconds_count{host="m:6443",verb="GET"} 2"#,
        ] {
            assert!(
                metrics.lines().any(|sample| sample == line),
                "{line}:\n{metrics}"
            );
        }
    }
}
