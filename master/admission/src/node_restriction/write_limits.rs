//! Limits of what a node writes. Events, certificate requests, resource slices and mirror pods
//! outlive it, and a compromised node could fill the store with these. The master stores the status
//! of the node and of its pods and sends it to watchers; every node watches all Nodes.

use crate::plugin::{Operation, Request};
use config_limits::{Rate, Rates};
use jiff::Timestamp;
use master_objects::Clock;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::registry::Subresource;
use master_schema::validate::{Fields, get, items, object, text};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Rates in memory at most, some 100 bytes each: up to two for each node and kind, and one for each
/// of its pods, until the whole burst is available again. If there are more, those that are nearest
/// to it are forgotten, so that their burst is available early.
const MAX_NAMES: usize = 1 << 16;
/// Slices of one node at most: those of some drivers.
const MAX_SLICES: usize = 64;
/// Bytes of a pod's status at most, whatever containers it has, but for what the spec has, too.
const LARGEST_STATUS: usize = 1 << 20;

/// The annotations of an event that a node may set: upstream's kubelet says by them why it evicted
/// a pod. No program reads any other annotation of a node's event.
const EVICTION_ANNOTATIONS: [&str; 3] = [
    "offending_containers",
    "offending_containers_usage",
    "starved_resource",
];

/// The limits of one node for what it writes of a kind.
struct WriteLimit {
    kind: &'static str,
    /// What is written of it; `None` for the object itself.
    subresource: Option<Subresource>,
    /// How often, by creations and changes.
    rate: Rate,
    /// How often one object of it, if that has a limit of its own.
    each: Option<Rate>,
    /// Bytes of an object.
    bytes: usize,
    /// What is measured of it.
    measured: Measured,
    /// Bytes of all writes together, if these have a limit of their own.
    volume: Option<Volume>,
    /// By what a write that is too large gets smaller.
    cure: &'static str,
}

/// What counts towards the size of a write.
enum Measured {
    /// The object, without its managed fields.
    Object,
    /// The status: the rest is not the node's, and may be large.
    Status,
    /// The status and the metadata, each by itself: others give a node labels, annotations, taints
    /// and a spec, which keep it from no report.
    StatusAndMetadata,
    /// The status of a pod, which has this many bytes more for each of its containers.
    PodStatus(usize),
}

/// Bytes of several writes together.
struct Volume {
    at_once: usize,
    each_second: u32,
}

/// What has no limits but a rate and a size.
const PLAIN: WriteLimit = WriteLimit {
    kind: "",
    subresource: None,
    rate: rate(1, 1000),
    each: None,
    bytes: 0,
    measured: Measured::Object,
    volume: None,
    cure: "",
};

/// The limits.
static WRITE_LIMITS: [WriteLimit; 10] = [
    // The rate is above what the kubelet's client would send (upstream: 50 at once, 5 in a second).
    // The agent's messages have 1,024 characters at most, and most of its events 800 bytes. Events
    // stay for up to four hours, so their bytes have a limit, too.
    WriteLimit {
        kind: "Event",
        rate: rate(100, 100),
        bytes: 8 << 10,
        volume: Some(Volume {
            at_once: 1 << 20,
            each_second: 4 << 10,
        }),
        cure: "a shorter message fits",
        ..PLAIN
    },
    // Kept for a day.
    WriteLimit {
        kind: "CertificateSigningRequest",
        rate: rate(10, 600_000),
        bytes: 16 << 10,
        cure: "a request with fewer names fits",
        ..PLAIN
    },
    WriteLimit {
        kind: "ResourceSlice",
        rate: rate(100, 10_000),
        bytes: 512 << 10,
        cure: "its devices fit into several slices",
        ..PLAIN
    },
    // Mirrors of static pods.
    WriteLimit {
        kind: "Pod",
        rate: rate(110, 10_000),
        bytes: 256 << 10,
        cure: "a shorter manifest of the static pod fits",
        ..PLAIN
    },
    // Every agent watches all Nodes. An agent checks its status every ten seconds, or twice a
    // second while it is not ready, which is the rate here, and writes it if something changed. It
    // lists 50 images with 5 names each, which take less than 100 KiB at their greatest length.
    WriteLimit {
        kind: "Node",
        subresource: Some(Subresource::Status),
        rate: rate(20, 500),
        bytes: 192 << 10,
        measured: Measured::StatusAndMetadata,
        cure: "fewer images, resources, conditions and annotations fit",
        ..PLAIN
    },
    // Labels when the agent starts, and the ids of CSI drivers as they register.
    WriteLimit {
        kind: "Node",
        rate: rate(30, 1000),
        bytes: 256 << 10,
        cure: "fewer labels and annotations fit",
        ..PLAIN
    },
    // A pod that starts has a status for each of its containers' steps, and all pods of a node may
    // start at once. A status has 12 KiB of termination messages for the last attempts and as much
    // for those before, six times that where JSON escapes them, and repeats of each container its
    // names, images, mounts and resources.
    WriteLimit {
        kind: "Pod",
        subresource: Some(Subresource::Status),
        rate: rate(2000, 20),
        each: Some(rate(200, 1000)),
        bytes: 192 << 10,
        measured: Measured::PodStatus(8 << 10),
        volume: Some(Volume {
            at_once: 64 << 20,
            each_second: 1 << 20,
        }),
        cure: "shorter messages of its containers fit",
    },
    // One write for each volume that was expanded.
    WriteLimit {
        kind: "PersistentVolumeClaim",
        subresource: Some(Subresource::Status),
        rate: rate(200, 1000),
        bytes: 64 << 10,
        measured: Measured::Status,
        cure: "fewer and shorter conditions fit",
        ..PLAIN
    },
    // Renewed every ten seconds, and two seconds after a failure.
    WriteLimit {
        kind: "Lease",
        rate: rate(20, 1000),
        bytes: 16 << 10,
        cure: "what renews the node fits, and nothing else belongs there",
        ..PLAIN
    },
    // As CSI drivers register, some writes for each.
    WriteLimit {
        kind: "CSINode",
        rate: rate(100, 1000),
        bytes: 64 << 10,
        cure: "fewer drivers and topology keys fit",
        ..PLAIN
    },
];

