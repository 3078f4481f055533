//! Node-pressure eviction: measures resources every ten seconds. First removes unused images, then
//! evicts one pod at a time, the next one when those before it have released their resources.
//!
//! `agent_pressure` chooses the pod, and its own worker ends it.

use crate::config::Config;
use crate::garbage::{self, Goal};
use crate::handle::{Handle, Leaving};
use crate::shared::Shared;
use agent_launch::storage::{self, Layer};
use agent_pods::{DEFAULT_GRACE, EVICTION_GRACE, Eviction, Refusal, pod_ref};
use agent_pressure::{
    Bound, Candidate, Condition, EVICTED, Levels, Signal, ThresholdKind, Thresholds, choose,
    most_urgent, refusal,
};
use agent_resources::machine::Facts;
use agent_resources::{DiskUse, Subjects, group, qos};
use agent_runtime::{Container as Seen, Error};
use agent_server::POD_LINKS;
use agent_sys::cgroup::Groups;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{self, timeout_at};

/// Time between two measurements (upstream's).
const PERIOD: Duration = Duration::from_secs(10);
/// How long an evicted pod may take to end and to release its resources, before another is evicted
/// (upstream's).
const CLEANUP: Duration = Duration::from_secs(30);

/// Measures periodically, for ever.
pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        if let Err(error) = pass(&shared).await {
            tracing::warn!(error = %error.chain(), "cannot look for pods to evict");
        }
        time::sleep(PERIOD).await;
    }
}

/// Waits until evicted pods have released their resources, for each at most until [`CLEANUP`] after
/// its eviction began. That includes preempted pods, and those that an earlier agent evicted.
async fn settle(shared: &Shared) {
    let leaving: Vec<Leaving> = {
        let handles = shared.handles();
        handles.values().filter_map(Handle::leaving).collect()
    };
    for mut pod in leaving {
        let released = pod.released.wait_for(|released| *released);
        timeout_at(pod.at + CLEANUP, released).await.ok();
    }
}

/// Measures once, and evicts one pod at most.
async fn pass(shared: &Arc<Shared>) -> Result<(), Error> {
    // Before the first complete list, the wrong pod could be chosen, and pods that an earlier agent
    // evicted are not known.
    let is_listed = shared.listed.load(Ordering::Acquire);
    // Before the measurement, which would still show the resources of those pods.
    settle(shared).await;
    let thresholds = &shared.config.thresholds;
    let levels = levels(&shared.config, &shared.facts, &Groups::mounted());
    let due = shared
        .pressure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .observe(thresholds, &levels, Instant::now());
    let Some(bound) = most_urgent(&due) else {
        return Ok(());
    };
    let signal = bound.signal;
    tracing::warn!(signal = signal.name(), "the node is under pressure");
    let text = format!("Attempting to reclaim {}", signal.resource());
    shared.warn("EvictionThresholdMet", &text);
    // The next measurement shows how much that has freed.
    if signal.is_of_disk() {
        let swept = garbage::sweep(shared, Goal::All).await?;
        if let Some(fault) = swept.failure() {
            tracing::warn!(error = fault, "unused images not removed");
        }
        if swept.images > 0 {
            return Ok(());
        }
    }
    if !is_listed {
        return Ok(());
    }
    let candidates = candidates(shared, signal).await?;
    let Some(eviction) = choose(bound, thresholds, &levels, &candidates) else {
        tracing::warn!(
            signal = signal.name(),
            "the node is under pressure, but no pod is eligible for eviction"
        );
        return Ok(());
    };
    let handles = shared.handles();
    if let Some(handle) = handles.get(&eviction.uid) {
        tracing::warn!(
            pod = handle.pod.name,
            namespace = handle.pod.namespace,
            reason = eviction.message,
            "pod evicted"
        );
        shared.figures.done().evicted(signal.name());
        handle.evict(Eviction {
            reason: Eviction::PRESSURE,
            message: eviction.message,
            annotations: eviction.annotations,
            grace: grace(bound, thresholds, handle.latest().as_deref()),
        });
    }
    Ok(())
}

