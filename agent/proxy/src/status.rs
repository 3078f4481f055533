//! Answers at kube-proxy's ports whether this node serves Services: [`HEALTH_PORT`] of all
//! addresses is for load balancers, which check a node before they send it callers (`/healthz`),
//! and for probes of the proxy (`/livez`); [`STATUS_PORT`] of the loopback address is for the
//! machine's own programs.

use crate::health::{Answer, LIMITS, RETRY, accept};
use crate::view::View;
use agent_port::StrangerSlots;
use bytes::Bytes;
use config_errors::chain;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use jiff::Timestamp;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// The port for load balancers and probes: upstream's `healthzBindAddress`.
pub const HEALTH_PORT: u16 = 10256;
/// The port for the machine's own programs: upstream's `metricsBindAddress`.
pub const STATUS_PORT: u16 = 10249;
/// How long nftables may be behind the view: upstream's value (twice its `syncPeriod`).
pub(crate) const BEHIND: Duration = Duration::from_secs(60);
/// The proxy mode, by upstream's name.
const MODE: &str = "nftables";

/// How far nftables is behind the view.
#[derive(Debug, Clone, Default)]
pub(crate) struct Freshness(Arc<Mutex<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    /// The first change that is not applied.
    behind: Option<Instant>,
    /// When all was applied last.
    applied: Option<Timestamp>,
}

/// How far nftables was behind at one time.
#[derive(Debug, Clone, Copy)]
struct FilterState {
    /// No change has waited for [`BEHIND`] to be applied.
    fresh: bool,
    /// When it was up to date last.
    updated: Timestamp,
}

impl Freshness {
    /// To be called when the view has changed, before the change is applied.
    pub(crate) fn changed(&self, now: Instant) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.behind.get_or_insert(now);
    }

    /// To be called when the view has been applied.
    pub(crate) fn applied(&self) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *progress = Progress {
            behind: None,
            applied: Some(Timestamp::now()),
        };
    }

    /// Whether no change has waited for [`BEHIND`].
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.now(now).fresh
    }

    fn now(&self, now: Instant) -> FilterState {
        let progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.behind {
            None => FilterState {
                fresh: true,
                updated: Timestamp::now(),
            },
            Some(since) => FilterState {
                fresh: now.saturating_duration_since(since) < BEHIND,
                updated: progress.applied.unwrap_or(Timestamp::UNIX_EPOCH),
            },
        }
    }
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", text.to_owned())
}

/// The answer at [`HEALTH_PORT`]. `eligible`: the node is to get callers from load balancers.
fn healthy(path: &str, filter: FilterState, eligible: bool) -> Response<Full<Bytes>> {
    let FilterState { fresh, updated } = filter;
    let mut body = serde_json::json!({
        "lastUpdated": updated.to_string(),
        "currentTime": Timestamp::now().to_string(),
    });
    let good = match path {
        "/healthz" => {
            body["nodeEligible"] = eligible.into();
            fresh && eligible
        }
        "/livez" => fresh,
        _ => return plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    answer(status, "application/json", body.to_string())
}

/// The answer at [`STATUS_PORT`].
fn status(path: &str) -> Response<Full<Bytes>> {
    match path {
        "/proxyMode" => plain(StatusCode::OK, MODE),
        "/healthz" => plain(StatusCode::OK, "ok"),
        _ => plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// Answers at both ports, until it is dropped.
pub(crate) async fn serve(view: View, node: String, freshness: Freshness) {
    let asked: Answer = Arc::new(move |path: &str| {
        let known = view.now();
        let own = known.nodes.as_ref().and_then(|nodes| nodes.get(&node));
        let eligible = own.is_none_or(|own| !own.leaving);
        healthy(path, freshness.now(Instant::now()), eligible)
    });
    let own: Answer = Arc::new(status);
    let loopback = [Ipv4Addr::LOCALHOST.into()];
    let everywhere = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    tokio::join!(
        listen(&everywhere, HEALTH_PORT, asked),
        listen(&loopback, STATUS_PORT, own),
    );
}

/// Answers at a port of the first of these addresses that can be bound.
async fn listen(addresses: &[IpAddr], port: u16, answer: Answer) {
    let all: Vec<SocketAddr> = addresses.iter().map(|at| (*at, port).into()).collect();
    loop {
        match TcpListener::bind(&*all).await {
            Ok(listener) => accept(listener, StrangerSlots::new(LIMITS), Arc::clone(&answer)).await,
            Err(error) => {
                tracing::warn!(
                    port,
                    error = chain(&error),
                    "cannot listen at a health or status port of the service proxy; trying again"
                );
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
