//! Pod garbage collection: pods that no kubelet will ever end.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Key, Kind, Observed, PodFacts};
use crate::write::Write;
use config_kube::taints::OUT_OF_SERVICE;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Ended pods that are kept for people to look at (upstream's default).
const ENDED_KEPT: usize = 12_500;
/// How long a node must be gone before its pods are: it may be registered anew (upstream: 40 s).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Between two looks at everything (upstream: 20 s).
const PERIOD: Duration = Duration::from_secs(20);

/// The controller's memory: since when nodes that pods name are gone.
#[derive(Debug, Default)]
pub(crate) struct PodGc {
    gone: HashMap<String, Instant>,
    last: Option<Instant>,
    plan: Vec<Write>,
}

impl Controller for PodGc {
    fn name(&self) -> &'static str {
        "pod-gc"
    }

    fn follows(&self) -> &'static [Kind] {
        &[]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        if self
            .last
            .is_none_or(|last| now.instant.saturating_duration_since(last) >= PERIOD)
        {
            self.last = Some(now.instant);
            self.plan = self.look(observed, now.instant);
        }
        let passed = self.last.map_or(Duration::ZERO, |last| {
            now.instant.saturating_duration_since(last)
        });
        Plan {
            writes: std::mem::take(&mut self.plan),
            again: Some(PERIOD.saturating_sub(passed)),
        }
    }
}

impl PodGc {
    fn look(&mut self, observed: &Observed, now: Instant) -> Vec<Write> {
        self.gone
            .retain(|node, _| !observed.nodes.contains_key(node));
        let mut writes = Vec::new();
        let mut ended: Vec<(&Key, &PodFacts)> = Vec::new();
        for (key, pod) in observed.pods() {
            let node = observed.nodes.get(&*pod.node);
            if !pod.node.is_empty() && node.is_none() {
                let since = *self.gone.entry(pod.node.to_string()).or_insert(now);
                if now.saturating_duration_since(since) >= QUARANTINE {
                    writes.push(Write::CollectPod {
                        key: key.clone(),
                        uid: pod.uid.clone(),
                        gone: Some(pod.node.to_string()),
                    });
                }
                continue;
            }
            let off = node.is_some_and(|node| {
                node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
                    && node.status("Ready") != "True"
            });
            if pod.deleted.is_some() && (pod.node.is_empty() || off) {
                writes.push(Write::CollectPod {
                    key: key.clone(),
                    uid: pod.uid.clone(),
                    gone: None,
                });
            } else if pod.ended() && pod.deleted.is_none() {
                ended.push((key, pod));
            }
        }
        ended.sort_by_key(|(_, pod)| pod.created);
        let spare = ended.len().saturating_sub(ENDED_KEPT);
        let oldest = ended.into_iter().take(spare);
        writes.extend(oldest.map(|(key, pod)| Write::CollectPod {
            key: key.clone(),
            uid: pod.uid.clone(),
            gone: None,
        }));
        writes
    }
}