/// What is left of the machine's resources. If the control group of all pods has a memory limit,
/// also what is left of that: at that limit the kernel kills containers, however much the machine
/// has.
fn levels(config: &Config, facts: &Facts, groups: &Groups) -> Levels {
    let mut levels = facts.levels();
    if config.owns_machine
        && let Some(of_pods) = group::memory_of_pods(groups)
    {
        levels.insert(Signal::AllocatableMemoryAvailable, of_pods);
    }
    levels
}

/// A pod's grace period: the least one at a hard threshold; at a soft one its own, limited to the
/// longest that the node grants.
fn grace(bound: Bound, thresholds: &Thresholds, pod: Option<&Pod>) -> Duration {
    let granted = match bound.kind {
        ThresholdKind::Hard => Duration::ZERO,
        ThresholdKind::Soft => {
            let own = pod.map_or(DEFAULT_GRACE, agent_pods::grace);
            own.min(thresholds.max_pod_grace)
        }
    };
    granted.max(EVICTION_GRACE)
}

/// The pods that may be evicted: those that have not ended and are not ending.
async fn candidates(shared: &Arc<Shared>, signal: Signal) -> Result<Vec<Candidate>, Error> {
    let pods: Vec<Arc<Pod>> = {
        let handles = shared.handles();
        handles.values().filter_map(Handle::candidate).collect()
    };
    let seen = shared.runtime.list(None).await?;
    let disks = if signal.is_of_disk() {
        measure(shared, &pods, &seen).await
    } else {
        BTreeMap::new()
    };
    let subjects = || async { Subjects::new(&pods, Ok(seen), POD_LINKS, shared.facts.space()) };
    Ok(shared.figures.candidates(&pods, subjects, &disks).await)
}

/// Each pod's disk usage, by UID.
async fn measure(
    shared: &Arc<Shared>,
    pods: &[Arc<Pod>],
    seen: &[Seen],
) -> BTreeMap<String, DiskUse> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let Some(reference) = pod_ref(pod) else {
            continue;
        };
        let mut layers = Vec::new();
        for seen in seen.iter().filter(|seen| seen.key.pod == reference) {
            layers.extend(Layer::of(&*shared.runtime, seen).await);
        }
        let (shared, pod, uid) = (shared.clone(), pod.clone(), reference.uid.clone());
        let taken = tokio::task::spawn_blocking(move || {
            storage::taken(&shared.config.machine, &pod, &reference, &layers)
        });
        if let Ok(taken) = taken.await {
            all.insert(uid, taken);
        }
    }
    all
}

impl Shared {
    /// The pressure conditions of the Node that hold.
    pub(crate) fn pressures(&self) -> BTreeSet<Condition> {
        let pressure = self.pressure.lock();
        pressure
            .unwrap_or_else(PoisonError::into_inner)
            .conditions()
    }

