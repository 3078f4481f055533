//! The end of a case: without further faults everything reaches its specification.

use super::pods::{app, is_ready, name, phase};
use super::simulation::{Any, KINDS};
use super::world::{LEFT, PROTECTED, World};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;

/// Rounds within which everything must be stable.
const ROUNDS: usize = 400;

impl World {
    /// Runs without faults until everything is stable.
    pub(crate) async fn settle(&mut self) {
        self.processes.api.mend();
        let mut why = String::new();
        for _ in 0..ROUNDS {
            let mut moved = false;
            for number in 0..self.processes.all.len() {
                for kind in KINDS {
                    let now = self.processes.now;
                    moved |= self.processes.all[number].see(&self.history, kind, usize::MAX, now);
                }
                while self.processes.run(number, &mut self.history, None).await {
                    moved = true;
                }
                self.check();
            }
            let pods: Vec<Pod> = self.history.pods().into_iter().cloned().collect();
            for pod in pods {
                moved |= self.live(&pod, false, false).await;
                self.check();
            }
            if moved {
                continue;
            }
            match self.rest() {
                Ok(()) => return,
                Err(still) => why = still,
            }
            if !self.processes.wait() {
                break;
            }
        }
        let names: Vec<_> = self.processes.all.iter().map(|one| one.name()).collect();
        unreachable!("{names:?} do not come to rest: {why}");
    }

    /// Whether everything is as its specification says.
    fn rest(&self) -> Result<(), String> {
        let mut owners = BTreeSet::new();
        for kind in KINDS {
            for any in self.history.objects(kind) {
                owners.insert(any.meta().uid.clone().unwrap_or_default());
                done(any)?;
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
        let count = |app_name: &str| {
            let pods = self.history.pods().into_iter();
            pods.filter(|pod| app(pod) == app_name && is_ready(pod) && phase(pod) == "Running")
                .count()
        };
        let nodes = self.history.objects("nodes").len();
        let found = (count("web"), count("safe"), count("each"));
        if found != (self.replicas, PROTECTED, nodes) {
            return Err(format!("{found:?} pods are ready"));
        }
        Ok(())
    }
}

/// Whether an object's status says that it is as it should be.
fn done(any: &Any) -> Result<(), String> {
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
        Any::Pod(_) | Any::ReplicaSet(_) | Any::Revision(_) | Any::Node(_) => true,
    };
    if is_done {
        Ok(())
    } else {
        Err(format!("{any:?}"))
    }
}