/// The length of this as JSON.
fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

const fn rate(burst: u32, millis: u64) -> Rate {
    let every = Duration::from_millis(millis);
    Rate { burst, every }
}

impl Volume {
    /// The rate of writes of this size: as many as fit at once, and one more in the time in which
    /// its bytes come to be allowed. Writes of other sizes take of the same.
    fn of(&self, size: usize) -> Rate {
        let burst = u32::try_from(self.at_once / size.max(1)).unwrap_or(u32::MAX);
        let seconds = u64::try_from(size).unwrap_or(u64::MAX);
        Rate {
            burst: burst.max(1),
            every: Duration::from_secs(seconds) / self.each_second,
        }
    }
}

impl WriteLimit {
    /// What is written, in words.
    fn what(&self) -> String {
        match self.subresource {
            None => format!("objects of kind {}", self.kind),
            Some(part) => format!("the {} of objects of kind {}", part.name(), self.kind),
        }
    }

    /// The sizes of what counts of an object, each by itself; what a write takes of the volume
    /// first.
    fn sizes(&self, object: &Fields) -> [usize; 2] {
        match self.measured {
            Measured::Object => [bytes(object), 0],
            Measured::Status | Measured::PodStatus(_) => [bytes(get(object, "status")), 0],
            Measured::StatusAndMetadata => [bytes(get(object, "status")), bytes(metadata(object))],
        }
    }

    /// Of these sizes the one that is too large. What others made large may stay and shrink.
    fn too_large(&self, sizes: [usize; 2], most: usize, old: Option<&Fields>) -> Option<usize> {
        if sizes.iter().all(|size| *size <= most) {
            return None;
        }
        let before = old.map_or([0; 2], |old| self.sizes(old));
        let mut all = sizes.into_iter().zip(before);
        all.find_map(|(size, before)| (size > most && size > before).then_some(size))
    }

    /// The largest size of an object.
    fn largest(&self, written: &Fields) -> usize {
        let Measured::PodStatus(for_each) = self.measured else {
            return self.bytes;
        };
        let spec = object(written, "spec");
        let of = |key| spec.map_or(0, |spec| items(spec, key).len());
        let containers = of("containers") + of("initContainers") + of("ephemeralContainers");
        let more = containers.saturating_mul(for_each);
        let own = self.bytes.saturating_add(more).min(LARGEST_STATUS);
        // Mounts, of which a pod may have any number, are repeated with up to as many bytes again.
        own.saturating_add(spec.map_or(0, bytes).saturating_mul(2))
    }
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
        let mut limits = WRITE_LIMITS.iter();
        let limit =
            limits.find(|limit| limit.kind == kind && limit.subresource == request.subresource);
        let Some(limit) = limit else {
            return Ok(());
        };
        let name = meta_text(written, "name");
        let (sizes, most) = (limit.sizes(written), limit.largest(written));
        if let Some(size) = limit.too_large(sizes, most, request.old) {
            let why = format!(
                "node {node:?} writes {} with {size} bytes, and may with {most} at most: {}",
                limit.what(),
                limit.cure
            );
            return Err(request.forbidden(name, &why));
        }
        let one = format!("{}/{name}", meta_text(written, "namespace"));
        self.take(limit, node, &one, sizes[0])?;
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

