//! Ends all containers at the machine's shutdown: each runs its preStop hook and gets the stop
//! signal, sidecars after the containers that they serve, and is killed after its pod's grace
//! period.
//!
//! Runs after the kubelet's own tasks have ended, so that nothing is started meanwhile. Before, the
//! pods' tasks have ended the pods that the master knows ([`Drain::end_pods`]); this is for the
//! rest: pods that took longer, and containers without a pod.

use crate::sandbox::PodSandbox;
use crate::shared::Shared;
use agent_pods::{Action, DEFAULT_GRACE, Ending, Notes, grace, later, plan_orphan};
use agent_probes::Hooks;
use agent_runtime::{Container, ContainerState, Error};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Poll interval for containers that still run.
const PAUSE: Duration = Duration::from_millis(200);
/// How long after its grace period a container may still run: it is killed then, and if it still
/// runs after this time, it hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);

/// Ends all containers of the node.
#[derive(Debug)]
pub struct Drain {
    shared: Arc<Shared>,
}

/// The result of [`Drain::end_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Containers that were running when it began.
    pub ran: usize,
    /// Of them, those that did not end in their grace period and were killed.
    pub killed: usize,
    /// Containers that still run.
    pub left: usize,
}

impl Drain {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops every container, and kills those that do not end in their pod's grace period, at most
    /// `longest`. Returns when none is left, at the latest 5 seconds after `longest`.
    pub async fn end_all(self, longest: Duration) -> Drained {
        let pods = self.pods();
        let mut hooks: HashMap<String, Hooks> = HashMap::new();
        let begin = Instant::now();
        // From the monotonic clock: setting the clock back makes no grace longer.
        let wall = Timestamp::now();
        let mut notes: HashMap<String, Notes> = HashMap::new();
        let mut drained = Drained::default();
        let (mut ran, mut killed) = (BTreeSet::new(), BTreeSet::new());
        let end = longest + KILLED;
        loop {
            let containers =
                match tokio::time::timeout(KILLED, self.shared.runtime.list(None)).await {
                    Ok(Ok(containers)) => Some(containers),
                    Ok(Err(error)) => {
                        tracing::warn!(
                            error = error.chain(),
                            "cannot list containers from containerd while draining"
                        );
                        None
                    }
                    Err(_too_late) => None,
                };
            if let Some(containers) = containers {
                drained.left = running(&containers).count();
                ran.extend(running(&containers).map(|container| container.id.clone()));
                let now = later(wall, begin.elapsed());
                for (uid, hooks) in &mut hooks {
                    let notes = notes.entry(uid.clone()).or_default();
                    hooks.follow(&containers, true, notes);
                }
                let actions = plan(&containers, &pods, longest, &mut notes, now);
                self.begin_hooks(&actions, &containers, &pods, &mut hooks);
                killed.extend(actions.iter().filter_map(|action| match action {
                    Action::Kill { id } => Some(id.clone()),
                    Action::Start { .. }
                    | Action::Resize { .. }
                    | Action::PreStop { .. }
                    | Action::Stop { .. }
                    | Action::Remove { .. }
                    | Action::Finish => None,
                }));
                (drained.ran, drained.killed) = (ran.len(), killed.len());
                if drained.left == 0 {
                    return drained;
                }
                self.act(actions).await;
            }
            if begin.elapsed() >= end {
                return drained;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Each pod that is wanted here.
    fn pods(&self) -> HashMap<String, Arc<Pod>> {
        let handles = self
            .shared
            .pods
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        handles
            .iter()
            .filter_map(|(uid, handle)| Some((uid.clone(), handle.latest()?)))
            .collect()
    }

    /// Starts the preStop hooks that the plan contains.
    fn begin_hooks(
        &self,
        actions: &[Action],
        containers: &[Container],
        pods: &HashMap<String, Arc<Pod>>,
        hooks: &mut HashMap<String, Hooks>,
    ) {
        for action in actions {
            let Action::PreStop { id, limit } = action else {
                continue;
            };
            let Some(seen) = containers.iter().find(|container| container.id == *id) else {
                continue;
            };
            let uid = &seen.key.pod.uid;
            let Some(pod) = pods.get(uid) else { continue };
            let sandbox = PodSandbox::find(&self.shared, uid);
            let host = sandbox.addresses(&self.shared, pod).pod.first().copied();
            let hooks = hooks.entry(uid.clone()).or_insert_with(|| {
                let shared = &self.shared;
                Hooks::new(
                    shared.runtime.clone(),
                    shared.events.clone(),
                    Arc::default(),
                )
            });
            hooks.begin_pre_stop(pod, &seen.key.container, id, host, *limit);
        }
    }

    /// Carries out all actions at the same time, so that no container waits for another's engine
    /// call; bounded in time.
    async fn act(&self, actions: Vec<Action>) {
        let mut calls = JoinSet::new();
        for action in actions {
            let runtime = self.shared.runtime.clone();
            calls.spawn(async move {
                let outcome = match &action {
                    Action::Stop { id } => runtime.stop(id).await,
                    Action::Kill { id } => runtime.kill(id).await,
                    Action::Start { .. }
                    | Action::Resize { .. }
                    | Action::PreStop { .. }
                    | Action::Remove { .. }
                    | Action::Finish => Ok(()),
                };
                if let Err(error) = outcome {
                    tracing::warn!(
                        error = Error::chain(&error),
                        ?action,
                        "cannot stop or kill a container while draining"
                    );
                }
            });
        }
        // A call that takes longer is dropped: the next list shows its result.
        drop(
            tokio::time::timeout(KILLED, async { while calls.join_next().await.is_some() {} })
                .await,
        );
    }
}

fn running(containers: &[Container]) -> impl Iterator<Item = &Container> {
    containers
        .iter()
        .filter(|container| matches!(container.state, ContainerState::Running { .. }))
}

/// The actions that are due; `notes` records which containers got the stop signal, and when.
fn plan(
    containers: &[Container],
    pods: &HashMap<String, Arc<Pod>>,
    longest: Duration,
    notes: &mut HashMap<String, Notes>,
    now: Timestamp,
) -> Vec<Action> {
    let mut by_pod: BTreeMap<&str, Vec<Container>> = BTreeMap::new();
    for container in containers {
        by_pod
            .entry(&container.key.pod.uid)
            .or_default()
            .push(container.clone());
    }
    let mut actions = Vec::new();
    for (uid, seen) in by_pod {
        let notes = notes.entry(uid.to_owned()).or_default();
        notes.ending.get_or_insert(now);
        let pod = pods.get(uid);
        let grace = pod.map_or(DEFAULT_GRACE, |pod| grace(pod)).min(longest);
        let ending = Ending {
            pod: pod.map(AsRef::as_ref),
            seen: &seen,
            notes,
            grace,
            now,
        };
        for action in plan_orphan(ending).actions {
            match &action {
                Action::Stop { id } => drop(notes.asked.insert(id.clone(), now)),
                Action::PreStop { .. } | Action::Kill { .. } => {}
                // Nothing is cleaned up: the machine's next start does that.
                Action::Start { .. }
                | Action::Resize { .. }
                | Action::Remove { .. }
                | Action::Finish => continue,
            }
            actions.push(action);
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::plan;
    use agent_pods::{Action, Begun};
    use agent_runtime::{Container, ContainerKind, ContainerState, PodRef};
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;
    use tests_support::containers;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    const LONGEST: Duration = Duration::from_secs(75);

    fn pod(grace: u64, hook: &Value) -> Arc<Pod> {
        let main = json!({"name": "main", "lifecycle": {"preStop": hook}});
        let sidecar = json!({"name": "sidecar", "restartPolicy": "Always"});
        let spec = json!({"terminationGracePeriodSeconds": grace, "initContainers": [sidecar], "containers": [main]});
        Arc::new(serde_json::from_value(json!({"spec": spec})).unwrap())
    }

    fn container(pod: &str, state: ContainerState) -> Container {
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: pod.to_owned(),
        };
        containers::container(pod, "main", state)
    }

    #[test]
    fn hooks_run_and_sidecars_wait_also_when_the_machine_ends() {
        let main = container("served", ContainerState::Running { started_at: at(0) });
        let mut sidecar = container("served", ContainerState::Running { started_at: at(0) });
        sidecar.id = "served-sidecar".to_owned();
        sidecar.key.container = "sidecar".to_owned();
        sidecar.key.kind = ContainerKind::Sidecar;
        let pods = HashMap::from([(
            "served".to_owned(),
            pod(30, &json!({"sleep": {"seconds": 9}})),
        )]);
        let mut notes = HashMap::new();
        let id = "served-main".to_owned();
        let limit = Duration::from_secs(30);
        let both = [sidecar.clone(), main];
        assert_eq!(
            plan(&both, &pods, LONGEST, &mut notes, at(100)),
            [Action::PreStop {
                id: id.clone(),
                limit
            }]
        );
        let over = Begun {
            at: at(100),
            over: true,
        };
        notes
            .entry("served".to_owned())
            .or_default()
            .pre_stop
            .insert(id.clone(), over);
        assert_eq!(
            plan(&both, &pods, LONGEST, &mut notes, at(109)),
            [Action::Stop { id }]
        );
        let id = sidecar.id.clone();
        assert_eq!(
            plan(&[sidecar], &pods, LONGEST, &mut notes, at(110)),
            [Action::Stop { id }]
        );
    }

    #[test]
    fn each_container_gets_its_pods_grace_and_no_more_than_the_longest() {
        let runs = || ContainerState::Running { started_at: at(0) };
        let seen = [
            container("patient", runs()),
            container("quick", runs()),
            container("stubborn", runs()),
        ];
        let pods = HashMap::from([
            ("quick".to_owned(), pod(1, &Value::Null)),
            ("stubborn".to_owned(), pod(3600, &Value::Null)),
        ]);
        let mut notes = HashMap::new();
        let mut look = |now| plan(&seen, &pods, LONGEST, &mut notes, at(now));
        let stop = |pod: &str| Action::Stop {
            id: format!("{pod}-main"),
        };
        let kill = |pod: &str| Action::Kill {
            id: format!("{pod}-main"),
        };
        assert_eq!(
            look(100),
            [stop("patient"), stop("quick"), stop("stubborn")]
        );
        assert_eq!(look(100), [], "each is asked once");
        assert_eq!(look(101), [], "two seconds are the least");
        assert_eq!(look(102), [kill("quick")]);
        assert_eq!(
            look(130),
            [kill("patient"), kill("quick")],
            "a pod that says nothing has 30 seconds"
        );
        assert_eq!(look(174).len(), 2);
        assert!(
            look(175).contains(&kill("stubborn")),
            "no grace is longer than the machine's"
        );
    }
}
