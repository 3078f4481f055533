//! Preemption on the node: evicts pods to make room for a critical pod that does not fit (as
//! upstream's kubelet).

use crate::handle::Handle;
use crate::shared::Shared;
use agent_pods::{Eviction, Refusal, grace, misfit, victims};
use agent_pressure::{is_critical, makes_room};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Status message of a preempted pod.
const MESSAGE: &str = "Preempted in order to admit critical pod";
/// How long the critical pod waits before it is checked again.
pub(crate) const WAIT: Duration = Duration::from_millis(100);

impl Shared {
    /// Evicts other pods for a critical one that does not fit for this reason; true if it will fit
    /// once those have ended.
    pub(crate) fn make_room(&self, pod: &Pod, lack: &Refusal) -> bool {
        if !is_critical(pod) {
            return false;
        }
        let handles = self.handles();
        let own = pod.metadata.uid.as_deref();
        // A pod that is ending counts as gone, so that no other is chosen in its place meanwhile.
        let staying = handles.iter().filter_map(|(uid, handle)| {
            let stays = Some(uid.as_str()) != own && !handle.is_leaving();
            Some((handle.allocated().filter(|_| stays)?, handle))
        });
        let (others, staying): (Vec<Arc<Pod>>, Vec<&Handle>) = staying.unzip();
        let allocatable = self.allocatable();
        let may_end = |other: &Pod| makes_room(pod, other);
        let Some(chosen) = victims(pod, &others, may_end, &allocatable) else {
            return false;
        };
        // Of all reasons against the pod, ending others removes only a lack of resources.
        let rest = others.iter().enumerate();
        let rest = rest.filter(|(at, _)| !chosen.contains(at));
        let rest: Vec<Arc<Pod>> = rest.map(|(_, other)| other.clone()).collect();
        if misfit(pod, &rest, &allocatable).is_some() {
            return false;
        }
        for at in chosen {
            tracing::warn!(
                pod = staying[at].pod.name,
                namespace = staying[at].pod.namespace,
                "pod preempted for a critical pod"
            );
            let resource = lack.reason.trim_start_matches("OutOf");
            self.figures.done().preempted(resource);
            staying[at].evict(Eviction {
                reason: Eviction::PREEMPTION,
                message: MESSAGE.to_owned(),
                annotations: BTreeMap::new(),
                grace: grace(&others[at]),
            });
        }
        true
    }
}
