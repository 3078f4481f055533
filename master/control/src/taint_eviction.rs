//! Taint eviction: pods leave nodes whose `NoExecute` taints they don't tolerate, or tolerate for a time only.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Kind, Observed, PodFacts};
use crate::write::Write;
use config_kube::k8s_openapi::api::core::v1::Taint;
use config_kube::taints::{NO_EXECUTE, NOT_READY, UNREACHABLE, tolerates};
use jiff::Timestamp;
use std::time::Duration;

/// How long a pod stays on a node that is not ready or silent where it says nothing about it (upstream's admission writes
/// these tolerations into every pod; a pod that has none was made before).
const UNSAID: Duration = Duration::from_secs(300);

/// The controller; it remembers nothing: the time of a taint is written on it.
#[derive(Debug, Default)]
pub(crate) struct TaintEviction;

impl Controller for TaintEviction {
    fn name(&self) -> &'static str {
        "taint-eviction"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let mut plan = Plan::default();
        for (name, node) in &observed.nodes {
            let taints: Vec<&Taint> = node
                .taints
                .iter()
                .filter(|taint| taint.effect == NO_EXECUTE)
                .collect();
            if taints.is_empty() {
                continue;
            }
            for (key, pod) in observed
                .pods_on(name)
                .filter(|(_, pod)| pod.deleted.is_none() && !pod.ended())
            {
                match stays(pod, &taints, now.wall) {
                    None => {}
                    Some(Duration::ZERO) => {
                        plan.writes.push(Write::EvictPod {
                            key: key.clone(),
                            uid: pod.uid.clone(),
                        });
                    }
                    Some(time) => plan.again_in(time),
                }
            }
        }
        plan
    }
}

/// How long a pod may stay: none, for ever.
fn stays(pod: &PodFacts, taints: &[&Taint], now: Timestamp) -> Option<Duration> {
    taints
        .iter()
        .filter_map(|taint| stays_with(pod, taint, now))
        .min()
}

fn stays_with(pod: &PodFacts, taint: &Taint, now: Timestamp) -> Option<Duration> {
    let tolerations: Vec<_> = pod
        .tolerations
        .iter()
        .filter(|toleration| tolerates(toleration, taint))
        .collect();
    let ours = taint.key == NOT_READY || taint.key == UNREACHABLE;
    let allowed = if tolerations.is_empty() {
        if ours && !pod.mirror {
            UNSAID
        } else {
            Duration::ZERO
        }
    } else {
        // Upstream: the shortest of those that name a time; without any that does, for ever.
        let seconds = tolerations
            .iter()
            .filter_map(|toleration| toleration.toleration_seconds)
            .min()?;
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    let since = taint.time_added.as_ref().map_or(now, |time| time.0);
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(allowed.saturating_sub(passed))
}
