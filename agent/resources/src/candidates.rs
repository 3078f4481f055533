//! Usage of pods against their requests, as input to the choice of the pod to evict; pure.

use crate::qos;
use crate::reading::{PodUsed, Reading, Used};
use agent_pressure::{Candidate, CandidateContainer, Share, is_critical, priority};
use config_kube::k8s_openapi::api::core::v1::{Container as Spec, Pod};
use config_kube::quantity::Amount;
use std::collections::BTreeMap;
use std::sync::Arc;

const MEMORY: &str = "memory";
const DISK: &str = "ephemeral-storage";

/// A pod's usage of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes of all.
    pub bytes: u64,
    /// Files and folders of all.
    pub entries: u64,
    /// Bytes of each container's writable layer and log, by name.
    pub containers: BTreeMap<String, u64>,
}

/// The pods of a reading that are among `pods`. `disks` is their usage of the disk by UID, if that
/// matters.
pub(crate) fn of_reading(
    reading: &Reading,
    pods: &[Arc<Pod>],
    disks: &BTreeMap<String, DiskUse>,
) -> Vec<Candidate> {
    let of_uid = |uid: &str| {
        let mut pods = pods.iter();
        pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    };
    let read = reading.pods.iter();
    read.filter_map(|used| {
        let pod = of_uid(&used.uid)?;
        Some(candidate(pod, used, disks.get(&used.uid)))
    })
    .collect()
}

fn candidate(pod: &Pod, used: &PodUsed, disk: Option<&DiskUse>) -> Candidate {
    let runs = !used.containers.is_empty();
    // A pod without running containers uses nothing, and has no group.
    let known = |value: Option<u64>| value.or((!runs).then_some(0));
    Candidate {
        uid: used.uid.clone(),
        priority: priority(pod),
        critical: is_critical(pod),
        memory: Share {
            used: known(working_set(&used.used)),
            request: bytes(qos::pod_request(pod, MEMORY)),
        },
        disk: Share {
            used: disk.map(|disk| disk.bytes),
            request: bytes(qos::pod_request(pod, DISK)),
        },
        inodes: disk.map(|disk| disk.entries),
        processes: known(used.used.counters.processes),
        containers: containers(pod, used, disk),
    }
}

/// Its containers that run, in the pod's order.
fn containers(pod: &Pod, used: &PodUsed, disk: Option<&DiskUse>) -> Vec<CandidateContainer> {
    let spec = pod.spec.iter();
    let all = spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    let running = all.filter_map(|spec| {
        let running = used.containers.iter().find(|one| one.name == spec.name)?;
        let requested = |resource| bytes(request(spec, resource));
        Some(CandidateContainer {
            name: spec.name.clone(),
            memory: Share {
                used: working_set(&running.used),
                request: requested(MEMORY),
            },
            disk: Share {
                used: disk.and_then(|disk| disk.containers.get(&spec.name).copied()),
                request: requested(DISK),
            },
        })
    });
    running.collect()
}

fn request(container: &Spec, resource: &str) -> Amount {
    qos::request(container, resource).unwrap_or(Amount::ZERO)
}

fn working_set(used: &Used) -> Option<u64> {
    Some(used.counters.memory?.working_set)
}

fn bytes(amount: Amount) -> u64 {
    u64::try_from(amount.ceil_units()).unwrap_or_default()
}
