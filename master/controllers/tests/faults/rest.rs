//! The end of a case: without further faults everything must reach its specification.

use super::Scope;
use super::cluster::BRIEF;
use super::kinds::Any;
use super::pods::{app, is_ready, name, phase};
use super::world::{LEFT, PROTECTED, World};
use std::collections::BTreeSet;
use std::time::Duration;

/// Rounds within which everything must be stable.
const ROUNDS: usize = 400;
/// The time that passes at once in a whole control plane, at first and at most.
const SHORT: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(3600);

impl World {
    /// Runs without faults until everything is stable.
    pub(crate) async fn settle(&mut self) {
        self.processes.api.mend();
        self.waits.calm();
        self.mend().await;
        self.make_last_wishes().await;
        let (mut why, mut longer) = (String::new(), SHORT);
        for _ in 0..ROUNDS {
            let mut moved = false;
            for number in 0..self.processes.all.len() {
                for kind in self.history.kinds {
                    let now = self.processes.now;
                    moved |= self.processes.all[number].see(&self.history, kind, usize::MAX, now);
                }
                while self.run_process(number, None).await {
                    moved = true;
                }
            }
            for pod in self.history.pods_now() {
                moved |= self.live(&pod, false, false).await;
            }
            let is_whole = self.scenario.scope != Scope::Workloads;
            moved |= self.scenario.scope == Scope::ControlPlane && self.make_brief_again().await;
            if moved {
                continue;
            }
            match self.rest() {
                Ok(()) => return,
                Err(still) => why = still,
            }
            if is_whole {
                // Kubelets renew their leases all the time, so something is always due soon.
                self.pass(longer);
                longer = LONGEST.min(longer * 2);
                self.renew_all().await;
            } else if !self.processes.wait() {
                break;
            }
        }
        let names: Vec<_> = self.processes.all.iter().map(|one| one.name()).collect();
        unreachable!("{names:?} do not come to rest: {why}");
    }

    /// Whether everything is as its specification says.
    fn rest(&self) -> Result<(), String> {
        let mut owners = BTreeSet::new();
        for kind in self.history.kinds {
            for any in self.history.objects(kind) {
                owners.insert(any.meta().uid.clone().unwrap_or_default());
                if self.scenario.scope != Scope::Parts {
                    done(any)?;
                }
            }
        }
        let all = self.history.kinds.iter();
        for any in all.flat_map(|kind| self.history.objects(kind)) {
            let mut of = any.meta().owner_references.iter().flatten();
            if of.any(|owner| !owners.contains(&owner.uid)) {
                return Err(format!("an owner is gone of {any:?}"));
            }
        }
        for pod in self.history.pods() {
            let references = pod.metadata.owner_references.iter().flatten();
            let owned = references
                .into_iter()
                .any(|owner| owners.contains(&owner.uid));
            let held = pod.metadata.finalizers.iter().flatten().count();
            if !owned || held > 0 {
                return Err(format!("{} is an orphan or held", name(pod)));
            }
        }
        let tainted = self.nodes().into_iter();
        let tainted = tainted.filter(|node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| !taints.is_empty())
        });
        let tainted = tainted.count();
        match self.scenario.scope {
            Scope::Parts if tainted == 0 => self.parts.iter().try_for_each(|part| part.rest(self)),
            Scope::Workloads => self.rest_of_workloads(),
            Scope::ControlPlane if tainted == 0 => {
                let brief = self.count("brief");
                if brief != BRIEF {
                    return Err(format!("{brief} brief pods are ready"));
                }
                self.rest_of_workloads()
            }
            Scope::Parts | Scope::ControlPlane => Err(format!("{tainted} nodes are tainted")),
        }
    }

    /// How many pods of an application serve.
    pub(crate) fn count(&self, name: &str) -> usize {
        let pods = self.history.pods().into_iter();
        pods.filter(|pod| app(pod) == name && is_ready(pod) && phase(pod) == "Running")
            .count()
    }

    fn rest_of_workloads(&self) -> Result<(), String> {
        let nodes = self.history.objects("nodes").len();
        let found = (self.count("web"), self.count("safe"), self.count("each"));
        if found != (self.replicas, PROTECTED, nodes) {
            return Err(format!("{found:?} pods are ready"));
        }
        Ok(())
    }
}

/// Whether an object is as it should be, by its status.
pub(crate) fn done(any: &Any) -> Result<(), String> {
    let is_done = match any {
        Any::Deployment(one) => {
            let wanted = one.spec.as_ref().and_then(|spec| spec.replicas);
            let status = one.status.clone().unwrap_or_default();
            let all = [
                status.replicas,
                status.updated_replicas,
                status.available_replicas,
            ];
            status.observed_generation == one.metadata.generation && all == [wanted; 3]
        }
        Any::StatefulSet(one) => {
            let wanted = one.spec.as_ref().and_then(|spec| spec.replicas);
            let status = one.status.clone().unwrap_or_default();
            let all = [
                Some(status.replicas),
                status.updated_replicas,
                status.available_replicas,
            ];
            status.observed_generation == one.metadata.generation
                && status.current_revision == status.update_revision
                && all == [wanted; 3]
        }
        Any::DaemonSet(one) => {
            let status = one.status.clone().unwrap_or_default();
            let wanted = Some(status.desired_number_scheduled);
            let all = [status.updated_number_scheduled, status.number_available];
            status.observed_generation == one.metadata.generation && all == [wanted; 2]
        }
        Any::Job(one) => {
            let status = one.status.clone().unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let wanted = one.spec.as_ref().and_then(|spec| spec.completions);
            conditions
                .iter()
                .any(|one| one.type_ == "Complete" && one.status == "True")
                && status.succeeded >= wanted
        }
        Any::Budget(one) => {
            let status = one.status.clone().unwrap_or_default();
            let found = (status.current_healthy, status.disruptions_allowed);
            let all = i32::try_from(PROTECTED).unwrap();
            let allowed = i32::try_from(PROTECTED - LEFT).unwrap();
            found == (Some(all), Some(allowed))
                && status.disrupted_pods.is_none_or(|noted| noted.is_empty())
        }
        Any::Pod(_)
        | Any::ReplicaSet(_)
        | Any::Revision(_)
        | Any::Node(_)
        | Any::Lease(_)
        | Any::CronJob(_)
        | Any::Claim(_)
        | Any::Volume(_)
        | Any::Class(_)
        | Any::Quota(_)
        | Any::Scaler(_)
        | Any::Priority(_) => true,
    };
    if is_done {
        Ok(())
    } else {
        Err(format!("{any:?}"))
    }
}