    /// Refuses a new pod that a node under pressure does not take.
    pub(crate) fn under_pressure(&self, pod: &Pod) -> Option<Refusal> {
        let is_best_effort = qos::class(pod) == "BestEffort";
        let message = refusal(&self.pressures(), pod, is_best_effort)?;
        Some(Refusal {
            reason: EVICTED.into(),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Released;
    use crate::kubelet::tests::{shared, with_host_port};
    use crate::shared::tests::handle;
    use crate::worker::tests::with_own_engine;
    use agent_pressure::{Least, Level};

    /// Adds a pod of this UID whose eviction begins now; returns whether it has released its
    /// resources.
    fn evicted(shared: &Shared, uid: &str, reason: &'static str) -> Released {
        let handle = handle(with_host_port(uid));
        handle.evict(Eviction {
            reason,
            message: String::new(),
            annotations: BTreeMap::new(),
            grace: Duration::ZERO,
        });
        let released = handle.released.clone();
        shared.handles().insert(uid.to_owned(), handle);
        released
    }

    /// How long a measurement waits for the pods that were evicted before it.
    async fn waited(shared: &Arc<Shared>) -> Duration {
        let at = time::Instant::now();
        pass(shared).await.unwrap();
        at.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_pod_is_evicted_when_the_last_has_released_its_resources_or_had_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut shared = Arc::into_inner(shared(dir.path())).unwrap();
        // Nothing but the wait is to take time.
        shared.config.thresholds = Thresholds::none();
        let shared = Arc::new(shared);
        let short = Duration::from_secs(1);
        evicted(&shared, "ends-with-the-machine", Eviction::SHUTDOWN);
        assert!(waited(&shared).await < short);
        let begun = time::Instant::now();
        evicted(&shared, "never", Eviction::PRESSURE);
        time::sleep(Duration::from_secs(10)).await;
        evicted(&shared, "never-either", Eviction::PREEMPTION);
        assert!(waited(&shared).await >= CLEANUP);
        assert!(begun.elapsed() < CLEANUP + Duration::from_secs(11));
        assert!(waited(&shared).await < short, "they had their time");

        let [one, other] = ["one", "other"].map(|uid| evicted(&shared, uid, Eviction::PRESSURE));
        let release = async {
            time::sleep(Duration::from_secs(3)).await;
            one.set();
            time::sleep(Duration::from_secs(2)).await;
            other.set();
        };
        let (until_both, ()) = tokio::join!(waited(&shared), release);
        assert_eq!(until_both.as_secs(), 5);
        assert!(waited(&shared).await < short);
        drop(evicted(&shared, "gone", Eviction::PRESSURE));
        let go = async {
            time::sleep(Duration::from_secs(3)).await;
            shared.handles().remove("gone");
        };
        let (until_gone, ()) = tokio::join!(waited(&shared), go);
        assert_eq!(until_gone.as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_measurement_after_an_eviction_waits_for_what_the_pod_took() {
        let dir = tempfile::tempdir().unwrap();
        let mut shared = Arc::into_inner(shared(dir.path())).unwrap();
        shared.config.thresholds = Thresholds {
            hard: BTreeMap::from([(Signal::NodefsAvailable, Least::Amount(1 << 50))]),
            ..Thresholds::none()
        };
        let (shared, _) = with_own_engine(Arc::new(shared));
        shared.listed.store(true, Ordering::Release);
        let pod = with_host_port("a");
        let folder = shared.config.machine.pod_dir("a");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("taken"), [7; 4096]).unwrap();
        let handle = handle(pod);
        let (chosen, released) = (handle.chosen.clone(), handle.released.clone());
        shared.handles().insert("a".to_owned(), handle);
        pass(&shared).await.unwrap();
        assert_eq!(chosen.eviction().unwrap().reason, Eviction::PRESSURE);
        let release = async {
            time::sleep(Duration::from_secs(3)).await;
            released.set();
        };
        let (waited, ()) = tokio::join!(waited(&shared), release);
        assert_eq!(waited.as_secs(), 3);
    }

    #[test]
    fn pods_near_their_common_memory_limit_are_evicted_however_much_the_machine_has() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("kubepods");
        std::fs::create_dir(&own).unwrap();
        let of_group = |file: &str, text: &str| std::fs::write(own.join(file), text).unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "memory").unwrap();
        of_group("memory.max", "1073741824");
        of_group("memory.stat", "inactive_file 0");
        let groups = Groups::at(dir.path());
        let facts = Facts::of_machine(dir.path());
        let of_machine = |owns_machine| Config {
            owns_machine,
            ..crate::config::tests::config(dir.path())
        };
        let signal = Signal::AllocatableMemoryAvailable;
        let seen = |owns_machine| {
            let all = levels(&of_machine(owns_machine), &facts, &groups);
            let met = Thresholds::default().met(&all, &BTreeSet::new());
            let of_pods = met.iter().any(|bound| bound.signal == signal);
            (all.get(&signal).copied(), of_pods)
        };
        let left = |available| {
            let capacity = 1 << 30;
            Some(Level {
                available,
                capacity,
            })
        };
        let mib = 1 << 20;
        of_group("memory.current", &(1024 * mib - 100 * mib).to_string());
        assert_eq!(seen(true), (left(100 * mib), false));
        of_group("memory.current", &(1024 * mib - 99 * mib).to_string());
        assert_eq!(seen(true), (left(99 * mib), true));
        assert_eq!(seen(false), (None, false), "nothing enforces that limit");
    }
}
