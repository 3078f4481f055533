//! Figures of the server, in the Prometheus text form, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Verb and status of an answer.
type Answered = (&'static str, u16);

/// Counters by verb and status; both come from small sets.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<Answered, (u64, Duration)>>,
}

impl Metrics {
    /// Counts one answered request.
    pub(crate) fn count(&self, verb: &'static str, code: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, sum) = requests.entry((verb, code)).or_default();
        *count += 1;
        *sum += took;
    }

    /// The text that `/metrics` answers.
    pub(crate) fn text(&self, in_flight: usize, watches: usize, revision: u64) -> String {
        let mut text = String::new();
        text.push_str("# TYPE apiserver_request_total counter\n");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut durations = String::from("# TYPE apiserver_request_duration_seconds summary\n");
        for ((verb, code), (count, sum)) in &*requests {
            let verb = verb.to_uppercase();
            // Writing to a String doesn't fail.
            let _infallible = writeln!(text, "apiserver_request_total{{verb=\"{verb}\",code=\"{code}\"}} {count}");
            let labels = format!("{{verb=\"{verb}\",code=\"{code}\"}}");
            let _infallible =
                writeln!(durations, "apiserver_request_duration_seconds_sum{labels} {}", sum.as_secs_f64());
            let _infallible = writeln!(durations, "apiserver_request_duration_seconds_count{labels} {count}");
        }
        text.push_str(&durations);
        let gauges = [
            ("apiserver_current_inflight_requests", in_flight as u64),
            ("apiserver_longrunning_requests", watches as u64),
            ("pratique_store_revision", revision),
        ];
        for (name, value) in gauges {
            let _infallible = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
        }
        text
    }
}
