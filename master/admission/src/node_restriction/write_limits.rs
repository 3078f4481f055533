//! Limits of what a node writes of the kinds whose objects outlive it: events, certificate
//! requests, resource slices, mirror pods. A compromised node could fill the store with these.

use crate::plugin::{Operation, Request};
use config_limits::{Rate, Rates};
use jiff::Timestamp;
use master_objects::Clock;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, object, text};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Rates that are remembered at most: one for each node and kind.
const MAX_NAMES: usize = 1 << 15;
/// Slices of one node at most: those of some drivers.
const MAX_SLICES: usize = 64;

/// The annotations of an event that a node may set: upstream's kubelet says by them why it evicted
/// a pod. No program reads any other annotation of a node's event.
const EVICTION_ANNOTATIONS: [&str; 3] = [
    "offending_containers",
    "offending_containers_usage",
    "starved_resource",
];

/// The limits of one node for a kind.
struct KindLimit {
    kind: &'static str,
    /// How often, by creations and changes.
    rate: Rate,
    /// Bytes of an object.
    bytes: usize,
}

/// The limited kinds.
const KIND_LIMITS: [KindLimit; 4] = [
    // Above what the kubelet's client would send (upstream: 50 at once, 5 in a second). The agent's
    // messages have 1,024 characters at most.
    KindLimit {
        kind: "Event",
        rate: rate(100, 100),
        bytes: 8 << 10,
    },
    // Kept for a day.
    KindLimit {
        kind: "CertificateSigningRequest",
        rate: rate(10, 600_000),
        bytes: 16 << 10,
    },
    KindLimit {
        kind: "ResourceSlice",
        rate: rate(100, 10_000),
        bytes: 512 << 10,
    },
    // Mirrors of static pods.
    KindLimit {
        kind: "Pod",
        rate: rate(110, 10_000),
        bytes: 256 << 10,
    },
];

const fn rate(burst: u32, millis: u64) -> Rate {
    let every = Duration::from_millis(millis);
    Rate { burst, every }
}

/// The limits, and what nodes have written lately.
#[derive(Debug)]
pub(super) struct WriteLimits {
    clock: Clock,
    /// Names are hashed by a key that nobody knows.
    names: RandomState,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    rates: Rates<u64>,
    /// When a node last wrote something.
    last: Timestamp,
}

impl WriteLimits {
    pub(super) fn new(clock: Clock) -> Self {
        let usage = Usage {
            rates: Rates::new(MAX_NAMES),
            last: Timestamp::UNIX_EPOCH,
        };
        Self {
            clock,
            names: RandomState::new(),
            usage: Mutex::new(usage),
        }
    }

    /// Whether a node may write this now.
    ///
    /// # Errors
    /// 403: it is too large, or there are too many. 429: it comes too soon.
    pub(super) async fn check(
        &self,
        request: &Request<'_>,
        node: &str,
        written: &Fields,
    ) -> Result<(), ApiError> {
        let kind = &*request.kind.kind;
        let limit = KIND_LIMITS.iter().find(|limit| limit.kind == kind);
        let Some(limit) = limit.filter(|_| request.subresource.is_none()) else {
            return Ok(());
        };
        let name = meta_text(written, "name");
        let size = serde_json::to_vec(written).map_or(usize::MAX, |text| text.len());
        if size > limit.bytes {
            let why = format!(
                "node {node:?} writes {size} bytes, and a node's {kind} can have at most {}",
                limit.bytes
            );
            return Err(request.forbidden(name, &why));
        }
        self.take(limit, node)?;
        if kind == "ResourceSlice" && request.operation == Operation::Create {
            let slices = request.stored(&request.kind.table, "").await?;
            let own = slices.iter().filter(|(_, slice)| {
                object(slice, "spec").is_some_and(|spec| text(spec, "nodeName") == node)
            });
            if own.count() >= MAX_SLICES {
                let why =
                    format!("node {node:?} has {MAX_SLICES} ResourceSlices, the most of a node");
                return Err(request.forbidden(name, &why));
            }
        }
        Ok(())
    }

    fn take(&self, limit: &KindLimit, node: &str) -> Result<(), ApiError> {
        let now = self.clock.now();
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if now < usage.last {
            // The clock was set back: nobody waits for what it showed before.
            usage.rates = Rates::new(MAX_NAMES);
        }
        usage.last = now;
        let name = self.names.hash_one((limit.kind, node));
        let since = now.duration_since(Timestamp::UNIX_EPOCH);
        let since = Duration::try_from(since).unwrap_or_default();
        let kind = limit.kind;
        usage
            .rates
            .take(&[(name, limit.rate)], since)
            .map_err(|wait| {
                let text = format!("node {node:?} writes objects of kind {kind} too fast");
                let seconds = wait.as_millis().div_ceil(1000);
                ApiError::new(Reason::TooManyRequests, text)
                    .retry_after(u32::try_from(seconds).unwrap_or(u32::MAX))
            })
    }
}

/// Whether a node sets annotations of an event other than [`EVICTION_ANNOTATIONS`], which count
/// towards the event's size.
pub(super) fn annotates(event: &Fields, before: Option<&Fields>) -> bool {
    let others = |event| -> BTreeMap<_, _> {
        let all = object(metadata(event), "annotations").into_iter().flatten();
        all.filter(|(key, _)| !EVICTION_ANNOTATIONS.contains(&key.as_str()))
            .collect()
    };
    others(event) != before.map(others).unwrap_or_default()
}
