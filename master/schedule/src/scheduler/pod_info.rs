//! Reads pods into the state that the scheduler keeps of them.

use crate::key::PodKey;
use crate::profile::Profile;
use crate::request::{Demand, PodRequest};
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_client::Interner;
use std::cmp::Reverse;
use std::sync::Arc;

/// The scheduler's view of a pod.
#[derive(Debug)]
pub struct PodInfo {
    pub(super) key: PodKey,
    pub(super) state: State,
}

impl PodInfo {
    /// The order in which a list is applied: first the pods that need no place in the queue, as
    /// some of them leave it; the others by priority and age.
    pub(super) fn turn(&self) -> (Reverse<i32>, i64) {
        match &self.state {
            State::Waits(request, _) => (Reverse(request.priority), request.since),
            State::Ended | State::On(..) | State::NotOurs(_) => (Reverse(i32::MAX), i64::MIN),
        }
    }
}

/// The scheduling state of a pod.
#[derive(Debug)]
pub(super) enum State {
    /// It has ended and uses nothing.
    Ended,
    /// It is on a node.
    On(String, Box<PodRequest>),
    /// It waits for a node; its nominated node (`status.nominatedNodeName`).
    Waits(Box<PodRequest>, Option<String>),
    /// It has no node, and this scheduler must not place it (yet); its UID.
    NotOurs(String),
}

/// Reads pods for a scheduler with these profiles. Clones share the interned demands of replicas.
#[derive(Debug, Clone)]
pub struct PodReader {
    profiles: Vec<Arc<Profile>>,
    demands: Arc<Interner<Demand>>,
}

impl PodReader {
    pub(super) fn new(profiles: Vec<Arc<Profile>>) -> Self {
        Self {
            profiles,
            demands: Arc::default(),
        }
    }

    /// What the scheduler keeps of a pod.
    pub fn read(&self, pod: &Pod) -> PodInfo {
        PodInfo {
            key: PodKey::of(pod),
            state: State::of(pod, &self.profiles, &self.demands),
        }
    }
}

impl State {
    fn of(pod: &Pod, profiles: &[Arc<Profile>], demands: &Interner<Demand>) -> Self {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return Self::Ended;
        }
        let mut request = PodRequest::of(pod);
        request.demand = demands.intern(request.demand);
        let spec = pod.spec.as_ref();
        if let Some(node) = spec
            .and_then(|spec| spec.node_name.as_deref())
            .filter(|name| !name.is_empty())
        {
            return Self::On(node.to_owned(), Box::new(request.settled()));
        }
        let asked = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let asked = asked.filter(|name| !name.is_empty()).unwrap_or(crate::NAME);
        let profile = profiles.iter().find(|profile| profile.name == asked);
        let gated = spec
            .and_then(|spec| spec.scheduling_gates.as_ref())
            .is_some_and(|gates| !gates.is_empty());
        let leaving = pod.metadata.deletion_timestamp.is_some();
        let Some(profile) = profile.filter(|_| !gated && !leaving) else {
            return Self::NotOurs(request.uid);
        };
        request.profile = Arc::clone(profile);
        let status = pod.status.as_ref();
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let nominated = nominated.filter(|name| !name.is_empty());
        Self::Waits(Box::new(request), nominated)
    }
}