    /// Takes one write of this size, of the object `one`.
    fn take(&self, limit: &WriteLimit, node: &str, one: &str, size: usize) -> Result<(), ApiError> {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: of two writes at once, the one that waited would seem to come before
        // the other, and would forget what all have used up.
        let now = self.clock.now();
        if now < usage.last {
            // The clock was set back: nobody waits for what it showed before.
            usage.rates = Rates::new(MAX_NAMES);
        }
        usage.last = now;
        let part = limit.subresource.map(Subresource::name);
        let name = |of: &str| self.names.hash_one((limit.kind, part, node, of));
        let mut rates = vec![(name("all"), limit.rate)];
        // Objects have a "/" in their names here.
        rates.extend(limit.each.map(|each| (name(one), each)));
        let volume = limit.volume.as_ref();
        rates.extend(volume.map(|volume| (name("bytes"), volume.of(size))));
        let since = now.duration_since(Timestamp::UNIX_EPOCH);
        let since = Duration::try_from(since).unwrap_or_default();
        usage.rates.take(&rates, since).map_err(|wait| {
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            let text = format!(
                "node {node:?} writes {} too fast; it may write again in {seconds} s. If this goes on, inspect the machine or \
                 retire it",
                limit.what()
            );
            ApiError::new(Reason::TooManyRequests, text).retry_after(seconds)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(object: &Value) -> Fields {
        object.as_object().cloned().unwrap()
    }

    #[test]
    fn bytes_are_taken_by_writes_of_any_size_from_one_volume() {
        let volume = Volume {
            at_once: 1 << 20,
            each_second: 4 << 10,
        };
        let mut rates = Rates::new(4);
        let mut take = |size: usize, millis: u64| {
            let now = Duration::from_millis(1_000_000 + millis);
            rates.take(&[(1, volume.of(size))], now).is_ok()
        };
        assert_eq!((0..200).filter(|_| take(8 << 10, 0)).count(), 128);
        assert!(!take(100, 0), "nothing is left for small ones");
        // A second brings 4 KiB, whatever they are used for.
        assert!(!take(8 << 10, 1000));
        assert!(take(3 << 10, 1000) && take(1 << 10, 1000));
        assert!(!take(100, 1000));
        assert!(take(8 << 10, 4000));
        // One that is larger than all together comes alone, and is waited for.
        assert!(take(4 << 20, 10_000_000));
        assert!(!take(1, 10_001_000));
    }

    #[test]
    fn a_pods_status_has_room_for_each_of_its_containers() {
        let limits = WRITE_LIMITS.iter();
        let mut limits = limits.filter(|limit| matches!(limit.measured, Measured::PodStatus(_)));
        let limit = limits.next().unwrap();
        // Mounts, images and identifiers as long as they get, and messages that escape.
        let mount = json!({"name": "n".repeat(63), "mountPath": "/p".repeat(40), "readOnly": true,
            "recursiveReadOnly": "Disabled"});
        let status = |message: &str| {
            let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": message,
                "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z",
                "containerID": format!("containerd://{}", "a".repeat(64))}});
            json!({"name": "c".repeat(63), "image": "i".repeat(255), "imageID": "i".repeat(330),
                "containerID": format!("containerd://{}", "a".repeat(64)), "restartCount": 1, "ready": false,
                "started": false, "state": ended, "lastState": ended, "volumeMounts": vec![mount.clone(); 20],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}})
        };
        for containers in [1, 3, 20, 100] {
            let message = "\u{1}".repeat(4096_usize.min((12 << 10) / containers));
            let pod = json!({"spec": {"containers": vec![json!({"name": "c"}); containers]},
                "status": {"containerStatuses": vec![status(&message); containers]}});
            let pod = fields(&pod);
            let ([size, _], most) = (limit.sizes(&pod), limit.largest(&pod));
            assert!(size < most, "{containers}: {size} of {most}");
        }
        let mounts = vec![json!({"name": "v", "mountPath": "/p", "readOnly": true}); 10_000];
        let shown = vec![
            json!({"name": "v", "mountPath": "/p", "readOnly": true,
            "recursiveReadOnly": "Disabled"});
            10_000
        ];
        let wide = fields(&json!({"spec": {"containers": [{"volumeMounts": mounts}]},
            "status": {"containerStatuses": [{"volumeMounts": shown}]}}));
        let ([size, _], most) = (limit.sizes(&wide), limit.largest(&wide));
        assert!(size < most, "{size} of {most}");
        let many = json!({"spec": {"containers": vec![json!({}); 10_000]}});
        let spec = bytes(&many["spec"]);
        assert_eq!(limit.largest(&fields(&many)), LARGEST_STATUS + 2 * spec);
    }
}
