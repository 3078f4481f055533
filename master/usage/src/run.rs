//! The scraper: asks each node for its usage when it is due.

use crate::figures::Usage;
use crate::parse::{Answer, ParseError};
use crate::scrape_schedule::{ScrapeSchedule, ScrapeSlots};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use master_client::{
    BodyError, BoxFuture, Change, Client, Follower, PartialObject, Resource, body,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Limits of scrapes.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The time between two scrapes of a node whose figures no client reads (upstream's metrics
    /// server: 60 s): as long as a connection is kept for the next scrape.
    pub period: Duration,
    /// The least time between two scrapes of any nodes whose figures no client reads: in a large
    /// cluster each of them is scraped less often, so that unread figures do not cost more the more
    /// nodes there are.
    pub gap: Duration,
    /// The same as `period` for a node whose figures are wanted: a client has read them, or there
    /// are none yet (what autoscalers and the manifests of upstream's metrics server take: 15 s).
    pub wanted_period: Duration,
    /// The time for a node's whole answer (upstream's metrics server: 10 s).
    pub timeout: Duration,
    /// Bytes of an answer: 250 pods of ten containers report some 2 MiB.
    pub bytes: usize,
    /// Nodes that are scraped at once.
    pub at_once: usize,
    /// Nodes that did not answer the last time and are scraped at once, besides the others.
    pub silent_at_once: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(120),
            gap: Duration::from_millis(100),
            wanted_period: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            bytes: 4 << 20,
            at_once: 32,
            silent_at_once: 8,
        }
    }
}

/// Why a node has no figures.
#[derive(Debug, thiserror::Error)]
enum ScrapeError {
    #[error("the answer did not come in time")]
    Late,
    #[error("the node's name makes no valid path")]
    Path(#[source] http::Error),
    #[error("the node answered {0}")]
    Status(StatusCode),
    #[error("the answer has more than {0} bytes")]
    Long(usize),
    #[error("the connection broke during the answer")]
    Broken(#[source] BodyError),
    #[error("the answer can't be read")]
    Unreadable(#[source] ParseError),
}

/// A node, and the result of its scrape.
type Scraped = (String, Result<Answer, ScrapeError>);

/// Asks all nodes again and again, until `shutdown` resolves.
pub async fn run(
    client: Client,
    usage: Usage,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) {
    let resource = Resource {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "Node".to_owned(),
        plural: "nodes".to_owned(),
        namespaced: false,
    };
    let mut nodes = Follower::metadata(client.clone(), &resource);
    let slots = ScrapeSlots {
        good: options.at_once,
        silent: options.silent_at_once,
    };
    let mut schedule = ScrapeSchedule::new(options.wanted_period, slots);
    let mut scrapes: FuturesUnordered<BoxFuture<'static, Scraped>> = FuturesUnordered::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        while let Some(node) = schedule.next(Instant::now()) {
            scrapes.push(Box::pin(scrape(client.clone(), node, options)));
        }
        let wake = schedule.wake();
        let due = async {
            match wake {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        // All arms are cancel-safe: follower and stream keep what they have not returned, the
        // others hold nothing.
        tokio::select! {
            () = &mut shutdown => return,
            change = nodes.next() => take(change, &mut schedule, &usage),
            Some((node, answer)) = scrapes.next() => {
                if schedule.is_being_scraped(&node) {
                    let answered = answer.is_ok();
                    note(&usage, &node, answer);
                    let now = Instant::now();
                    let pause = if usage.is_wanted(&node, now) {
                        options.wanted_period
                    } else {
                        unread_pause(schedule.len(), options)
                    };
                    schedule.finish(&node, answered, now, pause);
                }
            }
            wanted = usage.newly_wanted() => {
                let now = Instant::now();
                for node in &wanted {
                    schedule.scrape_sooner(node, now, options.wanted_period);
                }
            }
            () = due => {}
        }
    }
}

/// Takes the result of a scrape.
fn note(usage: &Usage, node: &str, answer: Result<Answer, ScrapeError>) {
    match answer {
        Ok(answer) => usage.answered(node, answer),
        Err(error) => {
            let error = config_errors::chain(&error);
            tracing::debug!(node, error, "cannot read a node's metrics");
            usage.silent(node);
        }
    }
}

/// The time until a node is scraped again if no client reads its figures, in a cluster of `nodes`
/// nodes.
fn unread_pause(nodes: usize, options: Options) -> Duration {
    let all = u32::try_from(nodes).unwrap_or(u32::MAX);
    options.period.max(options.gap.saturating_mul(all))
}

fn take(change: Change<PartialObject>, schedule: &mut ScrapeSchedule, usage: &Usage) {
    match change {
        Change::Listed(all) => {
            let names: BTreeSet<String> = all.into_iter().map(|node| node.metadata.name).collect();
            schedule.set(&names, Instant::now());
            usage.retain(&names);
        }
        Change::Set(node) => schedule.add(&node.metadata.name, Instant::now()),
        Change::Deleted(gone) => {
            schedule.remove(&gone.key.name);
            usage.forget(&gone.key.name);
        }
    }
}

/// A node's answer, whole and in time.
async fn scrape(client: Client, node: String, options: Options) -> Scraped {
    let answer = tokio::time::timeout(options.timeout, read(&client, &node, options.bytes)).await;
    (node, answer.unwrap_or_else(|_late| Err(ScrapeError::Late)))
}

async fn read(client: &Client, node: &str, most: usize) -> Result<Answer, ScrapeError> {
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let request = Request::get(path).body(body(Bytes::new()));
    let answer = client.call(request.map_err(ScrapeError::Path)?).await;
    if answer.status() != StatusCode::OK {
        // The body of a refusal is not read: it may come from the node and have any length.
        return Err(ScrapeError::Status(answer.status()));
    }
    let (mut content, mut whole) = (answer.into_body(), Vec::new());
    while let Some(frame) = content.frame().await {
        let piece = frame.map_err(ScrapeError::Broken)?.into_data();
        whole.extend_from_slice(&piece.unwrap_or_default());
        if whole.len() > most {
            return Err(ScrapeError::Long(most));
        }
    }
    let now = Timestamp::now().as_millisecond();
    Answer::parse(&whole, now).map_err(ScrapeError::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_costs_no_more_in_a_large_cluster() {
        let pause = |nodes| unread_pause(nodes, Options::default()).as_secs();
        assert_eq!([1, 1_000, 5_000].map(pause), [120, 120, 500]);
    }
}
