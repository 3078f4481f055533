//! Capacity of the machine, and the part of it that pods may use.

use crate::config::Config;
use crate::shared::Shared;
use agent_pressure::Signal;
use agent_resources::machine::{Facts, most_threads};
use agent_resources::{group, qos};
use agent_runtime::Resources;
use agent_sys::cgroup::Groups;
use config_errors::chain;
use config_kube::quantity::Amount;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause after the kernel refused a limit: memory in use beyond it, for example.
const RETRY: Duration = Duration::from_secs(60);
/// The share of the machine's processes and threads that is kept for init, containerd, its shims
/// and the agent: one sixteenth. That is less than the tenth at which a usual threshold of
/// `pid.available` evicts pods.
const OWN_THREADS: u64 = 16;
/// A pod's limit of processes, in limits of one container.
const FULL_CONTAINERS: u64 = 4;

fn units(amount: u64) -> Amount {
    Amount::units(i64::try_from(amount).unwrap_or(i64::MAX))
}

/// The machine's capacity, by resource.
pub(crate) fn of(config: &Config, facts: &Facts) -> BTreeMap<&'static str, Amount> {
    BTreeMap::from([
        ("cpu", units(facts.cpus)),
        ("memory", units(facts.memory)),
        ("ephemeral-storage", units(facts.space().size)),
        ("pods", units(u64::from(config.max_pods))),
    ])
}

/// The limits of all pods together: the capacity minus what is reserved, without thresholds. The
/// memory threshold also applies to what is left of this limit
/// ([`Signal::AllocatableMemoryAvailable`]), so that a pod is evicted before all pods reach it.
fn enforced(config: &Config, facts: &Facts) -> Resources {
    let millis = facts.cpus.saturating_mul(1000);
    Resources {
        cpu_request_millis: millis.saturating_sub(config.reserved_cpu_millis),
        memory_limit: Some(facts.memory.saturating_sub(config.reserved_memory)),
        pids_limit: most_threads().map(|most| most - most / OWN_THREADS),
        ..Resources::default()
    }
}

/// A pod's limits, with a limit of processes for all its containers together: otherwise each
/// further container would add its own.
pub(crate) fn of_pod(config: &Config, limits: Resources) -> Resources {
    let pids = u64::from(config.machine.pids) * FULL_CONTAINERS;
    Resources {
        pids_limit: Some(pids),
        ..limits
    }
}

/// Sets these limits on the control group of all pods, if the kubelet owns the machine (upstream's
/// `enforceNodeAllocatable`). Tries until the kernel accepts them; then it only waits, for ever.
pub(crate) async fn enforce(shared: Arc<Shared>) {
    if shared.config.owns_machine {
        let all = enforced(&shared.config, &shared.facts);
        let bound = move || group::limit(&Groups::mounted(), qos::ALL_PODS, all);
        while let Ok(Err(error)) = tokio::task::spawn_blocking(bound).await {
            tracing::warn!(
                error = chain(&error),
                "cannot limit the control group of all pods; trying again"
            );
            tokio::time::sleep(RETRY).await;
        }
    }
    std::future::pending::<()>().await;
}

/// The capacity minus what is reserved, and minus the thresholds below which the node is under
/// pressure.
pub(crate) fn allocatable(config: &Config, facts: &Facts) -> BTreeMap<&'static str, Amount> {
    let mut amounts = of(config, facts);
    let millis = (facts.cpus * 1000).saturating_sub(config.reserved_cpu_millis);
    amounts.insert(
        "cpu",
        Amount::milli(i64::try_from(millis).unwrap_or(i64::MAX)),
    );
    let memory = config
        .thresholds
        .kept(Signal::MemoryAvailable, facts.memory);
    amounts.insert(
        "memory",
        units(
            facts
                .memory
                .saturating_sub(config.reserved_memory.saturating_add(memory)),
        ),
    );
    let size = facts.space().size;
    let kept = config.thresholds.kept(Signal::NodefsAvailable, size);
    let kept = kept.saturating_add(config.reserved_storage);
    amounts.insert("ephemeral-storage", units(size.saturating_sub(kept)));
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn what_is_reserved_is_not_allocatable() {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts::of_machine(dir.path());
        let bare = config(dir.path());
        let reserving = Config {
            reserved_cpu_millis: 3,
            reserved_memory: 5,
            reserved_storage: 7,
            ..bare.clone()
        };
        let limits = enforced(&reserving, &facts);
        assert_eq!(limits.cpu_request_millis, facts.cpus * 1000 - 3);
        assert_eq!(limits.memory_limit, Some(facts.memory - 5));
        let most = most_threads().unwrap();
        let threads = limits.pids_limit.unwrap();
        assert!(threads < most && threads > most / 10 * 9, "{threads}");
        let [all, less] = [bare, reserving].map(|config| allocatable(&config, &facts));
        let kept = |name: &str| all[name].ceil_milli() - less[name].ceil_milli();
        let kept = ["cpu", "memory", "ephemeral-storage", "pods"].map(kept);
        assert_eq!(kept, [3, 5000, 7000, 0]);
    }

    #[test]
    fn processes_of_all_containers_of_a_pod_are_limited_together() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let limits = of_pod(&config, Resources::default());
        let each = u64::from(config.machine.pids);
        assert_eq!(limits.pids_limit, Some(4 * each));
    }
}
