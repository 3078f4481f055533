//! How much nodes write of what stays when they are gone: events, requests for certificates, slices
//! of resources, mirrors of pods. A node that is taken over would fill the store with these.

use crate::plugin::{Operation, Request};
use config_limits::{Rate, Rates};
use jiff::Timestamp;
use master_objects::Clock;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, object, text};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Nodes whose rates are remembered, times kinds.
const MOST: usize = 1 << 15;
/// Slices of one node at most: those of some drivers.
const SLICES: usize = 64;

/// What a node may write of a kind.
struct Amount {
    kind: &'static str,
    /// How often, by creations and changes.
    rate: Rate,
    /// Bytes of an object.
    bytes: usize,
}

/// All such kinds.
const AMOUNTS: [Amount; 4] = [
    // Above what the kubelet's client would send (upstream: 50 at once, 5 in a second). The agent's
    // messages have 1,024 characters at most.
    Amount {
        kind: "Event",
        rate: rate(100, 100),
        bytes: 8 << 10,
    },
    // Kept for a day.
    Amount {
        kind: "CertificateSigningRequest",
        rate: rate(10, 600_000),
        bytes: 16 << 10,
    },
    Amount {
        kind: "ResourceSlice",
        rate: rate(100, 10_000),
        bytes: 512 << 10,
    },
    // Mirrors of static pods.
    Amount {
        kind: "Pod",
        rate: rate(110, 10_000),
        bytes: 256 << 10,
    },
];

const fn rate(burst: u32, millis: u64) -> Rate {
    let every = Duration::from_millis(millis);
    Rate { burst, every }
}

/// What nodes have written lately.
#[derive(Debug)]
pub(super) struct Amounts {
    clock: Clock,
    /// Names are hashed by a key that nobody knows.
    names: RandomState,
    taken: Mutex<Taken>,
}

#[derive(Debug)]
struct Taken {
    rates: Rates<u64>,
    /// When somebody took something last.
    last: Timestamp,
}

impl Amounts {
    pub(super) fn new(clock: Clock) -> Self {
        let taken = Taken {
            rates: Rates::new(MOST),
            last: Timestamp::UNIX_EPOCH,
        };
        Self {
            clock,
            names: RandomState::new(),
            taken: Mutex::new(taken),
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
        let amount = AMOUNTS.iter().find(|amount| amount.kind == kind);
        let Some(amount) = amount.filter(|_| request.subresource.is_none()) else {
            return Ok(());
        };
        let name = meta_text(written, "name");
        let size = serde_json::to_vec(written).map_or(usize::MAX, |text| text.len());
        if size > amount.bytes {
            let why = format!(
                "node {node:?} writes {size} bytes, and a node's {kind} can have at most {}",
                amount.bytes
            );
            return Err(request.forbidden(name, &why));
        }
        self.take(amount, node)?;
        if kind == "ResourceSlice" && request.operation == Operation::Create {
            let slices = request.stored(&request.kind.table, "").await?;
            let own = slices.iter().filter(|(_, slice)| {
                object(slice, "spec").is_some_and(|spec| text(spec, "nodeName") == node)
            });
            if own.count() >= SLICES {
                let why = format!("node {node:?} has {SLICES} ResourceSlices, the most of a node");
                return Err(request.forbidden(name, &why));
            }
        }
        Ok(())
    }

    fn take(&self, amount: &Amount, node: &str) -> Result<(), ApiError> {
        let now = self.clock.now();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if now < taken.last {
            // The clock was set back: nobody waits for what it showed before.
            taken.rates = Rates::new(MOST);
        }
        taken.last = now;
        let name = self.names.hash_one((amount.kind, node));
        let since = now.duration_since(Timestamp::UNIX_EPOCH);
        let since = Duration::try_from(since).unwrap_or_default();
        let kind = amount.kind;
        taken
            .rates
            .take(&[(name, amount.rate)], since)
            .map_err(|wait| {
                let text = format!("node {node:?} writes objects of kind {kind} too fast");
                let seconds = wait.as_millis().div_ceil(1000);
                ApiError::new(Reason::TooManyRequests, text)
                    .retry_after(u32::try_from(seconds).unwrap_or(u32::MAX))
            })
    }
}

/// Whether a node sets annotations of an event, which nobody reads.
pub(super) fn annotates(event: &Fields, before: Option<&Fields>) -> bool {
    let annotations = |event| object(metadata(event), "annotations").filter(|all| !all.is_empty());
    annotations(event) != before.and_then(annotations)
}
