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
/// The part of the machine's processes and threads that pods leave to init, containerd, its shims
/// and the agent: one of as many. Less than the tenth below which a usual threshold of
/// `pid.available` has pods evicted.
const OWN_THREADS: u64 = 16;
/// As many containers of a pod may have all the processes that each may have.
const FULL_CONTAINERS: u64 = 4;

fn units(amount: u64) -> Amount {
    Amount::units(i64::try_from(amount).unwrap_or(i64::MAX))
}

/// What the machine has, by resource.
pub(crate) fn of(config: &Config, facts: &Facts) -> BTreeMap<&'static str, Amount> {
    BTreeMap::from([
        ("cpu", units(facts.cpus)),
        ("memory", units(facts.memory)),
        ("ephemeral-storage", units(facts.space().size)),
        ("pods", units(u64::from(config.max_pods))),
    ])
}

/// What all pods may use together: the capacity less what is reserved. Thresholds are no part of
/// it. That of memory holds for what is left of this limit, too
/// ([`Signal::AllocatableMemoryAvailable`]), so that a pod is evicted before all meet it.
fn enforced(config: &Config, facts: &Facts) -> Resources {
    let millis = facts.cpus.saturating_mul(1000);
    Resources {
        cpu_request_millis: millis.saturating_sub(config.reserved_cpu_millis),
        memory_limit: Some(facts.memory.saturating_sub(config.reserved_memory)),
        pids_limit: most_threads().map(|most| most - most / OWN_THREADS),
        ..Resources::default()
    }
}

/// A pod's limits, and how many processes its containers may have together: a container more must
/// not mean as many processes more.
pub(crate) fn of_pod(config: &Config, limits: Resources) -> Resources {
    let pids = u64::from(config.machine.pids) * FULL_CONTAINERS;
    Resources {
        pids_limit: Some(pids),
        ..limits
    }
}

/// Has the kernel keep all pods within that, where the machine is the node's own (upstream's
/// `enforceNodeAllocatable`). Tried again until it does; after that nothing is left to do, for
/// ever.
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

/// The capacity less what is kept from pods, and less the thresholds below which the node is under
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
